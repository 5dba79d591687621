"""Traces: which request something belongs to across processes, and how long its parts took.

A request that carries a `traceparent` (W3C Trace Context) belongs to the caller's trace: its id is in the log lines and
the audit record, and goes on to the worker that answers. Spans are recorded only where the server has a `SpanRecorder`
(kernel.span_export), and only of traces that are sampled: the caller decides that, or `Tracing` for traces that begin
here. Without one, the calls of this module cost a look at a context variable.

    with traced("claim", session=session.id, environment=session.environment) as span:
        ...
        span.note(pooled=True)

Attributes are ids, names from the registry, numbers and fixed words: no commands, paths, messages or values of callers.
"""

import random
import re
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from warren.model.errors import WarrenError

Header = tuple[bytes, bytes]
Value = str | int | bool

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?")
_MEMBER: Final = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[!-+\--<>-~ ]{0,255}[!-+\--<>-~]")
_MAX_STATE: Final = 512
_MAX_MEMBERS: Final = 32
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """What one process tells another: the trace, the span that caused the request, and whether spans are recorded."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    def headers(self) -> list[Header]:
        parent = (TRACEPARENT, f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}".encode())
        return [parent, (TRACESTATE, self.state.encode())] if self.state else [parent]


def read_trace_context(headers: Sequence[Header]) -> TraceContext | None:
    """Reads the headers of a request. Returns None if they name no trace, or are not valid."""
    parents = [value for name, value in headers if name == TRACEPARENT]
    match = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = b",".join(value for name, value in headers if name == TRACESTATE)
    return TraceContext(trace_id.decode(), span_id.decode(), bool(int(flags, 16) & _SAMPLED), _checked_state(state))


def _checked_state(state: bytes) -> str:
    """Returns the vendors' part as it came; empty if it is not valid, or too long to pass on."""
    if not state or len(state) > _MAX_STATE:
        return ""
    members = [member.strip(" \t") for member in state.decode("latin-1").split(",")]
    valid = len(members) <= _MAX_MEMBERS and all(_MEMBER.fullmatch(member) for member in members if member)
    return ",".join(filter(None, members)) if valid else ""


class SpanRecorder(Protocol):
    """Takes spans that have ended. `record` neither waits nor raises: a span that it cannot keep is lost."""

    def record(self, span: "Span") -> None: ...


class Span:
    """A part of a request, from `__enter__` to `__exit__`. Spans begun in between become its children. `start` and
    `end` do the same for work that outlives a block, but such a span gets no children.

    Without a recorder it records nothing, and only carries the trace.
    """

    __slots__ = (
        *("_began", "_recorder", "_token", "attributes", "context", "end_ns", "error", "is_server", "name"),
        *("parent_id", "start_ns"),
    )

    def __init__(
        self,
        name: str,
        context: TraceContext,
        recorder: SpanRecorder | None = None,
        parent_id: str = "",
        attributes: dict[str, Value] | None = None,
        *,
        is_server: bool = False,
    ) -> None:
        self.name = name
        self.context = context
        self.parent_id = parent_id
        self.attributes = attributes or {}
        self.is_server = is_server
        self.error = ""
        self.start_ns = self.end_ns = 0
        self._recorder = recorder
        self._token: Token[Span | None] | None = None
        self._began = 0

    def __repr__(self) -> str:
        return f"<Span {self.name} {self.context.span_id} of trace {self.context.trace_id}>"

    @property
    def is_recorded(self) -> bool:
        return self._recorder is not None

    def note(self, **attributes: Value) -> None:
        if self._recorder is not None:
            self.attributes.update(attributes)

    def child(self, name: str, attributes: dict[str, Value]) -> "Span":
        if self._recorder is None:
            return NO_SPAN
        context = TraceContext(self.context.trace_id, _new_span_id(), True, self.context.state)
        return Span(name, context, self._recorder, self.context.span_id, attributes)

    def drop(self) -> None:
        """Makes sure that nothing is recorded of this span."""
        self._recorder = None

    def start(self) -> "Span":
        if self._recorder is not None:
            self.start_ns, self._began = time.time_ns(), time.perf_counter_ns()
        return self

    def end(self, exc: BaseException | None = None) -> None:
        """Records the span. A second call does nothing."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self.end_ns = self.start_ns + time.perf_counter_ns() - self._began
        if exc is not None:
            self.error = exc.code if isinstance(exc, WarrenError) else type(exc).__name__
        recorder.record(self)

    def __enter__(self) -> "Span":
        if self is not NO_SPAN:
            self._token = current_span.set(self)
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current_span.reset(self._token)
            self._token = None
            self.end(exc)


NO_SPAN: Final = Span("", TraceContext("", "", sampled=False))
"""The span of work that belongs to no trace, or to one that is not recorded."""
current_span: ContextVar[Span | None] = ContextVar("span", default=None)


class Tracing:
    """Begins the spans of requests, and traces of its own. Without a recorder it is off. `sample` is the share of the
    traces begun here that are recorded."""

    __slots__ = ("_recorder", "_sample")

    def __init__(self, recorder: SpanRecorder | None = None, sample: float = 1.0) -> None:
        self._recorder = recorder
        self._sample = sample

    def request(self, headers: Sequence[Header], known: Mapping[bytes, bytes], *, may_begin: bool = True) -> Span:
        """Returns the span of a request with these headers; `known` has the same headers by name. With `may_begin`
        False, only a request that names a trace gets one."""
        parent = read_trace_context(headers) if TRACEPARENT in known else None
        if parent is None:
            begins = may_begin and self._recorder is not None
            return self._begin("request", {}, is_server=True) if begins else NO_SPAN
        if self._recorder is None or not parent.sampled:
            return Span("request", parent)
        context = TraceContext(parent.trace_id, _new_span_id(), True, parent.state)
        return Span("request", context, self._recorder, parent.span_id, is_server=True)

    def distrust(self, span: Span) -> None:
        """Applies `sample` to a request whose sender was not authenticated: a stranger's headers must not decide what
        is recorded."""
        if span.parent_id and random.random() >= self._sample:
            span.drop()

    def span(self, name: str, **attributes: Value) -> Span:
        """Returns a child of the current span, or the first span of a new trace."""
        current = current_span.get()
        if current is not None:
            return current.child(name, attributes)
        return NO_SPAN if self._recorder is None else self._begin(name, attributes)

    def _begin(self, name: str, attributes: dict[str, Value], *, is_server: bool = False) -> Span:
        sampled = random.random() < self._sample
        context = TraceContext(f"{random.getrandbits(128) or 1:032x}", _new_span_id(), sampled)
        recorder = self._recorder if sampled else None
        return Span(name, context, recorder, "", attributes, is_server=is_server)


OFF: Final = Tracing()


def traced(name: str, **attributes: Value) -> Span:
    """Returns a child of the current span; without a current span, one that records nothing."""
    current = current_span.get()
    return NO_SPAN if current is None else current.child(name, attributes)


def is_traced() -> bool:
    """Returns whether spans are recorded now, for callers whose attributes are costly to make."""
    current = current_span.get()
    return current is not None and current.is_recorded


def trace_headers() -> list[Header]:
    """Returns the headers that tell another process of the current trace."""
    current = current_span.get()
    return [] if current is None else current.context.headers()


def _new_span_id() -> str:
    return f"{random.getrandbits(64) or 1:016x}"
