"""Measures how long work holds its event loop: the most processor time between two turns of a task beside it.

It measures processor time of this thread, so that a busy machine does not look like a busy loop, and leaves out what
earlier tests left in memory: a pass of the garbage collector over thousands of tests takes a tenth of a second. A
server freezes what it has loaded in the same way. A machine whose processor takes longer for the same work may hold
its loop for longer: MAX_S is 50 ms on an ordinary one.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from this_run import patience

MAX_S = patience(0.05)


@dataclass
class Busiest:
    seconds: float = 0.0


@contextlib.contextmanager
def own_memory() -> Iterator[None]:
    """The garbage collector looks only at what is made within."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.asynccontextmanager
async def busiest_turn() -> AsyncIterator[Busiest]:
    found = Busiest()

    async def look() -> None:
        then = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            found.seconds, then = max(found.seconds, now - then), now

    with own_memory():
        looking = asyncio.create_task(look())
        await asyncio.sleep(0)
        try:
            yield found
            await asyncio.sleep(0)
        finally:
            looking.cancel()
            await asyncio.wait([looking])
