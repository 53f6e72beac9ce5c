"""ScatterElements and ScatterND: the data copied, then changed at indices, in order.

Negative indices count from the end; an index outside is moved to the nearest inside. Updates are
applied one after the other by one thread, because the same place may be hit twice.
"""

from __future__ import annotations

import dataclasses

from castiron.compiler.codegen import step, vectors
from castiron.compiler.codegen.kernels import gather, strided
from castiron.compiler.codegen.kernels.strided import Axis
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

OPS = ("ScatterElements", "ScatterND")
_REDUCED_DTYPES = ("float32", "float64", "int32", "int64")


def gap(node: Node, graph: Graph) -> str | None:
    """None for integer indices, and for reductions of the dtypes with arithmetic here."""
    for value in node.inputs:
        kind = graph.types[value]
        if kind.shape is None or kind.dtype is None or not kind.dtype.size_bytes:
            return f"{node.op} of a value whose rank or element size is not known"
    if graph.dtype(node.inputs[1]).name not in ("int32", "int64"):
        return f"{node.op} with indices of dtype {graph.dtype(node.inputs[1])}"
    if isinstance(graph.shape(node.inputs[1])[-1], dims.Dim) and node.op == "ScatterND":
        return "ScatterND with index tuples of unknown length"
    reduction = node.attr("reduction", "none")
    if reduction not in ("none", "add", "mul", "min", "max"):
        return f"{node.op} with reduction {reduction}"
    dtype = graph.dtype(node.inputs[0])
    if reduction != "none" and dtype.name not in _REDUCED_DTYPES:
        return f"{node.op} with reduction {reduction} of dtype {dtype}"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """A copy, then the updates."""
    shape, size = graph.shape(node.inputs[0]), graph.dtype(node.inputs[0]).size_bytes
    strides = strided.strides_of(shape, size)
    axes = [Axis(*each) for each in zip(shape, strides, strides, strict=True)]
    read, write = step.Read(node.inputs[0]), step.Write(node.outputs[0])
    name = node.name or node.op
    copy = strided.copy_step(name, write, read, axes, size, target)
    copy = dataclasses.replace(copy, in_place=((0, 1),))
    build = _elements if node.op == "ScatterElements" else _tuples
    return step.Lowered(steps=(copy, build(node, graph, target)))


def _combined(f: Function, reduction: str, old: Value, new: Value) -> Value:
    if reduction == "add":
        return old + new
    if reduction == "mul":
        return old * new
    if vectors.is_float(old):
        return {"min": vectors.minimum, "max": vectors.maximum}[reduction](f, old, new)
    return {"min": f.minimum, "max": f.maximum}[reduction](old, new)


def _operands(node: Node) -> tuple[step.Write | step.Read, ...]:
    reads = (step.Read(node.inputs[1]), step.Read(node.inputs[2]))
    return (step.Write(node.outputs[0]), *reads)


def _element(dtype: dtypes.DType, reduction: str) -> str:
    return strided.MOVES[dtype.size_bytes] if reduction == "none" else dtype.llvm


def _update(f: Function, reduction: str, element: str, places: tuple[Value, Value]) -> None:
    """Change the element at the first place by the one at the second."""
    place, update = places
    value = f.load(element, update)
    if reduction != "none":
        value = _combined(f, reduction, f.load(element, place), value)
    f.store(value, place)


def _elements(node: Node, graph: Graph, target: Target) -> step.Step:
    walk = gather.element_walk(node, graph, 0)
    dtype, reduction = graph.dtype(node.inputs[0]), node.attr("reduction", "none")
    element = _element(dtype, reduction)
    symbol = f"scatter_elements_{reduction}_{element}_{walk.index_size}_r{walk.outer}"
    module = Module(target)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to, indices, updates = (f.argument(args, n, PTR) for n in range(3))
    at = gather.walk_elements(f, walk, 3, (updates, to, indices))
    odometer, start = at.rows()
    with f.when(at.extent > 0), f.loop(begin, end, carry=start) as unit:
        with f.loop(0, at.row) as turn:
            update, place = at.element(unit.carried[-1], unit.index, turn.index)
            _update(f, reduction, element, (place, update))
        unit.update(odometer.following(unit.carried))
    f.return_()
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=_operands(node),
        params=walk.params,
        units=walk.units,
        grain=0,
        bytes_moved=dims.mul(dims.mul(walk.units, walk.row), 3 * walk.size),
    )


def _tuples(node: Node, graph: Graph, target: Target) -> step.Step:
    data, indices = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    dtype, reduction = graph.dtype(node.inputs[0]), node.attr("reduction", "none")
    depth, index_size = int(str(indices[-1])), graph.dtype(node.inputs[1]).size_bytes
    row = dims.product(list(data[depth:]))
    strides = strided.strides_of(data, dtype.size_bytes)
    params: list[Extent] = [row]
    for extent, stride in zip(data[:depth], strides[:depth], strict=True):
        params += [extent, stride]
    symbol = f"scatter_rows_{reduction}_{_element(dtype, reduction)}_{depth}x{index_size}"
    units = dims.product(list(indices[:-1]))
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, _tuples_text(symbol, node, (depth, index_size, dtype), target)),
        operands=_operands(node),
        params=tuple(params),
        units=units,
        grain=0,
        bytes_moved=dims.mul(dims.mul(units, row), 3 * dtype.size_bytes),
    )


def _tuples_text(
    symbol: str, node: Node, form: tuple[int, int, dtypes.DType], target: Target
) -> str:
    depth, index_size, dtype = form
    reduction, size = node.attr("reduction", "none"), dtype.size_bytes
    module = Module(target)
    copy = strided.copier(module) if reduction == "none" else None
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to, indices, updates = (f.argument(args, n, PTR) for n in range(3))
    row = f.argument(args, 3)
    axes = [(f.argument(args, 4 + 2 * n), f.argument(args, 5 + 2 * n)) for n in range(depth)]
    has_data = f.const(True, "i1")
    for extent, _stride in axes:
        has_data = has_data & (extent > 0)
    with f.when(has_data), f.loop(begin, end) as unit:
        place, first = to, f.offset(indices, unit.index * (depth * index_size))
        for n, (extent, stride) in enumerate(axes):
            at = gather.index_at(f, f.offset(first, n * index_size), index_size, extent)
            place = f.offset(place, at * stride)
        update = f.offset(updates, unit.index * row * size)
        if copy:
            f.call(copy, [place, update, row * size])
        else:
            with f.loop(f.const(0, I64), row) as turn:
                here = (f.offset(place, turn.index * size), f.offset(update, turn.index * size))
                _update(f, reduction, dtype.llvm, here)
    f.return_()
    return module.text()
