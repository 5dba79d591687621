"""Standard streams in an event loop, without changing them: their flags belong to other processes too.

A terminal, pipe or socket is waited for by the loop and then read, or written in pieces it surely
takes; a regular file is always ready.
"""

import asyncio
import os
import select
from collections.abc import AsyncIterator

_PIECE = 4096  # POSIX's PIPE_BUF on Linux: a pipe that polls as writable takes this much without blocking
_CHUNK = 256 * 1024


async def read_stream(fd: int) -> AsyncIterator[bytes]:
    """What comes in on `fd`, until its end."""
    while True:
        await _ready(fd, select.POLLIN)
        try:
            data = os.read(fd, _CHUNK)
        except OSError:  # a terminal that hung up
            return
        if not data:
            return
        yield data


async def write_stream(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        await _ready(fd, select.POLLOUT)
        view = view[os.write(fd, view[:_PIECE]) :]


async def _ready(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if poll.poll(0):
        return
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if event == select.POLLIN else (loop.add_writer, loop.remove_writer)
    )

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fd, wake)
    try:
        await ready
    finally:
        remove(fd)
