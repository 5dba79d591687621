"""The cgroups of a sandbox, on v1, v2 and hybrid hosts.

`Hierarchies` knows where the controllers are mounted, `SandboxCgroup` is one sandbox's directories in them. On a hybrid
host (v1 controllers beside a v2 tree that has none of those we need) Warren uses the v1 controllers; `hybrid` is the v2
mount, which has to be hidden from some runtimes.
"""

import asyncio
import errno
import fcntl
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from resource import getpagesize
from typing import Final

from warren.model.errors import ProviderUnavailable
from warren.model.spec import MIB, IoLimits
from warren.sandboxes.host import datagram_limit, freezing
from warren.sandboxes.host.processes import kill_if

NEEDED: Final = ("memory", "cpu", "pids")
_UNIFIED: Final = ""
_MAX_FILE: Final = 64 * 1024
_OOM_KILLS: Final = re.compile(rb"^oom_kill (\d+)", re.MULTILINE)
_PARENT_LOCK: Final = Path("/run/warren/cgroups.lock")
_NO_LIMIT: Final = 1 << 60
_KILL_ROUNDS: Final = 400
_PAUSE_S: Final = 0.005
_MAX_PAUSE_S: Final = 0.1
_DEATH_S: Final = 20.0  # writes to a disk that a limit slows down end before a process does
_TCP_LIMIT: Final = "memory.kmem.tcp.limit_in_bytes"
_CPU_PERIOD_US: Final = 100_000


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mounted controllers. `mounts` maps a controller to its mount point; the v2 tree has the empty name."""

    mounts: Mapping[str, Path]

    @classmethod
    def here(cls) -> "Hierarchies":
        return parse_mounts(Path("/proc/self/mountinfo").read_text())

    @property
    def version(self) -> str:
        if all(name in self.mounts for name in NEEDED):
            return "hybrid" if _UNIFIED in self.mounts else "v1"
        return "v2" if _UNIFIED in self.mounts else "none"

    @property
    def hybrid(self) -> Path | None:
        return self.mounts[_UNIFIED] if self.version == "hybrid" else None

    @property
    def limits_swap(self) -> bool:
        """Whether memory and swap can be limited together."""
        if self.version == "v2":
            return True
        return "memory" in self.mounts and (self.mounts["memory"] / "memory.memsw.limit_in_bytes").exists()

    @property
    def can_freeze(self) -> bool:
        return self.version != "none" and freezing.is_offered(self.mounts)

    def at(self, path: str) -> "SandboxCgroup":
        """Returns the cgroup `path` in all hierarchies, whether its directories exist or not."""
        if path.strip("/").count("/") < 1:
            raise ValueError(f"{path} is not the cgroup of one sandbox")
        below = path.strip("/")
        return self._cgroup({name: f"{mount}/{below}" for name, mount in self.mounts.items()})

    def of(self, pid: int, marker: str) -> "SandboxCgroup":
        """Returns the cgroups of a process whose path contains `marker`, the sandbox's own name.

        In a hierarchy that the runtime did not use, the process stays in its parent's cgroup, which it shares with the
        host. That one must neither be read as the sandbox's nor, above all, be killed.
        """
        paths = parse_membership(Path(f"/proc/{pid}/cgroup").read_text())
        own = {name: path for name, path in paths.items() if len(marker) >= 8 and marker in path}
        return self._cgroup(
            {name: f"{self.mounts[name]}/{own[name].strip('/')}" for name in own if name in self.mounts}
        )

    def processes_file(self, path: str) -> Path:
        """Returns the file that moves a process to the cgroup `path`."""
        return self.mounts[_UNIFIED if self.version == "v2" else "pids"] / path.strip("/") / "cgroup.procs"

    def limit_parent(self, path: str, limits: "CgroupLimits") -> None:
        """Makes the directory above the sandboxes' cgroups, and limits what all of them use together. Idempotent; call
        it within `parent_in_use`. Raises OSError if the kernel refuses a limit."""
        for controller, name, value in self._parent_values(limits):
            directory = f"{self.mounts[controller]}/{path.strip('/')}"
            try:
                there = _read_text(f"{directory}/{name}")
            except FileNotFoundError:
                self._make_parent(controller, Path(directory))
                there = _read_text(f"{directory}/{name}")
            if there != value:
                Path(directory, name).write_text(value)

    def _make_parent(self, controller: str, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        if controller == _UNIFIED:
            for name in (*NEEDED, "io"):
                with suppress(OSError):  # the missing file of the limit is then the clearer error
                    (directory.parent / "cgroup.subtree_control").write_text(f"+{name}")
        elif controller == "memory":
            with suppress(OSError):  # newer kernels always include what is below
                (directory / "memory.use_hierarchy").write_text("1")

    def _parent_values(self, limits: "CgroupLimits") -> Iterator[tuple[str, str, str]]:
        """Yields controller, file and value; values as the kernel prints them, so that they can be compared."""
        unified = self.version == "v2"
        if limits.memory is not None:
            memory = str(limits.memory // getpagesize() * getpagesize())
            yield (_UNIFIED, "memory.max", memory) if unified else ("memory", "memory.limit_in_bytes", memory)
        if limits.sockets is not None and not unified:
            yield "memory", _TCP_LIMIT, str(limits.sockets // getpagesize() * getpagesize())
        if limits.cpus is not None:
            quota = str(round(limits.cpus * _CPU_PERIOD_US))
            yield (_UNIFIED, "cpu.max", f"{quota} {_CPU_PERIOD_US}") if unified else ("cpu", "cpu.cfs_quota_us", quota)
        if limits.pids is not None:
            yield _UNIFIED if unified else "pids", "pids.max", str(limits.pids)

    def limit_writeback(self, device: int, io: IoLimits) -> None:
        """Limits writes to a device that only one sandbox uses: with v1 the kernel charges the writeback of dirty pages
        to nobody. Raises OSError."""
        if self.version != "v2" and "blkio" in self.mounts:
            for name, rate in _throttles(io):
                if "write" in name:
                    (self.mounts["blkio"] / name).write_text(f"{_numbers(device)} {rate}")

    def remove_parent(self, path: str) -> None:
        """Removes the directory above the sandboxes' cgroups if it is empty and no sandbox is being made in it."""
        # Nobody waits here: if a sandbox is being made, the directory is needed anyway.
        with _parent_lock(fcntl.LOCK_EX | fcntl.LOCK_NB) as locked:
            for mount in set(self.mounts.values()) if locked else ():
                with suppress(OSError):
                    os.rmdir(mount / path.strip("/"))

    def _cgroup(self, directories: dict[str, str]) -> "SandboxCgroup":
        return SandboxCgroup(directories, unified=self.version == "v2")


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits of a cgroup; None is no limit. `swap` is what may be swapped out, None also where the kernel does not
    tell. `sockets` are the buffers of TCP and UDP, which v2 counts as memory; there `bounds_datagrams` says whether the
    UDP sockets are limited."""

    memory: int | None = None
    swap: int | None = None
    cpus: float | None = None
    pids: int | None = None
    sockets: int | None = None
    bounds_datagrams: bool = False


@dataclass(frozen=True, slots=True)
class CgroupUse:
    """What a cgroup uses. `memory` excludes `cache`, the file pages that the kernel can drop or write back. `processes`
    counts tasks, as the limit of pids does."""

    cpu_s: float
    memory: int
    cache: int
    processes: int


class OomCounter:
    """Reads how many processes the kernel has killed for lack of memory; 0 if the cgroup is gone.

    Every command reads it, so it keeps its file open.
    """

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
        except OSError:
            self._fd = -1
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)

    def __call__(self) -> int:
        if self._fd < 0:
            return 0
        try:
            found = _OOM_KILLS.search(os.pread(self._fd, _MAX_FILE, 0))
        except OSError:
            return 0
        return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class SandboxCgroup:
    directories: Mapping[str, str]
    unified: bool = field(default=False)

    def oom_kills(self) -> int:
        """Returns how many processes the kernel has killed here for lack of memory; 0 if the cgroup is gone."""
        return self.oom_counter()()

    def oom_counter(self) -> "OomCounter":
        directory = self.directories.get(_UNIFIED if self.unified else "memory")
        return OomCounter("" if directory is None else f"{directory}/{self._oom_file}")

    @property
    def _oom_file(self) -> str:
        return "memory.events" if self.unified else "memory.oom_control"

    def limits(self) -> CgroupLimits:
        return self._limits_v2() if self.unified else self._limits_v1()

    def use(self) -> CgroupUse:
        """Returns what the processes use now, and have used. Raises OSError if the cgroup is gone."""
        if self.unified:
            return parse_use_v2(
                self._read_now("cpu", "cpu.stat"),
                self._read_now("memory", "memory.current"),
                self._read_now("memory", "memory.stat"),
                self._read_now("pids", "pids.current"),
            )
        return parse_use_v1(
            self._read_now("cpuacct", "cpuacct.usage"),
            self._read_now("memory", "memory.usage_in_bytes"),
            self._read_now("memory", "memory.stat"),
            self._read_now("pids", "pids.current"),
        )

    def limit_sockets(self, size: int) -> None:
        """Limits the buffers of TCP and UDP sockets made from now on. With v1 they are counted separately, and no
        runtime limits them; with v2 they count as memory. Raises OSError."""
        directory = self.directories.get("memory")
        if not self.unified and directory is not None:
            _write_text(f"{directory}/{_TCP_LIMIT}", str(size))

    def limit_datagrams(self, size: int) -> None:
        """Limits the buffers of UDP sockets with v2, by the number and size of sockets (datagram_limit.py). Call it
        before the first command is run. Does nothing where the kernel has no such programs. Raises OSError."""
        if self.unified and not datagram_limit.why_not_here():
            datagram_limit.limit(self.directories[_UNIFIED], datagram_limit.sockets_within(size))

    def limit_io(self, device: int, io: IoLimits) -> None:
        """Limits the use of a block device. Raises OSError if the kernel cannot."""
        if self.unified:
            bytes_s, calls_s = (io.mbps * MIB or "max"), (io.iops or "max")
            rates = f"rbps={bytes_s} wbps={bytes_s} riops={calls_s} wiops={calls_s}"
            _write_text(f"{self.directories[_UNIFIED]}/io.max", f"{_numbers(device)} {rates}")
            return
        if "blkio" not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "there is no blkio controller")
        for name, rate in _throttles(io):
            _write_text(f"{self.directories['blkio']}/{name}", f"{_numbers(device)} {rate}")

    def joined_by(self, pid: int, name: str) -> "SandboxCgroup":
        """Returns the directories of the cgroup `name` that the process is really in, as the kernel reports it."""
        try:
            paths = parse_membership(Path(f"/proc/{pid}/cgroup").read_text())
        except OSError:  # the process has ended
            paths = {}
        joined = {each: at for each, at in self.directories.items() if paths.get(each, "").endswith(f"/{name}")}
        return replace(self, directories=joined)

    def pids(self) -> frozenset[int]:
        """Returns every process that any of the hierarchies has in this cgroup."""
        found: set[int] = set()
        for directory in self._existing():
            for folder, _, _ in os.walk(directory):
                with suppress(OSError):
                    found.update(int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
        return frozenset(found - {0})

    # -- standing still

    def freeze(self, within_s: float = freezing.STANDSTILL_S) -> None:
        """Stops every process, and returns when all stand still; idempotent. Raises ProviderUnavailable if that takes
        seconds, and then all run on. Blocks for some tenths of a millisecond, and for these seconds: call it in a
        thread."""
        freezing.freeze(self.directories, within_s)

    def freezing(self, within_s: float = freezing.STANDSTILL_S) -> Iterator[float]:
        """Does what `freeze` does, and yields how long the caller is to wait each time. Call each step in a thread."""
        return freezing.freezing(self.directories, within_s)

    def thaw(self) -> None:
        """Lets all processes run on; does nothing if they do, or if the cgroup is gone. May be called anywhere."""
        for freezer in freezing.freezers(self.directories):
            with suppress(OSError):
                freezer.thaw()

    def is_frozen(self) -> bool:
        """Whether all processes stand still. May be called anywhere."""
        for freezer in freezing.freezers(self.directories):
            with suppress(OSError):
                if freezer.stands_still():
                    return True
        return False

    def reclaim_order(self) -> tuple[str, int] | None:
        """Returns a file, and the bytes to write to it so that the kernel takes from the processes what memory it can;
        None if there is no such file. v1 takes all, whatever number is written."""
        file = self._file("memory", "memory.reclaim" if self.unified else "memory.force_empty")
        if file is None or not os.path.exists(file):
            return None
        return file, parse_limit(self._read("memory", "memory.current")) or 0 if self.unified else 0

    def allow_swap(self, allowed: bool) -> None:
        """Says whether pages may be swapped out. With v1 they may always, within the limit of memory and swap; with v2
        sandboxes have no swap (oci_bundle.py), which would leave nothing to take but caches."""
        file = self._file("memory", "memory.swap.max")
        if self.unified and file is not None:
            with suppress(OSError):
                _write_text(file, "max" if allowed else "0")

    def _file(self, controller: str, name: str) -> str | None:
        directory = self.directories.get(_UNIFIED if self.unified else controller)
        return None if directory is None else f"{directory}/{name}"

    # -- ending

    async def clear(self) -> None:
        """Kills what runs in the cgroup and removes it. Mostly nothing runs, so it tries to remove it first."""
        if await asyncio.to_thread(self.remove_once):
            await self.kill()
            await self.remove()

    async def kill(self) -> None:
        """Kills every process in the cgroup, and returns when none is left. Raises ProviderUnavailable."""
        for directory in self._existing():
            with suppress(OSError):
                if os.path.exists(f"{directory}/cgroup.kill"):
                    _write_text(f"{directory}/cgroup.kill", "1")
        until, pause_s = time.monotonic() + _DEATH_S, 0.0
        while pids := self.pids():
            if time.monotonic() > until:
                raise ProviderUnavailable(f"processes {sorted(pids)[:5]} of a sandbox do not die")
            for pid in pids:
                # Checked again under a pidfd: a pid of the list may have been reused by a process of the host.
                kill_if(pid, lambda pid: pid in self.pids())
            self.thaw()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s + _PAUSE_S, _MAX_PAUSE_S)

    async def remove(self) -> None:
        """Removes the cgroup. Idempotent. Retries: the kernel needs a moment after the last process has ended."""
        for _ in range(_KILL_ROUNDS):
            if not await asyncio.to_thread(self.remove_once):
                return
            await asyncio.sleep(_PAUSE_S)
        raise ProviderUnavailable(f"the cgroup {next(self._existing(), '')} cannot be removed: it is still in use")

    def remove_once(self) -> bool:
        """Tries to remove the cgroup, and returns whether something is left. Slow: call it in a thread."""
        left = False
        for directory in self.directories.values():
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError:
                left = True
                for folder, _, _ in os.walk(directory, topdown=False):
                    with suppress(OSError):
                        os.rmdir(folder)
        return left

    def _existing(self) -> Iterator[str]:
        return (path for path in dict.fromkeys(self.directories.values()) if os.path.isdir(path))

    def _read(self, controller: str, name: str) -> str:
        """Returns the text of a file; "" if it cannot be read."""
        try:
            return self._read_now(controller, name)
        except OSError:
            return ""

    def _read_now(self, controller: str, name: str) -> str:
        directory = self.directories.get(_UNIFIED if self.unified else controller)
        if directory is None:
            return ""
        fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _MAX_FILE).decode()
        finally:
            os.close(fd)

    def _limits_v1(self) -> CgroupLimits:
        memory = parse_limit(self._read("memory", "memory.limit_in_bytes"))
        both = parse_limit(self._read("memory", "memory.memsw.limit_in_bytes"))
        quota = self._read("cpu", "cpu.cfs_quota_us").strip()
        period = self._read("cpu", "cpu.cfs_period_us").strip()
        return CgroupLimits(
            memory=memory,
            swap=None if memory is None or both is None else both - memory,
            cpus=parse_quota(f"{quota} {period}"),
            pids=parse_limit(self._read("pids", "pids.max")),
            sockets=parse_limit(self._read("memory", _TCP_LIMIT)),
        )

    def _limits_v2(self) -> CgroupLimits:
        return CgroupLimits(
            memory=parse_limit(self._read("memory", "memory.max")),
            swap=parse_limit(self._read("memory", "memory.swap.max")),
            cpus=parse_quota(self._read("cpu", "cpu.max")),
            pids=parse_limit(self._read("pids", "pids.max")),
            bounds_datagrams=self._bounds_datagrams(),
        )

    def _bounds_datagrams(self) -> bool:
        try:
            return datagram_limit.is_set(self.directories[_UNIFIED])
        except (KeyError, OSError):
            return False


def _numbers(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def _throttles(io: IoLimits) -> Iterator[tuple[str, int]]:
    """Yields the files of v1 with their values; there 0 is no limit, too."""
    for direction in ("read", "write"):
        yield f"blkio.throttle.{direction}_bps_device", io.mbps * MIB
        yield f"blkio.throttle.{direction}_iops_device", io.iops


def _write_text(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read_text(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MAX_FILE).decode().strip()
    finally:
        os.close(fd)


@contextmanager
def parent_in_use() -> Iterator[None]:
    """Keeps the directory above the sandboxes' cgroups while a runtime makes a cgroup in it."""
    with _parent_lock(fcntl.LOCK_SH):
        yield


