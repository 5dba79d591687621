"""The SDK's local mode: sandboxes of this machine, in this process, without a server.

One service serves the whole process. It runs on an event loop in a thread of its own, begins with the first use and
ends with the last client that is closed, or with the process; so programs with several event loops, with
threads, or with none can use it at once. Sessions of threads are kept in the state directory, as a server would.
"""

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from warren.config import Settings, read_settings
from warren.local_verbs import Verbs
from warren.model.errors import InvalidRequest

T = TypeVar("T")

_STREAMS: Final = frozenset({"stream", "follow", "watch"})
_CONTEXTS: Final = frozenset({"read", "pack", "terminal"})
_PARTS: Final = 4  # pieces of a body that may wait to be taken


class Engine:
    """The service of this process. `use` and `leave` count its clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Any = None
        self.verbs: Verbs | None = None

    def use(self) -> None:
        with self._lock:
            if self._clients == 0:
                self._start(read_settings())
            self._clients += 1

    def leave(self) -> None:
        with self._lock:
            self._clients -= 1
            if self._clients == 0:
                self._stop()

    def end(self) -> None:
        """With the process: whoever forgot to close."""
        with self._lock:
            if self._clients:
                self._clients = 0
                self._stop()

    def _start(self, settings: Settings) -> None:
        from warren.service import Service
        from warren.wiring import build_context

        loop = asyncio.new_event_loop()
        self._loop = loop
        threading.Thread(target=loop.run_forever, name="warren local", daemon=True).start()
        service = Service(settings)
        try:
            self.submit(service.start()).result()
        except BaseException:
            self._end_loop()
            raise
        self._service = service
        self.verbs = Verbs(build_context(settings, service.sessions))

    def _stop(self) -> None:
        service, self._service, self.verbs = self._service, None, None
        try:
            self.submit(service.stop()).result()
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop is None:
            work.close()
            raise InvalidRequest("this client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


ENGINE: Final = Engine()
atexit.register(ENGINE.end)


class _Client:
    """Joins the engine with its first use."""

    def __init__(self) -> None:
        self._joining = threading.Lock()
        self._joined = False

    def _verb(self, name: str) -> Callable[..., Any]:
        with self._joining:
            if not self._joined:
                ENGINE.use()
                self._joined = True
        verb: Callable[..., Any] = getattr(ENGINE.verbs, name)
        return verb

    def _leave(self) -> None:
        with self._joining:
            joined, self._joined = self._joined, False
        if joined:
            ENGINE.leave()


class Local(_Client):
    """A backend for clients that block."""

    def __repr__(self) -> str:
        return "<Local: this machine>"

    def __getattr__(self, name: str) -> Any:
        if name in _STREAMS:
            return lambda *args, **kwargs: self._iterated(self._verb(name)(*args, **kwargs))
        if name in _CONTEXTS:
            return lambda *args, **kwargs: self._entered(name, *args, **kwargs)
        return lambda *args, **kwargs: ENGINE.submit(self._verb(name)(*_bodies(args), **kwargs)).result()

    def _iterated(self, source: AsyncIterator[T]) -> Iterator[T]:
        try:
            while (item := ENGINE.submit(_next(source)).result()) is not _END:
                yield item
        finally:
            ENGINE.submit(_closed(source)).result()

    @contextlib.contextmanager
    def _entered(self, name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        context = self._verb(name)(*args, **kwargs)
        value = ENGINE.submit(context.__aenter__()).result()
        try:
            if name == "terminal":
                yield _Socket(value)
            elif name == "read":
                yield value[0], self._iterated(value[1])
            else:
                yield self._iterated(value)
        finally:
            ENGINE.submit(context.__aexit__(None, None, None)).result()

    def close(self) -> None:
        self._leave()


class _Socket:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def send(self, message: str | bytes) -> None:
        ENGINE.submit(self._socket.send(message)).result()

    def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        message: str | bytes | None = ENGINE.submit(self._socket.receive(timeout_s)).result()
        return message


class AsyncLocal(_Client):
    """A backend for clients on an event loop, whichever."""

    def __repr__(self) -> str:
        return "<AsyncLocal: this machine>"

    def __getattr__(self, name: str) -> Any:
        if name in _STREAMS:
            return lambda *args, **kwargs: self._iterated(name, *args, **kwargs)
        if name in _CONTEXTS:
            return lambda *args, **kwargs: self._entered(name, *args, **kwargs)
        return lambda *args, **kwargs: self._called(name, *args, **kwargs)

    async def _joined_verb(self, name: str) -> Callable[..., Any]:
        return self._verb(name) if self._joined else await asyncio.to_thread(self._verb, name)

    async def _called(self, name: str, *args: Any, **kwargs: Any) -> Any:
        verb = await self._joined_verb(name)
        loop = asyncio.get_running_loop()
        taken = [_fed(arg, loop) if isinstance(arg, AsyncIterable) else arg for arg in args]
        return await asyncio.wrap_future(ENGINE.submit(verb(*taken, **kwargs)))

    async def _iterated(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        verb = await self._joined_verb(name)
        async for item in _over(verb(*args, **kwargs)):
            yield item

    @contextlib.asynccontextmanager
    async def _entered(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        context = (await self._joined_verb(name))(*args, **kwargs)
        value = await asyncio.wrap_future(ENGINE.submit(context.__aenter__()))
        try:
            if name == "terminal":
                yield _AsyncSocket(value)
            elif name == "read":
                yield value[0], _over(value[1])
            else:
                yield _over(value)
        finally:
            await asyncio.wrap_future(ENGINE.submit(context.__aexit__(None, None, None)))

    async def close(self) -> None:
        await asyncio.to_thread(self._leave)


class _AsyncSocket:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: str | bytes) -> None:
        await asyncio.wrap_future(ENGINE.submit(self._socket.send(message)))

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        message: str | bytes | None = await asyncio.wrap_future(ENGINE.submit(self._socket.receive(timeout_s)))
        return message


_END: Final = object()


async def _next(source: AsyncIterator[Any]) -> Any:
    return await anext(source, _END)


async def _closed(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


async def _over(source: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """What the engine's loop yields, on the caller's loop."""
    try:
        while (item := await asyncio.wrap_future(ENGINE.submit(_next(source)))) is not _END:
            yield item
    finally:
        await asyncio.wrap_future(ENGINE.submit(_closed(source)))


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
    plain = (str, bytes, dict, list, tuple)
    return [_pulled(arg) if isinstance(arg, Iterable) and not isinstance(arg, plain) else arg for arg in args]


async def _pulled(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    iterator = iter(source)
    while (part := await asyncio.to_thread(next, iterator, _END)) is not _END:
        assert isinstance(part, bytes)
        yield part
