"""A collector of spans that is good enough for tests: it takes OTLP over HTTP on loopback, and can refuse or hang."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span that the collector received."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    is_error: bool
    ms: float
    attributes: dict[str, Any]


class Collector:
    """`status`: the HTTP status of its answers. `hangs`: it answers only once this is set."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.requests = 0
        self.status = 200
        self.hangs = threading.Event()
        self.hangs.set()  # set: it does not hang
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout: ClassVar[float] = 20.0

            def do_POST(self) -> None:
                collector.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.hangs.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests += 1
        self.hangs.wait(15)
        if self.status == 200 and handler.path == "/v1/traces":
            self.headers.append(dict(handler.headers))
            self._keep(gzip.decompress(body) if handler.headers["Content-Encoding"] == "gzip" else body)
        status = self.status if handler.path == "/v1/traces" else 404
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

    def _keep(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _plain(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans += [_seen(service, span) for span in scope.spans]

    def of_trace(self, trace_id: str) -> list[Seen]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.status.code == 2,
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
        _plain(span.attributes),
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()
