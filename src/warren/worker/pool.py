"""Sandboxes of one provider and environment, made ahead.

Only `run` starts creations and gives up surplus sandboxes: it does what `plan_pool` says each time something has
changed. `claim` takes a ready sandbox or waits in a queue; a new sandbox goes to the first waiter of the tenant whose
turn it is (see turns.py). A sandbox is always in exactly one place: ready, with the claim that pings it, in the hands
of one waiter, or given to `destroy`. No move from one place to the next awaits anything.

Ready sandboxes are taken oldest first, so none stays for long and a bad one is found soon. When the image has a new
version, those of the old one (`_stale`) are replaced one by one; until then claims get them if no new one is ready.
"""

import asyncio
import bisect
import itertools
import math
import random
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claimed, PoolStats
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.environment import Environment, PoolSize
from warren.model.errors import MachineFull, NoCapacity, NotFound, Stopping, Unavailable, WarrenError
from warren.worker.pool_plan import (
    LOOK_S,
    NO_FAILURES,
    Circumstances,
    Demand,
    PoolCounts,
    is_hopeless,
    plan_pool,
)
from warren.worker.turns import TenantTurns

MOST_WAITING: Final = 1000
PING_S: Final = 1.0
_LATENCIES: Final = 1024
_LASTING: Final = 3  # failures one after the other, with pauses between them
_log = get_log(__name__)


@dataclass(slots=True)
class PoolCounters:
    """What a pool counts from its start on."""

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

    def add_latency(self, seconds: float) -> None:
        self.latency_count += 1
        self.latency_sum_s += seconds
        self.latencies.append(seconds)


