"""A pool over the fake: who gets which sandbox, and what becomes of those nobody gets."""

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest
from unit.pool_arena import PARALLEL, SMALL, Arena, arena

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claimed
from warren.model.environment import PoolSize
from warren.model.errors import (
    ImageBuilding,
    ImageNotFound,
    MachineFull,
    NoCapacity,
    ProviderUnavailable,
    SandboxLost,
    Stopping,
    WarrenError,
)
from warren.model.spec import SandboxSpec
from warren.worker.pool import PoolRules

pytestmark = pytest.mark.anyio


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


async def ids(*claims: "asyncio.Task[Claimed]") -> list[str]:
    return [(await claim).sandbox.id for claim in claims]


# A new version of the image.


async def test_sandboxes_of_an_old_version_are_replaced_and_serve_until_then() -> None:
    async with arena() as there:
        old = there.alive
        there.makers.fake.images["base"] = "2"
        there.makers.open.clear()
        await there.pool.look_at_image()
        await there.settle(0.1)
        assert (await there.pool.claim(1)).sandbox.id in old  # none of the new version is ready yet
        assert len(there.alive & old) == 3
        there.makers.open.set()
        await there.filled()
        assert repr(there.pool) == "<Pool base: 3 ready, 0 creating, 0 waiting>"
        assert len(there.alive & old) == 1  # the one that was claimed
        assert (await there.pool.claim(1)).sandbox.id not in old


async def test_old_ones_stay_if_the_new_version_does_not_work() -> None:
    async with arena() as there:
        old = there.alive
        there.makers.fake.images["base"] = "2"
        there.makers.always = ProviderUnavailable("the agent ended at once")
        await there.pool.look_at_image()
        await there.settle(5)
        assert there.alive == old
        there.makers.always = None
        await there.settle(20)
        assert not there.alive & old
        assert len(there.alive) == 3


async def test_old_ones_make_room_on_a_full_machine() -> None:
    async with arena() as there:
        old = there.alive
        there.makers.fake.images["base"] = "2"
        there.makers.fail = [MachineFull("no memory is left")]
        await there.pool.look_at_image()
        await there.settle(20)
        assert not there.alive & old
        assert len(there.alive) == 3


async def test_an_image_that_is_removed_is_used_by_no_pool() -> None:
    async with arena() as there:
        del there.makers.fake.images["base"]
        there.makers.always = ImageNotFound("there is no image base")
        await there.pool.look_at_image()
        await there.settle(1)
        assert there.alive == set()


async def test_what_is_given_back_keeps_its_version() -> None:
    async with arena() as there:
        old, new = await there.pool.claim(1), await there.pool.claim(1)
        there.pool.give_back(new.sandbox)
        assert len(there.alive) == 3
        there.makers.fake.images["base"] = "2"
        await there.pool.look_at_image()
        there.pool.give_back(old.sandbox)
        await there.filled()
        assert old.sandbox.id not in there.alive


# Ready ones.


async def test_a_pool_fills_itself_to_its_size() -> None:
    async with arena() as there:
        assert repr(there.pool) == "<Pool base: 3 ready, 0 creating, 0 waiting>"
        assert there.makers.most <= PARALLEL


async def test_a_claim_takes_the_oldest_and_it_is_replaced_in_a_quiet_moment() -> None:
    async with arena() as there:
        oldest = next(iter(there.makers.fake.machines))
        claimed = await there.pool.claim(1)
        assert (claimed.sandbox.id, claimed.pooled) == (oldest, True)
        await there.settle(0.01)
        assert repr(there.pool) == "<Pool base: 2 ready, 0 creating, 0 waiting>"
        await there.settle(0.05)
        assert repr(there.pool) == "<Pool base: 3 ready, 0 creating, 0 waiting>"


async def test_below_min_it_is_replaced_at_once() -> None:
    async with arena() as there:
        await ids(there.claim(), there.claim())
        await there.settle()
        assert there.pool.counts.ready == 2


