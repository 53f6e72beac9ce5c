"""One HTTP connection: bytes to exchanges in order, with bounds on heads and on slowness.

It is an ``asyncio.BufferedProtocol``, since the loop can then put a large body straight where its
tensors will be read. A sweeper (``listener.py``) compares ``late_at_s`` with the clock about once
a second, so the bounds cost no timer for each request.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import Any

import httptools

from castiron.server import status
from castiron.server.http import eager, exchange, heads, known, linger, port, whole

log = logging.getLogger("castiron.server")

_MOST_AT_ONCE = 8
_HEAD_END = b"\r\n\r\n"
# When a client that sends no more is first asked whether it still reads.
_STILL_THERE_S = 0.05


class Connection(asyncio.BufferedProtocol):
    """A client that asks one thing after another; answers keep the order of the requests."""

    __slots__ = (
        "_bounds", "_current", "_fed_bytes", "_has_paused", "_head_bytes", "_in_head",
        "_is_beginning", "_is_idle", "_latest", "_lines", "_linger", "_loop", "_max_head_bytes",
        "_parser", "_peer_port", "_port", "_queue", "_refusal", "_room", "_unread_at_s",
        "_unread_bytes", "_url", "_whole", "is_last", "late_at_s", "peer", "transport", "was_idle",
    )  # fmt: skip

    def __init__(self, shared: port.Port) -> None:
        self._port = shared
        self._bounds = shared.bounds
        self._max_head_bytes = shared.bounds.max_head_bytes
        self._loop = asyncio.get_running_loop()
        self._current: exchange.Exchange | None = None  # it is answered next
        self._latest: exchange.Exchange | None = None  # its body comes, or came last
        self._queue: deque[exchange.Exchange] = deque()
        self._is_beginning = False
        self._url = b""
        self._lines: exchange.Headers = []
        self._head_bytes = self._fed_bytes = 0
        self._in_head = self._is_idle = True
        self._whole: whole.Whole | None = None
        self._linger: linger.Linger | None = None
        self._refusal = b""
        self._has_paused = False
        self._room: asyncio.Future[None] | None = None
        self._unread_at_s = self.late_at_s = math.inf
        self._unread_bytes = 0
        self.was_idle = False  # when it was told to close
        self.is_last = False  # what is asked now is answered, then it closes
        self.peer, self._peer_port = "", 0
        self._parser = self._new_parser()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # What follows a request that says "connection: close" is ignored, not an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # The client comes and goes.

    def connection_made(self, transport: Any) -> None:
        """A client has connected; its first head is due."""
        self.transport = transport
        self._port.connections.add(self)
        address = transport.get_extra_info("peername")
        self.peer, self._peer_port = (str(address[0]), address[1]) if address else ("", 0)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was told to."""
        del exc
        self._port.connections.discard(self)
        self.late_at_s = math.inf
        self._whole = None
        self._free_room()
        waiting = [each for each in (self._current, *self._queue) if each is not None]
        self._current = None
        self._queue.clear()
        for each in waiting:
            each.leave()

    def eof_received(self) -> bool:
        """The client sends no more; whether it may still read. One that waits for nothing is gone.

        Whether it has only ended its own side cannot be seen, so it is asked: an interim answer
        makes the system of a client that has gone reset the connection. TLS ends both sides.
        """
        if self._current is None or self._linger is not None or not self.transport.can_write_eof():
            return False
        if self._latest is None or not self._latest.is_complete:
            return False
        self.late_at_s = math.inf
        if not self.is_last:
            self.is_last = True
            self._loop.call_later(_STILL_THERE_S, self._ask_again, _STILL_THERE_S)
        return True

    def _ask_again(self, waited_s: float) -> None:
        if self._current is not None and not self.transport.is_closing():
            self._current.tell_interim()
            self._loop.call_later(2 * waited_s, self._ask_again, 2 * waited_s)

    @property
    def address(self) -> str:
        """The client's address and port, for logs."""
        return f"{self.peer}:{self._peer_port}"

    def shut_down(self) -> None:
        """Close when what was asked is answered, at once when nothing was."""
        self.is_last = True
        if self._current is None:
            self.was_idle = self._room is None
            self.transport.close()

    # What it sends.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts what comes next."""
        del sizehint
        if self._whole is None or self._linger is not None:
            return self._port.scratch
        return self._whole.room(self._port.scratch)

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes were put there."""
        if self._linger is not None:
            self._linger.took(nbytes)
            return
        if self._whole is not None:
            self._fill(nbytes)
        elif not self._refusal:
            data = bytes(self._port.scratch[:nbytes])
            if not self._is_idle or not self._take_known(data):
                self._parse(data)
        if self._current is not None and not self._current.is_begun:
            self._begin()

    def _take_known(self, data: bytes) -> bool:
        """Take a whole request whose head came before; whether it was one."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        found = self._port.heads.find(data[:end])
        if found is None or len(data) != end + found.body_bytes or self._current is not None:
            return False
        self._latest = self._current = latest = exchange.Exchange(self, found.head)
        latest.complete(data[end:])
        self._in_head = self._is_idle = False
        self.late_at_s = math.inf
        return True

    def _remember(self, data: bytes) -> None:
        """Keep the head of a request that came whole and alone, for the next one like it."""
        latest = self._latest
        if latest is None or latest is not self._current or latest.is_begun:
            return  # none came with these bytes, or it waits behind another one
        if latest.is_complete and latest.keeps_alive:
            end = data.find(_HEAD_END) + len(_HEAD_END)
            self._port.heads.keep(data[:end], len(data) - end, latest.head)

    def _parse(self, data: bytes) -> None:
        """What does not end is counted here, since no callback tells of it: lines, also those after
        a body, and what may stand beside the size of a chunk.
        """
        was_idle = self._is_idle
        try:
            self._parser.feed_data(heads.without_upgrade(data) if self._in_head else data)
        except httptools.HttpParserUpgrade:
            # Nothing that we speak follows; the request itself is answered.
            if self._latest is not None:
                self._latest.keeps_alive = False
        except (httptools.HttpParserError, UnicodeError) as fault:
            self._refuse_faulty(_cause(fault))
            return
        if was_idle:
            self._remember(data)
        self._fed_bytes += len(data)
        if self._fed_bytes > self._max_head_bytes + port.SCRATCH_BYTES:
            self._refuse_head()

    def _fill(self, size: int) -> None:
        """So many bytes of a large body were put into its own memory, past the parser."""
        assert self._whole is not None
        self.late_at_s += size / self._bounds.min_body_rate
        if not self._whole.advance(size):
            return
        taken, self._whole = self._whole.take(), None
        self._port.counted.direct_bodies.value += 1
        self._parser = self._new_parser()  # the old one still waits for the body
        self._end_message(taken)

    def _begin(self) -> None:
        """Let the application begin with what is asked, and with some of what follows at once.

        Others have their turn then, however many requests one client has sent together. One that
        does not read its answers gets no more of them.
        """
        self._is_beginning = True
        for _ in range(_MOST_AT_ONCE):
            current = self._current
            if current is None or current.is_begun or self._room is not None:
                break
            self._begin_one(current)
        else:
            self._loop.call_soon(self._begin)
        self._is_beginning = False

    def _begin_one(self, current: exchange.Exchange) -> None:
        current.is_begun = True
        try:
            task = eager.start(self._port.application(current))
        except Exception:
            log.exception("%s %s failed", current.method, current.path)
            self.transport.abort()
            return
        if task is not None:
            self._port.tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Applications answer their own errors; one that raises has left an answer unfinished."""
        self._port.tasks.discard(task)
        if task.cancelled():
            if self._current is not None:
                self.transport.abort()
        elif (fault := task.exception()) is not None:
            log.error("an answer was not finished", exc_info=fault)
            self.transport.abort()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._url = b""
        self._lines = []
        self._is_idle = False
        self._expect_head()

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = self._fed_bytes = 0
        self.late_at_s = self._loop.time() + self._bounds.head_timeout_s

    def on_url(self, url: bytes) -> None:
        """A piece of the address."""
        self._head_bytes += len(url)
        if self._head_bytes > self._max_head_bytes:
            raise ValueError("too large")
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, also those after a chunked body."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._max_head_bytes:
            raise ValueError("too large")
        self._lines.append((name.lower(), value.rstrip(b" \t")))  # white space is no part of it

    def on_headers_complete(self) -> None:
        """The head is there; the request waits for its turn, its body is due."""
        parser = self._parser
        version = parser.get_http_version()
        is_old = version == "1.0"
        head = known.Head(
            parser.get_method().decode("ascii"), heads.path_of(self._url), self._lines,
            keeps_alive=not is_old and parser.should_keep_alive(), is_old=is_old,
        )  # fmt: skip
        heads.check(head.lines, head.headers, version)
        if parser.should_upgrade():
            heads.refuse_upgrade(head.headers)
        self._latest = latest = exchange.Exchange(self, head)
        self._lines = []  # what follows a chunked body is no header of the request
        self._in_head = False
        self._fed_bytes = 0
        self.late_at_s = self._loop.time() + self._bounds.body_timeout_s
        if self._current is not None:
            self._queue.append(latest)
            self.pause_reading()
            return
        self._current = latest
        size = heads.number_in(head.headers, b"content-length")
        if port.SCRATCH_BYTES <= size <= self._bounds.max_body_bytes:
            json_bytes = heads.number_in(head.headers, b"inference-header-content-length")
            self._whole = whole.Whole(size, json_bytes)

    def on_body(self, body: bytes) -> None:
        """A piece of the body, which gives it time for more."""
        self.late_at_s += len(body) / self._bounds.min_body_rate
        self._fed_bytes = 0
        if self._whole is not None:
            self._whole.add(body)
        else:
            assert self._latest is not None
            self._latest.add(body)

    def on_message_complete(self) -> None:
        """All of the body is there."""
        self._end_message(None)

    def _end_message(self, taken: memoryview | None) -> None:
        assert self._latest is not None
        self.late_at_s = math.inf
        if self._latest.is_answered:  # before its body came; idle from now on
            self._expect_next()
        self._latest.complete(taken)

    def _expect_next(self) -> None:
        """Nothing is asked: the next head may take its time."""
        self._in_head = self._is_idle = True
        self._head_bytes = self._fed_bytes = 0
        self.late_at_s = self._loop.time() + self._bounds.keep_alive_s

    # Called by exchanges.

    @property
    def date_line(self) -> bytes:
        """The header line that tells the time."""
        return self._port.date_line

    @property
    def ends_now(self) -> bool:
        """Whether the answer that is due now is the last one."""
        return self.is_last and not self._queue

    def pause_reading(self) -> None:
        """Let the client wait with what it sends."""
        if not self._has_paused:
            self._has_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Let it send on."""
        if self._has_paused and not self.transport.is_closing():
            self._has_paused = False
            self.transport.resume_reading()

    def write(self, data: exchange.Bytes) -> None:
        """Send; what the client does not take at once is kept."""
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def room(self) -> None:
        """Wait until the client has read enough of what was written."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def answered(self, done: exchange.Exchange) -> None:
        """An answer was written: on to the next request, or to the end."""
        self._current = self._queue.popleft() if self._queue else None
        if self._whole is not None:
            self._whole.drop()
        if not done.keeps_alive:
            self._end(is_whole=done.is_complete and not self._has_paused)
            return
        self._read_on()
        if self._current is None:
            self._end_turn(done)
        elif not self._is_beginning:
            self._loop.call_soon(self._begin)

    def _read_on(self) -> None:
        """Take more, unless the client has yet to read its answers, or has asked ahead."""
        if self._room is None and not self._queue:
            self.resume_reading()

    def _end_turn(self, done: exchange.Exchange) -> None:
        if self._refusal:
            self.write(self._refusal)
            self._end(is_whole=False)
        elif done.is_complete and not self._in_head:
            self._expect_next()

    def _end(self, *, is_whole: bool) -> None:
        """The last answer was written; a client that may still send must not lose it."""
        self._current = self._whole = None
        self._queue.clear()
        if is_whole or self.transport.is_closing():
            self.transport.close()
            return
        self.late_at_s = math.inf
        self._linger = linger.Linger(self.transport, self._bounds, self._loop.time())
        self.resume_reading()

    def outlasts(self, asked: exchange.Exchange) -> bool:
        """Whether more of a body may come than is worth reading once it is answered."""
        size = asked.headers.get(b"content-length", b"")
        most = linger.most_bytes(self._bounds)
        return not size.isdigit() or len(size) > 15 or int(size) > most

    # Bounds.

    def _refuse_faulty(self, cause: BaseException) -> None:
        if isinstance(cause, heads.Fault):
            self.refuse(400, str(cause), "malformed")
        elif self._head_bytes > self._max_head_bytes:
            self._refuse_head()
        else:
            self.refuse(400, f"expected an HTTP/1.1 request: {cause}", "malformed")

    def _refuse_head(self) -> None:
        limit = self._bounds.max_head_bytes
        self.refuse(431, f"headers: expected at most {limit} bytes, found more", "large_head")

    def refuse(self, code: int, message: str, reason: str) -> None:
        """Answer with an error if nothing was answered yet, and end the connection."""
        self._port.counted.refused_heads.child(reason).value += 1
        self.late_at_s = math.inf
        if self.transport.is_closing():
            return
        content = status.body_of(message)
        self._refusal = (
            exchange.STATUS_LINES[code]
            + self.date_line
            + b"content-type: application/json\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n" % len(content)
            + content
        )
        if self._owes_answers():
            return
        faulty, self._current = self._current, None
        if faulty is None or not faulty.is_answered:
            self.transport.write(self._refusal)
        if faulty is not None:
            faulty.leave()
        self._end(is_whole=False)

    def _owes_answers(self) -> bool:
        """Whether requests before the faulty one wait for theirs; a client takes them in order."""
        if self._current is None:
            return False
        if self._queue and not self._queue[-1].is_complete:
            self._queue.pop()  # the faulty one itself
            return True
        return self._current.is_complete

    def check_time(self, now_s: float) -> None:
        """Refuse a client that is late with its head or body; drop one that does not read."""
        if now_s >= self._unread_at_s:
            self._check_reader(now_s)
        if self._linger is not None:
            self._linger.check_time(now_s)
        if now_s < self.late_at_s or self._has_paused:
            return
        if self._is_idle:
            self.transport.close()  # it has asked nothing
        else:
            self.refuse(408, "the request took too long to arrive", "late")

    def pause_writing(self) -> None:
        """The client does not read its answer as fast as we write it."""
        self._room = self._loop.create_future()
        self._expect_reader(self._loop.time())

    def _expect_reader(self, now_s: float) -> None:
        self._unread_at_s = now_s + self._bounds.body_timeout_s
        self._unread_bytes = self.transport.get_write_buffer_size()

    def _check_reader(self, now_s: float) -> None:
        """Drop a client that has read slower than it may send."""
        taken = self._unread_bytes - self.transport.get_write_buffer_size()
        if taken >= self._bounds.min_body_rate * self._bounds.body_timeout_s:
            self._expect_reader(now_s)
            return
        self._unread_at_s = math.inf
        self._port.counted.refused_heads.child("unread").value += 1
        self.transport.abort()

    def resume_writing(self) -> None:
        """The client has read enough for more to be written."""
        self._unread_at_s = math.inf
        self._free_room()
        self._read_on()
        if self._current is not None and not self._current.is_begun:
            self._loop.call_soon(self._begin)

    def _free_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None


def _cause(fault: Exception) -> BaseException:
    """What went wrong inside one of our callbacks, else what the parser says."""
    is_callback = isinstance(fault, httptools.HttpParserCallbackError)
    return (fault.__context__ or fault) if is_callback else fault
