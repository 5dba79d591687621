"""A sandbox as the host's kernel shows it, found by a word in the command line of one of its processes."""

import asyncio
import contextlib
import ctypes
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from warren.model.errors import WarrenError
from warren.sandboxes.host.cgroups import Hierarchies, parse_flat, parse_membership

NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_PATIENCE_S = 10.0
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class HostView:
    """`first_pid` is the sandbox's PID 1 by its number on the host; `uid` is that of the sandbox's user."""

    first_pid: int
    pid_namespace: str
    uid: int
    cgroups: dict[str, Path]

    @classmethod
    async def find(cls, token: str) -> "HostView":
        for _ in range(int(_PATIENCE_S / 0.05)):
            pids = pids_with_word(token)
            if pids:
                return cls._of(pids[0])
            await asyncio.sleep(0.05)
        raise WarrenError(
            "the sandbox's processes are not to be seen on this machine",
            remedy="attack it where it runs, with a runtime that shares the host's kernel",
        )

    @classmethod
    def _of(cls, pid: int) -> "HostView":
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
        first = [other for other in _in_namespace(namespace) if _status(other, "NSpid").split()[-1:] == ["1"]]
        if not first or namespace == os.readlink("/proc/self/ns/pid"):
            raise WarrenError("the sandbox has no pid namespace of its own")
        mounts = Hierarchies.here().mounts
        places = parse_membership(Path(f"/proc/{first[0]}/cgroup").read_text())
        cgroups = {
            name: mounts[name] / path.strip("/") for name, path in places.items() if name in mounts and path != "/"
        }
        return cls(first[0], namespace, int(_status(pid, "Uid").split()[0]), cgroups)

    def alive(self) -> bool:
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{self.first_pid}/ns/pid") == self.pid_namespace
        return False

    def processes(self) -> list[int]:
        return _in_namespace(self.pid_namespace)

    def namespaces(self) -> dict[str, str]:
        return {kind: os.readlink(f"/proc/{self.first_pid}/ns/{kind}") for kind in NAMESPACES}

    def descriptors(self) -> list[str]:
        folder = f"/proc/{self.first_pid}/fd"
        return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]

    def sockets(self) -> list[socket.socket]:
        """Returns the sockets that PID 1 has open, for the caller to close. Needs the right to trace it."""
        folder, pidfd = f"/proc/{self.first_pid}/fd", os.pidfd_open(self.first_pid)
        try:
            numbers = [name for name in os.listdir(folder) if os.readlink(f"{folder}/{name}").startswith("socket:")]
            return [socket.socket(fileno=_take(pidfd, int(number))) for number in numbers]
        finally:
            os.close(pidfd)

    def status(self, name: str) -> str:
        return _status(self.first_pid, name)

    def cpu_s(self) -> float | None:
        """Processor time used so far by all of its processes, as the kernel accounts it."""
        if "cpuacct" in self.cgroups:
            return int((self.cgroups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        if "" in self.cgroups and (self.cgroups[""] / "cpu.stat").exists():
            return parse_flat((self.cgroups[""] / "cpu.stat").read_text()).get("usage_usec", 0) / 1e6
        return None

    def memory_mib(self) -> int:
        """Memory that the sandbox is charged; 0 where the kernel does not tell."""
        for name, file in (("memory", "memory.usage_in_bytes"), ("", "memory.current")):
            with contextlib.suppress(OSError, KeyError):
                return int((self.cgroups[name] / file).read_text()) >> 20
        return 0


def _take(pidfd: int, number: int) -> int:
    fd: int = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"taking a descriptor: {os.strerror(code)}")
    return fd


def pids_with_word(word: str) -> list[int]:
    """Processes of this machine, other than this one, that have `word` as an argument."""
    wanted, found = word.encode(), []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") and pid != os.getpid():
                found.append(pid)
    return found


def pids_with_uid(uid: int) -> list[int]:
    return [pid for pid in _pids() if _status(pid, "Uid").split()[:1] == [str(uid)] and _runs(pid)]


def _in_namespace(namespace: str) -> list[int]:
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace and _runs(pid):
                found.append(pid)
    return found


def _runs(pid: int) -> bool:
    """A zombie counts as ended: the host's init decides when to reap it."""
    return _status(pid, "State")[:1] not in ("Z", "X", "")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _status(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""
