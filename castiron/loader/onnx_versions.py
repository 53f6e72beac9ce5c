"""Old forms of ops to the newest form: one small function for each change of an op's meaning.

``TABLE`` says, for each op, below which opset version which function applies. A function gets
the old draft and returns the next form, or None when it has written all parts itself. Changes
that only widen the accepted types need no entry. Custom domains are in ``onnx_contrib``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from castiron.loader.onnx_draft import Draft, Writer

Rewrite = Callable[[Draft, Writer], "Draft | None"]


class Refusal(Exception):
    """A draft has no newest form; the text is the remedy part of a LoadError's line."""


def float_like(value: float, like: str, out: Writer, hint: str) -> str:
    """A scalar constant in the dtype of the value ``like`` (float32 when that is unknown)."""
    dtype = out.hints.dtype(like) or np.dtype(np.float32)
    return out.constant(value, dtype, hint)


def _drop(*names: str) -> Rewrite:
    return lambda draft, _out: draft.change(attrs=draft.without(*names))


def _default(key: str, value: object) -> Rewrite:
    return lambda draft, _out: draft.change(attrs={key: value, **draft.attrs})


def _to_input(key: str, position: int) -> Rewrite:
    """An attribute of ints becomes an int64 constant input at ``position``."""

    def rewrite(draft: Draft, out: Writer) -> Draft:
        if key not in draft.attrs:
            return draft
        value = np.atleast_1d(np.asarray(draft.attrs[key], dtype=np.int64))
        name = out.constant(value, np.int64, f"{draft.outputs[0]}_{key}")
        inputs = [*draft.inputs] + [""] * (position - len(draft.inputs))
        inputs.insert(position, name)
        return draft.change(inputs=tuple(inputs), attrs=draft.without(key))

    return rewrite


def broadcast(draft: Draft, out: Writer) -> Draft:
    """Opset 6: ``broadcast=1, axis=k`` aligns the second operand with axis k of the first."""
    axis = draft.attrs.get("axis")
    plain = draft.change(attrs=draft.without("broadcast", "axis"))
    if not draft.attrs.get("broadcast") or axis is None:
        return plain
    left, right = (out.hints.rank(name) for name in draft.inputs)
    if left is None or right is None:
        raise Refusal("broadcast along an axis needs known ranks; convert the model to opset 7")
    trailing = left - axis % left - right if left else 0
    if trailing <= 0:
        return plain
    axes = out.constant(range(right, right + trailing), np.int64, f"{draft.outputs[0]}_axes")
    return plain.change(
        inputs=(draft.inputs[0], out.make("Unsqueeze", (draft.inputs[1], axes), draft))
    )


def prelu(draft: Draft, out: Writer) -> Draft:
    """Opset 6: a slope of one dim belongs to the channels, axis 1."""
    rank, slope_rank = out.hints.rank(draft.inputs[0]), out.hints.rank(draft.inputs[1])
    if slope_rank != 1 or rank is None or rank <= 2:
        return draft
    axes = out.constant(range(1, rank - 1), np.int64, f"{draft.outputs[0]}_axes")
    slope = out.make("Unsqueeze", (draft.inputs[1], axes), draft)
    return draft.change(inputs=(draft.inputs[0], slope))


def batch_normalization(draft: Draft, out: Writer) -> Draft | None:
    """Before opset 9 ``spatial=0`` meant statistics for each element, not each channel."""
    if draft.attrs.get("spatial", 1):
        return draft.change(attrs=draft.without("spatial"))
    x, scale, bias, mean, variance = draft.inputs
    epsilon = float_like(draft.attrs.get("epsilon", 1e-5), x, out, f"{draft.outputs[0]}_epsilon")
    centred = out.make("Sub", (x, mean), draft)
    spread = out.make("Sqrt", (out.make("Add", (variance, epsilon), draft),), draft)
    scaled = out.make("Mul", (out.make("Div", (centred, spread), draft), scale), draft)
    out.put(Draft("Add", (scaled, bias), draft.outputs[:1], name=draft.name))
    return None


