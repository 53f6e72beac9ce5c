"""Over gRPC: unary calls on a few channels. The limit goes as the parameter ``timeout``, so that it
is the server that answers at the deadline, and not the client's own library."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc

from bench.deadlines import load, model
from castiron.server.grpc import messages

_CODES = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.CANCELLED: load.LEFT,
}
_CHANNELS = 4  # a connection carries a hundred calls at once


class Client:
    """The channels to one server."""

    def __init__(self, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(_CHANNELS)
        ]
        path = f"/{messages.SERVICE}/ModelInfer"
        self._calls = [channel.unary_unary(path) for channel in self._channels]

    async def ask(self, planned: load.Planned) -> load.Answer:
        """As ``load.Ask``."""
        call = self._calls[planned.number % _CHANNELS](_request(planned))
        leaving = None
        if planned.leaves_s is not None:
            leaving = asyncio.get_running_loop().call_later(planned.leaves_s, call.cancel)
        code = _CODES[await call.code()]
        if leaving is not None:
            leaving.cancel()
        if code == load.LEFT:
            return load.Answer(code)
        told = dict(await call.trailing_metadata())
        return load.Answer(code, float(told["server-timing"].rpartition("=")[2]) / 1e3)

    async def close(self) -> None:
        """Let go of all channels."""
        for channel in self._channels:
            await channel.close()


def _request(planned: load.Planned) -> bytes:
    made: Any = messages.named("ModelInferRequest")(model_name=model.NAME)
    made.parameters["timeout"].int64_param = int(planned.timeout_s * 1e6)
    made.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    made.raw_input_contents.append(struct.pack("<f", planned.number))
    data: bytes = made.SerializeToString()
    return data
