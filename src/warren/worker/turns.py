"""Whose turn it is, when several tenants want sandboxes of one pool. Pure, but for remembering who had how many when.

Who waits is served tenant by tenant in turn. While several tenants are about, one that has lately taken as many as a
whole pool holds, and more than its part of all, is greedy: it leaves the last few ready sandboxes to the others, who
should not wait because of it, and for it alone no more than one is made at a time. A tenant that is alone has
everything.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

LATELY_S: Final = 5.0
ABOUT_S: Final = 60.0
_MOST_REMEMBERED: Final = 10_000


class Waiting(Protocol):
    @property
    def tenant(self) -> str: ...


W = TypeVar("W", bound=Waiting)


class Turns:
    def __init__(self, share: int, reserve: int) -> None:
        self.reserve = reserve
        self._share = max(1, share)
        self._taken: deque[tuple[float, str]] = deque()  # lately
        self._counts: Counter[str] = Counter()  # of those
        self._seen: dict[str, float] = {}
        self._served: dict[str, int] = {}
        self._count = 0

    def asked(self, tenant: str, now: float) -> None:
        self._seen.pop(tenant, None)
        self._seen[tenant] = now  # the last in the dictionary is the last who asked
        while self._seen and now - next(iter(self._seen.values())) > ABOUT_S:
            gone = next(iter(self._seen))
            del self._seen[gone]
            self._served.pop(gone, None)
        if len(self._seen) > _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def took(self, tenant: str, now: float) -> None:
        self._count += 1
        self._served[tenant] = self._count
        self._taken.append((now, tenant))
        self._counts[tenant] += 1
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._taken and now - self._taken[0][0] > LATELY_S:
            _, tenant = self._taken.popleft()
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def is_greedy(self, tenant: str, now: float) -> bool:
        """Whether it should leave the reserve to others."""
        if len(self._seen) < 2:
            return False
        self._forget(now)
        taken = self._counts[tenant]
        return taken >= self._share and taken * max(2, len(self._counts)) > len(self._taken)

    def are_greedy(self, waiting: Iterable[Waiting], now: float) -> bool:
        """Whether all that wait could wait a little longer, for the sake of others who are about."""
        tenants = {waiter.tenant for waiter in waiting}
        return bool(tenants) and all(self.is_greedy(tenant, now) for tenant in tenants)

    def may_take(self, tenant: str, ready: int, waiting: Iterable[Waiting], now: float) -> bool:
        """Whether a claim gets one that is ready, before those who wait already."""
        if self.is_greedy(tenant, now):
            return ready > self.reserve and not any(True for _ in waiting)
        return all(self.is_greedy(waiter.tenant, now) for waiter in waiting)

    def next(self, waiting: Iterable[W], ready: int, now: float) -> W | None:
        """Who of those that wait, first come first, gets a new one; None: it is kept ready for somebody else."""
        waiters = list(waiting)
        if ready < self.reserve:
            waiters = [waiter for waiter in waiters if not self.is_greedy(waiter.tenant, now)]
        return min(waiters, key=lambda waiter: self._served.get(waiter.tenant, 0), default=None)
