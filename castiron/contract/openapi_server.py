"""The calls of the OpenAPI description that are the server's: health, lists, repository, metrics.

``openapi.py`` has those of the model. The calls of the admin port are another service, for
operators (docs/security.md).
"""

from __future__ import annotations

from urllib.parse import quote

from castiron.contract import model, openapi_answers

Json = openapi_answers.Json

_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "integer", "minimum": 0}
_STATES = ("LOADING", "READY", "UNAVAILABLE")


def paths(contract: model.Contract) -> Json:
    """Calls by path; loading and unloading are those of this model."""
    known = openapi_answers.KNOWN
    repository = f"/v2/repository/models/{quote(contract.name, safe='')}"
    return {
        "/v2": {"get": get("serverMetadata", "Server", known)},
        "/v2/health/live": {"get": _open(get("serverLive", "Live", openapi_answers.OPEN))},
        "/v2/health/ready": {"get": _ready()},
        "/v2/models": {"get": get("models", "Models", known)},
        "/v2/models/stats": {"get": get("serverStatistics", "Statistics", known)},
        "/v2/repository/index": {
            "post": _post("repositoryIndex", "Index", "IndexRequest", openapi_answers.SENT)
        },
        f"{repository}/load": {"post": _change("load", "LoadRequest")},
        f"{repository}/unload": {"post": _change("unload", "UnloadRequest")},
        "/metrics": {"get": _metrics()},
    }


def get(name: str, schema: str, codes: openapi_answers.Codes) -> Json:
    """A question without a body."""
    replies = {"200": openapi_answers.succeeded(schema)}
    return {"operationId": name, "responses": replies | openapi_answers.refusals(codes)}


def _open(call: Json) -> Json:
    """A call that is answered without a token too."""
    return call | {"security": []}


def _ready() -> Json:
    """Readiness has one body whatever it says."""
    call = get("serverReady", "Ready", openapi_answers.OPEN)
    said = "Not ready; the body says why."
    call["responses"]["503"] = openapi_answers.succeeded("Ready", said=said)
    return _open(call)


def _post(name: str, schema: str, asked: str, codes: openapi_answers.Codes) -> Json:
    """A call whose body may be left out."""
    body = {"required": False, "content": openapi_answers.content(asked)}
    return get(name, schema, codes) | {"requestBody": body}


def _change(verb: str, asked: str) -> Json:
    call = _post(f"{verb}Model", "Done", asked, (*openapi_answers.SENT, 403, 404))
    said = {
        "load": "Looks at the model's folder again; answers when what is new there is ready.",
        "unload": "Answers once everything that was accepted is answered and the memory is free.",
    }
    return call | {"description": said[verb]}


def _metrics() -> Json:
    call = get("metrics", "Error", openapi_answers.KNOWN)
    call["responses"]["200"] = {
        "description": "The Prometheus text form.",
        "content": {"text/plain": {"schema": _TEXT}},
    }
    return call


def schemas() -> Json:
    """What these calls take and give, by name."""
    listed, record = openapi_answers.listed, openapi_answers.record
    ready = record(ready=_FLAG, live=_FLAG)
    ready["properties"] |= {
        "reason": _TEXT,
        "versions": {"type": "object", "additionalProperties": _TEXT},
    }
    entry = record(name=_TEXT, version=_TEXT, state={"enum": list(_STATES)}, reason=_TEXT)
    return {
        "Server": record(name=_TEXT, version=_TEXT, extensions=listed(_TEXT)),
        "Live": record(live=_FLAG),
        "Ready": ready,
        "Models": record(models=listed(_TEXT)),
        "Statistics": record(model_stats=listed(_statistics())),
        "IndexRequest": {"type": "object", "properties": {"ready": _FLAG}},
        "Index": listed(entry),
        "LoadRequest": _parameters({}),
        "UnloadRequest": _parameters({"unload_dependents": _FLAG}),
        "Done": {"type": "object"},
    }


def _parameters(known: Json) -> Json:
    inner = {"type": "object", "properties": known, "additionalProperties": False}
    return {"type": "object", "properties": {"parameters": inner}}


def _statistics() -> Json:
    record = openapi_answers.record
    spent = record(count=_NUMBER, ns=_NUMBER)
    stages = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    batch = record(batch_size=_NUMBER, compute_infer=spent)
    return record(
        name=_TEXT, version=_TEXT, last_inference=_NUMBER, inference_count=_NUMBER,
        execution_count=_NUMBER, inference_stats=record(**dict.fromkeys(stages, spent)),
        batch_stats=openapi_answers.listed(batch),
    )  # fmt: skip
