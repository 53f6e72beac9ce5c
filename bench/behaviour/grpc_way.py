"""Asking by the Open Inference Protocol over gRPC, with the messages of Triton's client."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bench.behaviour import servers, ways

# A call that is wrong is the caller's; these say so. INTERNAL and UNKNOWN say that it is ours.
_REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "UNIMPLEMENTED",
             "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}  # fmt: skip


class Grpc:
    """One channel; calls side by side on it."""

    name = "gRPC"

    def __init__(self, server: servers.Server, *, waits: bool = False) -> None:
        self.server = server
        self._waits = waits
        self.port = server.grpc_port
        # A connection of its own, where channels to one address would otherwise share one.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.port}", options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def another(self) -> Grpc:
        """Its calls wait for a connection: the library fails them for a second after a refusal."""
        return Grpc(self.server, waits=True)

    def request(self, model: str, rows: ways.Rows) -> Any:
        """A right message."""
        kind = "INT64" if model.startswith("picky") else "FP32"
        flat = [value for row in rows for value in row]
        message = service_pb2.ModelInferRequest(model_name=model)
        tensor = message.inputs.add(name="x", datatype=kind, shape=[len(rows), len(rows[0])])
        field = "int64_contents" if kind == "INT64" else "fp32_contents"
        getattr(tensor.contents, field).extend(flat)
        return message

    def ask(self, model: str, rows: ways.Rows, deadline_s: float | None = None) -> ways.Answer:
        """One call."""
        return self.send(self.request(model, rows), deadline_s)

    def send(self, message: Any, deadline_s: float | None = None) -> ways.Answer:
        """Any message."""
        begun_s = time.monotonic()
        try:
            reply = self._stub.ModelInfer(
                message, timeout=deadline_s or ways.PATIENCE_S, wait_for_ready=self._waits
            )
        except grpc.RpcError as fault:
            code = fault.code().name
            took_s = time.monotonic() - begun_s
            if code == "DEADLINE_EXCEEDED" and deadline_s is None:
                code = ways.HANG
            return ways.Answer(code, took_s, text=fault.details() or "")
        return ways.Answer("OK", time.monotonic() - begun_s, _rows(reply))

    def abandon(self, model: str, rows: ways.Rows) -> None:
        """Send and cancel."""
        call = self._stub.ModelInfer.future(self.request(model, rows), timeout=ways.PATIENCE_S)
        time.sleep(0.05)
        call.cancel()

    def sequence(self, model: str, rows: ways.Rows) -> Callable[[], None]:
        """Calls over the channel."""
        message = self.request(model, rows)

        def call() -> None:
            self._stub.ModelInfer(message, timeout=ways.PATIENCE_S)

        return call

    def is_refusal(self, answer: ways.Answer) -> bool:
        """A status that blames the call, with words."""
        return answer.code in _REFUSALS and bool(answer.text)


def _rows(reply: Any) -> ways.Rows:
    output = reply.outputs[0]
    width = output.shape[-1]
    flat = list(output.contents.fp32_contents)
    if reply.raw_output_contents:
        raw = reply.raw_output_contents[0]
        flat = list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return [flat[first : first + width] for first in range(0, len(flat), width)]
