"""What every worker promises (interfaces/worker.py), as tests with sentences for names.

A test module subclasses `WorkerContract` together with the hooks of a provider (provider_contract.py), and says how
to open a worker over that provider (`opened`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, cast

import anyio
import pytest
from contract.provider_contract import ProviderHooks
from this_run import patience

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claim, Claimed, Loss, Worker
from warren.model.environment import PoolSize
from warren.model.errors import (
    Conflict,
    InvalidRequest,
    IsolationUnavailable,
    NoCapacity,
    SandboxLost,
    SandboxNotFound,
    Unavailable,
    UnknownEnvironment,
)
from warren.model.operations import Command
from warren.model.spec import Layer, Limits
from warren.worker.options import LABELS

NONE = PoolSize(0, 0, 0)
SOME = PoolSize(size=3, min=1, max=6)
CLAIM = Claim("base")
OWN = Claim("base", limits=Limits(memory_mb=256, cpus=2))


class Startable(Worker, Protocol):
    async def start(self) -> None: ...


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not holds():
            await asyncio.sleep(0.005)


def ready(worker: Worker) -> int:
    return sum(pool.ready for pool in worker.stats().pools.values())


async def at_rest(worker: Worker) -> None:
    """Nothing is being made or destroyed any more, nor about to be."""

    def rests() -> bool:
        stats = worker.stats()
        busy = sum(pool.creating + pool.waiting for pool in stats.pools.values())
        busy += sum(pool.ready > pool.target for pool in stats.pools.values())
        return not busy and not stats.destroying and stats.sandboxes == ready(worker) + stats.claimed

    await until(rests)


@dataclass(frozen=True)
class Named:
    """All that `lose` needs of a sandbox: connecting to it would take it from the worker."""

    id: str


@pytest.mark.anyio
class WorkerContract(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    def opened(self, provider: Provider, pool: PoolSize, name: str = "one") -> Startable:
        """A worker over that provider, not started; its environment `base` is what `spec` says."""
        raise NotImplementedError

    def slow(self, provider: Provider) -> None:
        """From now on a create takes at least some milliseconds."""

    @asynccontextmanager
    async def working(self, provider: Provider, pool: PoolSize = SOME) -> AsyncIterator[Startable]:
        """A worker with a full pool; at the end nothing may be left but what the test claimed."""
        worker = self.opened(provider, pool)
        await worker.start()
        try:
            await until(lambda: ready(worker) == pool.size)
            with anyio.fail_after(60):
                yield worker
        finally:
            await worker.close()
            for sandbox_id in await provider.list_ids(LABELS):
                await provider.destroy(sandbox_id)

    async def have(self, worker: Worker, number: int, claim: Claim = CLAIM) -> Sequence[Sandbox]:
        claims = await asyncio.gather(*(worker.claim(claim) for _ in range(number)))
        return [claimed.sandbox for claimed in claims]

    # Claiming.

    async def test_a_claimed_sandbox_is_live_and_from_the_pool(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            claimed = await worker.claim(CLAIM)
            assert claimed.pooled
            assert (await claimed.sandbox.exec(Command(shell="echo up"))).stdout == "up\n"
            assert await worker.sandbox(claimed.sandbox.id) is claimed.sandbox

    async def test_many_claims_at_once_get_a_live_sandbox_each(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            boxes = await self.have(worker, 50)
            assert len({box.id for box in boxes}) == 50
            await asyncio.gather(*(box.ping() for box in boxes))
            await at_rest(worker)
            assert worker.stats().claimed == 50

    async def test_claims_are_served_first_come_first_served(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            order: list[int] = []

            async def caller(number: int) -> None:
                await worker.claim(CLAIM)
                order.append(number)

            await asyncio.gather(*(caller(number) for number in range(12)))
            assert order == list(range(12))

    async def test_a_claim_with_limits_of_its_own_is_made_for_it(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            claimed = await worker.claim(OWN)
            assert not claimed.pooled
            await claimed.sandbox.ping()
            assert claimed.sandbox.id in await provider.list_ids(LABELS)

    async def test_a_claim_that_finds_none_ready_waits_for_a_new_one(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            assert not (await worker.claim(CLAIM)).pooled

    @pytest.mark.parametrize("claim", [CLAIM, OWN], ids=["pool", "cold"])
    async def test_a_claim_that_is_not_served_in_time_raises_and_leaves_nothing(
        self, provider: Provider, claim: Claim
    ) -> None:
        async with self.working(provider, NONE) as worker:
            await self.have(worker, 1)
            self.slow(provider)
            with pytest.raises(NoCapacity) as caught:
                await worker.claim(replace(claim, timeout_s=0.001))
            assert caught.value.retry_after_s
            await at_rest(worker)
            assert len(await provider.list_ids(LABELS)) == 1

    async def test_an_unknown_environment_is_refused(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            with pytest.raises(UnknownEnvironment):
                await worker.claim(Claim("no-such"))

    async def test_a_layer_that_cannot_be_had_starts_nothing(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            with pytest.raises(IsolationUnavailable):
                await worker.claim(replace(CLAIM, require=frozenset({Layer.GUEST_KERNEL})))
            await at_rest(worker)
            assert len(await provider.list_ids(LABELS)) == ready(worker) == 3

    async def test_layers_that_are_there_come_from_the_pool(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            claimed = await worker.claim(replace(CLAIM, require=frozenset({Layer.SECCOMP})))
            assert claimed.pooled
            assert Layer.SECCOMP in claimed.sandbox.isolation

    async def test_before_it_is_started_nothing_can_be_claimed(self, provider: Provider) -> None:
        worker = self.opened(provider, SOME)
        with pytest.raises(Unavailable):
            await worker.claim(CLAIM)
        await worker.close()

    @pytest.mark.parametrize("claim", [CLAIM, OWN], ids=["pool", "cold"])
    async def test_claims_cancelled_at_many_moments_leave_nothing(self, provider: Provider, claim: Claim) -> None:
        async with self.working(provider) as worker:
            kept: set[str] = set()
            for step in range(40):
                task = asyncio.ensure_future(worker.claim(claim))
                await (asyncio.sleep(step / 1000) if step % 2 else self.turns(step))
                task.cancel()
                [outcome] = await asyncio.gather(task, return_exceptions=True)
                if isinstance(outcome, Claimed):
                    kept.add(outcome.sandbox.id)
                else:
                    assert isinstance(outcome, asyncio.CancelledError)
            await at_rest(worker)
            assert worker.stats().claimed == len(kept)
            there = await provider.list_ids(LABELS)
            assert kept <= set(there)
            assert len(there) == len(kept) + ready(worker)

    async def turns(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async def test_a_sandbox_that_died_in_the_pool_is_never_handed_out(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            pooled = await provider.list_ids(LABELS)
            for sandbox_id in pooled:
                await self.lose(provider, cast(Sandbox, Named(sandbox_id)))
            boxes = await self.have(worker, 3)
            await asyncio.gather(*(box.ping() for box in boxes))
            assert not {box.id for box in boxes} & set(pooled)
            await at_rest(worker)
            assert not set(pooled) & set(await provider.list_ids())

    # What was claimed.

    async def test_an_unknown_sandbox_is_not_found(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            stranger = await provider.create(self.spec())
            try:
                for sandbox_id in ("0" * 32, stranger.id):
                    with pytest.raises(SandboxNotFound):
                        await worker.sandbox(sandbox_id)
            finally:
                await provider.destroy(stranger.id)

    async def test_destroy_is_idempotent(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            [box] = await self.have(worker, 1)
            await asyncio.gather(worker.destroy(box.id), worker.destroy(box.id))
            await worker.destroy(box.id)
            assert box.id not in await provider.list_ids()
            with pytest.raises(SandboxNotFound):
                await worker.sandbox(box.id)

    async def test_what_others_made_is_not_destroyed(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            stranger = await provider.create(self.spec())
            try:
                await worker.destroy(stranger.id)
                await stranger.ping()
            finally:
                await provider.destroy(stranger.id)

    async def test_a_destroy_goes_on_though_the_caller_is_cancelled(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            [box] = await self.have(worker, 1)
            task = asyncio.ensure_future(worker.destroy(box.id))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await at_rest(worker)
            assert await provider.list_ids(LABELS) == []

    async def test_a_loss_is_reported_once_with_its_reason(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            one, two = await self.have(worker, 2)
            losses = worker.losses()
            await self.lose(provider, one)
            with anyio.fail_after(10):
                loss = await anext(losses)
            assert loss.sandbox_id == one.id
            with pytest.raises(SandboxLost, match=loss.why):
                await worker.sandbox(one.id)
            await worker.destroy(one.id)
            with pytest.raises(SandboxNotFound):
                await worker.sandbox(one.id)
            await worker.destroy(two.id)
            await worker.close()
            assert [rest async for rest in losses] == list[Loss]()

    # Before and after.

    async def test_after_a_restart_known_sandboxes_are_taken_over_and_others_destroyed(
        self, provider: Provider
    ) -> None:
        first = self.opened(provider, NONE)
        await first.start()
        kept, dead, orphan = await self.have(first, 3)
        process = await kept.start(Command(shell="echo before; cat"), process_id="survivor")
        stranger = await provider.create(self.spec())
        other = await provider.create(replace(self.spec(), labels={"owner": "somebody else"}))
        await first.close()
        again = await self.reopened(provider)
        await self.lose(provider, dead)
        second = self.opened(again, NONE)
        try:
            gone = await second.recover([kept.id, dead.id, "0" * 32])
            assert set(gone) == {dead.id, "0" * 32}
            assert all(gone.values())
            await second.start()
            found = await (await second.sandbox(kept.id)).process(process.id)
            await found.write(b"after\n")
            await found.close_stdin()
            with anyio.fail_after(10):
                assert (await found.wait()).stdout == "before\nafter\n"
            with pytest.raises(SandboxLost):
                await second.sandbox(dead.id)
            with pytest.raises(SandboxNotFound):
                await second.sandbox(orphan.id)
            await second.destroy(dead.id)
            await at_rest(second)
            assert set(await again.list_ids()) == {kept.id, stranger.id, other.id}
            await second.destroy(kept.id)
        finally:
            await second.close()
            for sandbox_id in await again.list_ids():
                await again.destroy(sandbox_id)
            await again.close()

    async def test_after_a_restart_what_was_frozen_stays_so_until_it_is_thawed(self, provider: Provider) -> None:
        first = self.opened(provider, NONE)
        await first.start()
        box, dead = await self.have(first, 2)
        limit_s = patience(1.5)
        command = Command(shell="echo before; cat; exit 4", stdin=True, timeout_s=limit_s)
        await anext((await box.start(command, process_id="survivor")).output())
        began = time.monotonic()
        await asyncio.gather(first.freeze(box.id), first.freeze(dead.id))
        await first.close()
        again = await self.reopened(provider)
        await self.lose(provider, dead)
        second = self.opened(again, NONE)
        try:
            frozen = [box.id, dead.id]
            assert set(await second.recover(frozen, frozen)) == {dead.id}
            await second.start()
            with pytest.raises(Conflict, match="frozen"):
                await second.sandbox(box.id)
            await asyncio.sleep(began + limit_s + 0.5 - time.monotonic())
            thawed = await second.thaw(box.id, time.monotonic() - began)
            assert await second.sandbox(box.id) is thawed
            assert await second.thaw(box.id, 0.0) is thawed
            found = await thawed.process("survivor")
            await found.write(b"after\n")
            await found.close_stdin()
            with anyio.fail_after(10):
                result = await found.wait()
            assert (result.stdout, result.exit_code) == ("before\nafter\n", 4)
            with pytest.raises(SandboxLost):
                await second.thaw(dead.id, 0.0)
            await second.freeze(box.id)
            await second.destroy(box.id)
            for ask in (second.freeze(box.id), second.thaw(box.id, 0.0)):
                with pytest.raises(SandboxNotFound):
                    await ask
            await at_rest(second)
        finally:
            await second.close()
            for sandbox_id in await again.list_ids():
                await again.destroy(sandbox_id)
            await again.close()

    async def test_a_frozen_sandbox_that_dies_is_a_loss(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            [box] = await self.have(worker, 1)
            await worker.freeze(box.id)
            await self.lose(provider, box)
            with anyio.fail_after(10):
                assert (await anext(worker.losses())).sandbox_id == box.id
            with pytest.raises(SandboxLost):
                await worker.thaw(box.id, 1.0)

    async def test_whoever_freezes_thaws_and_destroys_at_once_ends_with_something_whole(
        self, provider: Provider
    ) -> None:
        async with self.working(provider, NONE) as worker:
            for _ in range(5):
                [box] = await self.have(worker, 1)
                for _ in range(5):
                    await asyncio.gather(worker.freeze(box.id), worker.thaw(box.id, 0.0), worker.freeze(box.id))
                    assert box.is_frozen()
                    cancelled = asyncio.ensure_future(worker.thaw(box.id, 0.0))
                    await asyncio.sleep(0)
                    cancelled.cancel()
                    await asyncio.gather(worker.thaw(box.id, 0.0), worker.thaw(box.id, 0.0))
                    await box.ping()
                ends = (worker.freeze(box.id), worker.destroy(box.id), worker.thaw(box.id, 0.0))
                outcomes = await asyncio.gather(*ends, return_exceptions=True)
                assert outcomes[1] is None
                assert all(each is None or isinstance(each, SandboxLost | SandboxNotFound) for each in outcomes[:1])
                assert box.id not in await provider.list_ids()

    async def test_recovering_after_the_start_spares_what_is_being_made(self, provider: Provider) -> None:
        worker = self.opened(provider, SOME)
        await worker.start()
        try:
            await asyncio.sleep(0.01)
            assert await worker.recover([]) == {}
            await until(lambda: ready(worker) == 3)
            await at_rest(worker)
            boxes = await self.have(worker, 3)
            await asyncio.gather(*(box.ping() for box in boxes))
            await asyncio.gather(*(worker.destroy(box.id) for box in boxes))
        finally:
            await worker.close()
        assert await provider.list_ids() == []

    async def test_draining_leaves_only_what_was_claimed(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            [box] = await self.have(worker, 1)
            await worker.drain()
            assert await provider.list_ids() == [box.id]
            with pytest.raises(Unavailable):
                await worker.claim(CLAIM)
            with pytest.raises(Unavailable):
                await worker.claim(OWN)
            await (await worker.sandbox(box.id)).ping()
            await worker.destroy(box.id)
            assert await provider.list_ids() == []

    async def test_whoever_waits_is_told_when_the_worker_drains(self, provider: Provider) -> None:
        async with self.working(provider, NONE) as worker:
            self.slow(provider)
            claims = [asyncio.ensure_future(worker.claim(CLAIM)) for _ in range(8)]
            await asyncio.sleep(0)
            await worker.drain()
            for outcome in await asyncio.gather(*claims, return_exceptions=True):
                assert isinstance(outcome, Unavailable | Claimed)

    async def test_closing_destroys_no_claimed_sandbox(self, provider: Provider) -> None:
        worker = self.opened(provider, SOME)
        await worker.start()
        [box] = await self.have(worker, 1)
        await worker.close()
        assert await provider.list_ids() == [box.id]
        adopted = await provider.adopt(box.id)
        await adopted.ping()
        await provider.destroy(box.id)

    async def test_the_figures_are_there(self, provider: Provider) -> None:
        async with self.working(provider) as worker:
            await self.have(worker, 2)
            await at_rest(worker)
            stats = worker.stats()
            assert (worker.name, worker.providers) == ("one", {provider.name: provider.capabilities})
            assert (stats.claimed, stats.destroying) == (2, 0)
            assert stats.pools["base"].hits == 2
            assert stats.sandboxes == 2 + stats.pools["base"].ready
            assert stats.guard.memory_free_mb > 0


@pytest.mark.anyio
class SeveralProvidersContract:
    """A worker over two providers, of which the first is the default."""

    @pytest.fixture
    async def providers(self) -> AsyncIterator[tuple[Provider, Provider]]:
        raise NotImplementedError
        yield

    async def reopened_providers(self, providers: Sequence[Provider]) -> Sequence[Provider]:
        """The same providers as a new process would have them, over the same state."""
        raise NotImplementedError

    def opened(self, providers: Sequence[Provider], pool: PoolSize) -> Startable:
        """A worker that is not started. Its environments are `base`, `second` (which names the second provider),
        `nowhere` (which names a provider that is not there) and `demanding` (which needs a GPU)."""
        raise NotImplementedError

    @asynccontextmanager
    async def working(self, providers: Sequence[Provider], pool: PoolSize = NONE) -> AsyncIterator[Startable]:
        worker = self.opened(providers, pool)
        await worker.start()
        try:
            with anyio.fail_after(60):
                yield worker
        finally:
            await worker.close()
            for provider in providers:
                for sandbox_id in await provider.list_ids(LABELS):
                    await provider.destroy(sandbox_id)

    async def test_the_claim_or_else_the_environment_or_else_the_worker_says_who_makes_the_sandbox(
        self, providers: tuple[Provider, Provider]
    ) -> None:
        first, second = providers
        cases = [
            (CLAIM, first),
            (OWN, first),
            (Claim("second"), second),
            (replace(CLAIM, provider=second.name), second),
            (replace(OWN, provider=second.name), second),
            (Claim("second", provider=first.name), first),
        ]
        async with self.working(providers) as worker:
            assert list(worker.providers) == [first.name, second.name]
            for claim, maker in cases:
                claimed = await worker.claim(claim)
                assert (claimed.provider, claimed.sandbox.isolation.provider) == (maker.name, maker.name)
                assert claimed.sandbox.id in await maker.list_ids(LABELS)
                assert (await claimed.sandbox.exec(Command(shell="echo up"))).stdout == "up\n"
                await worker.destroy(claimed.sandbox.id)
                assert claimed.sandbox.id not in await maker.list_ids()

    @pytest.mark.parametrize("claim", [Claim("nowhere"), replace(CLAIM, provider="e2b"), replace(OWN, provider="e2b")])
    async def test_a_provider_that_is_not_there_is_refused_with_those_that_are(
        self, providers: tuple[Provider, Provider], claim: Claim
    ) -> None:
        async with self.working(providers) as worker:
            with pytest.raises(InvalidRequest, match="no provider 'e2b'") as caught:
                await worker.claim(claim)
            assert caught.value.remedy.endswith(f": {providers[0].name}, {providers[1].name}")

    async def test_a_capability_that_is_missing_is_refused(self, providers: tuple[Provider, Provider]) -> None:
        async with self.working(providers) as worker:
            for provider in providers:
                refusal = f"the provider {provider.name} does not have the capability gpu"
                with pytest.raises(InvalidRequest, match=refusal):
                    await worker.claim(Claim("demanding", provider=provider.name))

    async def test_each_provider_has_pools_of_its_own(self, providers: tuple[Provider, Provider]) -> None:
        first, second = providers
        async with self.working(providers, SOME) as worker:
            await until(lambda: ready(worker) == 3)
            assert len(await first.list_ids(LABELS)) == 3
            assert await second.list_ids(LABELS) == []
            assert not (await worker.claim(replace(CLAIM, provider=second.name))).pooled
            await worker.claim(Claim("second"))
            assert set(worker.stats().pools) == {"base", f"base@{second.name}", "second"}
            await until(lambda: all(pool.ready >= 3 for pool in worker.stats().pools.values()))
            assert (await worker.claim(replace(CLAIM, provider=second.name))).pooled
            assert (await worker.claim(Claim("second"))).pooled
            await at_rest(worker)
            assert len(await first.list_ids(LABELS)) == worker.stats().pools["base"].ready == 3

    async def test_after_a_restart_the_sandboxes_of_all_providers_are_taken_over(
        self, providers: tuple[Provider, Provider]
    ) -> None:
        old = self.opened(providers, NONE)
        await old.start()
        claims = [replace(CLAIM, provider=provider.name) for provider in providers for _ in range(2)]
        boxes = [(await old.claim(claim)).sandbox.id for claim in claims]
        known, orphans = [boxes[0], boxes[2]], [boxes[1], boxes[3]]
        await old.close()
        again = await self.reopened_providers(providers)
        worker = self.opened(again, NONE)
        try:
            assert set(await worker.recover([*known, "0" * 32])) == {"0" * 32}
            await worker.start()
            for sandbox_id, provider in zip(known, again, strict=True):
                assert (await worker.sandbox(sandbox_id)).isolation.provider == provider.name
            await at_rest(worker)
            for provider in again:
                assert not set(orphans) & set(await provider.list_ids())
            await asyncio.gather(*map(worker.destroy, known))
            assert [await provider.list_ids() for provider in again] == [[], []]
        finally:
            await worker.close()
            for provider in again:
                await provider.close()
