"""The meter of what sessions use: its series, what is read on demand, and when it alerts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import pytest
from unit.session_world import TENANT, World, world

from warren.interfaces.audit import Query
from warren.model.events import Event, EventKind
from warren.model.metrics import DEFAULT_ALERTS, AlertThresholds, LatestMetrics, MetricLimits, SandboxMetrics
from warren.model.session import Session
from warren.model.spec import MIB, Limits
from warren.sessions.metrics import FRESH_S, LONGEST_S, POINTS, READ_S
from warren.sessions.new_session import NewSession

pytestmark = pytest.mark.anyio
LIMITS = Limits(memory_mb=100, cpus=2, pids=100, disk_mb=100)


class Metered:
    """A world whose meter runs; `uses` says what the sandbox of the session uses from now on."""

    def __init__(self, world: World, session: Session, events: list[Event]) -> None:
        self.world, self.session, self.events = world, session, events
        self.meter = world.lifecycle.metrics

    def uses(self, **metrics: float) -> None:
        machine = self.world.provider.machines[self.session.sandbox_id]
        machine.metrics = replace(machine.metrics, **metrics)  # type: ignore[arg-type]

    async def now(self) -> SandboxMetrics:
        sandbox = await self.world.worker.sandbox(self.session.sandbox_id)
        return await self.meter.now(self.session, sandbox)

    async def rounds(self, count: float = 1) -> None:
        await self.world.clock.advance(count * READ_S)

    @property
    def alerts(self) -> list[tuple[str, float]]:
        """Those since the last look."""
        found = [(event.data.resource, event.data.percent) for event in self.events]  # type: ignore[union-attr]
        self.events.clear()
        return found


@contextlib.asynccontextmanager
async def metered(alerts: AlertThresholds = DEFAULT_ALERTS) -> AsyncIterator[Metered]:
    events: list[Event] = []
    async with world(alerts=alerts) as made:
        made.tenancy.events.subscribe(
            lambda event: events.append(event) if event.kind is EventKind.RESOURCE_HIGH else None
        )
        limits = {"memory_mb": 100, "cpus": 2, "pids": 100, "disk_mb": 100}
        session = (await made.sessions.create(TENANT, NewSession(limits=limits, thread_id="t"))).session
        running = asyncio.create_task(made.lifecycle.metrics.run())
        try:
            await asyncio.sleep(0)
            yield Metered(made, session, events)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_new_session_is_read_soon_and_then_in_every_round() -> None:
    async with metered() as one:
        assert one.meter.latest(TENANT, [one.session.id]) == {}
        await one.world.clock.advance(1)
        (first,) = one.meter.series(one.session)
        assert (first.cpus, first.at) == (0.0, one.world.clock.wall())
        one.uses(cpu_s=4.5, memory_bytes=30 * MIB)
        await one.rounds()
        second = one.meter.series(one.session)[-1]
        assert (second.cpus, second.cpu_s, second.memory_bytes) == (0.5, 4.5, 30 * MIB)
        await one.rounds(POINTS + 5)
        series = one.meter.series(one.session)
        assert len(series) == POINTS
        assert {round(b.at - a.at, 3) for a, b in pairwise(series)} == {READ_S}
        found = one.meter.latest(TENANT, [one.session.id, "ses_unknown"])
        assert found == {one.session.id: LatestMetrics(MetricLimits.of(LIMITS), series[-1])}
        assert one.meter.latest("another", [one.session.id]) == {}


async def test_now_is_read_at_once_and_at_most_once_a_second() -> None:
    async with metered() as one:
        assert (await one.now()).memory_bytes == 0
        one.uses(memory_bytes=MIB, cpu_s=3)
        assert (await one.now()).memory_bytes == 0
        await one.world.clock.advance(2 * FRESH_S)  # the series has its first point meanwhile
        one.uses(memory_bytes=2 * MIB, cpu_s=4)
        await one.world.clock.advance(FRESH_S)
        now = await one.now()
        assert (now.memory_bytes, now.cpus) == (2 * MIB, 0.5)
        assert one.meter.series(one.session)[-1].memory_bytes == MIB, "what is asked for is not in the series"
        one.uses(cpu_s=13)
        await one.rounds()
        assert one.meter.series(one.session)[-1].cpus == round(10 / 9, 4), "since the point before, not since `now`"


async def test_nothing_is_kept_of_a_session_that_has_ended_or_was_lost() -> None:
    async with metered() as one:
        await one.rounds()
        await one.world.sessions.delete(TENANT, one.session.id)
        assert one.meter.latest(TENANT, [one.session.id]) == {}
        assert repr(one.meter) == "<MetricsMeter: 0 followed, each 10 s>"
        other = (await one.world.sessions.create(TENANT, NewSession())).session
        one.world.provider.lose(other.sandbox_id)
        await one.rounds()
        await one.world.lifecycle.losses.check_sandbox(other)
        await one.world.lifecycle.wait_for_tasks()
        assert repr(one.meter) == "<MetricsMeter: 0 followed, each 10 s>"


async def test_one_sandbox_that_cannot_be_read_keeps_no_other_from_being_read() -> None:
    async with metered() as one:
        for _ in range(3):
            bad = (await one.world.sessions.create(TENANT, NewSession())).session
            one.world.provider.machines[bad.sandbox_id].metrics = None  # type: ignore[assignment]
        await one.rounds(2)
        assert len(one.meter.series(one.session)) == 3


async def test_the_interval_grows_with_the_time_that_reading_takes() -> None:
    async with metered() as one:
        clock, worker = one.world.clock, one.world.worker
        worker.slow_s = 0.3
        await one.rounds(2)
        assert one.meter.interval_s == pytest.approx(30.0)
        worker.slow_s = 5.0
        await clock.advance(50)
        assert one.meter.interval_s == LONGEST_S
        worker.slow_s = 0.0
        await clock.advance(70)
        assert one.meter.interval_s == READ_S


async def test_an_alert_comes_once_until_the_use_has_fallen() -> None:
    async with metered() as one:
        one.uses(memory_bytes=89 * MIB)
        await one.rounds(2)
        assert one.alerts == []
        one.uses(memory_bytes=90 * MIB)
        await one.rounds(10)
        event = one.events[0]
        assert event.json_data() == {
            "resource": "memory",
            "used": 90 * MIB,
            "limit": 100 * MIB,
            "percent": 90.0,
            "threshold": 90.0,
            "thread_id": "t",
        }
        assert (event.tenant, event.session_id) == (TENANT, one.session.id)
        assert one.alerts == [("memory", 90.0)]
        (entry,) = (await one.world.audit.find(Query(TENANT, action="resource.high"))).entries
        assert (entry.session_id, entry.detail["resource"]) == (one.session.id, "memory")
        for used in (85, 95, 81, 99):  # around the threshold, but never ten points below
            one.uses(memory_bytes=used * MIB)
            await one.rounds(7)
        assert one.alerts == []
        one.uses(memory_bytes=80 * MIB)
        await one.rounds()
        one.uses(memory_bytes=95 * MIB)
        await one.rounds()
        assert one.alerts == [("memory", 95.0)]


async def test_one_resource_alerts_once_a_minute_at_most_and_each_for_itself() -> None:
    async with metered(AlertThresholds(memory=50, disk=60, processes=70)) as one:
        for _ in range(6):  # up and down, 20 s each time: two minutes in all
            one.uses(memory_bytes=60 * MIB)
            await one.rounds()
            one.uses(memory_bytes=0)
            await one.rounds()
        assert one.alerts == [("memory", 60.0), ("memory", 60.0)]
        one.uses(disk_bytes=60 * MIB, processes=69)  # and the first process of the sandbox
        await one.rounds()
        assert one.alerts == [("disk", 60.0), ("processes", 70.0)]


async def test_processors_alert_when_they_were_busy_for_a_minute_and_not_at_all_unless_asked_for() -> None:
    busy = 2 * READ_S
    async with metered(AlertThresholds(cpu=95)) as one:
        used = 0.0
        for load in (1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1):
            used += load * busy
            one.uses(cpu_s=used)
            await one.rounds()
        assert one.alerts == []
        one.uses(cpu_s=used + busy)
        await one.rounds()
        assert one.alerts == [("cpu", 100.0)]
    async with metered() as one:
        for round_ in range(20):
            one.uses(cpu_s=round_ * busy)
            await one.rounds()
        assert one.alerts == []


async def test_a_resource_can_be_switched_off() -> None:
    async with metered(AlertThresholds(memory=0)) as one:
        one.uses(memory_bytes=100 * MIB)
        await one.rounds(3)
        assert one.alerts == []
