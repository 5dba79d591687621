"""A worker's place: kept with heartbeats, through coordinators when Redis is away, taken again after it was lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from contract.roster_contract import a_report
from unit.fake_roster import FakeRoster

from warren.cluster.heartbeat import Heartbeat
from warren.cluster.lease import Lease
from warren.cluster.roster import FORGET_WORKER_S, HEARTBEAT_S, LEASE_S, LeaseStatus, Peer
from warren.model.errors import Conflict, Unavailable
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

ONE, TWO = Peer("one", "127.0.0.1:8001"), Peer("two", "127.0.0.1:8002")
LONG_S = 3 * LEASE_S


@dataclass
class World:
    """One worker. `says` is what each coordinator does when it is asked; those that are not in it do not answer."""

    clock: ManualClock = field(default_factory=ManualClock)
    steps: list[str] = field(default_factory=list)
    says: dict[str, LeaseStatus | None] = field(default_factory=dict)
    reconcile_error: Exception | None = None
    done_first: Callable[[], Awaitable[object]] | None = None

    def __post_init__(self) -> None:
        self.roster = FakeRoster(self.clock)
        self.lease = Lease(self.clock)
        self.heartbeat = self.new_process()

    def new_process(self, home: str = "here") -> Heartbeat:
        return Heartbeat(
            self.roster,
            self.lease,
            self.clock,
            report=lambda: a_report(home=home),
            reconcile=self._reconcile,
            renew_through=self._renew_through,
            on_superseded=lambda: self.steps.append("superseded"),
        )

    async def _reconcile(self) -> None:
        if self.reconcile_error is not None:
            self.steps.append("failed to compare")
            raise self.reconcile_error
        self.steps.append(f"compared, {'serving' if self.serves else 'fenced'}")

    async def _renew_through(self, peer: Peer, worker_id: str, epoch: int) -> LeaseStatus | None:
        self.steps.append(f"asked {peer.id}")
        if peer.id not in self.says:
            raise Unavailable(f"{peer.address} does not answer")
        said = self.says[peer.id]
        if said is LeaseStatus.OK:  # it has Redis, whether the worker reaches it or not
            old = self.roster.entries[worker_id]
            assert old.epoch == epoch
            self.roster.entries[worker_id] = replace(old, until=self.clock.now() + LEASE_S)
        return said

    @property
    def serves(self) -> bool:
        return self.lease.left_s > 0

    @property
    def serves_without_lease_in_redis(self) -> bool:
        """Whether Redis would let others have its sessions while it still serves."""
        return self.roster.entries["w"].until < self.clock.now() and self.serves


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A worker that has joined, and knows of two coordinators."""
    world = World()
    await world.heartbeat.join()
    assert not world.serves
    for peer in (ONE, TWO):
        await world.roster.watch(peer)
    await world.heartbeat.beat()
    assert world.serves
    running = asyncio.create_task(world.heartbeat.run())
    await asyncio.sleep(0)
    yield world
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def advance(world: World, seconds: float) -> None:
    """In small steps, so that it would be seen if it served for a moment too long."""
    steps = round(seconds * 4)
    for _ in range(steps):
        await world.clock.advance(0.25)
        for peer in (ONE, TWO):
            if not world.roster.away:
                await world.roster.watch(peer)
        if world.roster.entries:
            assert not world.serves_without_lease_in_redis


async def test_heartbeats_keep_the_lease(world: World) -> None:
    before = world.roster.beats
    await advance(world, LONG_S)
    assert world.serves
    assert LONG_S / HEARTBEAT_S - 1 <= world.roster.beats - before <= LONG_S / HEARTBEAT_S + 1
    assert world.steps == []
    assert set(world.heartbeat.coordinators) == {ONE, TWO}


async def test_a_name_that_is_another_workers_ends_the_start(world: World) -> None:
    with pytest.raises(Conflict, match="another worker called 'w'"):
        await world.new_process("elsewhere").join()
    await advance(world, LEASE_S)
    assert world.serves


async def test_it_waits_for_redis_at_the_start() -> None:
    world = World()
    world.roster.away = True
    joining = asyncio.create_task(world.heartbeat.join())
    await world.clock.advance(5)
    assert not joining.done()
    world.roster.away = False
    await world.clock.advance(1)
    await joining
    assert repr(world.heartbeat).startswith("<Heartbeat epoch 1, ")


# Redis is away.


async def test_a_coordinator_that_has_redis_renews_for_it(world: World) -> None:
    world.roster.away = True
    world.says = {"one": LeaseStatus.OK}
    await advance(world, LONG_S)
    assert world.serves
    assert "compared" not in str(world.steps)


