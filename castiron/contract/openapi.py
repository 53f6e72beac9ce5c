"""The OpenAPI 3.1 description of one model over REST: every route, code and error body it has.

Here are the document and the calls of the model; ``openapi_server.py`` has those of the server,
``openapi_answers.py`` codes and headers, ``json_schema.py`` the schemas of tensors. A test asks a
live server and compares.
"""

from __future__ import annotations

from urllib.parse import quote

from castiron.contract import json_schema, model, openapi_answers, openapi_server

Json = openapi_answers.Json

_ROOT = openapi_answers.ROOT
_MODEL = (*openapi_answers.KNOWN, 403, 404)
# Many in one body are limited one by one, so the whole is neither late nor one too many.
_BATCH = (*openapi_answers.SENT, 403, 404, 411)
_INFER = (*_BATCH, 429, 504)
_RAW: Json = {"schema": {"type": "string", "format": "binary"}}
_OTHERS = (
    "Another method on a path is answered with 405 and the header Allow; HEAD is answered wherever "
    "GET is."
)


def document(contract: model.Contract) -> Json:
    """The whole description."""
    schemas = json_schema.definitions(contract, _ROOT) | openapi_server.schemas() | _schemas()
    said = contract.description or f"The model {contract.name}."
    bearer = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": json_schema.DIALECT,
        "info": {
            "title": contract.name,
            "version": str(contract.format),
            "description": f"{said} The Open Inference Protocol, version 2. {_OTHERS}",
        },
        "security": [{}, {"bearer": []}],
        "paths": openapi_server.paths(contract) | _model_paths(contract),
        "components": {
            "schemas": schemas,
            "responses": openapi_answers.responses(),
            "headers": openapi_answers.headers(),
            "securitySchemes": {"bearer": bearer},
        },
    }


def _model_paths(contract: model.Contract) -> Json:
    model_path = f"/v2/models/{quote(contract.name, safe='')}"
    found: Json = {}
    for path, suffix, given in (
        (model_path, "", []),
        (f"{model_path}/versions/{{version}}", "Version", [_version()]),
    ):
        get = openapi_server.get
        sight = tuple(code for code in _MODEL if code != 403)
        calls: Json = {
            path: {"get": get(f"metadata{suffix}", "Model", _MODEL)},
            f"{path}/ready": {"get": get(f"ready{suffix}", "ModelReady", sight)},
            f"{path}/config": {"get": get(f"configuration{suffix}", "Configuration", _MODEL)},
            f"{path}/stats": {"get": get(f"statistics{suffix}", "Statistics", _MODEL)},
            f"{path}/infer": {"post": _infer(f"infer{suffix}")},
            f"{path}/batch": {"post": _batch(f"batch{suffix}")},
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


def _header(name: str, said: str, schema: Json) -> Json:
    found = {"name": name, "in": "header", "required": False, "description": said}
    return found | {"schema": schema}


def _call_headers() -> list[Json]:
    """What every call of a model may say in its head."""
    time = {"type": "integer", "minimum": 0, "maximum": 10**17}
    return [
        _header("Timeout", "Microseconds that the answer may take; 0 asks for nothing.", time),
        _header("Content-Encoding", "How the body is compressed.",
                {"enum": ["identity", "gzip", "deflate"]}),
    ]  # fmt: skip


def _tensors(name: str, asked: str, given: str, codes: openapi_answers.Codes) -> Json:
    """A call with JSON, or with JSON and binary tensors after it, both ways."""
    length = _header(
        "Inference-Header-Content-Length",
        "Bytes of JSON at the beginning of a body with binary tensors.",
        {"type": "integer", "minimum": 1},
    )
    reply = {
        "description": "JSON, or JSON with binary tensors after it.",
        "headers": openapi_answers.named(
            "Inference-Header-Content-Length", "X-Model-Version", "X-Trace-ID", "Server-Timing"
        ),
        "content": openapi_answers.content(given) | {"application/octet-stream": _RAW},
    }
    sent = openapi_answers.content(asked) | {"application/octet-stream": _RAW}
    return {
        "operationId": name,
        "parameters": [length, *_call_headers()],
        "requestBody": {"required": True, "content": sent},
        "responses": {"200": reply} | openapi_answers.refusals(codes),
    }


def _infer(name: str) -> Json:
    return _tensors(name, "InferRequest", "InferReply", _INFER)


def _batch(name: str) -> Json:
    """Many infer requests; each has its own outcome, in one answer or in parts as they come."""
    call = _tensors(name, "BatchRequest", "BatchReply", _BATCH)
    parts = {"schema": {"type": "string", "description": "An answer of infer in each part."}}
    call["responses"]["200"]["content"]["multipart/mixed"] = parts
    return call


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
        content["image/*"] = _RAW
    success = {
        "description": "The values that the contract promises.",
        "headers": openapi_answers.named("X-Model-Version", "X-Trace-ID", "Server-Timing"),
        "content": {"application/json": {"schema": reply}},
    }
    return {
        "operationId": name,
        "parameters": _call_headers(),
        "requestBody": {"required": True, "content": content},
        "responses": {"200": success} | openapi_answers.refusals(_INFER),
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


def _schemas() -> Json:
    """What the server says about a model."""
    text, flag, number = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
    listed, record = openapi_answers.listed, openapi_answers.record
    tensors = listed(record(name=text, datatype=text, shape=listed(number)))
    said = record(name=text, versions=listed(text), platform=text, inputs=tensors, outputs=tensors)
    said["properties"]["parameters"] = record(digest=text)
    configured = listed(record(name=text, data_type=text, dims=listed(number)))
    return {
        "Model": said,
        "ModelReady": record(name=text, ready=flag),
        "Configuration": record(
            name=text, platform=text, max_batch_size=number, input=configured, output=configured
        ),
    }
