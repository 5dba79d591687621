"""The log of each session as files of lines: DIRECTORY/TENANT/SESSION/NUMBER.jsonl and NUMBER.jsonl.zst. Blocking.

A file is named by the number of its first entry. Lines are appended to the newest one; one that is long enough is
compressed, and the next begins. When all of them take more than they may, the output in the oldest is removed, and
when there is none, the oldest themselves.

Nothing is synced but what was compressed: what was appended survives a kill of this process, and of a power loss the
system decides. A line without its end is no entry. One thread appends; any may read and delete.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from warren.kernel.zstd import zstd_module
from warren.model.errors import Unavailable

Name = tuple[str, str]
"""A tenant and a session id."""

_SEGMENT: Final = 1024 * 1024
_FILE: Final = re.compile(r"([0-9]{12})\.jsonl(\.zst)?")
_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_OPEN: Final = 256
_PAGE_BYTES: Final = 512 * 1024
_SCANNED: Final = 16 * 1024 * 1024  # the most that one page looks through: readers share a thread
_BLOCK: Final = 4096  # what the smallest file takes of a disk
_LARGEST: Final = 64 * 1024 * 1024
_OUTPUT: Final = b'"kind":"output"'
_HEAD: Final = 80  # the kind stands within so many bytes
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class Written(NamedTuple):
    """What a log takes now, and the number of its last entry."""

    bytes: int
    last: int


NOTHING: Final = Written(0, 0)


class Found(NamedTuple):
    entries: list[dict[str, Any]]
    next: int
    more: bool


@dataclass(slots=True)
class _OpenLog:
    number: int  # of the next entry
    fd: int = -1
    file: str = ""
    size: int = 0  # of the file that is appended to
    others: int = 0  # bytes of all other files

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LogFiles:
    """`note` makes the values of an entry that says what was removed. `min_free` bytes of the disk stay free."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        note: Callable[[str], dict[str, Any]],
        *,
        min_free: int = 0,
        segment_bytes: int = _SEGMENT,
    ) -> None:
        self._directory, self._max_bytes, self._note, self._min_free = directory, max_bytes, note, min_free
        self._segment_bytes = max(4096, min(segment_bytes, max_bytes // 8))
        self._logs: OrderedDict[Name, _OpenLog] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _zstd(self) -> Any:
        return zstd_module()

    def __repr__(self) -> str:
        return f"<LogFiles {self._directory}, {len(self._logs)} open>"

    # -- appending

    def append(self, name: Name, entries: Iterable[dict[str, Any]]) -> Written:
        """Raises OSError if not all of them could be written."""
        with self._lock:
            log = self._open(name)
            number, lines = log.number, list[bytes]()
            for values in entries:
                lines.append(_line(number, values))
                number += 1
            if lines:
                self._write(name, log, b"".join(lines), number)
            while log.size >= self._segment_bytes or log.others + log.size > self._max_bytes:
                if log.size:
                    self._compress(name, log)
                if log.others <= self._max_bytes or not self._shrink(name, log):
                    break
            return Written(log.others + log.size, log.number - 1)

    def _write(self, name: Name, log: _OpenLog, data: bytes, next_number: int) -> None:
        if log.fd < 0:
            path = self._path(name)
            for folder in (self._directory, path.parent, path):
                folder.mkdir(mode=0o700, exist_ok=True)
            log.file = log.file or f"{log.number:012d}.jsonl"
            log.fd = os.open(path / log.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFE, 0o600)
        if self._min_free:
            disk = os.fstatvfs(log.fd)
            if disk.f_bavail * disk.f_frsize < self._min_free + len(data):
                raise OSError(errno.ENOSPC, "the disk is nearly full")
        done = 0
        try:
            while done < len(data):
                done += os.write(log.fd, data[done:])
        except OSError:
            os.ftruncate(log.fd, log.size)  # half a line would spoil the next one
            raise
        log.size += done
        log.number = next_number

    def _open(self, name: Name) -> _OpenLog:
        if (log := self._logs.get(name)) is not None:
            self._logs.move_to_end(name)
            return log
        log = self._logs[name] = self._found(name)
        while len(self._logs) > _OPEN:
            self._logs.popitem(last=False)[1].close()
        return log

    def _found(self, name: Name) -> _OpenLog:
        path = self._path(name)
        files = _files(path, clean=True)
        log = _OpenLog(1)
        if not files:
            return log
        first, file = files[-1]
        lines = self._lines(path / file)
        log.number = (_number(lines[-1]) or first) + 1 if lines else first
        log.others = sum(_on_disk((path / each).stat().st_size) for _, each in files[:-1])
        if file.endswith(".zst"):
            log.others += _on_disk((path / file).stat().st_size)
            return log
        log.file, log.fd = file, os.open(path / file, os.O_WRONLY | os.O_APPEND | _SAFE)
        log.size = sum(map(len, lines)) + len(lines)
        os.ftruncate(log.fd, log.size)  # a line that a crash has cut
        return log

    def _compress(self, name: Name, log: _OpenLog) -> None:
        path = self._path(name) / log.file
        log.others += self._replace(path, self._lines(path))
        log.close()
        log.file, log.size = "", 0

    def _replace(self, path: Path, lines: Sequence[bytes]) -> int:
        """Replaces a file by one with these lines, compressed; returns what it takes of the disk."""
        data = self._zstd.compress(b"".join(line + b"\n" for line in lines))
        new = path.with_suffix(".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(new, path if path.suffix == ".zst" else path.with_suffix(".jsonl.zst"))
        if path.suffix != ".zst":
            path.unlink()
        return _on_disk(len(data))

    def _shrink(self, name: Name, log: _OpenLog) -> bool:
        """Removes output, or else entries, from the oldest files. Returns whether a note was appended for that."""
        path, target = self._path(name), self._max_bytes * 7 // 8
        removed = 0
        for drops_all in (False, True):
            for first, file in _files(path):
                if log.others <= target or (drops_all and len(_files(path)) == 1):
                    break
                size, lines = _on_disk((path / file).stat().st_size), self._lines(path / file)
                kept = [line for line in lines if _OUTPUT not in line[:_HEAD]]
                if drops_all:
                    (path / file).unlink()
                    log.others -= size
                    removed += len(lines)
                elif len(kept) < len(lines):
                    gone = next(line for line in lines if _OUTPUT in line[:_HEAD])
                    text = f"{len(lines) - len(kept)} entries of output were removed: the log had become too long"
                    kept.append(_line(_number(gone) or first, self._note(text)).rstrip(b"\n"))
                    kept.sort(key=lambda line: _number(line) or 0)
                    log.others += self._replace(path / file, kept) - size
        if removed:
            text = f"the oldest {removed} entries were removed: the log had become too long"
            self._write(name, log, _line(log.number, self._note(text)), log.number + 1)
        return bool(removed)

    def close(self) -> None:
        with self._lock:
            while self._logs:
                self._logs.popitem()[1].close()

    # -- reading

    def read(self, name: Name, after: int, limit: int, kinds: Collection[str] = (), last: int | None = None) -> Found:
        for _ in range(3):
            try:
                return self._read(name, after, limit, kinds, last)
            except FileNotFoundError:  # one of its files was compressed, or removed, at this moment
                continue
        return Found([], after, more=False)

    def _read(self, name: Name, after: int, limit: int, kinds: Collection[str], last: int | None) -> Found:
        path = self._path(name)
        files = _files(path)
        if last is not None:
            return self._read_last(path, files, last, kinds)
        too_old = {file for (_, file), (first, _) in pairwise(files) if first <= after + 1}
        entries, size, scanned, at = list[dict[str, Any]](), 0, 0, after
        for _, file in files:
            if file in too_old:
                continue
            for line in self._lines(path / file):
                number = _number(line)
                if number is None or number <= after:
                    continue
                is_full = len(entries) >= limit or (entries and size + len(line) > _PAGE_BYTES)
                if is_full or scanned > _SCANNED:
                    return Found(entries, at, more=True)
                at, scanned = number, scanned + len(line)
                if (values := _values(line, kinds)) is not None:
                    entries.append(values)
                    size += len(line)
        return Found(entries, at, more=False)

    def _read_last(self, path: Path, files: Sequence[tuple[int, str]], last: int, kinds: Collection[str]) -> Found:
        entries, size, scanned, end = list[dict[str, Any]](), 0, 0, 0
        for _, file in reversed(files):
            for line in reversed(self._lines(path / file)):
                end = max(end, _number(line) or 0)
                scanned += len(line)
                is_full = len(entries) >= last or (entries and size + len(line) > _PAGE_BYTES)
                if is_full or scanned > _SCANNED:
                    return Found(entries[::-1], end, more=False)
                if (values := _values(line, kinds)) is not None:
                    entries.append(values)
                    size += len(line)
        return Found(entries[::-1], end, more=False)

    def _lines(self, path: Path) -> list[bytes]:
        fd = os.open(path, os.O_RDONLY | _SAFE)
        with os.fdopen(fd, "rb") as file:
            data = file.read(_LARGEST)
        if path.suffix == ".zst":
            try:
                data = self._zstd.decompress(data)
            except self._zstd.ZstdError:
                return []
        whole = data.rpartition(b"\n")[0]
        return whole.split(b"\n") if whole else []

    def written(self, name: Name) -> Written:
        """What is there of a log that nobody appends to."""
        with self._lock:
            log = self._open(name)
            return Written(log.others + log.size, log.number - 1)

    def names(self) -> Iterator[Name]:
        with contextlib.suppress(FileNotFoundError):
            for tenant in os.scandir(self._directory):
                if tenant.is_dir(follow_symlinks=False):
                    for entry in os.scandir(tenant.path):
                        yield tenant.name, entry.name

    # -- removing

    def delete(self, name: Name) -> None:
        """The numbers of entries that follow go on, while this process lives."""
        with self._lock:
            if (log := self._logs.get(name)) is not None:
                log.close()
                log.file, log.size, log.others = "", 0, 0
            path = self._path(name)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)
            with contextlib.suppress(OSError):  # other logs of the tenant are in it
                path.parent.rmdir()

    def _path(self, name: Name) -> Path:
        return self._directory / name[0] / name[1]


def _on_disk(size: int) -> int:
    """So that what compresses well is no way to have thousands of files."""
    return -(-size // _BLOCK) * _BLOCK


def can_be_named(session_id: str) -> bool:
    return _SESSION.fullmatch(session_id) is not None


@contextlib.contextmanager
def our_errors() -> Iterator[None]:
    """Translates errors of the file system into ours, without paths of this machine."""
    try:
        yield
    except OSError as exc:
        raise Unavailable(f"the directory of the logs cannot be used: {exc.strerror}") from exc


def _files(path: Path, *, clean: bool = False) -> list[tuple[int, str]]:
    """Returns the files of a log with the number of the first entry of each, the oldest first. With `clean` it removes
    what a crash has left."""
    found: dict[int, str] = {}
    try:
        names = sorted(os.listdir(path))  # of two with one number, the compressed one comes last
    except FileNotFoundError:
        return []
    for name in names:
        if match := _FILE.fullmatch(name):
            earlier = found.get(int(match[1]))
            found[int(match[1])] = name
            if clean and earlier:
                (path / earlier).unlink()
        elif clean:
            (path / name).unlink()
    return sorted(found.items())


def _line(number: int, values: dict[str, Any]) -> bytes:
    return f'{{"id":{number},{_ENCODER.encode(values)[1:]}\n'.encode()


def _number(line: bytes) -> int | None:
    head = line[6:26].partition(b",")[0]
    return int(head) if line.startswith(b'{"id":') and head.isdigit() else None


def _values(line: bytes, kinds: Collection[str]) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return values if not kinds or values.get("kind") in kinds else None
