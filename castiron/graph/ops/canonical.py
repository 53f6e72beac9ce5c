"""The canonical form of nodes: sizes as attrs of dims instead of tensor inputs, defaults filled in.

``canonicalise`` gives the form that each family's file documents and that kernels read. The way
back is in ``onnx_form.py``; continue with ``compiler/passes/simplify.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from castiron.graph.graph import Node, Shape
from castiron.graph.ops import convolution, reduction, resize, slicing, window
from castiron.graph.ops import shape as shapes
from castiron.graph.ops.rule import Site
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

_AXIS_OPS = {
    "Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "Concat": 0, "Gather": 0,
    "GatherElements": 0, "ScatterElements": 0, "LayerNormalization": -1, "ArgMax": 0,
    "ArgMin": 0, "LpNormalization": -1, "RMSNormalization": -1,
}  # fmt: skip


def canonicalise(at: Site) -> Node | None:
    """The canonical form of the node, or None when it has it already or sizes are not known."""
    if not at.node.outputs or at.dtype(0) is dtypes.STRING:
        return None
    if at.node.op in _AXIS_OPS:
        return _with_axis(at)
    build = _BUILDERS.get(at.node.op)
    return build(at) if build else None


def _out(at: Site) -> Shape | None:
    """The output's shape, where nothing of it waits for the node's own data."""
    name = at.node.outputs[0]
    kind = at.types.get(name)
    if kind is None or kind.shape is None:
        return None
    own = {f"{name}_{axis}" for axis in range(len(kind.shape))}
    if any(symbol.rstrip("'") in own for e in kind.shape for symbol in dims.symbols_of(e)):
        return None
    return kind.shape


def _changed(node: Node, inputs: tuple[str, ...], attrs: dict[str, Any], op: str = "") -> Node:
    return dataclasses.replace(node, op=op or node.op, inputs=inputs, attrs=attrs, origin=None)


def _with_axis(at: Site) -> Node | None:
    shape = at.shape(0)
    if not shape:
        return None
    axis = at.axis(int(at.attr("axis", _AXIS_OPS[at.node.op])), len(shape))
    if at.node.attrs.get("axis") == axis:
        return None
    return dataclasses.replace(at.node, attrs={**at.node.attrs, "axis": axis})


def _view(at: Site) -> Node | None:
    shape = _out(at)
    if shape is None or (at.node.op == "Reshape" and at.attr("shape") is not None):
        return None
    return _changed(at.node, at.node.inputs[:1], {"shape": shape}, "Reshape")


def _expand(at: Site) -> Node | None:
    shape = _out(at)
    if shape is None or at.attr("shape") is not None:
        return None
    return _changed(at.node, at.node.inputs[:1], {"shape": shape})


def _transpose(at: Site) -> Node | None:
    shape = at.shape(0)
    if shape is None:
        return None
    rank = len(shape)
    perm = tuple(at.attr("perm") or range(rank - 1, -1, -1))
    perm = tuple(axis + rank if axis < 0 else axis for axis in perm)
    if at.attr("perm") == perm:
        return None
    return dataclasses.replace(at.node, attrs={"perm": perm})


def _slice(at: Site) -> Node | None:
    if at.attr("sizes") is not None or _out(at) is None:
        return None
    cuts, shape = slicing.slice_cuts(at), at.shape(0)
    if cuts is None or shape is None:
        return None
    real = {axis: cut for axis, cut in sorted(cuts.items()) if cut != (0, 1, shape[axis])}
    if not real:
        return _changed(at.node, at.node.inputs[:1], {}, "Identity")
    attrs = {
        "axes": tuple(real),
        "starts": tuple(cut[0] for cut in real.values()),
        "steps": tuple(cut[1] for cut in real.values()),
        "sizes": tuple(cut[2] for cut in real.values()),
    }
    return _changed(at.node, at.node.inputs[:1], attrs)


def _split(at: Site) -> Node | None:
    shape = at.shape(0)
    kinds = [at.types.get(name) for name in at.node.outputs]
    if shape is None or at.attr("split") is not None or _out(at) is None:
        return None
    axis = at.axis(int(at.attr("axis", 0)), len(shape))
    sizes = tuple(kind.shape[axis] for kind in kinds if kind and kind.shape is not None)
    if len(sizes) != len(kinds):
        return None
    return _changed(at.node, at.node.inputs[:1], {"axis": axis, "split": sizes})


def _tile(at: Site) -> Node | None:
    repeats = at.contents(1)
    if at.attr("repeats") is not None or repeats is None:
        return None
    return _changed(at.node, at.node.inputs[:1], {"repeats": repeats})


def _pad(at: Site) -> Node | None:
    shape = at.shape(0)
    if shape is None or at.attr("pads") is not None:
        return None
    pads = slicing.full_pads(at, len(shape))
    if pads is None:
        return None
    attrs = {"pads": pads, "mode": at.attr("mode", "constant")}
    if at.has(2) and at.array(2) is None:
        return _changed(at.node, (at.name(0), at.name(2)), attrs)
    array = at.array(2)
    attrs["value"] = 0 if array is None else np.asarray(array).reshape(-1)[0].item()
    return _changed(at.node, at.node.inputs[:1], attrs)


def _reduce(at: Site) -> Node | None:
    shape = at.shape(0)
    if shape is None:
        return None
    axes = reduction.reduced_axes(at, len(shape))
    attrs = {"axes": axes, "keepdims": int(at.attr("keepdims", 1))}
    if axes is None or (len(at.node.inputs) == 1 and dict(at.node.attrs) == attrs):
        return None
    if not axes and at.node.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"):
        return _changed(at.node, at.node.inputs[:1], {}, "Identity")
    if not axes:
        attrs["noop_with_empty_axes"] = 1
        if len(at.node.inputs) == 1 and dict(at.node.attrs) == attrs:
            return None
    return _changed(at.node, at.node.inputs[:1], attrs)


def _cumulate(at: Site) -> Node | None:
    known, shape = at.contents(1), at.shape(0)
    if at.attr("axis") is not None or shape is None or not known:
        return None
    if isinstance(known[0], dims.Dim):
        return None
    attrs = {**at.node.attrs, "axis": at.axis(known[0], len(shape))}
    return _changed(at.node, at.node.inputs[:1], attrs)


def _range(at: Site) -> Node | None:
    if at.attr("limit") is not None or at.dtype(0) is None or _out(at) is None:
        return None
    parts, dtype = shapes.range_parts(at), at.dtype(0)
    if parts is None or dtype is None:
        return None
    start, limit, delta = parts
    attrs = {"start": start, "limit": limit, "delta": delta, "dtype": dtype.name}
    return _changed(at.node, (), attrs)


def _constant_of_shape(at: Site) -> Node | None:
    shape = at.contents(0)
    if at.attr("shape") is not None or shape is None:
        return None
    value = at.attr("value")
    filled = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(1)
    return _changed(at.node, (), {"shape": shape, "value": filled})


def _top_k(at: Site) -> Node | None:
    k, shape = at.contents(1), at.shape(0)
    if at.attr("k") is not None or not k or shape is None:
        return None
    attrs = {
        "k": k[0],
        "axis": at.axis(int(at.attr("axis", -1)), len(shape)),
        "largest": int(at.attr("largest", 1)),
        "sorted": int(at.attr("sorted", 1)),
    }
    return _changed(at.node, at.node.inputs[:1], attrs)


def _one_hot(at: Site) -> Node | None:
    depth, indices = at.contents(1), at.shape(0)
    if at.attr("depth") is not None or not depth or indices is None:
        return None
    axis = at.axis(int(at.attr("axis", -1)), len(indices) + 1)
    return _changed(at.node, (at.name(0), at.name(2)), {"axis": axis, "depth": depth[0]})


def _trilu(at: Site) -> Node | None:
    k = at.contents(1) if at.has(1) else (0,)
    if at.attr("k") is not None or not k:
        return None
    return _changed(at.node, at.node.inputs[:1], {"k": k[0], "upper": int(at.attr("upper", 1))})


def _resize(at: Site) -> Node | None:
    sizes, shape = resize.resized(at), at.shape(0)
    if at.attr("sizes") is not None or sizes is None or shape is None:
        return None
    dropped = ("axes", "keep_aspect_ratio_policy")
    attrs: dict[str, Any] = {k: v for k, v in at.node.attrs.items() if k not in dropped}
    scales = resize.scales_of(at)
    policy = resize.policy_scale(at)
    if policy is not None:
        axes = at.attr("axes") or range(len(shape))
        chosen = {at.axis(int(axis), len(shape)) for axis in axes}
        scales = tuple(policy if axis in chosen else 1.0 for axis in range(len(shape)))
    if scales is not None:
        attrs["scales"] = scales
    if at.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        roi = resize.full_roi(at)
        if roi is None:
            return None
        attrs["roi"] = roi
    attrs["sizes"] = sizes
    return _changed(at.node, at.node.inputs[:1], attrs)


def _windowed(at: Site) -> Node | None:
    """Conv and pools: kernel, strides, dilations and pads written out."""
    weights = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}.get(at.node.op)
    x = at.shape(0)
    w = at.shape(weights) if weights is not None else None
    if x is None or (weights is not None and w is None):
        return None
    kernel = convolution.kernel_of(at, w) if w is not None else tuple(at.attr("kernel_shape"))
    windows = window.windows_of(at, x[2:], kernel)
    attrs = dict(at.node.attrs)
    attrs["kernel_shape"] = tuple(item.kernel for item in windows)
    attrs["strides"] = tuple(item.stride for item in windows)
    attrs["dilations"] = tuple(item.dilation for item in windows)
    attrs["pads"] = (*(item.begin for item in windows), *(item.end for item in windows))
    is_static = not any(isinstance(item, dims.Dim) for item in attrs["pads"])
    if is_static and attrs.pop("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        attrs.pop("ceil_mode", None)
    if weights is not None:
        attrs["group"] = int(at.attr("group", 1))
    elif at.node.op != "LpPool":
        attrs.setdefault("ceil_mode", 0)
    return None if attrs == dict(at.node.attrs) else dataclasses.replace(at.node, attrs=attrs)


def _conv_transpose(at: Site) -> Node | None:
    x, w = at.shape(0), at.shape(1)
    if x is None or w is None:
        return None
    rank = len(x) - 2
    _, pads = convolution.transposed_extents(at, x, w)
    attrs = {
        "kernel_shape": tuple(w[2:]),
        "strides": tuple(at.attr("strides") or (1,) * rank),
        "dilations": tuple(at.attr("dilations") or (1,) * rank),
        "output_padding": tuple(at.attr("output_padding") or (0,) * rank),
        "group": int(at.attr("group", 1)),
        "pads": pads,
    }
    if attrs == dict(at.node.attrs):
        return None
    return dataclasses.replace(at.node, attrs=attrs)


_BUILDERS: dict[str, Callable[[Site], Node | None]] = {
    "Reshape": _view, "Squeeze": _view, "Unsqueeze": _view, "Flatten": _view,
    "Expand": _expand, "Transpose": _transpose, "Slice": _slice, "Split": _split, "Tile": _tile,
    "Pad": _pad, **dict.fromkeys(reduction.REDUCTIONS, _reduce), "CumSum": _cumulate,
    "Range": _range, "ConstantOfShape": _constant_of_shape, "TopK": _top_k, "OneHot": _one_hot,
    "Trilu": _trilu, "Resize": _resize, "Conv": _windowed, "ConvInteger": _windowed,
    "QLinearConv": _windowed, "MaxPool": _windowed, "AveragePool": _windowed,
    "LpPool": _windowed, "ConvTranspose": _conv_transpose,
}  # fmt: skip
