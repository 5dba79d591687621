"""Sandboxes of one environment, made ahead.

`run` is the only place that begins to create and that gives up what is too much: it does what `plan_pool` says each
time something has changed. `claim` takes a sandbox that is ready, or waits in a queue; a new sandbox goes to whoever
waits first, or to the tenant whose turn it is (see turns.py). A sandbox is always in exactly one place: ready, with
the claim that looks whether it lives, in the hands of one waiter, or given to `destroy`. Each move from one place to
the next is made without awaiting in between.

Ready sandboxes are taken oldest first: so none stays for long, and one that has gone bad is found soon.
"""

import asyncio
import bisect
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from warren.clock import Clock
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claimed
from warren.model.environment import Environment, PoolSize
from warren.model.errors import MachineFull, NoCapacity, Stopping, WarrenError
from warren.worker.pool_plan import (
    LOOK_S,
    NO_FAILURES,
    Circumstances,
    Demand,
    PoolCounts,
    is_hopeless,
    plan_pool,
)
from warren.worker.turns import Turns

MOST_WAITING: Final = 1000
PING_S: Final = 1.0
_LATENCIES: Final = 1024
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PoolFigures:
    """What a pool counts from its start on. `discarded`: sandboxes that died before anybody had them."""

    claims: int = 0
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    creations: int = 0
    failures: int = 0
    discarded: int = 0
    latency_count: int = 0
    latency_sum_s: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def took(self, seconds: float) -> None:
        self.latency_count += 1
        self.latency_sum_s += seconds
        self.latencies.append(seconds)

    def as_dict(self) -> dict[str, Any]:
        names = ("claims", "hits", "misses", "timeouts", "creations", "failures", "discarded", "latency_count")
        ranked, served = sorted(self.latencies), self.hits + self.misses
        return {
            **{name: getattr(self, name) for name in names},
            "hit_rate": self.hits / served if served else None,
            "latency_sum_s": self.latency_sum_s,
            "latency_p50_s": _percentile(ranked, 50),
            "latency_p95_s": _percentile(ranked, 95),
        }


