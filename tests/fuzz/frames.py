"""Raw HTTP/2 to the gRPC port: right conversations, then changed frame by frame and byte by byte.

The library below the service reads these bytes; what is asked is that no conversation ends the
server, keeps it busy, or keeps its connection open once we have closed our side.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Callable

from tests.fuzz import mutations, report, rpc, served

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _MORE = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_SIDE_BY_SIDE = 40
# A right conversation is answered and then left; the others are given as long to be answered.
_ANSWER_S = 2.0
# The port is opened again when a method's name that is no text has closed it; what was under way
# is lost then.
_REOPENED_S = 2.0
_AGAIN = 5

Frames = list[bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _line(name: str, value: str) -> bytes:
    """A header that no table remembers (RFC 7541, section 6.2.2), without Huffman's code."""
    return b"\0" + b"".join(_sized(each.encode()) for each in (name, value))


def _sized(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, low = divmod(len(text) - 127, 128)
    return bytes([127, low | (128 if rest else 0)]) + (bytes([rest]) if rest else b"") + text


def head(method: str) -> bytes:
    """The header block of a call."""
    lines = [(":method", "POST"), (":scheme", "http"), (":path", rpc.SERVICE + method),
             (":authority", "localhost"), ("te", "trailers"), ("content-type", "application/grpc")]  # fmt: skip
    return b"".join(_line(*each) for each in lines)


def message(data: bytes) -> bytes:
    """A message as gRPC writes it into DATA frames."""
    return b"\0" + struct.pack(">I", len(data)) + data


def right(dice: random.Random, calls: int = 1) -> Frames:
    """A conversation with some calls that are right."""
    frames = [PREFACE, frame(_SETTINGS, 0, 0)]
    for number in range(calls):
        stream = 2 * number + 1
        asked = rpc.call(dice.randrange(1 << 30), 0)
        block, body = head(asked.method or "ServerLive"), message(asked.data)
        cut = dice.randrange(len(body) + 1)
        frames.append(frame(_HEADERS, _END_HEADERS, stream, block))
        if dice.random() < 0.3:
            frames.append(frame(_DATA, 0, stream, body[:cut]))
            body = body[cut:]
        frames.append(frame(_DATA, _END_STREAM, stream, body))
    return frames


def _moved(dice: random.Random) -> Frames:
    """Frames left out, doubled, or in another order; the preface stays."""
    first, *frames = right(dice, dice.randint(1, 4))
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(frames))
        match dice.randrange(3):
            case 0 if len(frames) > 1:
                del frames[place]
            case 1:
                frames.insert(dice.randrange(len(frames)), frames[place])
            case _:
                other = dice.randrange(len(frames))
                frames[place], frames[other] = frames[other], frames[place]
    return [first, *frames]


def _odd(dice: random.Random) -> Frames:
    """Frames of any kind, flags and stream put in anywhere, some with lengths that lie."""
    frames = right(dice, dice.randint(1, 3))
    for _ in range(dice.randint(1, 5)):
        payload = dice.randbytes(dice.choice([0, 1, 4, 5, 6, 8, 9, 40]))
        stream = dice.choice([0, 1, 1, 2, 3, 5, 2**31 - 1, 2**32 - 1])
        made = bytearray(frame(dice.randrange(14), dice.randrange(256), stream, payload))
        if dice.random() < 0.2:
            made[:3] = dice.choice([b"\xff\xff\xff", b"\0\0\1", b"\0\x40\x01"])
        frames.insert(dice.randint(1, len(frames)), bytes(made))
    return frames


def _bytes(dice: random.Random) -> Frames:
    """Any bytes after the preface changed."""
    first, *frames = right(dice, dice.randint(1, 3))
    return [first, mutations.bytes_changed(b"".join(frames), dice)]


