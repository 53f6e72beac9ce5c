"""What is generated from a contract: valid by others' judgement, and the same bytes each time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from grpc_tools import protoc
from tritonclient.grpc import model_config_pb2, service_pb2

from castiron.contract import export, json_schema, model, proto
from castiron.contract.client import naming
from tests.contract import samples

GOLDEN = Path(__file__).parent / "golden"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [0, "NaN"]}]}
PLAIN = model.Contract(
    "plain", input=(model.Tensor("x", "FP32", ("N",)),), output=(model.Tensor("y", "BOOL", ("N",)),)
)


def carried(name: str) -> Path | None:
    """The file of ours that is exported as it is, if it is one."""
    parts = ["library" if part == "castiron_client" else part for part in Path(name).parts[1:]]
    own = Path("castiron/contract/client", *parts)
    return own if own.is_file() else None


@pytest.mark.parametrize("name", sorted(export.everything(samples.FULL)))
def test_generated_files_are_those_that_were_reviewed(name: str) -> None:
    """To accept a change: ``python -m tests.contract.test_export`` writes them again."""
    reviewed = carried(name) or GOLDEN / f"{name}.txt"
    assert export.everything(samples.FULL)[name] == reviewed.read_text()


def test_no_reviewed_file_is_left_over() -> None:
    found = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.txt")}
    assert found <= {f"{name}.txt" for name in export.everything(samples.FULL)}


def test_generated_python_is_python() -> None:
    odd = model.Contract('"""\\', input=(model.Tensor('a"\\\n', "FP32", ()),), output=PLAIN.output)
    for contract in (samples.FULL, odd):
        for text in export.files(contract, "python").values():
            ast.parse(text)


def test_names_of_models_become_names_in_programs() -> None:
    for name in ("mobilenet-v2", "7b", "größe", "", "class", "client", "Tensor", "a.b", "日本"):
        assert naming.class_name(name).isidentifier()
        assert naming.file_name(name).isidentifier()
    assert naming.class_name("mobilenet-v2") == "MobilenetV2"
    assert naming.file_name("class") == "model_class"


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_the_json_schema_is_one_and_tells_requests_apart() -> None:
    for contract in (samples.FULL, PLAIN):
        jsonschema.Draft202012Validator.check_schema(json_schema.document(contract))
    schema = json_schema.document(PLAIN)
    assert accepts(schema, REQUEST)
    assert accepts(schema, REQUEST | {"id": "a", "outputs": [{"name": "y"}], "parameters": None})
    for change in (
        {"name": "z"}, {"datatype": "FP64"}, {"shape": [2, 1]}, {"shape": [-1]}, {"data": ["x"]},
        {"data": [None]}, {"data": 3}, {"parameters": {"binary_data_size": 8}},
    ):  # fmt: skip
        assert not accepts(schema, {"inputs": [REQUEST["inputs"][0] | change]}), change
    assert not accepts(schema, {"inputs": []})
    assert not accepts(schema, REQUEST | {"outputs": [{"name": "z"}]})


@pytest.mark.parametrize(
    "tensor, good, bad",
    [
        (model.Tensor("x", "INT8", ("N",)), [-128, 127], [-129, 128, 0.5, True, "1"]),
        (model.Tensor("x", "UINT64", ("N",)), [0, 2**64 - 1], [-1, 2**64]),
        (model.Tensor("x", "INT32", ("N",), range=(-5, 10**12)), [-5, 2**31 - 1], [-6, 2**31]),
        (model.Tensor("x", "FP32", ("N",), range=(0, 1), nan="refuse", infinity="refuse"),
         [0, 1.0, 0.5], [2, "NaN", "Infinity", None]),
        (model.Tensor("x", "FP64", ("N",), infinity="refuse"), ["NaN", 1e300], ["-Infinity"]),
        (model.Tensor("x", "BOOL", ("N",)), [True], [0, "true"]),
        (model.Tensor("x", "BYTES", ("N",), allowed=("a", "b")), ["a"], ["c", 1]),
    ],
)  # fmt: skip
def test_values_of_each_datatype_are_told_apart(
    tensor: model.Tensor, good: list[Any], bad: list[Any]
) -> None:
    schema = json_schema.document(model.Contract("m", input=(tensor,), output=PLAIN.output))

    def request(value: Any) -> dict[str, Any]:
        item = {"name": "x", "datatype": tensor.datatype, "shape": [1], "data": [value]}
        return {"inputs": [item]}

    assert [value for value in good if not accepts(schema, request(value))] == []
    assert [value for value in bad if accepts(schema, request(value))] == []


