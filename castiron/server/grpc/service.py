"""The calls of the inference service: each finds its answer where HTTP finds it.

Errors leave by the one table of ``server/status.py``, with the path of the fault in the details
and, when flow control refused, its reason and when to come back in the trailing metadata.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from castiron import errors
from castiron.registry import version as versions
from castiron.server import control, describe, dispatch, status
from castiron.server.grpc import calls, guard, messages

log = logging.getLogger("castiron.server")

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MOST_DETAILS = 2000  # details travel in a header
_MOST_AT_ONCE = 64  # requests of one stream under way
_StreamResponse = messages.named("ModelStreamInferResponse")


class Service:
    """Every call of ``inference.GRPCInferenceService``."""

    def __init__(self, dispatcher: dispatch.Dispatcher, is_draining: Callable[[], bool]) -> None:
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._settings = dispatcher.settings
        self._is_draining = is_draining

    def handlers(self) -> Any:
        """What a gRPC server is given."""
        unary = {
            "ServerLive": self.server_live, "ServerReady": self.server_ready,
            "ModelReady": self.model_ready, "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata, "ModelInfer": self.infer,
            "ModelConfig": self.model_config, "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index, "RepositoryModelLoad": self.load,
            "RepositoryModelUnload": self.unload,
        }  # fmt: skip
        # Requests are read by the calls: the library blames the server for broken ones.
        made = {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(method, name, self._dispatcher.meters.note_caller),
                response_serializer=messages.named(f"{name}Response").SerializeToString,
            )
            for name, method in unary.items()
        }
        made["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.stream,
            response_serializer=_StreamResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(messages.SERVICE, made)

    # What the server says.

    async def server_live(self, request: Any, context: Any) -> Any:
        """The loop runs."""
        del request, context
        return messages.named("ServerLiveResponse")(live=True)

    async def server_ready(self, request: Any, context: Any) -> Any:
        """As GET /v2/health/ready."""
        del request, context
        return messages.named("ServerReadyResponse")(ready=self.is_ready())

    def is_ready(self) -> bool:
        """Whether a balancer should send requests here."""
        return describe.readiness(
            self._registry,
            is_draining=self._is_draining(),
            is_strict=self._settings.strict_readiness,
        )[0]

    async def model_ready(self, request: Any, context: Any) -> Any:
        """False also for a model that is not there."""
        del context
        is_ready = self.is_model_ready(request.name, request.version)
        return messages.named("ModelReadyResponse")(ready=is_ready)

    def is_model_ready(self, model: str, number: str = "") -> bool:
        """Whether a request for it would be answered."""
        try:
            self._registry.find(model, number)
        except (errors.ModelNotFound, errors.ModelNotReady):
            return False
        return True

    async def server_metadata(self, request: Any, context: Any) -> Any:
        """As GET /v2."""
        del request, context
        return messages.filled("ServerMetadataResponse", describe.server())

    async def model_metadata(self, request: Any, context: Any) -> Any:
        """As GET /v2/models/{m}."""
        del context
        version = self._registry.find(request.name, request.version)
        return messages.filled("ModelMetadataResponse", describe.model(self._registry, version))

    async def model_config(self, request: Any, context: Any) -> Any:
        """As GET /v2/models/{m}/config."""
        del context
        version = self._registry.find(request.name, request.version)
        served = self._dispatcher.served_by(version)
        return messages.filled("ModelConfigResponse", {"config": describe.configuration(served)})

    async def model_statistics(self, request: Any, context: Any) -> Any:
        """As GET /v2/models/{m}/stats."""
        del context
        found: list[versions.Version]
        if not request.name:
            found = list(self._registry)
        elif request.version:
            found = [self._registry.find(request.name, request.version)]
        elif request.name in self._registry.models:
            found = list(self._registry.models[request.name].values())
        else:
            raise errors.ModelNotFound(f"model {request.name!r} is not served here")
        meters = self._dispatcher.meters
        told = [describe.statistics(version, meters.of(version)) for version in found]
        return messages.filled("ModelStatisticsResponse", {"model_stats": told})

    async def repository_index(self, request: Any, context: Any) -> Any:
        """As POST /v2/repository/index."""
        del context
        told = describe.index(self._registry, only_ready=request.ready)
        return messages.filled("RepositoryIndexResponse", {"models": told})

    # What it does.

    async def load(self, request: Any, context: Any) -> Any:
        """As POST /v2/repository/models/{m}/load."""
        del context
        given = messages.parameters(request.parameters)
        await control.load(self._dispatcher, request.model_name, given)
        return messages.named("RepositoryModelLoadResponse")()

    async def unload(self, request: Any, context: Any) -> Any:
        """As POST /v2/repository/models/{m}/unload."""
        del context
        given = messages.parameters(request.parameters)
        await control.unload(self._dispatcher, request.model_name, given)
        return messages.named("RepositoryModelUnloadResponse")()

    async def infer(self, request: Any, context: Any) -> Any:
        """As POST /v2/models/{m}/infer."""
        call = calls.GrpcCall(request, context, self._settings)
        call.client = guard.subject() or call.client
        try:
            return await self._dispatcher.infer(call)
        except status.ClientGone as error:
            raise asyncio.CancelledError from error
        finally:
            told = self._dispatcher.reports.metadata(call.timeline)
            if call.digest:
                told.append(("x-model-version", call.digest))
            context.set_trailing_metadata(told)

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Infer for each request as it comes; answers in the order of the requests.

        A request that fails is told so in its place and ends nothing else.
        """
        waiting: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(_MOST_AT_ONCE)
        begun: set[asyncio.Task[Any]] = set()

        async def take() -> None:
            try:
                async for data in requests:
                    task = asyncio.create_task(self._streamed(data, context))
                    begun.add(task)
                    task.add_done_callback(begun.discard)
                    await waiting.put(task)
            finally:
                await waiting.put(None)

        taking = asyncio.create_task(take())
        try:
            while (task := await waiting.get()) is not None:
                yield await task
        finally:
            taking.cancel()
            for task in list(begun):
                task.cancel()

    async def _streamed(self, data: bytes, context: Any) -> Any:
        request = messages.named("ModelInferRequest")()
        try:
            request = messages.read("ModelInferRequest", data)
            guard.require(request)
            answer = await self.infer(request, context)
        except Exception as error:  # noqa: BLE001  its place in the stream is told
            _log(error, "ModelStreamInfer")
            self._dispatcher.meters.note_caller(error)
            told = _StreamResponse(error_message=status.text_of(error)[:_MOST_DETAILS])
            told.infer_response.id = request.id
            told.infer_response.model_name = request.model_name
            return told
        if request.parameters["triton_enable_empty_final_response"].bool_param:
            answer.parameters["triton_final_response"].bool_param = True
        return _StreamResponse(infer_response=answer)


