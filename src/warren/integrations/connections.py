"""The connections of an integration to one server, which many clients share.

The first use opens them. Those of an event loop close with the loop, because frameworks do not say when they have
finished.
"""

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator

from warren.sdk.aio.backend import AsyncBackend
from warren.sdk.aio.platform import open_backend as open_async_backend
from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.platform import open_backend

_Closers = dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]]


class Connections:
    """The connections to one server (or this machine), opened with the first use, for threads and event loops alike."""

    def __init__(self, mode: str, server_url: str, api_key: str | None) -> None:
        self._target = (mode, server_url, api_key)
        self._blocking: Backend | None = None
        self._aio: AsyncBackend | None = None
        self._lock = threading.Lock()
        self._closers: _Closers = {}
        weakref.finalize(self, _close_with_program, self._closers)

    def blocking(self) -> Backend:
        with self._lock:
            if self._blocking is None:
                self._blocking = open_backend(*self._target)
                weakref.finalize(self, self._blocking.close)
            return self._blocking

    async def aio(self) -> AsyncBackend:
        with self._lock:
            if self._aio is None:
                self._aio = open_async_backend(*self._target)
            backend = self._aio
        await self._close_with_loop(backend)
        return backend

    async def _close_with_loop(self, backend: AsyncBackend) -> None:
        # An event loop closes its generators before it ends, so nobody has to close the connections.
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._closers or self._target[0] == "local":
                return
            for closed in [known for known in self._closers if known.is_closed()]:
                del self._closers[closed]
            closer = self._closers[loop] = _close_at_end(backend)
        await anext(closer)

    def close(self) -> None:
        with self._lock:
            backend, self._blocking = self._blocking, None
        if backend is not None:
            backend.close()

    async def aclose(self) -> None:
        closer = self._closers.pop(asyncio.get_running_loop(), None)
        if closer is not None:
            await closer.aclose()
        elif self._aio is not None:
            backend, self._aio = self._aio, None
            await backend.close()


async def _close_at_end(backend: AsyncBackend) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await backend.close()


def _close_with_program(closers: _Closers) -> None:
    """Closes the connections of loops that stand still and that nobody closes, such as a framework's `run_sync` has."""
    for loop, closer in closers.items():
        if not loop.is_closed() and not loop.is_running() and asyncio._get_running_loop() is None:
            loop.run_until_complete(closer.aclose())
