"""Checks numbers of the kernel many times a second, for resources that no kernel limit bounds."""

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from warren.kernel.logs import get_log

_EVERY_S: Final = 0.1  # in that time half a processor can fill 250 MiB of queues

_log = get_log(__name__)


class Watch(ABC):
    """Watches one number. If a check fails, logs it and waits a minute."""

    name: str
    retry_s = 60.0

    def __init__(self) -> None:
        self._acting: asyncio.Task[None] | None = None
        self._rests_until = 0.0

    def look(self) -> None:
        if self._acting is not None or time.monotonic() < self._rests_until:
            return
        try:
            if self._is_too_much():
                self._acting = asyncio.create_task(self._run(), name=self.name)
        except (OSError, ValueError, IndexError) as exc:
            self._rest(exc)

    async def close(self) -> None:
        if (acting := self._acting) is not None:
            acting.cancel()
            with suppress(asyncio.CancelledError):
                await acting

    async def _run(self) -> None:
        try:
            await self._act()
        except (OSError, ValueError, IndexError) as exc:
            self._rest(exc)
        finally:
            self._acting = None

    def _rest(self, exc: Exception) -> None:
        _log.warning("watch_failed", watch=self.name, action="retry", error=exc)
        self._rests_until = time.monotonic() + self.retry_s

    @abstractmethod
    def _is_too_much(self) -> bool:
        """Reads the number, and returns whether `_act` must run. Must be fast: it runs on the event loop."""

    @abstractmethod
    async def _act(self) -> None: ...


class Watches:
    """Runs several watches in one task, because waking up costs more than checking. `start` is idempotent."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="kernel-watches")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for watch in self._watches:
            await watch.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            for watch in self._watches:
                watch.look()