def first_output_only(draft: Draft, _out: Writer) -> Draft:
    """Outputs that only training filled are gone in the newest form."""
    return draft.change(outputs=draft.outputs[:1], attrs=draft.without("is_test"))


_TYPE_NAMES = frozenset(onnx.TensorProto.DataType.keys())


def cast_by_name(draft: Draft, _out: Writer) -> Draft:
    """Before opset 6 the target type was spelled, not numbered."""
    target = draft.attrs.get("to")
    if not isinstance(target, str):
        return draft
    if target.upper() not in _TYPE_NAMES:
        raise Refusal(f"Cast to {target!r}, which is no element type")
    return draft.change(attrs={"to": onnx.TensorProto.DataType.Value(target.upper())})


def clip(draft: Draft, out: Writer) -> Draft:
    """Before opset 11 the bounds were attributes."""
    low, high = (
        float_like(draft.attrs[key], draft.inputs[0], out, f"{draft.outputs[0]}_{key}")
        if key in draft.attrs
        else ""
        for key in ("min", "max")
    )
    return draft.change(
        inputs=(draft.inputs[0], low, high), attrs=draft.without("min", "max", "consumed_inputs")
    )


def dropout(draft: Draft, out: Writer) -> Draft | None:
    """Inference: the data passes, the mask is all true. A dropout in training mode stays."""
    training = draft.input(2)
    if training and not (training in out.constants and not out.constants[training].any()):
        return draft
    data = draft.inputs[0]
    if len(draft.outputs) > 1 and draft.outputs[1]:
        kind = np.bool_ if draft.version >= 10 else out.hints.dtype(data) or np.float32
        shape = out.make("Shape", (data,), draft)
        out.put(
            Draft("ConstantOfShape", (shape,), draft.outputs[1:2], {"value": np.ones(1, kind)},
                  name=f"{draft.name}_mask")
        )  # fmt: skip
    return Draft("Identity", (data,), draft.outputs[:1], name=draft.name)


def group_normalization(draft: Draft, out: Writer) -> Draft:
    """Before opset 21 scale and bias had one entry for each group, now for each channel."""
    x, scale, bias = draft.inputs
    groups = out.constant([draft.attrs["num_groups"]], np.int64, f"{draft.outputs[0]}_groups")
    channels = out.make("Shape", (x,), draft, start=1, end=2)
    size = out.make("Div", (channels, groups), draft)
    shape = out.make("Concat", (groups, size), draft, axis=0)
    one = out.constant([1], np.int64, f"{draft.outputs[0]}_one")
    flat = out.constant([-1], np.int64, f"{draft.outputs[0]}_flat")
    wide = []
    for part in (scale, bias):
        column = out.make("Unsqueeze", (part, one), draft)
        spread = out.make("Expand", (column, shape), draft)
        wide.append(out.make("Reshape", (spread, flat), draft))
    return draft.change(inputs=(x, *wide))


def flatten_softmax(draft: Draft, out: Writer) -> Draft | None:
    """Before opset 13 all axes from ``axis`` on (default 1) were one: normalise them together."""
    axis = int(draft.attrs.get("axis", 1))
    rank = out.hints.rank(draft.inputs[0])
    if axis == -1 or (rank is not None and axis == rank - 1):
        return draft.change(attrs={"axis": -1})
    x = draft.inputs[0]
    rows = out.make("Flatten", (x,), draft, axis=axis)
    normal = out.make(draft.op, (rows,), draft, axis=-1)
    shape = out.make("Shape", (x,), draft)
    out.put(Draft("Reshape", (normal, shape), draft.outputs, {}, name=draft.name))
    return None


def integer_p(draft: Draft, _out: Writer) -> Draft:
    """Before opset 2 the power of an Lp pool was a float."""
    return draft.change(attrs={**draft.attrs, "p": int(draft.attrs.get("p", 2))})


