"""One HTTP connection: uvicorn's protocol with bounds on heads, on slowness, and one error body.

Also tells the request in progress when its client has gone, which ASGI tells only to those who
wait for it. A sweeper (``life.py``) compares ``late_at_s`` with the clock about once a second, so
the bounds cost no timer for each request.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import httptools
from uvicorn import config as uvicorn_config
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from castiron.server import intake, meters, status
from castiron.server import settings as server_settings

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class Outlet:
    """A transport whose writes can be held for a moment, so that head and body leave in one.

    The loop makes a system call for each write, which costs as much as all of our parsing.
    """

    __slots__ = (
        "_held", "_transport", "abort", "get_extra_info", "is_closing", "pause_reading",
        "resume_reading", "write",
    )  # fmt: skip

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self.write: Callable[[bytes], None] = transport.write
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def hold(self) -> None:
        """Keep what is written from now on."""
        self.write = self._held.append

    def release(self) -> None:
        """Write what was held, in one piece."""
        self.write = self._transport.write
        if self._held:
            self.write(b"".join(self._held))
            self._held.clear()

    def close(self) -> None:
        """Write what was held and close."""
        self.release()
        self._transport.close()


class Edge(httptools_impl.HttpToolsProtocol):
    """A connection; made by uvicorn through ``maker``."""

    def __init__(
        self, *args: Any, bounds: server_settings.Settings, counted: meters.Meters
    ) -> None:
        super().__init__(*args)
        self._bounds = bounds
        self._counted = counted
        self._head_bytes = 0
        self._fed_bytes = 0
        self._in_head = True
        self._taken: memoryview | None = None
        self.whole: intake.Whole | None = None
        self.late_at_s = math.inf
        self._unread_at_s = math.inf
        self._refusal: bytes | None = None
        self.on_gone: Callable[[], None] | None = None
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        """A client has connected; its first head is due."""
        self.outlet = Outlet(transport)
        super().connection_made(self.outlet)  # type: ignore[arg-type]
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was told to."""
        self.is_lost = True
        self.late_at_s = math.inf
        self.whole = self._taken = None
        super().connection_lost(exc)
        if self.on_gone is not None:
            self.on_gone()

    def data_received(self, data: bytes) -> None:
        """Bytes came; a head that does not end is counted here, since no callback tells of it."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        if self._in_head:
            data = _without_upgrade(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing that we speak follows; the request itself is answered.
            if self._current is not None:
                self._current.keep_alive = False
        except (httptools.HttpParserError, UnicodeError) as fault:
            if self._head_bytes > self._bounds.max_head_bytes:
                self._refuse_head()
            else:
                self.refuse(400, f"expected an HTTP/1.1 request: {_cause(fault)}", "malformed")
            return
        if self._in_head:
            self._fed_bytes += len(data)
            if self._fed_bytes > self._bounds.max_head_bytes + intake.SCRATCH_BYTES:
                self._refuse_head()

    @property
    def _current(self) -> httptools_impl.RequestResponseCycle | None:
        """The latest request of this connection, if there was one."""
        return self.cycle

    @property
    def peer(self) -> str:
        """The client's address, without its port."""
        return self.client[0] if self.client else ""

    @property
    def awaits_continue(self) -> bool:
        """Whether the client holds its body back until it is told to go on."""
        cycle = self._current
        return cycle is not None and cycle.waiting_for_100_continue

    def _refuse_head(self) -> None:
        limit = self._bounds.max_head_bytes
        self.refuse(431, f"headers: expected at most {limit} bytes, found more", "large_head")

    def refuse(self, code: int, message: str, reason: str) -> None:
        """Answer with an error if nothing was answered yet, and end the connection."""
        self._counted.refused_heads.child(reason).value += 1
        self.late_at_s = math.inf
        if self.transport.is_closing():
            return
        content = status.body_of(message)
        refusal = (
            httptools_impl.STATUS_LINE[code]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n" % len(content)
            + content
        )
        if self._owes_answers():
            self._refusal = refusal
            return
        cycle = self._current
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(refusal)
        if cycle is not None and not cycle.response_started:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def _owes_answers(self) -> bool:
        """Whether requests before the faulty one wait for theirs; a client takes them in order."""
        cycle = self._current
        if cycle is None or cycle.response_complete:
            return False
        if cycle.more_body and self.pipeline:
            self.pipeline.popleft()  # the faulty one itself
            return True
        return not cycle.more_body

    def write_whole(
        self, scope: Any, headers: Sequence[tuple[bytes, bytes]], body: bytes | memoryview
    ) -> bool:
        """Write a whole answer with code 200 at once, if nothing stands in its way.

        The same bytes and the same end as by the ASGI messages, without looking through each
        header for what cannot be in one that is made here.
        """
        cycle = self._current
        if (
            cycle is None
            or cycle.scope is not scope
            or cycle.response_started
            or cycle.disconnected
            or cycle.access_log
            or not cycle.keep_alive
            or cycle.flow.write_paused
            or scope["method"] == "HEAD"
        ):
            return False
        parts = [httptools_impl.STATUS_LINE[200]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        head = b"".join(parts)
        assert head.count(b"\n") == len(parts) // 4 + 1, "a header holds the end of a line"
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(head + b"\r\n" + body)
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """An answer was given; a refusal that had to wait for it follows."""
        was_last = not self.pipeline
        super().on_response_complete()
        if self._refusal is not None and was_last and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.transport.write(self._refusal)
            self.transport.close()

    def check_time(self, now_s: float) -> None:
        """Refuse a client that is late with its head or body; drop one that does not read."""
        if now_s >= self._unread_at_s:
            self._unread_at_s = math.inf
            self._counted.refused_heads.child("unread").value += 1
            self.transport.abort()
            return
        if now_s < self.late_at_s or self.flow.read_paused:
            return
        if self._in_head and self._head_bytes + self._fed_bytes == 0:
            self.transport.close()  # it has asked nothing
        else:
            self.refuse(408, "the request took too long to arrive", "late")

    def pause_writing(self) -> None:
        """The client does not read its answer as fast as we write it."""
        self._unread_at_s = self.loop.time() + self._bounds.body_timeout_s
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has read enough for more to be written."""
        self._unread_at_s = math.inf
        super().resume_writing()

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        super().on_message_begin()
        self.scope["castiron.edge"] = self  # type: ignore[typeddict-unknown-key]
        self._expect_head()

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._fed_bytes = 0
        self.late_at_s = self.loop.time() + self._bounds.head_timeout_s

    def on_url(self, url: bytes) -> None:
        """A piece of the address."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, also those after a chunked body."""
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._bounds.max_head_bytes:
            raise ValueError("too large")

    def on_headers_complete(self) -> None:
        """The head is there; the request starts, its body is due."""
        self._in_head = False
        self.late_at_s = self.loop.time() + self._bounds.body_timeout_s
        super().on_headers_complete()
        size = _number_in(self.headers, b"content-length")
        if not self.pipeline and intake.SCRATCH_BYTES <= size <= self._bounds.max_body_bytes:
            json_bytes = _number_in(self.headers, b"inference-header-content-length")
            self.whole = intake.Whole(size, json_bytes)

    def on_body(self, body: bytes) -> None:
        """A piece of the body, which gives it time for more."""
        self.late_at_s += len(body) / self._bounds.min_body_rate
        if self.whole is not None:
            self.whole.add(body)
        else:
            super().on_body(body)

    def room(self, scratch: memoryview) -> memoryview:
        """Where the loop puts the next bytes."""
        if self.whole is None:
            return scratch
        if self.cycle.response_complete:
            self.whole.drop()
        return self.whole.room(scratch)

    def body_received(self, size: int) -> None:
        """So many bytes of a large body were put into its own memory, past the parser."""
        assert self.whole is not None
        self._unset_keepalive_if_required()
        self.late_at_s += size / self._bounds.min_body_rate
        if not self.whole.advance(size):
            return
        self._taken, self.whole = self.whole.take(), None
        self._counted.direct_bodies.value += 1
        # The old parser still waits for the body.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.on_message_complete()

    def take_body(self) -> memoryview | None:
        """The large body that has just been received, once."""
        taken, self._taken = self._taken, None
        return taken

    def on_message_complete(self) -> None:
        """All of the body is there."""
        self.late_at_s = math.inf
        if self._current is not None and self._current.response_complete:
            # Answered before its body came; idle from now on.
            self.late_at_s = self.loop.time() + self._bounds.keep_alive_s
        super().on_message_complete()


def maker(bounds: server_settings.Settings, counted: meters.Meters) -> Callable[..., intake.Intake]:
    """What uvicorn calls for each connection."""
    scratch = memoryview(bytearray(intake.SCRATCH_BYTES))

    def make(
        config: uvicorn_config.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> intake.Intake:
        inner = Edge(config, server_state, app_state, _loop, bounds=bounds, counted=counted)
        return intake.Intake(inner, scratch)

    return make


def _number_in(headers: list[tuple[bytes, bytes]], wanted: bytes) -> int:
    """The number in a header, 0 when there is none; what is wrong with it is told elsewhere."""
    for name, value in headers:
        if name == wanted and value.isdigit() and len(value) < 16:
            return int(value)
    return 0


def _cause(fault: Exception) -> BaseException:
    """What went wrong inside one of our callbacks, else what the parser says."""
    is_callback = isinstance(fault, httptools.HttpParserCallbackError)
    return (fault.__context__ or fault) if is_callback else fault


def _without_upgrade(data: bytes) -> bytes:
    """The head with its offer to change protocols renamed, which a server may ignore.

    The parser would take a body that follows for the other protocol; some clients offer HTTP/2
    with every first request.
    """
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, mark, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-offer:", head) + mark + rest
