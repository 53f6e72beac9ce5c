"""JSON Schema (draft 2020-12) of a model's requests and replies, tensors and applications' values.

It says what the server accepts and sends in JSON (docs/protocol.md), as far as a schema can:
that lists are as long as their shape says is left to the server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from castiron.contract import model
from castiron.tensor import dtype as dtypes

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MOST_IN_BATCH = 1024
_MAX_DIM = (1 << 31) - 1
_SPECIAL = {"nan": ("NaN",), "infinity": ("Infinity", "-Infinity")}

Schema = dict[str, Any]


def document(contract: model.Contract) -> Schema:
    """All schemas of a contract in one document; a request of the protocol is its root."""
    found: Schema = {"$schema": DIALECT, "title": f"{contract.name}: requests and replies"}
    found["$ref"] = "#/$defs/InferRequest"
    found["$defs"] = definitions(contract, "#/$defs/")
    return found


def definitions(contract: model.Contract, root: str) -> dict[str, Schema]:
    """Schemas by name that refer to each other below ``root``."""
    found = {
        "InferRequest": _request(contract, root),
        "InferReply": _reply(contract, root),
        "BatchRequest": _batch_request(root),
        "BatchReply": _batch_reply(root),
        "Error": error(),
    }
    for side, tensors in (("Input", contract.input), ("Output", contract.output)):
        for index, tensor in enumerate(tensors):
            values = f"{root}{side}{index}Values"
            found[f"{side}{index}"] = _tensor(tensor, values, side)
            found[f"{side}{index}Values"] = _values(tensor, values)
    if contract.schema.input:
        found["ApplicationRequest"] = _application(contract.schema.input)
    if contract.schema.output:
        found["ApplicationReply"] = _application(contract.schema.output)
    return found


def error() -> Schema:
    """The one error body."""
    return {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string", "description": "PATH: expected, found"}},
    }


def _request(contract: model.Contract, root: str) -> Schema:
    outputs = [tensor.name for tensor in contract.output]
    asked = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"enum": outputs},
            "parameters": _parameters({"binary_data": {"type": "boolean"}}),
        },
    }
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": _parameters({
                "binary_data_output": {"type": "boolean"},
                "timeout": {"type": "integer", "minimum": 0, "description": "microseconds"},
            }),
            "inputs": _each(root, "Input", contract.input) | _all_of(contract.input),
            "outputs": {"type": ["array", "null"], "items": asked, "maxItems": len(outputs)},
        },
    }  # fmt: skip


def _reply(contract: model.Contract, root: str) -> Schema:
    outputs = _each(root, "Output", contract.output)
    outputs["minItems"] = min(1, len(contract.output))
    return {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"const": contract.name},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": outputs,
        },
    }


def _batch_request(root: str) -> Schema:
    """Many requests in one call."""
    each = {"$ref": f"{root}InferRequest"}
    listed = {"type": "array", "minItems": 1, "maxItems": MOST_IN_BATCH, "items": each}
    return _record({"requests": listed})


def _batch_reply(root: str) -> Schema:
    """What became of each, in the same order."""
    refused = error()
    refused["required"].append("status")
    refused["properties"] |= {
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "retry_after_ms": {"type": "integer", "minimum": 0},
    }
    items = {"anyOf": [{"$ref": f"{root}InferReply"}, refused]}
    return _record({"responses": {"type": "array", "items": items}})


def _each(root: str, side: str, tensors: Sequence[model.Tensor]) -> Schema:
    """A list of tensors in any order."""
    kinds = [{"$ref": f"{root}{side}{index}"} for index in range(len(tensors))]
    found: Schema = {"type": "array", "minItems": len(tensors), "maxItems": len(tensors)}
    if kinds:
        found["items"] = kinds[0] if len(kinds) == 1 else {"oneOf": kinds}
    return found


def _all_of(tensors: Sequence[model.Tensor]) -> Schema:
    """No input may be missing."""
    each = [{"contains": {"properties": {"name": {"const": tensor.name}}}} for tensor in tensors]
    return {"allOf": each} if each else {}


def _parameters(known: dict[str, Schema]) -> Schema:
    return {"type": ["object", "null"], "properties": known}


def _tensor(tensor: model.Tensor, values: str, side: str) -> Schema:
    size = {"binary_data_size": {"type": "integer", "minimum": 0}}
    found: Schema = {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": tensor.datatype},
            "shape": _shape(tensor),
            "parameters": _parameters(size),
            "data": {"$ref": values},
        },
        "oneOf": [
            {"required": ["data"]},
            {
                "required": ["parameters"],
                "properties": {
                    "parameters": {"type": "object", "required": ["binary_data_size"]},
                },
            },
        ],
    }  # fmt: skip
    if tensor.description:
        found["description"] = tensor.description
    if side == "Output":
        found["description"] = tensor.description or f"output {tensor.name}"
    return found


def _shape(tensor: model.Tensor) -> Schema:
    most = tensor.max_dims or (0,) * len(tensor.shape)
    dims: list[Schema] = [
        {"const": dim}
        if isinstance(dim, int)
        else {"type": "integer", "minimum": 0, "maximum": limit or _MAX_DIM, "title": dim}
        for dim, limit in zip(tensor.shape, most, strict=True)
    ]
    found: Schema = {"type": "array", "minItems": len(dims), "maxItems": len(dims)}
    return found | {"prefixItems": dims} if dims else found


def _values(tensor: model.Tensor, itself: str) -> Schema:
    """Values flat, or nested as the shape."""
    value = _value(tensor)
    if len(tensor.shape) < 2:
        return {"type": "array", "items": value}
    return {"type": "array", "items": {"anyOf": [value, {"$ref": itself}]}}


def _value(tensor: model.Tensor) -> Schema:
    dtype = dtypes.from_oip(tensor.datatype)
    assert dtype is not None, "contracts are reviewed before"
    if dtype is dtypes.BOOL:
        return _allowed({"type": "boolean"}, tensor)
    if dtype is dtypes.STRING:
        return _allowed({"type": "string"}, tensor)
    if dtype.is_integer:
        return _allowed({"type": "integer"} | _span(_integer_span(dtype, tensor)), tensor)
    number = _allowed({"type": "number"} | _span(tensor.range), tensor)
    words = [
        word
        for policy, shown in _SPECIAL.items()
        if getattr(tensor, policy) == "allow"
        for word in shown
    ]
    return {"anyOf": [number, {"enum": words}]} if words else number


def _integer_span(dtype: dtypes.DType, tensor: model.Tensor) -> tuple[float, float]:
    bits = 8 * dtype.size_bytes
    low, high = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    )
    least, most = tensor.range or (low, high)
    return max(low, least), min(high, most)


def _span(span: tuple[float, float] | None) -> Schema:
    found: Schema = {}
    for key, bound in zip(("minimum", "maximum"), span or (), strict=False):
        if math.isfinite(bound):
            found[key] = bound
    return found


def _allowed(schema: Schema, tensor: model.Tensor) -> Schema:
    return schema | {"enum": list(tensor.allowed)} if tensor.allowed else schema


def _application(entries: Sequence[model.Entry]) -> Schema:
    properties = {entry.name: _entry(entry) for entry in entries}
    required = [entry.name for entry in entries if not entry.optional]
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def _entry(entry: model.Entry) -> Schema:
    found = _KINDS[entry.kind](entry)
    return found | {"description": entry.description} if entry.description else found


def _text(entry: model.Entry) -> Schema:
    text: Schema = {"type": "string"}
    if entry.max_chars is not None:
        text["maxLength"] = entry.max_chars
    if entry.values:
        text["enum"] = list(entry.values)
    if not entry.languages:
        return text
    return _record({"text": text, "language": {"enum": list(entry.languages)}})


def _image(entry: model.Entry) -> Schema:
    found: Schema = {"type": "string", "contentEncoding": "base64"}
    if len(entry.formats) == 1:
        found["contentMediaType"] = f"image/{entry.formats[0]}"
    return found


def _table(entry: model.Entry) -> Schema:
    columns = [
        {"title": column.name, "type": "number"} | _span(column.range) for column in entry.columns
    ]
    row: Schema = {"type": "array", "minItems": len(columns), "maxItems": len(columns)}
    if columns:
        row["prefixItems"] = columns
    found: Schema = {"type": "array", "items": row}
    return found | {"maxItems": entry.max_rows} if entry.max_rows else found


def _labels(_: model.Entry) -> Schema:
    return {"type": "array", "items": _record(dict(_RANKED))}


def _boxes(_: model.Entry) -> Schema:
    box = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}
    return {"type": "array", "items": _record({"box": box, **_RANKED})}


def _array(_: model.Entry) -> Schema:
    dims = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    return _record({"shape": dims, "data": {"type": "array"}})


def _number(entry: model.Entry) -> Schema:
    return {"type": "number"} | _span(entry.range)


def _flag(_: model.Entry) -> Schema:
    return {"type": "boolean"}


def _record(properties: dict[str, Schema]) -> Schema:
    required = [name for name in properties if name != "label"]
    return {"type": "object", "required": required, "properties": properties}


_RANKED: dict[str, Schema] = {
    "label": {"type": "string"},
    "index": {"type": "integer", "minimum": 0},
    "score": {"type": "number"},
}
_KINDS = {
    "text": _text, "image": _image, "table": _table, "number": _number, "flag": _flag,
    "labels": _labels, "boxes": _boxes, "tensor": _array,
}  # fmt: skip
