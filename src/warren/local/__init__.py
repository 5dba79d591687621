"""The SDK's local mode: sandboxes of this machine, in this process, without a server.

Each call runs as a task on the loop of the engine (engine.py). One task there runs a stream, a download or a terminal
from beginning to end, and the caller takes the items that it yields from a queue (`_Pump`).
"""

import asyncio
import contextlib
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
)
from typing import TYPE_CHECKING, Any, Final

from warren.local.engine import ENGINE, start_task
from warren.model.errors import InvalidRequest

if TYPE_CHECKING:
    from warren.local.calls import LocalCalls

_MAX_AHEAD: Final = 4  # items that a pump reads before the caller takes them
_END: Final = object()


def _no_tickets() -> InvalidRequest:
    return InvalidRequest(
        "a ticket opens a page of a server, and local mode has none",
        remedy="start `warren serve`, and connect to it",
    )


class _Pump:
    """Runs an async generator in a task on the engine's loop; `take` returns its items, then `_END`.

    The owner must call `stop`, also if `begin` was cancelled.
    """

    def __init__(self, source: AsyncGenerator[Any, None]) -> None:
        self._source = source
        self._queue: asyncio.Queue[tuple[Any, Exception | None]] = asyncio.Queue(_MAX_AHEAD)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._task = start_task(self._run())

    async def _run(self) -> None:
        failed: Exception | None = None
        try:
            async with contextlib.aclosing(self._source):
                async for item in self._source:
                    await self._queue.put((item, None))
        except Exception as exc:
            failed = exc
        await self._queue.put((_END, failed))

    async def take(self) -> Any:
        item, failed = await self._queue.get()
        if failed is not None:
            raise failed
        return item

    async def stop(self) -> None:
        if self._task is None:
            await self._source.aclose()
            return
        self._task.cancel()
        await asyncio.wait([self._task])


async def _size_and_parts(download: Any) -> AsyncGenerator[Any, None]:
    async with download as (size, parts):
        yield size
        async with contextlib.aclosing(parts):
            async for part in parts:
                yield part


async def _open_socket(opening: Any) -> AsyncGenerator[Any, None]:
    async with opening as socket:
        yield socket
        await asyncio.Event().wait()  # it stays open until the pump is stopped


class _Client:
    """What both backends share: they join the engine with their first call, and leave it when they are closed. See
    `Engine.use` for `e2b_api_key`."""

    def __init__(self, e2b_api_key: str | None = None) -> None:
        self._e2b_api_key = e2b_api_key
        self._joining = threading.Lock()
        self._joined = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: this machine>"

    def _join(self) -> None:
        with self._joining:
            if not self._joined:
                ENGINE.use(self._e2b_api_key)
                self._joined = True

    @property
    def _calls(self) -> "LocalCalls":
        if not self._joined:
            self._join()
        assert ENGINE.calls is not None
        return ENGINE.calls

    def _leave(self) -> None:
        with self._joining:
            joined, self._joined = self._joined, False
        if joined:
            ENGINE.leave()


class Local(_Client):
    """The backend of blocking clients."""

    def call(self, operation: str, session_id: str = "", /, **arguments: Any) -> Any:
        return ENGINE.wait(self._calls.call(operation, session_id, **arguments))

    def upload(self, operation: str, session_id: str, data: bytes | Iterable[bytes], **arguments: Any) -> Any:
        body = data if isinstance(data, bytes) else _read_in_thread(data)
        return ENGINE.wait(self._calls.upload(operation, session_id, body, **arguments))

    def events(self, operation: str, session_id: str, **arguments: Any) -> Generator[Any, None, None]:
        with self._pump(self._calls.events(operation, session_id, **arguments)) as pump:
            yield from _items(pump)

    @contextlib.contextmanager
    def download(self, operation: str, session_id: str, **arguments: Any) -> Iterator[Any]:
        with self._pump(_size_and_parts(self._calls.download(operation, session_id, **arguments))) as pump:
            yield ENGINE.wait(pump.take()), _items(pump)

    @contextlib.contextmanager
    def socket(self, operation: str, session_id: str, **arguments: Any) -> Iterator["_Socket"]:
        with self._pump(_open_socket(self._calls.socket(operation, session_id, **arguments))) as pump:
            yield _Socket(ENGINE.wait(pump.take()))

    def create_ticket(self, session_id: str, **values: Any) -> Any:
        raise _no_tickets()

    def stats(self) -> Any:
        return ENGINE.wait(self._calls.stats())

    @contextlib.contextmanager
    def _pump(self, source: AsyncGenerator[Any, None]) -> Iterator[_Pump]:
        pump = _Pump(source)
        try:
            ENGINE.wait(pump.begin())
            yield pump
        finally:
            ENGINE.finish(pump.stop())

    def close(self) -> None:
        self._leave()


