"""The local worker under the contract, over the fake and over the oci provider; and what only the fake can show."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest
from contract.provider_kinds import DirectHooks, PausingFakeHooks
from contract.worker_contract import (
    CLAIM,
    NONE,
    OWN,
    SOME,
    SeveralProvidersContract,
    Startable,
    WorkerContract,
    at_rest,
    until,
)

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claim, Claimed
from warren.kernel.clock import SystemClock
from warren.model.capability import Capability
from warren.model.environment import Environment, PoolSize
from warren.model.errors import (
    ImageNotFound,
    LanguageMissing,
    MachineFull,
    NoCapacity,
    ProviderUnavailable,
    SandboxLost,
    UnknownEnvironment,
    WarrenError,
)
from warren.model.spec import Limits, SandboxSpec
from warren.testing.fake_provider import FakeProvider
from warren.testing.manual_clock import ManualClock
from warren.worker.guard import MachineGuard, Room
from warren.worker.options import LABELS, STEPS, WorkerOptions
from warren.worker.worker import LocalWorker

pytestmark = pytest.mark.anyio


def environments(spec: SandboxSpec) -> Callable[[str], Environment]:
    def find(name: str) -> Environment:
        if name not in ("base", "other"):
            raise UnknownEnvironment(f"there is no environment {name!r}")
        return Environment(name, spec.image, limits=spec.limits)

    return find


def local_worker(
    *providers: Provider,
    pool: PoolSize,
    name: str = "one",
    find: Callable[[str], Environment] | None = None,
    clock: SystemClock | ManualClock | None = None,
    guard: MachineGuard | None = None,
    fault: Callable[[str], None] = lambda step: None,
) -> LocalWorker:
    return LocalWorker(
        name,
        providers,
        find or environments(SandboxSpec()),
        WorkerOptions(
            clock=clock or SystemClock(),
            guard=guard or MachineGuard(Path("/tmp"), 0, 0),
            default_environment="base",
            default_pool=pool,
            fault=fault,
        ),
    )


class TestLocalWorkerOverTheFake(PausingFakeHooks, WorkerContract):
    def opened(self, provider: Provider, pool: PoolSize, name: str = "one") -> Startable:
        return local_worker(provider, pool=pool, name=name)

    def slow(self, provider: Provider) -> None:
        cast(FakeProvider, provider).delay_s = 0.05


class TestLocalWorkerOverOci(DirectHooks, WorkerContract):
    def opened(self, provider: Provider, pool: PoolSize, name: str = "one") -> Startable:
        return local_worker(provider, pool=pool, name=name, find=environments(self.spec()))


def provided_environments(spec: SandboxSpec, second: str) -> Callable[[str], Environment]:
    kinds = {
        "base": Environment("base", spec.image, limits=spec.limits),
        "second": Environment("second", spec.image, limits=spec.limits, provider=second),
        "nowhere": Environment("nowhere", spec.image, provider="e2b"),
        "demanding": Environment("demanding", spec.image, needs=frozenset({Capability.GPU})),
    }
    return kinds.__getitem__


class TestLocalWorkerOverTwoFakes(SeveralProvidersContract):
    @pytest.fixture
    async def providers(self) -> AsyncIterator[tuple[Provider, Provider]]:
        pair = FakeProvider(name="one"), FakeProvider(name="two")
        yield pair
        assert [list(provider.machines) for provider in pair] == [[], []]

    async def reopened_providers(self, providers: Sequence[Provider]) -> Sequence[Provider]:
        fakes = cast(Sequence[FakeProvider], providers)
        return [FakeProvider(fake.machines, name=fake.name) for fake in fakes]

    def opened(self, providers: Sequence[Provider], pool: PoolSize) -> Startable:
        return local_worker(*providers, pool=pool, find=provided_environments(SandboxSpec(), "two"))


class TestLocalWorkerOverTheFakeAndOci(DirectHooks, SeveralProvidersContract):
    @pytest.fixture
    async def providers(self, provider: Provider) -> AsyncIterator[tuple[Provider, Provider]]:
        fake = FakeProvider()
        yield fake, provider
        assert list(fake.machines) == []

    async def reopened_providers(self, providers: Sequence[Provider]) -> Sequence[Provider]:
        fake, oci = providers
        return [FakeProvider(cast(FakeProvider, fake).machines), await self.reopened(oci)]

    def opened(self, providers: Sequence[Provider], pool: PoolSize) -> Startable:
        return local_worker(*providers, pool=pool, find=provided_environments(self.spec(), "oci"))


# What only the fake can show.


class Troubled(FakeProvider):
    """The fake with troubles that a test asks for, and a count of what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.adoptions = self.most = self.destructions = self.most_destructions = 0
        self.no_adopt = self.no_destroy = self.no_undo = 0
        self.hopeless = False
        self.late_s = 0.0  # so long a sandbox is listed before it is handed over

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.most = max(self.most, self.creating + 1)
        if self.hopeless:
            raise ImageNotFound("there is no image x")
        sandbox = await super().create(spec)
        if self.no_undo > 0:
            self.no_undo -= 1
            self.half_made.add(sandbox.id)
            raise ProviderUnavailable("the engine has gone")
        try:
            await asyncio.sleep(self.late_s)
            return sandbox
        except BaseException:
            self.machines.pop(sandbox.id)
            raise

    async def adopt(self, sandbox_id: str, *, paused_s: float | None = None) -> Sandbox:
        self.adoptions += 1
        await asyncio.sleep(0)
        if self.no_adopt > 0:
            self.no_adopt -= 1
            raise ProviderUnavailable("not now")
        return await super().adopt(sandbox_id, paused_s=paused_s)

    async def destroy(self, sandbox_id: str) -> None:
        self.destructions += 1
        self.most_destructions = max(self.most_destructions, self.destructions)
        try:
            await asyncio.sleep(0.001)
        finally:
            self.destructions -= 1
        if self.no_destroy > 0:
            self.no_destroy -= 1
            raise ProviderUnavailable("not now")
        await super().destroy(sandbox_id)


