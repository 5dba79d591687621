"""Work that is not left half done when the caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` through any cancellation; a cancellation that came meanwhile goes on afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # The shield keeps a scope around us from cancelling again and again while we wait.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as exc:
                cancelled = exc
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
