"""Elementwise ops: type rules. Inputs broadcast as in numpy; what each computes is an ``Expr``.

Attrs: Cast ``to`` (ONNX dtype code); Mod ``fmod``; Clip takes min and max as inputs; activations
keep their ONNX attrs. ``Fused`` has ``expr`` over its inputs. BitShift and Gelu keep theirs.
Continue with ``expressions.py`` for the meaning of each as a tree.
"""

from __future__ import annotations

from castiron.graph.graph import Node, Shape, TensorType
from castiron.graph.ops import contents, expressions, rule
from castiron.graph.ops.rule import Ratio, Site, Types
from castiron.tensor import dtype as dtypes

expression_of = expressions.expression_of

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
LOGIC = ("And", "Or", "Xor")
ARITHMETIC = (
    "Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Sum", "Mean", "BitShift",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor",
)  # fmt: skip
UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu",
    "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan",
    "Tanh", "ThresholdedRelu",
)  # fmt: skip


def unary(at: Site) -> Types:
    """Same dtype and shape; Identity, Neg, Abs, Not keep contents, Floor and Ceil ratios."""
    kind = at.type(0)
    known = at.contents(0)
    op = at.node.op
    if known is not None and op == "Neg":
        known = contents.binary("Sub", (0,) * len(known), known, kind.shape or ())
    elif known is not None and op == "Not":
        known = contents.binary("Sub", (1,) * len(known), known, kind.shape or ())
    elif known is not None and op == "Abs":
        negative = contents.binary("Sub", (0,) * len(known), known, kind.shape or ())
        known = contents.binary("Max", known, negative or (), kind.shape or ())
    elif op != "Identity":
        known = None
    _unary_ratios(at)
    return (TensorType(kind.dtype, kind.shape, known),)


def _unary_ratios(at: Site) -> None:
    name = at.name(0)
    if at.node.op in ("Floor", "Ceil", "Identity") and name in at.ratios:
        found = [
            ratio if at.node.op == "Identity" else contents.rounded(at.node.op, ratio)
            for ratio in at.ratios[name]
        ]
        _keep_ratios(at, found)


def _keep_ratios(at: Site, found: list[Ratio | None]) -> None:
    known = tuple(ratio for ratio in found if ratio is not None)
    if len(known) == len(found):
        at.ratios[at.node.outputs[0]] = known


def dropout(at: Site) -> Types:
    """Data as it came, and a mask of the same shape."""
    kind = at.type(0)
    types = (TensorType(kind.dtype, kind.shape), TensorType(dtypes.BOOL, kind.shape))
    return types[: len(at.node.outputs)]


def clip(at: Site) -> Types:
    """The type of the data; bounds are scalars of the same dtype."""
    for index in (1, 2):
        shape = at.shape(index)
        if shape is not None and len(shape) > 0 and shape != (1,):
            at.fail(f"bounds must be scalars, found shape {shape}", index)
    return (TensorType(at.dtype(0), at.shape(0)),)


def is_nan(at: Site) -> Types:
    """IsNaN and IsInf: booleans of the same shape."""
    return (TensorType(dtypes.BOOL, at.shape(0)),)


def cast(at: Site) -> Types:
    """The shape with dtype ``to``; contents survive between integers and from exact floats."""
    like = at.node.op == "CastLike"
    dtype = at.dtype(1) if like else dtypes.from_onnx(int(at.attr("to", 0)))
    shape, known = at.shape(0), None
    ratios = contents.ratios_of(at, 0) if contents.is_small(shape) else None
    if dtype is not None and ratios is not None and dtype in (dtypes.INT64, dtypes.INT32):
        whole = [contents.rounded("Cast", ratio) for ratio in ratios]
        if all(item is not None for item in whole):
            known = tuple(item.numerator for item in whole if item is not None)
    elif dtype is dtypes.BOOL and at.contents(0) is not None:
        before = at.contents(0) or ()
        same = contents.binary("Equal", before, (0,) * len(before), shape or ())
        known = None if same is None else tuple(1 - rule.whole(item) for item in same)
    elif ratios is not None and dtype in (dtypes.FLOAT32, dtypes.FLOAT64):
        _keep_ratios(at, list(ratios))
    return (TensorType(dtype, shape, known),)


