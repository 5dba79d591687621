"""A short history of a process, for plots: a point every 10 s for an hour, and one every 5 min for a day.

`History` is a `Recorder` that counts what it is told and tells the next one. `run` makes the points: what was counted
since the last one, what `read` gives at that moment, and how late the event loop was at most. All of it is in memory
and bounded; it ends with the process. A point that could not be made in time is null in every column.

Latencies are counted in buckets, 16 to a decade, so percentiles are right within some 8 percent.
"""

import asyncio
import math
import os
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.worker import PoolStats, WorkerStats
from warren.kernel.clock import Clock
from warren.model.errors import NoSpace, WarrenError
from warren.model.network import NetworkUse
from warren.model.session import SessionState

POINT_S: Final = 10.0
SPANS: Final = {"1h": 360, "24h": 288}  # points; those of the longer one are 300 s apart
_POINTS_IN_ONE: Final = 30
_TICK_S: Final = 0.5
_SESSION_IS_FULL: Final = NoSpace.http_status  # which no server can help
_MAX_POOLS: Final = 20  # environments that have columns of their own
_BOUNDS: Final = [10 ** (at / 16) / 10_000 for at in range(113)]  # 0.1 ms to 1,000 s
_TIMES: Final = ("create", "exec", "exec_overhead", "request")
_COUNTS: Final = (
    *("creates", "create_failures", "pool_hits", "pool_misses", "execs", "requests", "errors"),
    *("egress_allowed", "egress_refused", "egress_bytes"),
)
_STATES: Final = tuple(state for state in SessionState if state is not SessionState.ENDED)
COLUMNS: Final = (
    *(f"sessions_{state}" for state in _STATES),
    *("sandboxes", "pool_ready", "pool_creating", "pool_waiting"),
    *("memory_free_mb", "disk_free_mb", "load", "loop_lag_ms"),
    *_COUNTS,
    *(f"{name}_ms_{part}" for name in _TIMES for part in ("p50", "p95")),
)
_POOL_COLUMNS: Final = ("ready", "waiting", "hits", "misses")

