"""Short runs on the loop itself: only once they are known, each size apart, and never for good."""

from __future__ import annotations

import time
from typing import Any

from castiron.server import quick

LIMIT_NS = 2_000_000


def busy(inputs: Any) -> Any:
    """Uses so much processor time of this thread."""
    end = time.thread_time_ns() + inputs["ns"]
    while time.thread_time_ns() < end:
        pass
    return inputs


def known(limit_ns: int = LIMIT_NS) -> quick.Quick:
    made = quick.Quick(limit_ns)
    for _ in range(10):
        made.observe_lane(100, LIMIT_NS // 2)
    return made


def test_nothing_is_run_inline_before_the_lane_has_shown_short_runs() -> None:
    made = quick.Quick(LIMIT_NS)
    assert not made.is_short(100)
    made.observe_lane(100, 1000)
    assert not made.is_short(100)
    assert known().is_short(100)


def test_long_runs_and_other_sizes_stay_on_the_lane() -> None:
    made = known()
    assert not made.is_short(1 << 20)
    for _ in range(10):
        made.observe_lane(1 << 20, 50_000_000)
    assert not made.is_short(1 << 20)
    assert made.is_short(100)


def test_a_limit_of_nothing_turns_it_off() -> None:
    assert not known(0).is_short(100)


def test_a_size_that_grew_slow_goes_back_to_the_lane_and_is_tried_again_later() -> None:
    made = known()
    for _ in range(10):
        assert made.is_short(100)
        made.run(100, busy, {"ns": LIMIT_NS // 10})
    for _ in range(8):
        if made.is_short(100):
            made.run(100, busy, {"ns": 3 * LIMIT_NS})
    assert not made.is_short(100)
    num_refused = 1
    while not made.is_short(100):
        num_refused += 1
        assert num_refused < 1000
    assert num_refused > 100


def test_it_counts_what_it_ran() -> None:
    made = known()
    assert made.run(100, lambda inputs: inputs, {"ns": 1}) == {"ns": 1}
    assert made.num_runs == 1
