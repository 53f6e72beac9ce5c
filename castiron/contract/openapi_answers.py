"""What every call of the OpenAPI description may be answered with: codes, headers, the error body.

Codes are the server's (``server/status.py``, docs/protocol.md). A call declares those that can
come of it and no others; ``openapi.py`` and ``openapi_server.py`` say which.
"""

from __future__ import annotations

from typing import Any

ROOT = "#/components/schemas/"

Json = dict[str, Any]
Codes = tuple[int, ...]

# Of every call; of those that ask who it is; and of those that take a body.
OPEN: Codes = (400, 408, 431, 500)
KNOWN: Codes = (*OPEN, 401, 503)
SENT: Codes = (*KNOWN, 413, 415)

_SAID = {
    400: "The body, a value, a shape, or the HTTP itself is wrong; the text begins with its path.",
    401: "This server wants a token, and this request has none that is good.",
    403: "The token, or the operator, does not allow this.",
    404: "No such model or version, or none that this caller may know of.",
    405: "Another method than those described here; Allow names them.",
    408: "The request came too slowly.",
    411: "The body has no length.",
    413: "The body is too large, also once decompressed.",
    415: "Compression other than gzip and deflate, or a kind of body that nobody reads.",
    429: "This client asks too often.",
    431: "The head is too large.",
    500: "The model itself failed on this input, or the server did.",
    503: "Not ready, stopping, too busy, or the issuer's keys are not here yet.",
    504: "No answer in the time allowed.",
}
_HEADERS = {
    "Inference-Header-Content-Length": ("Bytes of JSON before the binary tensors.", "integer"),
    "X-Model-Version": ("The SHA-256 of the executable that answered.", "string"),
    "X-Trace-ID": ("The trace that this request belongs to.", "string"),
    "Server-Timing": ("Where the time went, in milliseconds.", "string"),
    "Retry-After": ("Seconds until another try makes sense.", "integer"),
    "X-Refusal-Reason": ("One word for programs.", "string"),
    "WWW-Authenticate": ("How to ask, as RFC 6750 says.", "string"),
    "Allow": ("The methods of this path.", "string"),
    "Accept": ("The kinds of body that are read here.", "string"),
    "Accept-Encoding": ("The compressions that are read here.", "string"),
}
_ALONG = {
    401: ("WWW-Authenticate",),
    403: ("WWW-Authenticate",),
    405: ("Allow",),
    415: ("Accept", "Accept-Encoding"),
    429: ("Retry-After", "X-Refusal-Reason", "X-Retry-Budget"),
    503: ("Retry-After", "X-Refusal-Reason", "X-Retry-Budget"),
}
_SURE = ((401, "WWW-Authenticate"), (405, "Allow"))


def succeeded(schema: str, *headers: str, said: str = "The answer.") -> Json:
    """An answer with JSON of this schema."""
    reply: Json = {"description": said, "content": content(schema)}
    return reply | ({"headers": named(*headers)} if headers else {})


def content(schema: str) -> Json:
    """JSON of a schema among the components."""
    return {"application/json": {"schema": {"$ref": ROOT + schema}}}


def named(*names: str) -> Json:
    """Headers by reference."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def refusals(codes: Codes) -> Json:
    """The answers with these codes by reference."""
    return {str(code): {"$ref": f"#/components/responses/{code}"} for code in sorted(codes)}


def responses() -> Json:
    """All refusals, for the components."""
    found: Json = {
        str(code): {"description": text, "content": content("Error")}
        for code, text in _SAID.items()
    }
    for code, names in _ALONG.items():
        found[str(code)]["headers"] = named(*names)
    for code, name in _SURE:
        found[str(code)]["headers"][name] = {"required": True, **_header(name)}
    return found


def headers() -> Json:
    """All headers, for the components."""
    found = {name: _header(name) for name in _HEADERS}
    found["X-Retry-Budget"] = {
        "description": "There when the model bears no more retries for now.",
        "schema": {"const": "spent"},
    }
    return found


def _header(name: str) -> Json:
    said, kind = _HEADERS[name]
    return {"description": said, "schema": {"type": kind}}


def record(**properties: Json) -> Json:
    """An object that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def listed(item: Json) -> Json:
    """A list of these."""
    return {"type": "array", "items": item}