def binary(at: Site) -> Types:
    """Arithmetic: one dtype for all inputs, shapes broadcast (n inputs for Min, Max, Sum, Mean)."""
    dtype = _common_dtype(at)
    shape = _broadcast(at)
    return (TensorType(dtype, shape, _binary_contents(at, shape, dtype)),)


def prelu(at: Site) -> Types:
    """The type of the data, to which the slope broadcasts."""
    x, slope = at.shape(0), at.shape(1)
    if x is not None and slope is not None:
        if len(slope) > len(x):
            at.fail(f"the slope has rank {len(slope)}, more than the data", 1)
        for extent, wide in zip(reversed(slope), reversed(x), strict=False):
            if extent != 1:
                at.check(extent, wide, "the slope must broadcast to the data")
    return (TensorType(at.dtype(0), x),)


def compare(at: Site) -> Types:
    """Comparisons and logic: booleans of the broadcast shape."""
    _common_dtype(at)
    shape = _broadcast(at)
    return (TensorType(dtypes.BOOL, shape, _binary_contents(at, shape, dtypes.BOOL)),)


def where(at: Site) -> Types:
    """The dtype of both branches, the broadcast shape of all three inputs."""
    shape = _broadcast(at)
    known = None
    parts = [at.contents(index) for index in range(3)]
    if contents.is_small(shape) and shape is not None:
        present = [part for part in parts if part is not None]
        if len(present) == 3:
            known = contents.where(present, shape)
    return (TensorType(at.dtype(1) or at.dtype(2), shape, known),)


def fused(at: Site) -> Types:
    """castiron's own: the dtype of the expression, the broadcast shape of the inputs."""
    return (TensorType(dtypes.named(at.attr("expr").dtype), _broadcast(at)),)


def _common_dtype(at: Site) -> dtypes.DType | None:
    found = [at.dtype(index) for index in range(len(at.node.inputs)) if at.has(index)]
    known = [dtype for dtype in found if dtype is not None]
    if len(set(known)) > 1 and at.node.op not in ("Pow", "BitShift"):
        at.fail(f"expected inputs of one dtype, found {', '.join(map(str, known))}")
    return at.dtype(0) if at.node.op == "Pow" else (known[0] if known else None)


def _broadcast(at: Site) -> Shape | None:
    return rule.broadcast_shapes(at, [at.shape(i) for i in range(len(at.node.inputs))])


def _binary_contents(
    at: Site, shape: Shape | None, dtype: dtypes.DType | None
) -> contents.Contents | None:
    if not contents.is_small(shape) or shape is None or len(at.node.inputs) != 2:
        return None
    if dtype is not None and dtype.is_float:
        _binary_ratios(at, shape)
        return None
    left, right = at.contents(0), at.contents(1)
    if left is None or right is None or at.attr("fmod", 0):
        return None
    return contents.binary(at.node.op, left, right, shape)


def _binary_ratios(at: Site, shape: Shape) -> None:
    left, right = contents.ratios_of(at, 0), contents.ratios_of(at, 1)
    if left is None or right is None:
        return
    pairs = zip(*contents.stretch([left, right], shape), strict=True)
    _keep_ratios(at, [contents.ratio_binary(at.node.op, a, b) for a, b in pairs])


def is_elementwise(node: Node) -> bool:
    """Whether the op works element by element on broadcast inputs."""
    return node.op in _NAMES


_NAMES = frozenset(
    (*UNARY, *ARITHMETIC, *COMPARISONS, *LOGIC, "Where", "Cast", "CastLike", "Clip", "IsNaN", "PRelu",
     "IsInf", "Dropout", "Fused")
)  # fmt: skip
