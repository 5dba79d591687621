"""Sends spans to a collector by OTLP, over HTTP. Only this module knows OpenTelemetry's packages (the extra `otel`).

Spans wait in a queue of bounded length for one thread, which sends them in batches. A request never waits for it: where
the collector is away or slow, spans are lost, and the log says so once a minute. What OpenTelemetry reads from the
environment holds: OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_RESOURCE_ATTRIBUTES and others.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from warren.kernel.logs import get_log
from warren.kernel.tracing import Span
from warren.model.errors import InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PATH: Final = "/v1/traces"
MAX_WAITING: Final = 4096
BATCH: Final = 128  # encoding more at once would keep the event loop waiting for the GIL
INTERVAL_S: Final = 1.0
SEND_TIMEOUT_S: Final = 5.0
STOP_S: Final = 3.0
REPORT_S: Final = 60.0
_GIVE_UP_S: Final = 0.5
_LIBRARY: Final = "opentelemetry"

_log = get_log(__name__)


class SpanExporter:
    """A Recorder. `start` comes before the first span, `close` after the last.

    Raises InvalidRequest where OpenTelemetry is not installed: a server that was told to trace does not run untraced.
    """

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        *,
        max_waiting: int = MAX_WAITING,
        interval_s: float = INTERVAL_S,
        send_timeout_s: float = SEND_TIMEOUT_S,
        stop_s: float = STOP_S,
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan  # noqa: F401
        except ImportError as exc:
            raise InvalidRequest(
                "traces need packages that are not installed here",
                remedy="pip install 'warren-sandbox[otel]', or leave out WARREN_OTLP_ENDPOINT",
            ) from exc
        self._resource = Resource.create(dict(resource))
        self._sender = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=send_timeout_s)
        self._max_waiting = max_waiting
        self._interval_s = interval_s
        self._stop_s = stop_s
        self._waiting: deque[Span] = deque()
        self._refused = 0  # counted by whoever records spans
        self._unsent = 0  # counted by the thread
        self._sending = 0
        self._reported = 0
        self._reported_at = -REPORT_S
        self._wake = threading.Event()
        self._stopping = False
        self._complaints = _LastLine()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def __repr__(self) -> str:
        return f"<SpanExporter {len(self._waiting)} waiting, {self.lost} lost>"

    @property
    def lost(self) -> int:
        """How many spans were not sent and will not be."""
        return self._refused + self._unsent

    def start(self) -> None:
        self._thread.start()

    def record(self, span: Span) -> None:
        waiting = len(self._waiting)
        if waiting >= self._max_waiting:
            self._refused += 1
            return
        self._waiting.append(span)
        if waiting + 1 == BATCH:
            self._wake.set()

    async def close(self) -> None:
        """Sends the waiting spans, for a few seconds at most."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, self._stop_s)
        self._sender.shutdown()  # type: ignore[no-untyped-call]  # gives up what is being sent
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _GIVE_UP_S)
        self._unsent += len(self._waiting) + (self._sending if self._thread.is_alive() else 0)
        self._report()

    def _run(self) -> None:
        library = logging.getLogger(_LIBRARY)
        library.addHandler(self._complaints)
        library.propagate = False  # it logs every attempt; we log once a minute
        try:
            self._send_all()
        finally:
            library.removeHandler(self._complaints)
            library.propagate = True

    def _send_all(self) -> None:
        while not self._stopping or self._waiting:
            if not self._stopping and len(self._waiting) < BATCH:
                self._wake.wait(self._interval_s)
                self._wake.clear()
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            self._sending = len(batch)
            if batch and not self._send(batch):
                self._unsent += len(batch)
                if self._stopping:
                    return
            if time.monotonic() - self._reported_at >= REPORT_S:
                self._report()

    def _send(self, batch: Sequence[Span]) -> bool:
        try:
            spans = [self._readable(span) for span in batch]
            return self._sender.export(spans).name == "SUCCESS"
        except Exception as exc:  # the thread must go on; these spans are lost
            self._complaints.text = f"{type(exc).__name__}: {exc}"
            return False

    def _report(self) -> None:
        lost = self.lost
        if lost == self._reported:
            return
        reason = self._complaints.text or "the collector is too slow"
        _log.warning("spans_lost", spans=lost - self._reported, reason=reason)
        self._reported, self._reported_at = lost, time.monotonic()

    def _readable(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        context, flags = span.context, TraceFlags(TraceFlags.SAMPLED)
        state = TraceState.from_header([context.state]) if context.state else None
        trace_id = int(context.trace_id, 16)
        parent = SpanContext(trace_id, int(span.parent_id, 16), span.is_server, flags) if span.parent_id else None
        attributes: dict[str, Any] = {
            name if "." in name else f"warren.{name}": value for name, value in span.attributes.items()
        }
        if span.error:
            attributes["error.type"] = span.error
        return ReadableSpan(
            span.name,
            SpanContext(trace_id, int(context.span_id, 16), False, flags, state),
            parent,
            self._resource,
            attributes,
            kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=InstrumentationScope("warren"),
        )


def traces_url(endpoint: str) -> str:
    """Returns the URL at which the collector takes traces."""
    base = endpoint.rstrip("/")
    return base if base.endswith(PATH) else base + PATH


class _LastLine(logging.Handler):
    """Keeps the last complaint of the library, which is logged with the number of lost spans."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self.text = record.getMessage()[:300]