def test_values_may_be_nested_and_every_input_is_needed() -> None:
    schema = json_schema.document(samples.FULL)
    image = {"name": "image", "datatype": "FP32", "shape": [0, 3, 224, 224], "data": []}
    flags = {"name": "flags", "datatype": "INT64", "shape": [2, 1], "data": [[1], [2]]}
    assert accepts(schema, {"inputs": [flags, image]})
    assert not accepts(schema, {"inputs": [flags, flags]})
    assert not accepts(schema, {"inputs": [flags | {"data": [[3], [1]]}, image]})
    assert not accepts(schema, {"inputs": [flags | {"shape": [65, 1]}, image]})


def test_applications_values_are_told_apart() -> None:
    schema = json_schema.document(samples.FULL)
    schema["$ref"] = "#/$defs/ApplicationRequest"
    good = {"picture": "aGVsbG8=", "question": {"text": "what?", "language": "en"}}
    assert accepts(schema, good)
    assert accepts(schema, good | {"readings": [[1, 2.5], [3, 4]]})
    assert not accepts(schema, good | {"readings": [[1, 2, 3]]})
    assert not accepts(schema, good | {"readings": [[101, 2]]})
    assert not accepts(schema, good | {"question": {"text": "what?", "language": "xx"}})
    assert not accepts(schema, good | {"more": 1})
    assert not accepts(schema, {"picture": "aGVsbG8="})
    schema["$ref"] = "#/$defs/ApplicationReply"
    assert accepts(schema, {"answer": [{"label": "cat", "index": 0, "score": 0.5}]})


def described(text: str, folder: Path) -> dict[str, Descriptor]:
    """The messages of a .proto text by their full names, as protoc reads it."""
    (folder / "model.proto").write_text(text)
    out = folder / "model.bin"
    command = ["protoc", f"-I{folder}", f"--descriptor_set_out={out}", str(folder / "model.proto")]
    assert protoc.main(command) == 0
    found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    return dict(_messages(pool.AddSerializedFile(found.file[0].SerializeToString())))


def _messages(file: Any) -> Iterator[tuple[str, Descriptor]]:
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting.extend(message.nested_types)
        yield message.full_name, message


def fields(message: Descriptor) -> set[tuple[str, int, int, bool]]:
    return {
        (field.name, field.number, field.type, field.is_repeated) for field in message.fields
    }  # fmt: skip


def test_the_proto_has_the_fields_of_the_protocol(tmp_path: Path) -> None:
    ours = described(proto.text(samples.FULL), tmp_path)
    theirs = dict(_messages(service_pb2.DESCRIPTOR)) | dict(_messages(model_config_pb2.DESCRIPTOR))
    assert len(ours) > 40
    for name, message in ours.items():
        assert fields(message) <= fields(theirs[name]), name
    for name in ("ModelInferRequest", "ModelInferResponse", "InferTensorContents"):
        assert fields(ours[f"inference.{name}"]) == fields(theirs[f"inference.{name}"]), name


def test_the_proto_names_the_models_tensors() -> None:
    text = proto.text(model.Contract("a\nb", input=samples.TENSORS, output=PLAIN.output))
    lines = text.splitlines()
    assert lines[0].startswith("// a?b in gRPC")
    assert "//   input image: FP32[N, 3, 224, 224], fp32_contents" in lines
    assert "//   output y: BOOL[N], bool_contents" in lines


if __name__ == "__main__":
    for _name, _text in export.everything(samples.FULL).items():
        if carried(_name) is None:
            (GOLDEN / f"{_name}.txt").parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / f"{_name}.txt").write_text(_text)
