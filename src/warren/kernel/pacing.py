"""Divides long work on the event loop into turns, so that other tasks can run in between."""

import asyncio
import time
from typing import Final

TURN_S: Final = 0.004
"""So long one piece of work may hold the event loop. Many at once hold it for as many turns, not for their sum."""


class Pace:
    """Call `await pace.give_way()` between two small steps: it returns at once until a turn is over, and then lets
    others run."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def give_way(self) -> None:
        if time.perf_counter() - self._began >= TURN_S:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
