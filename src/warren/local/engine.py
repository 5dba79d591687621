"""The service behind the SDK's local mode: one for the whole process, on an event loop in a thread of its own.

It starts with the first use, and stops when the last client is closed or the process ends. So programs with several
event loops, with threads, or with neither can use it at once. As with a server, the sessions of threads stay in the
state directory for the next program that uses it; other sessions end with the service at the latest. One process at a
time uses a state directory, a server or a program. A forked process cannot use the service of its parent.

Work goes to the loop as a `_Submission`, which notifies the waiting side when it is done: a thread by a lock, another
loop by a callback. Futures do the same at three times the cost.
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
    from warren.config.settings import Settings
    from warren.local.calls import LocalCalls

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

_TASKS: Final[set[asyncio.Task[Any]]] = set()  # the work of callers; used only on the engine's loop


def start_task(work: Work[T]) -> asyncio.Task[T]:
    """Starts a task that ends before the service does. Call it on the engine's loop."""
    task = asyncio.get_running_loop().create_task(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    return task


class _Submission(Generic[T]):
    """Work on the engine's loop, which calls `notify` when it is done."""

    __slots__ = ("_cancelled", "_error", "_notified", "_notify", "_task", "_value", "_work")

    def __init__(self, work: Work[T], notify: Callable[[], None]) -> None:
        self._work, self._notify = work, notify
        self._task: asyncio.Task[None] | None = None
        self._cancelled = self._notified = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._task = start_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            self._value = await self._work
        except BaseException as exc:
            self._error = exc
        self._notified = True
        self._notify()

    def _ended(self, _: object) -> None:
        if not self._notified:  # cancelled before it ran at all
            self._work.close()
            self._error = asyncio.CancelledError()
            self._notify()

    def cancel(self) -> None:
        """Cancels the work. Called on the loop, after `begin`, when the caller has stopped waiting."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._value  # type: ignore[return-value]
        try:
            if isinstance(error, asyncio.CancelledError) and not self._cancelled:
                raise _closed_error() from error
            raise error
        finally:
            del error  # it refers to this frame, and only the collector would free both


def _closed_error() -> InvalidRequest:
    return InvalidRequest("this client was closed while it was in use", remedy="close it when all its calls are done")


class Engine:
    """The service of this process. `use` and `leave` count its clients; the first starts it, the last stops it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while the service starts and stops
        self._holder = 0  # the id of the thread that holds `_lock`
        # Held while work is submitted, so that none is submitted to a loop that has ended. It is re-entrant because the
        # garbage collector may run code that submits work in a thread that holds it already.
        self._gate = threading.RLock()
        self._process = os.getpid()
        self._clients = 0
        self._e2b_api_key: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._service: Service | None = None
        self.calls: LocalCalls | None = None

    def __repr__(self) -> str:
        return f"<Engine {'running' if self._loop else 'not running'}, {self._clients} clients>"

    def use(self, e2b_api_key: str | None = None) -> None:
        """Starts the service, if it does not run. With `e2b_api_key` it has the provider e2b as well, if that, or
        E2B_API_KEY for an empty one, is a key. Raises InvalidRequest if it runs already with another key."""
        self._check_process()
        with self._held():
            if self._clients == 0:
                self._start(e2b_api_key)
            elif e2b_api_key and e2b_api_key != self._e2b_api_key:
                raise InvalidRequest(
                    "local mode runs in this program already, with another key for E2B or none",
                    remedy="close what uses it first, or set E2B_API_KEY and WARREN_PROVIDER for the whole program",
                )
            self._clients += 1

    def leave(self) -> None:
        if self._process != os.getpid():
            return
        if threading.current_thread() is self._thread or threading.get_ident() == self._holder:
            # The garbage collector closes an unused client in whatever thread it runs, also in the one that holds the
            # lock, or in that of the loop, which stopping waits for. Neither may wait for the lock.
            with contextlib.suppress(RuntimeError):  # the process ends, and `end` stops the service
                threading.Thread(target=self.leave, name="warren local leave").start()
            return
        with self._held():
            if self._clients == 0:
                return  # `end` has stopped it
            self._clients -= 1
            if self._clients == 0:
                self._stop()

    def end(self) -> None:
        """Stops the service when the process ends and clients were not closed."""
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

    def _start(self, e2b_api_key: str | None) -> None:
        make, new_loop = _import_parts(e2b_api_key)
        self._e2b_api_key = e2b_api_key
        loop = self._loop = new_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="warren local", daemon=True)
        self._thread.start()
        try:
            self._service, self.calls = self.wait(make())
        except BaseException as exc:
            self._end_loop()
            if type(exc) is Unavailable and "state directory" in exc.message:
                remedy = 'use that server (mode="remote", WARREN_URL), or set WARREN_STATE_DIR to another directory'
                raise Unavailable(exc.message, remedy=remedy) from None
            raise

    def _stop(self) -> None:
        service, calls = self._service, self.calls
        self._service = self.calls = None
        assert service is not None
        assert calls is not None
        try:
            self.wait(_stop_service(service, calls))
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        with self._gate:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(_cancel_all())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    # -- work on its loop

    def wait(self, work: Work[T]) -> T:
        """Blocks this thread until the work is done on the engine's loop; an interrupt cancels the work."""
        done = threading.Lock()
        done.acquire()
        call = self._submit(work, done.release)
        try:
            done.acquire()
        except BaseException:
            self._cancel(call)
            raise
        return call.result()

    async def run(self, work: Work[T]) -> T:
        """Awaits the work from a task of another loop; cancelling that task cancels the work."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed, and nobody waits
                loop.call_soon_threadsafe(_resolve, done)

        call = self._submit(work, notify)
        try:
            await done
        except BaseException:
            self._cancel(call)
            raise
        return call.result()

    def finish(self, work: Work[Any]) -> None:
        """Waits for work that releases something. If the engine has ended, that has been done already.

        On the engine's own thread it only starts the work: the garbage collector may close an iterator in any thread.
        """
        if threading.current_thread() is self._thread:
            _Submission(work, lambda: None).begin()
            return
        with contextlib.suppress(InvalidRequest):
            self.wait(work)

    async def finish_async(self, work: Work[Any]) -> None:
        with contextlib.suppress(InvalidRequest):
            await self.run(work)

    def _submit(self, work: Work[T], notify: Callable[[], None]) -> _Submission[T]:
        call = _Submission(work, notify)
        with self._gate:
            if self._loop is not None and self._process == os.getpid():
                self._loop.call_soon_threadsafe(call.begin)
                return call
        work.close()
        self._check_process()
        raise _closed_error()

    def _cancel(self, call: _Submission[Any]) -> None:
        with self._gate:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call.cancel)


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


async def _cancel_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels the tasks except this one, and waits for them."""
    if others := set(tasks) - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)


