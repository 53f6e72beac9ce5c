"""A socket that listens, and how its address is told. Who may ask there is ``security.guard``."""

from __future__ import annotations

import socket

from castiron import errors

_adopted: dict[tuple[str, int], socket.socket] = {}


def adopt(host: str, port: int, taken: socket.socket) -> None:
    """Whoever wants to listen there gets this socket, on which another process listens too."""
    _adopted[host, port] = taken


def listen(host: str, port: int) -> socket.socket:
    """Take connections there from now on; CastironError says why that is not possible."""
    if (host, port) in _adopted:
        return _adopted[host, port]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as fault:
        listener.close()
        raise errors.CastironError(
            f"cannot listen on {host} port {port}: {fault.strerror}"
        ) from None
    return listener


def url_of(listener: socket.socket, scheme: str) -> str:
    """Where a socket listens, as a client writes it."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"
