"""How much of something may be done in a second."""

from collections.abc import Callable


class Bucket:
    """`rate` a second, and `burst` at once. Taking more than there is is possible; then one has to wait."""

    def __init__(self, rate: float, burst: float, now: Callable[[], float]) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left, self._at = burst, now()

    def take(self, count: float) -> float:
        """Returns for how many seconds nothing more should be taken."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - count
        self._at = now
        return -self._left / self._rate if self._left < 0 else 0.0
