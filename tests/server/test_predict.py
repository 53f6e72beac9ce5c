"""Applications' requests to the real server: values in, values out, and everything that goes wrong."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openapi_spec_validator
import pytest
from PIL import Image

from castiron.contract import document, openapi
from tests import built
from tests.server import live, real
from tests.server.steps import images

PIXELS = """
name = "pixels"
input = [{ name = "x0", datatype = "FP32", shape = ["n", 3, 8, 8] }]
output = [{ name = "y", datatype = "FP32", shape = ["n", 3, 8, 8] }]
limits.body_bytes = 100000

[[schema.input]]
name = "image"
kind = "image"
tensor = "x0"
steps = [{ op = "decode_image" }, { op = "resize", height = 8, width = 8 }, { op = "normalise" }]
"""
TABLE = """
name = "table"
input = [{ name = "x0", datatype = "FP32", shape = ["n", 2], range = [-5, 5] }]
output = [{ name = "y", datatype = "FP32", shape = ["n", 2] }]

[[schema.input]]
name = "rows"
kind = "table"
tensor = "x0"
columns = [{ name = "a" }, { name = "b" }]

[[schema.output]]
name = "rows"
kind = "table"
tensor = "y"
columns = [{ name = "a" }, { name = "b" }]
"""
BOXES = """
name = "boxes"
input = [{ name = "x0", datatype = "FP32", shape = ["n", 6] }]
output = [{ name = "y", datatype = "FP32", shape = ["n", 6] }]
schema.input = [{ name = "v", kind = "tensor", tensor = "x0" }]

[[schema.output]]
name = "boxes"
kind = "boxes"
tensor = "y"
steps = [{ op = "nms" }, { op = "box_labels", names = ["cat", "dog"] }]
"""
MINE = """
name = "mine"
input = [{ name = "x0", datatype = "FP32", shape = ["n"] }]
output = [{ name = "y", datatype = "FP32", shape = ["n"] }]
schema.input = [{ name = "words", kind = "text", max_chars = 1000 }]

[pipeline]
file = "pipeline.py"
timeout_ms = 4000
"""
CODE = """
import os, time

def before(values):
    if values["words"] == "die":
        os._exit(9)
    if values["words"] == "sleep":
        time.sleep(60)
    if not values["words"]:
        raise ValueError("no words")
    return {"x0": [len(word) for word in values["words"].split()]}

def after(tensors):
    if tensors["y"].size > 3:
        raise RuntimeError("too much to say")
    return {"lengths": tensors["y"].astype(int)}
