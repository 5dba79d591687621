"""Destroys sandboxes, and looks for those that should be gone.

Every destruction is a task that finishes even if its caller has gone; one that fails is tried again every few seconds,
and a last time by `drain`. So is the removal of what a failed creation has left.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from warren.kernel.logs import get_log
from warren.kernel.owned_tasks import OwnedTasks
from warren.worker.holdings import Holdings
from warren.worker.options import LABELS, WorkerOptions
from warren.worker.pool import Pool
from warren.worker.provider_choice import ProviderChoice

_AT_ONCE: Final = 8
_RETRY_S: Final = 5.0
_LEAK_LOOK_S: Final = 60.0
_LEAK_LOOKS: Final = 3  # an unknown sandbox that this many looks in a row have found is a leak
_log = get_log(__name__)


class Destroyer:
    """Tells `pools` when there is room again. `running` holds the destructions under way. `unfinished` holds their ids,
    and those of sandboxes whose destruction has failed."""

    def __init__(
        self,
        choice: ProviderChoice,
        holdings: Holdings,
        tasks: OwnedTasks,
        pools: Mapping[Any, Pool],
        options: WorkerOptions,
    ) -> None:
        self._choice = choice
        self._holdings = holdings
        self._tasks = tasks
        self._pools = pools
        self._options = options
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.unfinished: set[str] = set()
        self._strangers: dict[str, int] = {}  # unknown sandboxes, each with how many looks in a row have found it

    async def destroy(self, sandbox_id: str) -> None:
        """Destroys a sandbox; does nothing if it is gone, or if no worker of this state directory made it.

        The destruction goes on if the caller is cancelled, and is tried again if it fails. Raises what the provider
        raises.
        """
        if not await self._is_mine(sandbox_id):
            return
        self._holdings.lost.pop(sandbox_id, None)
        await asyncio.shield(self.begin(sandbox_id))

    async def _is_mine(self, sandbox_id: str) -> bool:
        held = self._holdings
        if any(sandbox_id in some for some in (held.claimed, held.lost, self.running, self.unfinished)):
            return True
        mine = await self._choice.list_ids(LABELS)
        if sandbox_id in mine:
            held.makers[sandbox_id] = mine[sandbox_id]
        return sandbox_id in mine

    def begin(self, sandbox_id: str) -> asyncio.Task[None]:
        """Returns the task that destroys the sandbox, which all callers share."""
        # Before the task runs: from now on nobody may find the sandbox.
        self._holdings.claimed.pop(sandbox_id, None)
        self._holdings.live.discard(sandbox_id)
        self._holdings.frozen.discard(sandbox_id)
        task = self.running.get(sandbox_id)
        if task is None:
            task = self.running[sandbox_id] = self._tasks.run(self._destroy(sandbox_id))
            task.add_done_callback(lambda _: self.running.pop(sandbox_id, None))
        return task

    async def undo(self, sandbox_id: str) -> None:
        """Destroys a sandbox and waits for the end. Does not raise if that fails: `retry` tries it again."""
        await asyncio.wait([self.begin(sandbox_id)])

    async def _destroy(self, sandbox_id: str) -> None:
        self.unfinished.add(sandbox_id)
        try:
            async with self._slots:
                self._options.fault("before-destroy")
                began = time.perf_counter()
                await self._holdings.maker(sandbox_id).destroy(sandbox_id)
                self._options.recorder.sandbox_destroyed(time.perf_counter() - began)
                self._options.fault("destroyed")
        except Exception as exc:
            _log.warning("sandbox_not_destroyed", sandbox=sandbox_id, error=exc, retry_s=_RETRY_S)
            raise
        self.unfinished.discard(sandbox_id)
        self._holdings.makers.pop(sandbox_id, None)
        for pool in self._pools.values():
            pool.creations.note_room()

    async def retry(self) -> None:
        """Repeats failed destructions, and destroys what providers could not take back, for ever."""
        while True:
            await self._options.clock.sleep(_RETRY_S)
            self._begin_failed()

    def _begin_failed(self) -> None:
        for provider in self._choice.providers.values():
            for sandbox_id in provider.half_made:
                self._holdings.makers[sandbox_id] = provider
                self.unfinished.add(sandbox_id)
        for sandbox_id in self.unfinished - self.running.keys():
            self.begin(sandbox_id)

    async def drain(self) -> None:
        self._begin_failed()
        while self.running:
            await asyncio.wait(list(self.running.values()))

    # -- leaks

    async def look_for_leaks(self) -> None:
        """Logs sandboxes that carry a worker's label and that this worker does not know, for ever.

        It does not destroy them: the operator should find out where they come from.
        """
        held = self._holdings
        while True:
            await self._options.clock.sleep(_LEAK_LOOK_S)
            try:
                there = (await self._choice.list_ids(LABELS)).keys()
            except Exception as exc:
                _log.info("leaks_not_looked_for", error=exc)
                continue
            known = held.live | held.claimed.keys() | held.lost.keys() | self.unfinished | self.running.keys()
            self._strangers = {sandbox_id: self._strangers.get(sandbox_id, 0) + 1 for sandbox_id in there - known}
            if leaked := [sandbox_id for sandbox_id, times in self._strangers.items() if times == _LEAK_LOOKS]:
                _log.warning("sandboxes_leaked", count=len(leaked), sandboxes=sorted(leaked)[:10])

    @property
    def leaks(self) -> int:
        """Returns how many failed destructions wait for another attempt, plus how many unknown sandboxes have been
        there for minutes."""
        strangers = sum(times >= _LEAK_LOOKS for times in self._strangers.values())
        return len(self.unfinished - self.running.keys()) + strangers
