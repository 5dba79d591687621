"""Runs work to its end even if the caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` to its end and returns its result; a cancellation that came meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # Without the shield, a cancelled scope around us would cancel this task again in every turn of the loop.
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
