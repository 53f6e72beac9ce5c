"""The OpenAPI 3.1 description of one model over REST: every route, code and error body it has.

Routes and codes are the server's (``server/rest.py``, ``server/status.py``, docs/protocol.md);
a test asks a live server and compares. Schemas are ``json_schema.py``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from castiron.contract import json_schema, model

_ROOT = "#/components/schemas/"
_HEAD_CODES = (400, 401, 403, 408, 431, 500)
_MODEL_CODES = (*_HEAD_CODES, 404, 503)
_INFER_CODES = (*_MODEL_CODES, 411, 413, 415, 429, 504)
_SAID = {
    400: "The body, a value, a shape, or the HTTP itself is wrong; the text begins with its path.",
    401: "This server wants a token, and this request has none that is good.",
    403: "The token does not allow this, or the operator does not allow pipelines.",
    404: "No such model or version.",
    408: "The request came too slowly.",
    411: "The body has no length.",
    413: "The body is too large, also once decompressed.",
    415: "Compression other than gzip and deflate.",
    429: "This client asks too often.",
    431: "The head is too large.",
    500: "The model itself failed on this input, or the server did.",
    503: "Not ready, stopping, or too busy.",
    504: "No answer in the time allowed.",
}

Json = dict[str, Any]


def document(contract: model.Contract) -> Json:
    """The whole description."""
    schemas = json_schema.definitions(contract, _ROOT)
    schemas |= _descriptions()
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": json_schema.DIALECT,
        "info": {
            "title": contract.name,
            "version": str(contract.format),
            "description": contract.description
            or f"The model {contract.name} in the Open Inference Protocol, version 2.",
        },
        "paths": _server_paths() | _model_paths(contract),
        "components": {"schemas": schemas, "responses": _responses(), "headers": _headers()},
    }


def _server_paths() -> Json:
    codes = _HEAD_CODES
    return {
        "/v2": {"get": _get("serverMetadata", "Server", codes)},
        "/v2/health/live": {"get": _get("serverLive", "Live", codes)},
        "/v2/health/ready": {"get": _ready("serverReady", codes)},
    }


def _model_paths(contract: model.Contract) -> Json:
    model_path = f"/v2/models/{quote(contract.name, safe='')}"
    found: Json = {}
    for path, suffix, given in (
        (model_path, "", []),
        (f"{model_path}/versions/{{version}}", "Version", [_version()]),
    ):
        calls: Json = {
            path: {"get": _get(f"metadata{suffix}", "Model", _MODEL_CODES)},
            f"{path}/ready": {"get": _get(f"ready{suffix}", "ModelReady", _MODEL_CODES)},
            f"{path}/config": {
                "get": _get(f"configuration{suffix}", "Configuration", _MODEL_CODES)
            },
            f"{path}/stats": {"get": _get(f"statistics{suffix}", "Statistics", _MODEL_CODES)},
            f"{path}/infer": {"post": _infer(f"infer{suffix}")},
        }
        if contract.schema.input or contract.pipeline is not None:
            calls[f"{path}/predict"] = {"post": _predict(contract, f"predict{suffix}")}
        for item in calls.values():
            if given:
                item["parameters"] = list(given)
        found |= calls
    return found


def _version() -> Json:
    kind = {"type": "string", "pattern": "^[0-9]+$"}
    return {"name": "version", "in": "path", "required": True, "schema": kind}


def _get(name: str, schema: str, codes: tuple[int, ...]) -> Json:
    content = {"application/json": {"schema": {"$ref": _ROOT + schema}}}
    replies: Json = {"200": {"description": "The answer.", "content": content}}
    return {"operationId": name, "responses": replies | _refusals(codes)}


def _ready(name: str, codes: tuple[int, ...]) -> Json:
    """Readiness has one body whatever it says."""
    call = _get(name, "Ready", codes)
    content = call["responses"]["200"]["content"]
    call["responses"]["503"] = {"description": "Not ready; the body says why.", "content": content}
    return call


def _refusals(codes: tuple[int, ...]) -> Json:
    return {str(code): {"$ref": f"#/components/responses/{code}"} for code in sorted(codes)}


def _infer(name: str) -> Json:
    raw = {"schema": {"type": "string", "format": "binary"}}
    length = {"$ref": "#/components/headers/Inference-Header-Content-Length"}
    return {
        "operationId": name,
        "parameters": [
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "required": False,
                "description": "Bytes of JSON at the beginning of a body with binary tensors.",
                "schema": {"type": "integer", "minimum": 1},
            },
            {
                "name": "Content-Encoding",
                "in": "header",
                "required": False,
                "schema": {"enum": ["identity", "gzip", "deflate"]},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": f"{_ROOT}InferRequest"}},
                "application/octet-stream": raw,
            },
        },
        "responses": {
            "200": {
                "description": "The outputs: JSON, or JSON with binary tensors after it.",
                "headers": {
                    "Inference-Header-Content-Length": length,
                    "X-Model-Version": {"$ref": "#/components/headers/X-Model-Version"},
                },
                "content": {
                    "application/json": {"schema": {"$ref": f"{_ROOT}InferReply"}},
                    "application/octet-stream": raw,
                },
            },
            **_refusals(_INFER_CODES),
        },
    }


def _predict(contract: model.Contract, name: str) -> Json:
    """An application's values; the same three bodies as ``server/asking.py`` reads."""
    request, reply = (
        {"$ref": f"{_ROOT}Application{side}"} if entries else {"type": "object"}
        for side, entries in (
            ("Request", contract.schema.input),
            ("Reply", contract.schema.output),
        )
    )
    content: Json = {"application/json": {"schema": request}}
    images = [entry for entry in contract.schema.input if entry.kind == "image"]
    required = [entry for entry in contract.schema.input if not entry.optional]
    if contract.schema.input:
        content["multipart/form-data"] = {"schema": _form(contract)}
    if len(images) == 1 and required in ([], images) and images[0].encodings != ("base64",):
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {
                "description": "The values that the contract promises.",
                "headers": {"X-Model-Version": {"$ref": "#/components/headers/X-Model-Version"}},
                "content": {"application/json": {"schema": reply}},
            },
            **_refusals(_INFER_CODES),
        },
    }


