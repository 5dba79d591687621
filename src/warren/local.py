"""The SDK's local mode: sandboxes of this machine, in this process, without a server.

One service serves the whole process. It runs on an event loop in a thread of its own, begins with the first use and
ends with the last client that is closed, or with the process; so programs with several event loops, with
threads, or with none can use it at once. The sessions of threads are kept in the state directory, as a server would,
for the next program that uses it; other sessions end with the service at the latest. A state directory has one user
at a time, a server or a program. A process that was forked cannot use the service of its parent.

Calls run on the service's loop, each as a task of its own. What lasts (a stream, a file that is read, a terminal) is
run there by one task from its beginning to its end, and what it yields is fetched (`Pump`).
"""

import asyncio
import concurrent.futures.thread
import contextlib
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from warren.model.errors import InvalidRequest, Unavailable, WarrenError

if TYPE_CHECKING:
    from warren.local_verbs import Verbs
    from warren.service import Service

T = TypeVar("T")

_STREAMS: Final = frozenset({"stream", "follow", "watch"})
_CONTEXTS: Final = frozenset({"read", "pack", "terminal"})
_AHEAD: Final = 4  # what a pump fetches before it is asked for
_END: Final = object()


class Engine:
    """The service of this process. `use` and `leave` count its clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._clients = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._service: Service | None = None
        self.verbs: Verbs | None = None

    def __repr__(self) -> str:
        return f"<Engine {'running' if self._loop else 'not running'}, {self._clients} clients>"

    def use(self) -> None:
        self._check_process()
        with self._lock:
            if self._clients == 0:
                self._start()
            self._clients += 1

    def leave(self) -> None:
        if self._process != os.getpid():
            return
        with self._lock:
            self._clients -= 1
            if self._clients == 0:
                self._stop()

    def end(self) -> None:
        """With the process: whoever forgot to close."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._clients:
                self._clients = 0
                self._stop()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise InvalidRequest(
                "local mode does not work in a process that was forked from one that has used it",
                remedy="start processes with multiprocessing's spawn, or use a server",
            )

    def _start(self) -> None:
        make, new_loop = _imported()
        loop = self._loop = new_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="warren local", daemon=True)
        self._thread.start()
        try:
            self._service, self.verbs = self.wait(make())
        except BaseException as exc:
            self._end_loop()
            if type(exc) is Unavailable and "state directory" in exc.message:
                remedy = 'use that server (mode="remote"), or another state directory: set WARREN_STATE_DIR'
                raise Unavailable(exc.message, remedy=remedy) from None
            raise

    def _stop(self) -> None:
        service, verbs = self._service, self.verbs
        self._service = self.verbs = None
        assert service is not None
        assert verbs is not None
        try:
            self.wait(_stopped(service, verbs))
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        loop = self._loop
        if loop is None or self._process != os.getpid():
            work.close()
            self._check_process()
            raise InvalidRequest("this client was closed while it was in use")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _imported() -> tuple[
    Callable[[], Coroutine[Any, Any, "tuple[Service, Verbs]"]], Callable[[], asyncio.AbstractEventLoop]
]:
    """What makes the service, and the loop it runs on."""
    try:
        import uvloop

        from warren.config import read_settings
        from warren.local_verbs import Verbs
        from warren.service import Service
        from warren.wiring import build_context
    except ImportError as exc:
        raise InvalidRequest(
            f"local mode needs the packages of the server: {exc}", remedy="install them: pip install 'warren[server]'"
        ) from exc
    settings = read_settings()

    async def make() -> "tuple[Service, Verbs]":
        service = Service(settings)
        await service.start()
        return service, Verbs(build_context(settings, service.sessions))

    return make, uvloop.new_event_loop


async def _stopped(service: "Service", verbs: "Verbs") -> None:
    """Sessions that nobody could come back to are ended."""
    try:
        for session_id in list(verbs.threadless):
            with contextlib.suppress(WarrenError):
                await verbs.delete(session_id)
    finally:
        await service.stop()


ENGINE: Final = Engine()
# Not with atexit: by then executors take no more work, and the service needs them to stop. What is registered last is
# called first, and executors registered theirs when their module, named here, was imported.
assert concurrent.futures.thread
threading._register_atexit(ENGINE.end)  # type: ignore[attr-defined]


class Pump:
    """Runs an async generator in a task of the engine's loop; `take` gives what it yields, then `_END`."""

    def __init__(self, source: AsyncGenerator[Any, None]) -> None:
        self._items: asyncio.Queue[tuple[Any, Exception | None]] = asyncio.Queue(_AHEAD)
        self._task = asyncio.ensure_future(self._run(source))

    async def _run(self, source: AsyncGenerator[Any, None]) -> None:
        failed: Exception | None = None
        try:
            async with contextlib.aclosing(source):
                async for item in source:
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
        self._task.cancel()
        await asyncio.wait([self._task])


async def _pump(source: AsyncGenerator[Any, None]) -> Pump:
    return Pump(source)


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
        pump = ENGINE.wait(_pump(self._source(name, *args, **kwargs)))
        try:
            yield from _taken(pump)
        finally:
            ENGINE.wait(pump.stop())

    @contextlib.contextmanager
    def _entered(self, name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        pump = ENGINE.wait(_pump(self._source(name, *args, **kwargs)))
        try:
            first = ENGINE.wait(pump.take())
            yield _Socket(first) if name == "terminal" else (first, _taken(pump)) if name == "read" else _taken(pump)
        finally:
            ENGINE.wait(pump.stop())

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
        await self._begin()
        loop = asyncio.get_running_loop()
        taken = [_fed(arg, loop) if isinstance(arg, AsyncIterable) else arg for arg in args]
        return await _there(self._verb(name)(*taken, **kwargs))

    async def _iterated(self, name: str, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        await self._begin()
        pump = await _there(_pump(self._source(name, *args, **kwargs)))
        try:
            async for item in _taken_there(pump):
                yield item
        finally:
            await _there(pump.stop())

    @contextlib.asynccontextmanager
    async def _entered(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await self._begin()
        pump = await _there(_pump(self._source(name, *args, **kwargs)))
        try:
            first, rest = await _there(pump.take()), _taken_there(pump)
            yield _AsyncSocket(first) if name == "terminal" else (first, rest) if name == "read" else rest
        finally:
            await _there(pump.stop())

    async def close(self) -> None:
        await asyncio.to_thread(self._leave)


async def _there(work: Coroutine[Any, Any, T]) -> T:
    """On the engine's loop; cancelled here, it is cancelled there."""
    return await asyncio.wrap_future(ENGINE.submit(work))


async def _taken_there(pump: Pump) -> AsyncGenerator[Any, None]:
    while (item := await _there(pump.take())) is not _END:
        yield item


class _AsyncSocket:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: str | bytes) -> None:
        await _there(self._socket.send(message))

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        message: str | bytes | None = await _there(self._socket.receive(timeout_s))
        return message


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
    plain = (str, bytes, dict, list, tuple)
    return [_pulled(arg) if isinstance(arg, Iterable) and not isinstance(arg, plain) else arg for arg in args]


async def _pulled(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    iterator = iter(source)
    while (part := await asyncio.to_thread(next, iterator, _END)) is not _END:
        assert isinstance(part, bytes)
        yield part
