"""Who may pull an image now. A server pulls a few images for tenants at once, and one for each tenant; the others wait,
and tenants are served in the order in which they came. A tenant may have a few pulls waiting; more are refused."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from warren.kernel.fair_share import FairShare
from warren.model.errors import LimitReached

AT_ONCE: Final = 3
WAITING: Final = 8


class PullTurns:
    """`join` counts a pull until `leave`; in between it waits for its `turn`."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._pulls = FairShare(each=waiting)
        self._locks: dict[str, asyncio.Lock] = {}  # of tenants with a pull

    def join(self, tenant: str) -> None:
        """Raises LimitReached if the tenant has as many pulls as it may have."""
        if not self._pulls.try_take(tenant):
            raise LimitReached(
                f"{self._pulls.each} images are being pulled for you already, and that is the most",
                remedy="wait until one is there",
                retry_after_s=5.0,
            )
        self._locks.setdefault(tenant, asyncio.Lock())

    def leave(self, tenant: str) -> None:
        self._pulls.give_back(tenant)
        if not self._pulls.held(tenant):
            del self._locks[tenant]

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        # In this order a tenant has at most one place in the queue for the slots.
        async with self._locks[tenant], self._slots:
            yield
