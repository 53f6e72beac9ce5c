"""The generated Python client against a live server: every datatype, bit for bit."""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from castiron.contract import model, steps
from castiron.contract.client import library as client
from castiron.contract.client import python
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements
from tests.contract import live, pictures

pytestmark = pytest.mark.xdist_group("clients")
Tensor = client.Tensor

NAN_BITS = {
    "FP16": ["7e01", "fe00", "7d55"],
    "BF16": ["7fc1", "ff80", "7f81"],
    "FP32": ["7fc00001", "ff800000", "7f800001", "00000001"],
    "FP64": ["7ff8000000000001", "fff0000000000000", "7ff0000000000001", "8000000000000000"],
}


def odd(dtype: dtypes.DType) -> Tensor:
    """The values of a datatype where things go wrong, as one row."""
    if dtype.is_float:
        words = NAN_BITS[dtype.oip] + [text.replace("7f", "00", 1) for text in NAN_BITS[dtype.oip]]
        raw = b"".join(bytes.fromhex(word)[::-1] for word in words)
        return Tensor(dtype.oip, (1, len(words)), raw)
    if dtype is dtypes.BOOL:
        return Tensor.of("BOOL", (1, 3), [True, False, True])
    bits = 8 * dtype.size_bytes
    low = -(1 << (bits - 1)) if dtype.is_signed else 0
    high = low + (1 << bits) - 1
    return Tensor.of(dtype.oip, (1, 4), [low, low + 1, high - 1, high])


@pytest.fixture(scope="module")
def server(address: str) -> Iterator[client.Client]:
    with client.Client(address) as made:
        yield made


def ask(
    server: client.Client, given: dict[str, Tensor], options: client.Options | None = None
) -> dict[str, Tensor]:
    """Outputs by datatype; inputs that are not given are empty."""
    inputs = {
        f"x_{dtype.oip.lower()}": given.get(dtype.oip, Tensor(dtype.oip, (0, width_of(given)), b""))
        for dtype in live.NUMBERS
    }
    reply = server.infer("numbers", inputs, (), options)
    return {tensor.datatype: tensor for tensor in reply.outputs.values()}


def width_of(given: dict[str, Tensor]) -> int:
    return next((tensor.shape[1] for tensor in given.values()), 0)


@pytest.mark.parametrize("dtype", live.NUMBERS, ids=lambda dtype: str(dtype.oip))
def test_binary_tensors_come_back_bit_for_bit(server: client.Client, dtype: dtypes.DType) -> None:
    given = odd(dtype)
    assert ask(server, {dtype.oip: given})[dtype.oip] == given


@pytest.mark.parametrize("dtype", live.NUMBERS, ids=lambda dtype: str(dtype.oip))
def test_json_tensors_come_back_as_the_policy_says(
    server: client.Client, dtype: dtypes.DType
) -> None:
    given = odd(dtype)
    found = ask(server, {dtype.oip: given}, client.Options(is_binary=False))[dtype.oip]
    assert found.shape == given.shape
    for left, right in zip(given.values(), found.values(), strict=True):
        # JSON keeps everything but what a NaN carries.
        both_nan = left != left and right != right  # noqa: PLR0124
        assert both_nan or (left == right and math.copysign(1, left) == math.copysign(1, right))


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0)])
def test_empty_tensors_keep_their_shape(
    server: client.Client, shape: tuple[int, int], *, is_binary: bool
) -> None:
    given = {dtype.oip: Tensor(dtype.oip, shape, b"") for dtype in live.NUMBERS}
    assert ask(server, given, client.Options(is_binary=is_binary)) == given


def test_strings_hold_any_bytes(server: client.Client) -> None:
    strings = [b"", b"a\0b", "größe 🦊".encode(), b"\xff\xfe", b"x" * 70_000]
    given = Tensor.of("BYTES", (1, 5), strings)
    found = server.infer("strings", {"x_bytes": given}).outputs["y_bytes"]
    assert found == given
    assert found.values() == strings
    texts = Tensor.of("BYTES", (1, 3), ["", "a\0b", "größe 🦊"])
    as_json = client.Options(is_binary=False)
    assert server.infer("strings", {"x_bytes": texts}, (), as_json).outputs["y_bytes"] == texts
    with pytest.raises(ValueError, match="not UTF-8"):
        server.infer("strings", {"x_bytes": given}, (), as_json)
    wild = client.Options(parameters={"binary_data_output": False})
    with pytest.raises(client.RequestWrong, match="not UTF-8") as raised:
        server.infer("strings", {"x_bytes": given}, (), wild)
    assert raised.value.path == "outputs.y_bytes"


def written(folder: Path, *contracts: model.Contract) -> None:
    """The clients of all contracts as files, which are typed to the last."""
    for contract in contracts:
        for name, text in python.files(contract).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    found = typed(folder, "castiron_client", *(f"{each.name}.py" for each in contracts))
    assert found.returncode == 0, found.stdout


