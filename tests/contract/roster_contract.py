"""What a roster promises, as tests with sentences for names: the one in Redis, and the one that unit tests have.

`world` is a roster with hands on what is around it: leases that run out, data that is lost.
"""

from dataclasses import replace
from typing import Protocol

import pytest

from warren.cluster.roster import (
    LEASE_S,
    PROTOCOL,
    ClusterSnapshot,
    HeartbeatReply,
    LeaseStatus,
    Member,
    Peer,
    Report,
)
from warren.model.errors import Conflict, NotFound

ME = Peer("coordinator-1", "127.0.0.1:8000")


def a_report(worker_id: str = "w", home: str = "here", **values: object) -> Report:
    known: dict[str, object] = {"address": "127.0.0.1:5000", "provider": "fake", "capacity": 10}
    return replace(Report(worker_id, "", home), **{**known, **values})  # type: ignore[arg-type]


class AnyRoster(Protocol):
    async def register(self, report: Report, known_epoch: int) -> int: ...
    async def beat(self, report: Report, epoch: int) -> HeartbeatReply: ...
    async def renew(self, worker_id: str, epoch: int) -> HeartbeatReply: ...
    async def leave(self, report: Report, epoch: int) -> None: ...
    async def watch(self, me: Peer) -> ClusterSnapshot: ...
    async def withdraw(self, me: Peer) -> None: ...
    async def set_draining(self, worker_id: str, draining: bool) -> None: ...
    async def mark_as_leaving(self, worker_id: str, *, for_good: bool) -> Member: ...
    async def remove(self, worker_id: str) -> None: ...


class RosterWorld(Protocol):
    roster: AnyRoster

    @property
    def settled(self) -> bool:
        """Whether sessions may be added."""

    def run_out(self, worker_id: str) -> None:
        """The lease of a worker is over now."""

    def lose_data(self) -> None: ...

    def restart(self) -> None:
        """It is another process from now on, with the same data."""

    def pass_time_since_emptied(self) -> None:
        """Longer than a lease has gone by since it was first found empty."""

    def silence(self, coordinator_id: str) -> None:
        """That one was heard of too long ago."""


