"""What the kernel says about a sandbox's first process, gathered in one pass.

All of it comes from the host's /proc and /sys. No path inside the sandbox is opened: descriptors, root and working
directory are examined through the links in /proc, which lead to the object itself whatever its name is now, and the
disk through its block device. Only the names in /proc and the room on writable overlays are read by path: these are the
root itself, directories at its top, or on a read-only root, and nobody inside can replace a mount point.
"""

import errno
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Final, NamedTuple

from warren.model.errors import SandboxLost
from warren.sandboxes.host import sk_lookup
from warren.sandboxes.host.cgroups import CgroupLimits
from warren.sandboxes.host.disk_room import DISK_POINT
from warren.sandboxes.host.proc_top import list_top
from warren.sandboxes.host.seccomp_program import ProgramReader, Unreadable

NAMESPACES: Final = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_GONE: Final = (errno.ENOENT, errno.ESRCH, errno.EINVAL)  # the last is the error for a zombie's mounts
_PIECE: Final = 16384
_EXT4_SUPERBLOCK: Final = 1024
_EXT4_MAGIC: Final = 0xEF53
_MAX_PLACES: Final = 4096


class Mount(NamedTuple):
    id: int
    parent: int
    root: str
    where: str
    options: frozenset[str]
    kind: str
    source: str
    super_options: str

    def option(self, name: str) -> str | None:
        """Returns the value of an option of the file system; None if it is not set."""
        return _values(self.super_options).get(name)


class MountTable:
    """The mounts of a namespace, and which of them is visible at a path where several are stacked."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self.mounts = tuple(mounts)
        index = {mount.id: number for number, mount in enumerate(self.mounts)}
        self._layout = _layout(tuple([(index.get(mount.parent, -1), mount.where) for mount in self.mounts]))

    def showing(self, path: str) -> Mount | None:
        """Returns the mount that a process sees at `path`: one at the path itself, or its directory's."""
        number = self._layout.showing(path)
        return None if number is None else self.mounts[number]

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset(mount.id for mount in self.mounts)

    @cached_property
    def visible(self) -> tuple[Mount, ...]:
        return tuple([self.mounts[number] for number in self._layout.visible])


class _Layout:
    """Which mount is visible where. `places` holds each mount's parent (its number) and path."""

    def __init__(self, places: Sequence[tuple[int, str]]) -> None:
        self._by_place = {place: number for number, place in enumerate(places)}
        root = next((number for number in reversed(range(len(places))) if places[number][1] == "/"), None)
        self._shown: dict[str, int | None] = {"/": self._above(root, "/"), "": root}
        self.visible = tuple([number for number, (_, path) in enumerate(places) if self.showing(path) == number])

    def showing(self, path: str) -> int | None:
        if path in self._shown:
            return self._shown[path]
        found = self._above(self.showing(path.rpartition("/")[0]), path)
        if len(self._shown) < _MAX_PLACES:
            self._shown[path] = found
        return found

    def _above(self, found: int | None, path: str) -> int | None:
        while found is not None and (above := self._by_place.get((found, path))) is not None:
            found = above
        return found


@lru_cache(maxsize=32)
def _layout(places: tuple[tuple[int, str], ...]) -> _Layout:
    return _Layout(places)


@dataclass(frozen=True, slots=True)
class Facts:
    """What /proc and /sys say about one process.

    `rlimits` are (soft, hard) by the name in /proc; None is no limit. `interfaces` are the network's, `routed` those
    that a route uses; `is_led_out` means that a BPF program chooses the sockets of connections. `descriptors` leaves
    out pipes, sockets, memory and other anonymous objects; each is (link, id of the mount). `root` and `cwd` are
    (device, inode). `rooms` are the bytes and inodes that writable overlays, and the disk beside them, can hold, by
    path. `top_of_proc` are the names that its own /proc has beside processes and links. `programs` are the seccomp
    filters; `why_no_programs` says why they cannot be read.
    """

    status: Mapping[str, str] = field(default_factory=dict)
    namespaces: Mapping[str, str] = field(default_factory=dict)
    host_namespaces: Mapping[str, str] = field(default_factory=dict)
    mounts: MountTable = field(default_factory=lambda: MountTable(()))
    limits: CgroupLimits = field(default_factory=CgroupLimits)
    swap_on_host: bool = False
    core_pipe: bool = False
    rlimits: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    interfaces: frozenset[str] = frozenset()
    routed: frozenset[str] = frozenset()
    is_led_out: bool = False
    descriptors: tuple[tuple[str, int], ...] = ()
    descriptor_count: int = 0
    root: tuple[int, int] = (0, 0)
    cwd: tuple[int, int] = (0, 0)
    host_root: tuple[int, int] = (0, 0)
    rooms: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    top_of_proc: frozenset[str] = frozenset()
    program: str = ""
    programs: tuple[bytes, ...] = ()
    why_no_programs: str = ""


async def gather(pid: int, limits: CgroupLimits) -> Facts:
    """Gathers the facts. Stops the process for a moment to read its filters. Raises SandboxLost if it is gone."""
    try:
        return await _gather(pid, limits)
    except OSError as exc:
        if exc.errno not in _GONE:
            raise
        raise SandboxLost(f"the sandbox's first process ({pid}) has ended") from None


async def _gather(pid: int, limits: CgroupLimits) -> Facts:
    try:
        async with ProgramReader(pid) as reader:
            facts = _gather_files(pid, limits)
            return replace(facts, programs=await reader.read())
    except Unreadable as exc:
        return replace(_gather_files(pid, limits), why_no_programs=str(exc))


