"""Many Cases against one server, some hundred side by side; what was found is in a Report.

The judge of single answers is ``judge.py``; here are hangs, the server's health and its memory.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import struct
import time
from dataclasses import dataclass, field

from tests.fuzz import judge, mutations, served

_SIDE_BY_SIDE = 160
# What may be added after a quarter of a run: glibc keeps some of what peaks leave behind.
_ROOM_BYTES = 24 << 20


@dataclass(slots=True)
class Report:
    """Counts by status and by family, and every complaint with the number of its Case."""

    codes: collections.Counter[str] = field(default_factory=collections.Counter)
    families: collections.Counter[str] = field(default_factory=collections.Counter)
    complaints: list[str] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    longest_s: float = 0.0
    took_s: float = 0.0

    def text(self) -> str:
        """For people."""
        total = sum(self.families.values())
        lines = [f"{total} cases in {self.took_s:.1f} s, the longest {self.longest_s:.1f} s"]
        lines += [f"  {code:>12} {count}" for code, count in sorted(self.codes.items())]
        lines.append("resident MB: " + " ".join(str(size >> 20) for size in self.rss_bytes))
        lines += [f"! {line}" for line in self.complaints[:20]]
        if len(self.complaints) > 20:
            lines.append(f"! and {len(self.complaints) - 20} more")
        return "\n".join(lines)


def run(server: served.Server, seed: int, numbers: range) -> Report:
    """Send the Cases of these numbers and judge everything."""
    report = Report()
    begun_s = time.monotonic()
    quarter = max(1, len(numbers) // 4)
    for first in range(0, len(numbers), quarter):
        part = numbers[first : first + quarter]
        send(server.port, seed, part, report)
        if not server.is_alive:
            report.complaints.append(
                f"the server died before case {part[-1]}: {server.log()[-1500:]}"
            )
            return report
        report.rss_bytes.append(server.rss_bytes())
    report.took_s = time.monotonic() - begun_s
    report.complaints.extend(_after(server, report))
    return report


def _after(server: served.Server, report: Report) -> list[str]:
    """Whether the server is as it was."""
    found = []
    server.get("/v2/health/ready")
    end = time.monotonic() + served.DEADLINE_S
    while (counts := server.counts())["in_flight"] and time.monotonic() < end:
        time.sleep(0.1)
    if counts["in_flight"] or counts["accepted"] != counts["ended"]:
        found.append(f"requests are not all accounted for: {counts}")
    grown = report.rss_bytes[-1] - report.rss_bytes[0]
    if grown > _ROOM_BYTES:
        found.append(f"memory grew by {grown >> 20} MB after the first quarter")
    if "Traceback" in (log := server.log()):
        found.append(f"its log: ...{log[log.index('Traceback') :][:1500]}")
    return found


def send(port: int, seed: int, numbers: range, report: Report) -> None:
    """Send the Cases of these numbers to a port; what single answers show goes into the report."""
    asyncio.run(_part(port, seed, numbers, report))


async def _part(port: int, seed: int, numbers: range, report: Report) -> None:
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await _judged(port, (seed, number), report)

    await asyncio.gather(*(work() for _ in range(_SIDE_BY_SIDE)))


async def _judged(port: int, name: tuple[int, int], report: Report) -> None:
    case = mutations.case(*name)
    begun_s = time.monotonic()
    report.families[case.family] += 1
    client = _Client()
    try:
        await asyncio.wait_for(_send(port, case, client), served.DEADLINE_S)
        found = list(judge.answers(b"".join(client.parts), b"".join(case.pieces)))
    except TimeoutError:
        report.complaints.append(f"{name} {case.family}: the connection stays open")
        return
    except judge.UnreadableError as fault:
        report.complaints.append(f"{name} {case.family}: {fault}")
        return
    report.longest_s = max(report.longest_s, time.monotonic() - begun_s)
    report.codes.update([str(answer.code) for answer in found] or ["no answer"])
    if client.is_late and (not found or found[-1].code == 408):
        return  # we were, on a busy machine; to give up on us is right
    for complaint in judge.complaints(case, found):
        report.complaints.append(f"{name} {case.family}: {complaint}")


class _Client(asyncio.Protocol):
    """Keeps all that comes, also what came before a reset."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_late = False
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed.set()


async def _send(port: int, case: mutations.Case, client: _Client) -> None:
    """Send a Case, and wait until the server closes."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    transport, _ = await loop.create_connection(lambda: client, "127.0.0.1", port)
    try:
        for piece in case.pieces:
            if client.closed.is_set():
                break
            transport.write(piece)
            client.is_late = loop.time() - begun_s > served.PATIENCE_S
            await asyncio.sleep(case.pause_s)
        if case.ending == mutations.ABORT:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if case.ending == mutations.HALF and not transport.is_closing():
            with contextlib.suppress(OSError):
                transport.write_eof()
        await client.closed.wait()
    finally:
        transport.abort()
