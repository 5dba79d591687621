"""Takes from frozen sandboxes the memory that the kernel can take: caches, and what can be swapped out.

A write to a file of the cgroup does it, and lasts until nothing more can be had: milliseconds, or much longer where
pages have to be written to a slow disk. Nothing but a signal ends it earlier, and a sandbox that runs again would be in
a race with it. So a program of its own writes (`warren-launch reclaim`), which is killed before the sandbox is thawed
or destroyed, and ends with this process.
"""

import asyncio
from pathlib import Path
from typing import Final

from warren.kernel.logs import get_log
from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.cgroups import SandboxCgroup
from warren.sandboxes.host.processes import run

_AT_ONCE: Final = 2
_BEGIN_S: Final = 0.25  # the caller gets its answer first, and a sandbox that runs again at once keeps its memory
_LONGEST_S: Final = 60.0
_END_S: Final = 20.0
_log = get_log(__name__)


class Reclaims:
    """At most one for each sandbox, and a few at once; the others wait."""

    def __init__(self, launcher: Path) -> None:
        self._launcher = launcher
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Reclaims: {len(self._tasks)}>"

    def begin(self, sandbox_id: str, cgroup: SandboxCgroup) -> None:
        """Begins to take memory from a frozen sandbox; does nothing if that has begun."""
        earlier = self._tasks.get(sandbox_id)
        if earlier is not None and not earlier.cancelling():
            return
        if _has_swap():
            cgroup.allow_swap(True)  # at once: `thaw` takes it back
        task = self._tasks[sandbox_id] = asyncio.create_task(self._run(sandbox_id, cgroup, earlier), name="reclaim")
        task.add_done_callback(lambda ended: self._forget(sandbox_id, ended))

    def _forget(self, sandbox_id: str, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(sandbox_id) is ended:
            del self._tasks[sandbox_id]

    def stop(self, sandbox_id: str) -> None:
        """Does not wait until it has ended."""
        if (task := self._tasks.get(sandbox_id)) is not None:
            task.cancel()

    async def end(self, sandbox_id: str) -> None:
        """Returns when it has ended: the kernel does not remove a cgroup whose file is being written to, and makes
        everybody wait who changes any other."""
        if (task := self._tasks.get(sandbox_id)) is not None:
            task.cancel()
            await asyncio.wait([task], timeout=_END_S)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)

    async def _run(self, sandbox_id: str, cgroup: SandboxCgroup, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await asyncio.sleep(_BEGIN_S)
        async with self._slots:
            try:
                before = await asyncio.to_thread(cgroup.use)
                if (order := cgroup.reclaim_order()) is None:
                    return
                file, size = order
                argv = (str(self._launcher), "reclaim", "--at", file, "--memory", str(size))
                await run(argv, timeout_s=_LONGEST_S)
                after = await asyncio.to_thread(cgroup.use)
            except (OSError, ProviderUnavailable) as exc:
                _log.debug("memory_not_reclaimed", sandbox=sandbox_id, error=exc)
                return
            freed = before.memory + before.cache - after.memory - after.cache
            _log.debug("memory_reclaimed", sandbox=sandbox_id, freed_bytes=freed, left_bytes=after.memory + after.cache)


def _has_swap() -> bool:
    try:
        return Path("/proc/swaps").read_text().count("\n") > 1
    except OSError:
        return False
