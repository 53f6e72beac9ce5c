"""What guards one process: its access, its certificates, its admin listener, from the settings.

``life.py`` makes one before anything listens, ticks it about once a second and closes it last.
Settings that would leave a door open are refused here.
"""

from __future__ import annotations

import dataclasses
import socket

from castiron import errors
from castiron.server import listen, meters
from castiron.server import settings as server_settings
from castiron.server.http import listener, port
from castiron.server.security import access, admin, audit, loopback, rights, tls
from castiron.server.security import settings as security_settings

_ADMIN_DRAIN_S = 5
_DATA = (rights.INFER, rights.METADATA)


class Guard:
    """Everything that says who may do what."""

    __slots__ = ("_admin", "_admin_certificates", "_admin_socket", "_audit", "_settings",
                 "access", "certificates")  # fmt: skip

    def __init__(self, settings: security_settings.Settings) -> None:
        """Raise CastironError for settings that do not fit together, and for files that are bad."""
        _check_files(settings)
        self._settings = settings
        self.access = _access(settings)
        self.certificates = _certificates(settings, settings.client_ca)
        self._audit: audit.Audit | None = None
        self._admin: listener.Listener | None = None
        self._admin_certificates = _certificates(settings, settings.admin_client_ca)
        self._admin_socket: socket.socket | None = None

    @property
    def scheme(self) -> str:
        """What clients write in front of the address."""
        return "https" if self.certificates else "http"

    def require_closed(self, host: str) -> None:
        """CastironError when others could ask at ``host`` without being known."""
        is_known = not self.access.is_open
        if is_known or self._settings.insecure or loopback.is_loopback(host):
            return
        raise errors.CastironError(
            f"{host} can be reached by other machines and nobody is authenticated; listen on "
            "127.0.0.1, or ask for tokens (--jwks, --issuer, --audience) or for client "
            "certificates (--client-ca), or say --insecure when something in front guards it"
        )

    def open_admin(
        self, calls: admin.Calls, settings: server_settings.Settings, counted: meters.Meters
    ) -> socket.socket | None:
        """Take the admin port, if there is to be one. CastironError when that would be unsafe."""
        own = self._settings
        if own.admin_port < 0:
            return None
        who = self._admin_access()
        if who.is_open and not loopback.is_loopback(own.admin_host):
            raise errors.CastironError(
                f"--admin-host {own.admin_host} can be reached by other machines, and admin calls "
                "of others need --jwks or --admin-client-ca, also with --insecure"
            )
        if not own.audit_log:
            raise errors.CastironError("--admin-port: expected --audit-log FILE too")
        self._audit = audit.Audit(own.audit_log)
        bounds = dataclasses.replace(settings, max_body_bytes=admin.MAX_BODY_BYTES)
        application = admin.Admin(calls, who, self._audit, bounds)
        application.on_refused = counted.note_caller
        taken = self._admin_socket = listen.listen(own.admin_host, own.admin_port)
        self._admin = listener.Listener(port.Port(application, bounds, counted))
        return taken

    def _admin_access(self) -> access.Access:
        """Of its own: what the data port takes for known need not be enough here."""
        if self._settings.jwks:
            return self.access
        grant = rights.holder("", (rights.ADMIN,))
        return access.Fixed(grant, is_open=not self._settings.admin_client_ca)

    async def start(self) -> None:
        """The loop runs: look for keys, take admin calls."""
        self.access.tick()
        if self._admin is not None:
            assert self._admin_socket is not None
            context = tls.context_of(self._admin_certificates)
            await self._admin.start(self._admin_socket, context)

    def tick(self, now_s: float) -> None:
        """About once a second."""
        self.access.tick()
        for each in (self.certificates, self._admin_certificates):
            if each is not None:
                each.tick()
        if self._admin is not None:
            self._admin.tick(now_s)

    def hurry(self) -> None:
        """Wait for no admin call any more."""
        if self._admin is not None:
            self._admin.hurry()

    async def close(self) -> None:
        """After the last request."""
        self.access.close()
        if self._admin is not None:
            await self._admin.drain(_ADMIN_DRAIN_S)
        if self._audit is not None:
            self._audit.close()


def _access(settings: security_settings.Settings) -> access.Access:
    if settings.jwks:
        # Only here: what checks signatures takes a tenth of a second and memory to import.
        from castiron.server.security import tokens

        return tokens.Tokens(settings)
    grant = rights.holder("", _open_actions(settings))
    return access.Fixed(grant, is_open=not settings.client_ca)


def _open_actions(settings: security_settings.Settings) -> tuple[str, ...]:
    """What may be done on the data port without a token.

    Loading and unloading only by programs of this machine, while there is no admin port.
    """
    is_ours_alone = not settings.insecure and not settings.client_ca
    return rights.ACTIONS if is_ours_alone and settings.admin_port < 0 else _DATA


def _check_files(settings: security_settings.Settings) -> None:
    rules: list[tuple[bool, str]] = [
        (bool(settings.tls_cert) == bool(settings.tls_key), "--tls-cert and --tls-key: both"),
        (not settings.client_ca or bool(settings.tls_cert), "--client-ca: --tls-cert too"),
        (
            not settings.admin_client_ca or bool(settings.tls_cert),
            "--admin-client-ca: --tls-cert too",
        ),
        (
            bool(settings.jwks) or not (settings.issuer or settings.audience),
            "--issuer and --audience: --jwks too, without which no token is asked for",
        ),
        (settings.leeway_s >= 0, "--leeway-s: zero or more"),
    ]
    for is_met, expected in rules:
        if not is_met:
            flag, what = expected.split(": ", 1)
            raise errors.CastironError(f"{flag}: expected {what}")


def _certificates(settings: security_settings.Settings, client_ca: str) -> tls.Certificates | None:
    if not settings.tls_cert:
        return None
    return tls.Certificates(settings.tls_cert, settings.tls_key, client_ca)
