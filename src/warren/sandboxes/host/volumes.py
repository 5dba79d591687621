"""Named volumes on this host: ext4 images, and their mounts in running sandboxes.

A volume is a sparse file STATE/disks/volumes/ID.img with a journal: what was synced in it survives a loss of power.
Beside disks of sandboxes it is the only thing that sandboxes write to the host's file system. `warren-launch attach`
mounts it (launcher/volume.c). A loop device holds an exclusive lock on its image as long as it has it, so whoever gets
the lock here knows that nobody has the volume mounted, whatever was killed before.
"""

import asyncio
import errno
import fcntl
import os
import re
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from warren.interfaces.volumes import VolumeImage
from warren.kernel.fair_thread import disk_threads
from warren.kernel.shielding import run_shielded
from warren.kernel.syncing import sync_file
from warren.model.errors import (
    Conflict,
    FileNotFound,
    InvalidPath,
    InvalidRequest,
    NoSpace,
    NotFound,
    ProviderUnavailable,
    SandboxLost,
    WarrenError,
)
from warren.model.spec import MIB, USER_UID
from warren.model.volume import VolumeMount, is_volume_id
from warren.sandboxes.host.disk_images import NamedImage
from warren.sandboxes.host.disk_room import WatchedDisk, default_reserve_mb, tightest
from warren.sandboxes.host.disks import FREE_FD
from warren.sandboxes.host.processes import Finished, run
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.host.storage import DISKS

VOLUMES: Final = f"{DISKS}/volumes"
"""The directory of the images, in the state directory."""
_IMAGE_FD, _PIDFD = 6, 7
_SUFFIX: Final = ".img"
_FICLONE: Final = 0x40049409
_LOOP_GET_STATUS64: Final = 0x4C05
_STATUS_BYTES: Final = 232
_LOOP_MAJOR: Final = 7
_SUPERBLOCK: Final = 1024
_MOUNTED_AT: Final = _SUPERBLOCK + 0x2C
_SMALL_MB: Final = 512
_LET_GO_S: Final = 3.0
_TOOLS_S: Final = 600.0
_PAUSE_S: Final = 0.02
_TOO_SMALL: Final = "too many block group descriptors"
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_REASONS: Final[Mapping[str, Callable[[str], WarrenError]]] = {
    "the path leads through a link": lambda text: InvalidPath(text, remedy="give the path without links"),
    "the sandbox has ended": SandboxLost,
    "changed by somebody else": lambda text: Conflict(text, remedy="try again soon"),
    "No such file or directory": lambda text: FileNotFound("there is no such directory in the sandbox"),
    "Not a directory": lambda text: InvalidPath("what is there is no directory"),
}


