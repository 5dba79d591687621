"""Owns the sandboxes of one host: interfaces/worker.py over one provider.

Who does what: a pool per environment makes sandboxes ahead, in tasks of its own; claims with an image or limits of
their own are made on the spot. All creations share `parallel` slots, first come, first served, and ask the guard
before they begin. Every destruction is a task that is finished even if whoever asked for it has gone; one that fails
is tried again every few seconds, and a last time by `drain`. `close` ends all tasks.

Every sandbox made here carries a label. After a crash that is how a new worker finds what the old one left, under
whatever name, and how it leaves alone what others made in the same state directory. A lock sees to it that a state
directory has one worker at a time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from warren.clock import Clock
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claim, Claimed, Loss
from warren.model.environment import Environment, PoolSize
from warren.model.errors import (
    IsolationUnavailable,
    NoCapacity,
    ProtocolError,
    SandboxLost,
    SandboxNotFound,
    Stopping,
    Unavailable,
)
from warren.model.spec import SandboxSpec
from warren.shielding import run_shielded
from warren.worker.guard import MachineGuard, usable_cores
from warren.worker.orphans import plan_recovery
from warren.worker.pool import Pool

LABELS: Final = {"owner": "worker"}
STEPS: Final = ("claimed-from-pool", "cold-created", "before-destroy", "destroyed")
_ADOPT_AT_ONCE, _DESTROY_AT_ONCE = 16, 8
_RETRY_S: Final = 5.0
_SWEEPS_S: Final = (0.0, 65.0)  # again, when a directory without a record is old enough to be judged
_CANNOT_BE_HAD: Final = (SandboxLost, SandboxNotFound, ProtocolError, IsolationUnavailable)
_log = logging.getLogger(__name__)
T = TypeVar("T")


class _State(StrEnum):
    NEW = "not started"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class LocalWorker:
    """`start` comes before the first claim. The provider stays the caller's, to be closed after the worker.

    `environments` finds an environment by name and raises UnknownEnvironment. `fault` is called with the name of
    each of STEPS, for tests of what remains.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        environments: Callable[[str], Environment],
        *,
        clock: Clock,
        guard: MachineGuard,
        default_environment: str,
        default_pool: PoolSize | None = None,
        parallel: int | None = None,
        fault: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._name, self._provider, self._environments = name, provider, environments
        self._clock, self.guard, self._fault = clock, guard, fault
        self._default_environment, self._default_pool = default_environment, default_pool or PoolSize()
        self._parallel = parallel or min(32, 2 * usable_cores())  # half of the time a runtime waits for the kernel
        self._slots = asyncio.Semaphore(self._parallel)
        self._destroy_slots = asyncio.Semaphore(_DESTROY_AT_ONCE)
        self._creating = 0
        self._live: set[str] = set()
        self._claimed: dict[str, Sandbox | None] = {}  # None: known, and not connected to
        self._lost: dict[str, str] = {}
        self._losses: asyncio.Queue[Loss | None] = asyncio.Queue()
        self._adopting: dict[str, asyncio.Task[Sandbox]] = {}
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self._undestroyed: set[str] = set()  # it was tried, and failed
        self._pools: dict[str, Pool] = {}
        self._retired: set[Pool] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._state = _State.NEW

    def __repr__(self) -> str:
        return f"<LocalWorker {self._name} {self._state}: {len(self._claimed)} claimed, {len(self._live)} live>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def provider(self) -> str:
        return self._provider.name

    async def start(self) -> None:
        """Begins to fill the default environment's pool; raises UnknownEnvironment."""
        environment = self._environments(self._default_environment)
        if self._state is _State.NEW:
            self._state = _State.OPEN
            self._pool(environment)
            self._own(asyncio.ensure_future(self._destroy_again()))

    # -- claiming

    async def claim(self, claim: Claim) -> Claimed:
        self._check_open()
        environment = self._environments(claim.environment)
        if claim.image or claim.limits is not None:
            return await self._claim_cold(claim, environment)
        pool = self._pool(environment)
        try:
            claimed = await pool.claim(claim.timeout_s, claim.tenant)
        except Stopping:
            self._check_open()
            return await self.claim(claim)  # only this pool has stopped: its environment was changed
        if not all(layer in claimed.sandbox.isolation for layer in claim.require):
            pool.give_back(claimed.sandbox)
            return await self._claim_cold(claim, environment)
        return await self._hand_out(claimed, "claimed-from-pool")

    async def _claim_cold(self, claim: Claim, environment: Environment) -> Claimed:
        spec = self._spec(environment)
        limits = claim.limits or spec.limits
        spec = replace(spec, image=claim.image or spec.image, limits=limits, require=claim.require)
        sandbox = await self._made_in_time(spec, claim.timeout_s)
        return await self._hand_out(Claimed(sandbox, pooled=False), "cold-created")

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

    def _hold(self, sandbox: Sandbox) -> None:
        self._live.add(sandbox.id)
        self._claimed[sandbox.id] = sandbox
        sandbox.when_lost(partial(self._lose, sandbox.id))

    async def _made_in_time(self, spec: SandboxSpec, timeout_s: float) -> Sandbox:
        making = asyncio.ensure_future(self._make(spec))
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

    async def _make(self, spec: SandboxSpec) -> Sandbox:
        async with self._slots:
            self.guard.check(len(self._live), self._creating)
            self._creating += 1
            try:
                sandbox = await self._provider.create(spec)
            finally:
                self._creating -= 1
            self._live.add(sandbox.id)
            return sandbox

    def _spec(self, environment: Environment) -> SandboxSpec:
        return SandboxSpec(environment.image, environment.limits, environment.env, labels=LABELS)

    def _pool(self, environment: Environment) -> Pool:
        pool = self._pools.get(environment.name)
        if pool is not None and pool.environment != environment:
            self._retire(pool)
            pool = None
        if pool is None:
            pool = self._pools[environment.name] = self._new_pool(environment)
        return pool

    def _new_pool(self, environment: Environment) -> Pool:
        pool = Pool(
            environment,
            environment.pool or self._default_pool,
            create=partial(self._make, self._spec(environment)),
            destroy=self._destruction,
            clock=self._clock,
            parallel=self._parallel,
            pressure=self.guard.pressure,
            kept=environment.name == self._default_environment,
        )
        self._own(asyncio.ensure_future(pool.run()))
        return pool

    def _retire(self, pool: Pool) -> None:
        """Its environment was changed: nobody shall get a sandbox of the old kind."""
        self._retired.add(pool)
        self._own(asyncio.ensure_future(pool.drain())).add_done_callback(lambda _: self._retired.discard(pool))

    # -- what was claimed

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        if (found := self._claimed.get(sandbox_id)) is not None:
            return found
        if sandbox_id in self._lost:
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self._lost[sandbox_id]}")
        if sandbox_id not in self._claimed:
            raise _not_found(sandbox_id)
        try:
            return await self._adopted(sandbox_id)
        except _CANNOT_BE_HAD as exc:
            self._lose(sandbox_id, exc.message)
            raise

    async def _adopted(self, sandbox_id: str) -> Sandbox:
        """Connects once, however many ask at the same time."""
        task = self._adopting.get(sandbox_id)
        if task is None:
            task = self._adopting[sandbox_id] = self._own(asyncio.ensure_future(self._adopt(sandbox_id)))
            task.add_done_callback(lambda _: self._adopting.pop(sandbox_id, None))
        return await asyncio.shield(task)

    async def _adopt(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._provider.adopt(sandbox_id)
        if sandbox_id not in self._claimed:
            await sandbox.close()
            raise _not_found(sandbox_id)
        self._hold(sandbox)
        return sandbox

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
        return sandbox_id in await self._provider.list_ids(LABELS)

    def _destruction(self, sandbox_id: str) -> "asyncio.Task[None]":
        """The task that destroys it: one, however many ask."""
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
                await self._provider.destroy(sandbox_id)
                self._fault("destroyed")
        except Exception as exc:
            _log.warning("sandbox %s could not be destroyed: %s", sandbox_id, exc)
            raise
        self._undestroyed.discard(sandbox_id)
        for pool in self._pools.values():
            pool.room_was_made()

    async def _destroy_again(self) -> None:
        while True:
            await self._clock.sleep(_RETRY_S)
            for sandbox_id in self._undestroyed - self._destroying.keys():
                self._destruction(sandbox_id)

    # -- before and after

    async def recover(self, known: Collection[str]) -> dict[str, str]:
        async with AsyncExitStack() as stack:
            # With all slots taken nothing is half made, and taken for an orphan.
            for _ in range(self._parallel):
                await stack.enter_async_context(self._slots)
            mine = await self._provider.list_ids(LABELS)
        plan = plan_recovery(known, mine, {*self._live, *self._destroying})
        for sandbox_id in plan.destroy:
            self._destruction(sandbox_id)
        self._own(asyncio.ensure_future(self._sweep()))
        return await self._adopt_all(plan.adopt)

    async def _adopt_all(self, sandbox_ids: Collection[str]) -> dict[str, str]:
        at_once, gone = asyncio.Semaphore(_ADOPT_AT_ONCE), dict[str, str]()

        async def take_over(sandbox_id: str) -> None:
            async with at_once:
                try:
                    await self._adopted(sandbox_id)
                except _CANNOT_BE_HAD as exc:
                    gone[sandbox_id] = exc.message
                except Exception as exc:
                    _log.warning("sandbox %s cannot be reached yet: %s", sandbox_id, exc)

        self._claimed.update(dict.fromkeys(sandbox_ids))
        await asyncio.gather(*(take_over(sandbox_id) for sandbox_id in sandbox_ids))
        for sandbox_id, why in gone.items():
            self._claimed.pop(sandbox_id, None)
            self._lost[sandbox_id] = why
        return gone

    async def _sweep(self) -> None:
        for pause_s in _SWEEPS_S:
            await self._clock.sleep(pause_s)
            try:
                await self._provider.sweep()
            except Exception as exc:
                _log.warning("what others left could not be cleared away: %s", exc)

    def stats(self) -> dict[str, Any]:
        return {
            "sandboxes": len(self._live),
            "claimed": len(self._claimed),
            "destroying": len(self._undestroyed | self._destroying.keys()),
            "pools": {name: pool.stats() for name, pool in self._pools.items()},
            "guard": self.guard.stats(),
        }

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
            task.exception()  # whoever waits for it has it; nobody else is to hear of it


def _not_found(sandbox_id: str) -> SandboxNotFound:
    return SandboxNotFound(f"this worker has no sandbox {sandbox_id}")