async def test_a_sandbox_that_dies_in_the_pool_is_destroyed_and_replaced() -> None:
    async with arena() as there:
        victim = next(iter(there.makers.fake.machines))
        there.makers.fake.lose(victim)
        await there.filled()
        assert victim not in there.alive
        assert repr(there.pool) == "<Pool base: 3 ready, 0 creating, 0 waiting>"
        assert there.pool.counters.discarded == 1


class Deaf:
    """A sandbox whose agent hangs: it does not answer, until it dies."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.dead = sandbox, asyncio.Event()

    @property
    def id(self) -> str:
        return self.sandbox.id

    def when_lost(self, call: Callable[[str], None]) -> None:
        self.sandbox.when_lost(call)

    async def ping(self) -> None:
        await self.dead.wait()
        raise SandboxLost("it hung")


async def test_one_that_does_not_answer_is_never_handed_out() -> None:
    async with arena(rules=PoolRules(ping_s=0.001)) as there:
        first, second, *_ = there.pool._stock.ready.values()
        first.sandbox = Deaf(first.sandbox)  # type: ignore[assignment]
        claimed = await there.pool.claim(1)
        assert claimed.sandbox.id == second.sandbox.id
        assert claimed.pooled
        await there.filled()
        assert first.sandbox.id not in there.alive


async def test_one_that_was_not_used_can_be_given_back() -> None:
    async with arena() as there:
        claimed = await there.pool.claim(1)
        there.pool.give_back(claimed.sandbox)
        await there.filled()
        assert there.pool.counts.ready == 3
        assert claimed.sandbox.id in there.alive


# Waiting.


async def test_who_waits_is_served_first_come_first_served() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.open.clear()
        claims, order = [there.claim() for _ in range(10)], list[int]()
        for number, claim in enumerate(claims):
            claim.add_done_callback(partial(_note, order, number))
        await there.settle()
        assert repr(there.pool) == "<Pool base: 0 ready, 4 creating, 10 waiting>"
        there.makers.open.set()
        await there.settle()
        assert order == list(range(10))
        assert len(set(await ids(*claims))) == 10
        assert not any(claim.result().pooled for claim in claims)
        assert there.makers.most == PARALLEL


async def test_who_finds_only_dead_ones_keeps_its_place_in_the_queue() -> None:
    async with arena(PoolSize(1, 1, 1)) as there:
        there.makers.open.clear()
        [member] = there.pool._stock.ready.values()
        member.sandbox = deaf = Deaf(member.sandbox)  # type: ignore[assignment]
        first = there.claim()
        await there.settle()
        second, order = there.claim(), list[str]()
        await there.settle()
        first.add_done_callback(lambda _: order.append("first"))
        second.add_done_callback(lambda _: order.append("second"))
        deaf.dead.set()
        await there.settle()
        assert repr(there.pool) == "<Pool base: 0 ready, 3 creating, 2 waiting>"
        there.makers.open.set()
        await there.settle()
        assert order == ["first", "second"]


async def test_a_claim_that_is_not_served_in_time_names_its_place() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.open.clear()
        waiting, claim = there.claim(60), there.claim(5)
        await there.settle(4.9)
        assert not claim.done()
        await there.settle(0.2)
        with pytest.raises(NoCapacity, match=r"base became free in 5\.0 s, place 2 of 2") as caught:
            await claim
        assert caught.value.retry_after_s
        assert there.pool.counters.timeouts == 1
        there.makers.open.set()
        await waiting


async def test_too_many_waiters_are_refused_at_once() -> None:
    async with arena(PoolSize(0, 0, 0), PoolRules(max_waiting=3)) as there:
        there.makers.open.clear()
        claims = [there.claim() for _ in range(3)]
        await there.settle()
        with pytest.raises(NoCapacity, match="place 4 of 4"):
            await there.pool.claim(30)
        there.makers.open.set()
        await ids(*claims)


async def test_the_next_burst_finds_as_many_ready_as_the_last_one_took_until_it_is_forgotten() -> None:
    async with arena(rules=PoolRules(kept=True)) as there:
        assert [claim.pooled for claim in await asyncio.gather(*(there.claim() for _ in range(9)))].count(True) == 3
        assert (there.pool.target, there.pool.stats().learned_burst) == (9, 9)
        await there.filled()
        assert there.pool.counts.ready == 9
        assert all(claim.pooled for claim in await asyncio.gather(*(there.claim() for _ in range(9))))
        await there.settle(3600)
        assert (there.pool.target, there.pool.counts.ready, there.pool.stats().learned_burst) == (3, 3, 1)
        assert len(there.alive) == 3 + 18


async def test_claims_one_after_the_other_teach_no_burst() -> None:
    async with arena() as there:
        for _ in range(30):
            await there.pool.claim(1)
            await there.settle(0.1)
        assert there.pool.target == 3
        assert 0.4 < there.pool.stats().claim_rate <= 0.5


async def test_claims_that_got_nothing_teach_no_burst_to_come() -> None:
    """Callers who try again and again while no sandbox can be made are no more callers for that."""
    async with arena(PoolSize(0, 0, 50)) as there:
        there.makers.always = ProviderUnavailable("never")
        for _ in range(10):
            claims = [there.claim(0.5) for _ in range(4)]
            await there.settle(1)
            await asyncio.gather(*claims, return_exceptions=True)
        assert there.pool.target == 4


async def test_a_pool_grows_to_the_ceiling_and_keeps_what_it_has_when_that_falls() -> None:
    ceiling = [5]
    async with arena(ceiling=lambda: ceiling[0]) as there:
        await ids(*(there.claim() for _ in range(9)))
        await there.filled()
        assert (there.pool.target, there.pool.counts.ready) == (9, 5)
        ceiling[0] = 0
        await there.settle(2)
        assert there.pool.counts.ready == 5
        await ids(*(there.claim() for _ in range(5)))
        await there.filled()
        assert there.pool.counts.ready == 3


async def test_a_pool_nobody_claims_from_is_given_up_and_comes_back() -> None:
    async with arena() as there:
        await there.settle(700)
        assert (there.pool.counts.ready, there.alive) == (0, set())
        await there.pool.claim(1)
        await there.filled()
        assert there.pool.counts.ready >= 3


async def test_a_pool_that_may_be_empty_fills_again_when_the_pressure_ends() -> None:
    """Its target was 0 meanwhile: nothing but a look at the machine can tell that it is not any more."""
    tight: list[int] = []
    async with arena(PoolSize(5, 0, 5), PoolRules(kept=True), pressure=lambda: bool(tight)) as there:
        tight.append(1)
        await there.settle(900)
        assert repr(there.pool) == "<Pool base: 0 ready, 0 creating, 0 waiting>"
        tight.clear()
        await there.settle(2)
        assert there.pool.counts.ready == 5


async def test_the_default_pool_is_kept() -> None:
    async with arena(rules=PoolRules(kept=True)) as there:
        await there.settle(700)
        assert there.pool.counts.ready == 3


async def test_under_pressure_the_pool_shrinks_to_min_and_grows_again_after() -> None:
    tight: list[int] = []
    async with arena(pressure=lambda: bool(tight)) as there:
        tight.append(1)
        await there.settle(2)
        assert there.pool.counts.ready == 2
        tight.clear()
        await there.settle(2)
        assert there.pool.counts.ready == 3


# Cancelling.


@pytest.mark.parametrize("turns", range(12))
async def test_a_claim_cancelled_at_any_moment_loses_nothing(turns: int) -> None:
    for size in (PoolSize(0, 0, 0), PoolSize(1, 1, 1)):
        async with arena(size) as there:
            claim, next_one = there.claim(), there.claim()
            for _ in range(turns):
                await asyncio.sleep(0)
            claim.cancel()
            outcome = await asyncio.gather(claim, return_exceptions=True)
            have = {one.sandbox.id for one in (*outcome, await next_one) if isinstance(one, Claimed)}
            await there.settle(1)
            assert len(have) == 2 - isinstance(outcome[0], asyncio.CancelledError)
            assert there.alive == have | set(there.pool._stock.ready)
            assert there.pool.counts.ready == size.size


async def test_what_was_delivered_to_a_cancelled_claim_goes_to_the_next() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.open.clear()
        first, second = there.claim(), there.claim()
        await there.settle()
        sandbox = await there.makers.fake.create(SandboxSpec())
        there.pool.give_back(sandbox)
        first.cancel()
        assert (await second).sandbox is sandbox
        assert first.cancelled() or first.cancelling()
        there.makers.open.set()
        await there.settle(1)
        assert there.alive == {sandbox.id}


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
async def test_a_claim_cancelled_while_it_looks_whether_a_sandbox_lives_gives_it_back(dies: bool) -> None:
    async with arena(PoolSize(1, 1, 1)) as there:
        [member] = there.pool._stock.ready.values()
        name, member.sandbox = member.sandbox.id, Deaf(member.sandbox)  # type: ignore[assignment]
        claim = there.claim()
        await there.settle()
        assert name not in there.pool._stock.ready
        if dies:
            there.makers.fake.lose(name)
        claim.cancel()
        await there.settle(1)
        assert claim.cancelled()
        assert (name in there.alive) is not dies
        assert there.alive == set(there.pool._stock.ready)
        assert there.pool.counts.ready == 1


# Failing.


async def test_a_failing_provider_is_tried_again_later() -> None:
    async with arena(filled=False) as there:
        there.makers.fail = [ProviderUnavailable("not now")] * 4
        await there.settle()
        assert repr(there.pool) == "<Pool base: 0 ready, 0 creating, 0 waiting>"
        await there.settle(2)
        assert there.pool.counts.ready == 3
        assert there.pool.creations.failed == 4


async def test_a_provider_that_always_fails_is_not_hammered(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is the log filled: the same failure is told when it is the first, 2nd, 4th, 8th … one after the other."""
    async with arena(filled=False) as there:
        there.makers.always = ProviderUnavailable("never")
        claim = there.claim(30)
        await there.settle(29)
        assert there.pool.creations.failed < 80
        await there.settle(2)
        with pytest.raises(NoCapacity, match="the last one could not be made: never"):
            await claim
        failures = there.pool.creations.failed
        await there.settle(60)
        assert there.pool.creations.failed - failures <= 15
        assert 1 <= caplog.text.count("sandbox_not_created") <= 6


