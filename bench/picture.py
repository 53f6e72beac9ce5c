"""What an image costs beside its tensors: predict with a file against infer with raw tensors.

    python -m bench.picture

Starts `castiron serve` over the contracts of examples/03-image-by-curl and asks it by one client on
one connection, the two calls in turn, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from bench import process
from castiron.contract import document
from castiron.server.steps import folder, inward
from zoo import fetch, pictures

_EXAMPLE = Path(__file__).parents[1] / "examples" / "03-image-by-curl"
_CALLS = 200


def _files() -> dict[str, tuple[str, bytes]]:
    """Model of the example to its model of the zoo and a picture for it."""
    line = pictures.text_line("Hello World 2026")
    page, astronaut = pictures.photo("page.png"), pictures.photo("astronaut.png")
    return {
        "ocr": ("ocr_rec", _png(line)),
        "orientation": ("orientation", _png(page)),
        "nudenet": ("nudenet", _png(astronaut)),
    }


def _png(picture: pictures.Picture) -> bytes:
    written = io.BytesIO()
    Image.fromarray(picture).save(written, "PNG")
    return written.getvalue()


@contextlib.contextmanager
def _served(models: Path) -> Iterator[http.client.HTTPConnection]:
    command = [sys.executable, "-m", "castiron", "serve", str(models), "--port", "0",
               "--threads", "1", "--log-level", "ERROR"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().decode().rsplit(":", 1)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            while _ask(connection, "GET", "/v2/health/ready", b"", {})[0] != 200:
                time.sleep(0.05)
            yield connection
            connection.close()
        finally:
            server.terminate()


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
) -> tuple[int, bytes]:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


def _infer_call(models: Path, name: str, data: bytes) -> tuple[bytes, dict[str, str], float]:
    """The same picture as raw tensors, and the seconds that its steps take by themselves."""
    contract = document.load(models / name / "1" / "contract.toml")
    steps = inward.Inward(contract, folder.Folder(models))
    begun = time.perf_counter()
    for _ in range(20):
        made = steps.run({"image": data})
    seconds = (time.perf_counter() - begun) / 20
    ((tensor, array),) = made.tensors.items()
    item = {"name": tensor, "datatype": "FP32", "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes}}  # fmt: skip
    asked = {"inputs": [item], "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    headers = {"inference-header-content-length": str(len(head))}
    return head + array.tobytes(), headers, seconds


def measure(connection: http.client.HTTPConnection, models: Path, name: str, data: bytes) -> str:
    """One line of the table."""
    body, headers, alone_s = _infer_call(models, name, data)
    calls = {"infer": (body, headers), "predict": (data, {"content-type": "image/png"})}
    times: dict[str, list[float]] = {call: [] for call in calls}
    for _ in range(_CALLS):
        for call, (content, given) in calls.items():
            begun = time.perf_counter()
            path = f"/v2/models/{name}/{call}"
            code, _ = _ask(connection, "POST", path, content, given)
            times[call].append((time.perf_counter() - begun) * 1e6)
            assert code == 200, call
    infer, predict = (statistics.median(times[call]) for call in calls)
    return (
        f"{name:12} {len(data):8} {infer:10.0f} {predict:10.0f} {predict - infer:10.0f} "
        f"{alone_s * 1e6:12.0f}"
    )


def main() -> None:
    """Print the table; times are microseconds, p50."""
    with tempfile.TemporaryDirectory() as made:
        models = Path(made)
        files = _files()
        for name, (source, _) in files.items():
            process.build(fetch.path(source), models / name / "1" / "model.cast")
            contract = _EXAMPLE / f"{name}.contract.toml"
            shutil.copy(contract, models / name / "1" / "contract.toml")
        print("model       PNG bytes      infer    predict      added  steps alone")
        with _served(models) as connection:
            for name, (_, data) in files.items():
                print(measure(connection, models, name, data), flush=True)


if __name__ == "__main__":
    main()
