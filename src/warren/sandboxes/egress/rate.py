"""Limits on how much may be done per second."""

from collections.abc import Callable
from typing import Final

_NEXT_TURN_S: Final = 0.005
_CLOSE: Final = 1e-3  # bytes, or microseconds; smaller differences are rounding errors


class Bucket:
    """Allows `rate` per second and `burst` at once. Callers may take more than is left, and then have to wait."""

    def __init__(self, rate: float, burst: float, now: Callable[[], float]) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left, self._at = burst, now()

    def take(self, count: float) -> float:
        """Takes `count`, and returns for how many seconds nothing more should be taken."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - count
        self._at = now
        return -self._left / self._rate if self._left < 0 else 0.0


class FairBucket:
    """Allows `rate` per second and `burst` at once, for all members together. Members that want more than there is get
    equal shares, however often they take; what one member leaves, the others get.

    Each waiting member has a mark, the value that `_turn` must reach until the member has received what it took.
    `_turn` advances at the rate divided by the number of waiting members.
    """

    def __init__(self, rate: float, burst: float, now: Callable[[], float]) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left, self._at = burst, now()
        self._turn = 0.0
        self._marks: dict[object, float] = {}  # by waiting member

    def take(self, member: object, count: float) -> float:
        """Takes `count`, and returns for how many seconds the member should wait if no other member takes anything."""
        self._advance()
        at_once = 0.0 if self._marks else min(count, self._left)
        self._left -= at_once
        if count <= at_once and member not in self._marks:
            return 0.0
        mark = self._marks[member] = self._marks.get(member, self._turn) + count - at_once
        return sum(min(mark, other) - self._turn for other in self._marks.values()) / self._rate

    def _advance(self) -> None:
        now = self._now()
        got, self._at = (now - self._at) * self._rate, now
        waiting = len(self._marks)
        for member, mark in sorted(self._marks.items(), key=lambda each: each[1]):
            step = min(mark - self._turn, got / waiting)
            got -= step * waiting
            self._turn += step
            if self._turn + _CLOSE < mark:
                break
            del self._marks[member]
            waiting -= 1
        if not self._marks:
            self._turn = 0.0
            self._left = min(self._burst, self._left + max(0.0, got))


class TurnShare:
    """Allows each member `most` in one turn of the loop. Rates do not bound that: a process that gets little of its
    processor earns more between two turns than it can spend."""

    def __init__(self, most: float, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._most, self._call_soon = most, call_soon
        self._taken: dict[object, float] = {}  # by member, in this turn

    def take(self, member: object, count: float) -> float:
        """Takes `count`, and returns for how many seconds the member should wait."""
        if not count:
            return _NEXT_TURN_S if self._taken.get(member, 0.0) >= self._most else 0.0
        if not self._taken:
            self._call_soon(self._taken.clear)
        self._taken[member] = self._taken.get(member, 0.0) + count
        return self.take(member, 0)


class Work:
    """The seconds of this process that a sandbox may take: so many of its own, and of those that all tenants share a
    fair part; of these, so many in one turn of the loop."""

    def __init__(self, own: Bucket, shared: FairBucket, of_turn: TurnShare, tenant: str) -> None:
        self._own, self._shared, self._of_turn, self._tenant = own, shared, of_turn, tenant

    def take(self, seconds: float) -> float:
        """Takes what was spent, and returns for how many seconds the sandbox should wait."""
        rate_s = max(self._own.take(seconds), self._shared.take(self._tenant, seconds * 1e6))
        return max(rate_s, self._of_turn.take(self._tenant, seconds))

    def count(self, seconds: float) -> None:
        """Takes what was spent from the tenant's part alone: later work of its sandboxes waits for it."""
        self._shared.take(self._tenant, seconds * 1e6)

    def begin(self, seconds: float) -> None:
        """Takes what will be spent in the next turn from the tenant's part of this one."""
        self._of_turn.take(self._tenant, seconds)