@asynccontextmanager
async def started(worker: LocalWorker) -> AsyncIterator[LocalWorker]:
    await worker.start()
    try:
        with anyio.fail_after(60):
            yield worker
    finally:
        await worker.close()


async def test_many_who_ask_for_a_sandbox_connect_once() -> None:
    fake = Troubled()
    box = await fake.create(SandboxSpec(labels=LABELS))
    worker = local_worker(fake, pool=NONE)
    fake.no_adopt = 1
    assert await worker.recover([box.id]) == {}
    async with started(worker):
        assert fake.adoptions == 1
        found = await asyncio.gather(*(worker.sandbox(box.id) for _ in range(20)))
        assert fake.adoptions == 2
        assert len({id(one) for one in found}) == 1


async def test_one_that_turns_out_to_be_lost_when_it_is_wanted_is_reported() -> None:
    fake = Troubled()
    box = await fake.create(SandboxSpec(labels=LABELS))
    worker = local_worker(fake, pool=NONE)
    fake.no_adopt = 1
    assert await worker.recover([box.id]) == {}
    fake.lose(box.id, "a mishap")
    async with started(worker):
        with pytest.raises(SandboxLost, match="a mishap"):
            await worker.sandbox(box.id)
        assert "a mishap" in (await anext(worker.losses())).why
        with pytest.raises(SandboxLost, match="a mishap"):
            await worker.sandbox(box.id)


async def test_a_destruction_that_fails_is_tried_again() -> None:
    fake, clock = Troubled(), ManualClock()
    async with started(local_worker(fake, pool=NONE, clock=clock)) as worker:
        box = (await worker.claim(CLAIM)).sandbox
        fake.no_destroy = 1
        with pytest.raises(ProviderUnavailable):
            await worker.destroy(box.id)
        assert worker.stats().destroying == 1
        await clock.advance(6)
        await until(lambda: not fake.machines)
        await at_rest(worker)


