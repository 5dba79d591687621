"""What becomes of the sessions of dead workers: each state, and when nothing may be taken."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from contract.roster_contract import ME, a_report
from contract.store_values import S, a_session, ended
from unit.fake_roster import FakeRoster
from unit.restoring_store import RestoringStore

from warren.cluster.demand import DemandGoal
from warren.cluster.failover import Failover
from warren.cluster.fleet import Fleet
from warren.cluster.operator import ClusterOperator
from warren.cluster.roster import LEASE_S, PROTOCOL
from warren.interfaces.worker import WorkerStats
from warren.model.errors import Conflict, NotFound, Unavailable
from warren.model.events import Event, EventKind
from warren.model.header_rules import HeaderRule
from warren.model.metrics import LatestMetrics, MetricLimits, SandboxMetrics
from warren.model.network import NetworkRules
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.basis import SessionBasis
from warren.sessions.event_hub import EventHub
from warren.sessions.lifecycle import Lifecycle, LifecycleOptions
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class World:
    """A coordinator that has seen Redis for long enough, and two workers, of which `dead` is."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.roster = FakeRoster(self.clock)
        self.store = RestoringStore()
        self.store.roster = self.roster
        self.events: list[Event] = []
        self.fleet = Fleet(self.roster, ME, now=self.clock.now)
        self.fault: Callable[[str], None] = lambda step: None
        basis = SessionBasis(self.store, None, self.clock, in_cluster=True, fault=lambda step: self.fault(step))
        self.lifecycle = Lifecycle(basis, LifecycleOptions(events=EventHub(self.events.append)))
        self.failover = Failover(self.fleet, self.roster, self.store, self.lifecycle, retention_s=3600.0)  # type: ignore[arg-type]
        self.control = ClusterOperator(self.fleet, self.roster, self.failover, self._stats, self._figures, DemandGoal())

    async def _stats(self, address: str) -> WorkerStats:
        if address.endswith(":9"):
            raise Unavailable("nobody there")
        return WorkerStats(claimed=1)

    async def _figures(self, address: str, tenant: str, session_ids: Sequence[str]) -> Mapping[str, LatestMetrics]:
        if address.endswith(":9"):
            raise Unavailable("nobody there")
        point = SandboxMetrics(memory_bytes=len(tenant))
        return {name: LatestMetrics(MetricLimits.of(None), point) for name in session_ids}

    async def advance(self, seconds: float, *beating: str) -> None:
        for _ in range(round(seconds)):
            await self.clock.advance(1)
            for name in beating:
                await self.roster.renew(name, self.roster.entries[name].epoch)
            await self.fleet.refresh()

    async def tick(self) -> None:
        await self.failover.tick(await self.roster.watch(ME))
        await self.lifecycle.wait_for_tasks()

    async def session(self, worker: str, state: SessionState, **values: Any) -> Session:
        now = {"started": self.clock.now(), "used": self.clock.now()}
        session, _ = await self.store.add(a_session(worker=worker, state=state, **{**now, **values}))
        return session

    async def now(self, session: Session) -> Session:
        found = await self.store.get(session.tenant, session.id)
        assert found is not None
        return found


@pytest.fixture
async def world() -> World:
    world = World()
    for name in ("live", "dead"):
        await world.roster.register(a_report(name), 0)
    await world.fleet.refresh()
    await world.advance(LEASE_S + 1, "live")
    return world


@pytest.mark.parametrize(
    ("state", "becomes"),
    [
        (S.CREATING, S.ENDED),
        (S.RUNNING, S.LOST),
        (S.PAUSED, S.LOST),
        (S.LOST, S.LOST),
        (S.STOPPING, S.ENDED),
    ],
)
async def test_the_sessions_of_a_dead_worker_are_given_up(
    world: World, state: SessionState, becomes: SessionState
) -> None:
    rules = NetworkRules(True, headers=(HeaderRule("api.example", "X-Key", "secret"),))
    theirs = await world.session("dead", state, env={"TOKEN": "secret"}, network=rules)
    kept = await world.session("live", state)
    await world.tick()
    found = await world.now(theirs)
    assert found.state is becomes
    assert await world.now(kept) == kept
    if becomes is S.ENDED:
        assert (found.reason, found.ended) == (EndReason.UNDONE, world.clock.now())
        assert (found.env, found.network) == ({"TOKEN": ""}, NetworkRules(True))
    if state is S.RUNNING:
        assert found.reason is EndReason.LOST
        assert "'dead' does not answer any more" in found.detail
        assert [(event.kind, event.session_id) for event in world.events] == [(EventKind.SESSION_LOST, theirs.id)]