"""
MISFIT = PIXELS.replace("height = 8", "height = 9")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    square = ("n", 3, 8, 8)
    real.put(folder, "pixels", built.one_op("Relu", square), PIXELS)
    real.put(folder, "table", built.one_op("Relu", ("n", 2)), TABLE)
    real.put(folder, "boxes", built.one_op("Relu", ("n", 6)), BOXES)
    real.put(folder, "mine", built.one_op("Relu", ("n",)), MINE, CODE)
    real.put(folder, "plain", built.one_op("Relu", ("n",)))
    real.put(folder, "misfit", built.one_op("Relu", square), MISFIT)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Server]:
    with real.serving(models, tmp_path_factory.mktemp("cache"), "--allow-pipelines") as running:
        yield running


def predict(
    server: real.Server, model: str, body: Any, kind: str = "application/json"
) -> tuple[int, Any]:
    code, headers, content = server.ask(
        "POST", f"/v2/models/{model}/predict", body, {"content-type": kind}
    )
    assert headers["content-type"] == "application/json"
    return code, json.loads(content)


PNG = images.file(images.stripes(64, 64))


@pytest.mark.parametrize(
    "model, body, kind",
    [
        ("table", {"rows": [[1, 2], [3, -4]]}, "application/json"),
        ("boxes", {"v": {"shape": [1, 6], "data": [1, 2, 3, 4, 0.1, 0.9]}}, "application/json"),
        ("pixels", PNG, "image/png"),
        ("mine", {"words": "cast iron"}, "application/json"),
    ],
)
def test_requests_and_replies_are_those_of_the_description(
    model: str, body: Any, kind: str, server: real.Server, models: Path
) -> None:
    described = openapi.document(document.load(models / model / "1" / "contract.toml"))
    openapi_spec_validator.validate(described)
    call = described["paths"][f"/v2/models/{model}/predict"]["post"]
    wanted = call["requestBody"]["content"]["image/*" if kind == "image/png" else kind]["schema"]
    if kind == "application/json":
        whole = {"components": described["components"], **wanted}
        jsonschema.Draft202012Validator(whole).validate(body)
    code, reply = predict(server, model, body, kind)
    content = call["responses"][str(code)]["content"]
    whole = {"components": described["components"], **content["application/json"]["schema"]}
    jsonschema.Draft202012Validator(whole).validate(reply)


def test_an_image_becomes_exactly_the_tensor_that_the_steps_say(server: real.Server) -> None:
    small = images.stripes(64, 64).resize((8, 8), Image.Resampling.BILINEAR)
    wanted = np.asarray(small, np.float32).transpose(2, 0, 1)[None] / np.float32(255)
    text = base64.b64encode(PNG).decode()
    form = b'--m\r\ncontent-disposition: form-data; name="image"\r\n\r\n' + PNG + b"\r\n--m--"
    for body, kind in (
        (PNG, "image/png"),
        ({"image": text}, "application/json"),
        (form, "multipart/form-data; boundary=m"),
    ):
        code, reply = predict(server, "pixels", body, kind)
        assert code == 200, reply
        assert reply["y"]["shape"] == [1, 3, 8, 8]
        found = np.array(reply["y"]["data"], np.float32).reshape(1, 3, 8, 8)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_version_may_be_named_and_the_executable_is_told(server: real.Server) -> None:
    path = "/v2/models/table/versions/1/predict"
    code, headers, content = server.ask("POST", path, {"rows": [[1, -2]]})
    assert (code, json.loads(content)) == (200, {"rows": [[1, 0]]})
    assert headers["x-model-version"].startswith("sha256:")
    assert server.ask("POST", "/v2/models/table/versions/7/predict", {})[0] == 404
    assert server.ask("GET", "/v2/models/table/predict")[0] == 405


def test_compressed_bodies_and_bodies_in_pieces_are_read(server: real.Server) -> None:
    headers = {"content-type": "image/png", "content-encoding": "gzip"}
    code, _, _ = server.ask("POST", "/v2/models/pixels/predict", gzip.compress(PNG), headers)
    assert code == 200
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    pieces = iter([PNG[:100], PNG[100:]])
    connection.request("POST", "/v2/models/pixels/predict", pieces, {"content-type": "image/png"})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize("kind", list(images.odd(Image.new("RGB", (64, 64), "white"))))
def test_odd_images_are_read(kind: str, server: real.Server) -> None:
    white = Image.new("RGB", (64, 64), "white")
    code, reply = predict(server, "pixels", images.odd(white)[kind], "image/png")
    assert code == 200, reply
    # A veil of nothing over white is white.
    assert min(reply["y"]["data"]) > 0.98


@pytest.mark.parametrize("kind", list(images.broken(images.stripes())))
def test_broken_images_are_the_clients_fault(kind: str, server: real.Server) -> None:
    code, reply = predict(server, "pixels", images.broken(images.stripes())[kind], "image/png")
    assert code in {400, 413}
    assert reply["error"].startswith("image: expected")


@pytest.mark.parametrize(
    "model, body, code, wanted",
    [
        ("table", {"rows": [[1, 2], [3]]}, 400, "rows[1]: expected 2 numbers, found 1 values"),
        ("table", {"rows": [[1, 9]]}, 400, "inputs.x0[0][1]: expected -5 to 5, found 9.0"),
        ("table", {"row": []}, 400, "row: unknown; expected rows"),
        ("table", {}, 400, "rows: expected a list of rows, found nothing"),
        ("table", b"{", 400, "body: expected JSON"),
        ("pixels", {"image": "A" * 100_000}, 413, "body: expected at most 100000 bytes"),
        ("plain", {"x": 1}, 404, "path: model 'plain' has no application-level schema"),
        ("unknown", {"x": 1}, 404, "model 'unknown' is not served here"),
        ("misfit", {"x": 1}, 503, "no version of model 'misfit' is ready"),
    ],
)
def test_what_is_wrong_is_told_by_its_path(
    model: str, body: Any, code: int, wanted: str, server: real.Server
) -> None:
    found, reply = predict(server, model, body)
    assert found == code
    assert reply["error"].startswith(wanted)


def test_an_empty_table_has_no_rows(server: real.Server) -> None:
    assert predict(server, "table", {"rows": []}) == (200, {"rows": []})


def test_a_large_table_is_read_in_a_process(server: real.Server) -> None:
    rows: list[list[Any]] = [[index % 10 - 5, 0.5] for index in range(20_000)]
    code, reply = predict(server, "table", {"rows": rows})
    assert code == 200
    assert reply["rows"] == [[max(0, first), second] for first, second in rows]
    rows[12_345][1] = "x"
    code, reply = predict(server, "table", {"rows": rows})
    assert (code, reply["error"]) == (400, "rows[12345][1]: expected a number, found 'x'")


def test_boxes_are_made_in_a_process(server: real.Server) -> None:
    rows = [1, 2, 3, 4, 0.1, 0.9]
    code, reply = predict(server, "boxes", {"v": {"shape": [1, 6], "data": rows}})
    assert code == 200
    (box,) = reply["boxes"]
    assert (box["box"], box["label"], box["index"]) == ([1, 2, 3, 4], "dog", 1)


def test_a_contract_that_does_not_fit_keeps_the_version_out(server: real.Server) -> None:
    log = server.log()
    assert "schema.input[0].steps[2]: makes 9 in dim 2, the model's 'x0' has 8" in log


def test_the_users_own_code_runs_beside_the_server(server: real.Server) -> None:
    assert predict(server, "mine", {"words": "cast iron"}) == (200, {"lengths": [4, 4]})
    code, reply = predict(server, "mine", {"words": ""})
    assert (code, reply["error"]) == (400, "pipeline.py refused the request: no words")
    code, reply = predict(server, "mine", {"words": "a b c d"})
    assert code == 500
    assert reply["error"] == "pipeline.py: after: RuntimeError: too much to say"


def test_the_users_own_code_cannot_end_or_hold_up_the_server(server: real.Server) -> None:
    code, reply = predict(server, "mine", {"words": "die"})
    assert (code, "ended" in reply["error"]) == (500, True)
    begun = time.monotonic()
    code, reply = predict(server, "mine", {"words": "sleep"})
    assert (code, "longer than 4 s" in reply["error"]) == (504, True)
    assert time.monotonic() - begun < 30
    assert predict(server, "mine", {"words": "back"}) == (200, {"lengths": [4]})


def test_a_deadline_counts_from_the_first_step_on(server: real.Server) -> None:
    begun = time.monotonic()
    code, _, content = server.ask(
        "POST", "/v2/models/mine/predict", {"words": "sleep"}, {"timeout": "100000"}
    )
    assert (code, time.monotonic() - begun < 3.9) == (504, True)
    assert json.loads(content)["error"] == "the answer was not ready in the time allowed"


def test_every_request_has_one_outcome_in_the_metrics(server: real.Server) -> None:
    before = server.outcomes()
    predict(server, "table", {"rows": [[1, 2]]})
    predict(server, "table", {"rows": 3})
    predict(server, "mine", {"words": "a b c d"})  # its after fails
    predict(server, "plain", {})
    after = server.outcomes()
    changed = {name: after[name] - before.get(name, 0) for name in after}
    assert {name: value for name, value in changed.items() if value} == {
        "ok": 1, "invalid": 1, "failed": 1, "not_found": 1,
    }  # fmt: skip
    assert server.metrics()["castiron_requests_in_flight{}"] == 0


def test_a_client_that_leaves_while_steps_run_is_cancelled(server: real.Server) -> None:
    before = server.outcomes().get("cancelled", 0)
    with server.connect() as connection:
        body = b'{"words": "sleep"}'
        connection.sendall(
            b"POST /v2/models/mine/predict HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        server.wait_in_flight(1)
    live.until(lambda: server.outcomes().get("cancelled", 0) > before)
    assert server.outcomes()["cancelled"] == before + 1


def children(process_id: int) -> list[int]:
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(word) for word in text.split()]


def is_gone(process_id: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_step_processes_end_with_the_server_however_it_ends(
    number: int, models: Path, tmp_path: Path
) -> None:
    with real.serving(models, tmp_path / "cache", "--allow-pipelines") as running:
        assert predict(running, "pixels", PNG, "image/png")[0] == 200
        assert predict(running, "mine", {"words": "x"})[0] == 200
        asleep = running.connect()
        body = b'{"words": "sleep"}'
        asleep.sendall(
            b"POST /v2/models/mine/predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        found = children(running.process.pid)
        assert len(found) >= 2
        assert running.stop(number) == (0 if number == signal.SIGTERM else -number)
        asleep.close()
    live.until(lambda: all(map(is_gone, found)))


def test_pipelines_are_closed_unless_the_operator_opens_them(models: Path, tmp_path: Path) -> None:
    with real.serving(models, tmp_path / "cache") as closed:
        code, reply = predict(closed, "mine", {"words": "x"})
        assert code == 403
        assert "--allow-pipelines" in reply["error"]
        body = {"inputs": [{"name": "x0", "datatype": "FP32", "shape": [1], "data": [2]}]}
        assert closed.ask("POST", "/v2/models/mine/infer", body)[0] == 200
        assert predict(closed, "table", {"rows": [[1, 2]]})[0] == 200
