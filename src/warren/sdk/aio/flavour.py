"""What differs between the two clients beyond `await`: here, the one for asyncio."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from warren.sdk.aio.backend import AsyncBackend
from warren.sdk.aio.remote import AsyncRemote
from warren.sdk.aio.transport import AsyncTransport
from warren.sdk.places import find_key, find_url

P = ParamSpec("P")
T = TypeVar("T")

AsyncLock = asyncio.Lock


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """For what blocks: files of this machine."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def all_of(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], at_once: int) -> list[T]:
    """The results in order; so many run at a time."""
    slots = asyncio.Semaphore(at_once)

    async def run(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with slots:
            return await call()

    return list(await asyncio.gather(*(run(call) for call in calls)))


def open_backend(mode: str, server_url: str, api_key: str) -> AsyncBackend:
    if mode == "local":
        from importlib import import_module

        local: AsyncBackend = import_module("warren.local").AsyncLocal()
        return local
    url = server_url or find_url()
    return AsyncRemote(AsyncTransport(url, api_key or find_key(url)))
