"""Measures how long work holds its event loop: the most processor time between two turns of a task beside it.

It measures processor time of this thread, so that a busy machine does not look like a busy loop.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_S = 0.05


@dataclass
class Busiest:
    seconds: float = 0.0


@contextlib.asynccontextmanager
async def busiest_turn() -> AsyncIterator[Busiest]:
    found = Busiest()

    async def look() -> None:
        then = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            found.seconds, then = max(found.seconds, now - then), now

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    try:
        yield found
        await asyncio.sleep(0)
    finally:
        looking.cancel()
        await asyncio.wait([looking])