async def test_the_sessions_of_a_worker_are_kept_while_it_may_be_away(world: World) -> None:
    patient = Failover(world.fleet, world.roster, world.store, world.lifecycle, retention_s=3600.0, away_s=60)  # type: ignore[arg-type]
    control = ClusterOperator(world.fleet, world.roster, patient, world._stats, world._figures, DemandGoal())
    session = await world.session("dead", S.RUNNING)
    await world.roster.register(a_report("older"), 0)
    for _ in range(2):
        await world.advance(20, "live")
        await patient.tick(await world.roster.watch(ME))
        assert await world.now(session) == session
    await control.remove("older")  # dead, and away for no longer than the other one
    assert await world.now(session) == session
    await world.advance(30, "live")
    await patient.tick(await world.roster.watch(ME))
    assert (await world.now(session)).state is S.LOST


async def test_a_stopping_session_keeps_the_reason_it_has(world: World) -> None:
    session = await world.session("dead", S.STOPPING, reason=EndReason.DELETED)
    await world.tick()
    assert (await world.now(session)).reason is EndReason.DELETED


async def test_sessions_of_a_worker_that_nobody_knows_are_given_up_too(world: World) -> None:
    session = await world.session("never-seen", S.RUNNING)
    await world.tick()
    assert (await world.now(session)).state is S.LOST


@pytest.mark.parametrize("state", [S.CREATING, S.RUNNING, S.STOPPING])
async def test_nothing_is_taken_from_a_worker_that_asks_other_coordinators(world: World, state: SessionState) -> None:
    """It may be alive: those that it asks have perhaps lost Redis as well."""
    dead = world.roster.entries["dead"]
    for asked, becomes in ((("another",), state), (("another", ME.id), S.LOST if state is S.RUNNING else S.ENDED)):
        world.roster.entries["dead"] = replace(dead, report=replace(dead.report, coordinators=asked))
        session = await world.session("dead", state)
        await world.advance(20, "live")
        await world.tick()
        assert (await world.now(session)).state is becomes


async def test_an_operator_who_removes_such_a_worker_has_its_sessions_given_up(world: World) -> None:
    dead = world.roster.entries["dead"]
    world.roster.entries["dead"] = replace(dead, report=replace(dead.report, coordinators=("another",)))
    session = await world.session("dead", S.RUNNING)
    await world.control.remove("dead")
    assert (await world.now(session)).state is S.LOST


async def test_a_lost_session_whose_time_is_over_is_ended(world: World) -> None:
    session = await world.session("dead", S.LOST, idle_timeout_s=1.0, detail="it died")
    await world.advance(30, "live")
    await world.tick()
    found = await world.now(session)
    assert (found.state, found.reason, found.detail) == (S.ENDED, EndReason.LOST, "it died")


async def test_a_lost_session_of_another_worker_ends_in_one_step(world: World) -> None:
    """A process that is killed half-way leaves no session that its own worker, which is alive, would not end."""

    def die(step: str) -> None:
        raise AssertionError(step)

    session = await world.session("live", S.LOST, detail="it died")
    world.fault = die
    ended = await world.lifecycle.ending.end(session, EndReason.DELETED)
    assert ended is not None
    assert ended == await world.now(session)
    assert (ended.state, ended.reason) == (S.ENDED, EndReason.DELETED)
    assert await world.lifecycle.ending.end(session, EndReason.DELETED) is None


async def test_ends_are_saved_before_redis_was_seen_for_a_whole_lease(world: World) -> None:
    ending = (await world.session("live", S.CREATING)).moved_to(S.STOPPING, reason=EndReason.DELETED)
    assert await world.store.swap(ending)
    world.store.away = True
    await world.lifecycle.ending.save_end(ending, EndReason.DELETED, "")
    world.store.away, world.roster.away = False, True
    with pytest.raises(Unavailable):
        await world.fleet.refresh()
    world.roster.away = False
    await world.fleet.refresh()
    await world.tick()
    assert (await world.now(ending)).state is S.ENDED


async def test_nothing_is_taken_before_redis_was_seen_for_a_whole_lease(world: World) -> None:
    session = await world.session("dead", S.RUNNING)
    world.roster.away = True
    with pytest.raises(Unavailable):
        await world.fleet.refresh()
    world.roster.away = False
    await world.fleet.refresh()
    for _ in range(round(LEASE_S)):
        await world.tick()
        assert (await world.now(session)).state is S.RUNNING
        await world.advance(1, "live")
    await world.tick()
    assert (await world.now(session)).state is S.LOST


async def test_nothing_is_taken_while_a_redis_that_was_empty_settles(world: World) -> None:
    world.roster.lose_data()
    session = await world.session("dead", S.RUNNING)
    await world.roster.register(a_report("live"), 1)
    await world.tick()
    await world.advance(LEASE_S - 1, "live")
    await world.tick()
    assert (await world.now(session)).state is S.RUNNING
    await world.advance(3, "live")
    await world.tick()
    assert (await world.now(session)).state is S.LOST