@contextmanager
def _parent_lock(operation: int) -> Iterator[bool]:
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open(_PARENT_LOCK, flags, 0o600)
    except FileNotFoundError:
        _PARENT_LOCK.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        fd = os.open(_PARENT_LOCK, flags, 0o600)
    try:
        yield _locked(fd, operation)
    finally:
        os.close(fd)


def _locked(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        return False
    return True


def parse_mounts(mountinfo: str) -> Hierarchies:
    mounts: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        where = Path(before.split(" ")[4].replace("\\040", " ")) if kind.startswith("cgroup") else None
        if where is None:
            continue
        if kind == "cgroup2":
            mounts.setdefault(_UNIFIED, where)
        elif kind == "cgroup":
            for name in _controllers(options):
                mounts.setdefault(name, where)
    return Hierarchies(mounts)


def _controllers(options: str) -> list[str]:
    flags = {"rw", "ro", "xattr", "noprefix", "clone_children", "favordynmods", "cpuset_v2_mode"}
    return [word for word in options.split(",") if word not in flags and not word.startswith("release_agent")]


def parse_membership(text: str) -> dict[str, str]:
    """Parses /proc/PID/cgroup into controller -> path; the v2 tree has the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            found[name] = path
    return found


def parse_flat(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def parse_use_v1(usage_ns: str, memory: str, memory_stat: str, pids: str) -> CgroupUse:
    cache = _field(memory_stat, "total_active_file") + _field(memory_stat, "total_inactive_file")
    return _use(_number(usage_ns) / 1e9, _number(memory), cache, _number(pids))


def parse_use_v2(cpu_stat: str, memory: str, memory_stat: str, pids: str) -> CgroupUse:
    cache = _field(memory_stat, "active_file") + _field(memory_stat, "inactive_file")
    return _use(_field(cpu_stat, "usage_usec") / 1e6, _number(memory), cache, _number(pids))


def _use(cpu_s: float, memory: int, cache: int, processes: int) -> CgroupUse:
    """Clips the cache to the memory: the kernel counts the two at different moments, so the cache may seem larger."""
    cache = min(cache, memory)
    return CgroupUse(cpu_s, memory - cache, cache, processes)


def _field(text: str, name: str) -> int:
    """Returns one value of a flat file. `parse_flat` would take as long as the rest of a reading."""
    found = f"\n{text}".partition(f"\n{name} ")[2]
    return _number(found.partition("\n")[0])


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdigit() else 0


def parse_limit(text: str) -> int | None:
    text = text.strip()
    if not text.isdigit() or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def parse_quota(text: str) -> float | None:
    """Parses `max 100000`, `50000 100000` or v1's `-1 100000` into cores; None is no limit."""
    parts = text.split()
    if len(parts) != 2 or not parts[0].isdigit() or not parts[1].isdigit():
        return None
    return int(parts[0]) / int(parts[1])