def _items(pump: _Pump) -> Generator[Any, None, None]:
    while (item := ENGINE.wait(pump.take())) is not _END:
        yield item


class _Socket:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def send(self, message: str | bytes) -> None:
        ENGINE.wait(self._socket.send(message))

    def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        message: str | bytes | None = ENGINE.wait(self._socket.receive(timeout_s))
        return message


class AsyncLocal(_Client):
    """The backend of async clients, on any event loop."""

    async def call(self, operation: str, session_id: str = "", /, **arguments: Any) -> Any:
        calls = await self._joined_calls()
        return await ENGINE.run(calls.call(operation, session_id, **arguments))

    async def upload(
        self, operation: str, session_id: str, data: bytes | AsyncIterable[bytes], **arguments: Any
    ) -> Any:
        calls = await self._joined_calls()
        body = data if isinstance(data, bytes) else _read_on_loop(data, asyncio.get_running_loop())
        return await ENGINE.run(calls.upload(operation, session_id, body, **arguments))

    async def events(self, operation: str, session_id: str, **arguments: Any) -> AsyncGenerator[Any, None]:
        calls = await self._joined_calls()
        async with self._pump(calls.events(operation, session_id, **arguments)) as pump:
            async for item in _async_items(pump):
                yield item

    @contextlib.asynccontextmanager
    async def download(self, operation: str, session_id: str, **arguments: Any) -> AsyncIterator[Any]:
        calls = await self._joined_calls()
        async with self._pump(_size_and_parts(calls.download(operation, session_id, **arguments))) as pump:
            yield await ENGINE.run(pump.take()), _async_items(pump)

    @contextlib.asynccontextmanager
    async def socket(self, operation: str, session_id: str, **arguments: Any) -> AsyncIterator["_AsyncSocket"]:
        calls = await self._joined_calls()
        async with self._pump(_open_socket(calls.socket(operation, session_id, **arguments))) as pump:
            yield _AsyncSocket(await ENGINE.run(pump.take()))

    async def create_ticket(self, session_id: str, **values: Any) -> Any:
        raise _no_tickets()

    async def stats(self) -> Any:
        calls = await self._joined_calls()
        return await ENGINE.run(calls.stats())

    async def _joined_calls(self) -> "LocalCalls":
        # The first call starts the service and blocks until it runs, so it must not do that on the caller's loop.
        return self._calls if self._joined else await asyncio.to_thread(lambda: self._calls)

    @contextlib.asynccontextmanager
    async def _pump(self, source: AsyncGenerator[Any, None]) -> AsyncIterator[_Pump]:
        pump = _Pump(source)
        try:
            await ENGINE.run(pump.begin())
            yield pump
        finally:
            await ENGINE.finish_async(pump.stop())

    async def close(self) -> None:
        await asyncio.to_thread(self._leave)


async def _async_items(pump: _Pump) -> AsyncGenerator[Any, None]:
    while (item := await ENGINE.run(pump.take())) is not _END:
        yield item


class _AsyncSocket:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: str | bytes) -> None:
        await ENGINE.run(self._socket.send(message))

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        message: str | bytes | None = await ENGINE.run(self._socket.receive(timeout_s))
        return message


async def _next(source: AsyncIterator[Any]) -> Any:
    return await anext(source, _END)


async def _read_on_loop(source: AsyncIterable[bytes], loop: asyncio.AbstractEventLoop) -> AsyncIterator[bytes]:
    """Reads an iterator of the caller's loop from the engine's loop."""
    iterator = aiter(source)
    while True:
        item = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_next(iterator), loop))
        if item is _END:
            return
        yield item


async def _read_in_thread(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Reads an iterator in a thread, because it may block."""
    iterator = iter(source)
    while (part := await asyncio.to_thread(next, iterator, _END)) is not _END:
        assert isinstance(part, bytes)
        yield part
