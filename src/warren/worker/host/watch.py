"""Looks at a figure of the kernel several times a second, for what no limit of the kernel bounds."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from warren.logs import get_log

_EVERY_S: Final = 0.2

_log = get_log(__name__)


class Watch(ABC):
    """`start` is idempotent. A look that fails is logged, and the watch goes on after a minute."""

    name: str
    retry_s = 60.0

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self.name)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._look()
            except (OSError, ValueError, IndexError) as exc:
                _log.warning("watch_failed", watch=self.name, action="retry", error=exc)
                await asyncio.sleep(self.retry_s)

    @abstractmethod
    async def _look(self) -> None: ...
