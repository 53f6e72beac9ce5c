"""Values of applications instead of tensors: text, images, tables; labels, boxes."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NotRequired, TypedDict

from .errors import ProtocolBroken
from .messages import encoded


class Label(TypedDict):
    """One of a ranking, the best first."""

    index: int
    score: float
    label: NotRequired[str]


class Box(Label):
    """A place in a picture: left, top, right, bottom, in its own pixels."""

    box: list[float]


class Shaped(TypedDict):
    """An array as it is, in row-major order."""

    shape: list[int]
    data: list[Any]


def body_of(values: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """A body for the call predict, and its header: a form when an image is in it, else JSON.

    Images are bytes. A value of None is left out.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if not any(isinstance(value, bytes) for value in given.values()):
        return encoded(given), {"Content-Type": "application/json"}
    boundary = secrets.token_hex(16)
    parts = b"".join(_parts(given, boundary))
    return parts, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def _parts(given: Mapping[str, Any], boundary: str) -> Iterator[bytes]:
    for name, value in given.items():
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        yield f'--{boundary}\r\nContent-Disposition: form-data; name="{quoted}"'.encode()
        if isinstance(value, bytes):
            yield f'; filename="{quoted}"'.encode()
        yield b"\r\n\r\n"
        if isinstance(value, str):
            yield value.encode()
        else:
            yield value if isinstance(value, bytes) else json.dumps(value, allow_nan=False).encode()
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def as_text(image: bytes | None) -> str | None:
    """An image as base64, for models that take it only so."""
    return None if image is None else base64.b64encode(image).decode()


def promised(found: Mapping[str, Any], kinds: Mapping[str, str]) -> Mapping[str, Any]:
    """The values that a model's contract promises. ProtocolBroken when one is another."""
    for name, kind in kinds.items():
        if name not in found or not _is_kind(found[name], kind):
            shown = json.dumps(found[name])[:60] if name in found else "nothing"
            raise ProtocolBroken(f"{name}: expected {kind}, found {shown}")
    return found


def _is_kind(value: Any, kind: str) -> bool:
    if kind in {"labels", "boxes"}:
        wanted = {"index", "score"} | ({"box"} if kind == "boxes" else set())
        return isinstance(value, list) and all(
            isinstance(item, dict) and wanted <= item.keys() for item in value
        )
    if kind == "tensor":
        return isinstance(value, dict) and {"shape", "data"} <= value.keys()
    return isinstance(value, _PLAIN[kind])


_PLAIN: dict[str, type | tuple[type, ...]] = {
    "text": str, "image": str, "number": (int, float), "flag": bool, "table": list,
}  # fmt: skip
