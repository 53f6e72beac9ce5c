"""Receivers of OTLP for tests: real gRPC and HTTP servers that keep what they are sent."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

Request = trace_service_pb2.ExportTraceServiceRequest
Response = trace_service_pb2.ExportTraceServiceResponse


class Received:
    """What came; ``refusals`` are given instead of an answer, one for each of the next calls.

    While ``is_away``, connections over HTTP end without an answer.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[trace_pb2.Span] = []
        self.resources: list[dict[str, Any]] = []
        self.num_calls = 0
        self.refusals: list[int] = []
        self.is_away = False
        self.keeps = True
        self.count = 0

    def take(self, message: bytes) -> bytes:
        """Decode by the official classes, which refuse what is malformed."""
        request = Request.FromString(message)
        self.num_calls += 1
        for of_resource in request.resource_spans:
            self.resources.append(values(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.count += len(of_scope.spans)
                if self.keeps:
                    self.spans.extend(of_scope.spans)
        return bytes(Response().SerializeToString())


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as a dict of str and int."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.contextmanager
def over_http() -> Iterator[Received]:
    """A receiver that is posted to."""
    received = Received()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = self.rfile.read(int(self.headers["content-length"]))
            if received.is_away:
                self.close_connection = True
                return
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            code = received.refusals.pop(0) if received.refusals else 200
            answer = received.take(message) if code == 200 else b""
            self.send_response(code)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    received.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def over_grpc() -> Iterator[Received]:
    """A receiver that is called."""
    received = Received()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  the service's name
            if received.refusals:
                received.refusals.pop(0)
                context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
            return Response.FromString(received.take(request.SerializeToString()))

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(Service(), server)
    received.endpoint = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(0).wait()


KINDS: dict[str, Callable[[], contextlib.AbstractContextManager[Received]]] = {
    "http": over_http,
    "grpc": over_grpc,
}
