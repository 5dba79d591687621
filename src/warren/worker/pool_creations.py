"""Makes the sandboxes of a pool, and remembers how that has failed."""

import asyncio
import copy
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import ImageBuilding, MachineFull, ProviderUnavailable, WarrenError
from warren.worker.pool_plan import NO_FAILURES, is_hopeless
from warren.worker.pool_stock import PoolMember, PoolStock, WaitQueue

LASTING: Final = 3  # this many failures in a row, with pauses between them, count as lasting
_log = get_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSource:
    """Where the sandboxes of a pool come from and go to. `create` makes one; `destroy` starts the destruction of one
    without waiting for it. `version` tells the version of the image that `create` uses. At most `parallel` are made at
    once. `pressure` and `ceiling` tell how much room the machine has."""

    provider: str = ""
    create: Callable[[], Awaitable[Sandbox]]
    destroy: Callable[[str], object]
    version: Callable[[], Awaitable[str]]
    parallel: int
    pressure: Callable[[], bool] = lambda: False
    ceiling: Callable[[], float] = lambda: math.inf


class PoolCreations:
    """Calls `made` with each new sandbox. `failures` are those since the last success."""

    def __init__(
        self,
        source: PoolSource,
        clock: Clock,
        stock: PoolStock,
        queue: WaitQueue,
        wake: asyncio.Event,
        made: Callable[[PoolMember], None],
    ) -> None:
        self._source = source
        self._clock = clock
        self._stock = stock
        self._queue = queue
        self._wake = wake
        self._made = made
        self.failures = NO_FAILURES
        self.succeeded = self.failed = 0
        self._tasks: dict[asyncio.Task[None], float] = {}  # in the order of their beginnings, with these
        self._is_cancelled = False

    @property
    def running(self) -> int:
        return len(self._tasks)

    @property
    def running_since(self) -> float:
        """Returns when the oldest of the running ones began."""
        return next(iter(self._tasks.values()), math.inf)

    def start(self, count: int, pool: str) -> None:
        for _ in range(count):
            task = asyncio.ensure_future(self._create(pool))
            self._tasks[task] = self._clock.now()
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._wake.set()

    async def _create(self, pool: str) -> None:
        try:
            # Before the creation: if the image changes meanwhile, a new sandbox counts as stale, not an old one as new.
            version = await self._source.version()
            self._stock.note_version(version)
            sandbox = await self._source.create()
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise
            # What it shared with a creation that was cancelled has ended: without a pause it would be tried in a loop.
            self._note_failure(ProviderUnavailable("making the sandbox was broken off"), pool)
            return
        except Exception as exc:
            self._note_failure(exc, pool)
            return
        self.succeeded += 1
        self.failures = NO_FAILURES
        self._made(PoolMember(sandbox, version))

    def _note_failure(self, error: Exception, pool: str) -> None:
        self.failed += 1
        before, self.failures = self.failures, self.failures.with_one_more(error, self._clock.now(), random.random())
        count, is_new = self.failures.count, str(error) != str(before.error)
        if count > before.count and (is_new or count.bit_count() == 1):  # the 2nd, 4th, 8th … time of the same
            write = _log.info if isinstance(error, ImageBuilding) else _log.warning
            write(
                "sandbox_not_created",
                pool=pool,
                provider=self._source.provider,
                failures=count,
                error=error.message if isinstance(error, WarrenError) else error,
                remedy=getattr(error, "remedy", "") or None,
            )
        if is_hopeless(error):
            self._queue.fail_all(lambda: _copy_of(error))

    def note_room(self) -> None:
        """Notes that a sandbox was destroyed: if the machine was full, creating one may work now."""
        if isinstance(self.failures.error, MachineFull):
            self.failures = NO_FAILURES
            self._wake.set()

    async def cancel(self) -> None:
        self._is_cancelled = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _copy_of(error: Exception) -> Exception:
    """Copies an error, because every waiter raises an exception object of its own."""
    if isinstance(error, WarrenError):
        return copy.copy(error)
    return error
