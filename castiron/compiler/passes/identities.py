"""Rules that make nodes vanish or merge: what does nothing, what undoes itself, what is a view."""

from __future__ import annotations

import numpy as np

from castiron.compiler.passes.rewriter import Answer, Rewriter, Rule, type_of, uniform
from castiron.graph.graph import Extent, Node
from castiron.graph.ops import elementwise
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

_INVOLUTIONS = ("Neg", "Not", "BitwiseNot")
_IDEMPOTENT = ("Abs", "Relu", "Floor", "Ceil", "Round", "Sign")


def same_value(_: Rewriter, node: Node) -> Answer:
    """Identity."""
    return node.inputs[0]


def dropout(rewriter: Rewriter, node: Node) -> Answer:
    """At inference the data pass; a mask that is read is all true. Training mode stays."""
    if any(node.inputs[2:]) and uniform(rewriter, node.inputs[2]) != 0:
        return None
    if len(node.outputs) > 1 and node.outputs[1]:
        shape = rewriter.shape(node.inputs[0])
        if rewriter.uses[node.outputs[1]] and shape is None:
            return None
        if rewriter.uses[node.outputs[1]]:
            true = rewriter.constant(np.array(True), node)
            rewriter.emit(Node("Expand", (true,), node.outputs[1:2], {"shape": shape}, node.name))
    return node.inputs[0]


def cast(rewriter: Rewriter, node: Node) -> Answer:
    """To the dtype that the data have; of a cast that lost nothing."""
    dtype = type_of(rewriter, node.inputs[0]).dtype
    wanted = type_of(rewriter, node.outputs[0]).dtype
    if dtype is not None and dtype is wanted:
        return node.inputs[0]
    inner = rewriter.makers.get(node.inputs[0])
    if inner is None or inner.op != "Cast" or dtype is None or node.op != "Cast":
        return None
    before = type_of(rewriter, inner.inputs[0]).dtype
    return _with_inputs(node, inner.inputs) if before and _is_lossless(before, dtype) else None


def _is_lossless(before: dtypes.DType, after: dtypes.DType) -> bool:
    """Whether every value of the one dtype is a value of the other."""
    if dtypes.STRING in (before, after) or dtypes.BFLOAT16 in (before, after):
        return False
    rounds = before.is_integer and before.size_bytes == 8 and after.is_float
    return not rounds and bool(np.can_cast(before.name, after.name, "safe"))


def reshape(rewriter: Rewriter, node: Node) -> Answer:
    """To the same shape; of a reshape; of a whole tensor that keeps its extents."""
    if "shape" not in node.attrs:
        return None
    if rewriter.shape(node.inputs[0]) == node.attrs["shape"]:
        return node.inputs[0]
    inner = rewriter.makers.get(node.inputs[0])
    if inner is not None and inner.op == "Reshape" and "shape" in inner.attrs:
        return _with_inputs(node, inner.inputs)
    return None


def _with_inputs(node: Node, inputs: tuple[str, ...]) -> Node:
    return Node(node.op, inputs, node.outputs, node.attrs, node.name)


def transpose(rewriter: Rewriter, node: Node) -> Answer:
    """In the order that is; of a transpose; of extents of 1 only, which is a view."""
    perm = node.attr("perm")
    shape = rewriter.shape(node.inputs[0])
    if perm is None or shape is None:
        return None
    if perm == tuple(range(len(perm))):
        return node.inputs[0]
    inner = rewriter.makers.get(node.inputs[0])
    if inner is not None and inner.op == "Transpose" and inner.attr("perm") is not None:
        joined = tuple(inner.attrs["perm"][axis] for axis in perm)
        return Node("Transpose", inner.inputs, node.outputs, {"perm": joined}, node.name)
    wide = [axis for axis in perm if shape[axis] != 1]
    if wide == sorted(wide):
        target = {"shape": tuple(shape[axis] for axis in perm)}
        return Node("Reshape", node.inputs[:1], node.outputs, target, node.name)
    return None


