"""Runs a function over many inputs, each in a sandbox of its own that ends with it: rollouts, evaluations, test runs.

    from warren import batch

    def rollout(sandbox, answer):
        return sandbox.execute(["python3", "-c", answer], 10).exit_code

    for done in batch.run(rollout, answers, parallel=100, environment="python"):
        print(done.index, done.get())

`run_async` is the same for a coroutine function, which gets an AsyncSandboxClient. Outcomes come in the order in which
they are ready. Whoever stops taking them (`break`, an exception, Ctrl-C, a cancelled task) ends all that runs.
"""

import asyncio
import contextlib
import queue
import random
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, Unpack, cast

from warren.model.errors import (
    InvalidRequest,
    LimitReached,
    NoCapacity,
    QuotaExceeded,
    SandboxLost,
    Unavailable,
    WarrenError,
)
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import AttachOptions, ClientOptions

Input = TypeVar("Input")
Value = TypeVar("Value")
Retries = Mapping[type[Exception], int]

RETRIES: Final[Retries] = {NoCapacity: 100, LimitReached: 100, QuotaExceeded: 100, Unavailable: 5, SandboxLost: 2}
"""How often an input is tried again after an error of this kind, each time in a fresh sandbox. A kind without a number
is an outcome at once."""
PARALLEL: Final = 20
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 15.0
_REPORT_S: Final = 10.0
_REDRAW_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Input, Value]):
    """What came of an input. `index`: which input it was. `seconds`: how long it took with all its attempts."""

    index: int
    input: Input
    value: Value | None = None
    error: Exception | None = None
    attempts: int = 1
    seconds: float = 0.0

    def get(self) -> Value:
        """Returns the function's value, or raises its error."""
        if self.error is not None:
            raise self.error
        return cast("Value", self.value)


def run(
    function: Callable[[SandboxClient, Input], Value],
    inputs: Iterable[Input],
    *,
    parallel: int = PARALLEL,
    retries: Retries = RETRIES,
    progress: bool = False,
    server_url: str = "",
    **options: Unpack[ClientOptions],
) -> Generator[Outcome[Input, Value], None, None]:
    """Yields an outcome for each input. The function runs in threads, so many at once as `parallel` says.

    `options` are those of SandboxClient. `progress` shows on stderr how far it is.
    """
    _check(parallel, options)
    attach = cast("AttachOptions", {name: options[name] for name in AttachOptions.__annotations__ if name in options})  # type: ignore[literal-required]
    threads = ThreadPoolExecutor(parallel, thread_name_prefix="warren-batch")
    ready: queue.Queue[Outcome[Input, Value] | BaseException | None] = queue.Queue(parallel)
    wanted = threading.Event()
    wanted.set()

    def offer(item: Outcome[Input, Value] | BaseException | None) -> None:
        while wanted.is_set():
            with contextlib.suppress(queue.Full):
                return ready.put(item, timeout=0.1)

    async def in_thread(client: AsyncSandboxClient, item: Input) -> Value:
        work = partial(_call, function, client.session_id, item, server_url, attach)
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def take() -> None:
        how: dict[str, Any] = {"parallel": parallel, "retries": retries, "progress": progress, **options}
        async with contextlib.aclosing(run_async(in_thread, inputs, server_url=server_url, **how)) as outcomes:
            async for outcome in outcomes:
                await asyncio.to_thread(offer, outcome)

    def serve() -> None:
        try:
            loop.run_until_complete(task)
        except BaseException as exc:  # the caller's thread raises it
            offer(exc)
        finally:
            offer(None)

    loop = asyncio.new_event_loop()
    task = loop.create_task(take())
    server = threading.Thread(target=serve, name="warren-batch-loop")
    server.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        wanted.clear()
        loop.call_soon_threadsafe(task.cancel)
        server.join()
        loop.close()
        threads.shutdown(wait=False)


