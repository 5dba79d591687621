"""Notices workers that have fallen silent while somebody waits for them.

A command may run for hours, so nothing bounds the time that a worker has for an answer; and neither a network that
swallows packets nor a process that stands still closes a connection. So a worker that somebody has waited for a while
for is asked every second whether it is there. When it has not said so TRIES times in a row, all that waits for it ends.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from warren.cluster.http_client.failures import Broken

EVERY_S: Final = 1.0
TRIES: Final = 3


class Liveness:
    """`ask` asks whoever is at an address for a sign of life; it raises when none comes in seconds."""

    def __init__(self, ask: Callable[[str], Awaitable[object]], *, every_s: float = EVERY_S) -> None:
        self._ask = ask
        self._every_s = every_s
        self._waiting: dict[str, dict[asyncio.Timeout, float]] = {}
        self._silent: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Lookout over {len(self._waiting)} workers, {len(self._silent)} silent>"

    @contextlib.asynccontextmanager
    async def over(self, address: str) -> AsyncIterator[None]:
        """Raises `Broken` out of whatever is awaited inside when the worker has fallen silent."""
        limit = asyncio.timeout(None)
        waiting = self._waiting.setdefault(address, {})
        waiting[limit] = asyncio.get_running_loop().time()
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise Broken("the worker has fallen silent") from None
        finally:
            del waiting[limit]
            if not waiting and self._waiting.get(address) is waiting:
                del self._waiting[address]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            long_ago = asyncio.get_running_loop().time() - self._every_s
            watched = [name for name, waiting in self._waiting.items() if min(waiting.values()) < long_ago]
            self._silent = Counter({name: self._silent[name] for name in watched})
            await asyncio.gather(*map(self._look, watched))

    async def _look(self, address: str) -> None:
        try:
            await self._ask(address)
        except Exception:
            # Whatever it is: no sign of life.
            self._silent[address] += 1
        else:
            self._silent[address] = 0
        if self._silent[address] >= TRIES:
            for limit in list(self._waiting.get(address, ())):
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())