def to_same_shape(rewriter: Rewriter, node: Node) -> Answer:
    """Expand, Tile, Pad or Resize that leaves every extent as it is."""
    shape = rewriter.shape(node.inputs[0])
    if shape is None or shape != rewriter.shape(node.outputs[0]):
        return None
    key, neutral = {"Expand": ("shape", None), "Tile": ("repeats", 1), "Pad": ("pads", 0),
                    "Resize": ("sizes", None)}[node.op]  # fmt: skip
    values = node.attr(key)
    if values is None or any(value != neutral for value in values if neutral is not None):
        return None
    if node.op == "Resize" and (
        node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
        or any(scale != 1 for scale in node.attr("scales") or ())
    ):
        return None
    return node.inputs[0]


def concat(rewriter: Rewriter, node: Node) -> Answer:
    """Of one input; inputs of extent 0 add nothing; a concat along the same axis joins."""
    axis = node.attr("axis")
    inputs: list[str] = []
    for value in node.inputs:
        shape = rewriter.shape(value)
        inner = rewriter.maker(value, "Concat")
        if shape is not None and axis is not None and shape[axis] == 0:
            continue
        if inner is not None and inner.attr("axis") == axis:
            inputs += inner.inputs
        else:
            inputs.append(value)
    if not inputs:
        return node.inputs[0]
    if len(inputs) == 1:
        return inputs[0]
    return None if tuple(inputs) == node.inputs else _with_inputs(node, tuple(inputs))


def split(_: Rewriter, node: Node) -> Answer:
    """Into one part."""
    return node.inputs[0] if len(node.outputs) == 1 else None


def undo(rewriter: Rewriter, node: Node) -> Answer:
    """Neg of Neg and the like, Abs of Abs and the like."""
    inner = rewriter.makers.get(node.inputs[0])
    if inner is None or inner.op != node.op:
        return None
    return inner.inputs[0] if node.op in _INVOLUTIONS else node.inputs[0]


def neutral(rewriter: Rewriter, node: Node) -> Answer:
    """x + 0, x - 0, x * 1, x / 1, x ** 1, when the constant does not widen x."""
    number = 0.0 if node.op in ("Add", "Sub") else 1.0
    sides = ((0, 1), (1, 0)) if node.op in ("Add", "Mul") else ((0, 1),)
    for data, other in sides:
        value = node.inputs[data]
        shape = rewriter.shape(value)
        same = shape is not None and shape == rewriter.shape(node.outputs[0])
        if same and uniform(rewriter, node.inputs[other]) == number:
            return value
    return None


def merge_constants(rewriter: Rewriter, node: Node) -> Answer:
    """(x + a) + b is x + (a + b), likewise for Sub, Mul and Div of floats by constants."""
    found = _constant_operand(rewriter, node)
    if found is None:
        return None
    value, number = found
    family = "Add" if node.op in ("Add", "Sub") else "Mul"
    for op in ("Add", "Sub") if family == "Add" else ("Mul", "Div"):
        inner = rewriter.maker(value, op)
        before = _constant_operand(rewriter, inner) if inner is not None else None
        if before is None:
            continue
        total = before[1] + number if family == "Add" else before[1] * number
        dtype = type_of(rewriter, node.outputs[0]).dtype
        if dtype is None or not np.isfinite(total).all():
            return None
        merged = total.astype(dtype.name)
        name = rewriter.constant(merged, node)
        return Node(family, (before[0], name), node.outputs, {}, node.name)
    return None


def _constant_operand(rewriter: Rewriter, node: Node) -> tuple[str, np.ndarray] | None:
    """(x, a) such that the node is x + a or x * a, with a in float64."""
    if len(node.inputs) != 2 or not rewriter.is_float(node.outputs[0]):
        return None
    sides = ((0, 1), (1, 0)) if node.op in ("Add", "Mul") else ((0, 1),)
    for data, other in sides:
        array = rewriter.constants.get(node.inputs[other])
        if array is None or node.inputs[data] in rewriter.constants or array.size > 1 << 16:
            continue
        number = array.astype(np.float64)
        if node.op == "Sub":
            return node.inputs[data], -number
        if node.op != "Div":
            return node.inputs[data], number
        return (node.inputs[data], 1.0 / number) if (number != 0).all() else None
    return None


