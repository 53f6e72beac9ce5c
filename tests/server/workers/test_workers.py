"""Workers that die, hang, crash, are told to stop: who notices, and what it costs whom."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

from tests.executable import patched
from tests.server.workers import several

pytestmark = pytest.mark.xdist_group("workers")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several.build(tmp_path_factory.mktemp("built") / "two.cast")


@pytest.fixture
def folder(tmp_path: Path, two: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    several.publish(two, models, "m", 1)
    return models


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_is_stopped_is_replaced_and_costs_only_what_it_held(
    number: int, tmp_path: Path, folder: Path
) -> None:
    with several.serving(tmp_path, folder) as server:
        load = several.Load(server, "m", 4, pause_s=0.002)
        time.sleep(1)
        before = server.workers()
        hit = time.monotonic()
        several.end(before[0], number)
        noticed_s = server.wait(lambda: before[0] not in server.workers())
        server.wait_replaced(before[0])
        took = time.monotonic() - hit
        time.sleep(0.5)
        load.stop()
        assert before[1] in server.workers()
        several.tell(f"back after {took:.2f} s; {len(load.failures)} of {len(load.times)} failed")
        assert len(load.failures) <= 4  # one for each connection that the worker held
        last_s = max((at for at, _ in load.failures), default=hit)
        assert last_s - hit < noticed_s + 2
        assert took < 4  # under 2 on a machine that has the time


def test_after_a_term_signal_what_is_in_flight_is_answered(tmp_path: Path, folder: Path) -> None:
    with several.serving(tmp_path, folder, "--drain-timeout-s", "20") as server:
        workers = server.workers()
        asked, answered = [], []
        for _ in range(50):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.putrequest("POST", "/v2/models/m/infer")
            connection.putheader("content-length", str(len(several.BODY)))
            connection.endheaders()
            connection.send(several.BODY[:20])
            asked.append(connection)
        server.wait_in_flight(50)

        def finish(connection: http.client.HTTPConnection) -> None:
            connection.send(several.BODY[20:])
            answered.append(connection.getresponse().status)

        server.process.send_signal(signal.SIGTERM)
        server.wait_closed()
        threads = [threading.Thread(target=finish, args=(each,)) for each in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answered == [200] * 50
        assert server.process.wait(30) == 0, server.log()
        assert not [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]
        for connection in asked:
            connection.close()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, folder: Path) -> None:
    with several.serving(tmp_path, folder) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.putrequest("POST", "/v2/models/m/infer")
        connection.putheader("content-length", "100")
        connection.endheaders()
        server.wait_in_flight(1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_closed()  # two signals at once may be one
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 1
        connection.close()


def test_no_worker_outlives_a_supervisor_that_is_killed(tmp_path: Path, folder: Path) -> None:
    with several.serving(tmp_path, folder) as server:
        workers = server.workers()
        server.process.kill()
        server.process.wait(10)
        end = time.monotonic() + 20
        while [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_change_asked_of_one_worker_reaches_all(tmp_path: Path, folder: Path, two: Path) -> None:
    with several.serving(tmp_path, folder) as server:
        several.publish(two, folder, "m", 2)
        code, told = server.admin("m", "load")
        assert code == 200, told
        for _ in range(40):  # new connections, which either worker takes
            assert "2" in server.ask("GET", "/v2/models/m")[1]["versions"]
        code, told = server.admin("m", "rollback")
        assert code == 200
        assert [each["answers"] for each in told["models"]] == [True, False]
        (tmp_path / "other").mkdir()
        broken = tmp_path / "other" / "broken.cast"
        broken.write_bytes(two.read_bytes()[:5000])
        several.publish(broken, folder, "m", 3)
        code, told = server.admin("m", "load")
        assert code == 503, told
        assert server.ask("POST", "/v2/models/m/infer", several.BODY)[0] == 200
        # A worker that starts later goes on from what was changed.
        killed = server.workers()[0]
        several.end(killed, signal.SIGKILL)
        server.wait_replaced(killed)
        for _ in range(20):
            code, status = server.ask("GET", "/v1/status", port=server.admin_port)
            assert [e["version"] for e in status["models"] if e["answers"]] == ["1"], status


def test_a_kernel_that_faults_is_named_and_rests_while_others_answer(
    tmp_path: Path, folder: Path, two: Path
) -> None:
    patched.with_code(two, folder / "bad" / "3" / "model.cast", "fused", patched.TRAP_ON_MINUS_123)
    poison = several.BODY.replace(b"[1, 2, 3, 4]", b"[-123, 2, 3, 4]")
    with several.serving(tmp_path, folder) as server:
        assert server.ask("POST", "/v2/models/bad/infer", several.BODY)[0] == 200
        load = several.Load(server, "m", 2, pause_s=0.005)
        for _ in range(2):
            before = server.workers()
            with pytest.raises((OSError, http.client.HTTPException)):
                server.ask("POST", "/v2/models/bad/infer", poison)
            server.wait(lambda before=before: server.workers() != before)  # type: ignore[misc]
            (gone,) = set(before) - set(server.workers())
            server.wait_replaced(gone)
        code, told = server.ask("POST", "/v2/models/bad/infer", poison)
        assert code == 503
        assert "given a rest" in told["error"]
        assert server.ask("POST", "/v2/models/m/infer", several.BODY)[0] == 200
        load.stop()
        assert len(load.failures) <= 4  # connections of the workers that died
        named = [each for each in server.events() if each.get("model") == "bad" and "step" in each]
        assert len(named) == 2
        assert (named[0]["version"], named[0]["step"]) == ("3", 0)
        assert named[0]["kernel"].startswith("fused")
        assert "SIGILL" in named[0]["event"]


@pytest.mark.parametrize(
    "num_cycles", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_models_that_come_and_go_leave_no_memory_behind(
    num_cycles: int, tmp_path: Path, folder: Path
) -> None:
    several.build_wide(folder / "wide" / "1" / "model.cast", 1_000_000)
    with several.serving(tmp_path, folder) as server:
        sizes = [_cycle(server) for _ in range(num_cycles)]
        step = num_cycles // 20
        slope = np.polyfit(range(num_cycles - 5), sizes[5:], 1)[0]
        several.tell(
            f"resident kB of two workers over {num_cycles} cycles: {sizes[::step]}, "
            f"{slope:+.1f} kB a cycle"
        )
        assert sizes[-1] <= 1.05 * sizes[4]


def _cycle(server: several.Server) -> int:
    """Unload and load; the resident kB of all workers after the unload."""
    for _ in range(4):
        assert server.ask("POST", "/v2/models/wide/infer", several.BODY)[0] == 200
    assert server.admin("wide", "unload")[0] == 200
    size = sum(several.memory_kb(pid, "Rss") for pid in server.workers())
    code, told = server.admin("wide", "load")
    assert code == 200, told
    return size


def test_workers_share_one_copy_of_the_weights(tmp_path: Path, folder: Path) -> None:
    several.build_wide(folder / "wide" / "1" / "model.cast", 1_000_000)
    with several.serving(tmp_path, folder) as server, futures.ThreadPoolExecutor(8) as pool:

        def ask(_: int) -> int:
            return server.ask("POST", "/v2/models/wide/infer", several.BODY)[0]

        shares = [(0, 0)]
        for _ in range(100):  # until each worker was given some, which the system decides
            assert set(pool.map(ask, range(16))) == {200}
            shares = [
                _of_file(Path(f"/proc/{pid}/smaps").read_text(), "wide/1/model.cast")
                for pid in server.workers()
            ]
            if all(resident >= 15_600 for resident, _ in shares):
                break
        several.tell(f"weights by worker, resident and proportional kB: {shares}")
        assert all(resident >= 15_600 for resident, _ in shares)  # 16 MB, read by all
        assert sum(proportional for _, proportional in shares) <= 1.05 * 15_625


def _of_file(smaps: str, name: str) -> tuple[int, int]:
    """Resident and proportional kB of the mappings of a file."""
    resident = proportional = 0
    is_inside = False
    for line in smaps.splitlines():
        words = line.split()
        if "-" in words[0]:
            is_inside = line.endswith(name)
        elif is_inside and words[0] == "Rss:":
            resident += int(words[1])
        elif is_inside and words[0] == "Pss:":
            proportional += int(words[1])
    return resident, proportional


@pytest.mark.parametrize(
    "words, said", [(["--host", "0.0.0.0"], "nobody is authenticated"), ([], "a folder of models")]
)
def test_what_no_worker_can_begin_ends_the_supervisor(
    words: list[str], said: str, tmp_path: Path
) -> None:
    folder = tmp_path if words else tmp_path / "missing"
    command = [sys.executable, "-m", "castiron", "serve", str(folder), "--workers", "2",
               "--port", "0", *words]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""