async def test_creations_that_are_broken_off_are_failures_and_are_tried_again_after_a_pause() -> None:
    """A provider may wait for something together with a creation that is cancelled."""
    async with arena(filled=False) as there:
        there.makers.always = asyncio.CancelledError()
        await there.settle(60)
        assert 5 <= there.pool.creations.failed < 80
        assert there.pool.stats().last_failure == "making the sandbox was broken off"
        there.makers.always = None
        await there.settle(15)
        assert there.pool.counts.ready == 3


async def test_waiters_outlast_a_failure_that_passes() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.fail = [ProviderUnavailable("not now"), OSError(5, "nor now")]
        claims = [there.claim(), there.claim()]
        await there.settle(5)
        assert len(set(await ids(*claims))) == 2


async def test_a_hopeless_failure_is_everybodys_at_once() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.always = ImageNotFound("there is no image x", remedy="make it")
        claims = [there.claim() for _ in range(6)]
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["there is no image x (make it)"] * 6
        assert len({id(outcome) for outcome in outcomes}) == 6
        with pytest.raises(ImageNotFound):
            await there.pool.claim(30)


async def test_who_waits_hears_how_far_an_image_is_that_is_made_on_a_far_side() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.always = ImageBuilding("on its way", retry_after_s=7.0, step="pull", fraction=0.5, remaining_s=9.0)
        for outcome in await asyncio.gather(there.claim(), there.claim(), return_exceptions=True):
            assert isinstance(outcome, ImageBuilding)
            told = (outcome.message, outcome.retry_after_s, outcome.step, outcome.fraction, outcome.remaining_s)
            assert told == ("on its way", 7.0, "pull", 0.5, 9.0)
        there.makers.always = None
        await ids(there.claim())


