"""TLS and mTLS for listeners: contexts made of PEM files, renewed while the server runs.

New files are looked at about once a second and taken by connections made from then on; files that
do not fit each other change nothing. Who a client is comes from ``subject_of``.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterable
from typing import Any

from castiron import errors

log = logging.getLogger("castiron.security")

_PROTOCOLS = ["http/1.1"]


class Certificates:
    """The certificate of one listener, and the authorities whose clients it takes, if any."""

    __slots__ = ("_base", "_current", "_identities", "_paths", "client_ca", "contents")

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        """Raise CastironError when a file is missing or they do not fit."""
        self.client_ca = client_ca
        self._paths = [path for path in (cert, key, client_ca) if path]
        self._identities = _identities(self._paths)
        try:
            self.contents = [_read(path) for path in self._paths]
            self._current = _context(cert, key, client_ca)
        except (OSError, ValueError) as fault:
            raise errors.CastironError(
                f"TLS of {', '.join(self._paths)}: expected a PEM certificate and its key "
                f"(and authorities): {_said(fault)}"
            ) from None
        # One context for the listener's whole life; each connection is handed to the current one.
        self._base = _context(cert, key, client_ca)
        self._base.sni_callback = self._choose

    def context(self) -> ssl.SSLContext:
        """What a listener is given once."""
        return self._base

    def tick(self) -> None:
        """Take the files if they are others than before."""
        identities = _identities(self._paths)
        if identities == self._identities:
            return
        self._identities = identities
        cert, key = self._paths[:2]
        try:
            contents = [_read(path) for path in self._paths]
            self._current = _context(cert, key, self.client_ca)
        except (OSError, ValueError) as fault:
            log.error("the new certificate is not used, the old one stays: %s",  # noqa: TRY400
                      _said(fault))  # fmt: skip
            return
        self.contents = contents
        log.info("certificate renewed from %s", cert)

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def subject_of(transport: Any) -> str:
    """The subject of the client's verified certificate, "" when it showed none."""
    found = transport.get_extra_info("peercert") or {}
    parts = [part for group in found.get("subject", ()) for part in group]
    return ", ".join(f"{name}={value}" for name, value in parts)


def _context(cert: str, key: str, client_ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_PROTOCOLS)
    context.load_cert_chain(cert, key, password=_no_password)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cafile=client_ca)
        # A resumed session would keep the word of an authority that was taken out since.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, which nobody is here to type")


def _identities(paths: Iterable[str]) -> list[tuple[int, int, int, int] | None]:
    found: list[tuple[int, int, int, int] | None] = []
    for path in paths:
        try:
            now = os.stat(path)
            found.append((now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))
        except OSError:
            found.append(None)
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _said(fault: Exception) -> str:
    return (isinstance(fault, OSError) and fault.strerror) or str(fault) or type(fault).__name__


def context_of(certificates: Certificates | None) -> ssl.SSLContext | None:
    """The context of a listener; None: no TLS."""
    return None if certificates is None else certificates.context()
