"""Tasks that belong to an object, not to the request that caused them: a caller that leaves does not end them."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def run(
        self, work: Coroutine[Any, Any, T], name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Starts a task and returns it. An error goes to whoever awaits the task; if nobody does, it is dropped."""
        task = asyncio.create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._remove)
        return task

    def _remove(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it otherwise

    async def wait(self) -> None:
        """Waits until no task is left, including tasks that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def cancel(self) -> None:
        """Cancels the tasks that run now, and waits until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
