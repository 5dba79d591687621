"""Disks for sandboxes: ext4 images, copied ahead from a template.

Images have standard sizes; what one is larger than asked for is reserved in its superblock, so that it holds no more.
mke2fs makes a template per size once, sparse and without a journal; a disk is a copy of its few written blocks. A
stock of copies is kept for the sizes used last and refilled in the background when it is half empty; `take` is then a
rename. Templates and stocks of other sizes are removed. The launcher attaches a disk to a loop device and unlinks it;
its second name, by which disk_room.py tells what it holds, goes with the sandbox's directory. Where there are no loop
devices, a tmpfs takes the disk's place: it is smaller, because it counts as memory.
"""

import asyncio
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from warren.model.errors import NoSpace, ProviderUnavailable
from warren.model.spec import MIB, Limits
from warren.shielding import run_shielded
from warren.worker.host.disk_room import HELD
from warren.worker.host.processes import boot_id, run

STOCK: Final = 4
STOCKED_SIZES: Final = 4
TEMPLATES: Final = 8
_STEPS: Final = 4  # standard sizes from one power of two to the next
_SUPERBLOCK: Final = 1024
_RESERVED_AT, _BLOCK_SIZE_AT = _SUPERBLOCK + 0x08, _SUPERBLOCK + 0x18
_BYTES_PER_INODE: Final = 16384
_FICLONE: Final = 0x40049409
_STALE_S: Final = 600.0
_TRY_MB: Final = 16
_MOST_FREED: Final = 32
_LARGEST_FREED: Final = 4 * MIB
_FREE_AFTER_S: Final = 0.1
_UMOUNT_FLAGS: Final = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW
_libc = ctypes.CDLL(None, use_errno=True)

# What a tmpfs must leave of the memory limit: otherwise a full one leaves no memory to run anything.
_TMPFS_MEMORY_LEFT_MB: Final = 64


class FreedImages:
    """Closes images that have no name any more, one after the other in the background.

    Freeing the blocks of a file takes some file systems long (with `discard` some 10 ms), and nobody has to wait for
    it. What an image holds counts as used until then, so only few and small ones are kept open.
    """

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<FreedImages, {len(self._waiting)} waiting>"

    @contextmanager
    def keeping(self, name: Path) -> Iterator[None]:
        """While its names are removed the image stays open, if there is one; then it is closed some time later."""
        fd = self._open(name)
        try:
            yield
        finally:
            if fd >= 0:
                self._waiting.append(fd)
                if self._closing is None or self._closing.done():
                    self._closing = asyncio.create_task(self._close_all(), name="freed-images")

    async def close(self) -> None:
        """Closes all at once."""
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait([self._closing])
        await asyncio.to_thread(self._close_waiting)

    def _open(self, name: Path) -> int:
        if len(self._waiting) >= _MOST_FREED:
            return -1
        with suppress(OSError):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if os.fstat(fd).st_blocks * 512 <= _LARGEST_FREED:
                return fd
            os.close(fd)
        return -1

    async def _close_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(_FREE_AFTER_S)  # then more of them are closed at a time
            await run_shielded(asyncio.to_thread(self._close_waiting))

    def _close_waiting(self) -> None:
        while self._waiting:
            os.close(self._waiting.popleft())