async def test_if_all_coordinators_have_lost_redis_it_goes_on(world: World) -> None:
    world.roster.away = True
    world.says = {"one": None, "two": None}
    for _ in range(round(LONG_S)):
        await world.clock.advance(1)
        assert world.serves


async def test_if_one_coordinator_does_not_answer_it_stops_when_the_lease_is_over(world: World) -> None:
    world.roster.away = True
    world.says = {"one": None}
    await advance(world, LEASE_S / 2)
    assert world.serves
    await advance(world, LEASE_S)
    assert not world.serves


async def test_without_a_coordinator_it_stops_when_the_lease_is_over() -> None:
    world = World()
    await world.heartbeat.join()
    await world.heartbeat.beat()
    world.roster.away = True
    await world.heartbeat.beat()
    assert world.serves
    await world.clock.advance(LEASE_S)
    await world.heartbeat.beat()
    assert not world.serves


async def test_before_it_has_reported_its_coordinators_it_does_not_go_on_without_redis() -> None:
    """Until then anybody may give it up, also a coordinator that it would not ask."""
    world = World(says={"one": None})
    await world.heartbeat.join()
    await world.roster.watch(ONE)
    await world.heartbeat.beat()
    assert world.roster.entries["w"].report.coordinators == ()
    world.roster.away = True
    await world.clock.advance(LEASE_S / 2)
    await world.heartbeat.beat()
    await world.clock.advance(LEASE_S / 2)
    assert world.steps == ["asked one"]
    assert not world.serves


async def test_it_asks_everybody_who_may_give_it_up_and_nobody_else_may(world: World) -> None:
    three = Peer("three", "127.0.0.1:8003")
    await world.clock.advance(HEARTBEAT_S)
    assert set(world.roster.entries["w"].report.coordinators) == {"one", "two"}
    await world.roster.withdraw(TWO)
    await world.clock.advance(HEARTBEAT_S)  # Redis has named those that are left, and has not been told that we know
    await world.roster.watch(three)
    world.roster.away = True
    world.says = {"one": None, "two": None}
    for _ in range(round(LONG_S)):
        await world.clock.advance(1)
        assert world.serves
    assert set(world.roster.entries["w"].report.coordinators) == {"one", "two"}
    del world.says["two"]
    await world.clock.advance(LEASE_S + HEARTBEAT_S)
    assert not world.serves


async def test_a_coordinator_that_is_gone_is_not_asked_for_long(world: World) -> None:
    await world.roster.withdraw(TWO)
    await world.clock.advance(2 * HEARTBEAT_S)
    assert world.roster.entries["w"].report.coordinators == ("one",)
    assert world.heartbeat.coordinators == (ONE,)


async def test_without_redis_it_stops_before_it_is_forgotten(world: World) -> None:
    world.roster.away = True
    world.says = {"one": None, "two": None}
    await world.clock.advance(HEARTBEAT_S)
    world.heartbeat._redis_known_at -= FORGET_WORKER_S - 2 * LEASE_S
    await world.clock.advance(LEASE_S / 2)
    assert world.serves
    await world.clock.advance(LEASE_S * 3 / 2)
    assert not world.serves


async def test_what_was_over_is_not_made_good_by_coordinators_who_know_nothing_either(world: World) -> None:
    """It stood still, was given up, and then Redis died: who has lost Redis cannot say that nothing was taken."""
    world.roster.away = True
    await advance(world, 2 * LEASE_S)
    assert not world.serves
    world.says = {"one": None, "two": None}
    await advance(world, LEASE_S)
    assert not world.serves
    world.roster.away = False
    await advance(world, LEASE_S)
    assert world.serves
    assert [step for step in world.steps if "compared" in step] == ["compared, fenced"]


@pytest.mark.parametrize("status", [LeaseStatus.LAPSED, LeaseStatus.UNKNOWN])
async def test_a_coordinator_that_says_it_was_given_up_is_believed(world: World, status: LeaseStatus) -> None:
    world.roster.away = True
    world.says = {"one": None, "two": status}
    await advance(world, HEARTBEAT_S)
    assert not world.serves


async def test_an_answer_that_takes_long_gives_less(world: World) -> None:
    """The lease is counted from before the question."""

    async def slowly(peer: Peer, worker_id: str, epoch: int) -> LeaseStatus | None:
        await world.clock.sleep(3)
        return None

    world.heartbeat._renew_through = slowly
    world.roster.away = True
    await world.clock.advance(HEARTBEAT_S + 3)
    assert 0 < world.lease.left_s <= LEASE_S - 3


