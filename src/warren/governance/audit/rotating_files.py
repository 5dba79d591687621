"""Files of lines in a directory: lines are appended to the newest file, the oldest files are removed. Blocking.

The files are numbered, the highest is the one in use; no number is used twice. If a name is taken by something else (a
link, a pipe, a file of another user), the next number is used: no link is followed. Several processes may append to
the same directory: a lock on the directory makes them take turns, and so the chain of hashes (chain.py) is one.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from warren.governance.audit.chain import BEGINNING, HEADER_BYTES, SUFFIX_BYTES, chain, header, last_hash, split_groups
from warren.governance.audit.file_lines import lines_before
from warren.model.errors import Unavailable

MAX_BYTES: Final = 16 * 1024 * 1024
KEEP_FILES: Final = 16
_NAME: Final = re.compile(r"audit-([0-9]{10,18})\.jsonl")
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_AT_ONCE: Final = 64 * 1024
_TRIES: Final = 100
_SOMETHING_ELSE: Final = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM}
_REMEDY: Final = "the audit record needs a directory of this user's own, not a link to one"


class Appended(NamedTuple):
    """The number of lines written, and why that is not all of them."""

    lines: int
    trouble: str = ""


class RotatingFiles:
    """Used by one thread. `append` raises nothing."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES, keep_files: int = KEEP_FILES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._keep_files = max(1, keep_files)
        self._fd = -1
        self._number = 0
        self._last, self._last_at = "", (-1, -1)  # the last hash written; the inode and the size of its file then

    def append(self, lines: Sequence[bytes]) -> Appended:
        count = 0
        try:
            for group in split_groups(lines, min(_AT_ONCE, self._max_bytes - HEADER_BYTES)):
                written = self._write(group)
                count += written
                if written < len(group):
                    self.close()
                    return Appended(count, "the file system took only a part")
        except OSError as exc:
            self.close()
            return Appended(count, f"{self._directory}: {exc.strerror or exc}")
        return Appended(count)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, lines: Sequence[bytes]) -> int:
        with opened_directory(self._directory) as directory:
            fcntl.flock(directory, fcntl.LOCK_EX)
            self._make_room(directory, HEADER_BYTES + sum(len(line) + SUFFIX_BYTES for line in lines))
            state = os.fstat(self._fd)
            last = self._find_last(directory, state)
            first = b"" if state.st_size else header(last)
            linked, last = chain(lines, last)
            data = first + b"".join(linked)
            written = os.write(self._fd, data)
            if written == len(data):
                self._last, self._last_at = last, (state.st_ino, state.st_size + written)
            return data.count(b"\n", 0, written) - (1 if first and written >= len(first) else 0)

    def _find_last(self, directory: int, state: os.stat_result) -> str:
        """Returns the hash that the next line follows: the last one of the newest file that has any."""
        if self._last and self._last_at == (state.st_ino, state.st_size):
            return self._last
        for number in sorted(numbers_in(directory), reverse=True):
            with opened_to_read(directory, number) as fd:
                if fd is not None and (found := last_hash(text for _, text in lines_before(fd, os.fstat(fd).st_size))):
                    return found
        return BEGINNING

    def _make_room(self, directory: int, size: int) -> None:
        """Opens a file that has room for `size` bytes and is still the newest in its directory."""
        if self._fd >= 0:
            state = os.fstat(self._fd)
            newest = self._number == max(numbers_in(directory), default=0)
            if state.st_nlink and newest and self._has_room(state, size):
                return
            self.close()
        self._fd = self._open_file(directory, size)
        self._prune(directory)

    def _open_file(self, directory: int, size: int) -> int:
        for _ in range(_TRIES):
            last = max(numbers_in(directory), default=0)
            for number, flags in ((last, 0), (last + 1, os.O_CREAT | os.O_EXCL)):
                with contextlib.suppress(FileExistsError, FileNotFoundError, _NotOurs):
                    fd = self._open_number(directory, number, flags, size)
                    self._number = number
                    return fd
        raise OSError(errno.EAGAIN, "others keep making files in it")

    def _open_number(self, directory: int, number: int, flags: int, size: int) -> int:
        with _closed_on_error(_open(directory, number, os.O_RDWR | os.O_APPEND | flags)) as fd:
            state = os.fstat(fd)
            if not self._has_room(state, size):
                raise _NotOurs
            if state.st_mode & 0o077:
                os.fchmod(fd, 0o600)
            if state.st_size and os.pread(fd, 1, state.st_size - 1) != b"\n":
                os.write(fd, b"\n")  # the last writer was killed within a line
            return fd

    def _has_room(self, state: os.stat_result, size: int) -> bool:
        return state.st_size == 0 or state.st_size + size <= self._max_bytes

    def _prune(self, directory: int) -> None:
        for number in sorted(numbers_in(directory))[: -self._keep_files]:
            with contextlib.suppress(OSError):
                os.unlink(file_name(number), dir_fd=directory)


class _NotOurs(Exception):
    """Not a file to write to."""


def make_directory(path: Path) -> None:
    """Makes the directory if there is none, and makes it private. Raises Unavailable if it cannot."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        with opened_directory(path) as fd:
            if os.fstat(fd).st_mode & 0o077:
                os.fchmod(fd, 0o700)
    except OSError as exc:
        raise Unavailable(f"the audit record cannot be kept in {path}: {exc.strerror}", remedy=_REMEDY) from exc


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_to_read(directory: int, number: int) -> Iterator[int | None]:
    """Yields a descriptor; None if the file is not, or no longer, one of ours."""
    try:
        fd = _open(directory, number, os.O_RDONLY)
    except (FileNotFoundError, _NotOurs):
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def numbers_in(directory: int) -> list[int]:
    return [int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name))]


def file_name(number: int) -> str:
    return f"audit-{number:010}.jsonl"


def _open(directory: int, number: int, flags: int) -> int:
    try:
        opened = os.open(file_name(number), flags | _SAFE, 0o600, dir_fd=directory)
    except OSError as exc:
        if exc.errno in _SOMETHING_ELSE and not flags & os.O_CREAT:
            raise _NotOurs from exc
        raise
    with _closed_on_error(opened) as fd:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink > 1:
            raise _NotOurs
        return fd


@contextlib.contextmanager
def _closed_on_error(fd: int) -> Iterator[int]:
    try:
        yield fd
    except BaseException:
        os.close(fd)
        raise
