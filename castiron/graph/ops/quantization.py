"""Quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.

y = saturate(round_half_even(x / scale) + zero_point), and back (y - zero_point) * scale, per tensor,
per ``axis``, or per block of ``block_size``. The dynamic form takes scale and zero point from the
range of the data, 0 included.
"""

from __future__ import annotations

from castiron.graph.graph import TensorType
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dtype as dtypes


def quantize(at: Site) -> Types:
    """The zero point's dtype, else ``output_dtype``, else uint8."""
    dtype = at.dtype(2)
    if not at.has(2):
        code = int(at.attr("output_dtype", 0))
        dtype = dtypes.from_onnx(code) if code else dtypes.UINT8
    return (TensorType(dtype, at.shape(0)),)


def dequantize(at: Site) -> Types:
    """``output_dtype``, else the scale's dtype."""
    code = int(at.attr("output_dtype", 0))
    dtype = dtypes.from_onnx(code) if code else at.dtype(1)
    return (TensorType(dtype, at.shape(0)),)


def dynamic_quantize(at: Site) -> Types:
    """uint8 data, float32 scale, uint8 zero point."""
    kinds = (
        TensorType(dtypes.UINT8, at.shape(0)),
        TensorType(dtypes.FLOAT32, ()),
        TensorType(dtypes.UINT8, ()),
    )
    return kinds[: len(at.node.outputs)]