class Disks:
    """`stock`: how many copies of each size in use are kept ready."""

    def __init__(self, directory: Path, launcher: Path, *, stock: int = STOCK) -> None:
        self._directory = directory
        self._launcher = launcher
        self._stock = stock
        self._template_lock = asyncio.Lock()
        self._refills: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self.why_not_loop = ""

    def __repr__(self) -> str:
        return f"<Disks {self.kind}, stock of {self._stock}>"

    @property
    def kind(self) -> str:
        return f"tmpfs (no loop devices: {self.why_not_loop})" if self.why_not_loop else "ext4 on a loop device"

    async def probe(self) -> None:
        """Finds out whether a disk image can be mounted here."""
        self._sweep()
        proof = self._directory / f"loop-devices-{boot_id()}"
        if proof.exists():
            return
        place = self._directory / f"try-{secrets.token_hex(4)}"
        place.mkdir(mode=0o700, parents=True)
        try:
            await self._copy(_TRY_MB, lambda template: copy_sparse(template, place / "disk.img"))
            at = place / "at"
            at.mkdir()
            argv = [str(self._launcher), "disk", "--try", "--disk", str(place / "disk.img"), "--at", str(at)]
            outcome = await run(argv)
            self.why_not_loop = "" if outcome.code == 0 else outcome.last_line
            if outcome.code == 0:
                proof.touch()
        except ProviderUnavailable as exc:
            self.why_not_loop = str(exc)
        finally:
            shutil.rmtree(place)

    async def take(self, size_mb: int, target: Path) -> None:
        """Puts a fresh disk at `target`, and its second name beside it."""
        standard_mb = standard_size_mb(size_mb)
        left = self._take_ready(standard_mb, target)
        if left < 0:
            await self._copy(standard_mb, lambda template: copy_sparse(template, target))
        if standard_mb != size_mb:
            reserve_blocks(target, (standard_mb - size_mb) * MIB)
        with suppress(PermissionError):  # a file system without links: the image then counts as written
            os.link(target, target.with_name(HELD))
        if left <= self._stock // 2:
            self._refill(standard_mb)

    async def prepare(self, size_mb: int, count: int) -> None:
        """Makes sure that `count` disks of that size are ready, now."""
        size_mb = standard_size_mb(size_mb)
        if len(self._ready(size_mb)) < count:
            await self._copy(size_mb, lambda template: self._fill(size_mb, template, count))

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._refills.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _refill(self, size_mb: int) -> None:
        task = self._refills.get(size_mb)
        if self._stock and (task is None or task.done()):
            self._refills[size_mb] = asyncio.create_task(self._refill_quietly(size_mb), name=f"disks-{size_mb}")

    async def _refill_quietly(self, size_mb: int) -> None:
        # A stock that cannot be refilled is no error yet: `take` makes its own copy, and raises if that fails too.
        with suppress(ProviderUnavailable, NoSpace, FileNotFoundError):
            await self.prepare(size_mb, self._stock)

    def _fill(self, size_mb: int, template: Path, count: int) -> None:
        """Adds copies of the template until there are `count`. Called in a thread."""
        folder = self._folder(size_mb)
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._remove_unused()
        while not self._closed and len(self._ready(size_mb)) < count:
            name = secrets.token_hex(8)
            copy_sparse(template, f"{folder}/.{name}")
            os.rename(f"{folder}/.{name}", f"{folder}/{name}.img")

    def _take_ready(self, size_mb: int, target: Path) -> int:
        """Returns how many are left; -1 if there was none to take."""
        ready = self._ready(size_mb)
        while ready:
            try:
                os.rename(ready.pop(), target)
            except FileNotFoundError:  # another process was faster
                continue
            return len(ready)
        return -1

    def _ready(self, size_mb: int) -> list[str]:
        folder = self._folder(size_mb)
        try:
            return [f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".img") and name[0] != "."]
        except FileNotFoundError:
            return []

    def _folder(self, size_mb: int) -> str:
        return f"{self._directory}/stock-{size_mb}"

    async def _copy(self, size_mb: int, copy: Callable[[Path], None]) -> None:
        """Calls `copy` in a thread, with the template."""
        template = await self._template(size_mb)
        try:
            # A thread cannot be cancelled. Waiting for it keeps it from writing to what is being removed.
            try:
                await run_shielded(asyncio.to_thread(copy, template))
            except FileNotFoundError:  # another process has just removed the template
                template = await self._template(size_mb)
                await run_shielded(asyncio.to_thread(copy, template))
        except OSError as exc:
            raise NoSpace(f"a disk of {size_mb} MiB cannot be made in {self._directory}: {exc.strerror}") from exc

    async def _template(self, size_mb: int) -> Path:
        template = self._directory / f"template-{size_mb}.img"
        with suppress(FileNotFoundError):
            os.utime(template)  # the time of its last use
            return template
        async with self._template_lock:
            if not template.exists():
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._sweep()
                await self._make_template(size_mb, template)
        return template

    async def _make_template(self, size_mb: int, template: Path) -> None:
        temporary = template.with_name(f".{template.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as image:
                image.truncate(size_mb * MIB)
            outcome = await run([*mke2fs_argv(), str(temporary)])
            if outcome.code != 0:
                raise ProviderUnavailable(
                    f"making the template of a {size_mb} MiB disk: {outcome.last_line}", remedy="install e2fsprogs"
                )
            temporary.rename(template)
        except OSError as exc:
            raise ProviderUnavailable(f"making the template of a {size_mb} MiB disk: {exc.strerror}") from exc
        finally:
            temporary.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes what interrupted copies and trials have left."""
        for path in (*self._directory.glob(".*"), *self._directory.glob("stock-*/.*"), *self._directory.glob("try-*")):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._remove_unused()

    def _remove_unused(self) -> None:
        """Removes templates and stocks of sizes that are not standard, and all but those used last."""
        for pattern, count in (("stock-*", STOCKED_SIZES), ("template-*.img", TEMPLATES)):
            found = [path for path in self._directory.glob(pattern) if _size_in(path) is not None]
            kept = {path for path in found if standard_size_mb(_size_in(path) or 0) == _size_in(path)}
            for path in {*found} - {*sorted(kept, key=_changed_at, reverse=True)[:count]}:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def standard_size_mb(size_mb: int) -> int:
    """The smallest standard size that holds so much: powers of two, and three steps between each two of them."""
    size_mb = max(_TRY_MB, size_mb)
    step = (1 << (size_mb - 1).bit_length() - 1) // _STEPS
    return -(-size_mb // step) * step


def _size_in(path: Path) -> int | None:
    number = path.stem.partition("-")[2]
    return int(number) if number.isdigit() else None


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def reserve_blocks(image: Path, size: int) -> None:
    """Keeps so many bytes of a new ext4 image from all users but root. It has no checksums of metadata."""
    with image.open("r+b", buffering=0) as file:
        (log_size,) = struct.unpack("<I", os.pread(file.fileno(), 4, _BLOCK_SIZE_AT))
        os.pwrite(file.fileno(), struct.pack("<I", size >> (10 + log_size)), _RESERVED_AT)


def mke2fs_argv() -> list[str]:
    # No resize_inode, no journal, no reserve: they cost room and time on a disk that lives for an hour.
    features = "^has_journal,^resize_inode,^metadata_csum,uninit_bg,extent,sparse_super"
    extended = "lazy_itable_init=1,nodiscard,root_owner=0:0"
    return ["mke2fs", "-q", "-F", "-t", "ext4", "-O", features, "-m", "0", "-i", str(_BYTES_PER_INODE), "-E", extended]


def tmpfs_options(limits: Limits) -> str:
    size_mb = max(8, min(limits.disk_mb, limits.memory_mb // 2, limits.memory_mb - _TMPFS_MEMORY_LEFT_MB))
    return f"size={size_mb}m,nr_inodes={size_mb * MIB // _BYTES_PER_INODE},mode=755"


def unmount(where: Path) -> None:
    """Takes whatever is mounted at `where` off the host's mount table; sandboxes that hold it keep it. Idempotent."""
    while _libc.umount2(os.fsencode(where), _UMOUNT_FLAGS) == 0:
        pass  # one mount may lie upon another
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOENT):  # not a mount point, not there
        raise OSError(number, os.strerror(number), str(where))


def copy_sparse(source: Path, target: str | Path) -> None:
    """Copies what was written of a sparse file; shares the blocks where the file system can. Leaves nothing if it
    fails."""
    old = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.ioctl(new, _FICLONE, old)
            except OSError:
                _copy_extents(old, new)
        except BaseException:
            os.unlink(target)
            raise
        finally:
            os.close(new)
    finally:
        os.close(old)


def _copy_extents(old: int, new: int) -> None:
    size = os.fstat(old).st_size
    os.ftruncate(new, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(old, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        at = os.lseek(old, start, os.SEEK_HOLE)
        while start < at:
            data = os.pread(old, min(at - start, MIB), start)
            if not data:
                return
            start += os.pwrite(new, data, start)
