"""Disks for sandboxes: ext4 images, each copied from a template when its sandbox is made.

Images have standard sizes. The part of an image beyond the size asked for is reserved in its superblock and cannot be
used. mke2fs makes a template per size once, sparse and without a journal; a disk is a copy of the template's few
written blocks. It never has a name: the launcher gets its descriptor and attaches it to a loop device, so the kernel
removes it with its last user (disk_images.py). Templates that were not used lately are removed. Where there are no loop
devices, a tmpfs takes the disk's place: it is smaller, because it counts as memory.
"""

import asyncio
import ctypes
import errno
import fcntl
import math
import os
import secrets
import shutil
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.kernel.syncing import sync_file
from warren.model.errors import NoSpace, ProviderUnavailable
from warren.model.spec import MIB, Limits
from warren.sandboxes.host.extents import copy_file
from warren.sandboxes.host.processes import boot_id, run

TEMPLATES: Final = 8
DISK_FD: Final = 6
FREE_FD: Final = 16
"""Launchers are given descriptors with lower numbers."""
_TEMPLATE: Final = "named-"
_TOUCH_EVERY_S: Final = 60.0
_STEPS: Final = 4  # standard sizes between two powers of two
_SUPERBLOCK: Final = 1024
_RESERVED_AT, _BLOCK_SIZE_AT = _SUPERBLOCK + 0x08, _SUPERBLOCK + 0x18
_BYTES_PER_INODE: Final = 16384
_INODE_BYTES: Final = 256
_SMALL_MB: Final = 512
_STALE_S: Final = 600.0
_TRY_MB: Final = 16
_LOOP_CONTROL: Final = "/dev/loop-control"
_UMOUNT_FLAGS: Final = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW
_libc = ctypes.CDLL(None, use_errno=True)

# A tmpfs must leave this much of the memory limit: a full one would otherwise leave no memory to run anything.
_TMPFS_MEMORY_LEFT_MB: Final = 64


