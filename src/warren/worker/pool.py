"""Sandboxes of one provider and environment, made ahead.

Only `run` starts creations and gives up surplus sandboxes: it does what `plan_pool` says each time something has
changed. `claim` takes a ready sandbox or waits in a queue; a new sandbox goes to the first waiter of the tenant whose
turn it is (see turns.py). A sandbox is always in exactly one place: ready, with the claim that pings it, in the hands
of one waiter, or given to `destroy`. No move from one place to the next awaits anything.

Ready sandboxes are taken oldest first, so none stays for long and a bad one is found soon. When the image has a new
version, those of the old one (`stale`) are replaced one by one; until then claims get them if no new one is ready.
"""

import asyncio
import itertools
import time
import weakref
from collections import deque
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
from warren.model.errors import MachineFull, NotFound, Stopping, Unavailable, WarrenError
from warren.worker.pool_creations import LASTING, PoolCreations, PoolSource
from warren.worker.pool_plan import LOOK_S, Circumstances, Demand, PoolCounts, levels, plan_pool
from warren.worker.pool_shortage import Shortage, ShortageLog, find_shortage
from warren.worker.pool_stock import PoolMember, PoolStock, Waiter, WaitQueue, no_capacity
from warren.worker.turns import TenantTurns

MAX_WAITING: Final = 1000
PING_S: Final = 1.0
_LATENCIES: Final = 1024
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class PoolRules:
    """`kept`: the pool stays filled even if nobody claims. `ping_s`: how long a ready sandbox may take to answer.
    `max_waiting`: how many claims may wait."""

    kept: bool = False
    ping_s: float = PING_S
    max_waiting: int = MAX_WAITING


@dataclass(slots=True)
class PoolCounters:
    """What a pool counts from its start on."""

    claims: int = 0
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
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


