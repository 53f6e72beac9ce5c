"""A model's kernel faults and takes its worker with it: what that costs those who ask another model."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.behaviour import steady, ways
from tests.executable import patched
from tests.server.workers import several

pytestmark = pytest.mark.xdist_group("workers")

_NUM_CLIENTS = 4
_PAUSE_S = 0.02
# What a process that starts beside costs on a machine of two CPUs.
_BOUND_MS = 60.0
_STEADY_S = 3.0
_POISON = several.BODY.replace(b"[1, 2, 3, 4]", b"[-123, 2, 3, 4]")


class _Client:
    """Asks the good model over one connection; after a failure over a new one."""

    def __init__(self, server: several.Server) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

    def ask(self) -> ways.Answer:
        """One call."""
        try:
            self.connection.request("POST", "/v2/models/m/infer", several.BODY)
            response = self.connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as fault:
            self.connection.close()
            return ways.Answer("closed", 0.0, text=repr(fault))
        is_ok = response.status == 200
        return ways.Answer(str(response.status), 0.0, [[1.0]] if is_ok else None, str(content))


def _faults(server: several.Server) -> None:
    """A request of the bad model, whose kernel faults."""
    with pytest.raises((OSError, http.client.HTTPException)):
        server.ask("POST", "/v2/models/bad/infer", _POISON)


def _all_die(server: several.Server) -> None:
    for worker in server.workers():
        several.end(worker, signal.SIGKILL)


def _costs(
    tmp_path: Path, hit: Callable[[several.Server], None]
) -> tuple[list[steady.Call], list[steady.Call]]:
    """The calls of the good model before, and from the hit until all workers are back."""
    folder = tmp_path / "models"
    folder.mkdir()
    built = several.build(tmp_path / "built" / "two.cast")
    several.publish(built, folder, "m", 1)
    patched.with_code(
        built, folder / "bad" / "1" / "model.cast", "fused", patched.TRAP_ON_MINUS_123
    )
    with several.serving(tmp_path, folder) as server, contextlib.ExitStack() as open_ones:
        clients = [_Client(server) for _ in range(_NUM_CLIENTS)]
        for client in clients:
            open_ones.callback(client.connection.close)
        with steady.load([client.ask for client in clients], _PAUSE_S) as seen:
            time.sleep(1)
            begun_s = time.monotonic()
            time.sleep(_STEADY_S)
            hit_s = time.monotonic()
            workers = server.workers()
            hit(server)
            server.wait(lambda: server.workers() != workers and len(server.workers()) == 2)
            server.wait_ready(2)
            back_s = time.monotonic()
            time.sleep(0.5)
    before, during = seen.between(begun_s, hit_s), seen.between(hit_s, back_s + 0.5)
    lost = [call for call in during if not call.is_ok]
    several.tell(
        f"both ready again after {back_s - hit_s:.2f} s; {len(lost)} of {len(during)} calls "
        f"of the other model lost; p99 {steady.p99_ms(before):.1f} ms before, "
        f"{steady.p99_ms(during):.1f} ms from then on, longest {steady.longest_ms(during):.0f} ms"
    )
    return before, during


def test_a_kernel_that_faults_leaves_other_models_their_p99(tmp_path: Path) -> None:
    before, during = _costs(tmp_path, _faults)
    lost = [call for call in during if not call.is_ok]
    assert len(lost) <= _NUM_CLIENTS  # one for each connection that the worker held
    assert all(call.sent_s < during[0].due_s + 1 for call in lost)
    # The sibling takes new connections from the port that both hold; none waits for the restart.
    assert steady.p99_ms(during) <= max(3 * steady.p99_ms(before), _BOUND_MS)


def test_when_all_workers_die_at_once_calls_wait_for_the_restart(tmp_path: Path) -> None:
    _, during = _costs(tmp_path, _all_die)
    assert len([call for call in during if not call.is_ok]) <= _NUM_CLIENTS
    assert steady.longest_ms(during) < 6000  # under 2000 on a machine that has the time
