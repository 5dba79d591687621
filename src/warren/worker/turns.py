"""Which tenant gets the next sandbox of a pool when several want one. Pure, apart from the history it keeps.

Waiters are served tenant by tenant in turn. While several tenants are active, a tenant is greedy that has recently
taken as many sandboxes as a whole pool holds, and more than its share of all. A greedy tenant leaves the last few
ready sandboxes to the others, who should not wait because of it, and for greedy waiters alone the pool makes one
sandbox at a time. A tenant that is alone may take everything.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from warren.kernel.fair_share import FairShare

RECENT_S: Final = 5.0
ACTIVE_S: Final = 60.0
_MAX_TENANTS: Final = 10_000


class TenantWaiter(Protocol):
    @property
    def tenant(self) -> str: ...


W = TypeVar("W", bound=TenantWaiter)


class TenantTurns:
    def __init__(self, share: int, reserve: int) -> None:
        self.reserve = reserve
        self._share = max(1, share)
        self._taken: deque[tuple[float, str]] = deque()  # the claims of the last RECENT_S: when, and whose
        self._counts = FairShare()  # how many of those each tenant has
        self._requested_at: dict[str, float] = {}  # in order: the tenant that asked last comes last
        self._last_served: dict[str, int] = {}
        self._served = 0

    def note_request(self, tenant: str, now: float) -> None:
        self._requested_at.pop(tenant, None)
        self._requested_at[tenant] = now
        while self._requested_at and now - next(iter(self._requested_at.values())) > ACTIVE_S:
            inactive = next(iter(self._requested_at))
            del self._requested_at[inactive]
            self._last_served.pop(inactive, None)
        if len(self._requested_at) > _MAX_TENANTS:
            del self._requested_at[next(iter(self._requested_at))]

    def note_taken(self, tenant: str, now: float) -> None:
        self._served += 1
        self._last_served[tenant] = self._served
        self._taken.append((now, tenant))
        self._counts.take(tenant)
        self._forget_old(now)

    def _forget_old(self, now: float) -> None:
        while self._taken and now - self._taken[0][0] > RECENT_S:
            self._counts.give_back(self._taken.popleft()[1])

    def is_greedy(self, tenant: str, now: float) -> bool:
        """Whether the tenant should leave the reserve to others."""
        if len(self._requested_at) < 2:
            return False
        self._forget_old(now)
        return self._counts.held(tenant) >= self._share and self._counts.has_more_than_others(tenant)

    def all_greedy(self, waiting: Iterable[TenantWaiter], now: float) -> bool:
        """Whether there are waiters and all of them can wait a little longer for the sake of other tenants."""
        tenants = {waiter.tenant for waiter in waiting}
        return bool(tenants) and all(self.is_greedy(tenant, now) for tenant in tenants)

    def may_take(self, tenant: str, ready: int, waiting: Iterable[TenantWaiter], now: float) -> bool:
        """Whether a new claim gets a ready sandbox before those who wait already."""
        if self.is_greedy(tenant, now):
            return ready > self.reserve and not any(True for _ in waiting)
        return not waiting or all(self.is_greedy(waiter.tenant, now) for waiter in waiting)

    def choose(self, waiting: Iterable[W], ready: int, now: float) -> W | None:
        """Returns the waiter that gets a new sandbox; None if the sandbox stays ready for another tenant. `waiting` is
        in the order of arrival."""
        waiters = list(waiting)
        if ready < self.reserve:
            waiters = [waiter for waiter in waiters if not self.is_greedy(waiter.tenant, now)]
        return min(waiters, key=lambda waiter: self._last_served.get(waiter.tenant, 0), default=None)
