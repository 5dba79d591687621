"""Streams between the event loop and a thread: the thread reads or writes and blocks, the loop awaits."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any


class ThreadReader(io.RawIOBase):
    """A stream that a thread reads. `read` runs in the event loop that made this, and returns at most as many bytes as
    asked."""

    def __init__(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        self._read, self._loop = read, asyncio.get_running_loop()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = asyncio.run_coroutine_threadsafe(_call(self._read, len(buffer)), self._loop).result()
        buffer[: len(part)] = part
        return len(part)


class ThreadWriter(io.RawIOBase):
    """A stream that a thread writes to. `write` runs in the event loop that made this. After `give_up` writing raises
    OSError, so a thread whose reader has gone ends soon."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write, self._loop, self._given_up = write, asyncio.get_running_loop(), False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._given_up:
            raise OSError("nobody reads this any more")
        asyncio.run_coroutine_threadsafe(_call(self._write, bytes(data)), self._loop).result()
        return len(data)

    def give_up(self) -> None:
        self._given_up = True


async def _call(function: Callable[[Any], Awaitable[Any]], argument: Any) -> Any:
    return await function(argument)
