"""The committed descriptor is the .proto's, and its fields are the protocol's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tritonclient.grpc import model_config_pb2, service_pb2

from castiron.contract import model, proto
from castiron.server.grpc import messages
from tools import make_proto

Field = tuple[str, str, int, int, str]


def test_the_descriptor_is_what_the_source_gives() -> None:
    found = make_proto.DESCRIPTOR.read_bytes()
    assert found == make_proto.descriptor(), "run python -m tools.make_proto"


def fields(file: Any) -> Iterator[Field]:
    """Message, field, number, type and type name of every field, nested ones too."""

    def walk(message: Any, prefix: str) -> Iterator[Field]:
        name = f"{prefix}.{message.name}"
        for field in message.field:
            yield name, field.name, field.number, field.type, field.type_name
        for nested in message.nested_type:
            yield from walk(nested, name)

    for message in file.message_type:
        yield from walk(message, "")


def ours() -> Any:
    data = make_proto.DESCRIPTOR.read_bytes()
    return descriptor_pb2.FileDescriptorProto.FromString(data)


def test_every_field_has_the_name_number_and_type_that_a_client_has() -> None:
    theirs: set[Field] = set()
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        theirs |= set(fields(file))
    mine = set(fields(ours()))
    assert len(mine) > 80
    assert mine <= theirs, sorted(mine - theirs)


def test_calls_take_and_give_what_a_client_sends_and_expects() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    (service,) = ours().service
    for method in service.method:
        known = theirs.methods_by_name[method.name]
        assert method.input_type == f".{known.input_type.full_name}"
        assert method.output_type == f".{known.output_type.full_name}"


def test_what_a_contract_exports_is_what_is_served(tmp_path: Path) -> None:
    tensor = model.Tensor("x", "FP32", ("N",))
    (tmp_path / "exported.proto").write_text(
        proto.text(model.Contract("m", input=(tensor,), output=(tensor,)))
    )
    out = tmp_path / "set"
    status = protoc.main(
        ["", f"-I{tmp_path}", f"--descriptor_set_out={out}", str(tmp_path / "exported.proto")]
    )
    assert status == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    file.name = ours().name
    assert file == ours()


def test_our_messages_and_a_clients_live_in_one_process() -> None:
    sent = service_pb2.ModelInferRequest(model_name="m", id="7")
    sent.raw_input_contents.append(b"\x00\xff")
    read = messages.named("ModelInferRequest").FromString(sent.SerializeToString())
    assert (read.model_name, read.id, list(read.raw_input_contents)) == ("m", "7", [b"\x00\xff"])
