"""Traces of real servers, as a collector sees them; and what a collector that is away, slow or ill does to requests."""

import asyncio
import contextlib
import json
import logging
import secrets
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine.cluster_world import ADMIN, Nodes, new_nodes, wait_until
from opentelemetry.sdk.trace import TracerProvider
from server_process import ServerProcess, clean_environ, free_port, running_server
from span_collector import Collector, Seen, collecting

from warren import SandboxClient
from warren.kernel.span_export import SpanExporter
from warren.kernel.tracing import Tracing, traced

PRIVATE = "hidden-in-commands-and-paths"
_OFTEN = 60


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def nodes(collector: Collector) -> Iterator[Nodes]:
    with new_nodes() as nodes:
        nodes.worker("one", "--on-stop", "destroy", WARREN_OTLP_ENDPOINT=collector.url)
        nodes.coordinator(WARREN_OTLP_ENDPOINT=collector.url, WARREN_LOG_FORMAT="json")
        for process in nodes.all:
            process.start(wait=False)
        for process in nodes.all:
            process.wait_until_ready()
        yield nodes


def ask(
    server: ServerProcess, path: str, body: Any = None, status: int = 200, method: str = "", **headers: str
) -> dict[str, Any]:
    request = urllib.request.Request(server.url + path, method=method or ("GET" if body is None else "POST"))
    for name, value in {"X-API-Key": ADMIN, **headers}.items():
        request.add_header(name, value)
    if body is not None:
        request.data = json.dumps(body).encode()
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == status
        values: dict[str, Any] = json.loads(answer.read() or b"{}")
        return values


def below(spans: list[Seen], span: Seen) -> list[Seen]:
    return [each for each in spans if each.parent_id == span.span_id]


def only(spans: list[Seen], **wanted: str) -> Seen:
    found = [span for span in spans if all(getattr(span, name) == value for name, value in wanted.items())]
    assert len(found) == 1, (wanted, spans)
    return found[0]


def new_trace() -> tuple[str, str]:
    trace = secrets.token_hex(16)
    return trace, f"00-{trace}-{secrets.token_hex(8)}-01"


def test_one_trace_leads_from_the_client_through_the_coordinator_to_the_sandbox(
    nodes: Nodes, collector: Collector
) -> None:
    worker, coordinator = nodes.all
    tracer = TracerProvider().get_tracer("a program")
    with tracer.start_as_current_span("of the caller") as mine:
        context = mine.get_span_context()
        with SandboxClient(coordinator.url, api_key=ADMIN) as sandbox:
            session = sandbox.info().session_id
            assert sandbox.execute(f"echo {PRIVATE}; exit 3").exit_code == 3
            assert "".join(chunk.text for chunk in sandbox.stream(f"echo {PRIVATE}")).strip() == PRIVATE
            sandbox.write_file(f"/workspace/{PRIVATE}", PRIVATE)
            assert sandbox.read_file(f"/workspace/{PRIVATE}") == PRIVATE.encode()
    trace = f"{context.trace_id:032x}"
    wait_until(lambda: len([s for s in collector.of_trace(trace) if s.name.startswith("DELETE")]) == 2, "the last ones")
    spans = collector.of_trace(trace)

    arrived = below(spans, Seen("", "", "", f"{context.span_id:016x}", "", "", False, 0, {}))
    assert {span.service for span in arrived} == {"warren-coordinator"}
    for one in arrived:
        at_worker = only(below(spans, one))
        assert (at_worker.service, at_worker.name) == ("warren-worker", one.name)
        assert at_worker.attributes["http.route"] == one.attributes["http.route"]
        assert at_worker.attributes["warren.session"] == session
    assert not [span for span in spans if span.is_error]

    created = only(spans, service="warren-worker", name="POST /api/sessions")
    claim = only(below(spans, created), name="claim")
    assert claim.attributes["warren.provider"] == "fake"
    assert created.attributes["warren.environment"] == claim.attributes["warren.environment"] == "base"
    plain, streamed = [span for span in spans if span.name == "exec"]
    assert (plain.attributes["warren.reason"], plain.attributes["warren.exit_code"]) == ("exited", 3)
    assert streamed.attributes["warren.exit_code"] == 0
    done = {span.attributes["warren.operation"] for span in spans if span.name == "file"}
    assert {"read", "write"} <= done
    assert {span.attributes.get("warren.session", session) for span in spans} == {session}
    assert PRIVATE not in repr(spans)

    lines = [json.loads(line) for line in coordinator.log.splitlines() if '"event": "request"' in line]
    assert {line["trace"] for line in lines if line["route"].startswith("/api/sessions")} == {trace}
    assert f"trace={trace}" in next(line for line in worker.log.splitlines() if " session_created " in line)
    of_it = f"/api/audit?session_id={session}"
    wait_until(lambda: ask(coordinator, f"{of_it}&action=delete_session")["deeds"], "the record")
    deeds = ask(coordinator, of_it)["deeds"]
    assert {deed["detail"].get("trace") for deed in deeds if deed["status"]} == {trace}


