"""Errors to HTTP codes, outcomes and the one error body: {"error": "..."}.

Both clients of the Open Inference Protocol decode this shape. The text names the path of the
fault first (``inputs[0].shape``). Every error of ``castiron.errors`` has its line in the table.
"""

from __future__ import annotations

import orjson

from castiron import errors

# How a request can end. Each accepted request ends in exactly one of these.
OK = "ok"
INVALID = "invalid"
NOT_FOUND = "not_found"
NOT_READY = "not_ready"
OVERLOADED = "overloaded"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
FAILED = "failed"
OUTCOMES = (OK, INVALID, NOT_FOUND, NOT_READY, OVERLOADED, CANCELLED, TIMEOUT, FAILED)

_TABLE: tuple[tuple[type[errors.CastironError], int, str], ...] = (
    (errors.InputError, 400, INVALID),
    (errors.ModelNotFound, 404, NOT_FOUND),
    (errors.ModelNotReady, 503, NOT_READY),
    (errors.ResourceError, 503, OVERLOADED),
    (errors.CastironError, 500, FAILED),
)
_RETRY_AFTER = (b"retry-after", b"1")


class Refusal(errors.CastironError):
    """A request that the edge itself does not take; ``headers`` go with the answer."""

    def __init__(
        self,
        code: int,
        message: str,
        outcome: str = INVALID,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.outcome = outcome
        self.headers = headers


class ClientGone(errors.CastironError):
    """The client closed the connection: there is nobody to answer."""


def classify(error: BaseException) -> tuple[int, str]:
    """The HTTP code and the outcome of an error."""
    if isinstance(error, Refusal):
        return error.code, error.outcome
    if isinstance(error, ClientGone):
        return 499, CANCELLED
    for kind, code, outcome in _TABLE:
        if isinstance(error, kind):
            return code, outcome
    return 500, FAILED


def answer(error: BaseException) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Code, headers and body that tell the client."""
    code, _ = classify(error)
    is_ours = isinstance(error, errors.CastironError)
    # What an unknown exception says may be about our inside; the log has it in full.
    text = str(error) if is_ours else "the server failed on this request; its log says why"
    body = body_of(text)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if isinstance(error, Refusal):
        headers.extend(error.headers)
    if code == 503 and _RETRY_AFTER not in headers:
        headers.append(_RETRY_AFTER)
    return code, headers, body


def body_of(text: str) -> bytes:
    """The error body; text from outside may hold what JSON cannot, which is replaced."""
    try:
        return orjson.dumps({"error": text})
    except orjson.JSONEncodeError:
        return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})
