"""Keeps the disks of sandboxes from filling the file system that holds their images.

The images are sparse, so together they may promise more than the file system has. If it ran full, the kernel could not
write back what a sandbox's programs have already written, and would drop it. Three steps prevent that:

1. `Promises.add` refuses a sandbox if the promised sizes would exceed `overcommit` times the available space.
2. `DiskWatch` checks the free space, more often the less there is. Close to the reserve it shares out the rest: every
   disk may grow up to the same level. It raises the number of clusters that the disk's ext4 keeps for itself, so that
   a write beyond that fails with ENOSPC before it is acknowledged. Data written before are not affected.
3. Space that a program has allocated without writing to it (fallocate) cannot be taken back in this way. If the free
   space comes close to the reserve and would not suffice for it, the watch ends the sandboxes with the most of it: it
   shuts down their file systems, so that nothing more is written, and empties their images. Where files share blocks
   (xfs, btrfs) the same goes for what a disk shares with a saved one: writing there takes new blocks, though the disk
   itself does not grow. That is only looked at when the reserve is touched, because most of it is never written.

Volumes are restricted as disks are, and never ended. A storage (host/storage.py) can run full as well as the machine's
disk below it: what is free is what is free on the one that has less above its reserve.

Each provider of a process runs one watch over all sandboxes of its state directory, whoever made them.
"""

import asyncio
import errno
import fcntl
import math
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.kernel.logs import get_log
from warren.model.errors import MachineFull
from warren.model.spec import MIB, WORKSPACE
from warren.sandboxes.host.disk_images import DiskImage
from warren.sandboxes.host.storage import file_systems

OVERCOMMIT: Final = 20.0
ENDED: Final = "ended"  # the file that says why the watch ended the sandbox
DISK_POINT: Final = "/.warren/disk"
"""Where a sandbox mounts its disk itself, if its writes go through an overlay. The directory above is read-only and
mounted at the top of the root, so nobody inside can put a link in its place.
"""

_METADATA_SHARE: Final = 48  # the fraction of its size (1/48) that ext4 may need for inodes and bitmaps
_FILL_BYTES_PER_S: Final = 2048 * MIB
_SHORTEST_S, _SOON_S, _LONGEST_S = 0.1, 1.0, 5.0
_REST: Final = 40  # while there is time, the watch rests this many times as long as a look at every disk has taken
_SMALL: Final = 64 * MIB  # a sandbox with less unwritten space is never ended
_ROUNDS: Final = 32
_RETRY_S: Final = 5.0
_LATE_S: Final = 2.0
_GIVE_BACK_S: Final = 2.0
_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_FLUSH: Final = 2
_EXT4: Final = Path("/sys/fs/ext4")
_RESERVED: Final = "reserved_clusters"
_DIRTY: Final = re.compile(r"^Dirty:\s+(\d+) kB", re.MULTILINE)
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """A sandbox's disk, in bytes. `size`: of its image. `held`: what the image occupies in the host's file system.
    `free`: what its own file system has left. `growth`: how much more its programs may write, up to its limit.
    `allocated`: what its files occupy. `shared`: how much of `held` other files have too. `usual`: how many of its
    blocks, of `block` bytes, the file system keeps for itself if nobody restricts it."""

    size: int
    held: int
    free: int
    growth: int
    allocated: int
    shared: int = 0
    block: int = 4096
    usual: int = 0

    @property
    def unwritten(self) -> int:
        """What the image will still take of the host, without any further allocation."""
        return max(0, self.size - self.free - self.held)

    @property
    def unwritten_files(self) -> int:
        return max(0, self.allocated - self.held)


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """`room`: what may be written until the reserve is touched. `growth`: how much each named disk may grow; others are
    not restricted. `end`: the sandboxes to end."""

    room: int
    growth: Mapping[str, int]
    end: tuple[str, ...] = ()

    def pause_s(self, host_free: int, reserve: int, took_s: float = 0.0) -> float:
        """Returns when to check again. Restricted disks cannot use up the room; other programs of the machine can use
        up what is free. `took_s`: how long this look at every disk has taken."""
        free = host_free if self.growth else min(host_free, self.room + 2 * reserve)
        return pause_s(free, reserve, max(_SOON_S, _REST * took_s))


