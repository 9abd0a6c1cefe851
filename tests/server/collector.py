"""An OpenTelemetry collector for tests: takes OTLP over HTTP, as the real ones do, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.client.processes import comes_true


class Collector:
    """Keeps (span, its attributes, those of the resource) for each span that it has been sent."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
        self.paths: set[str] = set()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def of(self, request_id: str) -> tuple[Any, dict[str, Any]]:
        """The one span of the request of this id, once it has come."""

        def found() -> list[tuple[Any, dict[str, Any]]]:
            every = [(span, attributes) for span, attributes, _ in self.spans]
            return [item for item in every if item[1].get("gen_ai.request.id") == request_id]

        assert comes_true(lambda: bool(found())), request_id
        (only,) = found()
        return only

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.paths.add(self.path)
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resource = _plain(group.resource.attributes)
                    for scope in group.scope_spans:
                        collector.spans += [(span, _plain(span.attributes), resource) for span in scope.spans]
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        return Handler


def _plain(attributes: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