def _percentile(ranked: list[float], percent: int) -> float | None:
    return ranked[(len(ranked) - 1) * percent // 100] if ranked else None


@dataclass(slots=True, eq=False)
class _Member:
    sandbox: Sandbox
    lost: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    tenant: str
    ticket: int
    since: float
    deadline: float
    member: asyncio.Future[_Member]


class Pool:
    """`create` makes a sandbox of this environment; `destroy` sees to it, without waiting, that one goes.

    A claim that is cancelled, at whatever moment, neither loses a sandbox nor takes one from others: what it had
    in hand is unused and goes to the next who waits.
    """

    def __init__(
        self,
        environment: Environment,
        size: PoolSize,
        *,
        create: Callable[[], Awaitable[Sandbox]],
        destroy: Callable[[str], object],
        clock: Clock,
        parallel: int,
        pressure: Callable[[], bool] = lambda: False,
        kept: bool = False,
        ping_s: float = PING_S,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.environment, self.size = environment, size
        self.figures = PoolFigures()
        self._create, self._destroy, self._clock = create, destroy, clock
        self._parallel, self._pressure, self._kept = parallel, pressure, kept
        self._ping_s, self._most_waiting = ping_s, most_waiting
        self._demand = Demand(size.size, clock.now())
        self._failures = NO_FAILURES
        self._ready: dict[str, _Member] = {}
        self._waiters: list[_Waiter] = []
        self._turns = Turns(size.size, size.min)
        self._tickets = itertools.count(1)
        self._creating = 0
        self._creations: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._drained = False

    def __repr__(self) -> str:
        now = self.counts
        return f"<Pool {self.environment.name}: {now.ready} ready, {now.creating} creating, {now.waiting} waiting>"

    @property
    def counts(self) -> PoolCounts:
        waiting = sum(not waiter.member.done() for waiter in self._waiters)
        return PoolCounts(len(self._ready), self._creating, waiting)

    @property
    def target(self) -> int:
        return self._demand.target

    def stats(self) -> dict[str, Any]:
        now = self.counts
        state = {"ready": now.ready, "creating": now.creating, "waiting": now.waiting, "target": self.target}
        failure = str(self._failures.error) if self._failures.error else None
        return {**state, **self.figures.as_dict(), "last_failure": failure}

    # -- claiming

    async def claim(self, timeout_s: float, tenant: str = "") -> Claimed:
        """NoCapacity when none comes in time or too many wait already; what `create` raises, if waiting cannot help."""
        self._check_open()
        ticket, began, now = next(self._tickets), time.perf_counter(), self._clock.now()
        self.figures.claims += 1
        self._demand = self._demand.claimed(now)
        self._wake.set()
        self._turns.asked(tenant, now)
        member = await self._take_ready(tenant)
        pooled = member is not None
        if member is None:
            member = await self._queue(_Waiter(tenant, ticket, now, now + timeout_s, _future()))
        self._turns.took(tenant, self._clock.now())
        self.figures.hits += pooled
        self.figures.took(time.perf_counter() - began)
        return Claimed(member.sandbox, pooled)

    def give_back(self, sandbox: Sandbox) -> None:
        """One that was claimed and not used after all."""
        member = _Member(sandbox)
        sandbox.when_lost(partial(self._died, member))
        self._place(member)

    async def _take_ready(self, tenant: str) -> _Member | None:
        """The first that answers; those that do not are discarded."""
        while self._ready and self._turns.may_take(tenant, len(self._ready), self._waiters, self._clock.now()):
            member = self._ready.pop(next(iter(self._ready)))
            try:
                async with asyncio.timeout(self._ping_s):
                    await member.sandbox.ping()
                if not member.lost:
                    return member
                self._discard(member)
            except (WarrenError, TimeoutError, OSError):
                self._discard(member)
            except BaseException:
                self._place(member)
                raise
        return None

    async def _queue(self, waiter: _Waiter) -> _Member:
        self._check_open()
        if len(self._waiters) >= self._most_waiting:
            raise self._no_capacity(waiter, len(self._waiters) + 1)
        self.figures.misses += 1
        self._demand = self._demand.missed(self.size, self._clock.now())
        bisect.insort(self._waiters, waiter, key=lambda other: other.ticket)
        self._wake.set()
        try:
            return await waiter.member
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def _leave(self, waiter: _Waiter) -> None:
        with suppress(ValueError):
            self._waiters.remove(waiter)
        if waiter.member.done() and not waiter.member.cancelled() and waiter.member.exception() is None:
            self._place(waiter.member.result())
        self._wake.set()

    # -- moving sandboxes

    def _place(self, member: _Member) -> None:
        """To whoever waits and is next, else among those that are ready."""
        self._wake.set()
        if member.lost:
            self._discard(member)
            return
        self._waiters = [waiter for waiter in self._waiters if not waiter.member.done()]
        waiter = self._turns.next(self._waiters, len(self._ready), self._clock.now())
        if waiter is not None:
            self._waiters.remove(waiter)
            waiter.member.set_result(member)
            return
        if self._drained:
            self._destroy(member.sandbox.id)
        else:
            self._ready[member.sandbox.id] = member

    def _died(self, member: _Member, why: str) -> None:
        member.lost = True
        if self._ready.pop(member.sandbox.id, None) is not None:
            _log.warning("pool %s: sandbox %s died before use: %s", self.environment.name, member.sandbox.id, why)
            self._discard(member)

    def _discard(self, member: _Member) -> None:
        self.figures.discarded += 1
        self._destroy(member.sandbox.id)
        self._wake.set()

    # -- creating

    async def run(self) -> None:
        """Ends when the pool is drained."""
        while not self._drained:
            self._wake.clear()
            try:
                again_in_s = self._step()
            except Exception:
                # Callers depend on this loop for their time-outs: it outlives whatever a reading of the machine raises.
                _log.exception("pool %s: planning failed", self.environment.name)
                again_in_s = LOOK_S
            await self._change(again_in_s)

    def _step(self) -> float | None:
        now = self._clock.now()
        self._end_overdue(now)
        self._demand = self._demand.eased(self.size, now)
        parallel = 1 if self._turns.are_greedy(self._waiters, now) else self._parallel
        around = Circumstances(now, parallel, self._pressure(), self._kept)
        plan = plan_pool(self.size, self.counts, self._demand, self._failures, around)
        for _ in range(plan.create):
            self._begin()
        for name in list(itertools.islice(self._ready, plan.destroy)):
            del self._ready[name]
            self._destroy(name)
        moments = [waiter.deadline - now for waiter in self._waiters]
        return min([*moments, *([] if plan.again_in_s is None else [plan.again_in_s])], default=None)

    async def _change(self, within_s: float | None) -> None:
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._wake.wait())]
        if within_s is not None:
            waiting.append(asyncio.ensure_future(self._clock.sleep(within_s)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _begin(self) -> None:
        self._creating += 1
        task = asyncio.ensure_future(self._create_one())
        self._creations.add(task)
        task.add_done_callback(self._creations.discard)
        task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._creating -= 1
        self._wake.set()

    async def _create_one(self) -> None:
        try:
            sandbox = await self._create()
        except Exception as exc:
            self._failed(exc)
            return
        self.figures.creations += 1
        self._failures = NO_FAILURES
        self.give_back(sandbox)

    def _failed(self, error: Exception) -> None:
        self.figures.failures += 1
        before, self._failures = self._failures, self._failures.and_one(error, self._clock.now(), random.random())
        if self._failures.count > before.count:
            _log.warning("pool %s: a sandbox could not be made: %s", self.environment.name, error)
        if is_hopeless(error):
            self._fail_waiters(lambda: _copy(error))

    # -- ending

    def room_was_made(self) -> None:
        """A sandbox was destroyed: if there was no room, it may be worth trying again."""
        if isinstance(self._failures.error, MachineFull):
            self._failures = NO_FAILURES
            self._wake.set()

    async def drain(self) -> None:
        """Gives up all that is ready or being made; whoever waits hears Stopping."""
        self._drained = True
        self._wake.set()
        self._fail_waiters(_stopping)
        creations = list(self._creations)
        for task in creations:
            task.cancel()
        await asyncio.gather(*creations, return_exceptions=True)
        for name in list(self._ready):
            del self._ready[name]
            self._destroy(name)

    def _check_open(self) -> None:
        if self._drained:
            raise _stopping()

    def _end_overdue(self, now: float) -> None:
        for position, waiter in enumerate(list(self._waiters), 1):
            if waiter.deadline <= now and not waiter.member.done():
                self.figures.timeouts += 1
                self._waiters.remove(waiter)
                waiter.member.set_exception(self._no_capacity(waiter, position))

    def _fail_waiters(self, error: Callable[[], Exception]) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.member.done():
                waiter.member.set_exception(error())

    def _no_capacity(self, waiter: _Waiter, position: int) -> NoCapacity:
        failure = self._failures.error
        waited = max(0.0, self._clock.now() - waiter.since)
        after = f"; the last one could not be made: {failure}" if failure else ""
        kind = MachineFull if isinstance(failure, MachineFull) else NoCapacity
        return kind(
            f"no sandbox of {self.environment.name} became free in {waited:.1f} s, "
            f"place {position} of {max(position, len(self._waiters))} in the queue{after}",
            remedy="try again later, or raise the pool's size",
            retry_after_s=float(min(30, 1 + position // self._parallel)),
        )


def _future() -> asyncio.Future[_Member]:
    return asyncio.get_running_loop().create_future()


def _stopping() -> Stopping:
    return Stopping("this worker takes no more claims", remedy="try again: another worker or a new start will take it")


def _copy(error: Exception) -> Exception:
    """An exception of its own for each who gets it."""
    if isinstance(error, WarrenError):
        return type(error)(error.message, remedy=error.remedy, retry_after_s=error.retry_after_s)
    return error
