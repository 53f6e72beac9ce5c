"""The body of an application-level request to plain values: JSON, a form, or an image as it is.

Only what HTTP carries is decided here; whether values are what the contract says is
``steps/inward.py``. Faults are InputError at the value's name, or 415 for a kind of body that
nobody can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from castiron import errors
from castiron.contract import model
from castiron.server import patience, status

_MAX_PARTS = 64
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;,]{1,200}))', re.IGNORECASE)
_NAME = re.compile(r'\bname=(?:"((?:[^"\\]|\\.)*)"|([^\s;]+))', re.IGNORECASE)
_RAW_KINDS = ("image/", "application/octet-stream")


@dataclass(slots=True)
class Asked:
    """What a request holds: values as JSON has them, and images that came as bytes."""

    values: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, bytes | memoryview] = field(default_factory=dict)


def parse(
    headers: Mapping[bytes, bytes],
    body: bytes | memoryview,
    entries: tuple[model.Entry, ...],
    max_json_bytes: int,
) -> Asked:
    """Read a body by its Content-Type; without one it is JSON."""
    given = headers.get(b"content-type", b"application/json").decode("latin-1").strip()
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json":
        if len(body) > max_json_bytes:
            raise status.Refusal(
                413,
                f"body: expected at most {max_json_bytes} bytes of JSON, found {len(body)}; "
                "send a large image as it is, or in a form",
            )
        return Asked(_object(bytes(body)))
    if kind == "multipart/form-data":
        return _form(given, bytes(body), entries)
    if kind.startswith(_RAW_KINDS):
        return _raw(kind, body, entries)
    raise status.Refusal(
        415,
        "headers.content-type: expected application/json, multipart/form-data or image/..., "
        f"found {given[:80]!r}",
        headers=((b"accept", b"application/json, multipart/form-data, image/*"),),
    )


def _object(body: bytes) -> dict[str, Any]:
    patience.ask_for(len(body))
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise errors.InputError(f"expected JSON: {fault}", "body") from None
    if type(given) is not dict:
        raise errors.InputError("expected a JSON object", "body")
    return given


def _raw(kind: str, body: bytes | memoryview, entries: tuple[model.Entry, ...]) -> Asked:
    """The whole body is the only image there is."""
    images = [entry.name for entry in entries if entry.kind == "image"]
    others = [entry.name for entry in entries if entry.kind != "image" and not entry.optional]
    if len(images) != 1 or others:
        wanted = ", ".join([*images, *others])
        raise status.Refusal(
            415,
            f"headers.content-type: {kind} can carry one image and nothing else; this model wants "
            f"{wanted}: send JSON or multipart/form-data",
        )
    return Asked({}, {images[0]: body})


def _form(kind: str, body: bytes, entries: tuple[model.Entry, ...]) -> Asked:
    known = {entry.name: entry for entry in entries}
    asked = Asked()
    for name, content in _parts(kind, body):
        if name in asked.values or name in asked.raw:
            raise errors.InputError("is given twice", _path(name))
        entry = known.get(name)
        if entry is None:
            raise errors.InputError(f"unknown; expected {', '.join(known)}", _path(name))
        if entry.kind == "image":
            asked.raw[name] = content
        else:
            asked.values[name] = _value(entry, content)
    return asked


def _path(name: str) -> str:
    return name[:60] or "body"


def _value(entry: model.Entry, content: bytes) -> Any:
    """Text is text; everything else is written as JSON."""
    try:
        if entry.kind == "text" and not entry.languages:
            return content.decode()
        return orjson.loads(content)
    except ValueError as fault:  # both decoders raise kinds of it
        raise errors.InputError(f"expected {entry.kind} in a form: {fault}", entry.name) from None


def _parts(kind: str, body: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each part (RFC 7578)."""
    found = _BOUNDARY.search(kind)
    if found is None:
        raise errors.InputError("expected a boundary", "headers.content-type")
    mark = b"--" + (found[1] or found[2]).encode("latin-1")
    # What stands before the first mark is for old mail programs.
    pieces = (b"\r\n" + body).split(b"\r\n" + mark, _MAX_PARTS + 2)
    *whole, last = pieces[1:] or [b""]
    if not last.startswith(b"--"):
        what = f"at most {_MAX_PARTS} parts" if len(pieces) > _MAX_PARTS else "its last boundary"
        raise errors.InputError(f"expected a form with {what}", "body")
    for piece in whole:
        head, separator, content = piece.partition(b"\r\n\r\n")
        name = _name(head)
        if not separator or name is None:
            raise errors.InputError("expected each part of the form to tell its name", "body")
        yield name, content


def _name(head: bytes) -> str | None:
    for line in head.split(b"\r\n"):
        title, _, value = line.partition(b":")
        if title.strip().lower() == b"content-disposition":
            found = _NAME.search(value.decode("utf-8", "replace"))
            return None if found is None else (found[1] if found[1] is not None else found[2])
    return None
