"""Owns the sandboxes of one host: interfaces/worker.py over one or more providers.

A pool per provider and environment makes sandboxes ahead, in tasks of its own; a claim with an image or limits of its
own gets a sandbox made for it. All creations share `parallel` slots, first come, first served, and ask the guard
before they begin. Every destruction is a task that finishes even if its caller has gone; one that fails is tried again
every few seconds, and a last time by `drain`. `close` ends all tasks.

Every sandbox made here carries a label. After a crash a new worker finds by it what the old one left, whatever that
one's name was, and leaves alone what others made in the same state directory. A lock ensures that a state directory
has one worker at a time.
"""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from warren.images.building.on_demand import FetchImage, ImageBuilds
from warren.interfaces.provider import Provider
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claim, Claimed, Loss, WorkerStats
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import OFF, Tracing
from warren.model.capability import Providers, choose_provider
from warren.model.code import find_language
from warren.model.environment import Environment, PoolSize
from warren.model.errors import (
    ImageBuildFailed,
    ImageBuilding,
    InvalidRequest,
    IsolationUnavailable,
    MachineFull,
    NoCapacity,
    ProtocolError,
    ProviderUnavailable,
    SandboxLost,
    SandboxNotFound,
    Stopping,
    Unavailable,
    WarrenError,
)
from warren.model.image import Recipe
from warren.model.spec import SandboxSpec
from warren.sandboxes.host.machine_size import usable_cores
from warren.sandboxes.keepers import start_keeper
from warren.worker.guard import MachineGuard
from warren.worker.pool import Pool
from warren.worker.user_name import UserNames

NO_POOL: Final = PoolSize(0, 0, 0)  # a graphics processor must not wait in one
LABELS: Final = {"owner": "worker"}
STEPS: Final = ("claimed-from-pool", "cold-created", "before-destroy", "destroyed")
_ADOPT_AT_ONCE, _DESTROY_AT_ONCE = 16, 8
_RETRY_S: Final = 5.0
_LOOK_S: Final = 1.0
_CHECK_S: Final = 2.0
_ANSWER_S: Final = 5.0
_SWEEPS_S: Final = (0.0, 65.0)  # the second sweep judges directories without a record, which must be a minute old
_LEAK_LOOK_S: Final = 60.0
_LEAK_LOOKS: Final = 3  # so often in a row a sandbox is found that this worker does not know, then it is a leak
_NOT_ADOPTABLE: Final = (SandboxLost, SandboxNotFound, ProtocolError, IsolationUnavailable)
_log = get_log(__name__)
T = TypeVar("T")


class _State(StrEnum):
    NEW = "not started"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    adopt: frozenset[str]
    destroy: frozenset[str]


def plan_recovery(known: Collection[str], mine: Collection[str], in_use: Collection[str]) -> RecoveryPlan:
    """`known`: sandboxes of sessions. `mine`: all that workers made here. `in_use`: those of this worker's own life.

    A known sandbox is adopted even if it is not listed: the provider says what became of it.
    """
    return RecoveryPlan(frozenset(known) - frozenset(in_use), frozenset(mine) - frozenset(known) - frozenset(in_use))


