"""Many infer requests in one HTTP call: ``POST /v2/models/{m}/batch``.

The body is ``{"requests": [...]}`` with one infer body for each, raw tensors after the JSON in
order; the answer is ``{"responses": [...]}`` in the same order, or each as it comes
(``rest_parts.py``). Each is a request of its own, with its own outcome: one that is wrong has
``{"error", "status"}`` in its place, and harms no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from castiron import errors
from castiron.contract import json_schema
from castiron.server import body as bodies
from castiron.server import (
    call,
    dispatch,
    inference,
    reply,
    rest_call,
    rest_parts,
    routes,
    rows,
    status,
)

if TYPE_CHECKING:
    from castiron.server import served
    from castiron.server.http import exchange as exchanges

log = logging.getLogger("castiron.server")

_MOST = json_schema.MOST_IN_BATCH


class _Item(call.Call):
    """One request of the batch."""

    __slots__ = ("_batch", "_head", "_raw", "_size")

    def __init__(self, batch: Batch, head: Any, raw: memoryview, size: int) -> None:
        super().__init__(batch.route.model, batch.route.version, batch.client)
        self.timeout_s = batch.timeout_s
        self.parent, self.trace_state = batch.trace
        self._batch = batch
        self._head = head
        self._raw = raw
        self._size = size

    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """It was read with the whole; its share of the bytes counts as its own."""
        if type(self._head) is not dict:
            raise errors.InputError("expected an object", "")
        version.bound(held)
        held.grow_to(self._size)
        return inference.of_object(self._head, self._raw, version.interface)

    def render(
        self, outputs: rows.Arrays, asked: inference.Inference, version: served.Served
    ) -> rest_parts.Piece:
        """Its object of the answer, and its raw tensors."""
        head, raw = reply.described(outputs, asked, version.interface, version.version)
        return reply.encoded(head), raw

    @property
    def is_gone(self) -> bool:
        """As for the whole."""
        return self._batch.is_gone

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """The connection of the whole tells."""
        self._batch.watch(self, on_gone)


class Batch:
    """One call with many requests."""

    def __init__(
        self,
        route: routes.Route,
        exchange: exchanges.Exchange,
        dispatcher: dispatch.Dispatcher,
        subject: str = "",
    ) -> None:
        headers = exchange.headers
        self.route = route
        self.client = subject or rest_call.client_of(headers, exchange.peer, dispatcher.settings)
        self.timeout_s: float | None = None
        self.trace = headers.get(b"traceparent"), headers.get(b"tracestate")
        self._exchange = exchange
        self._dispatcher = dispatcher
        self._watching: dict[_Item, Callable[[], None]] = {}

    async def answer(self) -> reply.Reply | rest_parts.Parts:
        """The answer to all, in parts where the caller wants that.

        Raises only what is wrong with the whole.
        """
        held = self._dispatcher.body()
        try:
            items = await self._items(held)
        except Exception as error:
            held.release()
            self._dispatcher.refuse(self.route.model, error)
            raise
        self._exchange.on_gone = self._gone
        asked = [self._outcome(item) for item in items]
        # Each reserves its share as it begins, so the whole need not be held as well.
        held.release()
        if rest_parts.is_wanted(self._exchange.headers):
            return rest_parts.Parts(asked, self.end)
        try:
            pieces = await asyncio.gather(*asked)
        finally:
            self.end()
        raw = [data for _, parts in pieces for data in parts]
        heads = [orjson.Fragment(head) for head, _ in pieces]
        return reply.joined(orjson.dumps({"responses": heads}), raw)

    def end(self) -> None:
        """Everything is answered: the connection has nothing more to tell."""
        self._exchange.on_gone = None

    async def _outcome(self, item: _Item) -> rest_parts.Piece:
        """What stands in the answer for one request. Raises only when nobody is there to read."""
        try:
            found: rest_parts.Piece = await self._dispatcher.infer(item)
        except Exception as error:
            if isinstance(error, status.ClientGone):
                raise
            return _refused(error)
        return found

    async def _items(self, held: bodies.Body) -> list[_Item]:
        self.timeout_s = rest_call.timeout_s(self._exchange.headers)
        content = await held.read(self._exchange)
        length = rest_call.json_length(self._exchange.headers)
        rest_call.bound_json(length, content, self._dispatcher.settings)
        text, raw = inference.parted(content, length)
        listed = inference.decoded(text).get("requests")
        if type(listed) is not list or not 0 < len(listed) <= _MOST:
            raise errors.InputError(f"expected a list of 1 to {_MOST} requests", "requests")
        items: list[_Item] = []
        at, share = 0, len(text) // len(listed)
        for head in listed:
            size = inference.raw_bytes(head) if type(head) is dict else 0
            items.append(_Item(self, head, raw[at : at + size], share + size))
            at += size
        if at < len(raw):
            raise errors.InputError(
                f"{len(raw) - at} bytes after the JSON belong to no request", "body"
            )
        return items

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._exchange.is_gone

    def watch(self, item: _Item, on_gone: Callable[[], None] | None) -> None:
        """Tell this item when the connection is gone."""
        if on_gone is None:
            self._watching.pop(item, None)
        else:
            self._watching[item] = on_gone

    def _gone(self) -> None:
        for on_gone in list(self._watching.values()):
            on_gone()


def _refused(error: Exception) -> rest_parts.Piece:
    code, outcome = status.classify(error)
    if outcome == status.FAILED:
        log.error("a request of a batch failed", exc_info=error)
    text = status.text_of(error).encode("utf-8", "replace").decode()
    told: dict[str, Any] = {"error": text, "status": code}
    if (wait_ns := status.retry_after_ns(error)) is not None:
        told["retry_after_ms"] = -(-wait_ns // 1_000_000)
    return orjson.dumps(told), []
