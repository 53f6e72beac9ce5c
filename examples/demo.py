"""The whole way in one script: a real model compiled, served, and asked over the network.

    make demo        compile the text recogniser, serve it, read a picture, compare, stop
    make serve       the same, but the server keeps running and you get a curl to try

The model is PP-OCRv4, fetched as `zoo/files.csv` says; the picture is drawn here; the client is
tritonclient, which knows nothing of castiron.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tritonclient import http as triton

from bench import inputs, process
from zoo import cases, fetch, golden, pictures

TEXT = "Hello World 2026"
MODEL = "ocr"
_START_TIMEOUT_S = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: `--keep` leaves the server running until it is interrupted."""
    parser = argparse.ArgumentParser(description="Compile a model, serve it, ask it.")
    parser.add_argument("--keep", action="store_true", help="keep serving")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args(arguments)

    source = fetch.path("ocr_rec")
    executable, seconds = compile_model(source)
    size_mb = executable.stat().st_size / 1e6
    print(f"compiled {source.name} in {seconds:.1f} s: one file of {size_mb:.1f} MB")

    with served(executable.parent.parent.parent, options.port) as address:
        read = ask(address, draw())
        if options.keep:
            keep(address)
            return 0
    compare_starts(source, executable)
    return 0 if read == TEXT else 1


def compile_model(source: Path) -> tuple[Path, float]:
    """The recogniser as version 1 of a model in a folder that can be served; and the seconds."""
    folder = inputs.work_folder().with_name("demo") / "models" / MODEL / "1"
    shutil.rmtree(folder, ignore_errors=True)
    executable = folder / "model.cast"
    seconds = process.build(source, executable)
    return executable, seconds


def draw() -> pictures.Picture:
    """The line of text as a picture, kept beside the models for whoever wants to look."""
    picture = pictures.text_line(TEXT)
    file = inputs.work_folder().with_name("demo") / "line.png"
    Image.fromarray(picture).save(file)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    print(f"drew {TEXT!r} into {shown}, {picture.shape[1]} x {picture.shape[0]} pixels")
    return picture


@contextlib.contextmanager
def served(models: Path, port: int) -> Iterator[str]:
    """`castiron serve` in a process of its own; stopped with SIGTERM, which must end it well."""
    command = [sys.executable, "-m", "castiron", "serve", str(models), "--port", str(port)]
    begin = time.perf_counter()
    # In a session of its own: Ctrl-C is for this script, which then stops the server in order.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            address = _announced(server)
            print(f"serving on http://{address}")
            _wait_until_ready(address)
            print(f"server ready {1e3 * (time.perf_counter() - begin):.0f} ms after its start")
            yield address
        finally:
            server.terminate()
    if server.returncode != 0:
        raise SystemExit(f"the server ended with status {server.returncode}")
    print("server stopped")


def _announced(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None, "asked for a pipe"
    for line in server.stdout:
        if found := re.match(r"serving on http://(\S+)", line):
            return found[1].rstrip("/")
    raise SystemExit("the server ended before it said where it listens")


def _wait_until_ready(address: str) -> None:
    end = time.monotonic() + _START_TIMEOUT_S
    with contextlib.closing(triton.InferenceServerClient(address)) as client:
        while time.monotonic() < end:
            if client.is_server_ready() and client.is_model_ready(MODEL):
                return
            time.sleep(0.01)
    raise SystemExit(f"the model was not ready within {_START_TIMEOUT_S} s")


def ask(address: str, picture: pictures.Picture) -> str:
    """Send the picture, read the answer, and time twenty more requests."""
    x = pictures.planes([picture], 0.5, 0.5, bgr=True)
    with contextlib.closing(triton.InferenceServerClient(address)) as client:
        (output,) = client.get_model_metadata(MODEL)["outputs"]
        sent = triton.InferInput("x", list(x.shape), "FP32")
        sent.set_data_from_numpy(x)

        def request() -> Any:
            return client.infer(MODEL, [sent]).as_numpy(output["name"])

        probabilities = request()
        took_ms = []
        for _ in range(20):
            begin = time.perf_counter()
            request()
            took_ms.append(1e3 * (time.perf_counter() - begin))
    read = golden.read_line(probabilities[0], golden.ocr_charset()).strip()
    print(f"read: {read}")
    print(f"latency {statistics.median(took_ms):.1f} ms a request, over HTTP, median of 20")
    return read


def compare_starts(source: Path, executable: Path) -> None:
    """Process start to first output, castiron and ONNX Runtime in turn."""
    place = inputs.folder("demo", cases.ocr_lines((TEXT,)))
    files = {"castiron": executable, "onnxruntime": source}
    best = dict.fromkeys(files, float("inf"))
    for _ in range(3):
        for engine, file in files.items():
            best[engine] = min(best[engine], process.first_output_s(engine, file, place))
    ratio = best["onnxruntime"] / best["castiron"]
    print(
        f"process start to first output: {1e3 * best['castiron']:.0f} ms, "
        f"ONNX Runtime {1e3 * best['onnxruntime']:.0f} ms ({ratio:.1f} times as long)"
    )


def keep(address: str) -> None:
    """Print a request that works as it stands, and wait to be interrupted."""
    body = inputs.work_folder().with_name("demo") / "request.json"
    x = cases.ocr_lines((TEXT,))["x"]
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
    values = np.round(x.astype(np.float64).ravel(), 4).tolist()
    body.write_text(json.dumps({"inputs": [{**tensor, "data": values}]}))
    print("\ntry, in another terminal:\n")
    print(f"  curl -s http://{address}/v2/models/{MODEL} | python3 -m json.tool")
    print(f"  curl -s --data-binary @{body} http://{address}/v2/models/{MODEL}/infer | head -c 300")
    print("\nCtrl-C stops the server.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    raise SystemExit(main())
