"""A version that is taken away: nothing of it stays, also not what was kept of its requests."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path

from castiron import api
from castiron.registry import supply
from castiron.server import dispatch, rest, settings
from castiron.server.http import port
from castiron.server.security import guard
from castiron.server.security import settings as security_settings
from tests import built
from tests.server import real
from tests.server.http.wires import Transport, connected, feed, post, run

BODY = b'{"inputs":[{"name":"x0","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'


async def answers(written: Transport, count: int) -> None:
    while written.written.count(b"HTTP/1.1 200") < count:  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(0)


def test_its_code_its_weights_and_its_runs_are_free_at_once(tmp_path: Path) -> None:
    """Though its gauges stay, and without a collection, which is rare here."""
    models = tmp_path / "models"
    real.put(models, "m", built.one_op("Neg", ("n",)).SerializeToString())

    async def main() -> None:
        given = settings.Settings(inline_us=5000.0)
        supplied = api._supply(1, [], is_placed=False)
        served = dispatch.Dispatcher(supplied, supply.Settings(tmp_path / "cache"), given)
        allowed = guard.Guard(security_settings.Settings()).access
        shared = port.Port(rest.Rest(served, given, allowed), given, served.meters)
        await served.registry.start(models)
        one, transport = connected(shared)
        for count in range(1, 31):
            feed(one, post(BODY, "/v2/models/m/infer"))
            await answers(transport, count)
        instance, kept = alive(served)
        await served.change("unload", "m", None)
        assert instance() is None
        assert kept() is None
        assert "castiron_inline_runs" in served.meters.expose()
        served.registry.close()

    run(main)


def alive(of: dispatch.Dispatcher) -> tuple[weakref.ref[object], weakref.ref[object]]:
    """The instance, and the output of the run that is kept for requests of the only kind."""
    (version,) = of.registry
    made = of.served_by(version)
    known = made.interface.skeletons.find(BODY)
    assert known is not None
    assert known.template.fixed is not None
    (output,) = known.template.fixed.outputs.values()
    return weakref.ref(made.instance), weakref.ref(output)
