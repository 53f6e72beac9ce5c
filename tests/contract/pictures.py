"""Models with an application's side, for the generated clients: a picture and a table, two ways.

``pictures`` takes images as they are or as base64, ``thumbs`` as base64 alone.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib

import onnx
from onnx import TensorProto, helper

from castiron.contract import model, steps

_PICTURE = model.Entry(
    "picture", "image", "image", encodings=("base64", "raw"), formats=("png",), max_pixels=4096,
    steps=(steps.DecodeImage(), steps.Resize(8, 8), steps.Normalise(mean=(0.0,), std=(1.0,))),
)  # fmt: skip
_READINGS = model.Entry(
    "readings", "table", "table", max_rows=4,
    columns=(model.Column("mass", (0, 100), "kg"), model.Column("length", unit="m")),
)  # fmt: skip
_NOTE = model.Entry("note", "text", languages=("en", "de"), optional=True, max_chars=40)
_COLOURS = ("red", "green", "blue")

PICTURES = model.Contract(
    name="pictures",
    input=(
        model.Tensor("image", "FP32", (1, 3, 8, 8)),
        model.Tensor("table", "FP32", ("N", 2)),
    ),
    output=(model.Tensor("colour", "FP32", (1, 3)), model.Tensor("sums", "FP32", ("N",))),
    schema=model.Schema(
        (_PICTURE, _READINGS, _NOTE),
        (
            model.Entry(
                "answer", "labels", "colour",
                steps=(steps.Softmax(), steps.TopK(2), steps.Labels(names=_COLOURS)),
            ),
            model.Entry("sums", "tensor", "sums"),
        ),
    ),
)  # fmt: skip
THUMBS = dataclasses.replace(
    PICTURES,
    name="thumbs",
    schema=model.Schema(
        (dataclasses.replace(_PICTURE, encodings=("base64",)), _READINGS, _NOTE),
        PICTURES.schema.output,
    ),
)


def source() -> onnx.ModelProto:
    """The mean of each colour, and the sum of each row."""
    axes = [helper.make_tensor(name, TensorProto.INT64, [len(value)], value)
            for name, value in (("last_two", [2, 3]), ("second", [1]))]  # fmt: skip
    nodes = [
        helper.make_node("ReduceMean", ["image", "last_two"], ["colour"], keepdims=0),
        helper.make_node("ReduceSum", ["table", "second"], ["sums"], keepdims=0),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(each.name, TensorProto.FLOAT, each.shape) for each in side]
        for side in (PICTURES.input, PICTURES.output)
    )
    graph = helper.make_graph(nodes, "pictures", inputs, outputs, axes)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def png(red: int, green: int, blue: int) -> bytes:
    """A picture of one colour, eight by eight."""
    rows = (b"\0" + bytes([red, green, blue]) * 8) * 8

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    )
