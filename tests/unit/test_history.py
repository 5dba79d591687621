"""The short history of a server: what was counted, in points that stand where they belong."""

import pytest

from warren.interfaces.recorder import NoRecorder
from warren.interfaces.worker import GuardStats, PoolStats, WorkerStats
from warren.model.errors import Unavailable
from warren.model.network import NetworkUse
from warren.sessions.history import COLUMNS, SPANS, History, Latencies, Read, Reading
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

START = 1_800_000_000.0


class Told(NoRecorder):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.requests = 0

    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests += 1


def worker(hits: int, misses: int = 0) -> WorkerStats:
    pools = {"base": PoolStats(ready=2, waiting=1, hits=hits, misses=misses)}
    return WorkerStats(sandboxes=5, pools=pools, guard=GuardStats(memory_free_mb=700, disk_free_mb=900))


async def nothing() -> Reading:
    return Reading()


async def point(history: History, clock: ManualClock, after_s: float = 10.0, read: Read = nothing) -> None:
    clock.set_wall(clock.wall() + after_s)
    await history.make_point(read)


async def test_a_point_has_what_happened_since_the_last_one() -> None:
    clock, told = ManualClock(wall=START), Told()
    history = History(clock, told)
    now = Reading({"running": 3}, worker(10, 1))

    async def read() -> Reading:
        return now

    await point(history, clock, read=read)
    for status in (200, 507, 503):
        history.request_ended("/x", "GET", status, 0.02)
    history.creation_ended("base", "pool", "created")
    history.creation_ended("base", "none", "no_capacity")
    history.sandbox_claimed(0.005)
    for ms in range(100):
        history.command_ended("base", "exited", ms / 1000, 0.001)
    history.network_used(NetworkUse(connections=2, refused=1, bytes_sent=10, bytes_received=20))
    now = Reading({"running": 4}, worker(16, 2))
    await point(history, clock, read=read)
    view = history.view("1h")
    assert (view["interval_s"], view["from"]) == (10.0, START + 10)
    last = {name: values[-1] for name, values in view["columns"].items()}
    assert set(last) == set(COLUMNS)
    expected = {"requests": 3, "errors": 1, "creates": 1, "create_failures": 1, "execs": 100, "egress_allowed": 2}
    expected |= {"egress_refused": 1, "egress_bytes": 30, "sessions_running": 4, "sessions_lost": 0, "sandboxes": 5}
    expected |= {"pool_ready": 2, "pool_waiting": 1, "pool_hits": 6, "pool_misses": 1, "memory_free_mb": 700}
    assert {name: last[name] for name in expected} == expected
    assert last["create_ms_p50"] == pytest.approx(5, rel=0.1)
    assert last["exec_ms_p95"] == pytest.approx(95, rel=0.1)
    assert last["exec_overhead_ms_p50"] == pytest.approx(1, rel=0.1)
    assert view["columns"]["exec_ms_p50"][0] is None
    assert view["columns"]["requests"][0] == 0
    assert view["pools"]["base"] == {"ready": [2, 2], "waiting": [1, 1], "hits": [10, 6], "misses": [1, 1]}
    assert told.requests == 3


async def test_both_spans_are_bounded_and_the_longer_one_sums_up() -> None:
    clock = ManualClock(wall=START)
    history = History(clock)
    for _ in range(SPANS["1h"] + 40):
        history.request_ended("/x", "GET", 200, 0.01)
        await point(history, clock)
    hour, day = history.view("1h"), history.view("24h")
    assert len(hour["columns"]["requests"]) == SPANS["1h"]
    assert hour["from"] == clock.wall() - 10 * (SPANS["1h"] - 1)
    assert set(day["columns"]["requests"][2:]) == {30}
    assert day["interval_s"] == 300
    assert len(day["columns"]["requests"]) == 14


async def test_points_that_were_not_made_are_null_and_a_store_that_is_away_hides_only_itself() -> None:
    clock = ManualClock(wall=START)
    history = History(clock)

    async def away() -> Reading:
        raise Unavailable("no store")

    await point(history, clock, read=away)
    await point(history, clock, 40, away)
    view = history.view("1h")
    assert view["columns"]["requests"] == [0, None, None, None, 0]
    assert view["columns"]["sessions_running"][-1] is None
    await point(history, clock, 10 * 3600 * 24, away)
    assert len(history.view("1h")["columns"]["requests"]) == SPANS["1h"]


def test_percentiles_of_nothing_and_of_what_is_beyond_the_buckets() -> None:
    latencies = Latencies()
    assert latencies.percentile_ms(0.95) is None
    for seconds in (0.0, 1e-9, 1e9):
        latencies.add(seconds)
    assert latencies.percentile_ms(0.5) == pytest.approx(0.1)
    assert latencies.percentile_ms(0.95) == pytest.approx(1_000_000)
