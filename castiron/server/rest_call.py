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


class Reading:
    """What the head of an infer call says, read once for all that come with the same head.

    ``check`` reads what may be wrong, and is called when the call counts as accepted.
    """

    __slots__ = (
        "_headers", "client", "is_checked", "is_plain", "is_retry", "json_bytes", "parent",
        "timeout_s", "trace_state",
    )  # fmt: skip

    def __init__(self, headers: Mapping[bytes, bytes], given: server_settings.Settings) -> None:
        self._headers = headers
        self.client = client_of(headers, "", given)
        self.is_retry = is_retry(headers)
        self.parent, self.trace_state = headers.get(b"traceparent"), headers.get(b"tracestate")
        self.is_checked = False
        self.timeout_s: float | None = None
        self.json_bytes: int | None = None
        self.is_plain = b"content-length" in headers and b"content-encoding" not in headers

    def check(self) -> None:
        """Raises InputError and Refusal."""
        self.timeout_s = timeout_s(self._headers)
        self.json_bytes = json_length(self._headers)
        self.is_checked = True


class RestCall(call.Call):
    """One call with a body of its own; ``subject`` is who its token says that it is."""

    __slots__ = ("_exchange", "_reading", "_settings")

    def __init__(
        self,
        route: routes.Route,
        exchange: exchanges.Exchange,
        given: server_settings.Settings,
        subject: str = "",
    ) -> None:
        head = exchange.head
        reading = head.reading
        if type(reading) is not Reading:
            reading = head.reading = Reading(head.headers, given)
        # Rate limits count who it is; what a client calls itself comes after that.
        super().__init__(route.model, route.version, subject or reading.client or exchange.peer)
        self.is_retry = reading.is_retry
        self.parent, self.trace_state = reading.parent, reading.trace_state
        self._reading = reading
        self._exchange = exchange
        self._settings = given

    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """All of the body, then what it says."""
        reading = self._reading
        if not reading.is_checked:
            reading.check()
        self.timeout_s = reading.timeout_s
        version.bound(held)
        exchange = self._exchange
        if reading.is_plain and exchange.is_complete:
            content = held.whole(exchange)
        else:
            content = await held.read(exchange)
        self.timeline.read_ns = time.monotonic_ns()
        json_bytes = reading.json_bytes
        bound_json(json_bytes, content, self._settings)
        return inference.parse(content, json_bytes, version.interface)

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


def json_length(headers: Mapping[bytes, bytes]) -> int | None:
    """How long the JSON at the head of a body is; None: all of it is JSON."""
    text = headers.get(_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise status.Refusal(
            400, "headers.inference-header-content-length: expected a number of bytes"
        )
    return int(text)


def bound_json(
    json_bytes: int | None, content: bytes | memoryview, given: server_settings.Settings
) -> None:
    """Refuse long JSON."""
    limit = given.max_json_bytes
    if len(content) <= limit:
        return
    size = len(content) if json_bytes is None else json_bytes
    if size > limit:
        raise status.Refusal(
            413,
            f"body: expected at most {limit} bytes of JSON, found {size}; "
            "send large tensors as binary data",
        )
