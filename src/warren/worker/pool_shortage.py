"""Why a pool has fewer sandboxes ready than it should, for the log, the figures and the metrics.

The pool finds the reason each time it has planned, so a pool that stands below its size always has one.
"""

import math
from enum import StrEnum
from typing import Final

from warren.kernel.logs import get_log
from warren.model.environment import PoolSize
from warren.worker.pool_plan import QUIET_S, Circumstances, Demand, Failures, PoolCounts, is_idle

PATIENCE_S: Final = 30.0
REPEAT_S: Final = 900.0
_log = get_log(__name__)


class Shortage(StrEnum):
    """IDLE: nobody has claimed for ten minutes, so the pool was given up until somebody does. FAILING: the last
    creation failed. SLOW: a creation has run for longer than PATIENCE_S. NO_ROOM: the machine is nearly full, so only
    the pool's `min` is made. MAKING: sandboxes are being made. CALLERS_FIRST: claims come so fast that there was no
    quiet moment to make more than they take. CEILING: the machine's memory allows no growth beyond the pool's size.
    PLANNING_FAILED: the machine's room cannot be read."""

    IDLE = "idle"
    FAILING = "creations_fail"
    SLOW = "creation_takes_long"
    NO_ROOM = "machine_nearly_full"
    MAKING = "being_made"
    CALLERS_FIRST = "callers_first"
    CEILING = "pool_ceiling"
    PLANNING_FAILED = "planning_failed"


_EXPECTED: Final = frozenset({Shortage.IDLE, Shortage.MAKING, Shortage.CALLERS_FIRST, Shortage.CEILING})


def find_shortage(
    size: PoolSize,
    counts: PoolCounts,
    demand: Demand,
    failures: Failures,
    around: Circumstances,
    creating_since: float = math.inf,
) -> Shortage | None:
    """Returns why fewer are ready than the pool holds in calm times; None if none is missing. `creating_since`: when
    the oldest of the running creations began."""
    ready = counts.ready + counts.stale
    if ready >= demand.target(size, around.now):
        return None
    if is_idle(demand, around):
        return Shortage.IDLE
    if failures.count:
        return Shortage.FAILING
    if around.now - creating_since >= PATIENCE_S:
        return Shortage.SLOW
    if around.pressure and ready >= size.min:
        return Shortage.NO_ROOM
    if counts.creating == 0 and around.now < demand.claimed_at + QUIET_S:
        return Shortage.CALLERS_FIRST
    if counts.creating == 0 and ready >= max(size.size, around.ceiling):
        return Shortage.CEILING
    return Shortage.MAKING


class ShortageLog:
    """Writes `pool_short` when a pool is given up or shrinks, and when it has been short for PATIENCE_S for another
    reason; again every REPEAT_S while that lasts. Writes `pool_filled` when a shortage that was logged is over. Writes
    one `pool_short` in PATIENCE_S at most, beside that of a pool that is given up, which takes ten minutes."""

    def __init__(self, pool: str, provider: str) -> None:
        self._pool, self._provider = pool, provider
        self._last: Shortage | None = None
        self._since = -math.inf  # when the present shortage began; one after an idle time begins anew
        self._logged: dict[Shortage, float] = {}  # of the present shortage: when each reason was logged last
        self._logged_at = -math.inf

    def note(
        self, shortage: Shortage | None, now: float, counts: PoolCounts, size: PoolSize, error: Exception | None = None
    ) -> None:
        last, self._last = self._last, shortage
        if shortage is None:
            if self._logged:
                _log.info("pool_filled", pool=self._pool, provider=self._provider, ready=counts.ready + counts.stale)
            self._logged = {}
            return
        if last in (None, Shortage.IDLE):
            self._since = now
        if not self._must_log(shortage, last, now):
            return
        self._logged[shortage] = self._logged_at = now
        (_log.info if shortage in _EXPECTED else _log.warning)(
            "pool_short",
            pool=self._pool,
            provider=self._provider,
            reason=shortage,
            ready=counts.ready + counts.stale,
            creating=counts.creating,
            size=size.size,
            error=error,
        )

    def _must_log(self, shortage: Shortage, last: Shortage | None, now: float) -> bool:
        if shortage is Shortage.IDLE:
            return last is not Shortage.IDLE
        if now - self._logged_at < PATIENCE_S or now - self._logged.get(shortage, -math.inf) < REPEAT_S:
            return False
        return shortage is Shortage.NO_ROOM or now - self._since >= PATIENCE_S
