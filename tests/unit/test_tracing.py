"""The seam of traces: what is read from headers, what is below what, and what is recorded."""

import asyncio
import contextvars

import pytest

from warren.kernel.tracing import (
    NO_SPAN,
    OFF,
    Span,
    TraceContext,
    Tracing,
    current_span,
    is_traced,
    read_trace_context,
    trace_headers,
    traced,
)
from warren.model.errors import NoCapacity

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01".encode()


class Kept(list[Span]):
    def record(self, span: Span) -> None:
        self.append(span)


def trace_id() -> str:
    span = current_span.get()
    return "" if span is None else span.context.trace_id


def a_request(tracing: Tracing, *headers: tuple[bytes, bytes], may_begin: bool = True) -> Span:
    return tracing.request(headers, dict(headers), may_begin=may_begin)


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (SAMPLED, True),
        (f"00-{TRACE}-{PARENT}-00".encode(), False),
        (f"00-{TRACE}-{PARENT}-03".encode(), True),
        (f"cc-{TRACE}-{PARENT}-01".encode(), True),
        (f"cc-{TRACE}-{PARENT}-01-what-comes-later".encode(), True),
    ],
)
def test_a_valid_traceparent_is_read(value: bytes, sampled: bool) -> None:
    assert read_trace_context([(b"traceparent", value)]) == TraceContext(TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b"00"],
        [SAMPLED, SAMPLED],
        [SAMPLED + b" "],
        [SAMPLED + b"\n"],
        [SAMPLED + b"-more"],
        [SAMPLED.upper()],
        [f"ff-{TRACE}-{PARENT}-01".encode()],
        [f"00-{'0' * 32}-{PARENT}-01".encode()],
        [f"00-{TRACE}-{'0' * 16}-01".encode()],
        [f"00-{TRACE[:-1]}-{PARENT}-01".encode()],
        [f"00-{TRACE}-{PARENT}-1".encode()],
        [f"00-{TRACE[:-1]}\xe9-{PARENT}-01".encode("latin-1")],
        [b"x" * 60_000],
    ],
)
def test_a_traceparent_that_is_not_valid_is_ignored_with_its_tracestate(values: list[bytes]) -> None:
    headers = [*((b"traceparent", value) for value in values), (b"tracestate", b"a=1")]
    assert read_trace_context(headers) is None
    assert a_request(OFF, *headers) is NO_SPAN
    assert a_request(Tracing(Kept()), *headers).context.state == ""


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        ([b"a=1"], "a=1"),
        ([b"a=1, b@c=x y", b"d=2"], "a=1,b@c=x y,d=2"),
        ([b"a=1,,"], "a=1"),
        ([b""], ""),
        ([b"A=1"], ""),
        ([b"a=1,b"], ""),
        ([b"a=\x00"], ""),
        ([b"a=1\r\nx: y"], ""),
        ([b",".join(b"a%d=1" % number for number in range(33))], ""),
        ([b"a=" + b"x" * 600], ""),
    ],
)
def test_a_tracestate_is_kept_if_it_is_valid(states: list[bytes], kept: str) -> None:
    context = read_trace_context([(b"traceparent", SAMPLED), *((b"tracestate", state) for state in states)])
    assert context == TraceContext(TRACE, PARENT, True, kept)


def test_spans_are_below_the_one_that_goes_on() -> None:
    kept = Kept()
    with a_request(Tracing(kept), (b"traceparent", SAMPLED), (b"tracestate", b"a=1")) as request:
        assert trace_id() == TRACE
        with traced("claim", session="s") as claim, Tracing(kept).span("create"):
            pass
        request.note(session="s")
        passed_on = trace_headers()
    assert [span.name for span in kept] == ["create", "claim", "request"]
    assert [span.parent_id for span in kept] == [claim.context.span_id, request.context.span_id, PARENT]
    assert {(span.context.trace_id, span.context.state) for span in kept} == {(TRACE, "a=1")}
    assert passed_on == [(b"traceparent", f"00-{TRACE}-{request.context.span_id}-01".encode()), (b"tracestate", b"a=1")]
    assert request.attributes == {"session": "s"}
    assert all(span.end_ns >= span.start_ns > 0 for span in kept)
    assert trace_id() == ""


def test_without_a_recorder_a_callers_trace_is_carried_and_nothing_else() -> None:
    assert a_request(OFF) is NO_SPAN
    with a_request(OFF, (b"traceparent", SAMPLED)):
        assert trace_id() == TRACE
        assert trace_headers() == [(b"traceparent", SAMPLED)]
        assert not is_traced()
        assert traced("exec") is OFF.span("create") is NO_SPAN
    with NO_SPAN:
        assert trace_headers() == []


def test_who_decides_what_is_recorded() -> None:
    kept = Kept()
    with a_request(Tracing(kept), (b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())), traced("exec"):
        assert trace_headers() == [(b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())]
    with a_request(Tracing(kept, sample=0.0)), traced("exec"):
        assert trace_headers()[0][1].endswith(b"-00")
    assert a_request(Tracing(kept), may_begin=False) is NO_SPAN
    assert kept == []
    with a_request(Tracing(kept, sample=0.0), (b"traceparent", SAMPLED), may_begin=False):
        pass
    with a_request(Tracing(kept)), traced("exec"):
        pass
    assert [span.name for span in kept] == ["request", "exec", "request"]


def test_an_error_is_told_by_its_code_and_never_by_its_text() -> None:
    kept = Kept()
    for error in (NoCapacity("/a/path of somebody"), ValueError("a secret")):
        with pytest.raises(type(error)), a_request(Tracing(kept)), traced("claim"):
            raise error
    assert [span.error for span in kept if span.name == "claim"] == ["no_capacity", "ValueError"]
    assert all(span.attributes == {} for span in kept)


def test_work_that_outlives_its_request_is_in_no_trace_of_another() -> None:
    kept, tracing = Kept(), Tracing(Kept())

    async def later(go_on: asyncio.Event) -> str:
        await go_on.wait()
        with traced("exec"):
            return trace_id()

    async def run() -> tuple[str, str]:
        go_on = asyncio.Event()
        with a_request(Tracing(kept), (b"traceparent", SAMPLED)):
            inherits = asyncio.create_task(later(go_on))
            apart = asyncio.create_task(later(go_on), context=contextvars.Context())
        go_on.set()
        return await inherits, await apart

    assert asyncio.run(run()) == (TRACE, "")
    assert [span.name for span in kept] == ["request"]
    with tracing.span("create") as span:
        assert span.parent_id == ""


def test_a_span_ends_once() -> None:
    kept = Kept()
    with a_request(Tracing(kept)):
        span = traced("exec").start()
        span.end()
        span.end(ValueError())
    assert [(each.name, each.error) for each in kept] == [("exec", ""), ("request", "")]