def pad(draft: Draft, out: Writer) -> Draft:
    """Before opset 11 pads and the fill value were attributes."""
    pads = draft.attrs.get("pads", draft.attrs.get("paddings", ()))
    inputs = [draft.inputs[0], out.constant(pads, np.int64, f"{draft.outputs[0]}_pads")]
    if draft.attrs.get("mode", "constant") == "constant":
        fill = float(draft.attrs.get("value", 0.0))
        inputs.append(float_like(fill, draft.inputs[0], out, f"{draft.outputs[0]}_fill"))
    attrs = draft.without("pads", "paddings", "value")
    return draft.change(inputs=tuple(inputs), attrs=attrs)


def resize_10(draft: Draft, _out: Writer) -> Draft:
    """Opset 10 had no modes: coordinates were asymmetric, nearest rounded down."""
    fixed = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x, scales = draft.inputs
    return draft.change(inputs=(x, "", scales), attrs={**draft.attrs, **fixed}, version=13)


def resize(draft: Draft, out: Writer) -> Draft:
    """Empty constants stood for absent inputs before opset 13, and still do in old exports."""
    inputs = [
        "" if index and name in out.constants and not out.constants[name].size else name
        for index, name in enumerate(draft.inputs)
    ]
    if len(inputs) > 3 and inputs[3]:
        inputs[2] = ""
    while not inputs[-1]:
        inputs.pop()
    return draft.change(inputs=tuple(inputs))


def upsample(draft: Draft, out: Writer) -> Draft:
    """Upsample is a Resize with asymmetric coordinates."""
    attrs = draft.attrs
    if "height_scale" in attrs:
        scales = (1.0, 1.0, attrs["height_scale"], attrs["width_scale"])
    else:
        scales = attrs.get("scales", ())
    name = draft.input(1) or out.constant(scales, np.float32, f"{draft.outputs[0]}_scales")
    mode = {"bilinear": "linear"}.get(attrs.get("mode", "nearest"), attrs.get("mode", "nearest"))
    return resize_10(
        draft.change(op="Resize", inputs=(draft.inputs[0], name), attrs={"mode": mode}), out
    )


def scan_8(_draft: Draft, _out: Writer) -> Draft:
    """Opset 8 scanned a batch at once; the newest form has no batch axis."""
    raise Refusal("Scan of opset 8 has a batch axis; export the model with opset 9 or newer")


def slice_(draft: Draft, out: Writer) -> Draft:
    """Before opset 10 the ranges were attributes."""
    parts = [draft.attrs["starts"], draft.attrs["ends"]]
    if "axes" in draft.attrs:
        parts.append(draft.attrs["axes"])
    names = [
        out.constant(part, np.int64, f"{draft.outputs[0]}_{key}")
        for key, part in zip(("starts", "ends", "axes"), parts, strict=False)
    ]
    return draft.change(inputs=(draft.inputs[0], *names), attrs={})


def split(draft: Draft, _out: Writer) -> Draft:
    """Before opset 18 equal parts were implied by the number of outputs."""
    if draft.input(1) or "num_outputs" in draft.attrs:
        return draft
    return draft.change(attrs={**draft.attrs, "num_outputs": len(draft.outputs)})


def tile(draft: Draft, out: Writer) -> Draft:
    """Opset 1 repeated one axis."""
    rank = out.hints.rank(draft.inputs[0])
    tiles, axis = (out.constants.get(name) for name in draft.inputs[1:3])
    if rank is None or tiles is None or axis is None:
        raise Refusal("Tile of opset 1 needs constant operands; export with opset 6 or newer")
    repeats = np.ones(rank, np.int64)
    repeats[int(axis.reshape(-1)[0])] = int(tiles.reshape(-1)[0])
    name = out.constant(repeats, np.int64, f"{draft.outputs[0]}_repeats")
    return draft.change(inputs=(draft.inputs[0], name))


