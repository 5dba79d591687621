"""Reading and changing a directory tree that somebody else filled.

An imported root filesystem may hold any link: `etc -> /`, `etc/passwd -> /etc/shadow`. So Warren never resolves a path
of it from the host's root. `Tree` holds a descriptor of the tree's root and resolves below it:

- looking (`open_file`, `is_program`) follows links as a process inside would, with the tree as its
  root: openat2 with RESOLVE_IN_ROOT;
- writing (`make_directory`, `put_file`, `put_link`, ...) follows no link at all: a link in the way of
  a directory is refused, or replaced where the caller says so;
- layers of an image, which are made to lie upon others, go through `parent_inside`: links above the last name are
  followed inside, as by looking, and whatever has the last name is replaced.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from warren.model.errors import InvalidRequest

_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1024 * 1024
_MAX_TRIES = 10_000
MAX_DEPTH = 200  # nested directories; removing and listing a tree recurses once for each


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def open_in_root(root_fd: int, path: str, flags: int) -> int:
    """Opens `path` as a process whose root is `root_fd` would. Raises OSError.

    If anything is renamed or mounted on the machine meanwhile, the kernel cannot tell whether a `..` leads out of the
    root, and returns EAGAIN; then this tries again.
    """
    # IN_ROOT confines `..` and absolute links to the tree; NO_MAGICLINKS refuses /proc links, which jump anywhere.
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    name, size = os.fsencode(path), ctypes.c_size_t(ctypes.sizeof(_OpenHow))
    for _ in range(_MAX_TRIES):
        fd: int = _libc.syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(root_fd), name, ctypes.byref(how), size)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


def parts_of(path: str) -> tuple[str, ...]:
    """Returns the components of a path below the root. Raises InvalidRequest for `..`, NUL or too many components."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in path:
        raise InvalidRequest(f"the path {path!r} leads out of the image")
    if len(parts) > MAX_DEPTH:
        raise InvalidRequest(f"the path {path[:100]!r}… is more than {MAX_DEPTH} directories deep")
    return parts


def _split(path: str) -> tuple[list[str], str]:
    *above, name = parts_of(path) or ("",)
    if not name:
        raise InvalidRequest(f"{path or '.'!r} is the root of the image, which can be nothing but a directory")
    return above, name


