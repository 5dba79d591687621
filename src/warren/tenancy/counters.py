"""Counters of one process, for the strategies of the package `limits`, and for what is spent of a quota.

Its own storage in memory looks at every counter there is each time one is used, which a server with many tenants
cannot afford. Here what is over is swept once in a while. No operation awaits anything, so each is atomic.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from limits.aio.storage import Storage
from limits.aio.storage.base import SlidingWindowCounterSupport
from limits.storage.base import TimestampedSlidingWindow

_SWEEP_S: Final = 30.0


class Counts(Storage, SlidingWindowCounterSupport):
    """A storage of `limits` whose counters can be begun with what was spent before.

    `spend` adds so much if that makes no more than `most`, and says whether it did; if not, all of it counts as spent.
    None: there is no such counter, `begin` it. `begin` does nothing if there is one. Each is atomic.
    """

    @property
    def lasting(self) -> bool:
        """Whether what was counted is still there when this process is started again."""
        return False

    @property
    def alone(self) -> bool:
        """Whether what others share is counted here by this process alone, for as long as it has to be."""
        return False

    @abstractmethod
    async def spend(self, key: str, amount: int, most: int) -> bool | None: ...
    @abstractmethod
    async def begin(self, key: str, expiry: int, spent: int) -> None: ...

    async def close(self) -> None:
        """What comes afterwards is counted in memory at most."""


class Counters(Counts, TimestampedSlidingWindow):
    STORAGE_SCHEME = ["async+warren"]  # noqa: RUF012

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._now = now
        self._counts: dict[str, tuple[int, float]] = {}  # and when it is over
        self._swept = now()

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return self._add(key, expiry, amount, self._now())

    async def get(self, key: str) -> int:
        return self._get(key, self._now())

    async def get_expiry(self, key: str) -> float:
        return self._counts.get(key, (0, self._now()))[1]

    async def clear(self, key: str) -> None:
        self._counts.pop(key, None)

    async def check(self) -> bool:
        return True

    async def reset(self) -> int | None:
        count = len(self._counts)
        self._counts.clear()
        return count

    async def spend(self, key: str, amount: int, most: int) -> bool | None:
        now = self._now()
        count, over = self._counts.get(key, (0, now))
        if over <= now:
            return None
        fits = count + amount <= most
        self._counts[key] = count + amount if fits else max(count, most), over
        return fits

    async def begin(self, key: str, expiry: int, spent: int) -> None:
        now = self._now()
        if self._counts.get(key, (0, now))[1] <= now:
            self._add(key, expiry, spent, now)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._now()
        before, before_s, count, _ = self._window(key, expiry, now)
        if math.floor(before * before_s / expiry + count) + amount > limit:
            return False
        self._add(self.sliding_window_keys(key, expiry, now)[1], 2 * expiry, amount, now)
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return self._window(key, expiry, self._now())

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        for name in self.sliding_window_keys(key, expiry, self._now()):
            self._counts.pop(name, None)

    def _window(self, key: str, expiry: int, now: float) -> tuple[int, float, int, float]:
        """The count of the window before, for how long it still matters, the count of this one, and until when."""
        before, current = self.sliding_window_keys(key, expiry, now)
        left_s = expiry - now % expiry
        return self._get(before, now), left_s, self._get(current, now), left_s + expiry

    def _get(self, key: str, now: float) -> int:
        count, over = self._counts.get(key, (0, now))
        return count if over > now else 0

    def _add(self, key: str, expiry: int, amount: int, now: float) -> int:
        if now - self._swept > _SWEEP_S:
            self._swept = now
            self._counts = {name: kept for name, kept in self._counts.items() if kept[1] > now}
        count, over = self._counts.get(key, (0, 0.0))
        if over <= now:
            count, over = 0, now + expiry
        self._counts[key] = count + amount, over
        return count + amount