def dft(draft: Draft, out: Writer) -> Draft:
    """Opset 17 had the axis as an attribute, 1 when absent."""
    axis = out.constant(draft.attrs.get("axis", 1), np.int64, f"{draft.outputs[0]}_axis")
    inputs = (draft.inputs[0], draft.input(1), axis)
    return draft.change(inputs=inputs, attrs=draft.without("axis"))


def grid_sample(draft: Draft, _out: Writer) -> Draft:
    """Opset 20 renamed the modes."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = draft.attrs.get("mode", "bilinear")
    return draft.change(attrs={**draft.attrs, "mode": names.get(mode, mode)})


def renamed(op: str) -> Rewrite:
    """The same op under its newest name."""
    return lambda draft, _out: draft.change(op=op)


_BROADCAST = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Greater", "Less", "Pow")
_REDUCE = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSumSquare",
)  # fmt: skip
_CONSUMED = (
    "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor",
    "HardSigmoid", "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul",
    "Neg", "PRelu", "Reciprocal", "Relu", "Reshape", "Selu", "Sigmoid", "Sqrt", "Sub", "Sum",
    "Tanh",
)  # fmt: skip

_CHANGES: dict[str, tuple[tuple[int, Rewrite], ...]] = {
    **dict.fromkeys(_BROADCAST, ((7, broadcast),)),
    **{op: ((18, _to_input("axes", 1)),) for op in _REDUCE},
    "ReduceSum": ((13, _to_input("axes", 1)),),
    "Squeeze": ((13, _to_input("axes", 1)),),
    "Unsqueeze": ((13, _to_input("axes", 1)),),
    "PRelu": ((7, prelu),),
    "BatchNormalization": ((9, batch_normalization), (14, first_output_only)),
    "Cast": ((6, cast_by_name),),
    "Clip": ((11, clip),),
    "Concat": ((4, _default("axis", 1)),),
    "DFT": ((20, dft),),
    "Dropout": ((999, dropout),),
    "Gemm": ((7, _drop("broadcast")),),
    "GridSample": ((20, grid_sample),),
    "GroupNormalization": ((21, group_normalization),),
    "Softmax": ((13, flatten_softmax),),
    "LogSoftmax": ((13, flatten_softmax),),
    "Hardmax": ((13, flatten_softmax),),
    "LSTM": ((7, _drop("output_sequence")),),
    "GRU": ((7, _drop("output_sequence")),),
    "RNN": ((7, _drop("output_sequence")),),
    "GlobalLpPool": ((2, integer_p),),
    "LpPool": ((2, integer_p),),
    "Pad": ((11, pad),),
    "Reshape": ((5, _to_input("shape", 1)),),
    "Resize": ((11, resize_10), (999, resize)),
    "RoiAlign": ((16, _default("coordinate_transformation_mode", "output_half_pixel")),),
    "Scan": ((9, scan_8),),
    "Scatter": ((999, renamed("ScatterElements")),),
    "Selu": ((6, _default("alpha", 1.6732)), (6, _default("gamma", 1.0507))),
    "Slice": ((10, slice_),),
    "Split": ((13, _to_input("split", 1)), (18, split)),
    "Tile": ((6, tile),),
    "TopK": ((10, _to_input("k", 1)),),
    "Upsample": ((999, upsample), (999, resize)),
}

_NO_CHANGE: tuple[tuple[int, Rewrite], ...] = ()

TABLE = {
    op: ((6, _drop("consumed_inputs")),) * (op in _CONSUMED) + _CHANGES.get(op, _NO_CHANGE)
    for op in sorted({*_CHANGES, *_CONSUMED})
}


def newest(draft: Draft, out: Writer) -> Draft | None:
    """The newest form of a draft of the empty domain; None when its parts are written already."""
    current: Draft | None = draft
    for below, rewrite in TABLE.get(draft.op, _NO_CHANGE):
        if current is not None and current.version < below:
            current = rewrite(current, out)
    return current
