"""What is read from the head of a request besides its grammar, which the parser checks.

Refused here is what two programs could take in two ways, or what nobody here understands, as
RFC 9112 asks. ``connection.py`` calls it for each head.
"""

from __future__ import annotations

import re

import httptools

Lines = list[tuple[bytes, bytes]]

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_VERSIONS = frozenset(("1.0", "1.1"))
# A program before us may have looked at the other one.
_ONCE = frozenset((
    b"content-encoding", b"content-length", b"expect", b"host",
    b"inference-header-content-length", b"timeout", b"transfer-encoding",
))  # fmt: skip


class Fault(ValueError):
    """A head that is refused: 400, also where HTTP has codes from 500 on, which say that the
    server is to blame.
    """


def check(lines: Lines, headers: dict[bytes, bytes], version: str) -> None:
    """Raise Fault for a head that is not to be answered; ``headers`` are the lines as a dict."""
    if version not in _VERSIONS:
        raise Fault(f"expected HTTP/1.1, found HTTP/{version}")
    if len(headers) != len(lines):
        _refuse_repeated(lines)
    if b"host" not in headers and version == "1.1":
        raise Fault("headers.host: expected in each HTTP/1.1 request, found none")
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return
    if version != "1.1":
        raise Fault("headers.transfer-encoding: expected none in HTTP/1.0")
    if coding.lower() != b"chunked":
        raise Fault(f"headers.transfer-encoding: expected chunked, found {coding[:40]!r}")


def refuse_upgrade(headers: dict[bytes, bytes]) -> None:
    """Fault for an offer to change protocols that ``without_upgrade`` has not seen, with a body:
    the parser takes that for the other protocol.
    """
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise Fault("headers.upgrade: expected none, since only HTTP/1.1 is spoken here")


def _refuse_repeated(lines: Lines) -> None:
    seen: set[bytes] = set()
    for name, _ in lines:
        if name in seen and name in _ONCE:
            raise Fault(f"headers.{name.decode('latin-1')}: expected once, found several")
        seen.add(name)


def path_of(url: bytes) -> bytes:
    """The path of an address, without its query."""
    if url.startswith(b"/") and b"?" not in url and b"#" not in url:
        return url
    path: bytes | None = httptools.parse_url(url).path
    return path or b""


def number_in(headers: dict[bytes, bytes], wanted: bytes) -> int:
    """The number in a header, 0 when there is none; what is wrong with it is told elsewhere."""
    value = headers.get(wanted)
    return int(value) if value is not None and value.isdigit() and len(value) < 16 else 0


def without_upgrade(data: bytes) -> bytes:
    """The head with its offer to change protocols renamed, which a server may ignore.

    The parser would take a body that follows for the other protocol; some clients offer HTTP/2
    with every first request.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    if _UPGRADE.search(head) is None:
        return data
    return _UPGRADE.sub(b"\r\nx-offer:", head) + data[len(head) :]
