"""When a pool makes sandboxes, and when it gives some up: counts in, plan out. Nothing here waits or acts.

Callers who wait come first, then the pool's `min`; both at once. From there to the target a pool is filled only
in quiet moments, so that it does not compete with callers for the cores. The target is the pool's `size`; misses
raise it up to `max`, a calm time lowers it again, and while the machine is short of room it is `min`.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from warren.model.environment import PoolSize
from warren.model.errors import InvalidRequest, IsolationUnavailable, NotFound

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


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pool remembers of its callers. `moved_at` is when the target last changed."""

    target: int
    claimed_at: float
    missed_at: float = -math.inf
    moved_at: float = -math.inf

    def claimed(self, now: float) -> "Demand":
        return replace(self, claimed_at=now)

    def missed(self, size: PoolSize, now: float) -> "Demand":
        """The target doubles, once per burst of misses."""
        if now - self.moved_at < BURST_S:
            return replace(self, missed_at=now)
        return replace(self, target=min(size.max, max(2 * self.target, 1)), missed_at=now, moved_at=now)

    def eased(self, size: PoolSize, now: float) -> "Demand":
        """After a calm time the target gives up half of what it has above the size, step by step."""
        above = self.target - size.size
        if above <= 0 or now < max(self.missed_at + CALM_S, self.moved_at + STEP_S):
            return self
        return replace(self, target=self.target - max(1, above // 2), moved_at=now)


@dataclass(frozen=True, slots=True)
class Failures:
    """Creations that failed since the last one that went well, and until when nothing is tried again.

    Callers who wait are not made to wait as long as the pool, unless waiting helps nothing: who comes after a
    hopeless failure is told at once.
    """

    count: int = 0
    until: float = -math.inf
    waiters_until: float = -math.inf
    error: Exception | None = None

    def and_one(self, error: Exception, now: float, jitter: float) -> "Failures":
        """`jitter` from 0 to 1. What fails during the pause belongs to the failure that began it."""
        same = now < self.until
        count = self.count if same else self.count + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(count - 1, 20)) * (1 + jitter) / 2
        waiters = now if is_hopeless(error) else now + min(pause, WAITERS_PAUSE_S)
        return Failures(count, self.until if same else now + pause, waiters, error)


NO_FAILURES: Final = Failures()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """`pressure`: the machine is short of room. `kept`: this pool is not given up when nobody claims."""

    now: float
    parallel: int
    pressure: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`again_in_s`: when to plan again though nothing has changed; None: not before something has."""

    create: int
    destroy: int
    again_in_s: float | None


def plan_pool(
    size: PoolSize, counts: PoolCounts, demand: Demand, failures: Failures, around: Circumstances
) -> PoolPlan:
    low, target = wanted(size, demand, around)
    quiet_in_s = demand.claimed_at + QUIET_S - around.now
    pause_s = failures.until - around.now
    spare = counts.ready + counts.creating - counts.waiting
    level = 0 if pause_s > 0 else target if quiet_in_s <= 0 else low
    at_once = 1 if failures.count else around.parallel  # after a failure one has to go well first
    create = max(0, min(level - spare, at_once - counts.creating))
    if around.now < failures.waiters_until:
        create = 0
    return PoolPlan(create, max(0, counts.ready - target), _again_in_s(spare, target, failures, demand, around))


def wanted(size: PoolSize, demand: Demand, around: Circumstances) -> tuple[int, int]:
    """How many shall be ready at least, at once, and how many in the end."""
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
    """Whether it fails for everybody alike, however long one waits."""
    return isinstance(error, InvalidRequest | NotFound | IsolationUnavailable)
