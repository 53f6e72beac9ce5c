"""docs/paths.md is true: the calls that it lists happen, in the order in which it lists them."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import onnx
import pytest

from tests import built

ROOT = pathlib.Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "paths.md"
_ITEM = re.compile(r"^ *(?:\d+\.|-) ")
_NAME = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`")

Groups = list[list[str]]


def listed(start: str, stop: str) -> Groups:
    """The dotted names of each list item between two lines of the document, in order."""
    text = DOCUMENT.read_text().split(start, 1)[1]
    text = text.split(stop, 1)[0] if stop else text
    groups: Groups = []
    for line in text.splitlines():
        if _ITEM.match(line):
            groups.append([])
        if groups:
            groups[-1] += _NAME.findall(line)
    return [group for group in groups if group]


def assert_in_order(groups: Groups, calls: list[str]) -> None:
    """Every name was called, and every item began after the item before it."""
    first = {
        name: next((at for at, call in enumerate(calls) if f"{call}.".startswith(f"{name}.")), None)
        for group in groups
        for name in group
    }
    assert [name for name, at in first.items() if at is None] == [], "listed, but never called"
    begins = [min(at for name in group if (at := first[name]) is not None) for group in groups]
    for before, after, group in zip(begins, begins[1:], groups[1:], strict=False):
        assert before < after, f"{', '.join(group)} is called before what is listed before it"


def recorder(groups: Groups, file: pathlib.Path, *words: str) -> list[str]:
    names = ",".join(name for group in groups for name in group)
    return [sys.executable, "-m", "tests.paths.recorded", str(file), names, *words]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model folder with ``net/1/model.onnx``, whose batches and pictures may have any size."""
    folder = tmp_path_factory.mktemp("paths")
    (folder / "net" / "1").mkdir(parents=True)
    onnx.save(built.network(), folder / "net" / "1" / "model.onnx")
    return folder


def test_the_build_path_is_as_written(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    groups = listed("## Building a model", "## ")
    source, out = model / "net" / "1" / "model.onnx", tmp_path / "model.cast"
    command = recorder(groups, tmp_path / "calls", "build", str(source), "-o", str(out))
    subprocess.run(command, check=True, timeout=100, cwd=ROOT, capture_output=True)
    assert_in_order(groups, (tmp_path / "calls").read_text().splitlines())


def test_the_serve_path_is_as_written(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    once = listed("Once per version", "Then for each request")
    each = listed("Then for each request", "### ")
    words = ("serve", str(model), "--port", "0", "--cache-dir", str(tmp_path), "--threads", "1")
    command = recorder(once + each, tmp_path / "calls", *words)
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline().decode()
            assert line.startswith("serving on http://"), (tmp_path / "log").read_text()
            assert _answer(int(line.rsplit(":", 1)[1])) == [1, 5]
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert_in_order(once, calls)
    assert_in_order(each, _last_request(calls))


def _answer(port: int) -> list[int]:
    """The shape that the model answers with, asked again until it is ready."""
    tensor = {"name": "x", "shape": [1, 3, 2, 2], "datatype": "FP32", "data": [0.5] * 12}
    end = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v2/models/net/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        found = json.loads(response.read())
        connection.close()
        if response.status == 200:
            shape: list[int] = found["outputs"][0]["shape"]
            return shape
        assert time.monotonic() < end, found
        time.sleep(0.2)


def _last_request(calls: list[str]) -> list[str]:
    """The calls from the last connection on, which is the one that was answered."""
    starts = [
        at
        for at, call in enumerate(calls)
        if call == "server.http.connection.Connection.connection_made"
    ]
    return calls[starts[-1] :]


def test_a_step_that_is_renamed_or_comes_too_late_fails() -> None:
    groups = [["a.run"], ["b.Thing"], ["c"]]
    assert_in_order(groups, ["a.run", "b.Thing.go", "c.d", "a.run"])
    with pytest.raises(AssertionError, match="never called"):
        assert_in_order(groups, ["a.run", "b.Thin.go", "c.d"])
    with pytest.raises(AssertionError, match="before what is listed"):
        assert_in_order(groups, ["b.Thing.go", "a.run", "c.d"])
