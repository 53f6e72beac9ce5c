"""An infer call over HTTP: its headers, its body, and the connection that tells when it is gone.

``rest.py`` makes one for each; many in one body are ``rest_batch.py``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from castiron import errors
from castiron.server import body as bodies
from castiron.server import call, inference, reply, routes, rows, status

if TYPE_CHECKING:
    from castiron.server import served
    from castiron.server import settings as server_settings
    from castiron.server.http import exchange as exchanges

_LENGTH = b"inference-header-content-length"


class RestCall(call.Call):
    """One call with a body of its own."""

    __slots__ = ("_exchange", "_headers", "_settings")

    def __init__(
        self,
        route: routes.Route,
        exchange: exchanges.Exchange,
        given: server_settings.Settings,
    ) -> None:
        headers = exchange.headers
        super().__init__(route.model, route.version, client_of(headers, exchange.peer, given))
        self.is_retry = is_retry(headers)
        self.parent, self.trace_state = headers.get(b"traceparent"), headers.get(b"tracestate")
        self._headers = headers
        self._exchange = exchange
        self._settings = given

    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """All of the body, then what it says."""
        self.timeout_s = timeout_s(self._headers)
        version.bound(held)
        content = await held.read(self._exchange)
        self.timeline.read_ns = time.monotonic_ns()
        length = json_bytes(self._headers, content, self._settings)
        return inference.parse(content, length, version.interface)

    def render(
        self, outputs: rows.Arrays, asked: inference.Inference, version: served.Served
    ) -> reply.Reply:
        """JSON, raw after the JSON, or some of each."""
        return reply.render(outputs, asked, version.interface, version.version)

    @property
    def is_gone(self) -> bool:
        """The connection may have been lost while the body was read."""
        return self._exchange.is_gone

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """The connection tells."""
        self._exchange.on_gone = on_gone


def client_of(headers: Mapping[bytes, bytes], peer: str, given: server_settings.Settings) -> str:
    """Who asks: the client's key if it has one, else its address."""
    key = headers.get(_header_of(given.client_header))
    return peer if key is None else key.decode("latin-1")[:256]


@functools.lru_cache(maxsize=8)
def _header_of(name: str) -> bytes:
    """How the name of a header that a setting names stands among those of a request."""
    return name.lower().encode("latin-1")


def is_retry(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the client says that it asked this before."""
    return headers.get(b"x-retry-attempt", b"0") != b"0"


def timeout_s(headers: Mapping[bytes, bytes]) -> float | None:
    """The header ``timeout``: whole microseconds, as the parameter of that name."""
    text = headers.get(b"timeout")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise errors.InputError("expected whole microseconds", "headers.timeout")
    return inference.timeout_s(int(text))


def json_bytes(
    headers: Mapping[bytes, bytes], content: bytes | memoryview, given: server_settings.Settings
) -> int | None:
    """How long the JSON at the head of a body is; None: the body is JSON. Refuses long JSON."""
    text = headers.get(_LENGTH)
    if text is not None and (not text.isdigit() or len(text) > 18):
        raise status.Refusal(
            400, "headers.inference-header-content-length: expected a number of bytes"
        )
    size = len(content) if text is None else int(text)
    limit = given.max_json_bytes
    if size > limit and len(content) > limit:
        raise status.Refusal(
            413,
            f"body: expected at most {limit} bytes of JSON, found {size}; "
            "send large tensors as binary data",
        )
    return None if text is None else size
