"""Products of matrices: MatMul, Gemm, MatMulInteger, QLinearMatMul, Einsum, Attention.

MatMul batches over leading axes as numpy does; Gemm is alpha * op(A) op(B) + beta * C with attrs
``alpha``, ``beta``, ``transA``, ``transB``. Einsum keeps its ``equation``; simplify turns the
two-operand ones without repeated letters into Transpose, Reshape and MatMul.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import rule
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes


def matmul(at: Site) -> Types:
    """(batch..., m, n) with the dtype of the operands."""
    return (TensorType(at.dtype(0), _product_shape(at, 0, 1)),)


def matmul_integer(at: Site) -> Types:
    """As MatMul, accumulated in int32."""
    return (TensorType(dtypes.INT32, _product_shape(at, 0, 1)),)


def qlinear_matmul(at: Site) -> Types:
    """As MatMul, with the dtype of the output's zero point."""
    return (TensorType(at.dtype(7), _product_shape(at, 0, 3)),)


def _product_shape(at: Site, left: int, right: int) -> Shape | None:
    a, b = at.rank_at_least(left, 1), at.rank_at_least(right, 1)
    if a is None or b is None:
        return None
    rows: Shape = tuple(a[-2:-1])
    columns: Shape = tuple(b[-1:]) if len(b) > 1 else ()
    inner = b[-2] if len(b) > 1 else b[0]
    at.check(a[-1], inner, "the inner extents of the product must agree")
    batch = rule.broadcast_shapes(at, [tuple(a[:-2]), tuple(b[:-2])])
    assert batch is not None
    return (*batch, *rows, *columns)


def gemm(at: Site) -> Types:
    """(m, n)."""
    a, b = at.rank_at_least(0, 2), at.rank_at_least(1, 2)
    if a is None or b is None:
        return (TensorType(at.dtype(0), None),)
    if len(a) != 2 or len(b) != 2:
        at.fail("expected two matrices")
    m, k = (a[1], a[0]) if at.attr("transA", 0) else (a[0], a[1])
    k2, n = (b[1], b[0]) if at.attr("transB", 0) else (b[0], b[1])
    at.check(k, k2, "the inner extents of the product must agree")
    addend = at.shape(2)
    if addend is not None:
        pairs = zip(reversed(addend), (n, m), strict=False)
        for extent, target in pairs:
            if extent != 1:
                at.check(extent, target, "C must broadcast to the product")
    return (TensorType(at.dtype(0), (m, n)),)


def einsum(at: Site) -> Types:
    """The shape that the equation's right side names."""
    terms, out = parse_equation(at.attr("equation", ""), len(at.node.inputs))
    shapes = [at.shape(index) for index in range(len(terms))]
    if out is None or any(shape is None for shape in shapes):
        return (TensorType(at.dtype(0), None),)
    extents: dict[str, Extent] = {}
    for index, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        if len(term) != len(shape or ()):
            at.fail(f"equation: term {term!r} has {len(term)} axes", index)
        for letter, extent in zip(term, shape or (), strict=True):
            known = extents.get(letter, 1)
            extents[letter] = rule.broadcast_extent(at, known, extent)
    return (TensorType(at.dtype(0), tuple(extents[letter] for letter in out)),)


def parse_equation(equation: str, count: int) -> tuple[list[str], str | None]:
    """Terms and right side; None for equations with an ellipsis or the wrong number of terms."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if "." in text or len(terms) != count:
        return terms, None
    if not arrow:
        letters = sorted(set(left) - {","})
        right = "".join(letter for letter in letters if left.count(letter) == 1)
    return terms, right


def attention(at: Site) -> Types:
    """Y as Q with the head size of V; present key and value grow by the past's length."""
    q, k, v = at.rank_at_least(0, 3), at.rank_at_least(1, 3), at.rank_at_least(2, 3)
    count = len(at.node.outputs)
    if q is None or k is None or v is None:
        return (TensorType(at.dtype(0), None),) * count
    heads: Extent
    kv_heads: Extent
    if len(q) == 3:
        heads, kv_heads = int(at.attr("q_num_heads", 1)), int(at.attr("kv_num_heads", 1))
        head, v_head = dims.floordiv(k[2], kv_heads), dims.floordiv(v[2], kv_heads)
        out: Shape = (q[0], q[1], dims.mul(v_head, heads))
        rows, columns = q[1], k[1]
    else:
        heads, kv_heads, head, v_head = q[1], k[1], k[3], v[3]
        out = (*q[:3], v_head)
        rows, columns = q[2], k[2]
    past = at.shape(4)
    total = dims.add(columns, past[2]) if past is not None else columns
    kinds = (
        TensorType(at.dtype(0), out),
        TensorType(at.dtype(1), (q[0], kv_heads, total, head)),
        TensorType(at.dtype(2), (q[0], kv_heads, total, v_head)),
        TensorType(at.dtype(0), (q[0], heads, rows, total)),
    )
    return kinds[:count]