def _percentile(ranked: list[float], percent: int) -> float | None:
    return ranked[(len(ranked) - 1) * percent // 100] if ranked else None


@dataclass(slots=True, eq=False)
class _Member:
    sandbox: Sandbox
    version: str
    lost: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    tenant: str
    ticket: int
    since: float
    deadline: float
    member: asyncio.Future[_Member]


class Pool:
    """`create` makes a sandbox of this environment; `destroy` starts the destruction of one without waiting for it.
    `version` tells the version of the image that `create` uses.

    A claim that is cancelled, at whatever moment, neither loses a sandbox nor takes one from others: a sandbox that it
    already has is unused and goes to the next waiter.
    """

    def __init__(
        self,
        environment: Environment,
        size: PoolSize,
        *,
        provider: str = "",
        create: Callable[[], Awaitable[Sandbox]],
        destroy: Callable[[str], object],
        clock: Clock,
        parallel: int,
        version: Callable[[], Awaitable[str]],
        pressure: Callable[[], bool] = lambda: False,
        ceiling: Callable[[], float] = lambda: math.inf,
        kept: bool = False,
        ping_s: float = PING_S,
        most_waiting: int = MOST_WAITING,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self.environment, self.size, self.provider = environment, size, provider
        self.counters = PoolCounters()
        self._recorder = recorder
        self._create, self._destroy, self._clock = create, destroy, clock
        self._find_version = version
        self._parallel, self._pressure, self._ceiling, self._kept = parallel, pressure, ceiling, kept
        self._ping_s, self._most_waiting = ping_s, most_waiting
        self._demand = Demand(clock.now())
        self._failures = NO_FAILURES
        self._version: str | None = None  # the image's, as last found; None: not known yet
        self._ready: dict[str, _Member] = {}
        self._stale: dict[str, _Member] = {}  # ready, but of another version of the image
        self._versions: weakref.WeakKeyDictionary[Sandbox, str] = weakref.WeakKeyDictionary()
        self._waiters: list[_Waiter] = []
        self._turns = TenantTurns(size.size, size.min)
        self._tickets = itertools.count(1)
        self._creating = 0
        self._creations: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._drained = False

    def __repr__(self) -> str:
        now = self.counts
        ready = now.ready + now.stale
        return f"<Pool {self.environment.name}: {ready} ready, {now.creating} creating, {now.waiting} waiting>"

    @property
    def counts(self) -> PoolCounts:
        waiting = sum(not waiter.member.done() for waiter in self._waiters)
        return PoolCounts(len(self._ready), self._creating, waiting, len(self._stale))

    @property
    def held(self) -> int:
        """How many sandboxes it has or is making that no caller waits for."""
        return len(self._ready) + len(self._stale) + self._creating

    @property
    def target(self) -> int:
        return self._demand.target(self.size, self._clock.now())

    @property
    def lasting_failure(self) -> Exception | None:
        """Why one attempt after the other to make a sandbox fails, if none is ready and room is not what is missing."""
        lasts = self._failures.count >= _LASTING and self.target > 0 and not self._ready
        return self._failures.error if lasts and not isinstance(self._failures.error, MachineFull) else None

    def stats(self) -> PoolStats:
        now, counters, moment = self.counts, self.counters, self._clock.now()
        ranked, served = sorted(counters.latencies), counters.hits + counters.misses
        return PoolStats(
            ready=now.ready + now.stale,
            creating=now.creating,
            waiting=now.waiting,
            target=self.target,
            learned_burst=round(self._demand.burst_by(moment)),
            claim_rate=round(self._demand.rate_at(moment), 3),
            claims=counters.claims,
            hits=counters.hits,
            misses=counters.misses,
            timeouts=counters.timeouts,
            creations=counters.creations,
            failures=counters.failures,
            discarded=counters.discarded,
            latency_count=counters.latency_count,
            hit_rate=counters.hits / served if served else None,
            latency_sum_s=counters.latency_sum_s,
            latency_p50_s=_percentile(ranked, 50),
            latency_p95_s=_percentile(ranked, 95),
            last_failure=str(self._failures.error) if self._failures.error else None,
        )

    # -- claiming

    async def claim(self, timeout_s: float, tenant: str = "") -> Claimed:
        """Raises NoCapacity when none comes in time or too many wait already, and what `create` raises if waiting
        cannot help."""
        self._check_open()
        ticket, began, now = next(self._tickets), time.perf_counter(), self._clock.now()
        self.counters.claims += 1
        self._demand = self._demand.claimed(now)
        self._wake.set()
        self._turns.note_request(tenant, now)
        try:
            member = await self._take_ready(tenant)
            pooled = member is not None
            if member is None:
                member = await self._queue(_Waiter(tenant, ticket, now, now + timeout_s, _future()))
        except BaseException:
            self._demand = self._demand.replaced()
            raise
        self._turns.note_taken(tenant, self._clock.now())
        if pooled:
            self.counters.hits += 1
            self._recorder.pool_hit(self.environment.name)
        self.counters.add_latency(time.perf_counter() - began)
        return Claimed(member.sandbox, pooled, self.provider)

    def give_back(self, sandbox: Sandbox) -> None:
        """Takes back a sandbox that was claimed and not used."""
        self._demand = self._demand.replaced()
        self._keep(_Member(sandbox, self._versions.get(sandbox, "")))

    def _keep(self, member: _Member) -> None:
        self._versions[member.sandbox] = member.version
        member.sandbox.when_lost(partial(self._note_death, member))
        self._place(member)

    async def _take_ready(self, tenant: str) -> _Member | None:
        """Returns the first one that answers a ping and discards those that do not."""
        while (ready := len(self._ready) + len(self._stale)) and self._turns.may_take(
            tenant, ready, self._waiters, self._clock.now()
        ):
            members = self._ready or self._stale
            member = members.pop(next(iter(members)))
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
        self.counters.misses += 1
        self._recorder.pool_missed(self.environment.name)
        queued = time.perf_counter()
        bisect.insort(self._waiters, waiter, key=lambda other: other.ticket)
        self._wake.set()
        try:
            return await waiter.member
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        finally:
            self._recorder.queue_left(time.perf_counter() - queued)

    def _leave(self, waiter: _Waiter) -> None:
        with suppress(ValueError):
            self._waiters.remove(waiter)
        if waiter.member.done() and not waiter.member.cancelled() and waiter.member.exception() is None:
            self._place(waiter.member.result())
        self._wake.set()

    # -- moving sandboxes

    def _place(self, member: _Member) -> None:
        """Gives the sandbox to the next waiter, or keeps it ready."""
        self._wake.set()
        if member.lost:
            self._discard(member)
            return
        self._waiters = [waiter for waiter in self._waiters if not waiter.member.done()]
        waiter = self._turns.choose(self._waiters, len(self._ready) + len(self._stale), self._clock.now())
        if waiter is not None:
            self._waiters.remove(waiter)
            waiter.member.set_result(member)
            return
        if self._drained:
            self._destroy(member.sandbox.id)
        else:
            members = self._ready if member.version == self._version else self._stale
            members[member.sandbox.id] = member

    def _note_death(self, member: _Member, why: str) -> None:
        member.lost = True
        if self._ready.pop(member.sandbox.id, None) or self._stale.pop(member.sandbox.id, None):
            _log.warning("pooled_sandbox_died", pool=self.environment.name, sandbox=member.sandbox.id, error=why)
            self._discard(member)

    def _discard(self, member: _Member) -> None:
        self.counters.discarded += 1
        self._destroy(member.sandbox.id)
        self._wake.set()

    # -- creating

    async def run(self) -> None:
        """Ends when the pool is drained."""
        while not self._drained:
            self._wake.clear()
            try:
                again_in_s = self._step()
            except Exception as exc:
                # Callers depend on this loop for their time-outs: it must survive an error in reading the machine.
                _log.error("pool_planning_failed", pool=self.environment.name, exc=exc)
                again_in_s = LOOK_S
            await self._wait_for_change(again_in_s)

    def _step(self) -> float | None:
        now = self._clock.now()
        self._fail_overdue(now)
        parallel = 1 if self._turns.all_greedy(self._waiters, now) else self._parallel
        around = Circumstances(now, parallel, self._pressure(), self._kept, self._ceiling())
        plan = plan_pool(self.size, self.counts, self._demand, self._failures, around)
        for _ in range(plan.create):
            self._start_creation()
        self._give_up(self._ready, plan.destroy)
        self._give_up(self._stale, plan.destroy_stale)
        moments = [waiter.deadline - now for waiter in self._waiters]
        return min([*moments, *([] if plan.again_in_s is None else [plan.again_in_s])], default=None)

    def _give_up(self, members: dict[str, _Member], count: int) -> None:
        """Destroys the oldest ones."""
        for name in list(itertools.islice(members, count)):
            del members[name]
            self._destroy(name)

    async def _wait_for_change(self, within_s: float | None) -> None:
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._wake.wait())]
        if within_s is not None:
            waiting.append(asyncio.ensure_future(self._clock.sleep(within_s)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _start_creation(self) -> None:
        self._creating += 1
        task = asyncio.ensure_future(self._create_one())
        self._creations.add(task)
        task.add_done_callback(self._creations.discard)
        task.add_done_callback(self._end_creation)

    def _end_creation(self, _: asyncio.Task[None]) -> None:
        self._creating -= 1
        self._wake.set()

    async def _create_one(self) -> None:
        try:
            version = await self._find_version()
            self.note_version(version)
            sandbox = await self._create()
        except Exception as exc:
            self._note_failure(exc)
            return
        self.counters.creations += 1
        self._demand = self._demand.replaced()
        self._failures = NO_FAILURES
        self._keep(_Member(sandbox, version))

    async def look_at_image(self) -> None:
        """Finds out whether the image has changed. A version that cannot be told now counts as unchanged."""
        if self._ready or self._stale:
            with suppress(Unavailable, OSError):
                try:
                    self.note_version(await self._find_version())
                except NotFound:
                    self.note_version("")
                    self._give_up(self._stale, len(self._stale))

    def note_version(self, version: str) -> None:
        if version == self._version:
            return
        if self._version is not None:
            _log.info("image_changed", pool=self.environment.name, image=self.environment.image, version=version)
        self._version = version
        self._stale.update(self._ready)
        self._ready.clear()
        self._wake.set()

    def _note_failure(self, error: Exception) -> None:
        self.counters.failures += 1
        before, self._failures = self._failures, self._failures.with_one_more(error, self._clock.now(), random.random())
        count, is_new = self._failures.count, str(error) != str(before.error)
        if count > before.count and (is_new or count.bit_count() == 1):  # the 2nd, 4th, 8th … time of the same
            _log.warning(
                "sandbox_not_created",
                pool=self.environment.name,
                provider=self.provider,
                failures=count,
                error=error.message if isinstance(error, WarrenError) else error,
                remedy=getattr(error, "remedy", "") or None,
            )
        if is_hopeless(error):
            self._fail_waiters(lambda: _copy_of(error))

    # -- ending

    def note_room(self) -> None:
        """A sandbox was destroyed: if the machine was full, creating one may work now."""
        if isinstance(self._failures.error, MachineFull):
            self._failures = NO_FAILURES
            self._wake.set()

    async def drain(self) -> None:
        """Destroys what is ready, cancels what is being made, and fails the waiters with Stopping."""
        self._drained = True
        self._wake.set()
        self._fail_waiters(_stopping)
        creations = list(self._creations)
        for task in creations:
            task.cancel()
        await asyncio.gather(*creations, return_exceptions=True)
        self._give_up(self._ready, len(self._ready))
        self._give_up(self._stale, len(self._stale))

    def _check_open(self) -> None:
        if self._drained:
            raise _stopping()

    def _fail_overdue(self, now: float) -> None:
        for position, waiter in enumerate(list(self._waiters), 1):
            if waiter.deadline <= now and not waiter.member.done():
                self.counters.timeouts += 1
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


def _copy_of(error: Exception) -> Exception:
    """Every waiter gets an exception object of its own."""
    if isinstance(error, WarrenError):
        return type(error)(error.message, remedy=error.remedy, retry_after_s=error.retry_after_s)
    return error