def _gather_files(pid: int, limits: CgroupLimits) -> Facts:
    own = f"/proc/{pid}"
    descriptors = os.listdir(f"{own}/fd")
    mounts = MountTable(parse_mountinfo(_read(f"{own}/mountinfo")))
    return Facts(
        status=parse_status(_read(f"{own}/status")),
        namespaces=_namespaces(str(pid)),
        host_namespaces=_host_namespaces(),
        mounts=mounts,
        limits=limits,
        swap_on_host=_read("/proc/swaps").count("\n") > 1,
        core_pipe=_read("/proc/sys/kernel/core_pattern").startswith("|"),
        rlimits=parse_rlimits(_read(f"{own}/limits")),
        interfaces=parse_interfaces(_read(f"{own}/net/dev")),
        is_led_out=is_led_out(f"{own}/ns/net"),
        routed=parse_routes(_read(f"{own}/net/route"), _read_if_there(f"{own}/net/ipv6_route")),
        descriptors=tuple(_files(own, descriptors)),
        descriptor_count=len(descriptors),
        root=_identity(f"{own}/root"),
        cwd=_identity(f"{own}/cwd"),
        host_root=_identity("/"),
        rooms=_rooms(own, mounts),
        top_of_proc=_top_of_proc(own),
        program=os.readlink(f"{own}/exe"),
    )


def _files(own: str, descriptors: Iterable[str]) -> Iterable[tuple[str, int]]:
    for number in descriptors:
        try:
            link = os.readlink(f"{own}/fd/{number}")
            if not link.startswith(("pipe:[", "socket:[", "anon_inode:", "/memfd:")):
                yield link, int(parse_status(_read(f"{own}/fdinfo/{number}")).get("mnt_id", "-1"))
        except FileNotFoundError:  # closed meanwhile
            continue


def _rooms(own: str, mounts: MountTable) -> dict[str, tuple[int, int]]:
    overlays = [mount.where for mount in mounts.visible if mount.kind == "overlay" and "rw" in mount.options]
    rooms = {}
    for where in (*overlays, DISK_POINT) if overlays else ():
        with suppress(OSError):
            found = os.statvfs(f"{own}/root{where}")
            rooms[where] = found.f_blocks * found.f_frsize, found.f_files
    return rooms


def _top_of_proc(own: str) -> frozenset[str]:
    try:
        return list_top(f"{own}/root/proc")
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def _identity(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino


@cache
def _host_namespaces() -> dict[str, str]:
    return _namespaces("self")


def _namespaces(pid: str) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _PIECE):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    finally:
        os.close(fd)


def _read_if_there(path: str) -> str:
    try:
        return _read(path)
    except FileNotFoundError:
        return ""


def ext4_room(device: str) -> tuple[int, int]:
    """Returns the bytes and inodes that users can have of an ext4 device; zeros if it cannot be read."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 0
    try:
        block = os.pread(fd, 64, _EXT4_SUPERBLOCK)
        inodes, blocks, reserved = struct.unpack_from("<III", block)
        log_size, magic = *struct.unpack_from("<I", block, 0x18), *struct.unpack_from("<H", block, 0x38)
    except (OSError, struct.error):
        return 0, 0
    finally:
        os.close(fd)
    return ((blocks - reserved) << (10 + log_size), inodes) if magic == _EXT4_MAGIC else (0, 0)


def is_led_out(namespace: str) -> bool:
    """Returns whether a BPF program chooses the sockets of connections made in a network namespace."""
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sk_lookup.is_attached(fd)
    except OSError:  # the kernel has no such programs
        return False
    finally:
        os.close(fd)


def parse_status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def parse_rlimits(text: str) -> dict[str, tuple[int | None, int | None]]:
    """Parses /proc/PID/limits, whose columns are as wide as in its first line."""
    head, _, rest = text.partition("\n")
    soft, hard, units = (head.find(word) for word in ("Soft Limit", "Hard Limit", "Units"))
    return {
        line[:soft].strip(): (_rlimit(line[soft:hard]), _rlimit(line[hard:units])) for line in rest.splitlines() if line
    }


def _rlimit(text: str) -> int | None:
    return None if text.strip() == "unlimited" else int(text)


def parse_interfaces(text: str) -> frozenset[str]:
    return frozenset(line.partition(":")[0].strip() for line in text.splitlines()[2:])


def parse_routes(ipv4: str, ipv6: str) -> frozenset[str]:
    """Returns the interfaces that the main routing tables use."""
    return frozenset(
        (
            *(line.split()[0] for line in ipv4.splitlines()[1:] if line.strip()),
            *(line.split()[-1] for line in ipv6.splitlines() if line.strip()),
        )
    )


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    lines = (line.split(" ", 3) for line in text.splitlines() if " - " in line)
    return tuple([Mount._make((int(number), int(parent), *_parse_rest(rest))) for number, parent, _, rest in lines])


@lru_cache(maxsize=1024)  # most lines are the same in every sandbox
def _parse_rest(text: str) -> tuple[str, str, frozenset[str], str, str, str]:
    words = text.split(" ")
    kind = words.index("-", 3) + 1
    return words[0], words[1], frozenset(words[2].split(",")), words[kind], words[kind + 1], words[kind + 2]


@lru_cache(maxsize=64)
def _values(options: str) -> Mapping[str, str]:
    """Returns the options that have a value. The first of equal names counts."""
    pairs = (word.partition("=") for word in reversed(options.split(",")))
    return {name: value for name, found, value in pairs if found}
