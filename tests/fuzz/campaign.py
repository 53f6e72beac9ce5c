"""Many Cases against one server, some hundred side by side; over both protocols, and below gRPC.

The judge of single answers is ``judge.py``; here are hangs, the server's health and its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterable

from tests.fuzz import frames, judge, mutations, report, rpc, served

PROTOCOLS = ("REST", "gRPC", "HTTP/2")
_SIDE_BY_SIDE = 160
# What the library below gRPC logs of names and headers that are no text; the port is opened again.
_LIBRARY = ('"logger": "grpc._cython.cygrpc"', "exception=UnicodeDecodeError('utf-8', b")
# Conversations of frames hold many calls each, so there are fewer of them.
_CALLS_IN_ONE = 10
# What may be added after a quarter of a run: glibc keeps some of what peaks leave behind.
_ROOM_BYTES = 24 << 20


def run(
    server: served.Server, seed: int, numbers: range, protocols: Iterable[str] = PROTOCOLS
) -> report.Report:
    """Send the Cases of these numbers over each protocol and judge everything."""
    found = report.Report()
    begun_s = time.monotonic()
    quarter = max(1, len(numbers) // 4)
    for first in range(0, len(numbers), quarter):
        part = numbers[first : first + quarter]
        if "REST" in protocols:
            send(server.port, seed, part, found)
        if "gRPC" in protocols:
            rpc.send(server.grpc_port, seed, part, found)
        if "HTTP/2" in protocols:
            frames.send(server.grpc_port, seed, part[::_CALLS_IN_ONE], found)
        if not server.is_alive:
            found.complaints.append(f"it died before case {part[-1]}: {server.log()[-1500:]}")
            return found
        found.rss_bytes.append(server.rss_bytes())
    found.took_s = time.monotonic() - begun_s
    found.complaints.extend(_after(server, found))
    return found


def _after(server: served.Server, found: report.Report) -> list[str]:
    """Whether the server is as it was."""
    complaints = []
    served.wait_ready(server)  # the last call may have loaded a model
    end = time.monotonic() + served.DEADLINE_S
    while (counts := server.counts())["in_flight"] and time.monotonic() < end:
        time.sleep(0.1)
    if counts["in_flight"] or counts["accepted"] != counts["ended"]:
        complaints.append(f"requests are not all accounted for: {counts}")
    grown = found.rss_bytes[-1] - found.rss_bytes[0]
    if grown > _ROOM_BYTES:
        complaints.append(f"memory grew by {grown >> 20} MB after the first quarter")
    lines = server.log().splitlines()
    log = "\n".join(line for line in lines if not any(each in line for each in _LIBRARY))
    if "Traceback" in log:
        complaints.append(f"its log: ...{log[log.index('Traceback') :][:1500]}")
    return complaints


def send(port: int, seed: int, numbers: range, found: report.Report) -> None:
    """Send the Cases of these numbers to a port; what single answers show goes into the found."""
    asyncio.run(
        report.side_by_side(
            numbers, lambda number: _judged(port, (seed, number), found), _SIDE_BY_SIDE
        )
    )


async def _judged(port: int, name: tuple[int, int], found: report.Report) -> None:
    case = mutations.case(*name)
    begun_s = time.monotonic()
    found.families[case.family] += 1
    client = _Client()
    try:
        await asyncio.wait_for(_send(port, case, client), served.DEADLINE_S)
        answers = list(judge.answers(b"".join(client.parts), b"".join(case.pieces)))
    except TimeoutError:
        found.complaints.append(f"{name} {case.family}: the connection stays open")
        return
    except judge.UnreadableError as fault:
        found.complaints.append(f"{name} {case.family}: {fault}")
        return
    found.longest_s = max(found.longest_s, time.monotonic() - begun_s)
    found.codes.update([str(answer.code) for answer in answers] or ["no answer"])
    if client.is_late and (not answers or answers[-1].code == 408):
        return  # we were, on a busy machine; to give up on us is right
    for complaint in judge.complaints(case, answers):
        found.complaints.append(f"{name} {case.family}: {complaint}")


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