async def test_what_a_failed_creation_could_not_take_back_is_destroyed_until_that_succeeds() -> None:
    fake, clock = Troubled(), ManualClock()
    async with started(local_worker(fake, pool=NONE, clock=clock)) as worker:
        fake.no_undo, fake.no_destroy = 1, 1
        with pytest.raises(ProviderUnavailable):
            await worker.claim(OWN)
        assert len(fake.machines) == 1
        await clock.advance(6)
        await until(lambda: not fake.no_destroy)
        assert worker.stats().destroying == 1
        await clock.advance(6)
        await until(lambda: not fake.machines)
        assert not fake.half_made
        await at_rest(worker)


async def test_a_destruction_that_failed_is_tried_a_last_time_when_the_worker_is_closed() -> None:
    fake = Troubled()
    async with started(local_worker(fake, pool=NONE)) as worker:
        box = (await worker.claim(CLAIM)).sandbox
        fake.no_destroy = 1
        with pytest.raises(ProviderUnavailable):
            await worker.destroy(box.id)
    assert fake.machines == {}


async def test_orphans_are_destroyed_a_few_at_a_time_and_do_not_count() -> None:
    fake = Troubled()
    for _ in range(60):
        await fake.create(SandboxSpec(labels=LABELS))
    worker = local_worker(fake, pool=NONE)
    assert await worker.recover([]) == {}
    assert worker.stats().sandboxes == 0
    assert worker.stats().destroying == 60
    await worker.close()
    assert fake.machines == {}
    assert fake.most_destructions <= 8


def with_context(language: str) -> Callable[[str], Environment]:
    return lambda name: Environment(name, "base", contexts=(language,))


async def test_code_contexts_are_there_before_anybody_gets_the_sandbox() -> None:
    fake = Troubled()
    async with started(local_worker(fake, pool=SOME, find=with_context("bash"))) as worker:
        box = (await worker.claim(CLAIM)).sandbox
        assert [(info.id, info.running) for info in await box.processes()] == [("ctx_bash", True)]
        await worker.destroy(box.id)


async def test_a_sandbox_whose_context_cannot_be_started_is_destroyed_and_counted() -> None:
    fake = Troubled()
    async with started(local_worker(fake, pool=PoolSize(1, 1, 1), find=with_context("r"))) as worker:
        with pytest.raises(LanguageMissing, match="the image base has no Rscript, which code in r needs"):
            await worker.claim(CLAIM)
        await until(lambda: not fake.machines)
        (pool,) = worker.stats().pools.values()
        assert pool.failures >= 1
        assert pool.creations == 0
        assert "Rscript" in (pool.last_failure or "")


async def test_what_is_half_made_while_the_worker_recovers_is_no_orphan() -> None:
    fake = Troubled()
    fake.late_s = 0.05
    async with started(local_worker(fake, pool=SOME)) as worker:
        await until(lambda: bool(fake.machines))
        half_made = set(fake.machines)
        assert await worker.recover([]) == {}
        await until(lambda: worker.stats().pools["base"].ready == 3)
        await at_rest(worker)
        assert half_made <= set(fake.machines)


async def test_two_that_recover_at_once_do_not_wait_for_each_other() -> None:
    fake = Troubled()
    fake.delay_s = 0.02
    async with started(local_worker(fake, pool=NONE)) as worker:
        claims = [asyncio.ensure_future(worker.claim(OWN)) for _ in range(worker._options.parallel)]
        await until(lambda: fake.creating == len(claims))
        with anyio.fail_after(5):
            assert await asyncio.gather(worker.recover([]), worker.recover([])) == [{}, {}]
        await asyncio.gather(*claims)


async def test_a_pool_of_another_environment_begins_with_its_first_claim() -> None:
    fake = FakeProvider()
    async with started(local_worker(fake, pool=SOME)) as worker:
        assert set(worker.stats().pools) == {"base"}
        await worker.claim(Claim("other"))
        await until(lambda: worker.stats().pools["other"].ready >= 3)