async def _cancel_all() -> None:
    """Cancels work that was submitted at the last moment."""
    await _cancel_tasks(asyncio.all_tasks())


def _import_parts(
    e2b_api_key: str | None,
) -> tuple[Callable[[], Work["tuple[Service, LocalCalls]"]], Callable[[], asyncio.AbstractEventLoop]]:
    """Imports and returns the functions that make the service, and the loop it runs on."""
    try:
        import uvloop

        from warren.app.service import Service
        from warren.app.wiring import build_context, build_identity
        from warren.config.settings import read_settings
        from warren.local.calls import LocalCalls
        from warren.model.image_pulls import ON
    except ImportError as exc:
        raise InvalidRequest(
            f"local mode needs the packages of the server: {exc}",
            remedy="install them: pip install 'warren-sandbox[server]'; or name a server: set WARREN_URL",
        ) from exc
    settings = replace(read_settings(), audit=False, auth=False, metrics=False)  # the only caller is this process
    if settings.sources["image_pull"] == "default":
        settings = replace(settings, image_pull=ON)
    if e2b_api_key is not None:
        settings = _with_e2b(settings, e2b_api_key or settings.e2b_api_key)

    async def make() -> "tuple[Service, LocalCalls]":
        service = Service(settings, is_local=True)
        await service.start()
        identity = build_identity(settings, service.tenancy)
        parts = service.environments, service.sessions, service.tenancy, identity
        context = build_context(settings, *parts, logs=service.logs)
        return service, LocalCalls(context)

    return make, uvloop.new_event_loop


def _with_e2b(settings: "Settings", key: str) -> "Settings":
    """Returns the settings with the provider e2b, if there is a key. Unless the operator has chosen the provider or the
    pool, nothing is made ahead: the far side's sandboxes cost money."""
    if not key:
        return settings
    pools = ("pool_size", "pool_min", "pool_max")
    if "e2b" not in settings.providers:
        settings = replace(settings, providers=(*settings.providers, "e2b"))
        if all(settings.sources[name] == "default" for name in pools):
            settings = replace(settings, pool_size=0, pool_min=0, pool_max=0)
    return replace(settings, e2b_api_key=key)


async def _stop_service(service: "Service", calls: "LocalCalls") -> None:
    """Cancels the work of callers, ends the sessions that have no thread, and stops the service."""
    await _cancel_tasks(_TASKS)
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