async def test_a_full_machine_is_told_as_such_and_room_that_is_made_is_used() -> None:
    async with arena(PoolSize(0, 0, 0)) as there:
        there.makers.always = MachineFull("no memory is left")
        first, second = there.claim(1), there.claim(30)
        await there.settle(1.1)
        with pytest.raises(MachineFull, match="no memory is left"):
            await first
        there.makers.always = None
        there.pool.creations.note_room()
        await there.settle()
        assert second.done()


# Ending.


async def test_draining_leaves_nothing_and_tells_who_waits() -> None:
    async with arena() as there:
        there.makers.open.clear()
        claims = [there.claim() for _ in range(5)]
        await there.settle()
        await there.pool.drain()
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        have = {one.sandbox.id for one in outcomes if isinstance(one, Claimed)}
        assert [type(one) for one in outcomes if not isinstance(one, Claimed)] == [Stopping, Stopping]
        await there.settle()
        assert there.alive == have
        assert there.makers.now == 0
        with pytest.raises(Stopping):
            await there.pool.claim(1)


async def test_the_figures_add_up() -> None:
    async with arena() as there:
        await ids(*(there.claim() for _ in range(4)))
        await there.filled()
        stats = there.pool.stats()
        assert (stats.claims, stats.hits, stats.misses) == (4, 3, 1)
        assert (stats.timeouts, stats.failures, stats.discarded) == (0, 0, 0)
        assert stats.hit_rate == 0.75
        assert stats.creations == there.makers.fake.created
        assert stats.latency_count == 4
        assert stats.latency_p50_s is not None
        assert stats.latency_p95_s is not None
        assert 0 < stats.latency_p50_s <= stats.latency_p95_s <= stats.latency_sum_s


