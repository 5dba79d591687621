"""The SDK's local mode: sandboxes of this machine, in this process, without a server.

Calls run on the loop of the engine (local_engine.py), each as a task of its own. What lasts (a stream, a file that is
read, a terminal) is run there by one task from its beginning to its end, and what it yields is fetched (`Pump`).
"""

import asyncio
import contextlib
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any, Final

from warren.local.engine import ENGINE, own_task

_STREAMS: Final = frozenset({"stream", "follow", "watch"})
_CONTEXTS: Final = frozenset({"read", "pack", "terminal"})
_AHEAD: Final = 4  # what a pump fetches before it is asked for
_END: Final = object()
_PLAIN: Final = (str, bytes, dict, list, tuple, float)


class Pump:
    """Runs an async generator in a task of the engine's loop; `take` gives what it yields, then `_END`.

    Whoever makes one stops it, also if `begin` was cancelled and nobody knows how far it came.
    """

    def __init__(self, source: AsyncGenerator[Any, None]) -> None:
        self._source = source
        self._items: asyncio.Queue[tuple[Any, Exception | None]] = asyncio.Queue(_AHEAD)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._task = own_task(self._run())

    async def _run(self) -> None:
        failed: Exception | None = None
        try:
            async with contextlib.aclosing(self._source):
                async for item in self._source:
                    await self._items.put((item, None))
        except Exception as exc:
            failed = exc
        await self._items.put((_END, failed))

    async def take(self) -> Any:
        item, failed = await self._items.get()
        if failed is not None:
            raise failed
        return item

    async def stop(self) -> None:
        if self._task is None:
            await self._source.aclose()
            return
        self._task.cancel()
        await asyncio.wait([self._task])


async def _flat(name: str, context: Any) -> AsyncGenerator[Any, None]:
    """What a context gives, one after the other: the size and the bytes of a file; a terminal, which stays open."""
    async with context as value:
        if name == "terminal":
            yield value
            await asyncio.Event().wait()
        size, parts = value if name == "read" else (None, value)
        yield size
        async with contextlib.aclosing(parts):
            async for part in parts:
                yield part


class _Client:
    """Joins the engine with its first use."""

    def __init__(self) -> None:
        self._joining = threading.Lock()
        self._joined = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: this machine>"

    def _join(self) -> None:
        with self._joining:
            if not self._joined:
                ENGINE.use()
                self._joined = True

    def _verb(self, name: str) -> Callable[..., Any]:
        if not self._joined:
            self._join()
        verb: Callable[..., Any] = getattr(ENGINE.verbs, name)
        return verb

    def _source(self, name: str, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        found: Any = self._verb(name)(*args, **kwargs)
        return found if name in _STREAMS else _flat(name, found)

    def _leave(self) -> None:
        with self._joining:
            joined, self._joined = self._joined, False
        if joined:
            ENGINE.leave()


class Local(_Client):
    """A backend for clients that block."""

    def __getattr__(self, name: str) -> Any:
        if name in _STREAMS:
            return lambda *args, **kwargs: self._iterated(name, *args, **kwargs)
        if name in _CONTEXTS:
            return lambda *args, **kwargs: self._entered(name, *args, **kwargs)
        return lambda *args, **kwargs: ENGINE.wait(self._verb(name)(*_bodies(args), **kwargs))

    def _iterated(self, name: str, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        pump = Pump(self._source(name, *args, **kwargs))
        try:
            ENGINE.wait(pump.begin())
            yield from _taken(pump)
        finally:
            ENGINE.finished(pump.stop())

    @contextlib.contextmanager
    def _entered(self, name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        pump = Pump(self._source(name, *args, **kwargs))
        try:
            ENGINE.wait(pump.begin())
            first = ENGINE.wait(pump.take())
            yield _Socket(first) if name == "terminal" else (first, _taken(pump)) if name == "read" else _taken(pump)
        finally:
            ENGINE.finished(pump.stop())

    def close(self) -> None:
        self._leave()


def _taken(pump: Pump) -> Generator[Any, None, None]:
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
    """A backend for clients on an event loop, whichever."""

    def __getattr__(self, name: str) -> Any:
        if name in _STREAMS:
            return lambda *args, **kwargs: self._iterated(name, *args, **kwargs)
        if name in _CONTEXTS:
            return lambda *args, **kwargs: self._entered(name, *args, **kwargs)
        return lambda *args, **kwargs: self._called(name, *args, **kwargs)

    async def _begin(self) -> None:
        if not self._joined:
            await asyncio.to_thread(self._join)

    async def _called(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self._joined:
            await self._begin()
        return await ENGINE.there(getattr(ENGINE.verbs, name)(*[_taken_over(arg) for arg in args], **kwargs))

    async def _iterated(self, name: str, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        await self._begin()
        pump = Pump(self._source(name, *args, **kwargs))
        try:
            await ENGINE.there(pump.begin())
            async for item in _taken_there(pump):
                yield item
        finally:
            await ENGINE.finished_there(pump.stop())

    @contextlib.asynccontextmanager
    async def _entered(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await self._begin()
        pump = Pump(self._source(name, *args, **kwargs))
        try:
            await ENGINE.there(pump.begin())
            first, rest = await ENGINE.there(pump.take()), _taken_there(pump)
            yield _AsyncSocket(first) if name == "terminal" else (first, rest) if name == "read" else rest
        finally:
            await ENGINE.finished_there(pump.stop())

    async def close(self) -> None:
        await asyncio.to_thread(self._leave)


async def _taken_there(pump: Pump) -> AsyncGenerator[Any, None]:
    while (item := await ENGINE.there(pump.take())) is not _END:
        yield item


class _AsyncSocket:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: str | bytes) -> None:
        await ENGINE.there(self._socket.send(message))

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        message: str | bytes | None = await ENGINE.there(self._socket.receive(timeout_s))
        return message


def _taken_over(arg: Any) -> Any:
    if isinstance(arg, _PLAIN) or not isinstance(arg, AsyncIterable):
        return arg
    return _fed(arg, asyncio.get_running_loop())


async def _next(source: AsyncIterator[Any]) -> Any:
    return await anext(source, _END)


async def _fed(source: AsyncIterable[bytes], loop: asyncio.AbstractEventLoop) -> AsyncIterator[bytes]:
    """What the caller's loop yields, on the engine's loop."""
    iterator = aiter(source)
    while True:
        item = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_next(iterator), loop))
        if item is _END:
            return
        yield item


def _bodies(args: tuple[Any, ...]) -> list[Any]:
    """Iterables of bytes are taken in threads: reading them may block."""
    return [arg if isinstance(arg, _PLAIN) or not isinstance(arg, Iterable) else _pulled(arg) for arg in args]


async def _pulled(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    iterator = iter(source)
    while (part := await asyncio.to_thread(next, iterator, _END)) is not _END:
        assert isinstance(part, bytes)
        yield part
