"""Write ``inference.binpb`` from ``inference.proto``: what the server reads its messages from.

    python -m tools.make_proto

A descriptor instead of generated Python, so that the messages live in a pool of their own and a
process may also hold another copy of the protocol, such as a client's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parent.parent / "castiron" / "server" / "grpc"


def descriptor() -> bytes:
    """The serialized FileDescriptorProto of the source as it stands."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "set"
        status = protoc.main(
            ["", f"-I{FOLDER}", f"--descriptor_set_out={out}", str(FOLDER / "inference.proto")]
        )
        if status:
            raise SystemExit(status)
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    (file,) = found.file
    serialized: bytes = file.SerializeToString(deterministic=True)
    return serialized


def main() -> None:
    """Write the file beside its source."""
    (FOLDER / "inference.binpb").write_bytes(descriptor())


if __name__ == "__main__":
    main()