class LocalWorker:
    """`start` comes before the first claim. The first provider is the default. The providers stay the caller's, who
    closes them after the worker.

    `environments` finds an environment by name and raises UnknownEnvironment. Tests pass `fault`, which is called with
    the name of each of STEPS.
    """

    def __init__(
        self,
        name: str,
        providers: Sequence[Provider],
        environments: Callable[[str], Environment],
        *,
        clock: Clock,
        guard: MachineGuard,
        default_environment: str,
        default_pool: PoolSize | None = None,
        parallel: int | None = None,
        builds: ImageBuilds | None = None,
        tracing: Tracing = OFF,
        recorder: Recorder = NO_RECORDER,
        fault: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._builds = builds
        self._tracing = tracing
        self._recorder = recorder
        self._user_names = UserNames()
        self._name, self._environments = name, environments
        self._providers = {provider.name: provider for provider in providers}
        self._capabilities = {provider.name: provider.capabilities for provider in providers}
        self._clock, self.guard, self._fault = clock, guard, fault
        self._default_environment, self._default_pool = default_environment, default_pool or PoolSize()
        self._parallel = parallel or min(32, 2 * usable_cores())  # a runtime waits for the kernel half of the time
        self._slots = asyncio.Semaphore(self._parallel)
        self._destroy_slots = asyncio.Semaphore(_DESTROY_AT_ONCE)
        self._creating = 0
        self._live: set[str] = set()
        self._makers: dict[str, Provider] = {}  # which provider made the sandbox
        self._claimed: dict[str, Sandbox | None] = {}  # None: known, but not connected
        self._lost: dict[str, str] = {}
        self._losses: asyncio.Queue[Loss | None] = asyncio.Queue()
        self._adopting: dict[str, asyncio.Task[Sandbox]] = {}
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self._undestroyed: set[str] = set()  # a destruction runs or has failed
        self._strangers: dict[str, int] = {}  # sandboxes that it should know and does not: how often found in a row
        self._pools: dict[tuple[str, str], Pool] = {}  # by provider and environment
        self._retired: set[Pool] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._checking: asyncio.Task[Exception | None] | None = None
        self._checked_at = 0.0
        self._state = _State.NEW

    def __repr__(self) -> str:
        return f"<LocalWorker {self._name} {self._state}: {len(self._claimed)} claimed, {len(self._live)} live>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def providers(self) -> Providers:
        return self._capabilities

    async def start(self) -> None:
        """Begins to fill the default environment's pool; raises UnknownEnvironment, and InvalidRequest if that
        environment asks for a provider that is not here."""
        environment = self._environments(self._default_environment)
        provider = self._provider_for(environment)
        if self._state is _State.NEW:
            self._state = _State.OPEN
            is_built = self._builds is not None and self._builds.can_get(environment.image, environment.recipe)
            if not is_built or not provider.local_images:
                self._pool(provider, environment)
            else:
                self._own(asyncio.ensure_future(self._start_default_pool()))
            self._own(asyncio.ensure_future(self._retry_destructions()))
            self._own(asyncio.ensure_future(self._watch_pools()))
            self._own(asyncio.ensure_future(self._look_for_leaks()))

    async def _start_default_pool(self) -> None:
        """Once the image is there, if it has to be built; others start with their first claim."""
        while self._state is _State.OPEN:
            with suppress(WarrenError):
                try:
                    await self.prepare(self._default_environment)
                except (ImageBuilding, ImageBuildFailed) as exc:
                    await self._clock.sleep(exc.retry_after_s or _CHECK_S)
                    continue
                environment = self._environments(self._default_environment)
                self._pool(self._provider_for(environment), environment)
            return

    def _provider_for(self, environment: Environment, name: str = "") -> Provider:
        return self._providers[choose_provider(self._capabilities, name or environment.provider, environment.needs)]

    # -- claiming

    async def prepare(self, environment: str, image: str = "", provider: str = "") -> None:
        if self._builds is not None:
            found = self._environments(environment)
            maker = self._provider_for(found, provider)
            if maker.local_images:
                await self._builds.prepare(*self._image_of(found, image, maker))

    @property
    def builds(self) -> ImageBuilds | None:
        return self._builds

    def fetch_images_by(self, fetch: FetchImage) -> None:
        """Says how images that are missing here can be had from other machines."""
        if self._builds is not None:
            self._builds.fetch = fetch

    async def image_state(self, environment: Environment) -> str | None:
        """None where it cannot be told: an environment may need a provider that this worker does not have."""
        if self._builds is None:
            return None
        try:
            provider = self._provider_for(environment)
        except InvalidRequest:
            return None
        if not provider.local_images:
            return None
        return await self._builds.state(*self._image_of(environment, "", provider))

    def _image_of(
        self, environment: Environment, image: str, provider: Provider
    ) -> tuple[str, Recipe | None, Callable[[], Awaitable[str]]]:
        name = image or environment.image
        recipe = environment.recipe if name == environment.image else None
        return name, recipe, partial(provider.image_version, name)

    async def claim(self, claim: Claim) -> Claimed:
        self._check_open()
        environment = self._environments(claim.environment)
        provider = self._provider_for(environment, claim.provider)
        gpus = environment.gpus if claim.gpus is None else claim.gpus
        if claim.image or gpus or environment.gpus or claim.limits not in (None, environment.limits):
            return await self._claim_cold(claim, provider, environment)
        pool = self._pool(provider, environment)
        try:
            claimed = await pool.claim(claim.timeout_s, claim.tenant)
        except Stopping:
            self._check_open()
            return await self.claim(claim)  # only this pool has stopped: its environment was changed
        if not all(layer in claimed.sandbox.isolation for layer in claim.require):
            pool.give_back(claimed.sandbox)
            return await self._claim_cold(claim, provider, environment)
        return await self._hand_out(claimed, "claimed-from-pool")

    async def _claim_cold(self, claim: Claim, provider: Provider, environment: Environment) -> Claimed:
        spec = _spec_of(environment)
        limits, gpus = claim.limits or spec.limits, spec.gpus if claim.gpus is None else claim.gpus
        spec = replace(spec, image=claim.image or spec.image, limits=limits, require=claim.require, gpus=gpus)
        sandbox = await self._make_in_time(provider, spec, environment, claim.timeout_s)
        return await self._hand_out(Claimed(sandbox, pooled=False, provider=provider.name), "cold-created")

    async def _hand_out(self, claimed: Claimed, step: str) -> Claimed:
        sandbox = claimed.sandbox
        try:
            self._fault(step)
            # A task cancelled since its last await drops what it returns: be cancelled here instead.
            await asyncio.sleep(0)
        except BaseException:
            await run_shielded(asyncio.wait([self._destruction(sandbox.id)]))
            raise
        self._hold(sandbox)
        return claimed

    async def check(self) -> None:
        """Looks at most once in a few seconds, however many ask."""
        self._check_open()
        is_old = self._checked_at + _CHECK_S <= self._clock.now()
        if self._checking is None or (self._checking.done() and is_old):
            self._checking, self._checked_at = asyncio.ensure_future(self._find_obstacle()), self._clock.now()
            self._own(self._checking)
        # The first look may have to copy an image into an engine, which takes minutes.
        await asyncio.wait([self._checking], timeout=_ANSWER_S)
        if not self._checking.done():
            raise ProviderUnavailable(
                "no sandbox can be made yet: image and runtime are being prepared", retry_after_s=_CHECK_S
            )
        obstacle = self._checking.result()
        if obstacle is not None:
            remedy = obstacle.remedy if isinstance(obstacle, WarrenError) else ""
            reason = obstacle.message if isinstance(obstacle, WarrenError) else str(obstacle)
            raise ProviderUnavailable(f"no sandbox can be made: {reason}", remedy=remedy, retry_after_s=_CHECK_S)

    async def _find_obstacle(self) -> Exception | None:
        try:
            environment = self._environments(self._default_environment)
            provider = self._provider_for(environment)
            await self.prepare(self._default_environment)
            await provider.check(_spec_of(environment))
            return self._pool(provider, environment).lasting_failure
        except WarrenError as exc:
            return exc

    def _hold(self, sandbox: Sandbox) -> None:
        self._live.add(sandbox.id)
        self._claimed[sandbox.id] = sandbox
        sandbox.when_lost(partial(self._lose, sandbox.id))

    async def _make_in_time(
        self, provider: Provider, spec: SandboxSpec, environment: Environment, timeout_s: float
    ) -> Sandbox:
        making = asyncio.ensure_future(self._make_with_user(provider, spec, environment))
        alarm = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait((making, alarm), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await run_shielded(self._undo(making))
            raise
        finally:
            alarm.cancel()
        if making.done():
            return making.result()
        await run_shielded(self._undo(making))
        raise NoCapacity(
            f"no sandbox of {spec.image} could be made within {timeout_s:g} s, {self._creating} are being made",
            remedy="try again later, or wait longer",
            retry_after_s=1.0,
        )

    async def _undo(self, making: "asyncio.Task[Sandbox]") -> None:
        making.cancel()
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None:
            await asyncio.wait([self._destruction(making.result().id)])

    async def _make(self, provider: Provider, spec: SandboxSpec, environment: Environment) -> Sandbox:
        async with self._slots:
            began = time.perf_counter()
            try:
                self.guard.check(len(self._live), self._creating)
                self._creating += 1
                try:
                    with self._tracing.span("create", environment=environment.name, provider=provider.name):
                        sandbox = await provider.create(spec)
                finally:
                    self._creating -= 1
            except MachineFull as exc:
                self._recorder.machine_full(exc.what)
                raise
            self._recorder.sandbox_made(provider.name, time.perf_counter() - began)
            self._live.add(sandbox.id)
            self._makers[sandbox.id] = provider
            return sandbox

    async def _make_with_user(self, provider: Provider, spec: SandboxSpec, environment: Environment) -> Sandbox:
        if not environment.user:
            return await self._make(provider, spec, environment)
        before = await provider.image_version(spec.image)
        sandbox = await self._make(provider, spec, environment)
        try:
            version = await provider.image_version(spec.image)
            image = (provider.name, spec.image, version) if version == before else ()
            await self._user_names.add(sandbox, environment.user, environment.home, image)
        except BaseException:
            await run_shielded(asyncio.wait([self._destruction(sandbox.id)]))
            raise
        return sandbox

    async def _make_ahead(self, provider: Provider, environment: Environment) -> Sandbox:
        """A sandbox for the pool, with the code contexts of its environment in it. It is destroyed if one of them
        cannot be started."""
        sandbox = await self._make_with_user(provider, _spec_of(environment), environment)
        try:
            for name in environment.contexts:
                language = find_language(name)
                # It has no idle time: it may wait here for longer than that.
                await start_keeper(
                    sandbox,
                    language,
                    language.default_context,
                    cwd=environment.home,
                    env=environment.user_env,
                    idle_s=0,
                    image=environment.image,
                )
        except BaseException:
            await run_shielded(asyncio.wait([self._destruction(sandbox.id)]))
            raise
        return sandbox

    def _pool(self, provider: Provider, environment: Environment) -> Pool:
        key = (provider.name, environment.name)
        pool = self._pools.get(key)
        if pool is not None and pool.environment != environment:
            self._retire(pool)
            pool = None
        if pool is None:
            pool = self._pools[key] = self._new_pool(provider, environment)
        return pool

    def _new_pool(self, provider: Provider, environment: Environment) -> Pool:
        is_default = self._is_default_pool(provider.name, environment)
        pool = Pool(
            environment,
            NO_POOL if environment.gpus else environment.pool or self._default_pool,
            provider=provider.name,
            create=partial(self._make_ahead, provider, environment),
            destroy=self._destruction,
            clock=self._clock,
            parallel=self._parallel,
            version=partial(provider.image_version, environment.image),
            pressure=self.guard.pressure,
            ceiling=partial(self._pool_ceiling, (provider.name, environment.name)),
            kept=is_default and environment.name == self._default_environment,
            recorder=self._recorder,
        )
        # In a context of its own: the request that claims first is not the one that all its sandboxes are made for.
        self._own(asyncio.create_task(pool.run(), context=contextvars.Context()))
        return pool

    def _pool_ceiling(self, key: tuple[str, str]) -> int:
        """What the guard allows all pools together, less what the others have."""
        others = sum(pool.held for name, pool in self._pools.items() if name != key)
        return self.guard.most_ahead(len(self._live)) - others

    async def _watch_pools(self) -> None:
        """Replaces the pools whose environments have changed, and tells the others when their images have."""
        while True:
            await self._clock.sleep(_LOOK_S)
            for key, pool in list(self._pools.items()):
                try:
                    if self._environments(pool.environment.name) != pool.environment:
                        self._replace_pool(key, pool)
                    else:
                        await pool.look_at_image()
                except Exception as exc:
                    _log.info("pool_not_looked_at", pool=pool.environment.name, error=exc)

    def _replace_pool(self, key: tuple[str, str], pool: Pool) -> None:
        """The default environment's is made anew at once, any other with its next claim."""
        self._retire(pool)
        del self._pools[key]
        environment = self._environments(pool.environment.name)
        if environment.name == self._default_environment and self._state is _State.OPEN:
            self._pool(self._provider_for(environment), environment)

    def _is_default_pool(self, provider: str, environment: Environment) -> bool:
        """Whether claims that name no provider get their sandboxes from it."""
        return provider == (environment.provider or next(iter(self._providers)))

    def _retire(self, pool: Pool) -> None:
        """Empties a pool whose environment was changed, so that nobody gets a sandbox of the old kind."""
        self._retired.add(pool)
        self._own(asyncio.ensure_future(pool.drain())).add_done_callback(lambda _: self._retired.discard(pool))

    # -- claimed sandboxes

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        if (sandbox := self._claimed.get(sandbox_id)) is not None:
            return sandbox
        if sandbox_id in self._lost:
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self._lost[sandbox_id]}")
        if sandbox_id not in self._claimed:
            raise _not_found(sandbox_id)
        try:
            return await self._adopt_once(sandbox_id)
        except _NOT_ADOPTABLE as exc:
            self._lose(sandbox_id, exc.message)
            raise

    async def _adopt_once(self, sandbox_id: str) -> Sandbox:
        """Connects once, however many callers wait for it."""
        task = self._adopting.get(sandbox_id)
        if task is None:
            task = self._adopting[sandbox_id] = self._own(asyncio.ensure_future(self._adopt(sandbox_id)))
            task.add_done_callback(lambda _: self._adopting.pop(sandbox_id, None))
        return await asyncio.shield(task)

    async def _adopt(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._maker(sandbox_id).adopt(sandbox_id)
        if sandbox_id not in self._claimed:
            await sandbox.close()
            raise _not_found(sandbox_id)
        self._hold(sandbox)
        return sandbox

    def _maker(self, sandbox_id: str) -> Provider:
        """For a sandbox that no provider lists, the default one, whose errors say so."""
        return self._makers.get(sandbox_id) or next(iter(self._providers.values()))

    def _lose(self, sandbox_id: str, why: str) -> None:
        if sandbox_id in self._claimed:
            del self._claimed[sandbox_id]
            self._live.discard(sandbox_id)
            self._lost[sandbox_id] = why
            self._losses.put_nowait(Loss(sandbox_id, why))

    async def losses(self) -> AsyncIterator[Loss]:
        while (loss := await self._losses.get()) is not None:
            yield loss

    # -- destroying

    async def destroy(self, sandbox_id: str) -> None:
        if not await self._is_mine(sandbox_id):
            return
        self._lost.pop(sandbox_id, None)
        await asyncio.shield(self._destruction(sandbox_id))

    async def _is_mine(self, sandbox_id: str) -> bool:
        if any(sandbox_id in some for some in (self._claimed, self._lost, self._destroying, self._undestroyed)):
            return True
        mine = await self._list(LABELS)
        if sandbox_id in mine:
            self._makers[sandbox_id] = mine[sandbox_id]
        return sandbox_id in mine

    async def _list(self, labels: dict[str, str]) -> dict[str, Provider]:
        """The sandboxes of all providers that have these labels, each with its provider."""
        listed = [(provider, await provider.list_ids(labels)) for provider in self._providers.values()]
        return {sandbox_id: provider for provider, sandbox_ids in listed for sandbox_id in sandbox_ids}

    def _destruction(self, sandbox_id: str) -> "asyncio.Task[None]":
        """The task that destroys it: one, however many callers wait for it."""
        self._claimed.pop(sandbox_id, None)
        self._live.discard(sandbox_id)
        task = self._destroying.get(sandbox_id)
        if task is None:
            task = self._destroying[sandbox_id] = self._own(asyncio.ensure_future(self._destroy(sandbox_id)))
            task.add_done_callback(lambda _: self._destroying.pop(sandbox_id, None))
        return task

    async def _destroy(self, sandbox_id: str) -> None:
        self._undestroyed.add(sandbox_id)
        try:
            async with self._destroy_slots:
                self._fault("before-destroy")
                began = time.perf_counter()
                await self._maker(sandbox_id).destroy(sandbox_id)
                self._recorder.sandbox_destroyed(time.perf_counter() - began)
                self._fault("destroyed")
        except Exception as exc:
            _log.warning("sandbox_not_destroyed", sandbox=sandbox_id, error=exc, retry_s=_RETRY_S)
            raise
        self._undestroyed.discard(sandbox_id)
        self._makers.pop(sandbox_id, None)
        for pool in self._pools.values():
            pool.note_room()

    async def _retry_destructions(self) -> None:
        while True:
            await self._clock.sleep(_RETRY_S)
            for sandbox_id in self._undestroyed - self._destroying.keys():
                self._destruction(sandbox_id)

    async def _look_for_leaks(self) -> None:
        """Destroys nothing: what this worker does not know, somebody should look at."""
        while True:
            await self._clock.sleep(_LEAK_LOOK_S)
            try:
                there = (await self._list(LABELS)).keys()
            except Exception as exc:
                _log.info("leaks_not_looked_for", error=exc)
                continue
            known = self._live | self._claimed.keys() | self._lost.keys() | self._undestroyed | self._destroying.keys()
            self._strangers = {sandbox_id: self._strangers.get(sandbox_id, 0) + 1 for sandbox_id in there - known}
            if leaked := [sandbox_id for sandbox_id, times in self._strangers.items() if times == _LEAK_LOOKS]:
                _log.warning("sandboxes_leaked", count=len(leaked), sandboxes=sorted(leaked)[:10])

    # -- before and after

    async def recover(self, known: Collection[str]) -> dict[str, str]:
        async with AsyncExitStack() as stack:
            # Holding every slot ensures that no sandbox is half-made now and mistaken for an orphan.
            for _ in range(self._parallel):
                await stack.enter_async_context(self._slots)
            mine = await self._list(LABELS)
        self._makers |= mine
        if unlabelled := set(known) - mine.keys():  # a sandbox that has lost its record has lost its labels
            listed = await self._list({})
            self._makers |= {sandbox_id: listed[sandbox_id] for sandbox_id in unlabelled & listed.keys()}
        plan = plan_recovery(known, mine, {*self._live, *self._destroying})
        for sandbox_id in plan.destroy:
            self._destruction(sandbox_id)
        self._own(asyncio.ensure_future(self._sweep()))
        return await self._adopt_all(plan.adopt)

    async def _adopt_all(self, sandbox_ids: Collection[str]) -> dict[str, str]:
        at_once, reasons = asyncio.Semaphore(_ADOPT_AT_ONCE), dict[str, str]()

        async def take_over(sandbox_id: str) -> None:
            async with at_once:
                try:
                    await self._adopt_once(sandbox_id)
                except _NOT_ADOPTABLE as exc:
                    reasons[sandbox_id] = exc.message
                except Exception as exc:
                    _log.warning("sandbox_not_reachable_yet", sandbox=sandbox_id, error=exc)

        self._claimed.update(dict.fromkeys(sandbox_ids))
        await asyncio.gather(*(take_over(sandbox_id) for sandbox_id in sandbox_ids))
        for sandbox_id, why in reasons.items():
            self._claimed.pop(sandbox_id, None)
            self._lost[sandbox_id] = why
        return reasons

    async def _sweep(self) -> None:
        for pause_s in _SWEEPS_S:
            await self._clock.sleep(pause_s)
            for provider in self._providers.values():
                try:
                    await provider.sweep()
                except Exception as exc:
                    _log.warning("sweep_failed", provider=provider.name, error=exc)

    def stats(self) -> WorkerStats:
        known, free = set[str](), set[str]()
        for provider in self._providers.values():
            for found, ids in zip((known, free), provider.list_gpus(), strict=True):
                found.update(ids)
        return WorkerStats(
            sandboxes=len(self._live),
            claimed=len(self._claimed),
            destroying=len(self._undestroyed | self._destroying.keys()),
            leaks=len(self._undestroyed - self._destroying.keys())
            + sum(times >= _LEAK_LOOKS for times in self._strangers.values()),
            pools={self._pool_name(pool): pool.stats() for pool in self._pools.values()},
            guard=self.guard.stats(len(self._live)),
            gpus=len(known),
            gpus_free=tuple(sorted(free)),
        )

    def _pool_name(self, pool: Pool) -> str:
        name = pool.environment.name
        return name if self._is_default_pool(pool.provider, pool.environment) else f"{name}@{pool.provider}"

    async def drain(self) -> None:
        if self._state is not _State.CLOSED:
            self._state = _State.DRAINING
        await asyncio.gather(*(pool.drain() for pool in (*self._pools.values(), *self._retired)))
        for sandbox_id in self._undestroyed - self._destroying.keys():
            self._destruction(sandbox_id)
        while self._destroying:
            await asyncio.wait(list(self._destroying.values()))

    async def close(self) -> None:
        await self.drain()
        self._state = _State.CLOSED
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._builds is not None:
            await self._builds.close()
        handles = [sandbox for sandbox in self._claimed.values() if sandbox is not None]
        self._claimed.clear()
        await asyncio.gather(*(sandbox.close() for sandbox in handles))
        self._losses.put_nowait(None)

    def _check_open(self) -> None:
        if self._state is _State.NEW:
            raise Unavailable(f"the worker {self._name} is not started", retry_after_s=1.0)
        if self._state is not _State.OPEN:
            raise Stopping(f"the worker {self._name} is {self._state} and takes no claims", retry_after_s=5.0)

    def _own(self, task: "asyncio.Task[T]") -> "asyncio.Task[T]":
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller gets the error; without one, nobody needs it


def _not_found(sandbox_id: str) -> SandboxNotFound:
    return SandboxNotFound(f"this worker has no sandbox {sandbox_id}")


def _spec_of(environment: Environment) -> SandboxSpec:
    return SandboxSpec(
        environment.image,
        environment.limits,
        environment.env,
        io=environment.io,
        labels=LABELS,
        writable_root=environment.writable_root,
        sudo=environment.sudo,
        gpus=environment.gpus,
    )
