"""OTLP over HTTP/protobuf or gRPC: one message at a time, tried again while the receiver is busy.

``http://HOST:4318`` posts to ``/v1/traces``, or to the path that is given; ``grpc://HOST:4317``
calls the trace service. ``https`` and ``grpcs`` are the same over TLS. Plain waiting is right
here: this runs in the exporter's process only.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from castiron import errors
from castiron.telemetry.exporters import spans

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_BUSY_CODES = (429, 502, 503, 504)


class Busy(errors.CastironError):
    """The receiver cannot take it now; it may later."""


class Sender:
    """One receiver. Raises CastironError for an address that is none."""

    __slots__ = ("_post",)

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        known: dict[str, Callable[[Any], Callable[[bytes], bytes]]] = {
            "http": _over_http, "https": _over_http, "grpc": _over_grpc, "grpcs": _over_grpc,
        }  # fmt: skip
        if parts.scheme not in known or not parts.hostname:
            raise errors.CastironError(
                f"expected http://HOST:PORT or grpc://HOST:PORT of an OTLP receiver, "
                f"found {endpoint!r}"
            )
        self._post = known[parts.scheme](parts)

    def send(self, message: bytes, num_spans: int, patience_s: Callable[[], float]) -> int:
        """How many of the spans the receiver took, within ``patience_s``, which may change."""
        begun_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return num_spans - min(num_spans, spans.num_rejected(self._post(message)))
            except Busy:
                if time.monotonic() + pause_s - begun_s > patience_s():
                    return 0
            except errors.CastironError:
                return 0
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _over_http(parts: Any) -> Callable[[bytes], bytes]:
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port or 4318, timeout=_TIMEOUT_S)
    path = parts.path if parts.path not in {"", "/"} else "/v1/traces"
    headers = {"content-type": "application/x-protobuf"}

    def post(message: bytes) -> bytes:
        try:
            connection.request("POST", path, message, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as fault:
            connection.close()  # the next request connects again
            raise Busy(f"{parts.netloc}: {fault}") from None
        if answer.status in _BUSY_CODES:
            raise Busy(f"{parts.netloc} answered {answer.status}")
        if answer.status != 200:
            raise errors.CastironError(f"{parts.netloc} answered {answer.status}")
        return content

    return post


def _over_grpc(parts: Any) -> Callable[[bytes], bytes]:
    import grpc

    address = f"{parts.hostname}:{parts.port or 4317}"
    if parts.scheme == "grpcs":
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials())
    else:
        channel = grpc.insecure_channel(address)
    call = channel.unary_unary(_METHOD)  # bytes as they are, both ways
    busy = {
        grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
    }  # fmt: skip

    def post(message: bytes) -> bytes:
        try:
            answer: bytes = call(message, timeout=_TIMEOUT_S)
        except grpc.RpcError as fault:
            kind = Busy if fault.code() in busy else errors.CastironError
            raise kind(f"{address}: {fault.details()}") from None
        return answer

    return post
