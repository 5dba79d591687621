"""A rest that can be broken off."""

import asyncio

from warren.clock import Clock


class Wakeup:
    """`rest` returns when the time is over or it rings; also if it rang since the last rest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def rest(self, seconds: float) -> None:
        if seconds > 0 and not self._rung.is_set():
            await self._either(seconds)
        self._rung.clear()
        await asyncio.sleep(0)

    async def _either(self, seconds: float) -> None:
        tasks = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._rung.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
