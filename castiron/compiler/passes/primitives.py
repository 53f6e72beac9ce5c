"""Rules that write an op with smaller ones: global pools, compound reductions, n-ary ops, Einsum,
blocks of pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from castiron.compiler.passes.rewriter import Answer, Rewriter, Rule, type_of
from castiron.graph.graph import Node, Shape
from castiron.graph.ops import matmul


def global_pool(rewriter: Rewriter, node: Node) -> Answer:
    """A reduction over all spatial axes."""
    shape = rewriter.shape(node.inputs[0])
    if shape is None:
        return None
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(node.op)
    if op is None:
        op = {1: "ReduceL1", 2: "ReduceL2"}.get(node.attr("p", 2))
    if op is None:
        return None
    attrs = {"axes": tuple(range(2, len(shape))), "keepdims": 1}
    if len(shape) == 2 and node.op != "GlobalLpPool":
        return node.inputs[0]
    if len(shape) == 2:
        return Node("Abs", node.inputs, node.outputs, {}, node.name)
    return Node(op, node.inputs, node.outputs, attrs, node.name)


def chain(rewriter: Rewriter, node: Node) -> Answer:
    """Max, Min, Sum and Mean of n inputs by twos."""
    op = {"Sum": "Add", "Mean": "Add"}.get(node.op, node.op)
    if len(node.inputs) == 1:
        return node.inputs[0]
    if len(node.inputs) == 2 and op == node.op:
        return None
    if node.op == "Mean" and not rewriter.is_float(node.inputs[0]):
        return None
    total = node.inputs[0]
    last = len(node.inputs) if node.op == "Mean" else len(node.inputs) - 1
    for value in node.inputs[1:last]:
        total = rewriter.add(op, (total, value), {}, node)
    if node.op != "Mean":
        return Node(op, (total, node.inputs[-1]), node.outputs, {}, node.name)
    dtype = type_of(rewriter, node.inputs[0]).dtype
    assert dtype is not None
    count = rewriter.constant(np.array(len(node.inputs), dtype.name), node)
    return Node("Div", (total, count), node.outputs, {}, node.name)


def reduction(rewriter: Rewriter, node: Node) -> Answer:
    """ReduceL1, L2, SumSquare, LogSum and LogSumExp as sums."""
    if "axes" not in node.attrs or len(node.inputs) != 1 or not node.attrs["axes"]:
        return None
    if not rewriter.is_float(node.inputs[0]) and node.op not in ("ReduceL1", "ReduceSumSquare"):
        return None
    x, attrs = node.inputs[0], dict(node.attrs)
    if node.op == "ReduceLogSumExp":
        return _log_sum_exp(rewriter, node, attrs)
    if node.op == "ReduceL1":
        x = rewriter.add("Abs", (x,), {}, node)
    elif node.op in ("ReduceL2", "ReduceSumSquare"):
        x = rewriter.add("Mul", (x, x), {}, node)
    last = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}.get(node.op)
    if last is None:
        return Node("ReduceSum", (x,), node.outputs, attrs, node.name)
    total = rewriter.add("ReduceSum", (x,), attrs, node)
    return Node(last, (total,), node.outputs, {}, node.name)


def _log_sum_exp(rewriter: Rewriter, node: Node, attrs: dict[str, Any]) -> Answer:
    """max + log(sum(exp(x - max))), the maximum kept finite so that infinities come out right."""
    dtype, out = type_of(rewriter, node.inputs[0]).dtype, rewriter.shape(node.outputs[0])
    if dtype is None or out is None:
        return None
    largest = np.array(np.finfo(dtype.name).max, dtype.name)
    low, high = rewriter.constant(-largest, node), rewriter.constant(largest, node)
    peak = rewriter.add("ReduceMax", node.inputs, {**attrs, "keepdims": 1}, node)
    peak = rewriter.add("Clip", (peak, low, high), {}, node)
    shifted = rewriter.add("Sub", (node.inputs[0], peak), {}, node)
    powers = rewriter.add("Exp", (shifted,), {}, node)
    total = rewriter.add("ReduceSum", (powers,), attrs, node)
    logarithm = rewriter.add("Log", (total,), {}, node)
    if not attrs["keepdims"]:
        peak = rewriter.add("Reshape", (peak,), {"shape": out}, node)
    return Node("Add", (logarithm, peak), node.outputs, {}, node.name)


def einsum(rewriter: Rewriter, node: Node) -> Answer:
    """One operand: transpose and sum. Two: batch, row, inner and column letters of a MatMul."""
    terms, out = matmul.parse_equation(node.attr("equation", ""), len(node.inputs))
    if out is None or any(len(set(term)) != len(term) for term in (*terms, out)):
        return None
    if any(letter not in "".join(terms) for letter in out):
        return None
    if len(terms) == 1:
        return _einsum_one(rewriter, node, terms[0], out)
    return _einsum_two(rewriter, node, terms, out) if len(terms) == 2 else None


def _einsum_one(rewriter: Rewriter, node: Node, term: str, out: str) -> Answer:
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in out)
    value, kept = node.inputs[0], "".join(letter for letter in term if letter in out)
    if axes:
        value = rewriter.add("ReduceSum", (value,), {"axes": axes, "keepdims": 0}, node)
    perm = tuple(kept.index(letter) for letter in out)
    return Node("Transpose", (value,), node.outputs, {"perm": perm}, node.name)


def _einsum_two(rewriter: Rewriter, node: Node, terms: list[str], out: str) -> Answer:
    left, right = terms
    shapes = [rewriter.shape(value) for value in node.inputs]
    if shapes[0] is None or shapes[1] is None:
        return None
    extents = [dict(zip(t, s, strict=True)) for t, s in zip(terms, shapes, strict=True) if s]
    if len(extents) != 2 or any(extents[0].get(c, e) != e for c, e in extents[1].items()):
        return None
    batch = "".join(c for c in out if c in left and c in right)
    inner = "".join(c for c in left if c in right and c not in out)
    rows = "".join(c for c in out if c in left and c not in right)
    columns = "".join(c for c in out if c in right and c not in left)
    alone = [c for c in left + right if c not in batch + inner + rows + columns]
    if alone or not inner:
        return None
    known = {**extents[0], **extents[1]}
    a = _grouped(rewriter, node, (node.inputs[0], left), (batch, rows, inner), known)
    b = _grouped(rewriter, node, (node.inputs[1], right), (batch, inner, columns), known)
    product = rewriter.add("MatMul", (a, b), {}, node)
    order = batch + rows + columns
    wide = {"shape": tuple(known[c] for c in order)}
    full = rewriter.add("Reshape", (product,), wide, node)
    perm = tuple(order.index(letter) for letter in out)
    return Node("Transpose", (full,), node.outputs, {"perm": perm}, node.name)


def _grouped(
    rewriter: Rewriter,
    node: Node,
    operand: tuple[str, str],
    groups: tuple[str, str, str],
    known: dict[str, Any],
) -> str:
    """The operand as (batch..., product of the second group, product of the third)."""
    value, term = operand
    order = "".join(groups)
    perm = tuple(term.index(letter) for letter in order)
    moved = rewriter.add("Transpose", (value,), {"perm": perm}, node)
    shape = [known[letter] for letter in groups[0]]
    for group in groups[1:]:
        total: Any = 1
        for letter in group:
            total = total * known[letter]
        shape.append(total)
    return rewriter.add("Reshape", (moved,), {"shape": tuple(shape)}, node)


def blocks(rewriter: Rewriter, node: Node) -> Answer:
    """DepthToSpace and SpaceToDepth as a transpose between two views."""
    shape, out = (rewriter.shape(value) for value in (node.inputs[0], node.outputs[0]))
    if shape is None or out is None or len(shape) != 4:
        return None
    block = int(node.attr("blocksize", 1))
    n, c, h, w = shape
    is_depth_first = node.attr("mode", "DCR") == "DCR"
    split: Shape
    if node.op == "SpaceToDepth":
        split = (n, c, out[2], block, out[3], block)
        perm = (0, 3, 5, 1, 2, 4) if is_depth_first else (0, 1, 3, 5, 2, 4)
    elif is_depth_first:
        split, perm = (n, block, block, out[1], h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, out[1], block, block, h, w), (0, 1, 4, 2, 5, 3)
    value = rewriter.add("Reshape", (node.inputs[0],), {"shape": split}, node)
    value = rewriter.add("Transpose", (value,), {"perm": perm}, node)
    return Node("Reshape", (value,), node.outputs, {"shape": out}, node.name)


RULES: dict[str, tuple[Rule, ...]] = {
    "GlobalAveragePool": (global_pool,), "GlobalMaxPool": (global_pool,),
    "GlobalLpPool": (global_pool,), "Max": (chain,),
    "Min": (chain,), "Sum": (chain,), "Mean": (chain,), "Einsum": (einsum,),
    "DepthToSpace": (blocks,), "SpaceToDepth": (blocks,),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
                     "ReduceLogSumExp"), (reduction,)),
}  # fmt: skip