def _answering(
    method: Callable[[Any, Any], Awaitable[Any]],
    name: str,
    on_refused: Callable[[BaseException], None],
) -> Any:
    """The method with its errors turned into statuses."""

    @functools.wraps(method)
    async def answer(data: bytes, context: Any) -> Any:
        try:
            request = messages.read(f"{name}Request", data)
            guard.require(request)
            return await method(request, context)
        except Exception as error:  # noqa: BLE001  whatever it is, its client is told
            _log(error, name)
            on_refused(error)
            await _abort(error, context)

    return answer


async def _abort(error: Exception, context: Any) -> None:
    metadata: list[tuple[str, str]] = list(context.trailing_metadata() or ())
    if isinstance(error, status.Refusal) and error.reason:
        metadata.append(("x-refusal-reason", error.reason))
        metadata += [(k.decode(), v.decode()) for k, v in error.headers]
    if (wait_ns := status.retry_after_ns(error)) is not None:
        metadata.append(("retry-after-ms", str(-(-wait_ns // 1_000_000))))
    code = _CODES[status.grpc_code(error)]
    await context.abort(code, status.text_of(error)[:_MOST_DETAILS], tuple(metadata))


def _log(error: Exception, name: str) -> None:
    if status.classify(error)[1] == status.FAILED:
        log.error("%s failed", name, exc_info=error)