def divide_exactly(rewriter: Rewriter, node: Node) -> Answer:
    """x / 2**k is x * 2**-k; then as ``merge_constants``."""
    array = rewriter.constants.get(node.inputs[1])
    if array is None or array.size == 0 or not rewriter.is_float(node.outputs[0]):
        return None
    mantissa, exponent = np.frexp(np.abs(array.astype(np.float64)))
    if not ((mantissa == 0.5) & (np.abs(exponent) < 12)).all():
        return None
    name = rewriter.constant((1.0 / array.astype(np.float64)).astype(array.dtype), node)
    return Node("Mul", (node.inputs[0], name), node.outputs, {}, node.name)


def without_expand(rewriter: Rewriter, node: Node) -> Answer:
    """An elementwise op that would broadcast anyway reads what was expanded."""
    if len(node.inputs) < 2:
        return None
    out = rewriter.shape(node.outputs[0])
    for index, value in enumerate(node.inputs):
        inner = rewriter.makers.get(value)
        if inner is None or inner.op not in ("Expand", "ConstantOfShape") or out is None:
            continue
        source = _before_expand(rewriter, inner, node)
        inputs = (*node.inputs[:index], source, *node.inputs[index + 1 :])
        if _plain_broadcast(rewriter, inputs) == out:
            return Node(node.op, inputs, node.outputs, node.attrs, node.name, node.origin)
    return None


def _before_expand(rewriter: Rewriter, inner: Node, node: Node) -> str:
    if inner.op == "Expand":
        return inner.inputs[0]
    value = inner.attr("value")
    filled = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    return rewriter.constant(filled, node)


def _plain_broadcast(rewriter: Rewriter, inputs: tuple[str, ...]) -> tuple[Extent, ...] | None:
    """The broadcast shape where every pair of extents is equal or 1, else None."""
    shapes = [rewriter.shape(value) for value in inputs if value]
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(len(shape) for shape in known)
    result: list[Extent] = [1] * rank
    for shape in known:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if result[axis] == 1:
                result[axis] = extent
            elif extent not in (1, result[axis]):
                return None
    return tuple(result)


def where(rewriter: Rewriter, node: Node) -> Answer:
    """A condition that is the same everywhere, or two branches that are one."""
    if node.inputs[1] == node.inputs[2]:
        same = rewriter.shape(node.inputs[1]) == rewriter.shape(node.outputs[0])
        return node.inputs[1] if same and rewriter.shape(node.inputs[1]) is not None else None
    condition = uniform(rewriter, node.inputs[0])
    if condition is None:
        return None
    chosen = node.inputs[1] if condition else node.inputs[2]
    same = rewriter.shape(chosen) is not None
    return chosen if same and rewriter.shape(chosen) == rewriter.shape(node.outputs[0]) else None


def reduce(rewriter: Rewriter, node: Node) -> Answer:
    """A reduction over extents of 1 only moves data."""
    shape, axes = rewriter.shape(node.inputs[0]), node.attr("axes")
    out = rewriter.shape(node.outputs[0])
    if shape is None or out is None or not axes or len(node.inputs) != 1:
        return None
    if any(isinstance(shape[axis], dims.Dim) or shape[axis] != 1 for axis in axes):
        return None
    return Node("Reshape", node.inputs, node.outputs, {"shape": out}, node.name)


def gather(rewriter: Rewriter, node: Node) -> Answer:
    """At constant positions one after the other: a slice, and a view for a scalar position."""
    shape, positions = rewriter.shape(node.inputs[0]), rewriter.constants.get(node.inputs[1])
    out = rewriter.shape(node.outputs[0])
    if shape is None or out is None or positions is None or positions.size == 0:
        return None
    if positions.ndim > 1 or type_of(rewriter, node.inputs[0]).dtype is dtypes.STRING:
        return None
    axis = node.attr("axis", 0)
    extent = shape[axis]
    numbers = [int(item) for item in positions.reshape(-1)]
    first = numbers[0]
    if any(number != first + i for i, number in enumerate(numbers)) or (first < 0) != (
        numbers[-1] < 0
    ):
        return None
    start = dims.add(first, extent) if first < 0 else first
    if not isinstance(extent, dims.Dim) and not 0 <= numbers[-1] % max(extent, 1) < extent:
        return None
    attrs = {"axes": (axis,), "starts": (start,), "steps": (1,), "sizes": (len(numbers),)}
    if positions.ndim == 1:
        return Node("Slice", node.inputs[:1], node.outputs, attrs, node.name)
    cut = rewriter.add("Slice", node.inputs[:1], attrs, node)
    return Node("Reshape", (cut,), node.outputs, {"shape": out}, node.name)