async def test_a_changed_environment_gets_a_new_pool_and_no_old_sandbox() -> None:
    fake, memory = FakeProvider(), [512]

    def find(name: str) -> Environment:
        return Environment(name, "base", limits=Limits(memory_mb=memory[0]))

    async with started(local_worker(fake, pool=SOME, find=find)) as worker:
        await until(lambda: worker.stats().pools["base"].ready == 3)
        fake.delay_s = 0.01
        memory[0] = 128
        box = (await worker.claim(CLAIM)).sandbox
        assert fake.machines[box.id].spec.limits.memory_mb == 128
        await at_rest(worker)
        assert {machine.spec.limits.memory_mb for machine in fake.machines.values()} == {128}


class SlowToTell(FakeProvider):
    """Tells the version of the image `base` when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.tells = asyncio.Event()
        self.tells.set()

    async def image_version(self, image: str) -> str:
        if image == "base":
            await self.tells.wait()
        return await super().image_version(image)


async def test_a_pool_that_a_claim_replaced_while_another_was_looked_at_stays() -> None:
    fake, memory, clock = SlowToTell(), [512], ManualClock()

    def find(name: str) -> Environment:
        image = "base" if name == "base" else "python"
        return Environment(name, image, limits=Limits(memory_mb=memory[0] if name == "other" else 512))

    async with started(local_worker(fake, pool=SOME, find=find, clock=clock)) as worker:
        await worker.claim(Claim("other"))
        await clock.advance(0.5)
        fake.tells.clear()
        await clock.advance(1)  # now the pool of `base` is being looked at
        memory[0] = 128
        await worker.claim(Claim("other"))
        fake.tells.set()
        await clock.advance(1)
        await clock.advance(1)
        assert set(worker.stats().pools) == {"base", "other"}
        assert [pool.ready for pool in worker.stats().pools.values()] == [3, 3]
        assert len(fake.machines) == worker.stats().claimed + 6


async def test_the_pool_of_an_environment_that_is_removed_is_emptied_and_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    fake, clock, known = FakeProvider(), ManualClock(), {"base", "other"}

    def find(name: str) -> Environment:
        if name not in known:
            raise UnknownEnvironment(f"there is no environment {name!r}")
        return Environment(name, "base")

    async with started(local_worker(fake, pool=SOME, find=find, clock=clock)) as worker:
        await worker.claim(Claim("other"))
        await clock.advance(1)
        known.remove("other")
        await clock.advance(5)
        assert set(worker.stats().pools) == {"base"}
        assert len(fake.machines) == 3 + 1
        assert [record.message for record in caplog.records] == ["pool_removed"]


async def test_who_waits_while_its_environment_is_changed_gets_one_of_the_new_kind() -> None:
    fake, memory = FakeProvider(delay_s=0.02), [512]

    def find(name: str) -> Environment:
        return Environment(name, "base", limits=Limits(memory_mb=memory[0]))

    async with started(local_worker(fake, pool=NONE, find=find)) as worker:
        waiting = asyncio.ensure_future(worker.claim(CLAIM))
        await asyncio.sleep(0)
        memory[0] = 128
        boxes = [(await worker.claim(CLAIM)).sandbox, (await waiting).sandbox]
        assert {fake.machines[box.id].spec.limits.memory_mb for box in boxes} == {128}


async def test_a_full_machine_makes_nothing() -> None:
    fake, there = FakeProvider(), [Room(1000, 900, 1000, 900)]
    guard = MachineGuard(Path("/"), 100, 100, room=lambda _: there[0], now=iter(range(1, 10**6)).__next__)
    async with started(local_worker(fake, pool=NONE, guard=guard)) as worker:
        await worker.claim(CLAIM)
        there[0] = Room(1000, 50, 1000, 900)
        with pytest.raises(MachineFull, match="42 MiB of memory"):
            await worker.claim(OWN)
        with pytest.raises(MachineFull, match="42 MiB of memory"):
            await worker.claim(Claim("base", timeout_s=0.1))
        assert len(fake.machines) == 1


async def test_pools_that_have_learned_share_what_memory_allows_them() -> None:
    """A quarter of the 192 MiB above three reserves, at 8 MiB each, is six; each has its size without asking."""
    guard = MachineGuard(Path("/"), 100, 100, room=lambda _: Room(1000, 492, 1000, 900))
    async with started(local_worker(FakeProvider(), pool=PoolSize(2, 0, 50), guard=guard)) as worker:
        await until(lambda: worker.stats().pools["base"].ready == 2)
        claims = [worker.claim(Claim(name)) for name in ("base", "other") for _ in range(10)]
        await asyncio.gather(*claims)

        def has_grown() -> bool:
            ready = [pool.ready for pool in worker.stats().pools.values()]
            return min(ready) >= 2 and sum(ready) >= 6

        await until(has_grown)
        await at_rest(worker)
        stats = worker.stats()
        assert stats.guard.pool_ceiling == 6
        # One may have grown to the ceiling before the other had its size.
        assert sum(pool.ready for pool in stats.pools.values()) <= 6 + 2
        assert [pool.target for pool in stats.pools.values()] == [10, 10]


async def test_a_place_that_becomes_free_is_given_to_who_waits() -> None:
    fake, guard = FakeProvider(), MachineGuard(Path("/tmp"), 0, 0, max_sandboxes=2)
    async with started(local_worker(fake, pool=NONE, guard=guard)) as worker:
        one, _ = await worker.claim(CLAIM), await worker.claim(CLAIM)
        waiting = asyncio.ensure_future(worker.claim(CLAIM))
        await until(lambda: worker.stats().pools["base"].failures > 0)
        await worker.destroy(one.sandbox.id)
        await waiting
        assert len(fake.machines) == 2


async def test_creations_share_one_limit_whoever_they_are_for() -> None:
    fake = Troubled()
    fake.delay_s = 0.002
    async with started(local_worker(fake, pool=SOME)) as worker:
        kinds = (CLAIM, OWN, Claim("other"))
        await asyncio.gather(*(worker.claim(kinds[number % 3]) for number in range(60)))
        assert fake.most <= max(2, worker._options.parallel)


async def test_a_hopeless_environment_is_told_at_once() -> None:
    fake = Troubled()
    fake.hopeless = True
    async with started(local_worker(fake, pool=SOME)) as worker:
        with anyio.fail_after(2):
            for claim in (CLAIM, OWN):
                with pytest.raises(ImageNotFound):
                    await worker.claim(claim)


# Cut short at each step.


class Cut(Exception):
    pass


@pytest.mark.parametrize("cancel", [False, True], ids=["raise", "cancel"])
@pytest.mark.parametrize(("claim", "step"), [(CLAIM, STEPS[0]), (OWN, STEPS[1])], ids=STEPS[:2])
async def test_a_claim_cut_short_leaves_nothing(claim: Claim, step: str, cancel: bool) -> None:
    fake = FakeProvider()

    def fault(now: str) -> None:
        if now == step:
            if not cancel:
                raise Cut
            task.cancel()

    async with started(local_worker(fake, pool=NONE, fault=fault)) as worker:
        task = asyncio.ensure_future(worker.claim(claim))
        [outcome] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError if cancel else Cut)
        assert fake.machines == {}
        assert worker.stats().sandboxes == 0


@pytest.mark.parametrize("step", STEPS[2:])
async def test_a_destroy_cut_short_is_finished_later(step: str) -> None:
    fake, cuts = FakeProvider(), [Cut()]

    def fault(now: str) -> None:
        if now == step and cuts:
            raise cuts.pop()

    async with started(local_worker(fake, pool=NONE, fault=fault)) as worker:
        box = (await worker.claim(CLAIM)).sandbox
        with pytest.raises(Cut):
            await worker.destroy(box.id)
        await worker.destroy(box.id)
        assert fake.machines == {}
        assert worker.stats().destroying == 0


# Everything at once.


class Storm:
    def __init__(self, worker: LocalWorker, fake: Troubled, seed: int) -> None:
        self.worker, self.fake, self.random = worker, fake, random.Random(seed)
        self.tasks: list[asyncio.Task[None]] = []
        self.held: dict[str, Claimed] = {}

    async def caller(self) -> None:
        claim = self.random.choice((CLAIM, CLAIM, OWN, Claim("other")))
        try:
            claimed = await self.worker.claim(Claim(claim.environment, claim.image, claim.limits, timeout_s=2))
        except WarrenError:
            return
        assert claimed.sandbox.id not in self.held
        self.held[claimed.sandbox.id] = claimed

    async def destroyer(self) -> None:
        if self.held:
            sandbox_id = self.random.choice(list(self.held))
            del self.held[sandbox_id]
            with contextlib.suppress(ProviderUnavailable):
                await self.worker.destroy(sandbox_id)

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.5:
            self.tasks.append(asyncio.ensure_future(self.caller()))
        elif choice < 0.65:
            self.random.choice(self.tasks or [asyncio.ensure_future(asyncio.sleep(0))]).cancel()
        elif choice < 0.75:
            self.tasks.append(asyncio.ensure_future(self.destroyer()))
        elif choice < 0.8:
            self.fake.fail_next += 1
        elif choice < 0.85:
            self.fake.no_destroy += 1
        elif choice < 0.9 and self.fake.machines:
            self.fake.lose(self.random.choice(list(self.fake.machines)))
        else:
            self.fake.delay_s = self.random.choice((0, 0, 0.001, 0.003))
        await asyncio.sleep(self.random.choice((0, 0, 0.0005)))

    async def end(self) -> None:
        self.fake.fail_next = self.fake.no_destroy = 0
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome


@pytest.mark.parametrize("seed", range(6))
async def test_in_a_storm_nobody_shares_a_sandbox_and_nothing_is_left(seed: int) -> None:
    fake = Troubled()
    async with started(local_worker(fake, pool=SOME)) as worker:
        storm = Storm(worker, fake, seed)
        for _ in range(400):
            await storm.step()
            assert fake.creating <= worker._options.parallel
        await storm.end()
        await worker.drain()
        lost = {sandbox_id for sandbox_id, machine in fake.machines.items() if machine.lost.is_set()}
        assert set(fake.machines) - lost <= set(storm.held)
        assert worker.stats().claimed == len(set(fake.machines) - lost)
        assert lost <= set(worker._holdings.lost)
        await asyncio.gather(*(worker.destroy(sandbox_id) for sandbox_id in list(fake.machines)))
        assert fake.machines == {}


# -- graphics processors


async def test_sandboxes_with_a_gpu_are_made_when_asked_for_and_refused_at_once() -> None:
    def find(name: str) -> Environment:
        return Environment(name, "base", gpus=("any",) if name == "training" else ())

    provider = FakeProvider(gpus=("0", "1"))
    worker = local_worker(provider, pool=SOME, find=find)
    await worker.start()
    first = await worker.claim(Claim("training"))
    second = await worker.claim(Claim("base", gpus=("1",)))
    assert [*first.sandbox.isolation.gpus, *second.sandbox.isolation.gpus] == ["0", "1"]
    assert not first.pooled
    assert not second.pooled
    assert (worker.stats().gpus, worker.stats().gpus_free) == (2, ())
    with pytest.raises(NoCapacity, match="no free GPU"):
        await asyncio.wait_for(worker.claim(Claim("training", timeout_s=30)), 1)
    none = await worker.claim(Claim("training", gpus=()))
    assert none.sandbox.isolation.gpus == {}
    await worker.destroy(first.sandbox.id)
    assert worker.stats().gpus_free == ("0",)
    assert "training" not in worker.stats().pools
    for claimed in (second, none):
        await worker.destroy(claimed.sandbox.id)
    await worker.close()
