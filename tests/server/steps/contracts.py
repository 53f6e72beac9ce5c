"""Contracts for tests, from the few lines that differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from castiron.contract import document, model
from castiron.server.steps import folder

PICTURE = """
name = "m"
input = [{ name = "x", datatype = "FP32", shape = ["n", 3, 8, 8] }]
output = [{ name = "y", datatype = "FP32", shape = ["n", 3] }]

[[schema.input]]
name = "image"
kind = "image"
tensor = "x"
steps = [{ op = "decode_image" }, { op = "resize", height = 8, width = 8 }, { op = "normalise" }]

[[schema.output]]
name = "labels"
kind = "labels"
tensor = "y"
steps = [{ op = "top_k", k = 2 }, { op = "labels", names = ["a", "b", "c"] }]
"""


def of(
    *entries: model.Entry, tensors: dict[str, tuple[str, tuple[Any, ...]]] | None = None
) -> model.Contract:
    """A contract with these input entries, over inputs of these datatypes and shapes."""
    known = {"x": ("FP32", (1, 4))} if tensors is None else tensors
    inputs = tuple(model.Tensor(name, kind, shape) for name, (kind, shape) in known.items())
    return model.Contract("m", input=inputs, schema=model.Schema(input=entries))


def giving(
    *entries: model.Entry, datatype: str = "FP32", shape: tuple[Any, ...] = (1, 3)
) -> model.Contract:
    """A contract with these output entries, over one output ``y``."""
    outputs = (model.Tensor("y", datatype, shape),)
    return model.Contract("m", output=outputs, schema=model.Schema(output=entries))


def picture(**changes: Any) -> model.Contract:
    """The contract of pictures, its input entry changed."""
    contract = document.parse(PICTURE)
    entry = dataclasses.replace(contract.schema.input[0], **changes)
    return dataclasses.replace(
        contract, schema=dataclasses.replace(contract.schema, input=(entry,))
    )


NOWHERE = folder.Folder(Path("nowhere"))
