"""What a call may fail with. Every failure is an InferenceError; its class says what to do."""

from __future__ import annotations


class InferenceError(Exception):
    """Any failure of a call."""


class ConnectionBroken(InferenceError):
    """The server could not be reached, or the connection broke."""


class TimedOut(InferenceError):
    """No answer in the time allowed, as this client or the server saw it."""


class ProtocolBroken(InferenceError):
    """The answer is not what the protocol, or the model's contract, says."""


class ServerRefused(InferenceError):
    """The server refused; ``status`` is the code of HTTP, ``path`` the place of the fault."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        first, colon, _ = message.partition(": ")
        self.path = first if colon and " " not in first else ""


class RequestWrong(ServerRefused):
    """The request itself is wrong; another try would be refused as well."""


class NotFound(RequestWrong):
    """No such model or version."""


class Denied(RequestWrong):
    """The server wants a token, or the one that was sent does not allow this call."""


class Unavailable(ServerRefused):
    """The server is busy or not ready.

    ``retry_after_s`` says when to try again, None that it would not help; ``reason`` is one word
    for programs, empty when the server gives none.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None, reason: str) -> None:
        super().__init__(status, message)
        self.retry_after_s = retry_after_s
        self.reason = reason


def failure(
    status: int, message: str, retry_after_s: float | None = None, reason: str = ""
) -> InferenceError:
    """The failure that a code of HTTP, with the text of the error body, stands for."""
    if status in {408, 504}:
        return TimedOut(message)
    if status in {401, 403}:
        return Denied(status, message)
    if status == 404:
        return NotFound(status, message)
    if status in {429, 503}:
        return Unavailable(status, message, retry_after_s, reason)
    return ServerRefused(status, message) if status >= 500 else RequestWrong(status, message)
