"""Counters for quotas over time: requests in a sliding minute, and amounts spent of a day.

The counters here live in the memory of one process; those of redis_counters.py are shared through Redis.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

MINUTE_S: Final = 60
_SWEEP_S: Final = 30.0


class Hit(NamedTuple):
    """Whether a request was within the limit, how many more are, and after how many seconds there may be more."""

    allowed: bool
    remaining: int
    reset_s: float


class Counters(Protocol):
    """Every operation is atomic, and a counter that has expired does not exist.

    `hit` counts a request, unless there were `limit` in the last 60 seconds: a refused request is not counted. A minute
    begins with the first hit and is followed by the next. The hits of the minute before count in part, as if they had
    come evenly: by how much of that minute is less than 60 seconds ago.
    `begin` creates a counter with what was spent before, and does nothing if it exists. `spend` adds `amount` if that
    makes no more than `most`, and returns whether it did; if not, all of `most` counts as spent. It returns None if the
    counter does not exist: then `begin` it. `get` returns 0 for a counter that does not exist. `hits` returns how many
    requests count now, and counts none.
    """

    @property
    def survives_restart(self) -> bool:
        """Whether the counts are still there when this process is started again."""

    @property
    def is_cut_off(self) -> bool:
        """Whether this process has to count alone for now, though the counters are shared."""

    async def hit(self, name: str, limit: int) -> Hit: ...
    async def hits(self, name: str) -> int: ...
    async def begin(self, name: str, expiry_s: int, spent: int) -> None: ...
    async def spend(self, name: str, amount: int, most: int) -> bool | None: ...
    async def get(self, name: str) -> int: ...

    async def close(self) -> None:
        """Lets go of connections. What comes afterwards is counted in memory."""


@dataclass(slots=True)
class _Minutes:
    """The hits in the minute that began at `began`, and in the one before it."""

    began: float
    previous: int = 0
    current: int = 0

    def move_to(self, now: float) -> None:
        past_s = now - self.began
        if MINUTE_S <= past_s < 2 * MINUTE_S:
            self.began, self.previous, self.current = self.began + MINUTE_S, self.current, 0
        elif not 0 <= past_s < MINUTE_S:
            self.began, self.previous, self.current = now, 0, 0


class MemoryCounters:
    """No operation awaits anything, so each is atomic."""

    survives_restart = False
    is_cut_off = False

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._minutes: dict[str, _Minutes] = {}
        self._sums: dict[str, tuple[int, float]] = {}  # what was spent, and when the counter expires
        self._swept = now()

    def __len__(self) -> int:
        return len(self._minutes) + len(self._sums)

    async def hit(self, name: str, limit: int) -> Hit:
        now = self._now()
        self._sweep(now)
        minutes = self._minutes.get(name)
        if minutes is None:
            minutes = self._minutes[name] = _Minutes(now)
        minutes.move_to(now)
        left_s = minutes.began + MINUTE_S - now
        allowed = hits_of(minutes.previous, minutes.current, left_s) < limit
        if allowed:
            minutes.current += 1
        return hit_of(allowed, limit, minutes.previous, minutes.current, left_s)

    async def hits(self, name: str) -> int:
        minutes = self._minutes.get(name)
        if minutes is None:
            return 0
        now = self._now()
        minutes.move_to(now)
        return hits_of(minutes.previous, minutes.current, minutes.began + MINUTE_S - now)

    async def begin(self, name: str, expiry_s: int, spent: int) -> None:
        if self._sum(name) is None:
            self.put(name, expiry_s, spent)

    async def spend(self, name: str, amount: int, most: int) -> bool | None:
        count = self._sum(name)
        if count is None:
            return None
        fits = count + amount <= most
        self._sums[name] = count + amount if fits else max(count, most), self._sums[name][1]
        return fits

    async def get(self, name: str) -> int:
        return self._sum(name) or 0

    def put(self, name: str, expiry_s: int, spent: int) -> None:
        now = self._now()
        self._sweep(now)
        self._sums[name] = spent, now + expiry_s

    async def close(self) -> None:
        pass

    def _sum(self, name: str) -> int | None:
        spent, expires = self._sums.get(name, (0, -math.inf))
        return spent if expires > self._now() else None

    def _sweep(self, now: float) -> None:
        if now - self._swept > _SWEEP_S:
            self._swept, oldest = now, now - 2 * MINUTE_S
            self._minutes = {name: each for name, each in self._minutes.items() if each.began > oldest}
            self._sums = {name: each for name, each in self._sums.items() if each[1] > now}


def hit_of(allowed: bool, limit: int, previous: int, current: int, left_s: float) -> Hit:
    """`previous` and `current` are the hits of two minutes; the current one lasts for another `left_s`."""
    remaining = max(0, limit - hits_of(previous, current, left_s))
    waits = [left_s] if current else []
    if previous:
        waits.append(left_s % (MINUTE_S / previous))  # until one less of them counts
    return Hit(allowed, remaining, min(waits, default=0.0))


def hits_of(previous: int, current: int, left_s: float) -> int:
    return math.floor(previous * left_s / MINUTE_S) + current
