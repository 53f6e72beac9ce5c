"""What the edge counts, in memory that outlives it."""

from __future__ import annotations

from pathlib import Path

from castiron.server import meters, status
from castiron.telemetry import families, shared


def test_requests_of_a_dead_worker_are_ended_by_the_next_one(tmp_path: Path) -> None:
    first = meters.Meters(dict, str(tmp_path))
    first.accepted.value += 5
    first.named("m", "1").end(status.OK)
    first.unknown.end(status.NOT_FOUND)
    assert first.in_flight == 3
    assert isinstance(first.page.store, shared.Page)
    first.page.store.close()
    second = meters.Meters(dict, str(tmp_path))
    assert second.in_flight == 0
    assert second.named("m", "1").outcomes[status.OK].value == 1
    assert second.unknown.outcomes[status.FAILED].value == 3
    page = shared.merged(str(tmp_path), second.page)
    ended = page.families[families.ENDED.name].children
    assert sum(child.samples()[0][2] for child in ended.values()) == second.accepted.value == 5


def test_every_family_of_the_edge_is_in_the_table() -> None:
    counted = meters.Meters(lambda: dict.fromkeys(families.POOL, 0.0))
    known = {declared.name: declared for declared in families.ALL}
    for name, family in counted.page.families.items():
        assert known[name] is family.declared
    assert set(families.LANES) <= {name.removeprefix("castiron_") for name in known}