# Everything at once.


class Storm:
    """Random callers. Who has a sandbox writes it down; nobody may have one that another has."""

    def __init__(self, there: Arena, seed: int) -> None:
        self.there, self.random = there, random.Random(seed)
        self.held: set[str] = set()
        self.callers: list[asyncio.Task[None]] = []

    async def caller(self) -> None:
        try:
            claimed = await self.there.pool.claim(self.random.choice((0.01, 0.5, 30)))
        except WarrenError:
            return
        name = claimed.sandbox.id
        assert name in self.there.alive
        assert name not in self.held
        assert name not in self.there.pool._stock.ready
        self.held.add(name)

    async def step(self) -> None:
        there, choice = self.there, self.random.random()
        if choice < 0.45:
            self.callers.append(asyncio.ensure_future(self.caller()))
        elif choice < 0.6 and self.callers:
            self.random.choice(self.callers).cancel()
        elif choice < 0.65 and there.pool._stock.ready:
            there.makers.fake.lose(self.random.choice(list(there.pool._stock.ready)))
        elif choice < 0.7:
            there.makers.fail.append(ProviderUnavailable("a storm"))
        elif choice < 0.8:
            there.makers.open.clear() if there.makers.open.is_set() else there.makers.open.set()
        elif choice < 0.9:
            await there.settle(self.random.choice((0.01, 0.06, 1.0, 15.0)))
            assert there.pool.counts.ready <= max(there.pool.target, SMALL.min)
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.there.makers.open.set()
        self.there.makers.fail.clear()
        await self.there.settle(40)
        for outcome in await asyncio.gather(*self.callers, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)


@pytest.mark.parametrize("seed", range(25))
async def test_in_a_storm_nobody_shares_a_sandbox_and_none_is_lost(seed: int) -> None:
    async with arena() as there:
        storm = Storm(there, seed)
        for _ in range(400):
            await storm.step()
            assert there.makers.most <= PARALLEL
        await storm.end()
        await there.settle(1)
        assert there.alive == storm.held | set(there.pool._stock.ready)
        assert there.pool.counts.waiting == there.pool.counts.creating == 0
        await there.pool.drain()
        await there.settle()
        assert there.alive == storm.held
