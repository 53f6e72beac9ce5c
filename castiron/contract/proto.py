"""The ``.proto`` of a model: the protocol's messages, and what this model's tensors are in them.

The messages are ``inference.proto``, the same file that the server speaks by
(``tools/make_proto.py``), so that what is exported is what is served.
"""

from __future__ import annotations

from importlib import resources

from castiron.contract import model

# The list of InferTensorContents that holds each datatype; FP16 and BF16 have none.
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def text(contract: model.Contract) -> str:
    """The text of the file."""
    plain = resources.files("castiron.contract").joinpath("inference.proto").read_text("utf-8")
    lines = [f"// {_quoted(contract.name)} in gRPC: ask ModelInfer with this model_name and"]
    lines.append("// raw_input_contents, or with the contents named here.")
    for side, tensors in (("input", contract.input), ("output", contract.output)):
        for tensor in tensors:
            held = CONTENTS.get(tensor.datatype, "raw only")
            shape = ", ".join(map(str, tensor.shape))
            kind = f"{tensor.datatype}[{_quoted(shape)}]"
            lines.append(f"//   {side} {_quoted(tensor.name)}: {kind}, {held}")
    return "\n".join(lines) + "\n//\n" + plain


def _quoted(name: str) -> str:
    """A name inside a comment of one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
