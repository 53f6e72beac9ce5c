"""Convolutions: Conv, ConvTranspose, ConvInteger, QLinearConv, DeformConv.

Data are (batch, channels, spatial...), weights (out, in/group, kernel...); transposed ones
(in, out/group, kernel...). Canonical attrs, complete after simplify: ``kernel_shape``, ``strides``,
``dilations``, ``pads`` (begins, then ends; dims where the input's extent decides), ``group``;
ConvTranspose also ``output_padding``. No ``auto_pad`` and no ``output_shape`` remain.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import bounds, window
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

_BIAS = {"Conv": 2, "QLinearConv": 8, "DeformConv": 3}  # the position of this input


def conv(at: Site) -> Types:
    """(n, out, spatial'...) with the dtype of the data."""
    return (TensorType(at.dtype(0), _conv_shape(at, 0, 1)),)


def conv_integer(at: Site) -> Types:
    """As Conv, accumulated in int32."""
    return (TensorType(dtypes.INT32, _conv_shape(at, 0, 1)),)


def qlinear_conv(at: Site) -> Types:
    """As Conv, with the dtype of the output's zero point."""
    return (TensorType(at.dtype(7), _conv_shape(at, 0, 3)),)


def deform_conv(at: Site) -> Types:
    """As Conv; the offsets do not change the shape."""
    return (TensorType(at.dtype(0), _conv_shape(at, 0, 1)),)


def kernel_of(at: Site, weights: Shape) -> tuple[Extent, ...]:
    """The kernel's extents: those of the weights, which ``kernel_shape`` may only repeat."""
    given = at.attr("kernel_shape")
    extents = tuple(weights[2:])
    if given is not None and len(given) == len(extents):
        for asked, found in zip(given, extents, strict=True):
            at.check(asked, found, "kernel_shape must be that of the weights")
    return extents


def _conv_shape(at: Site, data: int, weights: int) -> Shape | None:
    x, w = at.rank_at_least(data, 3), at.rank_at_least(weights, 3)
    if x is None or w is None:
        return None
    if len(x) != len(w):
        at.fail(f"weights: expected rank {len(x)}, found {len(w)}", weights)
    group = int(at.attr("group", 1))
    at.check(x[1], dims.mul(w[1], group), "channels must be those of the weights times group")
    _fit_filters(at, w[0], group)
    windows = window.windows_of(at, x[2:], kernel_of(at, w))
    pairs = zip(windows, x[2:], strict=True)
    return (x[0], w[0], *(window.extent_of(at, item, extent) for item, extent in pairs))


def _fit_filters(at: Site, filters: Extent, group: int) -> None:
    whole = dims.mul(dims.floordiv(filters, group), group)
    at.check(whole, filters, "each group needs its share of the filters")
    bias = _BIAS.get(at.node.op)
    if bias is not None:
        _fit_bias(at, bias, filters)


def _fit_bias(at: Site, index: int, filters: Extent) -> None:
    bias = at.shape(index)
    if bias is None:
        return
    if len(bias) != 1:
        at.fail(f"bias: expected rank 1, found {len(bias)}", index)
    at.check(bias[0], filters, "one bias is needed for each filter")


def conv_transpose(at: Site) -> Types:
    """(n, out, spatial'...): the extents that ``transposed_extents`` gives."""
    x, w = at.rank_at_least(0, 3), at.rank_at_least(1, 3)
    if x is None or w is None:
        return (TensorType(at.dtype(0), None),)
    at.check(x[1], w[0], "channels must be those of the weights")
    extents, _ = transposed_extents(at, x, w)
    group = int(at.attr("group", 1))
    channels = dims.mul(w[1], group)
    whole = dims.mul(dims.floordiv(w[0], group), group)
    at.check(whole, w[0], "each group needs its share of the channels")
    _fit_bias(at, 2, channels)
    return (TensorType(at.dtype(0), (x[0], channels, *extents)),)


def transposed_extents(
    at: Site, x: Shape, w: Shape
) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """The output's spatial extents of a ConvTranspose and its explicit pads.

    SAME makes input * stride; the odd cell of padding is at the end for SAME_UPPER. An explicit
    ``output_shape`` chooses the pads, with the odd cell at the start unless SAME_UPPER.
    """
    rank = len(x) - 2
    kernel = kernel_of(at, w)
    strides = at.attr("strides") or (1,) * rank
    dilations = at.attr("dilations") or (1,) * rank
    extra = at.attr("output_padding") or (0,) * rank
    auto = at.attr("auto_pad", "NOTSET") or "NOTSET"
    wanted = at.attr("output_shape")
    pads = at.attr("pads") if auto == "NOTSET" else None
    pads = tuple(pads or (0,) * (2 * rank))
    extents, begins, ends = [], [], []
    for axis in range(rank):
        reach = dims.add(dims.mul(dims.add(kernel[axis], -1), dilations[axis]), 1)
        full = dims.add(dims.mul(dims.add(x[axis + 2], -1), strides[axis]), reach)
        full = dims.add(full, extra[axis])
        if wanted is None and auto not in ("SAME_UPPER", "SAME_LOWER"):
            begin, end = pads[axis], pads[axis + rank]
        else:
            same = dims.mul(x[axis + 2], strides[axis])
            target = wanted[axis - rank] if wanted is not None else same
            begin, end = _split_padding(bounds.sub(full, target), auto == "SAME_UPPER")
        begins.append(begin)
        ends.append(end)
        extents.append(bounds.sub(full, dims.add(begin, end)))
        at.at_least(extents[-1], 0, "padding must not be larger than the output")
    return tuple(extents), (*begins, *ends)


def _split_padding(total: Extent, upper: bool) -> tuple[Extent, Extent]:
    half = dims.floordiv(total, 2)
    rest = bounds.sub(total, half)
    return (half, rest) if upper else (rest, half)
