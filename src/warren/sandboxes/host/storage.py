"""A file system whose files share blocks, for a state directory on one whose files do not: an xfs image.

`warren storage init` makes STATE/disks.xfs, a sparse file, and mounts it at STATE/disks, where the disks of sandboxes,
saved disks and volumes are. The file alone says that there is a storage: whatever makes sandboxes mounts it first
(`mount_storage`), so nothing of the machine has to know of it, and no server ever begins with an empty directory in
place of what was saved. The kernel does not mount the same xfs twice by two loop devices: it compares their ids.

The image gives back to the machine's disk what is freed in it (`discard`). It takes more as it fills, so both file
systems can run full: `file_systems` names both, and whoever looks for room takes the tighter one.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.kernel.syncing import sync_file, sync_file_system
from warren.model.errors import Conflict, InvalidRequest, NoSpace, ProviderUnavailable
from warren.model.spec import MIB
from warren.sandboxes.host.disks import nameless
from warren.sandboxes.host.extents import clone

DISKS: Final = "disks"
KEPT: Final = ("saved", "volumes")
"""What of the disks outlives sandboxes."""
SMALLEST_MB: Final = 512
_IMAGE: Final = "disks.xfs"
_NEW_IMAGE, _NEW_PLACE, _OLD_PLACE = ".disks.xfs", ".disks.new", ".disks.old"
_OPTIONS: Final = "loop,noatime,nosuid,nodev,noexec,discard"
_LET_GO_S: Final = 15.0
_SANDBOXES: Final = ("sandboxes", "docker")


@dataclass(frozen=True, slots=True)
class StorageState:
    """In MiB: of the image its size and what it occupies, of both file systems what is free."""

    image: Path
    size_mb: int
    occupied_mb: int
    is_mounted: bool
    free_mb: int
    host_free_mb: int


def file_systems(state_dir: Path) -> list[os.statvfs_result]:
    """The file systems that disks of sandboxes are written to: that of the state directory, and its storage."""
    place = state_dir
    while not place.exists():
        place = place.parent
    return [os.statvfs(place), *([os.statvfs(place / DISKS)] if _is_mounted(state_dir) else [])]


def shares_blocks(directory: Path) -> bool:
    """Whether files there can share blocks. Raises OSError."""
    old, new = nameless(str(directory)), nameless(str(directory))
    try:
        os.pwrite(old, bytes(4096), 0)
        return clone(old, new)
    finally:
        os.close(old)
        os.close(new)


def mount_storage(state_dir: Path) -> None:
    """Mounts the storage of the state directory, if it has one. Idempotent. Raises ProviderUnavailable."""
    if os.geteuid() != 0 or not (state_dir / _IMAGE).exists():  # others may not even look
        return
    with _alone(state_dir):
        if not _is_mounted(state_dir):
            _mount(state_dir / _IMAGE, state_dir / DISKS)


def unmount_storage(state_dir: Path) -> None:
    """Raises Conflict if a sandbox still uses it."""
    until = time.monotonic() + _LET_GO_S  # the loop device of a sandbox that has just ended goes a moment later
    while _is_mounted(state_dir):
        outcome = subprocess.run(["umount", state_dir / DISKS], capture_output=True, text=True)
        if outcome.returncode and time.monotonic() > until:
            raise Conflict(f"the storage is in use: {outcome.stderr.strip()}", remedy="end all sandboxes first")
        if outcome.returncode:
            time.sleep(0.1)


def make_storage(state_dir: Path, size_mb: int | None) -> bool:
    """Makes the storage, moves saved disks and volumes into it, and mounts it. Returns False if there is one already.
    Needs the lock of the state directory. Until the image has its name nothing has changed."""
    if (state_dir / _IMAGE).exists():
        mount_storage(state_dir)
        return False
    _check_tools()
    _refuse_sandboxes(state_dir)
    if shares_blocks(state_dir):
        raise InvalidRequest(
            "the file system of the state directory shares blocks itself", remedy="nothing has to be done"
        )
    image, place = state_dir / _NEW_IMAGE, state_dir / _NEW_PLACE
    free_mb = os.statvfs(state_dir).f_bavail * os.statvfs(state_dir).f_frsize // MIB
    size_mb = free_mb // 2 if size_mb is None else size_mb
    if not SMALLEST_MB <= size_mb <= free_mb:
        raise NoSpace(
            f"a storage of {size_mb} MiB cannot be made: {free_mb} MiB are free, and it takes {SMALLEST_MB} or more",
            remedy="give another --size, or free some space",
        )
    with _alone(state_dir):
        try:
            image.unlink(missing_ok=True)
            with image.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(size_mb * MIB)
            _run("mkfs.xfs", "-q", "-m", "reflink=1", str(image))
            _mount(image, place)
            try:
                _copy_kept(state_dir / DISKS, place)
            finally:
                _run("umount", str(place))
            sync_file(image)
            image.rename(state_dir / _IMAGE)
            sync_file(state_dir)
        finally:
            image.unlink(missing_ok=True)
            if place.exists():
                place.rmdir()
        shutil.rmtree(state_dir / DISKS, ignore_errors=True)  # what it held is in the image, or made anew
        _mount(state_dir / _IMAGE, state_dir / DISKS)
    return True


def remove_storage(state_dir: Path) -> bool:
    """Moves saved disks and volumes back, and removes the storage. Returns False if there is none. Needs the lock of
    the state directory. The image goes last: until then it counts."""
    if not (state_dir / _IMAGE).exists():
        return False
    _refuse_sandboxes(state_dir)
    mount_storage(state_dir)
    place = state_dir / _OLD_PLACE
    with _alone(state_dir):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            _copy_kept(state_dir / DISKS, place)
        except NoSpace:
            shutil.rmtree(place)
            raise
        unmount_storage(state_dir)
        shutil.rmtree(state_dir / DISKS)
        place.rename(state_dir / DISKS)
        sync_file(state_dir)
        (state_dir / _IMAGE).unlink()
        sync_file(state_dir)
    return True


def read_storage(state_dir: Path) -> StorageState | None:
    """Returns None if there is none."""
    try:
        found = (state_dir / _IMAGE).stat()
    except FileNotFoundError:
        return None
    host, *own = file_systems(state_dir)
    free = [each.f_bavail * each.f_frsize // MIB for each in (host, *own)]
    image = state_dir / _IMAGE
    return StorageState(image, found.st_size // MIB, found.st_blocks * 512 // MIB, bool(own), free[-1], free[0])


def _check_tools() -> None:
    if shutil.which("mkfs.xfs") is None:
        raise ProviderUnavailable("there is no mkfs.xfs", remedy="install xfsprogs")
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        raise ProviderUnavailable(
            "a storage needs loop devices, and /dev/loop-control is not there", remedy="load the kernel module loop"
        )


def _refuse_sandboxes(state_dir: Path) -> None:
    there = [path.name for kind in _SANDBOXES for path in state_dir.glob(f"{kind}/*")]
    if there:
        raise Conflict(
            f"{len(there)} sandboxes have their disks in the state directory",
            remedy="end all sessions (`warren kill-all`), stop the server, and try again",
        )


def _is_mounted(state_dir: Path) -> bool:
    try:
        return os.stat(state_dir / DISKS).st_dev != os.stat(state_dir).st_dev
    except FileNotFoundError:
        return False


def _mount(image: Path, place: Path) -> None:
    place.mkdir(mode=0o700, exist_ok=True)
    try:
        _run("mount", "-t", "xfs", "-o", _OPTIONS, str(image), str(place))
    except ProviderUnavailable as exc:
        raise ProviderUnavailable(
            f"the storage {image} cannot be mounted: {exc.message}",
            remedy="the kernel's log says more; xfs_repair mends an image that nobody has mounted",
        ) from None
    os.chmod(place, 0o700)


def _copy_kept(source: Path, target: Path) -> None:
    """Saved disks have attributes that only root sees: `cp -a` as root keeps them."""
    found: Sequence[str] = [str(source / name) for name in KEPT if (source / name).is_dir()]
    if found:
        try:
            _run("cp", "-a", "--sparse=always", *found, str(target))
        except ProviderUnavailable as exc:
            raise NoSpace(f"saved disks and volumes cannot be moved: {exc.message}") from None
    sync_file_system(target)


def _run(*argv: str) -> None:
    outcome = subprocess.run(argv, capture_output=True, text=True)
    if outcome.returncode:
        why = (outcome.stderr or outcome.stdout).strip().splitlines() or ["it failed"]
        raise ProviderUnavailable(f"{argv[0]}: {why[0]}")


@contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """One process mounts, makes or removes it at a time."""
    fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
