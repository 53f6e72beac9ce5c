"""Work that is long and no fault: who is at it is waited for, and no longer than that."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.server.workers import several

pytestmark = pytest.mark.xdist_group("workers")


def test_a_worker_that_decodes_much_is_not_taken_for_stuck(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    several.publish(several.build(tmp_path / "built" / "two.cast"), folder, "m", 1)
    num_rows = 1_700_000
    data = "1.25," * (4 * num_rows - 1) + "NaN"  # Python's own decoder, which is slow
    item = f'{{"name": "x", "datatype": "FP32", "shape": [{num_rows}, 4], "data": [{data}]}}'
    body = f'{{"inputs": [{item}]}}'.encode()
    words = ["--max-json-bytes", str(64 << 20), "--max-body-bytes", str(64 << 20)]
    with several.serving(tmp_path, folder, *words) as server:
        before, begun = server.workers(), time.monotonic()
        assert server.ask("POST", "/v2/models/m/infer", body)[0] == 200
        several.tell(f"{len(body) >> 20} MB of JSON took {time.monotonic() - begun:.1f} s")
        assert server.workers() == before
        # What was granted is over with the next beat: a worker that hangs then is noticed as ever.
        time.sleep(2)
        several.end(before[0], signal.SIGSTOP)
        assert server.wait(lambda: before[0] not in server.workers()) < 5
        server.wait_ready(2)
