"""One graph body, the top one or a nested one, translated to canonical drafts.

A ``Translation`` holds what all bodies of a model share; ``body`` reads one GraphProto: its
initialisers, its nodes in dependency order, calls inlined, old forms made new. Problems are
collected and never raised, so that a refusal can list them all.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from castiron.loader import (
    external,
    onnx_check,
    onnx_contrib,
    onnx_draft,
    onnx_functions,
    onnx_hints,
    onnx_tensor,
    onnx_versions,
)
from castiron.loader.onnx_draft import Draft, Writer

Opsets = Mapping[str, int]


@dataclasses.dataclass(slots=True)
class Translation:
    """What all bodies share; ``problems`` grows while they are read."""

    folder: external.ExternalFolder
    functions: Mapping[onnx_functions.Key, onnx.FunctionProto]
    names: onnx_draft.Names
    hints: onnx_hints.Hints
    types: Mapping[str, str]
    problems: list[str] = dataclasses.field(default_factory=list)

    def read(self, tensor: onnx.TensorProto) -> np.ndarray:
        """The array of an attribute's tensor; ValueError when its data is bad."""
        return onnx_tensor.to_array(tensor, self.folder)

    def array(self, name: str, tensor: onnx.TensorProto | onnx.SparseTensorProto) -> np.ndarray:
        """The constant; a placeholder and a problem when its data is bad."""
        try:
            if isinstance(tensor, onnx.SparseTensorProto):
                return onnx_tensor.sparse_to_array(tensor, self.folder)
            return onnx_tensor.to_array(tensor, self.folder)
        except ValueError as error:
            self.problems.append(f"constant {name!r}: {error}")
            return np.zeros((), np.float32)


def body(
    graph: onnx.GraphProto,
    opsets: Opsets,
    shared: Translation,
    outer: Mapping[str, np.ndarray | None],
) -> Writer:
    """Translate one body; ``outer`` maps the visible outer values, constants to their arrays."""
    constants = {name: array for name, array in outer.items() if array is not None}
    writer = Writer(shared.names, shared.hints, constants)
    made = set(outer) | {info.name for info in graph.input}
    for name, array in _initialisers(graph, shared).items():
        if name in writer.constants and name not in outer:
            shared.problems.append(f"constant {name!r} is given twice")
        writer.constants[name] = array
        shared.hints.add_array(name, array)
    made |= set(writer.constants)
    reader = _Reader(shared, writer, set(made))
    for node in _ordered(graph.node, made, shared):
        reader.read(node, opsets, ())
    for name in outer:
        writer.constants.pop(name, None)
    return writer


def _initialisers(graph: onnx.GraphProto, shared: Translation) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for tensor in graph.initializer:
        if tensor.name in found:
            shared.problems.append(f"constant {tensor.name!r} is given twice")
        found[tensor.name] = shared.array(tensor.name, tensor)
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = shared.array(sparse.values.name, sparse)
    return found


def _ordered(
    nodes: Iterable[onnx.NodeProto], made: set[str], shared: Translation
) -> list[onnx.NodeProto]:
    """The nodes so that each value is made before it is read; stable; problems when impossible."""
    nodes = list(nodes)
    makers = _makers(nodes, made, shared)
    waiting: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        needs = set()
        for name in (*node.input, *onnx_draft.captured_names(node)):
            if name in makers:
                needs.add(makers[name])
            elif name and name not in made:
                shared.problems.append(f"{_label(node)} reads {name!r}, which nothing makes")
        waiting[index] = len(needs)
        for maker in needs:
            readers.setdefault(maker, []).append(index)
    order = _drain(waiting, readers)
    if len(order) < len(nodes):
        stuck = [_label(nodes[index]) for index in waiting if index not in set(order)]
        shared.problems.append(f"a cycle runs through {', '.join(stuck[:5])}")
    return [nodes[index] for index in order]


def _makers(nodes: list[onnx.NodeProto], made: set[str], shared: Translation) -> dict[str, int]:
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in makers or name in made):
                shared.problems.append(f"{_label(node)} makes {name!r}, which exists already")
            elif name:
                makers[name] = index
    return makers


