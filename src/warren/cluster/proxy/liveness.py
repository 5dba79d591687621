"""Ends requests that wait for a worker which has stopped responding.

A command may run for hours, so a response has no deadline; and neither a network that drops packets nor a stopped
process closes a connection. So `run` pings every second each worker that a request has waited on for more than a
second. After FAILED_PINGS failures in a row, every request that waits for that worker raises `Broken`. The router
wraps each request in `watch`; the coordinator process runs `run`.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from warren.http.client.errors import Broken

PING_INTERVAL_S: Final = 1.0
FAILED_PINGS: Final = 3


class Liveness:
    """`ping` sends a request to the worker at an address, and raises if no response comes within seconds."""

    def __init__(self, ping: Callable[[str], Awaitable[object]], *, interval_s: float = PING_INTERVAL_S) -> None:
        self._ping = ping
        self._interval_s = interval_s
        self._waiting: dict[str, dict[asyncio.Timeout, float]] = {}
        self._failures: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Liveness of {len(self._waiting)} workers, {len(self._failures)} overdue>"

    @contextlib.asynccontextmanager
    async def watch(self, address: str) -> AsyncIterator[None]:
        """Raises `Broken` out of whatever is awaited inside when the worker has stopped responding."""
        timeout = asyncio.timeout(None)
        waiting = self._waiting.setdefault(address, {})
        waiting[timeout] = asyncio.get_running_loop().time()
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Broken("it has stopped responding") from None
        finally:
            del waiting[timeout]
            if not waiting and self._waiting.get(address) is waiting:
                del self._waiting[address]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            overdue_since = asyncio.get_running_loop().time() - self._interval_s
            overdue = [address for address, waiting in self._waiting.items() if min(waiting.values()) < overdue_since]
            self._failures = Counter({address: self._failures[address] for address in overdue})
            await asyncio.gather(*map(self._check, overdue))

    async def _check(self, address: str) -> None:
        try:
            await self._ping(address)
        except Exception:
            # The kind of failure does not matter: the worker has not responded.
            self._failures[address] += 1
        else:
            self._failures[address] = 0
        if self._failures[address] >= FAILED_PINGS:
            for timeout in list(self._waiting.get(address, ())):
                if not timeout.expired():
                    timeout.reschedule(asyncio.get_running_loop().time())