class Pool:
    """A claim that is cancelled, at whatever moment, neither loses a sandbox nor takes one from others: a sandbox that
    it already has is unused and goes to the next waiter.
    """

    def __init__(
        self,
        environment: Environment,
        size: PoolSize,
        source: PoolSource,
        clock: Clock,
        rules: PoolRules,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self.environment, self.size, self.provider = environment, size, source.provider
        self.counters = PoolCounters()
        self._recorder = recorder
        self._source, self._clock, self._rules = source, clock, rules
        self._demand = Demand(clock.now())
        self._wake = asyncio.Event()
        self._stock = PoolStock(environment, source.destroy, self._wake)
        self._queue = WaitQueue()
        self.creations = PoolCreations(source, clock, self._stock, self._queue, self._wake, self._keep)
        self._versions: weakref.WeakKeyDictionary[Sandbox, str] = weakref.WeakKeyDictionary()
        self._turns = TenantTurns(size.size, size.min)
        self._tickets = itertools.count(1)
        self._shortage: Shortage | None = None
        self._target = 0
        self._shortage_log = ShortageLog(environment.name, source.provider)
        self._drained = False

    def __repr__(self) -> str:
        now = self.counts
        ready = now.ready + now.stale
        return f"<Pool {self.environment.name}: {ready} ready, {now.creating} creating, {now.waiting} waiting>"

    @property
    def counts(self) -> PoolCounts:
        waiting = sum(not waiter.member.done() for waiter in self._queue.waiters)
        return PoolCounts(len(self._stock.ready), self.creations.running, waiting, len(self._stock.stale))

    @property
    def held(self) -> int:
        """Returns how many sandboxes it has and is making."""
        return len(self._stock) + self.creations.running

    @property
    def target(self) -> int:
        """Returns how many should be ready: none while nobody claims, `min` while the machine is nearly full. While the
        machine cannot be read it is what it was before."""
        with suppress(Exception):  # `run` logs and reports it
            now, source = self._clock.now(), self._source
            around = Circumstances(now, source.parallel, source.pressure(), self._rules.kept)
            self._target = levels(self.size, self._demand, around)[1]
        return self._target

    @property
    def lasting_failure(self) -> Exception | None:
        """Returns the last error if creations fail one after the other and no sandbox is ready; None otherwise, and
        while the machine is merely full."""
        failures = self.creations.failures
        lasts = failures.count >= LASTING and self.target > 0 and not self._stock.ready
        return failures.error if lasts and not isinstance(failures.error, MachineFull) else None

    def stats(self) -> PoolStats:
        now, counters, moment = self.counts, self.counters, self._clock.now()
        ranked, served = sorted(counters.latencies), counters.hits + counters.misses
        failure = self.creations.failures.error
        return PoolStats(
            ready=now.ready + now.stale,
            creating=now.creating,
            waiting=now.waiting,
            target=self.target,
            size=self.size.size,
            shortage=self._shortage,
            learned_burst=round(self._demand.burst_by(moment)),
            claim_rate=round(self._demand.rate_at(moment), 3),
            claims=counters.claims,
            hits=counters.hits,
            misses=counters.misses,
            timeouts=counters.timeouts,
            creations=self.creations.succeeded,
            failures=self.creations.failed,
            discarded=counters.discarded,
            latency_count=counters.latency_count,
            hit_rate=counters.hits / served if served else None,
            latency_sum_s=counters.latency_sum_s,
            latency_p50_s=_percentile(ranked, 50),
            latency_p95_s=_percentile(ranked, 95),
            last_failure=str(failure) if failure else None,
        )

    # -- claiming

    async def claim(self, timeout_s: float, tenant: str = "") -> Claimed:
        """Takes a ready sandbox, or waits for one. Raises NoCapacity if none comes in time or too many claims wait
        already, and what `create` raises if waiting cannot help."""
        if self._drained:
            raise _stopping()
        ticket, began, now = next(self._tickets), time.perf_counter(), self._clock.now()
        self.counters.claims += 1
        self._demand = self._demand.claimed(now)
        self._wake.set()
        self._turns.note_request(tenant, now)
        try:
            member = await self._take_ready(tenant)
            pooled = member is not None
            if member is None:
                future: asyncio.Future[PoolMember] = asyncio.get_running_loop().create_future()
                member = await self._wait_in_queue(Waiter(tenant, ticket, now, now + timeout_s, future))
        except BaseException:
            self._demand = self._demand.replaced()  # this claim took nothing that must be replaced
            raise
        self._turns.note_taken(tenant, self._clock.now())
        if pooled:
            self.counters.hits += 1
            self._recorder.pool_hit(self.environment.name)
        self.counters.add_latency(time.perf_counter() - began)
        return Claimed(member.sandbox, pooled, self.provider)

    def give_back(self, sandbox: Sandbox) -> None:
        """Takes back a sandbox that was claimed and not used."""
        self._keep(PoolMember(sandbox, self._versions.get(sandbox, "")))

    def _keep(self, member: PoolMember) -> None:
        """Takes a sandbox that is new or unused."""
        self._demand = self._demand.replaced()
        self._versions[member.sandbox] = member.version
        member.sandbox.when_lost(partial(self._note_death, member))
        self._place(member)

    async def _take_ready(self, tenant: str) -> PoolMember | None:
        """Returns the first one that answers a ping and discards those that do not."""
        stock = self._stock
        while (ready := len(stock.ready) + len(stock.stale)) and self._turns.may_take(
            tenant, ready, self._queue.waiters, self._clock.now()
        ):
            member = stock.take()
            try:
                async with asyncio.timeout(self._rules.ping_s):
                    await member.sandbox.ping()
                if not member.lost:
                    return member
                self._discard(member)
            except (WarrenError, TimeoutError, OSError):
                self._discard(member)
            except BaseException:
                self._place(member)  # cancelled during the ping: the sandbox is unused
                raise
        return None

    async def _wait_in_queue(self, waiter: Waiter) -> PoolMember:
        if self._drained:
            raise _stopping()
        waiting = len(self._queue.waiters)
        if waiting >= self._rules.max_waiting:
            raise self._no_capacity(waiter, waiting + 1)
        self.counters.misses += 1
        self._recorder.pool_missed(self.environment.name)
        queued = time.perf_counter()
        self._queue.join(waiter)
        self._wake.set()
        try:
            return await waiter.member
        except asyncio.CancelledError:
            # A sandbox may have been handed over in the moment of the cancellation.
            if (member := self._queue.leave(waiter)) is not None:
                self._place(member)
            self._wake.set()
            raise
        finally:
            self._recorder.queue_left(time.perf_counter() - queued)

    def _no_capacity(self, waiter: Waiter, position: int) -> Exception:
        waited_s, waiting = self._clock.now() - waiter.since, len(self._queue.waiters)
        failure, parallel = self.creations.failures.error, self._source.parallel
        return no_capacity(self.environment.name, waited_s, position, waiting, failure, parallel)

    # -- moving sandboxes

    def _place(self, member: PoolMember) -> None:
        """Gives the sandbox to the next waiter, or keeps it ready."""
        self._wake.set()
        if member.lost:
            self._discard(member)
            return
        waiter = self._turns.choose(self._queue.waiting(), len(self._stock), self._clock.now())
        if waiter is not None:
            self._queue.serve(waiter, member)
        elif self._drained:
            self._source.destroy(member.sandbox.id)
        else:
            self._stock.add(member)

    def _note_death(self, member: PoolMember, why: str) -> None:
        member.lost = True
        if self._stock.remove(member.sandbox.id):
            _log.warning("pooled_sandbox_died", pool=self.environment.name, sandbox=member.sandbox.id, error=why)
            self._discard(member)

    def _discard(self, member: PoolMember) -> None:
        self.counters.discarded += 1
        self._source.destroy(member.sandbox.id)
        self._wake.set()

    # -- filling and emptying

    async def run(self) -> None:
        """Makes and gives up sandboxes until the pool is drained."""
        while not self._drained:
            self._wake.clear()  # before the step, so that what changes during it leads to another one
            try:
                again_in_s = self._step()
            except Exception as exc:
                # Callers depend on this loop for their time-outs: it must survive an error in reading the machine.
                if self._shortage is not Shortage.PLANNING_FAILED:
                    _log.error("pool_planning_failed", pool=self.environment.name, exc=exc)
                self._note_shortage(Shortage.PLANNING_FAILED, exc)
                again_in_s = LOOK_S
            await _wait_for(self._wake, self._clock, again_in_s)

    def _step(self) -> float | None:
        now, source, queue = self._clock.now(), self._source, self._queue
        self.counters.timeouts += queue.fail_overdue(now, self._no_capacity)
        parallel = 1 if self._turns.all_greedy(queue.waiters, now) else source.parallel
        around = Circumstances(now, parallel, source.pressure(), self._rules.kept, source.ceiling())
        plan = plan_pool(self.size, self.counts, self._demand, self.creations.failures, around)
        self.creations.start(plan.create, self.environment.name)
        self._stock.give_up(plan.destroy, plan.destroy_stale)
        failures, since = self.creations.failures, self.creations.running_since
        shortage = find_shortage(self.size, self.counts, self._demand, failures, around, since)
        self._note_shortage(shortage, failures.error)
        moments = [waiter.deadline - now for waiter in queue.waiters]
        return min([*moments, *([] if plan.again_in_s is None else [plan.again_in_s])], default=None)

    def _note_shortage(self, shortage: Shortage | None, error: Exception | None) -> None:
        self._shortage = shortage
        self._shortage_log.note(shortage, self._clock.now(), self.counts, self.size, error)

    async def look_at_image(self) -> None:
        """Finds out whether the image has changed. A version that cannot be told now counts as unchanged."""
        stock = self._stock
        if len(stock):
            with suppress(Unavailable, OSError):
                try:
                    stock.note_version(await self._source.version())
                except NotFound:
                    stock.note_version("")
                    stock.give_up(0, len(stock.stale))

    async def drain(self) -> None:
        """Destroys what is ready, cancels what is being made, and fails the waiters with Stopping."""
        self._drained = True  # first: what is completed although it is cancelled is then destroyed, not kept
        self._wake.set()
        self._queue.fail_all(_stopping)
        await self.creations.cancel()
        self._stock.give_up(len(self._stock.ready), len(self._stock.stale))


async def _wait_for(event: asyncio.Event, clock: Clock, within_s: float | None) -> None:
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait())]
    if within_s is not None:
        waiting.append(asyncio.ensure_future(clock.sleep(within_s)))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _stopping() -> Stopping:
    return Stopping("this worker takes no more claims", remedy="try again: another worker or a new start will take it")
