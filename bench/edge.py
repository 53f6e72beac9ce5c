"""The edge: what serving a tiny model adds to calling it, and what one core of it answers.

    python -m bench.edge [--seconds 2] [--write]

One real server process on one CPU, its clients on another. Latency is closed-loop with one client;
CPU time is the server's own, over 32 connections, since wall rates of a shared machine say little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench import machine, table
from bench.serving import requests
from castiron import api

CONNECTIONS, LARGE_CONNECTIONS = 32, 4
# The speed of a shared machine changes by half from second to second.
ROUNDS = 7
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
LARGE = 150_528  # 3 x 224 x 224 values, 600 KB


def save_model(path: Path, size: int, *, is_identity: bool = False) -> None:
    """y = x + 1 over ``size`` values, or just y = x."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name in "xy"]
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    node = helper.make_node("Add", ["x", "one"], ["y"])
    if is_identity:
        node = helper.make_node("Identity", ["x"], ["y"])
    constants = [] if is_identity else [one]
    graph = helper.make_graph([node], "tiny", values[:1], values[1:], constants)
    opsets = [helper.make_opsetid("", 20)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """The process and port of a server pinned to the first CPU, ready."""
    command = ["taskset", "-c", "0", sys.executable, "-m", "castiron", "serve",
               str(folder / "models"), "--port", "0", "--threads", "1"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
        while b" 200 " not in ask_once(port, b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"):
            time.sleep(0.05)
        yield process.pid, port
        process.terminate()


@contextlib.contextmanager
def bare() -> Iterator[int]:
    """The port of a server that only answers, pinned to the first CPU."""
    command = ["taskset", "-c", "0", sys.executable, "-m", "bench.bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().decode().rsplit(":", 1)[1])
        process.terminate()


def request(model: str, size: int, *, is_raw: bool) -> bytes:
    """One infer request as bytes."""
    return requests.infer(model, (1, size), is_binary=is_raw)


class Client:
    """One connection that sends the same request again and again."""

    def __init__(self, port: int, text: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._text = text
        self._missing = 0

    def send(self) -> None:
        """Ask once."""
        self.socket.sendall(self._text)
        self._missing = -1

    def read(self) -> bool:
        """Read what came; whether the answer is complete. Only answers with status 200 count."""
        piece = self.socket.recv(1 << 20)
        if self._missing < 0:
            head, _, rest = piece.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), piece
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self._missing = length - len(rest)
        else:
            self._missing -= len(piece)
        return self._missing == 0


def ask_once(port: int, text: bytes) -> bytes:
    """The first piece of an answer, on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(text)
        return connection.recv(1 << 16)


def latencies_us(port: int, text: bytes, seconds: float) -> tuple[float, float]:
    """p50 and p99 of one client."""
    client = Client(port, text)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        client.send()
        while not client.read():
            pass
        found.append((time.perf_counter() - begun) * 1e6)
    client.socket.close()
    parts = statistics.quantiles(found[len(found) // 10 :], n=100)
    return parts[49], parts[98]


def rate(
    process: int, port: int, text: bytes, seconds: float, connections: int = CONNECTIONS
) -> tuple[float, float]:
    """Answers a second over all connections, and the server's CPU time for each, in us."""
    selector = selectors.DefaultSelector()
    clients = [Client(port, text) for _ in range(connections)]
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.send()
    count, begun, cpu_s = 0, time.perf_counter(), _cpu_s(process)
    while time.perf_counter() - begun < seconds:
        for key, _ in selector.select():
            if key.data.read():
                count += 1
                key.data.send()
    elapsed_s, cpu_s = time.perf_counter() - begun, _cpu_s(process) - cpu_s
    for client in clients:
        client.socket.close()
    return count / elapsed_s, cpu_s / count * 1e6


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def in_process_us(folder: Path) -> float:
    """p50 of the same tiny model called in process."""
    out = api.build(folder / "models/tiny/1/model.onnx", folder / "tiny.cast")
    instance = api.load(out, threads=1)
    inputs = {"x": np.ones((1, 4), np.float32)}
    found: list[float] = []
    for _ in range(5000):
        begun = time.perf_counter()
        instance.run(inputs)
        found.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(found)


def report(seconds: float) -> str:
    """The table with its heading lines."""
    lines = [
        *machine.description(),
        (
            f"the quietest of {ROUNDS} rounds; req/s and CPU over {CONNECTIONS} connections, "
            f"{LARGE_CONNECTIONS} for 600 KB"
        ),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {"tiny": 4, "large": LARGE}
        for model, size in sizes.items():
            path = folder / f"models/{model}/1/model.onnx"
            save_model(path, size, is_identity=model == "large")
        base = min(in_process_us(folder) for _ in range(ROUNDS))
        rows = [["in process, tiny model", f"{base:.0f}", "", "", "", ""]]
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with bare() as port:
            text = request("tiny", 4, is_raw=False)
            p50, p99 = min(latencies_us(port, text, seconds) for _ in range(ROUNDS))
        rows.append(["an empty answer, by a bare loop", f"{p50:.0f}", f"{p99:.0f}", "", "", ""])
        with served(folder) as (process, port):
            for label, model, is_raw, connections in (
                ("JSON, tiny model", "tiny", False, CONNECTIONS),
                ("binary, tiny model", "tiny", True, CONNECTIONS),
                ("binary, 600 KB in and out, an identity", "large", True, LARGE_CONNECTIONS),
            ):
                text = request(model, sizes[model], is_raw=is_raw)
                p50, p99 = min(latencies_us(port, text, seconds) for _ in range(ROUNDS))
                busy = [rate(process, port, text, seconds, connections) for _ in range(ROUNDS)]
                added = f"{p50 - base:.0f}" if model == "tiny" else ""
                rows.append(
                    [label, f"{p50:.0f}", f"{p99:.0f}", added, f"{max(busy)[0]:.0f}",
                     f"{min(cpu for _, cpu in busy):.0f}"]
                )  # fmt: skip
    head = ["call", "p50 us", "p99 us", "added p50 us", "req/s", "server CPU us/req"]
    return table.with_heading(lines, table.markdown(head, rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    text = report(chosen.seconds)
    print(text)
    if chosen.write:
        table.publish("edge", text)


if __name__ == "__main__":
    main()
