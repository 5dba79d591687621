"""Ends the commands of a sandbox that fills the kernel's memory with unread netlink messages.

Programs need netlink sockets to list the interfaces. Each has a queue of up to some hundred KiB that the kernel charges
to nobody, on cgroup v1 and v2 alike: a sandbox takes 280 MiB a second. There is no limit for all of them together. So
the kernel's memory that cannot be reclaimed is looked at several times a second, one figure for the whole machine. When
it has grown by GROWTH since it was least, the queues of each sandbox are added up.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.logs import get_log
from warren.worker.host.file_locks import sandbox_of, uid_of
from warren.worker.host.processes import kill_if
from warren.worker.host.watch import Watch

MOST: Final = 4 << 20
"""The bytes that the netlink sockets of one sandbox may hold."""
GROWTH: Final = 48 << 20
_PIECE: Final = 16384
_ROUNDS: Final = 20
_RECEIVED: Final = 4  # the column of /proc/net/netlink

_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class WatchedSandbox:
    """`pids` tells those of all its processes."""

    first_pid: int
    pids: Callable[[], Iterable[int]]


class NetlinkWatch(Watch):
    """`sandboxes` is called in a thread."""

    name = "netlink queues"

    def __init__(self, sandboxes: Callable[[], Iterable[WatchedSandbox]]) -> None:
        super().__init__()
        self._sandboxes = sandboxes
        self._least = unreclaimable()

    async def _look(self) -> None:
        now = unreclaimable()
        self._least = min(self._least, now)
        if now > self._least + GROWTH:
            self._least = now
            await asyncio.to_thread(self._end_offenders)

    def _end_offenders(self) -> None:
        for sandbox in self._sandboxes():
            for _ in range(_ROUNDS):
                held = queued(sandbox.first_pid)
                if held <= MOST:
                    break
                _log.warning("netlink_queues_exceeded", action="kill", first_pid=sandbox.first_pid, bytes=held)
                end_commands(sandbox)
                _wait_until_freed(sandbox.first_pid)


def _wait_until_freed(pid: int) -> None:
    """A killed process gives its sockets back some time later; what is started meanwhile has done nothing."""
    for _ in range(100):
        if queued(pid) <= MOST:
            return
        time.sleep(0.01)


def end_commands(sandbox: WatchedSandbox) -> None:
    """Kills every process that is not the agent's."""
    index, agent = sandbox_of(sandbox.first_pid), uid_of(sandbox.first_pid)
    for pid in sandbox.pids():
        kill_if(pid, lambda pid: index is not None and sandbox_of(pid) == index and uid_of(pid) != agent)


def unreclaimable() -> int:
    """The bytes of kernel objects that cannot be freed on demand, on the whole machine."""
    with open("/proc/meminfo", "rb") as file:
        return int(file.read().partition(b"SUnreclaim:")[2].split()[0]) * 1024


def queued(pid: int) -> int:
    """The bytes in the queues of all netlink sockets of its network namespace. Stops counting above MOST."""
    total, rest = 0, b""
    try:
        with Path(f"/proc/{pid}/net/netlink").open("rb", buffering=0) as file:
            while total <= MOST and (piece := file.read(_PIECE)):
                lines, _, rest = (rest + piece).rpartition(b"\n")
                total += sum(int(line.split()[_RECEIVED]) for line in lines.splitlines() if line[:2] != b"sk")
    except OSError:
        return 0
    return total
