"""One infer call as any protocol delivers it, for ``dispatch.py``.

Each protocol has its own kind: ``rest_call.py``, ``grpc/calls.py``. A call reads its request,
writes its answer, and tells when its client has gone.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from castiron.server import body as bodies
from castiron.server import inference, rows, status
from castiron.telemetry import timeline as timelines

if TYPE_CHECKING:
    from castiron.server import served


class Call(abc.ABC):
    """What is known of a call before its request is read; the base of each protocol's kind."""

    __slots__ = (
        "client", "is_retry", "model", "parent", "timeline", "timeout_s", "trace_state",
        "version",
    )  # fmt: skip
    protocol = "http"
    has_finish = False
    timeline: timelines.Timeline

    def __init__(self, model: str, version: str, client: str) -> None:
        self.model = model
        self.version = version
        self.client = client
        self.is_retry = False
        self.timeout_s: float | None = None
        self.parent: bytes | None = None
        self.trace_state: bytes | None = None

    @abc.abstractmethod
    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """The request, within the bounds of ``held``. Raises InputError, Refusal, ClientGone."""

    @abc.abstractmethod
    def render(
        self, outputs: rows.Arrays, asked: inference.Inference, version: served.Served
    ) -> Any:
        """The answer in the protocol's form."""

    async def finish(self, answer: Any, version: served.Served) -> Any:
        """What is still to do for an answer and would take too long inside ``render``; called
        where there ``has_finish``.
        """
        del version
        return answer

    @abc.abstractmethod
    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """From now on, call this when the client leaves; None: no more."""

    @property
    def is_gone(self) -> bool:
        """Whether the client had left before it was watched."""
        return False

    @property
    def cancelled_outcome(self) -> str:
        """What it means when the task of this call is cancelled."""
        return status.NOT_READY
