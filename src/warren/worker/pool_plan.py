"""When a pool makes sandboxes, and when it gives some up: counts in, plan out. Nothing here waits or acts.

Callers who wait come first, then what the next half second of a steady stream of claims will take, at least the pool's
`min`; all of that at once. From there to the target a pool is filled only in quiet moments, so that it does not compete
with callers for the cores, and beyond its `size` one sandbox at a time. The target is `size`, or the largest burst of
claims that the pool has learned, up to `max`; the pool forgets half of a burst every quarter of an hour. Growth beyond
`size` ends at the ceiling that the machine's memory sets; while the machine is short of room the target is `min`.

When the image has changed, the sandboxes of its old version (`stale`) do not count as ready; each is given up when a
new one has taken its place, or when the machine has no room for a new one beside it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from warren.model.environment import PoolSize
from warren.model.errors import (
    ImageBuildFailed,
    ImageBuilding,
    InvalidRequest,
    IsolationUnavailable,
    MachineFull,
    NotFound,
    ProviderKeyRefused,
)

QUIET_S: Final = 0.05
HALF_LIFE_S: Final = 900.0
RATE_S: Final = 60.0
AHEAD_S: Final = 0.5
GIVE_UP_S: Final = 600.0
LOOK_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
WAITERS_PAUSE_S: Final = 1.0
_HOPELESS: Final = (
    ImageBuildFailed,
    ImageBuilding,
    InvalidRequest,
    IsolationUnavailable,
    NotFound,
    ProviderKeyRefused,
)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    ready: int = 0
    creating: int = 0
    waiting: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What the claims so far tell about those to come.

    `missing` counts the claims whose sandboxes have not been replaced yet: with that many sandboxes ready, nobody would
    have waited. `burst` is the largest `missing` there was, at `burst_at`. `rate` is the number of claims per second at
    `claimed_at`, as an average over about RATE_S.
    """

    claimed_at: float
    missing: int = 0
    burst: float = 0.0
    burst_at: float = -math.inf
    rate: float = 0.0

    def claimed(self, now: float) -> "Demand":
        missing, rate = self.missing + 1, self.rate_at(now) + 1 / RATE_S
        if missing >= self.burst_by(now):
            return Demand(now, missing, missing, now, rate)
        return Demand(now, missing, self.burst, self.burst_at, rate)

    def replaced(self) -> "Demand":
        """Returns the demand after a sandbox was made, or a claim ended without one."""
        return replace(self, missing=max(0, self.missing - 1))

    def burst_by(self, now: float) -> float:
        """Returns what the pool still remembers of the largest burst."""
        return self.burst * 0.5 ** ((now - self.burst_at) / HALF_LIFE_S) if self.burst else 0.0

    def rate_at(self, now: float) -> float:
        return self.rate * math.exp((self.claimed_at - now) / RATE_S)

    def target(self, size: PoolSize, now: float) -> int:
        return max(size.size, min(size.max, round(self.burst_by(now))))


@dataclass(frozen=True, slots=True)
class Failures:
    """Creations that failed since the last success, and until when none is tried again.

    Creations for waiting callers are tried again sooner than those for the pool. A failure that repeating cannot cure
    fails later callers at once.
    """

    count: int = 0
    until: float = -math.inf
    waiters_until: float = -math.inf
    error: Exception | None = None

    def with_one_more(self, error: Exception, now: float, jitter: float) -> "Failures":
        """`jitter` is from 0 to 1. A failure during the pause counts as the one that began it."""
        same = now < self.until
        count = self.count if same else self.count + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(count - 1, 20)) * (1 + jitter) / 2
        waiters = now if is_hopeless(error) else now + min(pause, WAITERS_PAUSE_S)
        return Failures(count, self.until if same else now + pause, waiters, error)


NO_FAILURES: Final = Failures()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """`pressure`: the machine is short of room. `kept`: the pool stays filled even if nobody claims. `ceiling`: a pool
    with this many sandboxes does not grow beyond its size any more, but keeps what it has."""

    now: float
    parallel: int
    pressure: bool = False
    kept: bool = False
    ceiling: float = math.inf


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`again_in_s`: when to plan again if nothing changes until then; None: only after a change."""

    create: int
    destroy: int
    again_in_s: float | None
    destroy_stale: int = 0


def plan_pool(
    size: PoolSize, counts: PoolCounts, demand: Demand, failures: Failures, around: Circumstances
) -> PoolPlan:
    low, target = levels(size, demand, around)
    quiet_in_s = demand.claimed_at + QUIET_S - around.now
    pause_s = failures.until - around.now
    spare = counts.ready + counts.creating - counts.waiting
    level = 0 if pause_s > 0 else target if quiet_in_s <= 0 else low
    at_once = 1 if failures.count else around.parallel  # after a failure, one creation must succeed first
    wanted = min(level, max(low, size.size)) - spare
    if wanted <= 0 and counts.creating == 0 and counts.ready + counts.stale < around.ceiling:
        wanted = min(1, level - spare)
    create = max(0, min(wanted, at_once - counts.creating))
    if around.now < failures.waiters_until:
        create = 0
    stale = max(counts.ready + counts.stale - target, isinstance(failures.error, MachineFull))
    again_in_s = _again_in_s(spare, target, failures, demand, around)
    return PoolPlan(create, max(0, counts.ready - target), again_in_s, max(0, min(counts.stale, stale)))


def levels(size: PoolSize, demand: Demand, around: Circumstances) -> tuple[int, int]:
    """Returns up to how many ready sandboxes the pool is filled at full speed, and up to how many in quiet moments."""
    if is_idle(demand, around):
        return 0, 0
    target = size.min if around.pressure else demand.target(size, around.now)
    return min(max(size.min, math.ceil(demand.rate_at(around.now) * AHEAD_S)), target), target


def is_idle(demand: Demand, around: Circumstances) -> bool:
    """Whether nobody has claimed for so long that the pool is given up."""
    return not around.kept and around.now - demand.claimed_at >= GIVE_UP_S


def _again_in_s(spare: int, target: int, failures: Failures, demand: Demand, around: Circumstances) -> float | None:
    moments = (
        [demand.claimed_at + QUIET_S, failures.until, failures.waiters_until] if spare < target or spare < 0 else []
    )
    ahead = [moment - around.now for moment in moments if moment > around.now]
    # A target that is 0 under pressure rises when the pressure ends, and nobody says when that is.
    if target > 0 or spare != 0 or (around.pressure and not is_idle(demand, around)):
        ahead.append(LOOK_S)
    return min(ahead, default=None)


def is_hopeless(error: Exception) -> bool:
    """Whether every creation would fail alike for as long as callers wait, or the caller is to hear how far an image
    is instead of waiting."""
    return isinstance(error, _HOPELESS)