def _form(contract: model.Contract) -> Json:
    """A part for each value: images as files, text as it is, the rest as JSON."""
    binary = {"type": "string", "format": "binary"}
    return {
        "type": "object",
        "required": [entry.name for entry in contract.schema.input if not entry.optional],
        "properties": {
            entry.name: binary if entry.kind == "image" else {"type": "string"}
            for entry in contract.schema.input
        },
    }


def _responses() -> Json:
    content = {"application/json": {"schema": {"$ref": f"{_ROOT}Error"}}}
    found: Json = {
        str(code): {"description": text, "content": content} for code, text in _SAID.items()
    }
    for code in ("429", "503"):
        found[code]["headers"] = {
            name: {"$ref": f"#/components/headers/{name}"}
            for name in ("Retry-After", "X-Refusal-Reason", "X-Retry-Budget")
        }
    challenge = {"$ref": "#/components/headers/WWW-Authenticate"}
    found["401"]["headers"] = {"WWW-Authenticate": challenge}
    return found


def _headers() -> Json:
    return {
        "Inference-Header-Content-Length": {
            "description": "Bytes of JSON before the binary tensors.",
            "schema": {"type": "integer"},
        },
        "X-Model-Version": {
            "description": "The SHA-256 of the executable that answered.",
            "schema": {"type": "string"},
        },
        "Retry-After": {
            "description": "Seconds until another try makes sense.",
            "schema": {"type": "integer"},
        },
        "X-Refusal-Reason": {
            "description": "One word for programs.",
            "schema": {"type": "string"},
        },
        "X-Retry-Budget": {
            "description": "There when the model bears no more retries for now.",
            "schema": {"const": "spent"},
        },
        "WWW-Authenticate": {
            "description": "How to ask, as RFC 6750 says.",
            "schema": {"type": "string"},
        },
    }


def _descriptions() -> dict[str, Json]:
    """What the server says about itself and a model."""
    text, flag, number = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
    texts = {"type": "array", "items": text}
    tensor = _record(name=text, datatype=text, shape={"type": "array", "items": number})
    tensors = {"type": "array", "items": tensor}
    ready = _record(ready=flag, live=flag)
    ready["properties"] |= {"reason": text, "versions": {"type": "object"}}
    shown = _record(name=text, version=text, inference_count=number, execution_count=number)
    return {
        "Server": _record(name=text, version=text, extensions=texts),
        "Live": _record(live=flag),
        "Ready": ready,
        "Model": _record(name=text, versions=texts, platform=text, inputs=tensors, outputs=tensors),
        "ModelReady": _record(name=text, ready=flag),
        "Configuration": _record(name=text, platform=text),
        "Statistics": _record(model_stats={"type": "array", "items": shown}),
    }


def _record(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}