def typed(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """What the checker of types says."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir",
               str(folder / "types"), *names]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports generated modules, and forgets them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_generated_class_is_typed_and_works(address: str, tmp_path: Path, modules: Any) -> None:
    written(tmp_path, live.contract("strings"))
    module = modules("strings")
    made = module.Strings(address)
    assert made.is_ready()
    tensor = module.Tensor.of("BYTES", (1, 1), ["hello"])
    assert made.infer({"x_bytes": tensor})["y_bytes"] == tensor
    many = [{"x_bytes": module.Tensor.of("BYTES", (1, 1), [text])} for text in ("a", "\xe9", "")]
    assert [each["y_bytes"] for each in made.batch(many)] == [each["x_bytes"] for each in many]
    made.client.close()


def test_applications_values_are_typed_and_answered(
    address: str, tmp_path: Path, modules: Any
) -> None:
    written(tmp_path, pictures.PICTURES, pictures.THUMBS)
    asked = {"picture": pictures.png(10, 20, 250), "readings": [[1, 2.5], [3, 4]]}
    for name in ("Pictures", "Thumbs"):
        module = modules(name.lower())
        made = getattr(module, name)(address)
        found = made.predict(asked | {"note": {"text": "gr\xf6\xdfe", "language": "de"}})
        assert found["answer"][0]["label"] == "blue"
        assert found["sums"] == {"shape": [2], "data": [3.5, 7]}
        faults = modules("castiron_client")
        with pytest.raises(faults.RequestWrong) as raised:
            made.predict(asked | {"readings": [[101, 0]]})
        assert raised.value.path == "readings[0][0]"
        with pytest.raises(faults.TimedOut):
            made.predict(asked, module.Options(timeout_s=1e-6))
        made.client.close()


def test_a_wrong_use_is_found_by_types(tmp_path: Path) -> None:
    values = model.Contract(
        "values", output=pictures.PICTURES.output, schema=model.Schema((
            model.Entry("a", "number"), model.Entry("b", "flag", optional=True),
            model.Entry("c", "text", values=("x", "y")), model.Entry("d", "tensor"),
        )),
    )  # fmt: skip
    own = model.Contract("own", pipeline=steps.Pipeline("pipeline.py"))
    written(tmp_path, pictures.PICTURES, values, own)
    (tmp_path / "wrong.py").write_text(
        "from own import Own\n"
        "from pictures import Pictures\n"
        "from values import Values\n"
        'Own("").predict({"anything": [1]})\n'
        'Pictures("").predict({"picture": "cat.png", "readings": []})\n'
        'Pictures("").predict({"picture": b"", "readings": [["x"]]})\n'
        'Pictures("").predict({"picture": b""})\n'
        'Values("").predict({"a": 1, "c": "z", "d": {"shape": [], "data": [1]}})\n'
        'Values("").predict({"a": 1, "c": "x", "d": {"shape": [], "data": [1]}})["none"]\n'
    )
    found = typed(tmp_path, "wrong.py").stdout
    assert set(re.findall(r"wrong\.py:(\d+):", found)) == {"5", "6", "7", "8", "9"}, found


def test_each_request_of_a_batch_has_its_own_outcome(server: client.Client) -> None:
    right = {"x_bytes": Tensor.of("BYTES", (1, 2), ["a", b"\xff"])}
    found = server.batch("strings", [{}, right, {"x_bytes": Tensor.of("FP32", (1, 1), [1])}, right])
    assert [type(each) for each in found] == [
        client.RequestWrong, client.Reply, client.RequestWrong, client.Reply,
    ]  # fmt: skip
    assert isinstance(found[3], client.Reply)
    assert found[3].outputs["y_bytes"] == right["x_bytes"]
    as_json = client.Options(is_binary=False, id="one")
    text = {"x_bytes": Tensor.of("BYTES", (1, 1), ["a"])}
    (reply,) = server.batch("strings", [text], ["y_bytes"], as_json)
    assert isinstance(reply, client.Reply)
    assert (reply.id, reply.outputs["y_bytes"]) == ("one", text["x_bytes"])
    with pytest.raises(client.RequestWrong):
        server.batch("strings", [])
    (missing,) = server.batch("none", [{}])
    assert type(missing) is client.NotFound


def test_a_refused_request_of_a_batch_says_when_to_come_back() -> None:
    body = b'{"responses": [{"error": "full", "status": 503, "retry_after_ms": 1500}]}'
    with answering(http_answer("200 OK", body)) as made:
        (found,) = made.batch("m", [{}])
    assert isinstance(found, client.Unavailable)
    assert found.retry_after_s == 1.5


@pytest.mark.parametrize("answer", [
    {}, {"answer": "cat"}, {"answer": [{"index": 1}]}, {"answer": [1]},
])  # fmt: skip
def test_values_that_were_not_promised_are_told(answer: dict[str, Any]) -> None:
    with pytest.raises(client.ProtocolBroken, match="answer: expected labels"):
        client.promised(answer, {"answer": "labels"})


def test_what_the_server_says_is_read(server: client.Client) -> None:
    assert server.is_ready()
    assert server.is_model_ready("numbers")
    assert server.is_model_ready("numbers", "1")
    assert not server.is_model_ready("numbers", "2")
    assert server.metadata("strings")["inputs"] == [
        {"name": "x_bytes", "datatype": "BYTES", "shape": [-1, -1]}
    ]
    given = {"x_bytes": Tensor.of("BYTES", (1, 1), ["a"])}
    reply = server.infer("strings", given, ["y_bytes"], client.Options("1", id="seven"))
    assert (reply.model, reply.version, reply.id) == ("strings", "1", "seven")
    assert reply.digest.startswith("sha256:")
    assert reply.promised("y_bytes", "BYTES") == given["x_bytes"]
    with pytest.raises(client.ProtocolBroken, match="expected FP32, found BYTES"):
        reply.promised("y_bytes", "FP32")


def test_refusals_are_typed(server: client.Client) -> None:
    with pytest.raises(client.NotFound, match="none"):
        server.infer("none", {})
    with pytest.raises(client.RequestWrong, match="missing") as raised:
        server.infer("strings", {})
    assert (raised.value.status, raised.value.path) == (400, "inputs")
    given = {"x_bytes": Tensor.of("BYTES", (1, 1), ["a"])}
    with pytest.raises(client.TimedOut):
        server.infer("strings", given, (), client.Options(parameters={"timeout": 1}))


def test_a_server_that_does_not_answer_is_not_waited_for_longer_than_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        made = client.Client(f"http://127.0.0.1:{port}", timeout_s=0.2)
        with pytest.raises(client.TimedOut, match=r"0\.2 s"):
            made.is_ready()
    with pytest.raises(client.ConnectionBroken):
        made.is_ready()


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[client.Client]:
    """A client of a server that gives these answers, each on a connection that it then closes."""

    def answer_each(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_each, args=(listener,), daemon=True)
        thread.start()
        with client.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=20) as made:
            yield made
        thread.join(20)


def http_answer(code: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    with answering(http_answer("200 OK", b"{}"), http_answer("200 OK", b"{}")) as made:
        assert made.is_ready()
        assert made.is_ready()


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    cut = http_answer("200 OK", b'{"a": 1}')[:-3]
    with answering(cut) as made, pytest.raises(client.ConnectionBroken):
        made.metadata("m")


@pytest.mark.parametrize(
    "code, body, kind",
    [
        ("200 OK", b"<html>", client.ProtocolBroken),
        ("200 OK", b"[]", client.ProtocolBroken),
        ("502 Bad Gateway", b"<html>", client.ServerRefused),
        ("401 Unauthorized", b'{"error": "no token"}', client.Denied),
        ("413 Too Large", b'{"error": "body: too large"}', client.RequestWrong),
        ("503 Busy", b'{"error": "full"}', client.Unavailable),
        ("504 Late", b'{"error": "late"}', client.TimedOut),
    ],
)
def test_answers_of_every_kind_are_told_apart(
    code: str, body: bytes, kind: type[client.InferenceError]
) -> None:
    answer = http_answer(code, body, "retry-after: 2", "x-refusal-reason: full")
    with answering(answer) as made, pytest.raises(client.InferenceError) as raised:
        made.metadata("m")
    assert type(raised.value) is kind
    if isinstance(raised.value, client.Unavailable):
        assert (raised.value.retry_after_s, raised.value.reason) == (2.0, "full")


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: str(dtype.oip))
def test_tensors_and_numpy_arrays_hold_the_same(dtype: dtypes.DType) -> None:
    if dtype is dtypes.STRING:
        given = np.array([["a", b"\xff"]], object)
        assert Tensor.from_numpy(given).numpy().tolist() == [[b"a", b"\xff"]]
        return
    tensor = odd(dtype)
    assert Tensor.from_numpy(tensor.numpy(), dtype.oip) == tensor
    native = np.frombuffer(tensor.raw, elements.numpy_dtype(dtype)).reshape(tensor.shape)
    assert Tensor.from_numpy(native) == tensor


def test_bfloat16_is_rounded_once_to_nearest_even() -> None:
    values = [1.0, 1.00390625, 1.01171875, 3.3895313892515355e38, 9.2e-41, 4.6e-41, 1e-45, -0.0]
    tensor = Tensor.of("BF16", (8,), values)
    assert list(struct.unpack("<8H", tensor.raw)) == (
        np.array(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).tolist()
    )
    with pytest.raises(ValueError, match="beyond BF16"):
        Tensor.of("BF16", (1,), [3.4e38])


@pytest.mark.parametrize(
    "datatype, value",
    [("INT8", 128), ("UINT8", -1), ("INT64", 1.0), ("BOOL", 1), ("FP16", 65520.0), ("FP32", 1e39),
     ("FP32", "1"), ("BYTES", 3), ("INT32", True), ("BF16", True)],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(datatype: str, value: Any) -> None:
    with pytest.raises((ValueError, AttributeError)):
        Tensor.of(datatype, (1,), [value])
