"""Quotas that are counted over time: requests and creates a minute, exec seconds and bytes out a day (UTC).

What a tenant holds at one moment (sessions, disk) is not counted here: the store keeps that, see Caps. A tenant and
each of its keys are counted apart, and both must have something left. Counters live in memory or in Redis. A counter
of the day that does not exist, because the process was restarted or Redis lost its data, begins with what the usage
book says; one that exists goes on, whoever began it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from warren.governance.counters import MINUTE_S, Counters, Hit, MemoryCounters
from warren.kernel.clock import Clock
from warren.model.access import Caller
from warren.model.errors import QuotaExceeded, RateLimited, Unavailable

DAY_S: Final = 86400
EGRESS_BYTES: Final = "egress_bytes"
_TOLD_AGAIN_S: Final = 60.0
_MAX_TOLD: Final = 10_000
_TRIES: Final = 5

Reached = Callable[[Caller, str], None]
SpentBefore = Callable[[str, str], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Standing:
    """How many requests a minute a caller has left, for the headers of a response."""

    limit: int
    remaining: int
    reset_s: int

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"ratelimit-limit", b"%d" % self.limit),
            (b"ratelimit-remaining", b"%d" % self.remaining),
            (b"ratelimit-reset", b"%d" % self.reset_s),
            (b"ratelimit-policy", b"%d;w=60" % self.limit),
        ]


async def _nothing(tenant: str, what: str) -> float:
    return 0.0


class Quotas:
    """Calls `reached` when a caller has reached a quota, at most once a minute for each.

    `spent_before` returns what a tenant has spent of a day's quota before it was counted here.
    """

    def __init__(
        self,
        clock: Clock,
        counters: Counters | None = None,
        *,
        reached: Reached = lambda caller, quota: None,
        spent_before: SpentBefore = _nothing,
    ) -> None:
        self._counters = MemoryCounters() if counters is None else counters
        self._clock = clock
        self._reached = reached
        self._spent_before = spent_before
        self._told: dict[tuple[str, str], float] = {}
        self._used_up: dict[tuple[str, str], tuple[str, int]] = {}  # by quota and owner: the day, and the bound then
        self._beginning: dict[str, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<Quotas: {len(self._used_up)} used up>"

    async def close(self) -> None:
        await self._counters.close()

    async def request(self, caller: Caller) -> Standing | None:
        """Counts a request; raises RateLimited if it is one too many. Returns None if nothing bounds the caller."""
        least: Standing | None = None
        for whose, most in caller.bounds["requests_per_minute"]:
            standing = await self._hit(caller, "requests_per_minute", whose, most)
            if least is None or standing.remaining < least.remaining:
                least = standing
        return least

    async def create(self, caller: Caller) -> None:
        """Counts a session to be created; raises RateLimited if it is one too many."""
        for whose, most in caller.bounds["creates_per_minute"]:
            await self._hit(caller, "creates_per_minute", whose, most)

    async def _hit(self, caller: Caller, what: str, whose: str, most: int) -> Standing:
        hit = await self._counters.hit(f"{what}/{whose}", most) if most > 0 else Hit(False, 0, MINUTE_S)
        standing = Standing(most, hit.remaining, max(1, math.ceil(hit.reset_s)))
        if not hit.allowed:
            self.tell(caller, what)
            raise _Limited(
                f"more than {most} {what.split('_')[0]} a minute",
                remedy="wait as long as Retry-After says, or ask the operator for more",
                retry_after_s=float(standing.reset_s),
                standing=standing,
            )
        return standing

    def bounds(self, caller: Caller, what: str) -> bool:
        """Whether a quota of the day bounds this caller."""
        return bool(caller.bounds[f"{what}_per_day"])

    async def spend(self, caller: Caller, what: str, amount: int) -> bool:
        """Spends an amount of a day's quota. Returns False if less was left; then the quota counts as used up, and what
        was taken from the caller's other quota is given back."""
        taken: list[tuple[str, int]] = []
        for whose, most in caller.bounds[f"{what}_per_day"]:
            key = self._today(what, whose)
            if await self._spend(caller, what, whose, most, amount):
                taken.append((key, most))
            else:
                for key, bound in taken:
                    await self._counters.spend(key, -amount, bound)
                if len(self._used_up) > _MAX_TOLD:
                    self._used_up.clear()
                self._used_up[what, whose] = self._day(), most
                self.tell(caller, f"{what}_per_day")
                return False
        return True

    async def spend_again(self, caller: Caller, what: str, amount: int) -> None:
        """Spends what was used before a restart and not saved; counters that survive a restart have it already."""
        if not self._counters.survives_restart:
            await self.spend(caller, what, amount)

    async def left(self, caller: Caller, what: str) -> float:
        """Returns how much of a day's quota is left to the tenant or the key, whichever has less."""
        least = math.inf
        for whose, most in caller.bounds[f"{what}_per_day"]:
            least = min(least, max(0, most - await self._counters.get(self._today(what, whose))))
        return least

    async def minute_use(self, whose: str, what: str) -> int:
        """Returns how many requests or creates count now, for a tenant or a key that has such a quota."""
        return await self._counters.hits(f"{what}/{whose}")

    async def day_use(self, whose: str, what: str) -> int:
        """Returns how much was spent today, for a tenant or a key that has such a quota."""
        return await self._counters.get(self._today(what, whose))

    @property
    def day_ends_at(self) -> float:
        """The time of day at which quotas of the day start anew."""
        return (int(self._clock.wall() // DAY_S) + 1.0) * DAY_S

    def check_left(self, caller: Caller, what: str) -> None:
        """Raises QuotaExceeded if a day's quota is known to be used up."""
        if not self._used_up:
            return
        day = self._day()
        for whose, most in caller.bounds[f"{what}_per_day"]:
            if self._used_up.get((what, whose)) == (day, most):
                raise self.spent(caller, what)

    def spent(self, caller: Caller, what: str) -> QuotaExceeded:
        words = what.replace("_", " ")
        return QuotaExceeded(
            f"the {words} of this day are used up",
            remedy="they start anew at midnight UTC; or ask the operator for more",
            retry_after_s=float(self._left_of_day()),
        )

    async def _spend(self, caller: Caller, what: str, whose: str, most: int, amount: int) -> bool:
        if most <= 0:
            return False
        key = self._today(what, whose)
        for _ in range(_TRIES):
            was_left = await self._counters.spend(key, amount, most)
            if was_left is not None:
                return was_left
            await self._begin(key, what, whose, caller)
        raise Unavailable("what is spent cannot be counted: the counter is gone each time")

    async def _begin(self, key: str, what: str, whose: str, caller: Caller) -> None:
        """Begins a day's counter with what was spent before; all who want to spend wait for it."""
        if key not in self._beginning:
            work = asyncio.ensure_future(self._count_before(key, what, whose, caller))
            self._beginning[key] = work
            work.add_done_callback(lambda _: self._beginning.pop(key, None))
        await asyncio.shield(self._beginning[key])  # one caller that leaves must not stop it for the others

    async def _count_before(self, key: str, what: str, whose: str, caller: Caller) -> None:
        try:
            before = int(await self._spent_before(caller.tenant, what)) if whose.startswith("tenant:") else 0
        except Unavailable:
            if not self._counters.is_cut_off:
                raise
            before = 0  # the usage book is in the same Redis, which is away
        await self._counters.begin(key, DAY_S, before)

    def _today(self, what: str, whose: str) -> str:
        """The name of a day's counter. It does not contain the quota: a changed quota goes on from what was spent."""
        return f"{what}/{whose}/{self._day()}"

    def _day(self) -> str:
        return str(int(self._clock.wall() // DAY_S))

    def _left_of_day(self) -> int:
        return DAY_S - int(self._clock.wall()) % DAY_S

    def tell(self, caller: Caller, quota: str) -> None:
        name, now = (caller.tenant, quota), self._clock.now()
        if now - self._told.get(name, -math.inf) < _TOLD_AGAIN_S:
            return
        if len(self._told) > _MAX_TOLD:
            self._told.clear()
        self._told[name] = now
        self._reached(caller, quota)


class _Limited(RateLimited):
    """Carries the standing, for the headers of the response."""

    def __init__(self, message: str, *, standing: Standing, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.standing = standing


def standing_of(error: Exception) -> Standing | None:
    return error.standing if isinstance(error, _Limited) else None