@pytest.mark.anyio
class RosterContract:
    @pytest.fixture
    def world(self) -> RosterWorld:
        raise NotImplementedError

    @pytest.fixture
    def roster(self, world: RosterWorld) -> AnyRoster:
        return world.roster

    # Workers.

    async def test_a_worker_that_enters_is_seen_as_it_describes_itself(self, roster: AnyRoster) -> None:
        report = a_report(labels={"gpu": "1"}, ready={"base": 2}, tenants={"ünï": 3}, pressure=0.25, leaving=True)
        assert await roster.register(report, 0) == 1
        [member] = (await roster.watch(ME)).workers
        assert (member.report, member.epoch, member.draining) == (report, 1, False)
        assert member.alive
        assert 0 < member.lease_left_s <= LEASE_S

    async def test_the_same_worker_may_enter_again_at_any_time_and_gets_a_later_epoch(
        self, roster: AnyRoster, world: RosterWorld
    ) -> None:
        assert [await roster.register(a_report(), 0) for _ in range(3)] == [1, 2, 3]
        world.run_out("w")
        assert await roster.register(a_report(), 3) == 4

    async def test_another_worker_of_the_same_name_is_refused_while_the_lease_lasts(
        self, roster: AnyRoster, world: RosterWorld
    ) -> None:
        await roster.register(a_report(address="127.0.0.1:5001"), 0)
        with pytest.raises(Conflict, match=r"another worker called 'w', at 127\.0\.0\.1:5001") as caught:
            await roster.register(a_report(home="elsewhere"), 7)
        assert "--worker-id" in caught.value.remedy
        assert (await roster.beat(a_report(), 1)).status is LeaseStatus.OK
        world.run_out("w")
        assert await roster.register(a_report(home="elsewhere"), 0) == 2
        with pytest.raises(Conflict):
            await roster.register(a_report(), 1)
        assert (await roster.beat(a_report(), 1)).status is LeaseStatus.SUPERSEDED

    async def test_epochs_only_rise_whatever_the_worker_remembers(self, roster: AnyRoster) -> None:
        assert await roster.register(a_report(), 41) == 42
        assert await roster.register(a_report(), 0) == 43
        assert await roster.register(a_report(), 43) == 44

    async def test_epochs_rise_also_when_all_is_lost(self, roster: AnyRoster, world: RosterWorld) -> None:
        epoch = await roster.register(a_report(), await roster.register(a_report(), 0))
        world.lose_data()
        assert (await roster.beat(a_report(), epoch)).status is LeaseStatus.UNKNOWN
        assert await roster.register(a_report(), epoch) == epoch + 1

    async def test_a_heartbeat_renews_the_lease_and_brings_the_report(self, roster: AnyRoster) -> None:
        await roster.register(a_report(claimed=1), 0)
        assert (await roster.beat(a_report(claimed=2), 1)).status is LeaseStatus.OK
        [member] = (await roster.watch(ME)).workers
        assert (member.report.claimed, member.alive) == (2, True)

    async def test_a_heartbeat_that_comes_too_late_changes_nothing(self, roster: AnyRoster, world: RosterWorld) -> None:
        await roster.register(a_report(claimed=1), 0)
        world.run_out("w")
        for _ in range(2):
            assert await roster.beat(a_report(claimed=2), 1) == HeartbeatReply(LeaseStatus.LAPSED)
            assert await roster.renew("w", 1) == HeartbeatReply(LeaseStatus.LAPSED)
        [member] = (await roster.watch(ME)).workers
        assert (member.report.claimed, member.alive) == (1, False)

    async def test_a_heartbeat_of_an_earlier_process_changes_nothing(self, roster: AnyRoster) -> None:
        await roster.register(a_report(claimed=1), 0)
        await roster.register(a_report(claimed=2), 1)
        assert await roster.beat(a_report(claimed=1), 1) == HeartbeatReply(LeaseStatus.SUPERSEDED)
        assert await roster.renew("w", 1) == HeartbeatReply(LeaseStatus.SUPERSEDED)
        await roster.leave(a_report(claimed=1, leaving=True), 1)
        [member] = (await roster.watch(ME)).workers
        assert (member.report.claimed, member.report.leaving) == (2, False)

    async def test_a_heartbeat_of_an_unknown_worker_makes_none(self, roster: AnyRoster) -> None:
        assert await roster.beat(a_report(), 1) == HeartbeatReply(LeaseStatus.UNKNOWN)
        assert await roster.renew("w", 1) == HeartbeatReply(LeaseStatus.UNKNOWN)
        await roster.leave(a_report(), 1)
        assert (await roster.watch(ME)).workers == ()

    async def test_a_coordinator_renews_a_lease_and_leaves_the_report(self, roster: AnyRoster) -> None:
        await roster.register(a_report(claimed=3), 0)
        assert (await roster.renew("w", 1)).status is LeaseStatus.OK
        [member] = (await roster.watch(ME)).workers
        assert (member.report.claimed, member.alive) == (3, True)

    async def test_a_worker_that_leaves_keeps_its_place_for_a_while(self, roster: AnyRoster) -> None:
        await roster.register(a_report(), 0)
        await roster.leave(a_report(leaving=True), 1)
        [member] = (await roster.watch(ME)).workers
        assert (member.report.leaving, member.alive) == (True, True)
        with pytest.raises(Conflict):
            await roster.register(a_report(home="elsewhere"), 0)
        assert await roster.register(a_report(), 1) == 2

    async def test_workers_are_seen_in_the_order_of_their_names(self, roster: AnyRoster) -> None:
        for name in ("w-2", "w-10", "a", "w-1", "ünï"):
            await roster.register(a_report(name), 0)
        assert [member.id for member in (await roster.watch(ME)).workers] == ["a", "w-1", "w-10", "w-2", "ünï"]

    async def test_a_worker_of_another_version_is_seen_as_that(self, roster: AnyRoster) -> None:
        await roster.register(a_report(protocol=PROTOCOL + 1), 0)
        [member] = (await roster.watch(ME)).workers
        assert (member.compatible, member.alive) == (False, True)

    # Coordinators.

    async def test_workers_hear_of_the_coordinators_that_are_there(self, roster: AnyRoster, world: RosterWorld) -> None:
        other = Peer("coordinator-2", "[::1]:8000")
        await roster.register(a_report(), 0)
        assert (await roster.beat(a_report(), 1)).coordinators == ()
        assert (await roster.watch(ME)).coordinators == 1
        assert (await roster.watch(other)).coordinators == 2
        assert set((await roster.beat(a_report(), 1)).coordinators) == {ME, other}
        assert set((await roster.renew("w", 1)).coordinators) == {ME, other}
        await roster.withdraw(other)
        assert (await roster.beat(a_report(), 1)).coordinators == (ME,)
        await roster.watch(other)
        world.silence(ME.id)
        assert (await roster.beat(a_report(), 1)).coordinators == (other,)
        assert (await roster.watch(other)).coordinators == 1

    async def test_a_coordinator_is_heard_of_where_it_is_now(self, roster: AnyRoster) -> None:
        await roster.watch(ME)
        moved = Peer(ME.id, "127.0.0.1:9000")
        assert (await roster.watch(moved)).coordinators == 1
        await roster.register(a_report(), 0)
        assert (await roster.beat(a_report(), 1)).coordinators == (moved,)

    # Operators.

    async def test_draining_stays_until_it_is_undone(self, roster: AnyRoster, world: RosterWorld) -> None:
        await roster.register(a_report(), 0)
        await roster.set_draining("w", True)
        await roster.beat(a_report(), 1)
        await roster.register(a_report(), 1)
        assert [member.draining for member in (await roster.watch(ME)).workers] == [True]
        world.run_out("w")
        await roster.set_draining("w", False)
        assert [member.draining for member in (await roster.watch(ME)).workers] == [False]

    @pytest.mark.parametrize("for_good", [True, False])
    async def test_a_leaving_worker_is_drained_until_it_registers_again(
        self, roster: AnyRoster, for_good: bool
    ) -> None:
        await roster.register(a_report(claimed=3), 0)
        marked = await roster.mark_as_leaving("w", for_good=for_good)
        assert (marked.report.claimed, marked.alive) == (3, True)
        await roster.beat(a_report(claimed=2), 1)
        [shown] = (await roster.watch(ME)).workers
        assert (shown.draining, shown.comes_back, shown.report.claimed) == (True, not for_good, 2)
        await roster.register(a_report(), 1)
        [back] = (await roster.watch(ME)).workers
        assert (back.draining, back.comes_back) == (False, False)

    async def test_a_drained_worker_that_leaves_is_still_drained_when_it_is_back(self, roster: AnyRoster) -> None:
        await roster.register(a_report(), 0)
        await roster.set_draining("w", True)
        marked = await roster.mark_as_leaving("w", for_good=False)
        assert (marked.draining, marked.comes_back) == (True, False)
        await roster.register(a_report(), 1)
        assert [member.draining for member in (await roster.watch(ME)).workers] == [True]

    async def test_only_a_dead_worker_is_removed(self, roster: AnyRoster, world: RosterWorld) -> None:
        await roster.register(a_report(), 0)
        with pytest.raises(Conflict, match="the worker 'w' is alive"):
            await roster.remove("w")
        world.run_out("w")
        await roster.remove("w")
        assert (await roster.watch(ME)).workers == ()
        assert (await roster.beat(a_report(), 1)).status is LeaseStatus.UNKNOWN

    async def test_what_is_unknown_is_neither_drained_nor_removed(self, roster: AnyRoster) -> None:
        for name in ("w", "", "*", "\ud800", "x" * 5000):
            with pytest.raises(NotFound, match="there is no worker"):
                await roster.set_draining(name, True)
            with pytest.raises(NotFound, match="there is no worker"):
                await roster.mark_as_leaving(name, for_good=True)
            with pytest.raises(NotFound, match="there is no worker"):
                await roster.remove(name)
        assert (await roster.watch(ME)).workers == ()

    # Lost data.

    async def test_an_emptied_redis_is_settled_when_workers_have_had_a_lease_to_come_back(
        self, roster: AnyRoster, world: RosterWorld
    ) -> None:
        assert (await roster.watch(ME)).settled
        await roster.register(a_report(), 0)
        world.lose_data()
        assert not (await roster.watch(ME)).settled
        assert await roster.register(a_report(), 1) == 2
        assert not (await roster.watch(ME)).settled
        world.pass_time_since_emptied()
        assert (await roster.watch(ME)).settled

    @pytest.mark.parametrize("who", ["register", "beat", "renew"])
    async def test_the_time_is_counted_also_where_no_coordinator_is(
        self, roster: AnyRoster, world: RosterWorld, who: str
    ) -> None:
        world.lose_data()
        await roster.register(a_report(), 0)
        assert not world.settled
        world.pass_time_since_emptied()
        if who == "register":
            await roster.register(a_report(), 1)
        else:
            reply = await (roster.beat(a_report(), 1) if who == "beat" else roster.renew("w", 1))
            assert reply.status is LeaseStatus.OK
        assert world.settled

    async def test_another_process_of_redis_is_told_from_the_one_before(
        self, roster: AnyRoster, world: RosterWorld
    ) -> None:
        await roster.register(a_report(), 0)
        before = (await roster.beat(a_report(), 1)).run_id
        assert before
        assert (await roster.watch(ME)).run_id == (await roster.beat(a_report(), 1)).run_id == before
        world.restart()
        heard = await roster.beat(a_report(), 1)
        assert heard.status is LeaseStatus.OK
        assert heard.run_id not in ("", before)