def test_the_caller_decides_and_what_is_no_trace_begins_one(tmp_path: Path, collector: Collector) -> None:
    environ = {"WARREN_OTLP_ENDPOINT": collector.url, "WARREN_MIN_FREE_MEMORY_MB": "1"}
    with running_server(tmp_path, "--pool-size", "1", provider="fake", **environ) as server:
        asked, parent = new_trace()
        ask(server, "/api/environments", traceparent=parent, tracestate="them=1")
        unsampled, not_wanted = new_trace()
        ask(server, "/api/environments", traceparent=not_wanted[:-1] + "0")
        ask(server, "/api/environments", traceparent="00-" + "F" * 32 + "-00f067aa0ba902b7-01")
        ask(server, "/health")
        wait_until(lambda: [span for span in collector.spans if span.parent_id], "the caller's")
        wait_until(lambda: len([s for s in collector.spans if s.name == "GET /api/environments"]) == 2, "the others")
        log = server.log
    asked_for = only(collector.of_trace(asked))
    assert (asked_for.parent_id, asked_for.state) == (parent.split("-")[2], "them=1")
    assert collector.of_trace(unsampled) == []
    assert f"trace={unsampled}" in log
    begun = only([span for span in collector.spans if span is not asked_for and span.name.startswith("GET")])
    assert (begun.parent_id, begun.name) == ("", "GET /api/environments"), "neither the bad one nor /health"
    made_ahead = only(collector.spans, name="create")
    assert (made_ahead.parent_id, made_ahead.attributes["warren.provider"]) == ("", "fake")
    assert made_ahead.trace_id not in log, "the pool works for nobody's request"


def test_who_has_no_key_cannot_have_traces_recorded(tmp_path: Path, collector: Collector) -> None:
    environ = {"WARREN_OTLP_ENDPOINT": collector.url, "WARREN_TRACE_SAMPLE": "0", "WARREN_API_KEY": ADMIN}
    with running_server(tmp_path, provider="fake", WARREN_MIN_FREE_MEMORY_MB="1", **environ) as server:
        for path in ("/api/environments", "/api/ui/session", "/health"):
            with contextlib.suppress(urllib.error.HTTPError):
                ask(server, path, traceparent=new_trace()[1], **{"X-API-Key": "another"})
        known, parent = new_trace()
        ask(server, "/api/environments", traceparent=parent)
        wait_until(lambda: collector.of_trace(known), "the caller's")
    assert [span.trace_id for span in collector.spans] == [known]


@pytest.mark.parametrize("illness", ["away", "hangs", "refuses", "overloaded"])
def test_a_collector_that_is_ill_hurts_no_request(tmp_path: Path, collector: Collector, illness: str) -> None:
    collector.status = {"refuses": 500, "overloaded": 503}.get(illness, 200)
    url = f"http://127.0.0.1:{free_port()}" if illness == "away" else collector.url
    if illness == "hangs":
        collector.hangs.clear()
    with running_server(
        tmp_path, "--pool-size", "1", provider="fake", WARREN_OTLP_ENDPOINT=url, WARREN_MIN_FREE_MEMORY_MB="1"
    ) as server:
        with SandboxClient(server.url) as sandbox:
            for number in range(_OFTEN):
                assert sandbox.execute(f"echo {number}").output == f"{number}\n"
        if illness != "away":
            wait_until(lambda: collector.requests > 0, "it was asked")
        assert server.stop() == 0
        log = server.log
    assert collector.spans == []
    assert 1 <= log.count("spans_lost") <= 2, "once a minute, and at the end"
    assert "Traceback" not in log
    assert "opentelemetry" not in log


