"""What a sandbox uses, as the kernel counts it: processors, memory and processes from its cgroup, room on its disk.

Nothing runs in the sandbox for it. One reading takes some 0.06 ms, and longer where the kernel has to sum up the counts
of many processors, so readings are made in a thread; simultaneous requests share one thread.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warren.model.errors import ProviderUnavailable, SandboxLost, WarrenError
from warren.model.metrics import SandboxMetrics
from warren.sandboxes.host.cgroups import SandboxCgroup
from warren.sandboxes.host.disk_room import disk_mount

_PATH_ONLY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class MetricsSource:
    """Reads the metrics of one sandbox. Its first process's mounts show where its disk is; `alive` returns whether that
    process still runs."""

    cgroup: SandboxCgroup
    pid: int
    alive: Callable[[], bool]
    _disk: tuple[str, int] | None = field(default=None, init=False)

    def read(self) -> SandboxMetrics:
        """Reads the metrics. Raises OSError, also if the sandbox is gone."""
        use = self.cgroup.use()
        return SandboxMetrics(
            cpu_s=use.cpu_s,
            memory_bytes=use.memory,
            cache_bytes=use.cache,
            processes=use.processes,
            disk_bytes=self._disk_bytes(),
        )

    def _disk_bytes(self) -> int:
        if self._disk is None:
            self._disk = self._find_disk()
        with suppress(ProcessLookupError):
            return self._read_disk(*self._disk)
        with suppress(FileNotFoundError):
            if (found := self._find_disk())[1] == self._disk[1]:  # a volume covers the place where it was seen before
                self._disk = found
        return self._read_disk(*self._disk)

    def _find_disk(self) -> tuple[str, int]:
        return disk_mount(Path(f"/proc/{self.pid}/mountinfo").read_text())

    def _read_disk(self, where: str, device: int) -> int:
        fd = os.open(f"/proc/{self.pid}/root{where}", _PATH_ONLY)
        try:
            if os.fstat(fd).st_dev != device:
                raise ProcessLookupError  # the pid belongs to another process now
            disk = os.fstatvfs(fd)
        finally:
            os.close(fd)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


class MetricsReader:
    """Reads the metrics of a provider's sandboxes: one thread at a time reads for all callers."""

    def __init__(self) -> None:
        self._asked: list[tuple[MetricsSource, asyncio.Future[SandboxMetrics]]] = []
        self._reading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<MetricsReader: {len(self._asked)} asked>"

    async def read(self, source: MetricsSource) -> SandboxMetrics:
        """Reads the metrics of a sandbox. Raises SandboxLost, or ProviderUnavailable if the kernel does not tell."""
        answer: asyncio.Future[SandboxMetrics] = asyncio.get_running_loop().create_future()
        self._asked.append((source, answer))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all(), name="metrics")
        return await answer

    async def _read_all(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            found = await asyncio.to_thread(_read_each, [source for source, _ in asked])
            for (_, answer), metrics in zip(asked, found, strict=True):
                if answer.done():  # the caller has gone
                    continue
                if isinstance(metrics, SandboxMetrics):
                    answer.set_result(metrics)
                else:
                    answer.set_exception(metrics)


def _read_each(sources: Sequence[MetricsSource]) -> list[SandboxMetrics | WarrenError]:
    return [_read_one(source) for source in sources]


def _read_one(source: MetricsSource) -> SandboxMetrics | WarrenError:
    try:
        return source.read()
    except OSError as exc:
        if not source.alive():
            return SandboxLost("the sandbox is lost: its first process has ended")
        return ProviderUnavailable(f"the metrics of a sandbox cannot be read: {exc.strerror}")