class Tree:
    """A directory tree below one descriptor. Use as a context manager."""

    def __init__(self, root: Path) -> None:
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def fd(self) -> int:
        return self._fd

    # Reading: links are followed, inside the tree.

    def open_file(self, path: str) -> int:
        """Opens a file, directory or device for reading, and returns its descriptor. Never blocks on a FIFO."""
        return open_in_root(self._fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)

    def stat(self, path: str) -> os.stat_result | None:
        try:
            fd = open_in_root(self._fd, path, os.O_PATH)
        except OSError:
            return None
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def is_program(self, path: str) -> bool:
        found = self.stat(path)
        return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)

    def has_entries(self, path: str) -> bool:
        fd = open_in_root(self._fd, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return bool(os.listdir(fd))
        finally:
            os.close(fd)

    def read_text(self, path: str, limit: int = 1024 * 1024) -> str:
        """Returns the text of a regular file, "" if there is none. Raises InvalidRequest beyond `limit` bytes."""
        found = self.stat(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return ""
        if found.st_size > limit:
            raise InvalidRequest(f"/{path} of the image is {found.st_size} bytes long, at most {limit} are taken")
        with os.fdopen(self.open_file(path), "rb") as file:
            return file.read(limit).decode(errors="surrogateescape")

    # Writing: no link is followed.

    @contextlib.contextmanager
    def parent(self, path: str, *, replace_links: bool = False, make: bool = True) -> Iterator[tuple[int, str]]:
        """Yields a descriptor of the directory that holds `path`, and the last component. Makes missing directories.
        Raises InvalidRequest for the root itself, which nothing holds."""
        above, name = _split(path)
        with contextlib.ExitStack() as held:
            fd = self._fd
            for part in above:
                fd = _enter(fd, part, path, replace_links, make)
                held.callback(os.close, fd)
            yield fd, name

    def make_directory(self, path: str, mode: int = 0o755, *, replace_links: bool = False) -> None:
        """Makes a directory and its parents. An existing directory keeps its contents and gets the mode."""
        if not parts_of(path):
            os.fchmod(self._fd, mode)
            return
        with self.parent(path, replace_links=replace_links) as (above, name):
            fd = _enter(above, name, path, replace_links)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def new_file(self, path: str, mode: int, *, replace_links: bool = False) -> Iterator[int]:
        """Replaces whatever file or link has the path by a new file, and yields its descriptor for writing."""
        with self.parent(path, replace_links=replace_links) as (above, name):
            _clear(above, name)
            # O_EXCL and O_NOFOLLOW: a link put here in the meantime is an error, never a way out of the tree.
            fd = os.open(name, _FILE, 0o600, dir_fd=above)
            try:
                yield fd
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def put_file(self, path: str, data: str | bytes, mode: int = 0o644) -> None:
        """Writes a file with time 0, so that equal contents make equal images."""
        raw = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        with self.new_file(path, mode, replace_links=True) as fd:
            write_all(fd, raw)
            os.utime(fd, (0, 0))

    def put_link(self, path: str, target: str) -> None:
        with self.parent(path) as (above, name):
            _clear(above, name)
            os.symlink(target, name, dir_fd=above)

    def put_hard_link(self, path: str, existing: str) -> None:
        """Makes another name for a regular file of the tree."""
        with self.parent(existing) as (source, source_name), self.parent(path) as (above, name):
            if not stat.S_ISREG(os.stat(source_name, dir_fd=source, follow_symlinks=False).st_mode):
                raise InvalidRequest(f"the hard link {path!r} leads to {existing!r}, which is no file")
            if parts_of(path) != parts_of(existing):
                _clear(above, name)
                os.link(source_name, name, src_dir_fd=source, dst_dir_fd=above, follow_symlinks=False)

    def set_owner(self, path: str, uid: int, gid: int) -> None:
        if not parts_of(path):
            os.fchown(self._fd, uid, gid)
            return
        with self.parent(path) as (above, name):
            os.chown(name, uid, gid, dir_fd=above, follow_symlinks=False)

    def remove_file(self, path: str) -> None:
        """Removes a file or link. Does nothing if it is missing or a parent is no directory."""
        with contextlib.suppress(FileNotFoundError, InvalidRequest), self.parent(path, make=False) as (above, name):
            _clear(above, name)

    # Layers: links are followed inside, up to the last name.

    @contextlib.contextmanager
    def parent_inside(self, path: str, *, make: bool = True) -> Iterator[tuple[int, str]]:
        """Yields a descriptor of the directory that holds `path`, as a process inside would find it, and the last
        component. Raises FileNotFoundError if the directory is missing and `make` is false, and InvalidRequest for the
        root itself."""
        above, name = _split(path)
        fd = self._directory_inside(above, make)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def _directory_inside(self, parts: list[str], make: bool) -> int:
        for count in range(len(parts), -1, -1):
            try:
                fd = open_in_root(self._fd, "/".join(parts[:count]) or ".", os.O_RDONLY | os.O_DIRECTORY)
                break
            except FileNotFoundError:
                if not make:
                    raise
            except NotADirectoryError as exc:
                if not make:
                    raise FileNotFoundError(exc.errno, exc.strerror) from exc
                raise InvalidRequest(f"{'/'.join(parts)!r} leads through something that is no directory") from exc
        for part in parts[count:]:
            above = fd
            try:
                fd = self.directory_in(above, part)
            finally:
                os.close(above)
        return fd

    def directory_in(self, above: int, name: str) -> int:
        """Returns a descriptor of the directory `name`. Replaces a file or link of that name."""
        try:
            return os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            pass
        except OSError as exc:
            if exc.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            os.unlink(name, dir_fd=above)
        self._check_depth(above)
        os.mkdir(name, 0o700, dir_fd=above)
        return _opened_up(name, above)

    def _check_depth(self, fd: int) -> None:
        """Refuses too deep a directory. A short path can lead to one through links."""
        depth = _depth(fd) - _depth(self._fd)
        if depth >= MAX_DEPTH:
            raise InvalidRequest(f"the image has directories that are more than {MAX_DEPTH} deep")


def _depth(fd: int) -> int:
    return os.readlink(f"/proc/self/fd/{fd}").count("/")


def remove_any(above: int, name: str) -> None:
    """Removes a file, a link, or a directory with its contents. Follows no link."""
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=above)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:_CHUNK]) :]


def _enter(above: int, name: str, path: str, replace_links: bool, make: bool = True) -> int:
    """Returns a descriptor of the directory `name`, made if it is missing. Refuses or replaces a link."""
    for _ in range(3):
        try:
            return os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above)
                return _opened_up(name, above)
        except OSError as exc:
            if exc.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if not replace_links:
                raise InvalidRequest(f"{path!r} leads through {name!r}, which is no directory") from exc
            os.unlink(name, dir_fd=above)
    raise InvalidRequest(f"{path!r} changes while it is being made")


def _opened_up(name: str, above: int) -> int:
    """Returns a descriptor of a directory just made, with mode 0755 whatever the umask is."""
    fd = os.open(name, _DIRECTORY, dir_fd=above)
    os.fchmod(fd, 0o755)
    return fd


def _clear(above: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return
    except IsADirectoryError as exc:
        raise InvalidRequest(f"{name!r} is a directory where a file is to be") from exc