def _flood(dice: random.Random) -> Frames:
    """Some thousand small frames of one kind, or calls that are taken back at once."""
    count = dice.choice([200, 3000])
    block = head("ServerLive")
    kinds: list[Callable[[int], bytes]] = [
        lambda n: frame(_PING, 0, 0, struct.pack(">Q", n)),
        lambda n: frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535 + n % 7)),
        lambda _: frame(_SETTINGS, _ACK, 0),
        lambda n: (
            frame(_HEADERS, _END_HEADERS, 2 * n + 1, block)
            + frame(_RESET, 0, 2 * n + 1, struct.pack(">I", 8))
        ),
        lambda n: frame(_HEADERS, _END_HEADERS, 2 * n + 1, block),
        lambda _: frame(_WINDOW, 0, 0, struct.pack(">I", 1)),
        lambda _: frame(_DATA, 0, 1, b""),
        lambda n: frame(_PRIORITY, 0, 2 * n + 1, struct.pack(">IB", 0, 1)),
        lambda n: frame(_MORE if n else _HEADERS, 0, 1, b"" if n else block),
    ]
    chosen = dice.choice(kinds)
    start = [PREFACE, frame(_SETTINGS, 0, 0)]
    if dice.random() < 0.5:
        start += [frame(_HEADERS, _END_HEADERS, 1, block)]
    return [*start, b"".join(map(chosen, range(count)))]


_FAMILIES: dict[str, tuple[Callable[[random.Random], Frames], int]] = {
    "right": (right, 2), "moved": (_moved, 3), "odd": (_odd, 4), "bytes": (_bytes, 4),
    "flood": (_flood, 1),
}  # fmt: skip


def conversation(seed: int, index: int) -> tuple[str, Frames]:
    """The one of this number in the run of this seed, and its family."""
    dice = random.Random(f"frames {seed} {index}")
    weights = [weight for _, weight in _FAMILIES.values()]
    family = dice.choices(list(_FAMILIES), weights)[0]
    return family, _FAMILIES[family][0](dice)


def send(port: int, seed: int, numbers: range, found: report.Report) -> None:
    """Have the conversations of these numbers; what each shows goes into the report."""
    asyncio.run(
        report.side_by_side(
            numbers, lambda number: _judged(port, (seed, number), found), _SIDE_BY_SIDE
        )
    )


async def _judged(port: int, name: tuple[int, int], found: report.Report) -> None:
    family, frames = conversation(*name)
    found.families[f"HTTP/2 {family}"] += 1
    begun_s = time.monotonic()
    try:
        came = await asyncio.wait_for(_had(port, frames), served.DEADLINE_S)
        for _ in range(_AGAIN if family == "right" and not came else 0):
            came = came or await asyncio.wait_for(_had(port, frames), served.DEADLINE_S)
    except TimeoutError:
        found.complaints.append(f"HTTP/2 {name} {family}: the connection stays open")
        return
    except OSError as fault:
        found.complaints.append(f"HTTP/2 {name} {family}: {fault}")
        return
    found.longest_s = max(found.longest_s, time.monotonic() - begun_s)
    found.codes["HTTP/2 answered" if came else "HTTP/2 closed"] += 1
    if family == "right" and not came:
        found.complaints.append(f"HTTP/2 {name} right: no answer")


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    end_s = time.monotonic() + _REOPENED_S
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except (ConnectionRefusedError, ConnectionResetError):
            if time.monotonic() > end_s:
                raise
        await asyncio.sleep(0.01)


async def _had(port: int, frames: Frames) -> int:
    """Say it all, close our side after an answer or a while, and wait for the other to close.

    How many bytes came.
    """
    reader, writer = await _connected(port)
    came = 0
    try:
        with contextlib.suppress(OSError):
            for each in frames:
                writer.write(each)
                await writer.drain()
            with contextlib.suppress(TimeoutError):
                came += len(await asyncio.wait_for(reader.read(1 << 16), _ANSWER_S))
            writer.write_eof()
            while data := await reader.read(1 << 16):
                came += len(data)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return came
