"""Ends the commands of a sandbox that fills the kernel's memory with socket queues that are charged to nobody.

Neither cgroup v1 nor v2 charges two kinds, and nothing limits how much one sandbox has of them:

- netlink sockets, which programs need to list the interfaces: the socket itself, and a queue of up to some hundred KiB
  that nobody reads. A sandbox takes 280 MiB a second.
- TCP connections that no process has: not accepted yet, or closed before the other side took everything. The kernel
  makes the sockets of the former by itself, and what is sent to them counts for nobody. A sandbox takes 260 MiB a
  second, up to `tcp_mem`, after which the whole machine has no more. Of the latter the machine has `tcp_max_orphans`;
  beyond that, closing a connection anywhere loses what was not sent yet.

So a watch reads a number for the whole machine many times a second. When the number has grown by GROWTH above its
minimum, the watch adds up what each sandbox holds. What every sandbox takes by being there is no growth: else making
many would have all of them looked at again and again. How much that is depends on the machine, so the watch learns it
whenever it has looked and found nobody.
"""

import asyncio
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize
from typing import Final

from warren.kernel.logs import get_log
from warren.sandboxes.host.file_locks import sandbox_of, uid_of
from warren.sandboxes.host.freezing import let_die_and_freeze
from warren.sandboxes.host.processes import kill_if
from warren.sandboxes.host.watch import Watch

MAX_NETLINK: Final = 4 << 20
"""How many bytes the netlink sockets of one sandbox may hold."""
MAX_TCP: Final = 8 << 20
"""How many bytes the TCP connections without a process may hold, in one sandbox."""
GROWTH: Final = 48 << 20
_MADE: Final = 32  # so many new sandboxes tell what one takes
_MOST_USUAL: Final = 2 << 20
_PIECE: Final = 16384
_ROUNDS: Final = 20
_NETLINK_SOCKET: Final = 2048
_TCP_SOCKET: Final = 4096
_ORPHAN: Final = 16384  # more than an orphan holds, because their number is limited
_FEW: Final = 64
_RECEIVED: Final = 4  # the column of /proc/net/netlink
# the remains of a closed connection; the kernel limits their number in each network namespace
_TIME_WAIT: Final = b"06"
_CONNECTION: Final = re.compile(
    rb"^ *\d+: [0-9A-F:]+ [0-9A-F:]+ ([0-9A-F]{2}) ([0-9A-F]{8}):([0-9A-F]{8}) \S+ \S+ +\d+ +\d+ 0 ", re.M
)
_MACHINE: Final = re.compile(rb"^TCP: inuse \d+ orphan (\d+) tw \d+ alloc \d+ mem (\d+)", re.M)
# counts all sockets, also those that the table does not show
_NETLINK: Final = re.compile(rb"^NETLINK +\d+ +(\d+)", re.M)
_IN_USE: Final = re.compile(rb"^TCP6?: inuse (\d+)", re.M)

_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class WatchedSandbox:
    """A sandbox to watch. `pids` returns its processes, none if it has ended: `first_pid` may then be another's."""

    first_pid: int
    pids: Callable[[], Sequence[int]]