def test_what_waits_is_bounded_and_ends_with_the_exporter(collector: Collector) -> None:
    collector.hangs.clear()
    exporter = SpanExporter(collector.url, {}, max_waiting=10, interval_s=0.01, send_timeout_s=1.0, stop_s=0.1)
    exporter.start()
    tracing = Tracing(exporter)
    for _ in range(1000):
        with tracing.request([], {}), traced("exec"):
            pass
    lost = exporter.lost
    asyncio.run(exporter.close())
    collector.hangs.set()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "spans"], "its thread has ended")
    assert lost >= 2000 - 2 * 10, "10 may wait while 10 are sent"
    assert logging.getLogger("opentelemetry").handlers == []


def test_what_is_being_sent_when_it_gives_up_is_counted(collector: Collector) -> None:
    collector.hangs.clear()
    exporter = SpanExporter(collector.url, {}, interval_s=0.05, send_timeout_s=3.0, stop_s=0.1)
    tracing = Tracing(exporter)
    for _ in range(3):
        with tracing.request([], {}):
            pass
    exporter.start()
    wait_until(lambda: collector.requests > 0, "it was asked")
    asyncio.run(exporter.close())
    assert exporter.lost == 3
    collector.hangs.set()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "spans"], "its thread has ended")


def test_what_waits_is_sent_at_the_end(tmp_path: Path, collector: Collector) -> None:
    trace, parent = new_trace()
    with running_server(
        tmp_path,
        provider="fake",
        WARREN_OTLP_ENDPOINT=f"{collector.url}/v1/traces",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer of-the-collector",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        WARREN_MIN_FREE_MEMORY_MB="1",
    ) as server:
        ask(server, "/api/environments", traceparent=parent)
        assert server.stop() == 0
        assert "spans_lost" not in server.log
    assert only(collector.of_trace(trace)).attributes["http.response.status_code"] == 200
    assert collector.headers[0]["authorization"] == "Bearer of-the-collector"


def test_without_the_option_nothing_is_sent_and_no_exporter_is_loaded(tmp_path: Path, collector: Collector) -> None:
    program = (sys.executable, "-X", "importtime", "-m", "warren.cli.main", "serve")
    trace, parent = new_trace()
    with running_server(
        tmp_path,
        provider="fake",
        argv=program,
        WARREN_MIN_FREE_MEMORY_MB="1",
        # What FastAPI takes for a wish to send paths, bodies and exceptions somewhere.
        FASTAPI_OTEL_AUTO_CONFIGURE="true",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
    ) as server:
        with SandboxClient(server.url) as sandbox:
            sandbox.execute("true")
        ask(server, "/api/environments", traceparent=parent)
        wait_until(lambda: f"trace={trace}" in server.log, "the caller's trace is in the log all the same")
        assert " warren.kernel.tracing" in server.log
        assert "warren.kernel.span_export" not in server.log
        assert "opentelemetry.exporter" not in server.log
        assert server.stop() == 0
    assert collector.requests == 0


def test_a_server_that_is_told_to_trace_and_cannot_does_not_start(tmp_path: Path) -> None:
    hidden = tmp_path / "without" / "opentelemetry" / "exporter" / "__init__.py"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("raise ModuleNotFoundError('no opentelemetry.exporter')\n")
    environ = clean_environ()
    environ |= {"PYTHONPATH": f"{tmp_path / 'without'}:{environ['PYTHONPATH']}", "WARREN_AUTH": "false"}
    program = [sys.executable, "-m", "warren.cli.main", "serve", "--provider", "fake", "--port", str(free_port())]
    program += ["--state-dir", str(tmp_path / "state")]
    environ["WARREN_OTLP_ENDPOINT"] = "http://127.0.0.1:4318"
    ended = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "traces need packages that are not installed here" in ended.stderr
    assert "warren-sandbox[otel]" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "state").exists()