def view_of_pad(rewriter: Rewriter, node: Node) -> Answer:
    """A view that only adds or drops extents of 1 comes before the Pad, so that Pad meets Conv."""
    inner = rewriter.maker(node.inputs[0], "Pad")
    target = node.attr("shape")
    if inner is None or target is None or inner.attr("pads") is None:
        return None
    before, after = rewriter.shape(inner.inputs[0]), rewriter.shape(node.inputs[0])
    if before is None or after is None:
        return None
    pads, rank = inner.attrs["pads"], len(after)
    wide = [axis for axis, extent in enumerate(after) if extent != 1]
    places = [axis for axis, extent in enumerate(target) if extent != 1]
    narrow = [pads[axis] or pads[axis + rank] for axis in range(rank) if axis not in wide]
    if [after[axis] for axis in wide] != [target[axis] for axis in places] or any(narrow):
        return None
    shape, moved = list(target), [0] * (2 * len(target))
    for axis, place in zip(wide, places, strict=True):
        shape[place] = before[axis]
        moved[place], moved[place + len(target)] = pads[axis], pads[axis + rank]
    view = rewriter.add("Reshape", inner.inputs[:1], {"shape": tuple(shape)}, node)
    attrs = {**inner.attrs, "pads": tuple(moved)}
    return Node("Pad", (view, *inner.inputs[1:]), node.outputs, attrs, node.name)


def pad_into_window(rewriter: Rewriter, node: Node) -> Answer:
    """A Pad by zeros before a Conv, or before an AveragePool that counts padding, is its padding."""
    inner = rewriter.makers.get(node.inputs[0])
    pads, own = (inner.attr("pads") if inner is not None else None), node.attr("pads")
    if inner is None or inner.op != "Pad" or not pads or not own or "auto_pad" in node.attrs:
        return None
    if node.op == "AveragePool" and (node.attr("ceil_mode") or not node.attr("count_include_pad")):
        return None
    rank = len(pads) // 2
    around, others = (*pads[2:rank], *pads[rank + 2 :]), (*pads[:2], *pads[rank : rank + 2])
    if any(isinstance(item, dims.Dim) or item < 0 for item in (*around, *others)) or any(others):
        return None
    if inner.attr("mode") != "constant" or len(inner.inputs) > 1 or inner.attr("value", 0) != 0:
        return None
    attrs = {**node.attrs, "pads": tuple(dims.add(a, b) for a, b in zip(own, around, strict=True))}
    return Node(node.op, (inner.inputs[0], *node.inputs[1:]), node.outputs, attrs, node.name)


RULES: dict[str, tuple[Rule, ...]] = {
    "Conv": (pad_into_window,), "AveragePool": (pad_into_window,),
    "Identity": (same_value,), "Dropout": (dropout,), "Cast": (cast,), "CastLike": (cast,),
    "Reshape": (reshape, view_of_pad), "Transpose": (transpose,), "Expand": (to_same_shape,),
    "Tile": (to_same_shape,), "Pad": (to_same_shape,), "Resize": (to_same_shape,),
    "Concat": (concat,), "Split": (split,), **dict.fromkeys(_INVOLUTIONS, (undo,)),
    **dict.fromkeys(_IDEMPOTENT, (undo,)), "Add": (neutral, merge_constants),
    "Sub": (neutral, merge_constants), "Mul": (neutral, merge_constants),
    "Div": (neutral, merge_constants, divide_exactly), "Pow": (neutral,), "Where": (where,),
    "Gather": (gather,),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), (reduce,)),
}  # fmt: skip


def rules_for(node: Node) -> tuple[Rule, ...]:
    """The rules for a node's op, in the order to try them."""
    found = RULES.get(node.op, ())
    return (*found, without_expand) if elementwise.is_elementwise(node) else found