async def test_a_worker_that_has_come_back_in_the_meantime_keeps_what_was_not_taken(world: World) -> None:
    session = await world.session("dead", S.RUNNING)
    snapshot = await world.roster.watch(ME)
    await world.roster.register(a_report("dead"), 1)
    await world.failover.tick(snapshot)
    assert (await world.now(session)).state is S.RUNNING
    assert world.events == []


async def test_it_is_told_once_whoever_and_however_many_look(world: World) -> None:
    await world.session("dead", S.RUNNING)
    other = Failover(world.fleet, world.roster, world.store, world.lifecycle, retention_s=1.0)  # type: ignore[arg-type]
    snapshot = await world.roster.watch(ME)
    for failover in (world.failover, other, world.failover, other):
        await failover.tick(snapshot)
    assert len(world.events) == 1


async def test_what_is_added_for_a_dead_worker_later_is_found_by_the_next_sweep(world: World) -> None:
    await world.tick()
    session = await world.session("dead", S.CREATING)
    await world.advance(20, "live")
    await world.tick()
    assert (await world.now(session)).state is S.ENDED


async def test_what_has_ended_is_forgotten_after_its_time(world: World) -> None:
    old = await ended(world.store, await world.session("live", S.RUNNING), ended=world.clock.now() - 4000)
    new = await ended(world.store, await world.session("live", S.RUNNING), ended=world.clock.now())
    await world.tick()
    assert await world.store.get("acme", old.id) is None
    assert await world.store.get("acme", new.id) == new


async def test_a_worker_that_is_dead_for_a_day_is_forgotten(world: World) -> None:
    await world.tick()
    assert "dead" in world.roster.entries
    await world.clock.advance(86400)
    await world.roster.register(a_report("live"), 1)
    await world.fleet.refresh()
    await world.advance(LEASE_S, "live")
    await world.tick()
    assert set(world.roster.entries) == {"live"}


# What an operator does.


async def test_a_dead_worker_is_removed_and_its_sessions_are_lost_at_once(world: World) -> None:
    session = await world.session("dead", S.RUNNING)
    await world.control.remove("dead")
    assert (await world.now(session)).state is S.LOST
    assert [worker.id for worker in world.control.status().workers] == ["live"]
    with pytest.raises(NotFound):
        await world.control.remove("dead")


async def test_a_live_worker_is_not_removed(world: World) -> None:
    session = await world.session("live", S.RUNNING)
    with pytest.raises(Conflict):
        await world.control.remove("live")
    assert (await world.now(session)).state is S.RUNNING


async def test_nobody_is_removed_before_it_is_known_who_is_dead(world: World) -> None:
    """A worker may have gone on without Redis, because all coordinators had told it that they had lost it too."""
    session = await world.session("dead", S.RUNNING)
    world.roster.away = True
    assert await world.fleet.renew_lease("dead", 1) is None
    world.roster.away = False
    await world.fleet.refresh()
    with pytest.raises(Unavailable, match="not seen the cluster for long enough") as caught:
        await world.control.remove("dead")
    assert caught.value.retry_after_s
    assert (await world.now(session)).state is S.RUNNING
    assert "dead" in world.roster.entries


async def test_the_states_of_workers(world: World) -> None:
    for name, values in (("old", {"protocol": PROTOCOL + 1}), ("leaving", {"leaving": True}), ("drained", {})):
        await world.roster.register(a_report(name, **values), 0)
    shown = await world.control.drain("drained", True)
    assert (shown.id, shown.state) == ("drained", "draining")
    status = world.control.status()
    assert (status.coordinator, status.redis, status.settled) == (ME.id, "there", True)
    assert {worker.id: worker.state for worker in status.workers} == {
        "dead": "dead",
        "drained": "draining",
        "leaving": "stopping",
        "live": "ready",
        "old": "incompatible",
    }
    with pytest.raises(NotFound):
        await world.control.drain("ghost", True)
    world.roster.away = True
    with pytest.raises(Unavailable):
        await world.fleet.refresh()
    assert world.control.status().redis == "away"


async def test_a_cluster_is_ready_while_any_worker_could_be_asked(world: World) -> None:
    world.control.check_ready()
    assert await world.control.figures() == {"live": WorkerStats(claimed=1)}
    found = await world.control.session_metrics("acme", {"live": ["a", "b"], "dead": ["c"], "unknown": ["d"]})
    assert {name: latest.now.memory_bytes for name, latest in found.items()} == {"a": 4, "b": 4}
    await world.advance(LEASE_S)
    with pytest.raises(Unavailable, match="no worker of the cluster is there"):
        world.control.check_ready()
