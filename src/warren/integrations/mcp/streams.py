"""Standard input and output of `warren mcp` as lines.

A thread reads the lines and waits while too many are unread.
"""

import asyncio
import os
import threading
from typing import Final

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
_MAX_UNREAD_LINES: Final = 16


class Streams:
    """Standard input and output, as lines. Nobody else in this process has them: what is printed goes to stderr."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(_MAX_UNREAD_LINES)
        self._writing = asyncio.Lock()
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()

    async def read_line(self) -> bytes:
        """Returns the next line; empty at the end."""
        return await self._lines.get()

    async def write(self, text: str) -> None:
        """Writes all of it, or nothing if the client is gone."""
        async with self._writing:
            await asyncio.to_thread(self._write, text.encode(errors="replace"))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        with open(self._input, "rb", closefd=False) as stream:
            while line := stream.readline(MAX_LINE_BYTES):
                asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()
        asyncio.run_coroutine_threadsafe(self._lines.put(b""), loop)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except OSError:
            return
