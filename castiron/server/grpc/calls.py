"""An infer call over gRPC, for the dispatcher; cancelling its task is how its client leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from castiron.server import body as bodies
from castiron.server import call, inference, rows, served, status
from castiron.server import settings as server_settings
from castiron.server.grpc import tensors

# The library's timer may fire a little before its own clock says that the time is over.
_CLOCKS_DIFFER_S = 0.005


class GrpcCall(call.Call):
    """One ModelInferRequest."""

    __slots__ = ("_context", "_request", "digest", "is_stopping")
    protocol = "grpc"

    def __init__(self, request: Any, context: Any, given: server_settings.Settings) -> None:
        metadata = dict(context.invocation_metadata() or ())
        client = metadata.get(given.client_header.lower()) or _host(context.peer())
        super().__init__(request.model_name, request.model_version, str(client)[:256])
        attempts = metadata.get("grpc-previous-rpc-attempts", "0")
        self.is_retry = attempts != "0" or metadata.get("x-retry-attempt", "0") != "0"
        self.parent = str(metadata.get("traceparent", "")).encode() or None
        self.trace_state = str(metadata.get("tracestate", "")).encode() or None
        self.timeout_s = context.time_remaining()
        self.is_stopping = False
        self.digest = ""  # of the version that answered
        self._request = request
        self._context = context

    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """What the message says; its bytes count like those of a body."""
        version.bound(held)
        held.grow_to(self._request.ByteSize())
        return tensors.read(self._request, version.interface)

    def render(
        self, outputs: rows.Arrays, asked: inference.Inference, version: served.Served
    ) -> Any:
        """A ModelInferResponse."""
        self.digest = version.version.digest
        return tensors.answer(outputs, asked, version.interface, version.version)

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Nothing to watch: the task is cancelled when the client leaves or its time is over."""

    @property
    def cancelled_outcome(self) -> str:
        """Its time was over, its client left, or we stop."""
        left_s = self._context.time_remaining()
        if left_s is not None and left_s <= _CLOCKS_DIFFER_S:
            return status.TIMEOUT
        return status.NOT_READY if self.is_stopping else status.CANCELLED


def _host(peer: str) -> str:
    """``ipv4:127.0.0.1:4711`` without its port."""
    return peer.rsplit(":", 1)[0]