Row = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process knows at a moment; None: it has no such thing, or cannot tell it now."""

    sessions: Mapping[str, int] | None = None
    worker: WorkerStats | None = None


Read = Callable[[], Awaitable[Reading]]


class Latencies:
    """How often something took how long."""

    __slots__ = ("_buckets", "_count")

    def __init__(self) -> None:
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._count = 0

    def add(self, seconds: float) -> None:
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._count += 1

    def merge(self, other: "Latencies") -> None:
        self._buckets = [mine + theirs for mine, theirs in zip(self._buckets, other._buckets, strict=True)]
        self._count += other._count

    def percentile_ms(self, part: float) -> float | None:
        """The middle of the bucket that the percentile is in; None if there was nothing."""
        rank, seen = math.ceil(self._count * part), 0
        for at, count in enumerate(self._buckets):
            seen += count
            if count and seen >= rank:
                upper = _BOUNDS[min(at, len(_BOUNDS) - 1)]
                lower = _BOUNDS[at - 1] if at else upper
                return round(1000 * math.sqrt(lower * upper), 3)
        return None


class _Interval:
    """What happened since a point was made."""

    __slots__ = ("counts", "lag_s", "times")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.times = {name: Latencies() for name in _TIMES}
        self.lag_s = 0.0

    def merge(self, other: "_Interval") -> None:
        self.counts += other.counts
        self.lag_s = max(self.lag_s, other.lag_s)
        for name, latencies in other.times.items():
            self.times[name].merge(latencies)

    def row(self) -> Row:
        row: Row = {name: float(self.counts[name]) for name in _COUNTS}
        row["loop_lag_ms"] = round(self.lag_s * 1000, 1)
        for name, latencies in self.times.items():
            row[f"{name}_ms_p50"] = latencies.percentile_ms(0.5)
            row[f"{name}_ms_p95"] = latencies.percentile_ms(0.95)
        return row


class _Series:
    """The last points of one span. `last` is the newest: how many intervals there were until then since 1970."""

    def __init__(self, most: int, interval_s: float) -> None:
        self.most, self.interval_s = most, interval_s
        self.rows: deque[tuple[Row, Mapping[str, Row]] | None] = deque(maxlen=most)
        self.last = 0

    def add(self, wall: float, row: Row, pools: Mapping[str, Row]) -> None:
        number = int(wall // self.interval_s)
        if self.last:
            for _ in range(min(number - self.last - 1, self.most)):
                self.rows.append(None)
        if number > self.last:
            self.rows.append((row, pools))
            self.last = number
        # Otherwise the machine's clock was set back: the plot goes on when it has caught up.

    def view(self) -> dict[str, Any]:
        rows = list(self.rows)
        known = [row for row in rows if row is not None]
        names = dict.fromkeys(name for _, pools in known for name in pools)
        return {
            "interval_s": self.interval_s,
            "from": (self.last - len(rows) + 1) * self.interval_s,
            "columns": {name: [None if row is None else row[0].get(name) for row in rows] for name in COLUMNS},
            "pools": {
                name: {
                    column: [None if row is None else row[1].get(name, {}).get(column) for row in rows]
                    for column in _POOL_COLUMNS
                }
                for name in names
            },
        }


class History:
    """Implements `Recorder`, and passes what it is told on to `following`."""

    def __init__(self, clock: Clock, following: Recorder = NO_RECORDER) -> None:
        self._clock = clock
        self._next = following
        self._now, self._longer = _Interval(), _Interval()
        self._series = {
            "1h": _Series(SPANS["1h"], POINT_S),
            "24h": _Series(SPANS["24h"], POINT_S * _POINTS_IN_ONE),
        }
        self._pools: Mapping[str, PoolStats] = {}
        self._longer_pools: dict[str, Counter[str]] = {}

    def __repr__(self) -> str:
        return f"<History: {len(self._series['1h'].rows)} points>"

    def view(self, span: str) -> dict[str, Any]:
        """The points of a span: `interval_s`, `from` (the time of day of the oldest), `columns`, and `pools`, by
        environment. Values are null where there is nothing to tell."""
        return self._series[span].view()

    async def run(self, read: Read) -> None:
        """Makes points of what `read` gives until it is cancelled."""
        loop = asyncio.get_running_loop()
        made = int(self._clock.wall() // POINT_S)
        while True:
            due = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._now.lag_s = max(self._now.lag_s, loop.time() - due)
            if int(self._clock.wall() // POINT_S) != made:
                made = int(self._clock.wall() // POINT_S)
                await self.make_point(read)

    async def make_point(self, read: Read) -> None:
        reading = Reading()
        with suppress(WarrenError):
            reading = await read()
        wall = self._clock.wall()
        interval, self._now = self._now, _Interval()
        pools, counted = self._pool_rows(reading.worker)
        interval.counts += counted
        gauges = _gauges(reading)
        self._series["1h"].add(wall, {**interval.row(), **gauges}, pools)
        self._longer.merge(interval)
        longer = self._series["24h"]
        if int(wall // longer.interval_s) != longer.last:
            self._add_longer(wall, gauges, pools)

    def _add_longer(self, wall: float, gauges: Row, pools: Mapping[str, Row]) -> None:
        rows: dict[str, Row] = {}
        for name, row in pools.items():
            counts = self._longer_pools.get(name, Counter())
            rows[name] = {**row, "hits": float(counts["hits"]), "misses": float(counts["misses"])}
        self._series["24h"].add(wall, {**self._longer.row(), **gauges}, rows)
        self._longer, self._longer_pools = _Interval(), {}

    def _pool_rows(self, worker: WorkerStats | None) -> tuple[dict[str, Row], Counter[str]]:
        """A row for each pool, with what is new since the last point, and the sums of that."""
        rows: dict[str, Row] = {}
        sums: Counter[str] = Counter()
        pools = {} if worker is None else worker.pools
        for name, pool in pools.items():
            before = self._pools.get(name, PoolStats())
            hits, misses = max(0, pool.hits - before.hits), max(0, pool.misses - before.misses)
            sums.update(pool_hits=hits, pool_misses=misses)
            if len(rows) < _MAX_POOLS:
                rows[name] = {"ready": pool.ready, "waiting": pool.waiting, "hits": hits, "misses": misses}
                self._longer_pools.setdefault(name, Counter()).update(hits=hits, misses=misses)
        self._pools = pools
        return rows, sums

    # -- as a Recorder

    def creation_ended(self, environment: str, source: str, outcome: str) -> None:
        self._now.counts["creates" if outcome == "created" else "create_failures"] += 1
        self._next.creation_ended(environment, source, outcome)

    def sandbox_claimed(self, seconds: float) -> None:
        self._now.times["create"].add(seconds)
        self._next.sandbox_claimed(seconds)

    def command_ended(self, environment: str, reason: str, seconds: float, overhead_s: float | None) -> None:
        now = self._now
        now.counts["execs"] += 1
        now.times["exec"].add(seconds)
        if overhead_s is not None:
            now.times["exec_overhead"].add(overhead_s)
        self._next.command_ended(environment, reason, seconds, overhead_s)

    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        now = self._now
        now.counts["requests"] += 1
        now.times["request"].add(seconds)
        if status >= 500 and status != _SESSION_IS_FULL:
            now.counts["errors"] += 1
        self._next.request_ended(route, method, status, seconds)

    def network_used(self, use: NetworkUse) -> None:
        counts = self._now.counts
        counts["egress_allowed"] += use.connections
        counts["egress_refused"] += use.refused
        counts["egress_bytes"] += use.bytes_sent + use.bytes_received
        self._next.network_used(use)

    def sandbox_made(self, provider: str, seconds: float) -> None:
        self._next.sandbox_made(provider, seconds)

    def sandbox_destroyed(self, seconds: float) -> None:
        self._next.sandbox_destroyed(seconds)

    def sandbox_lost(self, why: str) -> None:
        self._next.sandbox_lost(why)

    def machine_full(self, what: str) -> None:
        self._next.machine_full(what)

    def pool_hit(self, environment: str) -> None:
        self._next.pool_hit(environment)

    def pool_missed(self, environment: str) -> None:
        self._next.pool_missed(environment)

    def queue_left(self, waited_s: float) -> None:
        self._next.queue_left(waited_s)


def _gauges(reading: Reading) -> Row:
    row: Row = {"load": round(os.getloadavg()[0], 2)}
    if reading.sessions is not None:
        row |= {f"sessions_{state}": reading.sessions.get(str(state), 0) for state in _STATES}
    if reading.worker is not None:
        worker, pools = reading.worker, reading.worker.pools.values()
        row |= {
            "sandboxes": worker.sandboxes,
            "pool_ready": sum(pool.ready for pool in pools),
            "pool_creating": sum(pool.creating for pool in pools),
            "pool_waiting": sum(pool.waiting for pool in pools),
            "memory_free_mb": worker.guard.memory_free_mb,
            "disk_free_mb": worker.guard.disk_free_mb,
        }
    return row
