"""Random well-formed nodes of each op, with concrete inputs: what the type rules are tried on.

``PROBLEMS`` maps an op to a strategy of ``Problem``. Data inputs may get symbolic extents;
inputs with ``data`` are constants (shapes, axes, bounds), as in most models.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

Shape = tuple[int, ...]
_EQUATIONS = (
    "bij,bjk->bik", "ij,jk->ki", "bhqd,bhkd->bhqk", "btgi,gih->btgh", "ij->ji", "ij,ij->",
    "ijk->ik",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """One input: its shape and dtype, or its data when it is a constant."""

    shape: Shape
    dtype: str = "float32"
    data: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A node and its inputs; None is an absent optional input."""

    op: str
    operands: tuple[Operand | None, ...]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_outputs: int = 1


Draw = st.DrawFn


def shapes(low: int = 1, high: int = 4, largest: int = 6) -> st.SearchStrategy[Shape]:
    """Shapes of rank ``low`` to ``high`` with extents 1 to ``largest``."""
    return st.lists(st.integers(1, largest), min_size=low, max_size=high).map(tuple)


def ints(*values: int) -> Operand:
    """A constant vector of int64."""
    return Operand((len(values),), "int64", np.array(values, np.int64))


def scalar(value: int) -> Operand:
    """A constant int64 without axes."""
    return Operand((), "int64", np.array(value, np.int64))


@st.composite
def broadcast(draw: Draw, op: str, count: int = 2, dtypes: tuple[str, ...] = ()) -> Problem:
    full = draw(shapes(0, 4))
    operands = []
    for index in range(count):
        kept = draw(st.integers(0, len(full)))
        part = tuple(draw(st.sampled_from((1, e))) for e in full[len(full) - kept :])
        dtype = dtypes[index] if dtypes else "float32"
        operands.append(Operand(full if index == count - 1 else part, dtype))
    return Problem(op, tuple(operands))


@st.composite
def unary(draw: Draw, op: str, attrs: dict[str, Any] | None = None) -> Problem:
    return Problem(op, (Operand(draw(shapes(0))),), attrs or {})


def _window(draw: Draw, rank: int) -> dict[str, Any]:
    per_axis = st.integers(1, 3)
    attrs: dict[str, Any] = {"kernel_shape": tuple(draw(per_axis) for _ in range(rank))}
    attrs["strides"] = tuple(draw(per_axis) for _ in range(rank))
    attrs["dilations"] = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    auto = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto == "NOTSET":
        reach = [
            (k - 1) * d for k, d in zip(attrs["kernel_shape"], attrs["dilations"], strict=True)
        ]
        attrs["pads"] = tuple(draw(st.integers(0, min(r, 2))) for r in reach * 2)
    else:
        attrs["auto_pad"] = auto
        if auto != "VALID":
            attrs["dilations"] = (1,) * rank
    return attrs


@st.composite
def conv(draw: Draw, op: str = "Conv") -> Problem:
    rank, group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    attrs = {**_window(draw, rank), "group": group}
    spatial = tuple(draw(st.integers(5, 12)) for _ in range(rank))
    inner, outer = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = Operand((draw(st.integers(1, 3)), inner * group, *spatial))
    if op == "ConvTranspose":
        attrs["dilations"] = (1,) * rank
        attrs["pads"] = tuple(min(p, 1) for p in attrs.get("pads", (0,) * 2 * rank))
        if attrs.get("auto_pad", "NOTSET") != "NOTSET":
            del attrs["pads"]
            attrs["strides"] = tuple(
                min(s, k) for s, k in zip(attrs["strides"], attrs["kernel_shape"], strict=True)
            )
        w = Operand((inner * group, outer, *attrs["kernel_shape"]))
    else:
        w = Operand((outer * group, inner, *attrs["kernel_shape"]))
    return Problem(op, (x, w), attrs)


@st.composite
def pool(draw: Draw, op: str) -> Problem:
    rank = draw(st.integers(1, 3))
    attrs = _window(draw, rank)
    if attrs.get("auto_pad", "NOTSET") == "NOTSET":
        attrs["ceil_mode"] = draw(st.integers(0, 1))
        half = [min(p, attrs["kernel_shape"][i % rank] - 1) for i, p in enumerate(attrs["pads"])]
        attrs["pads"] = tuple(half)
    spatial = tuple(draw(st.integers(6, 12)) for _ in range(rank))
    x = Operand((draw(st.integers(1, 3)), draw(st.integers(1, 3)), *spatial))
    return Problem(op, (x,), attrs, draw(st.integers(1, 2)) if op == "MaxPool" else 1)


