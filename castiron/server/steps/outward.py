"""Tensors to an application's values: the output side of a contract's schema, ready to run.

Needs numpy alone. What is small runs on the event loop, the rest in a step process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from castiron import errors
from castiron.contract import model, steps
from castiron.server.steps import boxes, ctc, folder, ranking
from castiron.server.steps.place import Place

Arrays = Mapping[str, np.ndarray]
Act = Callable[[Any, Place | None], Any]

# Values of outputs that steps get through in about a millisecond. Those that are shown one by one
# cost as much as so many that are only looked through.
_LIGHT_VALUES = 1 << 19
_SHOWN = 32


class Outward:
    """All entries of the output side."""

    __slots__ = ("_chains", "_has_boxes")

    def __init__(self, contract: model.Contract, found: folder.Folder) -> None:
        """Read labels and character sets. Raises ContractError."""
        self._chains = [
            (entry, [_act(step, found) for step in entry.steps]) for entry in entries_of(contract)
        ]
        every = [step for entry in contract.schema.output for step in entry.steps]
        self._has_boxes = any(isinstance(step, steps.Nms) for step in every)

    @property
    def tensors(self) -> list[str]:
        """The model's outputs that are looked at."""
        return list(dict.fromkeys(entry.tensor for entry, _ in self._chains))

    def is_light(self, outputs: Arrays) -> bool:
        """Whether ``run`` is so quick that it may hold up the event loop."""
        if self._has_boxes:
            return False
        weights = [(entry.tensor, 1 if acts else _SHOWN) for entry, acts in self._chains]
        return sum(outputs[name].size * weight for name, weight in weights) <= _LIGHT_VALUES

    def run(self, outputs: Arrays, place: Place | None) -> dict[str, Any]:
        """Values by name, of what JSON has: lists, objects, text, numbers."""
        found: dict[str, Any] = {}
        for entry, acts in self._chains:
            value: Any = outputs[entry.tensor]
            for act in acts:
                value = act(value, place)
            found[entry.name] = _ENDS.get(entry.kind, _plain)(value, entry)
        return found


def entries_of(contract: model.Contract) -> tuple[model.Entry, ...]:
    """Those of the contract; where it has none, each tensor as it is."""
    return contract.schema.output or tuple(
        model.Entry(name=tensor.name, kind="tensor", tensor=tensor.name)
        for tensor in contract.output
    )


def _act(step: steps.Step, found: folder.Folder) -> Act:
    match step:
        case steps.Softmax():
            return lambda value, _: ranking.softmax(value, step)
        case steps.Sigmoid():
            return lambda value, _: ranking.sigmoid(value)
        case steps.TopK():
            return lambda value, _: ranking.top_k(value, step)
        case steps.Labels() | steps.BoxLabels():
            names = found.names(step)
            return lambda value, _: ranking.named(value, names)
        case steps.JoinText():
            return lambda value, _: ranking.joined(value, step)
        case steps.Nms():
            return lambda value, place: boxes.suppress(value, step, place)
        case steps.CtcText():
            letters = folder.characters(found, step)
            return lambda value, _: ctc.text(value, letters, step.blank)
        case steps.CtcScore():
            return lambda value, _: ctc.score(value, step)
        case _:
            op = steps.OP_OF[type(step)]
            raise errors.ContractError("schema.output", [f"{op} makes nothing out of a tensor"])


def _plain(value: Any, entry: model.Entry) -> Any:
    """Rankings, boxes and text are ready; an array that no step took is shown as it is."""
    if not isinstance(value, np.ndarray):
        return value
    if entry.kind == "text":
        texts = [_text(item) for item in value.reshape(-1).tolist()]
        return " ".join(texts)
    return _array(value)


def _text(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def _array(value: np.ndarray) -> dict[str, Any]:
    items = [_number(item) for item in value.reshape(-1).tolist()]
    return {"shape": list(value.shape), "data": items}


def _number(item: Any) -> Any:
    if isinstance(item, bytes):
        return _text(item)
    return ranking.as_number(item) if isinstance(item, float) else item


def _scalar(value: Any, entry: model.Entry) -> Any:
    if value.size != 1:
        raise errors.CastironError(
            f"{entry.name}: expected one value from the model, found {list(value.shape)}"
        )
    return _number(value.reshape(-1).tolist()[0])


def _flag(value: Any, entry: model.Entry) -> Any:
    return bool(_scalar(value, entry))


def _table(value: Any, entry: model.Entry) -> Any:
    width = len(entry.columns)
    if value.ndim < 2 or value.shape[-1] != width or math.prod(value.shape[:-2]) != 1:
        raise errors.CastironError(
            f"{entry.name}: expected rows of {width} from the model, found {list(value.shape)}"
        )
    rows = value.reshape(value.shape[-2:]).tolist()
    return [[_number(item) for item in row] for row in rows]


_ENDS: dict[str, Callable[[Any, model.Entry], Any]] = {
    "number": _scalar,
    "flag": _flag,
    "table": _table,
}
