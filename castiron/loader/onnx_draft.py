"""Drafts: ONNX nodes as plain records while the loader rewrites them, and the writer of them.

A draft is one node with Python attribute values. A ``Writer`` collects the drafts and constants
of one graph body. ``onnx_rewrite`` turns old drafts into new ones; ``onnx`` makes the Graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from castiron.loader import onnx_hints

_KIND = onnx.AttributeProto

# The newest version of each domain, which every draft has once it is canonical.
NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": helper.VERSION_TABLE[-1][3],
    "ai.onnx.preview": 1,
    "ai.onnx.preview.training": 1,
    "com.microsoft": 1,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """One node: ``attrs`` holds ints, floats, strs, tuples, arrays and GraphProtos (bodies)."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    domain: str = ""
    version: int = NEWEST[""]

    def input(self, index: int) -> str:
        """The input's value, ``""`` when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def without(self, *names: str) -> dict[str, Any]:
        """The attributes but those named."""
        return {key: value for key, value in self.attrs.items() if key not in names}

    def change(self, **changes: Any) -> Draft:
        """The draft with some fields replaced."""
        return dataclasses.replace(self, **changes)

    @property
    def label(self) -> str:
        """How messages name the node: ``node 'conv1' (Conv, version 11)``."""
        full = f"{self.domain}::{self.op}" if self.domain else self.op
        name = self.name or next((out for out in self.outputs if out), "")
        return f"node {name!r} ({full}, opset {self.version})"


class Names:
    """All names of a model, so that fresh ones are new everywhere, bodies included."""

    __slots__ = ("_taken", "_uses")

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._uses: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """``hint`` with a number that makes it new."""
        name = hint
        while not name or name in self._taken:
            self._uses[hint] = self._uses.get(hint, 0) + 1
            name = f"{hint}_{self._uses[hint]}"
        self._taken.add(name)
        return name


class Writer:
    """Collects the canonical drafts and the constants of one graph body, in order.

    ``constants`` begins with what outer bodies hold, so that rewrites can look them up.
    """

    __slots__ = ("constants", "drafts", "hints", "names")

    def __init__(
        self,
        names: Names,
        hints: onnx_hints.Hints,
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.names = names
        self.hints = hints
        self.drafts: list[Draft] = []
        self.constants: dict[str, np.ndarray] = dict(constants or {})

    def constant(self, value: Any, dtype: Any, hint: str) -> str:
        """A new constant; returns its name."""
        name = self.names.fresh(hint)
        self.constants[name] = np.asarray(value, dtype=dtype)
        return name

    def put(self, draft: Draft) -> None:
        """Append a finished draft."""
        self.drafts.append(draft)

    def make(self, op: str, inputs: Sequence[str], near: Draft, **attrs: Any) -> str:
        """Append a new node whose one output gets a name near ``near``'s; returns that name."""
        out = self.names.fresh(f"{near.outputs[0] or near.name}_{op.lower()}")
        self.put(Draft(op, tuple(inputs), (out,), attrs, name=f"{near.name or out}_{op.lower()}"))
        return out


Reader = Callable[[onnx.TensorProto], np.ndarray]


def from_proto(node: onnx.NodeProto, version: int, read: Reader) -> Draft:
    """The draft of a NodeProto, tensors through ``read``; ValueError on a bad attribute."""
    return Draft(
        op=node.op_type,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attrs={attr.name: attr_value(attr, read) for attr in node.attribute},
        name=node.name,
        domain=normal_domain(node.domain),
        version=version,
    )


def normal_domain(domain: str) -> str:
    """``ai.onnx`` is another spelling of the empty domain."""
    return "" if domain == "ai.onnx" else domain


def attr_value(attr: onnx.AttributeProto, read: Reader) -> Any:
    """The Python value: int, float, str, tuple, array, or a body as GraphProto."""
    kind = attr.type
    if kind == _KIND.TENSOR:
        return read(attr.t)
    if kind == _KIND.STRING:
        return _text(attr.s)
    if kind == _KIND.STRINGS:
        return tuple(_text(item) for item in attr.strings)
    if kind in (_KIND.GRAPH, _KIND.INT, _KIND.FLOAT):
        return helper.get_attribute_value(attr)
    if kind in (_KIND.INTS, _KIND.FLOATS):
        return tuple(helper.get_attribute_value(attr))
    if kind == _KIND.TENSORS:
        return tuple(read(item) for item in attr.tensors)
    if kind in (_KIND.SPARSE_TENSOR, _KIND.TYPE_PROTO):
        return helper.get_attribute_value(attr)
    raise ValueError(f"attribute {attr.name!r} has the unsupported type {kind}")


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def to_proto(draft: Draft) -> onnx.NodeProto:
    """The NodeProto of a draft, attributes typed as the op's schema says."""
    node = onnx.NodeProto(
        op_type=draft.op, domain=draft.domain, name=draft.name,
        input=draft.inputs, output=draft.outputs,
    )  # fmt: skip
    kinds = attr_kinds(draft.op, draft.domain)
    for key, value in draft.attrs.items():
        node.attribute.append(_attribute(key, value, kinds.get(key)))
    return node


def attr_kinds(op: str, domain: str) -> dict[str, int]:
    """The attribute types of the op's newest schema; empty for an op without a schema."""
    try:
        schema = onnx.defs.get_schema(op, NEWEST.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return {}
    return {key: kind_code(attr) for key, attr in schema.attributes.items()}


def kind_code(attr: Any) -> int:
    """The AttributeProto type number of a schema's attribute (an enum that has no stub)."""
    return int(attr.type.value)


def _attribute(key: str, value: Any, kind: int | None) -> onnx.AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(key, numpy_helper.from_array(value))
    if isinstance(value, tuple) and value and isinstance(value[0], np.ndarray):
        return helper.make_attribute(key, [numpy_helper.from_array(item) for item in value])
    if isinstance(value, tuple):
        return helper.make_attribute(key, list(value), attr_type=kind)
    if kind == _KIND.FLOAT:
        return helper.make_attribute(key, float(value))
    return helper.make_attribute(key, value)


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs among the attributes of a node."""
    found = []
    for attr in node.attribute:
        if attr.type == _KIND.GRAPH:
            found.append(attr.g)
        found.extend(attr.graphs)
    return found


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Every value name that occurs in a graph or in a body inside it."""
    names = {info.name for info in (*graph.input, *graph.output)}
    names |= {tensor.name for tensor in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
        for body in bodies(node):
            names |= all_names(body)
    return names


def captured_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """The outer values that the bodies of a node read, in order of first use."""
    found: dict[str, None] = {}
    for body in bodies(node):
        found.update(dict.fromkeys(_free_names(body)))
    return tuple(found)


def _free_names(graph: onnx.GraphProto) -> list[str]:
    known = {""} | {info.name for info in graph.input}
    known |= {tensor.name for tensor in graph.initializer}
    known |= {sparse.values.name for sparse in graph.sparse_initializer}
    free: dict[str, None] = {}
    for node in graph.node:
        reads = (*node.input, *captured_names(node))
        free.update(dict.fromkeys(name for name in reads if name not in known))
        known.update(node.output)
    free.update(dict.fromkeys(out.name for out in graph.output if out.name not in known))
    return list(free)
