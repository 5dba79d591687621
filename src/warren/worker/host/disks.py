"""Disks for sandboxes: ext4 images, copied ahead from a template.

mke2fs makes a template per size once, sparse and without a journal; a disk is a copy of its few written blocks. A
stock of copies is kept for the sizes in use and refilled in the background; `take` is then a rename. The launcher
attaches a disk to a loop device and unlinks it, so it vanishes with its sandbox. Where there are no loop devices, a
tmpfs takes the disk's place: it is smaller, because it counts as memory.
"""

import asyncio
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.model.errors import NoSpace, ProviderUnavailable
from warren.model.spec import MIB, Limits
from warren.shielding import run_shielded
from warren.worker.host.processes import boot_id, run

STOCK: Final = 4
_BYTES_PER_INODE: Final = 16384
_FICLONE: Final = 0x40049409
_STALE_S: Final = 600.0
_TRY_MB: Final = 16
_UMOUNT_FLAGS: Final = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW
_libc = ctypes.CDLL(None, use_errno=True)

# What a tmpfs must leave of the memory limit: otherwise a full one leaves no memory to run anything.
_TMPFS_MEMORY_LEFT_MB: Final = 64


class Disks:
    """`stock`: how many copies of each size in use are kept ready."""

    def __init__(self, directory: Path, launcher: Path, *, stock: int = STOCK) -> None:
        self._directory = directory
        self._launcher = launcher
        self._stock = stock
        self._template_lock = asyncio.Lock()
        self._refills: dict[int, asyncio.Task[None]] = {}
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
            await self._copy(_TRY_MB, place / "disk.img")
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
        """Puts a fresh disk at `target`."""
        if not self._take_ready(size_mb, target):
            await self._copy(size_mb, target)
        self._refill(size_mb)

    async def prepare(self, size_mb: int, count: int) -> None:
        """Makes sure that `count` disks of that size are ready, now."""
        while len(self._ready(size_mb)) < count:
            await self._add(size_mb)

    async def close(self) -> None:
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
        with suppress(ProviderUnavailable, NoSpace):
            await self.prepare(size_mb, self._stock)

    async def _add(self, size_mb: int) -> None:
        folder = self._folder(size_mb)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = secrets.token_hex(8)
        temporary = folder / f".{name}"
        try:
            await self._copy(size_mb, temporary)
            temporary.rename(folder / f"{name}.img")
        finally:
            temporary.unlink(missing_ok=True)

    def _take_ready(self, size_mb: int, target: Path) -> bool:
        for image in self._ready(size_mb):
            try:
                image.rename(target)
            except FileNotFoundError:  # another process was faster
                continue
            return True
        return False

    def _ready(self, size_mb: int) -> list[Path]:
        return list(self._folder(size_mb).glob("[!.]*.img"))

    def _folder(self, size_mb: int) -> Path:
        return self._directory / f"stock-{size_mb}"

    async def _copy(self, size_mb: int, target: Path) -> None:
        template = await self._template(size_mb)
        try:
            # A thread cannot be cancelled. Waiting for it keeps it from writing to what is being removed.
            await run_shielded(asyncio.to_thread(copy_sparse, template, target))
        except OSError as exc:
            target.unlink(missing_ok=True)
            raise NoSpace(f"a disk of {size_mb} MiB cannot be made at {target}: {exc.strerror}") from exc

    async def _template(self, size_mb: int) -> Path:
        template = self._directory / f"template-{size_mb}.img"
        if template.exists():
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
            raise ProviderUnavailable(f"making the template of a {size_mb} MiB disk: {exc}") from exc
        finally:
            temporary.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes what interrupted copies and trials have left."""
        for path in (*self._directory.glob(".*"), *self._directory.glob("stock-*/.*"), *self._directory.glob("try-*")):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


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


def copy_sparse(source: Path, target: Path) -> None:
    """Copies what was written of a sparse file; shares the blocks where the file system can."""
    with source.open("rb") as old, target.open("xb") as new:
        os.fchmod(new.fileno(), 0o600)
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            _copy_extents(old.fileno(), new.fileno())


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