def plan_disks(
    host_free: int,
    reserve: int,
    uses: Mapping[str, DiskUse],
    *,
    coming: int = 0,
    falling: int = 0,
    lasting: Collection[str] = (),
) -> DiskPlan:
    """Decides how much the disks may grow, and which sandboxes to end. `coming`: the bytes that ending sandboxes will
    free. `falling`: the bytes written since the last check, so perhaps as many before the next one. `lasting`: those
    that are never ended. Small disks may use a quarter of the reserve, if others were faster than the watch."""
    room = host_free - reserve - sum(use.unwritten for use in uses.values())
    growth = {} if room >= reserve else share(max(reserve // 4, room), uses)
    left = host_free + coming - falling
    if left >= 2 * reserve:
        return DiskPlan(room, growth)
    wanted = {
        name: (use.unwritten_files + (use.shared if left < reserve else 0), use.held - use.shared)
        for name, use in uses.items()
    }
    return DiskPlan(room, growth, tuple(_whom_to_end(host_free + coming - reserve // 2, wanted, lasting)))


def share(room: int, uses: Mapping[str, DiskUse]) -> dict[str, int]:
    """Returns how much each disk may grow, by `room` in all: all up to the same level, small ones first."""
    low, high = 0, max((use.size for use in uses.values()), default=0)
    for _ in range(_ROUNDS):
        level = (low + high + 1) // 2
        if sum(_growth(use, level) for use in uses.values()) <= room:
            low = level
        else:
            high = level - 1
        if low >= high:
            break
    return {name: _growth(use, low) for name, use in uses.items()}


def _growth(use: DiskUse, level: int) -> int:
    return min(use.growth, max(0, level - use.allocated))


def _whom_to_end(room: int, wanted: Mapping[str, tuple[int, int]], lasting: Collection[str]) -> Iterable[str]:
    """Yields the sandboxes that can still take most, until the others fit. `wanted`: what each may take without asking,
    and what ending it frees."""
    left = room - sum(take for take, _ in wanted.values())
    for name, (take, frees) in sorted(wanted.items(), key=lambda item: item[1], reverse=True):
        if left >= 0 or take <= _SMALL:
            return
        if name not in lasting:
            left += take + frees
            yield name


def pause_s(host_free: int, reserve: int, most: float = _LONGEST_S) -> float:
    """Returns when to check again: before the fastest writers could come close to the reserve."""
    return max(_SHORTEST_S, min(most, (host_free - 3 * reserve) / _FILL_BYTES_PER_S))


class Promises:
    """The sizes that the disks of live sandboxes may reach, in MiB by sandbox."""

    def __init__(self, overcommit: float) -> None:
        self.overcommit = overcommit
        self._promised: dict[str, int] = {}
        self._making: set[str] = set()
        self._lock = threading.Lock()  # the watch runs in a thread

    def __repr__(self) -> str:
        return f"<Promises of {self.total_mb} MiB to {len(self._promised)} sandboxes>"

    @property
    def total_mb(self) -> int:
        return sum(self._promised.values())

    def add(self, sandbox_id: str, disk_mb: int, room_mb: int) -> None:
        """Promises a disk. `room_mb` is what disks have taken and may still take of the file system. Raises
        MachineFull."""
        total, most = self.total_mb + disk_mb, max(0, int(room_mb * self.overcommit))
        if total > most:
            raise MachineFull(
                f"the disks of all sandboxes would have {total} MiB, {most} MiB may be promised "
                f"({self.overcommit:g} times the room there is)",
                remedy="end sessions that are not needed any more, ask for a smaller disk_mb, free some space in the "
                "state directory, or raise the option disk_overcommit",
                retry_after_s=_RETRY_S,
            )
        with self._lock:
            self._promised[sandbox_id] = disk_mb
            self._making.add(sandbox_id)

    def keep(self, sandbox_id: str) -> None:
        """Notes that the sandbox is made: from now on its record counts."""
        with self._lock:
            self._making.discard(sandbox_id)

    def remove(self, sandbox_id: str) -> None:
        with self._lock:
            self._promised.pop(sandbox_id, None)
            self._making.discard(sandbox_id)

    def replace_all(self, found: Mapping[str, int]) -> None:
        """Replaces the promises by those in all processes' records. Sandboxes being made here may have none yet."""
        with self._lock:
            making = {name: self._promised[name] for name in self._making if name in self._promised}
            self._promised = {**found, **making}


@dataclass(frozen=True, slots=True)
class WatchedDisk:
    """A live sandbox's disk. `mounted`: where the host sees its file system; `device`: its number; `limit`: the bytes
    it may hold; `image`: its image."""

    mounted: Path
    device: int
    limit: int
    image: DiskImage

    @property
    def is_there(self) -> bool:
        try:
            return os.stat(self.mounted).st_dev == self.device
        except OSError:
            return False

    def figures(self) -> tuple[int, ...]:
        """Returns what changes whenever anything is written, allocated, mounted or restricted there; () if the disk is
        gone. It takes a tenth of what `look` takes."""
        try:
            inside = os.statvfs(self.mounted)
        except OSError:
            return ()
        return self.device, inside.f_blocks, inside.f_bfree, inside.f_bavail, self.image.held() or -1

    def look(self, *, at_sharing: bool = True) -> DiskUse | None:
        """Measures the disk; None if it is gone."""
        try:
            with self.opened(os.O_PATH) as fd:
                inside = os.fstatvfs(fd)
            size = int(_read(f"/sys/dev/block/{os.major(self.device)}:{os.minor(self.device)}/size")) * 512
        except (OSError, ValueError):
            return None
        block = inside.f_frsize
        free, allocated = inside.f_bfree * block, (inside.f_blocks - inside.f_bfree) * block
        held = self.image.held()
        if held is None:  # unknown, so it counts as written
            held = size - free
        usual = min(size // block // 50, 4096)  # what ext4 keeps for itself when it is mounted
        growth = max(0, free - (size - self.limit) - usual * block)
        shared = min(held, self.image.shared()) if at_sharing else 0
        return DiskUse(size, held, free, growth, allocated, shared, block, usual)

    def shut_down(self) -> bool:
        """Lets nothing more be written to the disk, and returns whether that worked. The caller must end the sandbox:
        its data are lost."""
        with suppress(OSError), self.opened() as fd:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("<I", _WITHOUT_FLUSH))
            return True
        return False

    @contextmanager
    def opened(self, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Yields a descriptor of the top of the file system. Raises OSError if it is gone."""
        fd = os.open(self.mounted, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_dev != self.device:
                raise FileNotFoundError(errno.ENOENT, "the disk is gone")
            yield fd
        finally:
            os.close(fd)

    def reserve(self, use: DiskUse, blocks: int) -> None:
        """Has the file system keep that many blocks for itself. Raises OSError, ValueError."""
        name = f"{_EXT4}/loop{os.minor(self.device)}/{_RESERVED}"
        there = int(_read(name))
        if there != blocks and max(there, blocks) > use.usual:
            Path(name).write_text(str(blocks))


def _read(name: str) -> bytes:
    with open(name, "rb", buffering=0) as file:  # Path.read_text takes several times as long
        return file.read()


def find_disk(mountinfo: str) -> tuple[str, int] | None:
    """Returns where a sandbox's disk is mounted and its loop device; None for any other kind of disk."""
    words = _disk_words(mountinfo)
    is_ext4 = bool(words) and words[words.index("-") + 1] == "ext4"
    return (words[4], _device(words)) if is_ext4 and words[2].startswith("7:") else None


def disk_mount(mountinfo: str) -> tuple[str, int]:
    """Returns where a sandbox's disk is mounted and its device number, whatever its kind. Raises FileNotFoundError."""
    words = _disk_words(mountinfo)
    if not words:
        raise FileNotFoundError(errno.ENOENT, "there is no disk")
    return words[4], _device(words)


def _disk_words(mountinfo: str) -> list[str]:
    """Returns the words of a mount that shows the disk. A volume may cover the usual place: the disk was there first,
    and its other mounts show it too."""
    first, top = dict[str, list[str]](), dict[str, list[str]]()
    for words in (line.split(" ") for line in mountinfo.splitlines()):
        first.setdefault(words[4], words)
        top[words[4]] = words
    disk = first.get(DISK_POINT) or first.get(WORKSPACE) or []
    if not disk or top[disk[4]] is disk:
        return disk
    return next((words for words in top.values() if words[2] == disk[2]), disk)


def _device(words: list[str]) -> int:
    major, _, minor = words[2].partition(":")
    return os.makedev(int(major), int(minor))


@dataclass(slots=True)
class _Ending:
    """Sandboxes that were ended. `held`: the bytes that come back, some seconds after `emptied` at the latest."""

    held: int
    emptied: "Future[None]"
    until: float = math.inf

    def is_to_come(self, now: float) -> bool:
        if self.emptied.done():
            self.until = min(self.until, now + _GIVE_BACK_S)
        return self.until > now


class DiskWatch:
    """Watches the free space. `disks` lists the disks of all live sandboxes, `volumes` the volumes that these have;
    `end` stops some sandboxes for a reason and has their images emptied, which can take long where many write: the
    watch goes on meanwhile, because others may fill the disk. All are called in threads. `coming_back` returns the
    bytes of destroyed sandboxes that are still to be freed."""

    def __init__(
        self,
        directory: Path,
        reserve_mb: int | None,
        *,
        disks: Callable[[], Mapping[str, WatchedDisk]],
        end: Callable[[Sequence[str], str], "Future[None]"],
        volumes: Callable[[], Mapping[str, WatchedDisk]] = dict,
        coming_back: Callable[[], int] = lambda: 0,
    ) -> None:
        self._directory, self._disks, self._end, self._coming_back = directory, disks, end, coming_back
        self._volumes = volumes
        self._reserve_mb = reserve_mb
        self._restricted: set[str] | None = None  # None: unknown, because an earlier process may have restricted some
        self._seen: dict[str, tuple[tuple[int, ...], DiskUse]] = {}  # at the last look
        self._ending: list[_Ending] = []
        self._last_free = 0  # at the last check, if there was little then
        self.held_mb = 0

    def __repr__(self) -> str:
        return f"<DiskWatch of {self._directory}, {len(self._restricted or ())} restricted>"

    @staticmethod
    def can_restrict() -> bool:
        return os.access(_EXT4, os.X_OK) and not os.statvfs(_EXT4).f_flag & os.ST_RDONLY

    async def run(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                seconds = await asyncio.to_thread(self.look)
                if (took := time.monotonic() - begun) > _LATE_S:  # meanwhile nobody has kept the disk from running full
                    _log.warning("disk_watch_slow", took_s=round(took, 1), disks=len(self._restricted or ()))
            except OSError as exc:
                _log.warning("disk_watch_failed", error=exc, retry_s=_RETRY_S)
                seconds = _RETRY_S
            await asyncio.sleep(seconds)

    def room_mb(self) -> int:
        """Returns what the disks have taken of the file system, and may still take without touching the reserve."""
        return self.spare() // MIB + self.held_mb

    def spare(self) -> int:
        """Returns how many bytes may still be written without touching the reserve."""
        total, free = self._space()
        return max(0, free + self._coming_back() - self._reserve(total))

    def look(self) -> float:
        """Checks once, and restricts or ends what it must. Returns the seconds until the next check."""
        begun = time.thread_time()
        total, free = self._space()
        reserve, disks = self._reserve(total), self._disks()
        figures = {name: disk.figures() for name, disk in disks.items()}
        held = sum(max(0, each[-1]) for each in figures.values() if each)
        self.held_mb = min(held, total - free) // MIB  # blocks that several disks share count once
        threshold = 3 * reserve + sum(disk.limit for disk in disks.values()) // _METADATA_SHARE
        written = free - _dirty()
        if written >= threshold and self._restricted == set():
            self._last_free = 0
            return pause_s(free - threshold + 3 * reserve, reserve)
        volumes = self._volumes()
        disks = {**disks, **volumes}
        figures |= {name: disk.figures() for name, disk in volumes.items()}
        falling = max(0, self._last_free - free)
        near = free - falling < 2 * reserve
        uses = self._uses(disks, figures, at_sharing=near)
        now = time.monotonic()
        self._ending = [each for each in self._ending if each.is_to_come(now)]
        coming = sum(each.held for each in self._ending) + self._coming_back()
        self._last_free = free
        plan = plan_disks(free, reserve, uses, coming=coming, falling=falling, lasting=volumes.keys())
        self._apply(plan, uses, disks)
        self._seen = {name: (figures[name], use) for name, use in uses.items()}
        return plan.pause_s(written, reserve, time.thread_time() - begun)

    def _uses(
        self, disks: Mapping[str, WatchedDisk], figures: Mapping[str, tuple[int, ...]], *, at_sharing: bool
    ) -> dict[str, DiskUse]:
        """Measures those that have changed since the last look, and all where it counts what they share."""
        uses = {}
        for name, disk in disks.items():
            before, use = self._seen.get(name, ((), None))
            if at_sharing or not figures[name] or before != figures[name]:
                use = disk.look(at_sharing=at_sharing)
            if use is not None:
                uses[name] = use
        return uses

    def _apply(self, plan: DiskPlan, uses: Mapping[str, DiskUse], disks: Mapping[str, WatchedDisk]) -> None:
        restricted = set()
        for name, use in uses.items():
            growth = plan.growth.get(name, use.growth)
            blocks = use.usual + max(0, use.growth - growth) // use.block
            is_as_it_was = name in self._seen and self._seen[name][1] is use
            if not is_as_it_was or growth < use.growth or name in (self._restricted or ()):
                with suppress(OSError, ValueError):
                    disks[name].reserve(use, blocks)
            if growth < use.growth:
                restricted.add(name)
        if bool(restricted) != bool(self._restricted):
            action = "restrict" if restricted else "release"
            _log.warning("disk_space_low" if restricted else "disk_space_back", action=action, disks=len(uses))
        self._restricted = restricted
        if not plan.end:
            return
        for name in plan.end:
            _log.error("sandbox_ended", sandbox=name, reason="disk_full", unwritten_mb=uses[name].unwritten // MIB)
        emptied = self._end(plan.end, "it had allocated more disk space than the machine has left")
        self._ending.append(_Ending(sum(uses[name].held for name in plan.end), emptied))

    def _space(self) -> tuple[int, int]:
        return tightest(self._directory, self._reserve)

    def _reserve(self, total: int) -> int:
        if self._reserve_mb is not None:
            return self._reserve_mb * MIB
        return default_reserve_mb(total // MIB) * MIB


def default_reserve_mb(total_mb: int) -> int:
    return min(1024, total_mb * 2 // 100)


def tightest(state_dir: Path, reserve: Callable[[int], int]) -> tuple[int, int]:
    """Returns size and free bytes of the file system for disks that has least above its reserve."""
    found = [(each.f_blocks * each.f_frsize, each.f_bavail * each.f_frsize) for each in file_systems(state_dir)]
    return min(found, key=lambda space: space[1] - reserve(space[0]))


def _dirty() -> int:
    """Returns the bytes that the kernel has yet to write: some may need new blocks of the file system."""
    found = _DIRTY.search(Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0
