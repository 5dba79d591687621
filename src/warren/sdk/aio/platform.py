"""What differs between the two clients beyond `await`: here, the one for asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import IO, Any, ParamSpec, TypeVar

from warren.sdk.aio.backend import AsyncBackend
from warren.sdk.aio.remote import AsyncRemote
from warren.sdk.aio.transport import AsyncTransport
from warren.sdk.discovery import find_key, find_url
from warren.sdk.pieces import checked, read_in_pieces

P = ParamSpec("P")
T = TypeVar("T")

AsyncLock = asyncio.Lock
AsyncPieces = AsyncIterable[bytes] | Iterable[bytes] | IO[bytes]


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """For what blocks: files of this machine."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def pieces_of(source: AsyncPieces) -> AsyncGenerator[bytes, None]:
    """What a file or an iterable gives; what blocks, in threads."""
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield checked(piece)
        return
    iterator = read_in_pieces(source)
    while taken := await asyncio.to_thread(lambda: list(islice(iterator, 1))):
        yield taken[0]


async def before_long(work: Callable[[], Coroutine[Any, Any, None]], at_most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await work()


async def all_of(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], at_once: int) -> list[T]:
    """The results in order; so many run at a time. If one fails, none is left running."""
    slots = asyncio.Semaphore(at_once)

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


def open_backend(mode: str, server_url: str, api_key: str) -> AsyncBackend:
    if mode == "local":
        from warren.local import AsyncLocal

        return AsyncLocal()
    url = server_url or find_url()
    return AsyncRemote(AsyncTransport(url, api_key or find_key(url)))