# Given up.


async def test_after_a_lease_that_ran_out_it_compares_before_it_serves(world: World) -> None:
    world.roster.entries["w"] = replace(world.roster.entries["w"], until=1.0)
    await world.clock.advance(HEARTBEAT_S)
    assert world.steps == ["compared, fenced"]
    assert world.serves
    assert world.roster.entries["w"].epoch == 2


async def test_after_redis_has_lost_its_data_likewise_and_the_epoch_rises(world: World) -> None:
    world.roster.lose_data()
    await world.clock.advance(HEARTBEAT_S)
    assert world.steps == ["compared, fenced"]
    assert world.serves
    assert world.roster.entries["w"].epoch == 2


async def test_it_does_not_serve_before_comparing_has_succeeded_however_often_that_fails(world: World) -> None:
    world.reconcile_error = Unavailable("Redis is away again")
    world.roster.entries["w"] = replace(world.roster.entries["w"], until=1.0)
    for _ in range(6):
        await world.clock.advance(HEARTBEAT_S)
        assert not world.serves
    assert len(world.steps) >= 5
    world.reconcile_error = None
    await world.clock.advance(HEARTBEAT_S)
    assert world.serves
    assert world.steps[-1] == "compared, fenced"
    await advance(world, LEASE_S)
    assert world.steps.count("compared, fenced") == 1


async def test_neither_does_it_when_redis_goes_away_in_the_middle(world: World) -> None:
    world.reconcile_error = Unavailable("Redis is away again")
    world.says = {"one": None, "two": None}
    world.roster.entries["w"] = replace(world.roster.entries["w"], until=1.0)
    await world.clock.advance(HEARTBEAT_S)
    world.roster.away = True
    world.reconcile_error = None
    await advance(world, LONG_S)
    assert not world.serves
    world.says = {"one": LeaseStatus.OK, "two": None}
    world.roster.entries["w"] = replace(world.roster.entries["w"], until=world.clock.now() + 1)
    await world.clock.advance(HEARTBEAT_S)
    assert world.serves
    assert world.steps[-1] == "compared, fenced"


async def test_a_fault_of_our_own_does_not_end_the_heartbeats(world: World) -> None:
    world.reconcile_error = RuntimeError("a fault")
    world.roster.lose_data()
    await world.clock.advance(2 * HEARTBEAT_S)
    assert not world.serves
    world.reconcile_error = None
    await world.clock.advance(HEARTBEAT_S)
    assert world.serves


async def test_a_restarted_redis_is_compared_with_once_while_it_serves(world: World) -> None:
    world.roster.run_id = "run-2"
    await advance(world, LONG_S)
    assert world.steps == ["compared, serving"]


async def test_a_restarted_redis_is_compared_with_until_that_succeeds(world: World) -> None:
    world.reconcile_error = Unavailable("Redis is away again")
    world.roster.run_id = "run-2"
    await world.clock.advance(HEARTBEAT_S)
    assert world.steps == ["failed to compare"]
    world.reconcile_error = None
    await world.clock.advance(HEARTBEAT_S)
    assert world.steps == ["failed to compare", "compared, serving"]


async def test_a_restarted_redis_that_goes_away_at_once_stops_nobody(world: World) -> None:
    world.reconcile_error = Unavailable("Redis is away again")
    world.roster.run_id = "run-2"
    await world.clock.advance(HEARTBEAT_S)
    world.roster.away = True
    world.says = {"one": None, "two": None}
    for _ in range(round(LONG_S)):
        await world.clock.advance(1)
        assert world.serves


async def test_who_was_superseded_serves_no_more_and_ends(world: World) -> None:
    await world.roster.register(a_report(), 1)
    await world.clock.advance(HEARTBEAT_S)
    assert not world.serves
    assert world.steps[0] == "superseded"
    assert world.roster.entries["w"].epoch == 2


async def test_leaving_is_told_and_does_not_fail_when_redis_is_away(world: World) -> None:
    await world.heartbeat.leave()
    world.roster.away = True
    await world.heartbeat.leave()


async def test_who_was_allowed_to_go_on_without_redis_serves_while_it_compares_afterwards(world: World) -> None:
    world.roster.away = True
    world.says = {ONE.id: None, TWO.id: None}
    for _ in range(round(LONG_S * 4)):
        await world.clock.advance(0.25)
        assert world.serves
    world.roster.away = False
    await world.clock.advance(HEARTBEAT_S)
    assert "compared, serving" in world.steps
    assert world.serves