class HostVolumes:
    """Keeps the contract of interfaces/volumes.py. `without_paths` takes the host's paths out of messages."""

    def __init__(
        self, directory: Path, launcher: Path, min_free_mb: int | None, without_paths: Callable[[str], str] = str
    ) -> None:
        self.directory, self._launcher, self._min_free_mb = directory, launcher, min_free_mb
        self._without_paths = without_paths
        self._users: dict[str, SandboxRecord] = {}  # sandboxes that have volumes, or had some
        self._changing: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()  # by sandbox

    def __repr__(self) -> str:
        return f"<HostVolumes {self.directory}>"

    # -- images

    async def make(self, volume_id: str, size_mb: int) -> None:
        path = self._path(volume_id)
        with self._new(path) as temporary:
            await asyncio.to_thread(self._begin, temporary, size_mb)
            await _run_each("making a volume", _mke2fs(size_mb, temporary), _without_lost_and_found(temporary))
            await run_shielded(asyncio.to_thread(keep, temporary, path))

    def _begin(self, temporary: Path, size_mb: int) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.check_room()
        with space_errors(), open(temporary, "wb") as image:
            image.truncate(size_mb * MIB)

    async def copy(self, source: str, volume_id: str) -> None:
        path = self._path(volume_id)
        with self._new(path) as temporary:
            image = await self._locked(source)
            try:
                await run_shielded(disk_threads().run(path.name, partial(self._copy, image, temporary)))
                await run_shielded(asyncio.to_thread(keep, temporary, path))
            finally:
                os.close(image)

    def _copy(self, image: int, temporary: Path) -> None:
        with space_errors(), open(temporary, "wb") as new:
            self.check_room(os.fstat(image).st_blocks * 512)
            _copy_content(image, new.fileno())

    async def grow(self, volume_id: str, size_mb: int) -> None:
        """Grows a copy, which then takes the place of the volume: a crash meanwhile changes nothing."""
        path = self._path(volume_id)
        with self._new(path) as temporary:
            image = await self._locked(volume_id)
            try:
                if size_mb * MIB < os.fstat(image).st_size:
                    raise InvalidRequest(
                        "a volume cannot be made smaller", remedy="copy what is in it to a smaller one"
                    )
                await run_shielded(disk_threads().run(path.name, partial(self._copy, image, temporary)))
                os.truncate(temporary, size_mb * MIB)
                check, grow = ["e2fsck", "-fy", str(temporary)], ["resize2fs", str(temporary)]
                await _run_each("growing a volume", check, grow)
                await run_shielded(asyncio.to_thread(keep, temporary, path))
            finally:
                os.close(image)

    @contextmanager
    def _new(self, path: Path) -> Iterator[Path]:
        temporary = path.with_name(f".{path.name}")
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    async def _locked(self, volume_id: str) -> int:
        """Returns the open image, which no sandbox has, or gets until it is closed. A loop device whose last mount has
        just gone may still have it for a moment; a sandbox whose programs have a file of it open has it for long."""
        until = time.monotonic() + _LET_GO_S
        while (fd := self._try_lock(volume_id)) is None:
            if time.monotonic() > until:
                raise Conflict("a sandbox has the volume mounted", remedy="end its sessions, or detach it")
            await asyncio.sleep(_PAUSE_S)
        return fd

    async def delete(self, volume_id: str) -> None:
        await run_shielded(self._delete(volume_id))

    async def _delete(self, volume_id: str) -> None:
        path = self._path(volume_id)
        path.with_name(f".{path.name}").unlink(missing_ok=True)
        with suppress(NotFound):
            fd = await self._locked(volume_id)
            try:
                path.unlink()
                await asyncio.to_thread(sync_file, self.directory)
            finally:
                await asyncio.to_thread(os.close, fd)  # frees its blocks

    async def find(self, volume_id: str) -> VolumeImage | None:
        return await asyncio.to_thread(self._find, volume_id)

    async def list(self) -> Sequence[VolumeImage]:
        return await asyncio.to_thread(self._list)

    def _list(self) -> Sequence[VolumeImage]:
        names = [path.stem for path in self.directory.glob(f"*{_SUFFIX}") if is_volume_id(path.stem)]
        return [image for name in names if (image := self._find(name)) is not None]

    def _find(self, volume_id: str) -> VolumeImage | None:
        try:
            fd = os.open(self._path(volume_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            found, mounted = os.fstat(fd), os.pread(fd, 4, _MOUNTED_AT)
        finally:
            os.close(fd)
        return VolumeImage(volume_id, found.st_size // MIB, found.st_blocks * 512, mounted != bytes(4))

    def _path(self, volume_id: str) -> Path:
        if not is_volume_id(volume_id):
            raise NotFound(f"there is no volume {volume_id[:80]!r}")
        return self.directory / f"{volume_id}{_SUFFIX}"

    def _open(self, volume_id: str) -> int:
        """Returns a descriptor of its own, with a number that launchers do not use."""
        try:
            fd = os.open(self._path(volume_id), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NotFound("the volume's disk is not on this machine") from None
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
        finally:
            os.close(fd)

    def _try_lock(self, volume_id: str) -> int | None:
        """Returns None if somebody has the image."""
        fd = self._open(volume_id)
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
        os.close(fd)  # else it was deleted, or replaced by a larger one, meanwhile
        return None

    # -- room

    def check_room(self, coming: int = 0) -> None:
        """Raises NoSpace if the machine's disk is close to its reserve: images are sparse, and grow when written to."""
        total, free = tightest(self.directory.parents[1], self._reserve)
        reserve = self._reserve(total)
        if free - coming < 2 * reserve:
            raise NoSpace(
                f"the machine's disk is nearly full: {free // MIB} MiB are free, {reserve // MIB} MiB must stay free",
                remedy="delete volumes, artifacts or images that are not needed any more",
            )

    def _reserve(self, total: int) -> int:
        return (self._min_free_mb or default_reserve_mb(total // MIB)) * MIB

    def note_user(self, record: SandboxRecord) -> None:
        """Notes that the sandbox has volumes."""
        self._users[record.sandbox_id] = record

    def watched(self) -> dict[str, WatchedDisk]:
        """Returns the volumes that sandboxes have mounted, as they are seen in one of these. Blocks."""
        found: dict[str, WatchedDisk] = {}
        for record in list(self._users.values()):
            mounts: Sequence[tuple[str, int, str]] = ()
            with suppress(SandboxLost):
                mounts = [mount for mount in self._mounts(record) if mount[2]] if record.alive() else ()
            if not mounts:
                self._users.pop(record.sandbox_id, None)
            for where, minor, volume in mounts:
                with suppress(OSError):
                    size, image = self._path(volume).stat().st_size, NamedImage(self.directory, f"{volume}{_SUFFIX}")
                    place = Path(f"/proc/{record.pid}/root{where}")
                    found[volume] = WatchedDisk(place, os.makedev(_LOOP_MAJOR, minor), size, image)
        return found

    # -- in sandboxes

    async def attach(self, record: SandboxRecord, mount: VolumeMount, base: int) -> None:
        """Mounts the volume in the sandbox. `base`: its ids begin there; 0: its user namespace says where. Raises
        NotFound, Conflict, InvalidPath, FileNotFound, NoSpace, SandboxLost, ProviderUnavailable."""
        async with self._lock_of(record):
            if await asyncio.to_thread(self._check_place, record, mount):
                return
            image = await asyncio.to_thread(self._open, mount.volume)
            argv = ["attach", "--volume-fd", str(_IMAGE_FD), "--at", mount.path]
            argv += ["--base", str(base)] if base else []
            argv += ["--read-only-volume"] if mount.read_only else []
            try:
                await self._in_sandbox(record, argv, {image: _IMAGE_FD})
            finally:
                os.close(image)
                self.note_user(record)

    def _lock_of(self, record: SandboxRecord) -> asyncio.Lock:
        return self._changing.setdefault(record.sandbox_id, asyncio.Lock())

    def _check_place(self, record: SandboxRecord, mount: VolumeMount) -> bool:
        """Returns whether the volume is there already."""
        self.check_room()
        for where, _, volume in self._mounts(record):
            if volume == mount.volume:
                if where == mount.path:
                    return True
                raise Conflict(f"the sandbox has the volume {mount.name!r} already, at {where}")
            if volume and where == mount.path:
                raise Conflict(f"another volume is at {mount.path}")
            if where.startswith(f"{mount.path}/"):
                raise InvalidRequest(
                    f"a volume cannot be at {mount.path}: it would hide {where}", remedy="give another path"
                )
        return False

    async def detach(self, record: SandboxRecord, volume_id: str) -> None:
        """Takes the volume away, wherever the sandbox has moved the directory that it is mounted at. Idempotent."""
        async with self._lock_of(record):
            mounts = await asyncio.to_thread(self._mounts, record)
            for where, minor, volume in reversed(mounts):
                if volume != volume_id:
                    continue
                if below := [other for other, _, _ in mounts if other.startswith(f"{where}/")]:
                    raise Conflict(f"{below[0]} is mounted in the volume", remedy="detach that one first")
                await self._in_sandbox(record, ["detach", "--at", where, "--loop", str(minor)], {})

    def _mounts(self, record: SandboxRecord) -> Sequence[tuple[str, int, str]]:
        """Returns the path of each mount of the sandbox, and for loop devices the minor number and the volume."""
        try:
            text = Path(f"/proc/{record.pid}/mountinfo").read_text()
        except OSError:
            raise SandboxLost(f"sandbox {record.sandbox_id} is lost: it has ended") from None
        found = []
        for words in (line.split(" ") for line in text.splitlines()):
            major, _, minor = words[2].partition(":")
            where = _OCTAL.sub(lambda code: chr(int(code[1], 8)), words[4])
            found.append((where, int(minor), volume_on(int(minor), self.directory) if major == "7" else ""))
        return found

    async def _in_sandbox(self, record: SandboxRecord, argv: Sequence[str], pass_fds: dict[int, int]) -> None:
        """Shielded, so that a caller who goes away never leaves it unknown what was done."""
        try:
            first = os.pidfd_open(record.pid)
        except OSError:
            raise SandboxLost(f"sandbox {record.sandbox_id} is lost: it has ended") from None
        pidfd = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
        os.close(first)
        try:
            if not record.alive():
                raise SandboxLost(f"sandbox {record.sandbox_id} is lost: it has ended")
            who = ["--pid", str(record.pid), "--pidfd", str(_PIDFD)]
            outcome = await run_shielded(self._launch([*argv, *who], {**pass_fds, pidfd: _PIDFD}))
        finally:
            os.close(pidfd)
        if outcome.code != 0:
            why = self._without_paths(outcome.last_line).removeprefix("warren-launch: ")
            for words, error in _REASONS.items():
                if words in why:
                    raise error(why)
            raise ProviderUnavailable(f"mounting a volume: {why}")

    async def _launch(self, argv: Sequence[str], pass_fds: dict[int, int]) -> Finished:
        return await run([str(self._launcher), *argv, "--worker", str(os.getpid())], pass_fds=pass_fds)


def volume_on(minor: int, directory: Path) -> str:
    """Returns the id of the volume of this directory that a loop device has; "" if it has something else."""
    try:
        name = os.path.basename(Path(f"/sys/dev/block/7:{minor}/loop/backing_file").read_text().strip())
        volume_id = name.removesuffix(_SUFFIX)
        if not is_volume_id(volume_id):
            return ""
        image = os.stat(directory / name)
        device = os.open(f"/dev/loop{minor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(device, _LOOP_GET_STATUS64, bytes(_STATUS_BYTES))
        finally:
            os.close(device)
    except OSError:
        return ""
    return volume_id if struct.unpack_from("<QQ", status) == (image.st_dev, image.st_ino) else ""


def _mke2fs(size_mb: int, path: Path) -> list[str]:
    """Nothing of it comes from the host's mke2fs.conf. The file is new, so what is not written is zero: tables are
    marked as such, and the journal need not be wiped. It is small, because a host may have a volume for each of
    thousands of users."""
    features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file"
    return [
        *("env", "MKE2FS_CONFIG=/dev/null", "mke2fs", "-q", "-F", "-t", "ext4", "-T", "default"),
        *("-O", f"{features},huge_file,dir_nlink,extra_isize,metadata_csum", "-e", "remount-ro", "-m", "0"),
        *("-E", f"lazy_itable_init=0,lazy_journal_init=1,discard,root_owner={USER_UID}:{USER_UID}"),
        *("-J", f"size={max(4, min(32, size_mb // 128)) if size_mb >= _SMALL_MB else max(1, size_mb // 64)}"),
        *("-b", "1024" if size_mb < _SMALL_MB else "4096", "-I", "256", "-i", "16384", str(path)),
    ]


def _without_lost_and_found(path: Path) -> list[str]:
    """An empty volume is empty: e2fsck makes the directory when it finds something."""
    return ["debugfs", "-w", "-f", "/dev/null", "-R", "rmdir lost+found", str(path)]


async def _run_each(doing: str, *commands: Sequence[str]) -> None:
    for argv in commands:
        outcome = await run(argv, timeout_s=_TOOLS_S)
        if outcome.code != 0 and not (argv[0] == "e2fsck" and outcome.code == 1):  # 1: it has corrected something
            why = outcome.last_line.replace(argv[-1], "the image")
            if _TOO_SMALL in why:
                raise InvalidRequest(
                    "the volume was made too small to become so large: a thousand times its first size is the most",
                    remedy="make a new one, and copy what is in it there",
                )
            raise ProviderUnavailable(f"{doing}: {why}", remedy="install e2fsprogs, if it is not there")


def keep(temporary: Path, path: Path) -> None:
    sync_file(temporary)
    os.rename(temporary, path)
    sync_file(path.parent)


def _copy_content(old: int, new: int) -> None:
    """Shares blocks where the file system can; else copies what was written."""
    with suppress(OSError):
        fcntl.ioctl(new, _FICLONE, old)
        return
    end = os.fstat(old).st_size
    os.ftruncate(new, end)
    at = 0
    while at < end:
        try:
            at = os.lseek(old, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole follows
            return
        stop = os.lseek(old, at, os.SEEK_HOLE)
        while at < stop:
            at += os.copy_file_range(old, new, stop - at, at, at)


@contextmanager
def space_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoSpace(f"a volume does not fit on the machine's disk: {exc.strerror}") from exc
        raise ProviderUnavailable(f"writing a volume: {exc.strerror}") from exc
