"""The folder of sandboxes' directories, in memory: `sandboxes` in a state directory is a link to it.

The contents of these directories (a record, a socket, a pid) are useless after a reboot, and some file systems are slow
to make and remove many small files. The folders of all state directories are below /run/warren/sandboxes, each named
after the inode of its state directory: containers that share /run/warren may have different ones at the same path. A
random part follows: a new state directory can have the inode of one that was deleted, and must not get its sandboxes.
Any process may remove an unused folder; the next one that needs it makes it again, with the same name. Where /run is on
a disk, the first process that needs it mounts a tmpfs there, and the one that leaves it empty unmounts it. This is not
done in a mount namespace other than the machine's, such as that of a container with the machine's process ids:
sandboxes can outlive that namespace, and their records must too. If such a container does not have the machine's
/run/warren, the folder stays in the state directory.

An older version kept the directories in the state directory. That folder becomes `sandboxes.old`, and the new folder
links to its contents until they are destroyed, so every path stays valid.
"""

import ctypes
import fcntl
import os
import secrets
import shutil
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/run/warren/sandboxes")
OLD: Final = ".old"
_LOCK: Final = ".lock"
_UNUSED_S: Final = 60.0
_TMPFS: Final = 0x01021994
_FLAGS: Final = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
_OPTIONS: Final = b"mode=700,size=512m,nr_inodes=1048576"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_libc = ctypes.CDLL(None, use_errno=True)


class MemoryFolder:
    """The folder of one state directory. `link` is its path there."""

    def __init__(self, link: Path, root: Path = ROOT) -> None:
        self._link, self._root = link, root
        self._old = link.with_name(link.name + OLD)

    def __repr__(self) -> str:
        return f"<MemoryFolder {self._link}>"

    @property
    def _target(self) -> Path | None:
        """What the link names; None if there is none, or one that came with a copy of another state directory."""
        with suppress(OSError):
            target = Path(os.readlink(self._link))
            if target.parent == self._root and f"{target.name}-".startswith(f"{self._inode}-"):
                return target
        return None

    @property
    def _inode(self) -> str:
        state = os.stat(self._link.parent)
        return f"{state.st_dev:x}-{state.st_ino:x}"

    def make(self, name: str = "") -> None:
        """Makes the folder, and takes over an older one. Idempotent. With `name`, also makes a sandbox's directory in
        it, before anybody can remove the folder again. May wait for others, so call it in a thread. Raises OSError."""
        if not name and self._target and self._link.is_dir() and not self._old.exists():
            return
        of_machine = _is_mount_namespace_of_machine()
        if not of_machine and not os.path.ismount(self._root.parent):
            self._make_in_state()
            if name:
                os.mkdir(self._link / name, 0o700)
            return
        with self._locked(fcntl.LOCK_EX):
            # Only over an empty folder: a mount would hide the records of live sandboxes.
            if of_machine and not os.listdir(self._root) and not _is_in_memory(self._root):
                _libc.mount(b"warren", os.fsencode(self._root), b"tmpfs", _FLAGS, _OPTIONS)
            target = self._target or self._root / f"{self._inode}-{secrets.token_hex(4)}"
            target.mkdir(mode=0o700, exist_ok=True)
            self._put_link(target)
            self._link_old(target)
            if name:
                # Under the lock: `remove` only removes empty folders, and cannot come between.
                os.mkdir(target / name, 0o700)

    def remove(self) -> None:
        """Removes the folder if it is empty, and other folders that have been empty for a while."""
        with suppress(OSError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            target = self._target
            for folder in self._root.iterdir():
                with suppress(OSError):
                    if folder == target or time.time() - folder.stat().st_mtime > _UNUSED_S:
                        folder.rmdir()
            # Only in the machine's mount namespace: elsewhere the tmpfs may be invisible, and removing the mount point
            # would detach it with all its contents.
            if not os.listdir(self._root) and _is_mount_namespace_of_machine():
                _libc.umount2(os.fsencode(self._root), 0)  # fails if it is in use or no mount
                os.rmdir(self._root)

    def directory(self, name: str) -> Path:
        """Returns the directory of a sandbox, by a path whose last component is no link."""
        directory = self._link / name
        return directory.resolve() if directory.is_symlink() else directory

    def remove_directory(self, name: str, files: Iterable[str] = ()) -> bool:
        """Removes the directory of a sandbox as far as possible now, and returns whether it is gone. `files` are the
        names that it usually holds."""
        path = f"{self._link}/{name}"
        for file in files:
            with suppress(OSError):
                os.unlink(f"{path}/{file}")
        with suppress(OSError):
            os.rmdir(path)
            return True
        directory = self._link / name
        if directory.is_symlink():
            shutil.rmtree(directory.resolve(), ignore_errors=True)
            directory.unlink(missing_ok=True)
            with suppress(OSError):
                self._old.rmdir()
        else:
            shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    def _make_in_state(self) -> None:
        if self._link.is_symlink() and not self._link.exists():
            self._link.unlink()
        self._link.mkdir(mode=0o700, exist_ok=True)

    def _put_link(self, target: Path) -> None:
        if self._target == target:
            return
        if self._link.is_symlink():
            self._link.unlink()  # the state directory was copied
        new = self._link.with_name(f".{self._link.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        if not self._link.exists():
            new.rename(self._link)
            return
        self._link_all(self._link, target)
        # In one step, so that other processes find the folder at every moment.
        if _libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(self._link), _RENAME_EXCHANGE):
            new.unlink()
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self._link))
        new.rename(self._old)

    def _link_old(self, target: Path) -> None:
        if self._old.is_dir():
            self._link_all(self._old, target)
            with suppress(OSError):
                self._old.rmdir()

    def _link_all(self, folder: Path, target: Path) -> None:
        for name in os.listdir(folder):
            with suppress(FileExistsError):
                os.symlink(self._old / name, target / name)

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        """Holds the lock of the common folder, which is made again if it was removed meanwhile."""
        self._root.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        fd = os.open(self._root.with_suffix(_LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            self._root.mkdir(mode=0o700, exist_ok=True)
            yield
        finally:
            os.close(fd)


def _is_in_memory(path: Path) -> bool:
    room = ctypes.create_string_buffer(512)
    if _libc.statfs(os.fsencode(path), room):
        return False
    kind: int = struct.unpack_from("l", room)[0]
    return kind == _TMPFS


def _is_mount_namespace_of_machine() -> bool:
    """Returns whether the machine's first process has the same root mount. Its namespace may be hidden from us."""
    try:
        return _root_mount("1") == _root_mount("self")
    except OSError:
        return False


def _root_mount(pid: str) -> str:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return next((line.partition(" ")[0] for line in lines if line.split(" ")[4] == "/"), "")
