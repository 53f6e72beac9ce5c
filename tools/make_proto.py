"""Write the server's ``inference.binpb`` from ``castiron/contract/inference.proto``.

    python -m tools.make_proto

A descriptor instead of generated Python, so that the messages live in a pool of their own and a
process may also hold another copy of the protocol, such as a client's. The source lies with
contracts, which export it as it is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

_PACKAGE = Path(__file__).resolve().parent.parent / "castiron"
SOURCE = _PACKAGE / "contract" / "inference.proto"
DESCRIPTOR = _PACKAGE / "server" / "grpc" / "inference.binpb"


def descriptor() -> bytes:
    """The serialized FileDescriptorProto of the source as it stands."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "set"
        status = protoc.main(["", f"-I{SOURCE.parent}", f"--descriptor_set_out={out}", str(SOURCE)])
        if status:
            raise SystemExit(status)
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    (file,) = found.file
    serialized: bytes = file.SerializeToString(deterministic=True)
    return serialized


def main() -> None:
    """Write the file where the server looks for it."""
    DESCRIPTOR.write_bytes(descriptor())


if __name__ == "__main__":
    main()