async def run_async(
    function: Callable[[AsyncSandboxClient, Input], Awaitable[Value]],
    inputs: Iterable[Input],
    *,
    parallel: int = PARALLEL,
    retries: Retries = RETRIES,
    progress: bool = False,
    server_url: str = "",
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Outcome[Input, Value], None]:
    """Does the same as `run` for a coroutine function."""
    _check(parallel, options)
    total = len(inputs) if isinstance(inputs, Sized) else None
    source = enumerate(inputs)
    ready: asyncio.Queue[Outcome[Input, Value] | Exception | None] = asyncio.Queue(parallel)
    new_client = partial(AsyncSandboxClient, server_url, **options)

    async def lane() -> None:
        try:
            for index, item in source:
                await ready.put(await _outcome(index, item, function, new_client, retries))
        except Exception as exc:  # of the inputs: an error of the function is an outcome
            await ready.put(exc)
        await ready.put(None)

    lanes = [asyncio.create_task(lane()) for _ in range(parallel if total is None else min(parallel, total))]
    shown = _Progress(total) if progress else None
    try:
        left = len(lanes)
        while left:
            if (item := await ready.get()) is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                if shown is not None:
                    shown.add(item)
                yield item
    finally:
        await _end(lanes)
        if shown is not None:
            shown.close()


def _check(parallel: int, options: ClientOptions) -> None:
    if parallel < 1:
        raise InvalidRequest(f"parallel is {parallel}, it must be 1 or more")
    for name in ("thread_id", "session_id"):
        if name in options:
            raise InvalidRequest(f"a batch takes no {name}", remedy="each input has a session of its own")


async def _outcome(
    index: int,
    item: Input,
    function: Callable[[AsyncSandboxClient, Input], Awaitable[Value]],
    new_client: Callable[[], AsyncSandboxClient],
    retries: Retries,
) -> Outcome[Input, Value]:
    began, failed, attempts = time.monotonic(), dict[type[Exception], int](), 0
    while True:
        attempts += 1
        try:
            value = await _attempt(item, function, new_client())
            return Outcome(index, item, value, None, attempts, time.monotonic() - began)
        except Exception as exc:
            kind = next((each for each in type(exc).__mro__ if each in retries), None)
            if kind is None or failed.get(kind, 0) >= retries[kind]:
                return Outcome(index, item, None, exc, attempts, time.monotonic() - began)
            failed[kind] = failed.get(kind, 0) + 1
            await asyncio.sleep(_pause_s(exc, failed[kind]))


async def _attempt(
    item: Input, function: Callable[[AsyncSandboxClient, Input], Awaitable[Value]], client: AsyncSandboxClient
) -> Value:
    try:
        await client.create_session()
        return await function(client, item)
    finally:
        with contextlib.suppress(WarrenError):  # what cannot be ended now ends by its time-outs
            await client.leave()


def _pause_s(exc: Exception, number: int) -> float:
    """Longer each time, and not the same for all, who would come back at once."""
    least = getattr(exc, "retry_after_s", None) or _FIRST_PAUSE_S
    return float(min(least * 1.5 ** (number - 1), max(least, _LONGEST_PAUSE_S)) * random.uniform(0.75, 1.25))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels them and waits until their sandboxes have ended, although the caller may be cancelled meanwhile."""
    for each in tasks:
        each.cancel()
    cancelled = False
    while any(not each.done() for each in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _call(
    function: Callable[[SandboxClient, Input], Value],
    session_id: str,
    item: Input,
    server_url: str,
    options: AttachOptions,
) -> Value:
    with SandboxClient.attach(session_id, server_url, **options) as client:
        return function(client, item)


class _Progress:
    """A line on stderr: on a terminal it is written anew each time, elsewhere every ten seconds."""

    def __init__(self, total: int | None) -> None:
        self._total, self._done, self._failed = total, 0, 0
        self._began = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def add(self, outcome: Outcome[Any, Any]) -> None:
        self._done += 1
        self._failed += outcome.error is not None
        if time.monotonic() - self._shown >= (_REDRAW_S if self._is_terminal else _REPORT_S):
            self._show()

    def close(self) -> None:
        self._show()
        if self._is_terminal:
            sys.stderr.write("\n")

    def _show(self) -> None:
        self._shown = time.monotonic()
        rate = self._done / max(self._shown - self._began, 1e-6)
        parts = [f"{self._done} of {self._total}" if self._total is not None else f"{self._done}"]
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"{rate:.1f} a second"]
        if self._total is not None and 0 < self._done < self._total:
            parts.append(f"{(self._total - self._done) / rate:.0f} s left")
        line = ", ".join(parts)
        sys.stderr.write(f"\r{line:<78}" if self._is_terminal else f"{line}\n")
        sys.stderr.flush()