class Disks:
    def __init__(self, directory: Path, launcher: Path) -> None:
        self.directory = directory
        self._launcher = launcher
        self._template_lock = asyncio.Lock()
        self._touched: dict[str, float] = {}
        self.why_not_loop = ""
        self._is_probed = False

    def __repr__(self) -> str:
        return f"<Disks {self.kind}>"

    @property
    def kind(self) -> str:
        return f"tmpfs (no loop devices: {self.why_not_loop})" if self.why_not_loop else "ext4 on a loop device"

    @property
    def has_loop(self) -> bool:
        """Whether disks are images. Before `probe` it is enough that loop devices can be asked for."""
        if self._is_probed or self.why_not_loop:
            return not self.why_not_loop
        try:
            os.close(os.open(_LOOP_CONTROL, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    async def probe(self) -> None:
        """Finds out whether a disk image can be mounted here; `why_not_loop` says why not."""
        self._sweep()
        self._is_probed = True
        proof = self.directory / f"loop-devices-{boot_id()}"
        if proof.exists():
            return
        place = self.directory / f"try-{secrets.token_hex(4)}"
        place.mkdir(mode=0o700, parents=True)
        fd = -1
        try:
            fd = await self.copy(_TRY_MB)
            argv = [str(self._launcher), "disk", "--try", "--disk-fd", str(DISK_FD), "--at", str(place)]
            outcome = await run(argv, pass_fds={fd: DISK_FD})
            self.why_not_loop = "" if outcome.code == 0 else outcome.last_line
            if outcome.code == 0:
                proof.touch()
        except ProviderUnavailable as exc:
            self.why_not_loop = str(exc)
        finally:
            if fd >= 0:
                os.close(fd)
            place.rmdir()

    async def copy(self, size_mb: int) -> int:
        """Returns a descriptor of a fresh disk, with a number that launchers do not use. Raises NoSpace,
        ProviderUnavailable."""
        standard_mb = standard_size_mb(size_mb)
        reserved = (standard_mb - size_mb) * MIB
        try:
            try:
                return await self._copy_template(await self._template(standard_mb), reserved)
            except FileNotFoundError:  # another process has just removed the template
                return await self._copy_template(await self._template(standard_mb), reserved)
        except OSError as exc:
            raise NoSpace(f"a disk of {size_mb} MiB cannot be made in {self.directory}: {exc.strerror}") from exc

    async def _copy_template(self, template: str, reserved: int) -> int:
        copying = asyncio.ensure_future(asyncio.to_thread(_copy, template, str(self.directory), reserved))
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            copying.add_done_callback(_close_result)  # a thread cannot be cancelled; close its disk when it is done
            raise

    async def _template(self, size_mb: int) -> str:
        template = f"{self.directory}/{_TEMPLATE}{size_mb}.img"
        if self._is_there(template):
            return template
        async with self._template_lock:
            if not os.path.exists(template):
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                await self._make_template(size_mb, Path(template))
                self._sweep()
        return template

    def _is_there(self, template: str) -> bool:
        """Returns whether the template exists, and updates the time of its last use now and then."""
        now = time.monotonic()
        if now - self._touched.get(template, -math.inf) < _TOUCH_EVERY_S:
            return os.path.exists(template)
        try:
            os.utime(template)
        except FileNotFoundError:
            return False
        self._touched[template] = now
        return True

    async def _make_template(self, size_mb: int, template: Path) -> None:
        temporary = template.with_name(f".{template.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as image:
                image.truncate(size_mb * MIB)
            outcome = await run([*mke2fs_argv(size_mb), str(temporary)])
            if outcome.code != 0:
                raise ProviderUnavailable(
                    f"making the template of a {size_mb} MiB disk: {outcome.last_line}", remedy="install e2fsprogs"
                )
            await asyncio.to_thread(sync_file, temporary)  # else a loss of power may leave a template without content
            temporary.rename(template)
        except OSError as exc:
            raise ProviderUnavailable(f"making the template of a {size_mb} MiB disk: {exc.strerror}") from exc
        finally:
            temporary.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes leftovers of trials and of older versions, and all templates but the most recently used."""
        for path in (*self.directory.glob(".*"), *self.directory.glob("try-*")):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.directory.glob("stock-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in (*self.directory.glob("template-*.img"), *self.directory.glob("packed-*.img")):
            path.unlink(missing_ok=True)
        found = sorted(self.directory.glob(f"{_TEMPLATE}*.img"), key=_changed_at, reverse=True)
        for path in found[TEMPLATES:]:
            path.unlink(missing_ok=True)


def standard_size_mb(size_mb: int) -> int:
    """Returns the smallest standard size that is large enough: powers of two, and three steps between them."""
    size_mb = max(_TRY_MB, size_mb)
    step = (1 << (size_mb - 1).bit_length() - 1) // _STEPS
    return -(-size_mb // step) * step


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def reserve_blocks(image: int, size: int) -> None:
    """Reserves `size` bytes of an image for root. Only if nobody has mounted it, and it has no metadata checksums."""
    (log_size,) = struct.unpack("<I", os.pread(image, 4, _BLOCK_SIZE_AT))
    os.pwrite(image, struct.pack("<I", size >> (10 + log_size)), _RESERVED_AT)


def mke2fs_argv(size_mb: int) -> list[str]:
    """The command that makes the file system of a template. Nothing of it comes from the host's mke2fs.conf."""
    # No resize_inode, journal, reserve or second superblock: they cost room and time on a disk that lives for an hour.
    # Its metadata are packed together, so that few extents are copied and freed.
    features = "none,ext_attr,dir_index,filetype,large_file,sparse_super2,extent,64bit,flex_bg,huge_file,uninit_bg"
    extended = "lazy_itable_init=1,nodiscard,root_owner=0:0,packed_meta_blocks=1,num_backup_sb=0"
    block_bytes = 1024 if size_mb < _SMALL_MB else 4096
    return [
        *("env", "MKE2FS_CONFIG=/dev/null", "mke2fs", "-q", "-F", "-t", "ext2", "-T", "default"),
        *("-O", f"{features},dir_nlink,extra_isize", "-E", extended, "-e", "remount-ro", "-m", "0"),
        *("-b", str(block_bytes), "-I", str(_INODE_BYTES), "-i", str(_BYTES_PER_INODE)),
    ]


def tmpfs_options(limits: Limits) -> str:
    size_mb = max(8, min(limits.disk_mb, limits.memory_mb // 2, limits.memory_mb - _TMPFS_MEMORY_LEFT_MB))
    return f"size={size_mb}m,nr_inodes={size_mb * MIB // _BYTES_PER_INODE},mode=755"


def unmount(where: Path) -> None:
    """Unmounts everything at `where` from the host; sandboxes that use it keep it. Idempotent. Raises OSError."""
    while _libc.umount2(os.fsencode(where), _UMOUNT_FLAGS) == 0:
        pass  # mounts may be stacked
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOENT):  # not a mount point, or missing
        raise OSError(number, os.strerror(number), str(where))


def _copy(template: str, directory: str, reserved: int) -> int:
    """Returns a descriptor of a nameless copy, which shares blocks with the template where the file system can."""
    old = os.open(template, os.O_RDONLY | os.O_CLOEXEC)
    try:
        new = nameless(directory)
        try:
            copy_file(old, new)
            if reserved:
                reserve_blocks(new, reserved)
            return fcntl.fcntl(new, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
        finally:
            os.close(new)
    finally:
        os.close(old)


def nameless(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    name = f"{directory}/.{secrets.token_hex(8)}"  # this file system has no O_TMPFILE
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(name)
    return fd


def _close_result(copying: asyncio.Future[int]) -> None:
    if not copying.cancelled() and copying.exception() is None:
        os.close(copying.result())
