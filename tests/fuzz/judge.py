"""What a server may answer to anything: bytes of a connection to answers, answers to complaints.

Strict on purpose: every client must be able to read what comes, whatever it sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz import mutations

# 504 only where the request itself sets a time; 503 only for want of room.
_DECLARED = {100, 200, 400, 404, 405, 408, 411, 413, 415, 431, 503, 504}


@dataclass(frozen=True, slots=True)
class Answer:
    """One response as it came."""

    code: int
    headers: dict[str, str]
    body: bytes


class UnreadableError(Exception):
    """What came is not a sequence of complete HTTP/1.1 responses."""


def answers(data: bytes, sent: bytes) -> Iterator[Answer]:
    """Each response in what a connection brought. Raises UnreadableError."""
    may_be_head = b"HEAD" in sent
    while data:
        head, mark, rest = data.partition(b"\r\n\r\n")
        if not mark:
            raise UnreadableError(f"no end of a head in {data[:200]!r}")
        code, headers = _head(head)
        length = int(headers.get("content-length", "0"))
        if code == 100 or (may_be_head and (not rest or rest.startswith(b"HTTP/1.1 "))):
            length = 0
        if headers.get("transfer-encoding") == "chunked":
            body, data = _unchunked(rest)
        else:
            if len(rest) < length:
                raise UnreadableError(f"{len(rest)} of {length} bytes of a body")
            body, data = rest[:length], rest[length:]
        yield Answer(code, headers, body)


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    """The body in some chunks, and what follows it."""
    parts = []
    while True:
        line, mark, data = data.partition(b"\r\n")
        try:
            size = int(line, 16)
        except ValueError:
            raise UnreadableError(f"the length of a chunk is {line[:40]!r}") from None
        if not mark or len(data) < size + 2 or data[size : size + 2] != b"\r\n":
            raise UnreadableError(f"{len(data)} of {size} bytes of a chunk")
        parts.append(data[:size])
        data = data[size + 2 :]
        if not size:
            return b"".join(parts), data


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if words[0] != "HTTP/1.1" or len(words) < 2 or not words[1].isdigit():
        raise UnreadableError(f"the status line is {first[:100]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in pairs}


def complaints(case: mutations.Case, found: list[Answer]) -> Iterator[str]:
    """What is wrong with these answers to this Case."""
    sent = b"".join(case.pieces)
    if not found and case.ending == mutations.WAIT and sent.strip():
        yield "closed without an answer"
    if case.code is not None and found and found[0].code not in {case.code, 503}:
        yield f"expected {case.code}, found {found[0].code}: {found[0].body[:200]!r}"
    for answer in found:
        yield from _about(answer, sent)


def _about(answer: Answer, sent: bytes) -> Iterator[str]:
    if answer.code not in _DECLARED:
        yield f"status {answer.code} is not declared: {answer.body[:200]!r}"
    if answer.code == 504 and b"timeout" not in sent:
        yield "504, and no timeout was asked for"
    is_json = answer.headers.get("content-type") == "application/json"
    content = _decoded(answer.body) if is_json and answer.body else None
    if isinstance(content, ValueError):
        yield f"JSON that is none: {answer.body[:200]!r}"
    if answer.code in {100, 200} or not answer.body:
        return
    if answer.code == 503 and b"/health/ready" in sent and isinstance(content, dict):
        if content.get("ready") is not False:  # it says so while a model is loaded again
            yield f"neither ready nor not: {answer.body[:200]!r}"
        return
    if not (isinstance(content, dict) and isinstance(content.get("error"), str)):
        yield f"no error body: {answer.body[:200]!r}"
        return
    if answer.code != 503:
        return
    # To come back does not help where the time asked for is too short whatever the queue.
    is_late = "would not be ready in the time allowed" in content["error"]
    if "retry-after" not in answer.headers and not is_late:
        yield "503 without Retry-After"
    if not is_late and not any(word in content["error"] for word in ("limit", "memory", "full")):
        yield f"503 for another reason than room: {content['error'][:200]}"


def _decoded(body: bytes) -> Any:
    """Strictly: no NaN, no bytes that are not UTF-8."""
    try:
        return json.loads(body.decode(), parse_constant=_refuse)
    except ValueError as fault:
        return fault


def _refuse(word: str) -> None:
    raise ValueError(word)
