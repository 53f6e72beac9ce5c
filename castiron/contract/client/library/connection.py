"""Connections to one server, kept and used again; an answer within the time allowed."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .errors import (
    ConnectionBroken,
    InferenceError,
    ProtocolBroken,
    TimedOut,
    failure,
)

LENGTH = "Inference-Header-Content-Length"


class Connections:
    """All connections of a client, also of several threads."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"expected an address such as http://host:8000, found {url!r}")
        self._parts = parts
        self.timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send a request and read its answer, whatever its code. Raises InferenceError."""
        allowed_s = self.timeout_s if timeout_s is None else timeout_s
        target = self._parts.path.rstrip("/") + path
        end_s = time.monotonic() + allowed_s
        while True:
            connection, is_used = self._connection(max(end_s - time.monotonic(), 0.001))
            try:
                connection.request(method, target, body, {**self._headers, **(headers or {})})
                answer = _answer(connection, end_s)
            except TimeoutError as fault:
                connection.close()
                raise TimedOut(f"no answer within {allowed_s} s") from fault
            except (OSError, http.client.HTTPException) as fault:
                connection.close()
                # A kept connection may have been closed meanwhile, before the request came.
                if is_used and isinstance(fault, ConnectionError):
                    continue
                raise ConnectionBroken(f"{self._parts.netloc}: {fault}") from fault
            if not answer.closes:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        try:
            kept = self._idle.pop()
        except IndexError:
            is_plain = self._parts.scheme == "http"
            kind = http.client.HTTPConnection if is_plain else http.client.HTTPSConnection
            assert self._parts.hostname is not None
            return kind(self._parts.hostname, self._parts.port, timeout=timeout_s), False
        kept.timeout = timeout_s
        if kept.sock is not None:
            kept.sock.settimeout(timeout_s)
        return kept, True


class Answer(NamedTuple):
    """One answer, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    closes: bool


def _answer(connection: http.client.HTTPConnection, end_s: float) -> Answer:
    """Read it; the time allowed is for all of it, not for each piece."""
    response = connection.getresponse()
    parts: list[bytes] = []
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        part = response.read1(1 << 20)
        if not part:
            break
        parts.append(part)
    if response.length:
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    closes = response.will_close or connection.sock is None
    response.close()  # after reading by pieces it does not know that it is at its end
    return Answer(response.status, response.headers, b"".join(parts), closes)


def succeeded(answer: Answer) -> tuple[dict[str, Any], bytes]:
    """The JSON and what follows it. Raises what a refusal stands for."""
    if answer.status != 200:
        raise _refusal(answer)
    length = int(answer.headers.get(LENGTH) or len(answer.body))
    try:
        head = json.loads(answer.body[:length])
    except ValueError as fault:
        raise ProtocolBroken(f"expected JSON: {fault}") from None
    if not isinstance(head, dict):
        raise ProtocolBroken("expected a JSON object")
    return head, answer.body[length:]


def _refusal(answer: Answer) -> InferenceError:
    message = answer.body[:200].decode("utf-8", "replace")
    # What stands between us and the server may answer in its own words.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        message = str(json.loads(answer.body)["error"])
    seconds = answer.headers.get("Retry-After", "")
    wait_s = float(seconds) if seconds.isdecimal() else None
    return failure(answer.status, message, wait_s, answer.headers.get("X-Refusal-Reason", ""))
