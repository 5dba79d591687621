"""The workers as a coordinator sees them: who is there, for how long that has been known, and where sessions may go."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from contract.roster_contract import ME, a_report
from unit.fake_roster import FakeRoster

from warren.cluster.fleet import Fleet
from warren.cluster.placement import Requirements
from warren.cluster.roster import LEASE_S, PROTOCOL, ClusterSnapshot, LeaseStatus, Peer, Report
from warren.model.errors import InvalidRequest, NoCapacity, NotFound, Unavailable
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

PLAIN = Requirements("base", "acme")


class World:
    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.roster = FakeRoster(self.clock)
        self.fleet = Fleet(self.roster, ME, now=self.clock.now, **options)

    async def advance(self, seconds: float, *beating: str) -> None:
        """A second at a time, with heartbeats of these workers, and a look each second."""
        for _ in range(round(seconds)):
            await self.clock.advance(1)
            for name in beating:
                await self.roster.renew(name, self.roster.entries[name].epoch)
            if not self.roster.away:
                await self.fleet.refresh()


@pytest.fixture
async def world() -> World:
    world = World()
    for name in ("a", "b"):
        await world.roster.register(a_report(name), 0)
    await world.fleet.refresh()
    return world


# Looking.


async def test_a_coordinator_that_has_not_looked_yet_knows_nothing() -> None:
    fleet = World().fleet
    assert (dict(fleet.members), fleet.has_redis, fleet.redis_stable_s, fleet.settled) == ({}, False, 0.0, False)
    assert repr(fleet) == "<Fleet of 0 workers, without Redis>"


async def test_it_is_steady_for_as_long_as_it_has_seen_redis(world: World) -> None:
    assert world.fleet.redis_stable_s == 0
    await world.advance(LEASE_S, "a", "b")
    assert world.fleet.redis_stable_s == LEASE_S
    assert repr(world.fleet) == "<Fleet of 2 workers, with Redis>"


async def test_a_look_that_fails_begins_the_count_anew(world: World) -> None:
    await world.advance(LEASE_S, "a", "b")
    world.roster.away = True
    with pytest.raises(Unavailable):
        await world.fleet.refresh()
    assert (world.fleet.has_redis, world.fleet.redis_stable_s) == (False, 0.0)
    assert set(world.fleet.members) == {"a", "b"}
    world.roster.away = False
    await world.fleet.refresh()
    assert (world.fleet.has_redis, world.fleet.redis_stable_s) == (True, 0.0)


async def test_so_does_a_time_in_which_it_did_not_look(world: World) -> None:
    """This process stood still, and workers may have done without Redis meanwhile."""
    await world.advance(LEASE_S, "a", "b")
    await world.clock.advance(5)
    assert (world.fleet.has_redis, world.fleet.redis_stable_s) == (False, 0.0)
    await world.fleet.refresh()
    assert world.fleet.redis_stable_s == 0


async def test_a_redis_that_has_lost_its_data_does_not_make_workers_unknown(world: World) -> None:
    world.roster.lose_data()
    await world.fleet.refresh()
    assert not world.fleet.settled
    assert world.fleet.reachable("a").id == "a"
    await world.roster.register(a_report("a"), 1)
    await world.advance(LEASE_S + 2, "a")
    assert world.fleet.settled
    assert set(world.fleet.members) == {"a"}


async def test_it_looks_on_whatever_happens(world: World) -> None:
    seen: list[ClusterSnapshot] = []

    async def then(snapshot: ClusterSnapshot) -> None:
        seen.append(snapshot)
        raise RuntimeError("a fault")

    async def waited(count: int) -> None:
        async with asyncio.timeout(60):
            while len(seen) < count:
                await asyncio.sleep(0.01)

    looking = asyncio.create_task(world.fleet.run(then))
    await waited(2)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert [member.id for member in seen[0].workers] == ["a", "b"]


# Who can be asked.


async def test_a_worker_is_reached_until_its_lease_is_over(world: World) -> None:
    assert world.fleet.reachable("a").address == "127.0.0.1:5000"
    await world.advance(LEASE_S, "b")
    with pytest.raises(Unavailable, match="'a' of this session does not answer") as caught:
        world.fleet.reachable("a")
    assert caught.value.retry_after_s
    assert world.fleet.reachable("b").id == "b"


async def test_what_was_seen_last_counts_while_redis_is_away(world: World) -> None:
    world.roster.away = True
    await world.clock.advance(10 * LEASE_S)
    assert world.fleet.reachable("a").id == "a"


async def test_who_is_unknown_or_speaks_another_protocol_is_not_asked(world: World) -> None:
    await world.roster.register(a_report("new", protocol=PROTOCOL + 1), 0)
    await world.fleet.refresh()
    with pytest.raises(Unavailable, match=f"'new' speaks protocol {PROTOCOL + 1}, and this coordinator {PROTOCOL}"):
        world.fleet.reachable("new")
    with pytest.raises(Unavailable, match="'ghost' of this session does not answer"):
        world.fleet.reachable("ghost")
    with pytest.raises(NotFound, match="there is no worker 'ghost'"):
        world.fleet.member("ghost")


async def test_addresses_that_were_named_in_advance_are_used() -> None:
    asked: list[str] = []

    async def identify(address: str) -> str:
        asked.append(address)
        if address.startswith("nobody"):
            raise Unavailable("nobody there")
        return "a"

    world = World(configured_addresses=["10.0.0.1:5000", "nobody:5000"], identify=identify)
    for name in ("a", "b"):
        await world.roster.register(a_report(name), 0)
    await world.fleet.refresh()
    await world.fleet.refresh()
    assert world.fleet.member("a").address == "10.0.0.1:5000"
    assert world.fleet.member("b").address == "127.0.0.1:5000"
    assert sorted(asked) == ["10.0.0.1:5000", "nobody:5000", "nobody:5000"]


# Placing.


async def test_a_new_session_goes_to_those_who_can_take_it(world: World) -> None:
    assert {member.id for member in world.fleet.choose_workers(PLAIN)} == {"a", "b"}
    await world.roster.set_draining("a", True)
    await world.fleet.refresh()
    assert [member.id for member in world.fleet.choose_workers(PLAIN)] == ["b"]
    await world.roster.leave(a_report("b", leaving=True), 1)
    await world.fleet.refresh()
    with pytest.raises(NoCapacity, match="are draining") as caught:
        world.fleet.choose_workers(PLAIN)
    assert caught.value.retry_after_s


async def test_a_worker_of_another_version_gets_nothing(world: World) -> None:
    await world.roster.beat(a_report("a", protocol=PROTOCOL + 1), 1)
    await world.fleet.refresh()
    assert [member.id for member in world.fleet.choose_workers(PLAIN)] == ["b"]


async def test_what_no_worker_has_is_the_callers_mistake_and_what_is_full_is_not(world: World) -> None:
    for want in (Requirements("base", "acme", labels={"gpu": "1"}), Requirements("base", "acme", provider="oci")):
        with pytest.raises(InvalidRequest, match="no worker has the"):
            world.fleet.choose_workers(want)
    await world.roster.beat(a_report("a", labels={"gpu": "1"}), 1)
    await world.fleet.refresh()
    gpu = Requirements("base", "acme", labels={"gpu": "1"})
    assert [member.id for member in world.fleet.choose_workers(gpu)] == ["a"]
    await world.advance(LEASE_S, "b")
    with pytest.raises(NoCapacity, match="the label gpu=1"):
        world.fleet.choose_workers(gpu)  # it may come back


async def test_a_worker_may_have_several_providers_and_one_of_the_version_before_names_one(world: World) -> None:
    assert Report.from_json('{"id": "w", "address": "", "home": "", "provider": "oci"}').all_providers == ("oci",)
    several = a_report("a", provider="fake", providers=("fake", "oci"))
    assert Report.from_json(several.to_json()) == several
    await world.roster.beat(several, 1)
    await world.fleet.refresh()
    assert [member.id for member in world.fleet.choose_workers(Requirements("base", "acme", provider="oci"))] == ["a"]
    assert {member.id for member in world.fleet.choose_workers(Requirements("base", "acme", provider="fake"))} == {
        "a",
        "b",
    }
    with pytest.raises(InvalidRequest, match="no worker has the provider docker, there are: fake, oci"):
        world.fleet.choose_workers(Requirements("base", "acme", provider="docker"))


async def test_a_session_with_a_network_goes_where_the_provider_can_give_it_one(world: World) -> None:
    needs = Requirements("base", "acme", needs=frozenset({"egress"}))
    assert {member.id for member in world.fleet.choose_workers(needs)} == {"a", "b"}, "earlier versions do not say"
    plain = {"fake": ["ports"]}
    for name, has in ("a", plain), ("b", {**plain, "oci": ["egress", "ports"]}):
        report = a_report(name, provider="fake", providers=tuple(has), capabilities=has)
        assert Report.from_json(report.to_json()) == report
        await world.roster.beat(report, 1)
    await world.fleet.refresh()
    with pytest.raises(InvalidRequest, match="the provider fake does not have the capability egress") as caught:
        world.fleet.choose_workers(needs)
    assert caught.value.remedy == "use a provider that has it: oci"
    named = replace(needs, provider="oci")
    assert [member.id for member in world.fleet.choose_workers(named)] == ["b"]
    await world.roster.beat(a_report("b", provider="oci", providers=("oci", "fake"), capabilities=has), 1)
    await world.fleet.refresh()
    assert [member.id for member in world.fleet.choose_workers(needs)] == ["b"]
    await world.advance(LEASE_S, "a")
    with pytest.raises(NoCapacity, match="no worker that is alive has the capability egress"):
        world.fleet.choose_workers(needs)  # it may come back


async def test_without_any_worker_it_says_so() -> None:
    world = World()
    await world.fleet.refresh()
    with pytest.raises(NoCapacity, match="the cluster has no worker"):
        world.fleet.choose_workers(PLAIN)


async def test_what_was_sent_counts_until_the_worker_reports_it(world: World) -> None:
    for name in ("a", "b"):
        await world.roster.beat(a_report(name, capacity=2), 1)
    await world.fleet.refresh()
    for name in ("a", "a", "b", "b"):
        world.fleet.note_assigned(name)
    with pytest.raises(NoCapacity, match="full"):
        world.fleet.choose_workers(PLAIN)
    await world.clock.advance(1)
    await world.roster.beat(a_report("b", capacity=2, claimed=1), 1)
    await world.fleet.refresh()
    assert [member.id for member in world.fleet.choose_workers(PLAIN)] == ["b"]


async def test_who_could_not_be_reached_comes_last_for_a_while(world: World) -> None:
    world.fleet.avoid("a")
    for _ in range(20):
        assert [member.id for member in world.fleet.choose_workers(PLAIN)] == ["b", "a"]
    await world.advance(3, "a", "b")
    assert {world.fleet.choose_workers(PLAIN)[0].id for _ in range(50)} == {"a", "b"}


# For workers that have lost Redis.


async def test_a_lease_is_renewed_for_a_worker_with_what_redis_says(world: World) -> None:
    assert await world.fleet.renew_lease("a", 1) is LeaseStatus.OK
    assert await world.fleet.renew_lease("a", 7) is LeaseStatus.SUPERSEDED
    assert await world.fleet.renew_lease("ghost", 1) is LeaseStatus.UNKNOWN
    await world.clock.advance(LEASE_S + 1)
    assert await world.fleet.renew_lease("a", 1) is LeaseStatus.LAPSED


async def test_who_has_told_a_worker_that_redis_is_away_takes_nothing_for_a_whole_lease(world: World) -> None:
    await world.advance(2 * LEASE_S, "a", "b")
    world.roster.away = True
    assert await world.fleet.renew_lease("a", 1) is None
    assert world.fleet.redis_stable_s == 0
    world.roster.away = False
    assert await world.fleet.renew_lease("a", 1) is None  # until it has looked again
    await world.fleet.refresh()
    assert world.fleet.redis_stable_s == 0
    assert await world.fleet.renew_lease("a", 1) is LeaseStatus.OK


async def test_coordinators_are_counted_for_a_fair_share(world: World) -> None:
    await world.roster.watch(Peer("other", "127.0.0.1:8001"))
    await world.fleet.refresh()
    assert world.fleet._snapshot.coordinators == 2