@st.composite
def reduce(draw: Draw, op: str) -> Problem:
    shape = draw(shapes(1))
    attrs = {"keepdims": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        return Problem(op, (Operand(shape),), attrs)
    chosen = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    axes = [axis - len(shape) * draw(st.integers(0, 1)) for axis in sorted(chosen)]
    return Problem(op, (Operand(shape), ints(*axes)), attrs)


@st.composite
def along(draw: Draw, op: str, attrs: dict[str, Any] | None = None) -> Problem:
    shape = draw(shapes(1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return Problem(op, (Operand(shape),), {**(attrs or {}), "axis": axis})


@st.composite
def matmul(draw: Draw) -> Problem:
    m, k, n = (draw(st.integers(1, 5)) for _ in range(3))
    batch = draw(shapes(0, 2))
    left = tuple(draw(st.sampled_from((1, e))) for e in batch)
    a = draw(st.sampled_from([(m, k), (k,), (*left, m, k)]))
    b = draw(st.sampled_from([(k, n), (k,), (*batch, k, n)]))
    return Problem("MatMul", (Operand(a), Operand(b)))


@st.composite
def gemm(draw: Draw) -> Problem:
    m, k, n = (draw(st.integers(1, 5)) for _ in range(3))
    attrs = {"transA": draw(st.integers(0, 1)), "transB": draw(st.integers(0, 1))}
    a = (k, m) if attrs["transA"] else (m, k)
    b = (n, k) if attrs["transB"] else (k, n)
    c = draw(st.sampled_from([None, Operand((n,)), Operand((1, n)), Operand((m, 1))]))
    return Problem("Gemm", (Operand(a), Operand(b), c) if c else (Operand(a), Operand(b)), attrs)


@st.composite
def reshape(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    target = list(draw(st.permutations(shape)))
    if len(target) > 1 and draw(st.booleans()):
        last = target.pop()
        target[-1] *= last
    if draw(st.booleans()):
        target[draw(st.integers(0, len(target) - 1))] = -1
    for axis, extent in enumerate(target):
        if axis < len(shape) and extent == shape[axis] and draw(st.booleans()):
            target[axis] = 0
    return Problem("Reshape", (Operand(shape), ints(*target)))


@st.composite
def squeeze(draw: Draw) -> Problem:
    shape = draw(shapes(1, 3))
    places = draw(st.sets(st.integers(0, len(shape)), min_size=1, max_size=2))
    full = list(shape)
    for place in sorted(places):
        full.insert(place, 1)
    return Problem("Squeeze", (Operand(tuple(full)), ints(*sorted(places))))


@st.composite
def unsqueeze(draw: Draw) -> Problem:
    shape = draw(shapes(0, 3))
    count = draw(st.integers(1, 2))
    rank = len(shape) + count
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=count, max_size=count, unique=True))
    signed = [axis - rank * draw(st.integers(0, 1)) for axis in axes]
    return Problem("Unsqueeze", (Operand(shape), ints(*signed)))


@st.composite
def transpose(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    attrs = {"perm": tuple(draw(st.permutations(range(len(shape)))))}
    return Problem("Transpose", (Operand(shape),), attrs if draw(st.booleans()) else {})


@st.composite
def slice_(draw: Draw) -> Problem:
    shape = draw(shapes(1, 3, 9))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    bound = st.one_of(st.integers(-12, 12), st.sampled_from([2**63 - 1, -(2**63) + 1]))
    # Below -extent, ONNX clamps to the first element and numpy, which the evaluator is, to none.
    starts = [max(draw(bound), -shape[axis]) for axis in axes]
    ends = [draw(bound) for _ in axes]
    steps = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in axes]
    signed = [axis - len(shape) * draw(st.integers(0, 1)) for axis in axes]
    return Problem(
        "Slice", (Operand(shape), ints(*starts), ints(*ends), ints(*signed), ints(*steps))
    )


@st.composite
def concat(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        part = list(shape)
        part[axis] = draw(st.integers(1, 5))
        parts.append(Operand(tuple(part)))
    return Problem("Concat", tuple(parts), {"axis": axis})


@st.composite
def split(draw: Draw) -> Problem:
    shape = list(draw(shapes(1)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    if draw(st.booleans()):
        parts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        shape[axis] = sum(parts)
        return Problem("Split", (Operand(tuple(shape)), ints(*parts)), {"axis": axis}, len(parts))
    count = draw(st.integers(1, 3))
    shape[axis] = draw(st.sampled_from([count, 2 * count, 3 * count - 1] if count > 1 else [1, 2]))
    return Problem("Split", (Operand(tuple(shape)),), {"axis": axis, "num_outputs": count}, count)


@st.composite
def pad(draw: Draw) -> Problem:
    shape = draw(shapes(1, 3))
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    pads = [draw(st.integers(0, 3)) for _ in range(2 * len(axes))]
    return Problem("Pad", (Operand(shape), ints(*pads), None, ints(*axes)), {"mode": "constant"})


@st.composite
def expand(draw: Draw) -> Problem:
    full = draw(shapes(1))
    kept = draw(st.integers(0, len(full)))
    part = tuple(draw(st.sampled_from((1, e))) for e in full[len(full) - kept :])
    asked = tuple(
        draw(st.sampled_from((1, e))) if i >= len(full) - kept and part[i - len(full)] == e else e
        for i, e in enumerate(full)
    )
    return Problem("Expand", (Operand(part), ints(*asked)))


@st.composite
def tile(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    return Problem("Tile", (Operand(shape), ints(*(draw(st.integers(0, 3)) for _ in shape))))


@st.composite
def gather(draw: Draw, op: str = "Gather") -> Problem:
    shape = draw(shapes(1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    if op == "GatherElements":
        return Problem(op, (Operand(shape), Operand(shape, "int64")), {"axis": axis})
    return Problem(op, (Operand(shape), Operand(draw(shapes(0, 2)), "int64")), {"axis": axis})


@st.composite
def gather_nd(draw: Draw) -> Problem:
    shape = draw(shapes(2))
    depth = draw(st.integers(1, len(shape)))
    indices = np.zeros((*draw(shapes(1, 2)), depth), np.int64)
    return Problem("GatherND", (Operand(shape), Operand(indices.shape, "int64", indices)))


@st.composite
def recurrent(draw: Draw, op: str) -> Problem:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    time, batch, width, hidden = (draw(st.integers(1, 4)) for _ in range(4))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    attrs = {"hidden_size": hidden, "direction": direction, "layout": draw(st.integers(0, 1))}
    x = (batch, time, width) if attrs["layout"] else (time, batch, width)
    operands = (
        Operand(x),
        Operand((d, gates * hidden, width)),
        Operand((d, gates * hidden, hidden)),
    )
    return Problem(op, operands, attrs, 3 if op == "LSTM" else 2)


@st.composite
def resize(draw: Draw) -> Problem:
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *draw(shapes(1, 2, 9)))
    attrs = {"mode": "nearest"}
    rank = len(shape) - 2
    if draw(st.booleans()):
        factors = [draw(st.sampled_from([0.5, 1.0, 2.0, 3.0, 1.25])) for _ in range(rank)]
        scales = np.array([1.0, 1.0, *factors], np.float32)
        return Problem(
            "Resize", (Operand(shape), None, Operand((rank + 2,), "float32", scales)), attrs
        )
    sizes = [draw(st.integers(1, 9)) for _ in range(rank)]
    attrs_with_axes = {**attrs, "axes": tuple(range(2, rank + 2))}
    return Problem("Resize", (Operand(shape), None, None, ints(*sizes)), attrs_with_axes)


@st.composite
def flatten(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    return Problem(
        "Flatten", (Operand(shape),), {"axis": draw(st.integers(-len(shape), len(shape)))}
    )


@st.composite
def top_k(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    k = draw(st.integers(1, shape[axis]))
    return Problem("TopK", (Operand(shape), ints(k)), {"axis": axis}, 2)


@st.composite
def one_hot(draw: Draw) -> Problem:
    shape = draw(shapes(1, 3))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    operands = (Operand(shape, "int64"), scalar(draw(st.integers(1, 5))), Operand((2,)))
    return Problem("OneHot", operands, {"axis": axis})


@st.composite
def normalization(draw: Draw, op: str) -> Problem:
    n, c = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    x = Operand((n, c, *draw(shapes(1, 2))))
    counts = {"BatchNormalization": 4, "InstanceNormalization": 2}[op]
    return Problem(op, (x, *(Operand((c,)) for _ in range(counts))))


@st.composite
def layer_normalization(draw: Draw) -> Problem:
    shape = draw(shapes(1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    attrs = {"axis": axis}
    return Problem(
        "LayerNormalization",
        (Operand(shape), Operand(shape[axis:])),
        attrs,
        draw(st.sampled_from([1, 3])),
    )


@st.composite
def space(draw: Draw, op: str) -> Problem:
    b = draw(st.integers(1, 3))
    n, c, h, w = (draw(st.integers(1, 3)) for _ in range(4))
    shape = (n, c * b * b, h, w) if op == "DepthToSpace" else (n, c, h * b, w * b)
    return Problem(op, (Operand(shape),), {"blocksize": b})


@st.composite
def range_(draw: Draw) -> Problem:
    numbers = [draw(st.integers(-9, 9)), draw(st.integers(-9, 9))]
    delta = draw(st.sampled_from([1, 2, 3, -1, -2]))
    return Problem("Range", (*(scalar(n) for n in numbers), scalar(delta)))


@st.composite
def einsum(draw: Draw) -> Problem:
    equation = draw(st.sampled_from(_EQUATIONS))
    extents = {letter: draw(st.integers(1, 4)) for letter in "abcdefghijkqt"}
    terms = equation.partition("->")[0].split(",")
    operands = tuple(Operand(tuple(extents[letter] for letter in term)) for term in terms)
    return Problem("Einsum", operands, {"equation": equation})


PROBLEMS: dict[str, st.SearchStrategy[Problem]] = {
    **{op: broadcast(op) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")},
    **{op: broadcast(op) for op in ("Equal", "Less", "LessOrEqual", "Greater")},
    **{op: unary(op) for op in ("Relu", "Erf", "Clip", "Sigmoid", "HardSwish", "Identity")},
    "Where": broadcast("Where", 3, ("bool", "float32", "float32")),
    "PRelu": broadcast("PRelu").map(lambda p: Problem("PRelu", p.operands[::-1])),
    "Cast": unary("Cast", {"to": 7}),
    "Shape": along("Size" ).map(lambda p: Problem("Shape", p.operands)),
    "Size": along("Size").map(lambda p: Problem("Size", p.operands)),
    "Conv": conv(), "ConvTranspose": conv("ConvTranspose"),
    **{op: pool(op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: unary(op).map(lambda p: Problem(p.op, (Operand((2, 3, *p.operands[0].shape)),)))  # type: ignore[union-attr]
       for op in ("GlobalAveragePool", "GlobalMaxPool")},
    **{op: reduce(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2",
                                 "ReduceLogSumExp", "ReduceProd")},
    **{op: along(op, {"keepdims": 0}) for op in ("ArgMax", "ArgMin")},
    **{op: along(op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    "MatMul": matmul(), "Gemm": gemm(), "Einsum": einsum(),
    "Reshape": reshape(), "Squeeze": squeeze(), "Unsqueeze": unsqueeze(), "Flatten": flatten(),
    "Transpose": transpose(), "Slice": slice_(), "Concat": concat(), "Split": split(),
    "Pad": pad(), "Expand": expand(), "Tile": tile(), "Gather": gather(),
    "GatherElements": gather("GatherElements"), "GatherND": gather_nd(),
    **{op: recurrent(op) for op in ("LSTM", "GRU", "RNN")},
    "Resize": resize(), "TopK": top_k(), "OneHot": one_hot(),
    "BatchNormalization": normalization("BatchNormalization"),
    "InstanceNormalization": normalization("InstanceNormalization"),
    "LayerNormalization": layer_normalization(),
    "DepthToSpace": space("DepthToSpace"), "SpaceToDepth": space("SpaceToDepth"),
    "Range": range_(),
}  # fmt: skip