def _drain(waiting: dict[int, int], readers: dict[int, list[int]]) -> list[int]:
    """Indices in dependency order, preferring the given order."""
    ready = [index for index, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    left = dict(waiting)
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    return order


def _label(node: onnx.NodeProto) -> str:
    return f"node {node.name or ', '.join(node.output)!r} ({node.op_type})"


class _Reader:
    """Reads the nodes of one body in order."""

    __slots__ = ("_shared", "_visible", "_writer")

    def __init__(self, shared: Translation, writer: Writer, visible: set[str]) -> None:
        self._shared = shared
        self._writer = writer
        self._visible = visible

    def read(
        self, node: onnx.NodeProto, opsets: Opsets, calls: tuple[onnx_functions.Key, ...]
    ) -> None:
        """One node, or the nodes of the function it calls."""
        key = onnx_functions.key_of(node)
        function = self._shared.functions.get(key)
        if key in calls:
            self._shared.problems.append(f"function {key[1]!r} calls itself")
        elif function is not None:
            imports = {**opsets, **_imports(function)}
            for part in onnx_functions.inline(node, function, self._shared.names):
                self._require(part.input, f"{_label(part)} in function {key[1]!r} reads")
                self._refuse_again(part, key[1])
                self.read(part, imports, (*calls, key))
            self._require(node.output, f"{_label(node)}: its function {key[1]!r} gives")
        else:
            self._read_op(node, opsets)
        self._visible.update(node.output)

    def _require(self, names: Iterable[str], what: str) -> None:
        """Nodes of a function must be in order; those of a graph are put in order."""
        for name in names:
            if name and name not in self._visible:
                self._shared.problems.append(f"{what} {name!r}, which nothing makes before")

    def _refuse_again(self, part: onnx.NodeProto, function: str) -> None:
        for name in part.output:
            if name and name in self._visible:
                self._shared.problems.append(
                    f"{_label(part)} in function {function!r} makes {name!r} a second time"
                )

    def _read_op(self, node: onnx.NodeProto, opsets: Opsets) -> None:
        problems = self._shared.problems
        domain = onnx_draft.normal_domain(node.domain)
        version = opsets.get(domain)
        if version is None and domain == "com.microsoft":
            version = 1
        if version is None:
            problems.append(f"{_label(node)}: no opset of its domain {domain!r} is imported")
            return
        try:
            draft = onnx_draft.from_proto(node, version, self._shared.read)
        except (ValueError, TypeError, MemoryError, OverflowError, AttributeError) as error:
            problems.append(f"{_label(node)}: an attribute cannot be read: {error}")
            return
        found = onnx_check.node_problems(draft, onnx_contrib.SUPPORTED, self._shared.types)
        found += onnx_check.attr_type_problems(node, draft)
        problems.extend(found)
        if not found:
            self._write(self._with_bodies(draft, opsets))

    def _with_bodies(self, draft: Draft, opsets: Opsets) -> Draft:
        attrs = {
            key: self._nested(value, opsets) if isinstance(value, onnx.GraphProto) else value
            for key, value in draft.attrs.items()
        }
        return draft.change(attrs=attrs)

    def _nested(self, graph: onnx.GraphProto, opsets: Opsets) -> onnx.GraphProto:
        """The body in canonical form, its constants as initialisers."""
        constants = self._writer.constants
        outer = {name: constants.get(name) for name in self._visible if name}
        shadowed = sorted(set(outer) & _declared(graph))
        if shadowed:
            known = {name: self._shared.names.fresh(name) for name in shadowed}
            graph = onnx_functions.rename_graph(graph, known)
        writer = body(graph, opsets, self._shared, outer)
        canonical = onnx.GraphProto(name=graph.name or "body")
        canonical.input.extend(graph.input)
        canonical.output.extend(graph.output)
        for name, array in writer.constants.items():
            canonical.initializer.append(numpy_helper.from_array(array, name))
        canonical.node.extend(onnx_draft.to_proto(draft) for draft in writer.drafts)
        return canonical

    def _write(self, draft: Draft) -> None:
        if draft.op == "Constant" and not draft.domain:
            self._write_constant(draft)
            return
        try:
            parts = onnx_contrib.TABLE.get(_full_name(draft))
            plain = parts(draft, self._writer) if parts else draft
            if plain is not None and not plain.domain:
                plain = onnx_versions.newest(plain, self._writer)
        except onnx_versions.Refusal as refusal:
            self._shared.problems.append(f"{draft.label}: {refusal}")
            return
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            problem = f"{draft.label}: operands do not fit the op ({error})"
            self._shared.problems.append(problem)
            return
        if plain is not None:
            version = onnx_draft.NEWEST.get(plain.domain, 1)
            self._writer.put(plain.change(version=version))

    def _write_constant(self, draft: Draft) -> None:
        name = draft.outputs[0]
        array = _constant_value(draft, self._shared)
        array.flags.writeable = False
        self._writer.constants[name] = array
        self._shared.hints.add_array(name, array)


def _declared(graph: onnx.GraphProto) -> set[str]:
    names = {info.name for info in graph.input} | {t.name for t in graph.initializer}
    names |= {out for node in graph.node for out in node.output if out}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def _imports(function: onnx.FunctionProto) -> dict[str, int]:
    return {onnx_draft.normal_domain(e.domain): e.version for e in function.opset_import}


def _full_name(draft: Draft) -> str:
    return f"{draft.domain}::{draft.op}" if draft.domain else draft.op


def _constant_value(draft: Draft, shared: Translation) -> np.ndarray:
    if len(draft.attrs) != 1:
        shared.problems.append(f"{draft.label}: expected one value, found {len(draft.attrs)}")
        return np.zeros((), np.float32)
    key, value = next(iter(draft.attrs.items()))
    if key == "sparse_value":
        return shared.array(draft.outputs[0], value)
    if key == "value":
        return np.asarray(value)
    kinds = {"value_float": np.float32, "value_floats": np.float32,
             "value_int": np.int64, "value_ints": np.int64}  # fmt: skip
    return np.asarray(value, dtype=kinds.get(key, object))
