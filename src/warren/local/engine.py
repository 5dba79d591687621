"""The service behind the SDK's local mode: one for the whole process, on an event loop in a thread of its own.

It begins with the first use and ends with the last client that is closed, or with the process; so programs with several
event loops, with threads, or with none can use it at once. The sessions of threads are kept in the state directory, as
a server would, for the next program that uses it; other sessions end with the service at the latest. A state directory
has one user at a time, a server or a program. A process that was forked cannot use the service of its parent.

Work is handed to the loop as a `_Call`, which tells whoever waits for it when it is done: a thread by a lock, another
loop by a callback. That is what futures do, with a third of what they cost.
"""

import asyncio
import concurrent.futures.thread
import contextlib
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from warren.model.errors import InvalidRequest, Unavailable, WarrenError

if TYPE_CHECKING:
    from warren.app.service import Service
    from warren.local.calls import LocalCalls

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

_WORK: Final[set[asyncio.Task[Any]]] = set()  # what callers have running on the loop; touched there only


def own_task(work: Work[T]) -> asyncio.Task[T]:
    """On the loop: a task that is ended before the service is."""
    task = asyncio.get_running_loop().create_task(work)
    _WORK.add(task)
    task.add_done_callback(_WORK.discard)
    return task


class _Call(Generic[T]):
    """Work on the engine's loop. `tell` is called there when it is done."""

    __slots__ = ("_cancelled", "_error", "_task", "_tell", "_told", "_value", "_work")

    def __init__(self, work: Work[T], tell: Callable[[], None]) -> None:
        self._work, self._tell = work, tell
        self._task: asyncio.Task[None] | None = None
        self._cancelled = self._told = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._task = own_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            self._value = await self._work
        except BaseException as exc:
            self._error = exc
        self._told = True
        self._tell()

    def _ended(self, _: object) -> None:
        if not self._told:  # cancelled before it ran at all
            self._work.close()
            self._error = asyncio.CancelledError()
            self._tell()

    def cancel(self) -> None:
        """On the loop, after `begin`: its caller does not want it any more."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._value  # type: ignore[return-value]
        try:
            if isinstance(error, asyncio.CancelledError) and not self._cancelled:
                raise _closed() from error
            raise error
        finally:
            del error  # it holds this frame, and would wait for the collector


def _closed() -> InvalidRequest:
    return InvalidRequest("this client was closed while it was in use", remedy="close it when all its calls are done")


class Engine:
    """The service of this process. `use` and `leave` count its clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while it starts and stops
        self._holder = 0  # the thread that holds it
        # Held while work is handed over: none is when the loop has ended. The collector may come in between.
        self._gate = threading.RLock()
        self._process = os.getpid()
        self._clients = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._service: Service | None = None
        self.calls: LocalCalls | None = None

    def __repr__(self) -> str:
        return f"<Engine {'running' if self._loop else 'not running'}, {self._clients} clients>"

    def use(self) -> None:
        self._check_process()
        with self._held():
            if self._clients == 0:
                self._start()
            self._clients += 1

    def leave(self) -> None:
        if self._process != os.getpid():
            return
        if threading.current_thread() is self._thread or threading.get_ident() == self._holder:
            # The collector closes a client that nobody has any more, in whatever thread it runs. Here nobody may wait.
            with contextlib.suppress(RuntimeError):  # too late for threads: the end of the process does it
                threading.Thread(target=self.leave, name="warren local is left").start()
            return
        with self._held():
            if self._clients == 0:
                return  # ended with the process before
            self._clients -= 1
            if self._clients == 0:
                self._stop()

    def end(self) -> None:
        """With the process: whoever forgot to close."""
        if self._process != os.getpid():
            return
        with self._held():
            if self._clients:
                self._clients = 0
                self._stop()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0

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
            self._service, self.calls = self.wait(make())
        except BaseException as exc:
            self._end_loop()
            if type(exc) is Unavailable and "state directory" in exc.message:
                remedy = 'use that server (mode="remote"), or another state directory: set WARREN_STATE_DIR'
                raise Unavailable(exc.message, remedy=remedy) from None
            raise

    def _stop(self) -> None:
        service, calls = self._service, self.calls
        self._service = self.calls = None
        assert service is not None
        assert calls is not None
        try:
            self.wait(_stopped(service, calls))
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        with self._gate:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(_rest_cancelled())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    # -- work on its loop

    def wait(self, work: Work[T]) -> T:
        """Its result, for a thread; interrupted here, it is cancelled there."""
        done = threading.Lock()
        done.acquire()
        call = self._handed_over(work, done.release)
        try:
            done.acquire()
        except BaseException:
            self._cancel(call)
            raise
        return call.result()

    async def there(self, work: Work[T]) -> T:
        """Its result, for a task of another loop; cancelled here, it is cancelled there."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_set, done)

        call = self._handed_over(work, tell)
        try:
            await done
        except BaseException:
            self._cancel(call)
            raise
        return call.result()

    def finished(self, work: Work[Any]) -> None:
        """Waits for what only lets go of something. Where it cannot be waited for, it is begun, or the end did it.

        An iterator that was left is closed by whoever drops it last, which may be the collector, in any thread.
        """
        if threading.current_thread() is self._thread:
            _Call(work, lambda: None).begin()
            return
        with contextlib.suppress(InvalidRequest):
            self.wait(work)

    async def finished_there(self, work: Work[Any]) -> None:
        with contextlib.suppress(InvalidRequest):
            await self.there(work)

    def _handed_over(self, work: Work[T], tell: Callable[[], None]) -> _Call[T]:
        call = _Call(work, tell)
        with self._gate:
            if self._loop is not None and self._process == os.getpid():
                self._loop.call_soon_threadsafe(call.begin)
                return call
        work.close()
        self._check_process()
        raise _closed()

    def _cancel(self, call: _Call[Any]) -> None:
        with self._gate:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call.cancel)


def _set(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


async def _cancelled(tasks: Collection[asyncio.Task[Any]]) -> None:
    """All of them but this one have ended."""
    if others := set(tasks) - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)


async def _rest_cancelled() -> None:
    """What was handed over at the last moment."""
    await _cancelled(asyncio.all_tasks())


def _imported() -> tuple[Callable[[], Work["tuple[Service, LocalCalls]"]], Callable[[], asyncio.AbstractEventLoop]]:
    """What makes the service, and the loop it runs on."""
    try:
        import uvloop

        from warren.app.service import Service
        from warren.app.wiring import build_context, build_identity
        from warren.config.settings import read_settings
        from warren.local.calls import LocalCalls
    except ImportError as exc:
        raise InvalidRequest(
            f"local mode needs the packages of the server: {exc}", remedy="install them: pip install 'warren[server]'"
        ) from exc
    settings = replace(read_settings(), audit=False, auth=False)  # there is one caller, and it is this process

    async def make() -> "tuple[Service, LocalCalls]":
        service = Service(settings)
        await service.start()
        identity = build_identity(settings, service.tenancy)
        return service, LocalCalls(build_context(settings, service.sessions, service.tenancy, identity))

    return make, uvloop.new_event_loop


async def _stopped(service: "Service", calls: "LocalCalls") -> None:
    """Whoever still waits for something hears that it is over. Sessions that nobody could come back to are ended."""
    await _cancelled(_WORK)
    try:
        for session_id in list(calls.threadless):
            with contextlib.suppress(WarrenError):
                await calls.call("delete_session", session_id)
    finally:
        await service.stop()


def run_before_executors_close(function: Callable[[], None]) -> None:
    """Calls the function when the interpreter exits, while executors still take work: the service needs them to stop.

    `atexit` is too late for that. threading calls what was registered last first, and executors registered theirs when
    their module was imported, so that must have happened. The function of threading is private: see test_private_apis.
    """
    assert concurrent.futures.thread
    threading._register_atexit(function)  # type: ignore[attr-defined]


ENGINE: Final = Engine()
run_before_executors_close(ENGINE.end)
