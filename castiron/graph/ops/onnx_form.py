"""The ONNX form of canonical nodes: sizes as tensor inputs again, for the reference evaluator.

``restore`` is the inverse of ``canonical.canonicalise`` in meaning; sizes that are symbolic come from
``DimsToTensor`` nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from castiron.graph.graph import Extent, Node
from castiron.graph.ops import reduction
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """A node in ONNX form, the constants it needs, and the nodes that write its sizes."""

    node: Node
    constants: dict[str, np.ndarray]
    sizes: tuple[Node, ...]


@dataclasses.dataclass(slots=True)
class _Inputs:
    """The tensor inputs that a canonical node gave up, by position."""

    node: Node
    constants: dict[str, np.ndarray]
    sizes: list[Node]
    names: dict[int, str]

    def ints(self, index: int, values: tuple[Extent, ...], scalar: bool = False) -> None:
        name = f"{self.node.outputs[0]}:{index}"
        self.names[index] = name
        if any(isinstance(item, dims.Dim) for item in values):
            shape = () if scalar else (len(values),)
            attrs = {"dims": values, "dtype": "int64", "shape": shape}
            self.sizes.append(Node("DimsToTensor", (), (name,), attrs, name))
        else:
            array = np.array(values, np.int64)
            self.constants[name] = array.reshape(()) if scalar else array

    def array(self, index: int, values: np.ndarray) -> None:
        name = f"{self.node.outputs[0]}:{index}"
        self.names[index] = name
        self.constants[name] = values


def restore(node: Node, dtype: dtypes.DType | None = None) -> Restored:
    """The ONNX form of a node; ``dtype`` is that of its data, needed for Pad's value."""
    given = _Inputs(node, {}, [], {})
    attrs = dict(node.attrs)
    inputs = list(node.inputs)
    put_back = _RESTORERS.get(node.op)
    if put_back is not None:
        inputs = put_back(given, attrs, inputs, dtype)
        for index, name in given.names.items():
            inputs += [""] * (index + 1 - len(inputs))
            inputs[index] = name
    onnx_node = dataclasses.replace(node, inputs=tuple(inputs), attrs=attrs)
    return Restored(onnx_node, given.constants, tuple(given.sizes))


def to_onnx(
    node: Node, dtype: dtypes.DType | None = None
) -> tuple[Node, dict[str, np.ndarray]] | None:
    """The ONNX form and the constants it needs; None where sizes are symbolic."""
    restored = restore(node, dtype)
    symbolic = any(_is_symbolic(value) for value in restored.node.attrs.values())
    if restored.sizes or symbolic or node.op == "DimsToTensor":
        return None
    return restored.node, restored.constants


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(isinstance(item, dims.Dim) for item in value)
    return isinstance(value, dims.Dim)


_Attrs = dict[str, Any]
_Restorer = Callable[[_Inputs, _Attrs, list[str], "dtypes.DType | None"], list[str]]


def _restore_ints(key: str, index: int) -> _Restorer:
    def put_back(
        given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
    ) -> list[str]:
        if key in attrs:
            given.ints(index, tuple(attrs.pop(key)))
        return inputs

    return put_back


def _restore_int(key: str, scalar: bool) -> _Restorer:
    def put_back(
        given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
    ) -> list[str]:
        if key in attrs:
            given.ints(1, (attrs.pop(key),), scalar)
        return inputs

    return put_back


def _restore_reshape(
    given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
) -> list[str]:
    if "shape" in attrs:
        given.ints(1, tuple(attrs.pop("shape")))
        attrs["allowzero"] = 1
    return inputs


def _restore_slice(
    given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
) -> list[str]:
    if "sizes" not in attrs:
        return inputs
    starts, steps, sizes = attrs.pop("starts"), attrs.pop("steps"), attrs.pop("sizes")
    ends: list[Extent] = []
    for start, step, count in zip(starts, steps, sizes, strict=True):
        end = dims.add(start, dims.mul(count, step))
        before_start = not isinstance(end, dims.Dim) and end < 0
        ends.append(-(1 << 62) if before_start or (step < 0 and end == -1) else end)
    given.ints(1, tuple(starts))
    given.ints(2, tuple(ends))
    given.ints(3, tuple(attrs.pop("axes")))
    given.ints(4, tuple(steps))
    return inputs


def _restore_pad(
    given: _Inputs, attrs: _Attrs, inputs: list[str], dtype: dtypes.DType | None
) -> list[str]:
    if "pads" not in attrs:
        return inputs
    given.ints(1, tuple(attrs.pop("pads")))
    if len(inputs) > 1:
        given.names[2] = inputs[1]
    value = attrs.pop("value", 0)
    if value and dtype is not None:
        given.array(2, np.array(value, dtype.name))
    return inputs[:1]


def _restore_range(
    given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
) -> list[str]:
    if "limit" in attrs:
        for index, key in enumerate(("start", "limit", "delta")):
            given.ints(index, (attrs.pop(key),), scalar=True)
        dtype = attrs.pop("dtype")
        given.constants = {k: v.astype(dtype) for k, v in given.constants.items()}
        given.sizes = [
            dataclasses.replace(n, attrs={**n.attrs, "dtype": dtype}) for n in given.sizes
        ]
    return inputs


def _restore_one_hot(
    given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
) -> list[str]:
    if "depth" in attrs:
        given.ints(1, (attrs.pop("depth"),), scalar=True)
        return [inputs[0], "", inputs[1]]
    return inputs


def _restore_resize(
    given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
) -> list[str]:
    if "sizes" not in attrs:
        return inputs
    sizes = tuple(attrs.pop("sizes"))
    if "roi" in attrs:
        given.array(1, np.array(attrs.pop("roi"), np.float32))
    if "scales" in attrs:
        given.array(2, np.array(attrs.pop("scales"), np.float32))
    else:
        given.ints(3, sizes)
    return inputs


def _restore_window(
    _given: _Inputs, attrs: _Attrs, inputs: list[str], _: dtypes.DType | None
) -> list[str]:
    if attrs.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        attrs.pop("pads", None)
    return inputs


_RESTORERS: dict[str, _Restorer] = {
    "Reshape": _restore_reshape,
    "Expand": _restore_ints("shape", 1),
    "ConstantOfShape": _restore_ints("shape", 0),
    "Tile": _restore_ints("repeats", 1),
    "Split": _restore_ints("split", 1),
    "Slice": _restore_slice,
    "Pad": _restore_pad,
    **dict.fromkeys(reduction.REDUCTIONS, _restore_ints("axes", 1)),
    "CumSum": _restore_int("axis", scalar=True),
    "Range": _restore_range,
    "TopK": _restore_int("k", scalar=False),
    "OneHot": _restore_one_hot,
    "Trilu": _restore_int("k", scalar=True),
    "Resize": _restore_resize,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
                    _restore_window),
}  # fmt: skip
