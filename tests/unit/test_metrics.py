"""What the page of metrics says, and that nothing makes it grow."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from warren.governance.metrics.process_metrics import MetricsPage, ProcessMetrics
from warren.governance.metrics.readings import Readings
from warren.governance.metrics.recorder import MAX_ENVIRONMENTS, MAX_ROUTES, kind_of_loss
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.worker import GuardStats, PoolStats, WorkerStats
from warren.model.network import NetworkUse

DOCUMENT = Path(__file__).parents[2] / "docs" / "monitoring.md"
pytestmark = pytest.mark.anyio


def new_metrics(*environments: str) -> ProcessMetrics:
    return ProcessMetrics("server", "1.2.3", lambda name: name in environments)


def everything() -> Readings:
    pools = {
        "base": PoolStats(ready=3, creating=1, waiting=2, target=9, learned_burst=9, claim_rate=0.5),
        "base@docker": PoolStats(ready=1, target=5, size=5, shortage="being_made", claim_rate=0.25),
        "python": PoolStats(ready=0, target=0, size=5, shortage="idle"),
    }
    guard = GuardStats(memory_free_mb=7, memory_reserve_mb=2, disk_free_mb=9, disk_reserve_mb=1, max_sandboxes=40)
    return Readings(
        sessions={"running": 4},
        worker=WorkerStats(5, 4, 1, pools, guard, leaks=1),
        cluster_workers={"ready": 2, "dead": 1},
        workers_wanted=3,
        preview_connections=6,
        lease_left_s=-3.0,
    )


async def page_of(metrics: ProcessMetrics, readings: Readings | None = None, accept: str = "") -> str:
    async def read() -> Readings:
        return readings or Readings()

    return (await MetricsPage(metrics, read).render(accept))[0].decode()


def report_one_of_each(recorder: Recorder) -> None:
    recorder.creation_ended("base", "pool", "created")
    recorder.sandbox_claimed(0.002)
    recorder.sandbox_made("oci", 0.02)
    recorder.sandbox_destroyed(0.03)
    recorder.sandbox_lost("its agent does not answer")
    recorder.machine_full("memory")
    recorder.pool_hit("base")
    recorder.pool_missed("base")
    recorder.queue_left(0.5)
    recorder.command_ended("base", "exited", 0.1, 0.003)
    recorder.command_ended("base", "timeout", 30.0, None)
    recorder.request_ended("/api/sessions", "POST", 429, 0.004)
    recorder.network_used(NetworkUse(bytes_sent=10, bytes_received=20, connections=2, refused=1))


def promtool_says(page: str) -> str:
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    return checked.stdout + checked.stderr


async def test_the_page_tells_what_was_reported_and_read() -> None:
    metrics = new_metrics("base")
    report_one_of_each(metrics.recorder)
    page = set((await page_of(metrics, everything())).splitlines())
    assert {
        'warren_session_creates_total{environment="base",outcome="created",source="pool"} 1.0',
        'warren_create_seconds_count{provider="oci"} 1.0',
        'warren_sandbox_lost_total{why="agent"} 1.0',
        'warren_guard_refusals_total{what="memory"} 1.0',
        'warren_guard_refusals_total{what="disk"} 0.0',
        'warren_pool_hits_total{environment="base"} 1.0',
        'warren_execs_total{environment="base",reason="timeout"} 1.0',
        "warren_exec_seconds_count 2.0",
        "warren_exec_overhead_seconds_count 1.0",
        'warren_http_request_seconds_count{method="POST",route="/api/sessions",status="429"} 1.0',
        "warren_rate_limited_total 1.0",
        'warren_egress_connections_total{verdict="refused"} 1.0',
        'warren_egress_bytes_total{direction="received"} 20.0',
        'warren_sessions{state="running"} 4.0',
        'warren_pool_sandboxes{environment="base",state="ready"} 4.0',
        'warren_pool_target{environment="base"} 14.0',
        'warren_pool_missing{environment="base",reason="being_made"} 4.0',
        'warren_pool_missing{environment="python",reason="idle"} 5.0',
        'warren_pool_learned_burst{environment="base"} 9.0',
        'warren_pool_claim_rate{environment="base"} 0.75',
        "warren_queue_waiting 2.0",
        "warren_leaks 1.0",
        "warren_machine_memory_free_bytes 7.340032e+06",
        'warren_cluster_workers{state="dead"} 1.0',
        "warren_workers_wanted 3.0",
        "warren_worker_lease_seconds 0.0",
    } <= page


async def test_every_metric_is_documented_and_the_other_way_round() -> None:
    metrics = new_metrics("base")
    report_one_of_each(metrics.recorder)
    kinds = re.findall(r"^# TYPE (warren_\w+) (\w+)$", await page_of(metrics, everything()), flags=re.M)
    rows = re.findall(r"^\| ((?:`warren_\w+`(?:, )?)+) \|([^|]*)\|", DOCUMENT.read_text(), flags=re.M)
    assert {name for names, _ in rows for name in re.findall(r"\w+", names)} == {name for name, _ in kinds}
    page = await page_of(new_metrics("base"))
    assert "warren_sessions" not in page  # what a process cannot tell is left out, not 0
    assert 'warren_build_info{python="' in page


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0; charset=utf-8, text/plain;q=0.5"])
async def test_promtool_finds_no_fault(accept: str) -> None:
    metrics = new_metrics("base")
    report_one_of_each(metrics.recorder)
    page = await page_of(metrics, everything(), accept)
    assert page.endswith("# EOF\n") is bool(accept)
    if not accept:
        assert promtool_says(page) == ""


async def test_nothing_that_callers_choose_makes_the_page_grow() -> None:
    metrics = new_metrics(*(f"env-{number}" for number in range(2 * MAX_ENVIRONMENTS)))
    recorder = metrics.recorder
    for number in range(2 * MAX_ROUTES):
        recorder.request_ended(f"/{number}", "GET", 200, 0.1)
        recorder.request_ended("/a", f"METHOD-{number}", 200, 0.1)
        recorder.command_ended(f"unknown-{number}", "exited", 0.1, None)
        recorder.creation_ended(f"env-{number}", "pool", "created")
        recorder.sandbox_lost(f"no text that anybody knows: {number}")
    page = await page_of(metrics)
    assert page.count("warren_http_request_seconds_count{") <= MAX_ROUTES + 1
    assert page.count("warren_session_creates_total{") == MAX_ENVIRONMENTS + 1
    assert "METHOD-" not in page
    assert 'warren_execs_total{environment="other",reason="exited"} 2000.0' in page
    assert 'warren_sandbox_lost_total{why="other"} 2000.0' in page


async def test_a_page_serves_all_who_ask_at_once_and_two_metrics_share_nothing() -> None:
    metrics, asked = new_metrics("base"), 0

    async def read() -> Readings:
        nonlocal asked
        asked += 1
        return Readings(preview_connections=asked)

    page = MetricsPage(metrics, read)
    pages = await asyncio.gather(*(page.render() for _ in range(20)))
    assert asked == 1
    assert len({text for text, _ in pages}) == 1
    metrics.recorder.pool_hit("base")
    assert "warren_pool_hits_total{" not in await page_of(new_metrics("base"))


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("its agent does not answer", "agent"),
        ("the connection to its agent is gone", "agent"),
        ("its first process has ended", "ended"),
        ("the machine was restarted", "reboot"),
        ("its worker 'agent-disk' does not answer any more", "worker"),
        ("sandbox 0f is lost: the far side does not have it any more", "far_side"),
        ("it had allocated more disk space than the machine has left", "disk"),
        ("the sandbox is lost: its directory is gone", "destroyed"),
        ("", "other"),
    ],
)
def test_the_reason_of_a_loss_has_a_kind(why: str, kind: str) -> None:
    assert kind_of_loss(why) == kind


def test_without_metrics_every_report_is_taken_and_dropped() -> None:
    report_one_of_each(NO_RECORDER)
