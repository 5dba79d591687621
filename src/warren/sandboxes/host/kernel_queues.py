"""Ends the commands of a sandbox that fills the kernel's memory with what is queued for sockets and charged to nobody.

Two kinds are charged neither on cgroup v1 nor on v2, and nothing limits what one sandbox has of them:

- netlink sockets, which programs need to list the interfaces: the socket itself, and a queue of up to some hundred KiB
  that nobody reads. A sandbox takes 280 MiB a second.
- TCP connections that no process has: not accepted yet, or closed before the other side took everything. The kernel
  makes the sockets of the former by itself, and what is sent to them counts for nobody. A sandbox takes 260 MiB a
  second, up to `tcp_mem`, after which the whole machine has no more. Of the latter the machine has `tcp_max_orphans`;
  beyond that, closing a connection anywhere loses what was not sent yet.

So a figure for the whole machine is looked at many times a second. When it has grown by GROWTH since it was least,
what each sandbox holds is added up.
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
from warren.sandboxes.host.processes import kill_if
from warren.sandboxes.host.watch import Watch

MAX_NETLINK: Final = 4 << 20
"""The bytes that the netlink sockets of one sandbox may hold."""
MAX_TCP: Final = 8 << 20
"""The bytes that the TCP connections of one sandbox may hold which no process has."""
GROWTH: Final = 48 << 20
_PIECE: Final = 16384
_ROUNDS: Final = 20
_NETLINK_SOCKET: Final = 2048
_TCP_SOCKET: Final = 4096
_ORPHAN: Final = 16384  # more than it holds, because their number is limited
_FEW: Final = 64
_RECEIVED: Final = 4  # the column of /proc/net/netlink
_TIME_WAIT: Final = b"06"  # what is left of a connection; the kernel limits their number in each network namespace
_CONNECTION: Final = re.compile(
    rb"^ *\d+: [0-9A-F:]+ [0-9A-F:]+ ([0-9A-F]{2}) ([0-9A-F]{8}):([0-9A-F]{8}) \S+ \S+ +\d+ +\d+ 0 ", re.M
)
_MACHINE: Final = re.compile(rb"^TCP: inuse \d+ orphan (\d+) tw \d+ alloc \d+ mem (\d+)", re.M)
_NETLINK: Final = re.compile(rb"^NETLINK +\d+ +(\d+)", re.M)  # the sockets, also those that the table does not show
_IN_USE: Final = re.compile(rb"^TCP6?: inuse (\d+)", re.M)

_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class WatchedSandbox:
    """`pids` tells those of all its processes, none if it has ended: `first_pid` is somebody else's then."""

    first_pid: int
    pids: Callable[[], Sequence[int]]


class QueueWatch(Watch):
    """`sandboxes` is called in a thread."""

    most: int

    def __init__(self, sandboxes: Callable[[], Iterable[WatchedSandbox]]) -> None:
        super().__init__()
        self._sandboxes = sandboxes
        self._least = self.figure()

    @staticmethod
    @abstractmethod
    def figure() -> int:
        """Bytes of the whole machine, among them those that are looked for."""

    @staticmethod
    @abstractmethod
    def held(pid: int) -> int:
        """Bytes that are charged to nobody, of the network namespace of a process. May stop counting above `most`."""

    def _is_too_much(self) -> bool:
        now = self.figure()
        has_grown = now > self._least + GROWTH
        self._least = now if has_grown else min(self._least, now)
        return has_grown

    async def _act(self) -> None:
        await asyncio.to_thread(self._end_offenders)

    def _end_offenders(self) -> None:
        for sandbox in self._sandboxes():
            for _ in range(_ROUNDS):
                held = self.held(sandbox.first_pid)
                if held <= self.most or not sandbox.pids():
                    break
                _log.warning(
                    "kernel_queues_exceeded", action="kill", of=self.name, first_pid=sandbox.first_pid, bytes=held
                )
                end_commands(sandbox)
                self._wait_until_freed(sandbox.first_pid)

    def _wait_until_freed(self, pid: int) -> None:
        """A killed process gives its sockets back some time later; what is started meanwhile has done nothing."""
        for _ in range(100):
            if self.held(pid) <= self.most:
                return
            time.sleep(0.01)


class NetlinkWatch(QueueWatch):
    name = "netlink sockets"
    most = MAX_NETLINK

    @staticmethod
    def figure() -> int:
        return unreclaimable()

    @staticmethod
    def held(pid: int) -> int:
        sockets = _count(pid, "protocols", _NETLINK)
        if sockets == 0:
            return 0  # the table takes as long as there are sockets of the kernel in all namespaces together
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
                continue  # the table is long to read even if it is empty
            for lines in _pieces(pid, table):
                for state, unsent, unread in _CONNECTION.findall(lines):
                    if state != _TIME_WAIT:
                        total += _TCP_SOCKET + 2 * (int(unsent, 16) + int(unread, 16))
                if total > MAX_TCP:
                    return total
        return total


def end_commands(sandbox: WatchedSandbox) -> None:
    """Kills every process that is not the agent's."""
    index, agent = sandbox_of(sandbox.first_pid), uid_of(sandbox.first_pid)
    for pid in sandbox.pids():
        kill_if(pid, lambda pid: index is not None and sandbox_of(pid) == index and uid_of(pid) != agent)


def unreclaimable() -> int:
    """The bytes of kernel objects that cannot be freed on demand, on the whole machine."""
    with open("/proc/meminfo", "rb") as file:
        return int(file.read().partition(b"SUnreclaim:")[2].split()[0]) * 1024


def tcp_memory() -> int:
    """The bytes that TCP has for the whole machine, and a weight for each connection that nobody has any more."""
    try:
        found = _MACHINE.search(Path("/proc/net/sockstat").read_bytes())
    except OSError:  # a kernel without networks
        return 0
    return int(found[2]) * getpagesize() + int(found[1]) * _ORPHAN if found else 0


def _count(pid: int, name: str, where: re.Pattern[bytes]) -> int | None:
    """None if the kernel does not tell it."""
    try:
        found = where.search(Path(f"/proc/{pid}/net/{name}").read_bytes())
    except OSError:
        return 0
    return int(found[1]) if found else None


def _pieces(pid: int, name: str) -> Iterator[bytes]:
    """A table of a process's network namespace, some whole lines at a time. Nothing if the process is gone."""
    rest = b""
    try:
        with Path(f"/proc/{pid}/net/{name}").open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                lines, _, rest = (rest + piece).rpartition(b"\n")
                yield lines
    except OSError:
        return
