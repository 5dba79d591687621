"""When a pool makes sandboxes, and when it gives some up: counts in, plan out. Nothing here waits or acts.

Callers who wait come first, then the pool's `min`; both at once. From there to the target a pool is filled only
in quiet moments, so that it does not compete with callers for the cores. The target is the pool's `size`; misses
raise it up to `max`, quiet minutes lower it again, and while the machine is short of room it is `min`.

When the image has changed, the sandboxes of its old version (`stale`) do not count as ready; each is given up when a
new one has taken its place, or when the machine has no room for a new one beside it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from warren.model.environment import PoolSize
from warren.model.errors import InvalidRequest, IsolationUnavailable, MachineFull, NotFound

QUIET_S: Final = 0.05
BURST_S: Final = 1.0
CALM_S: Final = 60.0
STEP_S: Final = 10.0
GIVE_UP_S: Final = 600.0
LOOK_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
WAITERS_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PoolCounts:
    ready: int = 0
    creating: int = 0
    waiting: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """The target, and when callers last claimed and missed. `moved_at` is when the target last changed."""

    target: int
    claimed_at: float
    missed_at: float = -math.inf
    moved_at: float = -math.inf

    def claimed(self, now: float) -> "Demand":
        return replace(self, claimed_at=now)

    def missed(self, size: PoolSize, now: float) -> "Demand":
        """Doubles the target, once per burst of misses."""
        if now - self.moved_at < BURST_S:
            return replace(self, missed_at=now)
        return replace(self, target=min(size.max, max(2 * self.target, 1)), missed_at=now, moved_at=now)

    def lowered(self, size: PoolSize, now: float) -> "Demand":
        """After quiet minutes, halves in steps what the target has above the size."""
        above = self.target - size.size
        if above <= 0 or now < max(self.missed_at + CALM_S, self.moved_at + STEP_S):
            return self
        return replace(self, target=self.target - max(1, above // 2), moved_at=now)


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
    """`pressure`: the machine is short of room. `kept`: the pool stays filled even if nobody claims."""

    now: float
    parallel: int
    pressure: bool = False
    kept: bool = False


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
    create = max(0, min(level - spare, at_once - counts.creating))
    if around.now < failures.waiters_until:
        create = 0
    stale = max(counts.ready + counts.stale - target, isinstance(failures.error, MachineFull))
    again_in_s = _again_in_s(spare, target, failures, demand, around)
    return PoolPlan(create, max(0, counts.ready - target), again_in_s, max(0, min(counts.stale, stale)))


def levels(size: PoolSize, demand: Demand, around: Circumstances) -> tuple[int, int]:
    """How many sandboxes should be ready at once, and how many in the end."""
    if not around.kept and around.now - demand.claimed_at >= GIVE_UP_S:
        return 0, 0
    target = size.min if around.pressure else demand.target
    return min(size.min, target), target


def _again_in_s(spare: int, target: int, failures: Failures, demand: Demand, around: Circumstances) -> float | None:
    moments = (
        [demand.claimed_at + QUIET_S, failures.until, failures.waiters_until] if spare < target or spare < 0 else []
    )
    ahead = [moment - around.now for moment in moments if moment > around.now]
    if target > 0 or spare != 0:
        ahead.append(LOOK_S)
    return min(ahead, default=None)


def is_hopeless(error: Exception) -> bool:
    """Whether every creation would fail alike, however long a caller waits."""
    return isinstance(error, InvalidRequest | NotFound | IsolationUnavailable)
