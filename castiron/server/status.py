"""Errors to HTTP codes, outcomes and the one error body: {"error": "..."}.

Both clients of the Open Inference Protocol decode this shape. The text names the path of the
fault first (``inputs[0].shape``). Every error of ``castiron.errors`` has its line in the table.
"""

from __future__ import annotations

import orjson

from castiron import errors

_A_SECOND_NS = 1_000_000_000

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

# The gRPC code of each HTTP code; 503 has two, for a server that is busy and one that is not there.
INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE = 3, 4, 8, 14
_GRPC = {
    400: INVALID_ARGUMENT, 401: 16, 403: 7, 404: 5, 405: 12, 408: DEADLINE_EXCEEDED,
    411: INVALID_ARGUMENT, 413: INVALID_ARGUMENT, 415: INVALID_ARGUMENT, 429: RESOURCE_EXHAUSTED,
    499: 1, 500: 13, 503: UNAVAILABLE, 504: DEADLINE_EXCEEDED,
}  # fmt: skip


class Refusal(errors.CastironError):
    """A request that the edge itself does not take; ``headers`` go with the answer.

    ``reason`` is one word of ``scheduler.request`` for programs; ``retry_after_ns`` is 0 when
    trying again cannot help, None when nothing is known.
    """

    def __init__(
        self,
        code: int,
        message: str,
        outcome: str = INVALID,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        *,
        reason: str = "",
        retry_after_ns: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.outcome = outcome
        self.headers = headers
        self.reason = reason
        self.retry_after_ns = retry_after_ns
        self.why = ""  # of a caller who is not known or may not: a word for metrics


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


def grpc_code(error: BaseException) -> int:
    """The number of the gRPC status of an error."""
    code, outcome = classify(error)
    return RESOURCE_EXHAUSTED if (code, outcome) == (503, OVERLOADED) else _GRPC[code]


def text_of(error: BaseException) -> str:
    """What a client is told.

    What an unknown exception says may be about our inside; the log has it in full.
    """
    is_ours = isinstance(error, errors.CastironError)
    return str(error) if is_ours else "the server failed on this request; its log says why"


def retry_after_ns(error: BaseException) -> int | None:
    """How long the client should wait before it tries again; None when it should not."""
    code, _ = classify(error)
    known = error.retry_after_ns if isinstance(error, Refusal) else None
    if code not in {429, 503}:
        return None
    return _A_SECOND_NS if known is None else known or None


def answer(error: BaseException) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Code, headers and body that tell the client."""
    code, _ = classify(error)
    body = body_of(text_of(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if isinstance(error, Refusal):
        headers.extend(error.headers)
        if error.reason:
            headers.append((b"x-refusal-reason", error.reason.encode()))
    if (wait_ns := retry_after_ns(error)) is not None:
        headers.append((b"retry-after", b"%d" % -(-wait_ns // _A_SECOND_NS)))
    return code, headers, body


def body_of(text: str) -> bytes:
    """The error body; text from outside may hold what JSON cannot, which is replaced."""
    try:
        return orjson.dumps({"error": text})
    except orjson.JSONEncodeError:
        return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})