class QueueWatch(Watch):
    """Watches one kind of queue. `sandboxes` is called in a thread; `count` says how many there are."""

    most: int
    usual = 0
    """How much the figure grows by a sandbox that does nothing, until the watch knows better."""

    def __init__(self, sandboxes: Callable[[], Iterable[WatchedSandbox]], count: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._sandboxes, self._count = sandboxes, count
        self._explained = self.figure(), count()
        self._least = self._beyond_usual()

    def _beyond_usual(self) -> int:
        return self.figure() - self.usual * self._count()

    @staticmethod
    @abstractmethod
    def figure() -> int:
        """Returns bytes of the whole machine, which include those that are searched for."""

    @staticmethod
    @abstractmethod
    def held(pid: int) -> int:
        """Returns the uncharged bytes in the network namespace of a process. May stop counting above `most`."""

    def _is_too_much(self) -> bool:
        now = self._beyond_usual()
        has_grown = now > self._least + GROWTH
        self._least = now if has_grown else min(self._least, now)
        return has_grown

    async def _act(self) -> None:
        await asyncio.to_thread(self._end_offenders)

    def _end_offenders(self) -> None:
        offenders = sum(self._has_offended(sandbox) for sandbox in self._sandboxes())
        if not offenders:
            self._learn_usual()

    def _learn_usual(self) -> None:
        """Nobody has too much: what has come since the last time is what the new sandboxes take."""
        figure, count = self.figure(), self._count()
        before, then = self._explained
        if count - then >= _MADE:
            self.usual = min(_MOST_USUAL, max(0, figure - before) // (count - then))
        self._explained = figure, count
        self._least = figure - self.usual * count

    def _has_offended(self, sandbox: WatchedSandbox) -> bool:
        """Ends the commands of a sandbox that holds too much."""
        for done in range(_ROUNDS):
            held = self.held(sandbox.first_pid)
            if held <= self.most or not sandbox.pids():
                return done > 0
            _log.warning("kernel_queues_exceeded", action="kill", of=self.name, first_pid=sandbox.first_pid, bytes=held)
            end_commands(sandbox)
            self._wait_until_freed(sandbox.first_pid)
        return True

    def _wait_until_freed(self, pid: int) -> None:
        """Waits until killed processes have given their sockets back: before, the count would blame new commands."""
        for _ in range(100):
            if self.held(pid) <= self.most:
                return
            time.sleep(0.01)


class NetlinkWatch(QueueWatch):
    name = "netlink sockets"
    most = MAX_NETLINK
    usual = 512 << 10

    @staticmethod
    def figure() -> int:
        return unreclaimable()

    @staticmethod
    def held(pid: int) -> int:
        sockets = _count(pid, "protocols", _NETLINK)
        if sockets == 0:
            return 0  # listing them takes as long as there are kernel sockets in all namespaces together
        total = (sockets or 0) * _NETLINK_SOCKET
        for lines in _pieces(pid, "netlink"):
            total += sum(int(line.split()[_RECEIVED]) for line in lines.splitlines() if line[:2] != b"sk")
            if total > MAX_NETLINK:
                break
        return total


class TcpWatch(QueueWatch):
    name = "TCP connections without a process"
    most = MAX_TCP

    @staticmethod
    def figure() -> int:
        return tcp_memory()

    @staticmethod
    def held(pid: int) -> int:
        total = 0
        for table, counts in (("tcp", "sockstat"), ("tcp6", "sockstat6")):
            in_use = _count(pid, counts, _IN_USE)
            if in_use is not None and in_use < _FEW:
                continue  # the table is slow to read even if it is empty
            for lines in _pieces(pid, table):
                for state, unsent, unread in _CONNECTION.findall(lines):
                    if state != _TIME_WAIT:
                        total += _TCP_SOCKET + 2 * (int(unsent, 16) + int(unread, 16))
                if total > MAX_TCP:
                    return total
        return total


def end_commands(sandbox: WatchedSandbox) -> None:
    """Kills every process of the sandbox but the agent's own."""
    index, agent = sandbox_of(sandbox.first_pid), uid_of(sandbox.first_pid)
    pids = [pid for pid in sandbox.pids() if index is not None and sandbox_of(pid) == index and uid_of(pid) != agent]
    for pid in pids:
        kill_if(pid, lambda pid: sandbox_of(pid) == index and uid_of(pid) != agent)
    let_die_and_freeze(pids)


def unreclaimable() -> int:
    """Returns the bytes of kernel objects that cannot be freed on demand, of the whole machine."""
    with open("/proc/meminfo", "rb") as file:
        return int(file.read().partition(b"SUnreclaim:")[2].split()[0]) * 1024


def tcp_memory() -> int:
    """Returns the bytes that TCP uses on the whole machine, plus a weight for each orphaned connection."""
    try:
        found = _MACHINE.search(Path("/proc/net/sockstat").read_bytes())
    except OSError:  # the kernel has no network
        return 0
    return int(found[2]) * getpagesize() + int(found[1]) * _ORPHAN if found else 0


def _count(pid: int, name: str, where: re.Pattern[bytes]) -> int | None:
    """Returns the number in a file of the process's network namespace; None if the kernel does not report it."""
    try:
        found = where.search(Path(f"/proc/{pid}/net/{name}").read_bytes())
    except OSError:
        return 0
    return int(found[1]) if found else None


def _pieces(pid: int, name: str) -> Iterator[bytes]:
    """Yields whole lines of a table of the process's network namespace; nothing if the process is gone."""
    rest = b""
    try:
        with Path(f"/proc/{pid}/net/{name}").open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                lines, _, rest = (rest + piece).rpartition(b"\n")
                yield lines
    except OSError:
        return
