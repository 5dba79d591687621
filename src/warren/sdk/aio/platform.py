"""What differs between the two clients beyond `await`: this is the version for asyncio."""

import asyncio
import contextlib
import inspect
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import IO, Any, ParamSpec, TypeVar

from warren.sdk.aio.backend import AsyncBackend
from warren.sdk.discovery import find_key, find_url
from warren.sdk.protocol import check_bytes, read_chunks

P = ParamSpec("P")
T = TypeVar("T")

AsyncLock = asyncio.Lock
sleep = asyncio.sleep
AsyncByteSource = AsyncIterable[bytes] | Iterable[bytes] | IO[bytes]


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a call that blocks, such as one on a local file, without blocking the event loop."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def call_back(function: Callable[[Any], Any], value: Any) -> None:
    """Calls a function of the caller's, which may be async."""
    result = function(value)
    if inspect.isawaitable(result):
        await result


async def iterate_source(source: AsyncByteSource) -> AsyncGenerator[bytes, None]:
    """Yields the bytes of a file or an iterable; reads in threads where reading blocks."""
    if isinstance(source, AsyncIterable):
        async for chunk in source:
            yield check_bytes(chunk)
        return
    iterator = read_chunks(source)
    while taken := await asyncio.to_thread(lambda: list(islice(iterator, 1))):
        yield taken[0]


async def run_at_most(work: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
    """Runs `work`, and gives it up after `timeout_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await work()


async def run_parallel(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], limit: int) -> list[T]:
    """Returns the results in order; runs `limit` calls at a time. If one fails, none is left running."""
    slots = asyncio.Semaphore(limit)

    async def run(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with slots:
            return await call()

    tasks = [asyncio.ensure_future(run(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def remind_to_close(client: object, name: str) -> Callable[[], object]:
    """Warns when the client is lost without having been closed. Returns what stops that."""
    text = f"{name} was not closed: use `async with`, or await leave(), which ends its session too, or close()"
    return weakref.finalize(client, warnings.warn, text, RuntimeWarning).detach


def open_backend(mode: str, server_url: str, api_key: str | None, *, direct: bool = False) -> AsyncBackend:
    if mode == "local":
        from warren.local import AsyncLocal

        return AsyncLocal()
    # aiohttp takes longer to import than all the rest.
    from warren.sdk.aio.remote import AsyncRemote
    from warren.sdk.aio.transport import AsyncTransport

    url = server_url or find_url()
    key = find_key(url) if api_key is None else api_key
    main = AsyncRemote(AsyncTransport(url, key))
    if not direct:
        return main
    from warren.sdk.aio.direct import AsyncDirect

    return AsyncDirect(main, lambda url: AsyncRemote(AsyncTransport(url, key)))
