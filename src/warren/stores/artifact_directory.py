"""Contents of artifacts or snapshots as files: DIRECTORY/TENANT/ID.

A content is written to a file in DIRECTORY/.saving, synced, and renamed to its place. The writer holds a lock on the
file in .saving; `open` removes unlocked ones, which a crash has left. All file operations run in threads.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from warren.interfaces.artifacts import ARTIFACTS, Content, ContentKind, KeptContent
from warren.kernel.shielding import run_shielded
from warren.model.errors import NoSpace, NotFound, Unavailable

_SAVING: Final = ".saving"
_PIECE: Final = 1024 * 1024
_LISTED_AT_ONCE: Final = 500
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DirectoryArtifacts:
    """The store. `min_free_mb` must stay free on its file system. `fault` is called with each step, for crash tests."""

    def __init__(
        self,
        directory: Path,
        *,
        kind: ContentKind = ARTIFACTS,
        min_free_mb: int = 0,
        shared: bool = False,
        fault: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._directory, self._kind = directory, kind
        self._min_free = min_free_mb << 20
        self.shared = shared
        self._fault = fault

    def __repr__(self) -> str:
        return f"<DirectoryArtifacts {self._directory}>"

    async def open(self) -> "DirectoryArtifacts":
        """Makes the directory, and removes unfinished contents that a crash has left."""
        await asyncio.to_thread(self._open)
        return self

    def _open(self) -> None:
        with self._our_errors():
            (self._directory / _SAVING).mkdir(mode=0o700, parents=True, exist_ok=True)
            for entry in os.scandir(self._directory / _SAVING):
                with contextlib.suppress(BlockingIOError, FileNotFoundError):
                    fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(entry.path)
                    finally:
                        os.close(fd)

    async def put(self, tenant: str, artifact_id: str, data: AsyncIterable[bytes]) -> Content:
        path, saving = self._path(tenant, artifact_id), self._directory / _SAVING
        writing = _Writing(path, saving, self._kind.name, self._min_free, self._fault)
        try:
            # Writes are shielded: a thread cannot be cancelled, and `undo` must not run beside it.
            buffer = bytearray()
            async for part in data:
                buffer += part
                if len(buffer) >= _PIECE:
                    await run_shielded(asyncio.to_thread(writing.write, bytes(buffer)))
                    buffer.clear()
            return await run_shielded(asyncio.to_thread(writing.finish, bytes(buffer)))
        except BaseException:
            await run_shielded(asyncio.to_thread(writing.undo))
            raise

    async def read(self, tenant: str, artifact_id: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        fd = await asyncio.to_thread(self._open_content, self._path(tenant, artifact_id))
        try:
            while start < end:
                part = await run_shielded(asyncio.to_thread(os.pread, fd, min(_PIECE, end - start), start))
                if not part:
                    raise Unavailable(f"the content of the {self._kind.name} is shorter than its record says")
                yield part
                start += len(part)
        finally:
            os.close(fd)

    def _open_content(self, path: Path) -> int:
        try:
            with self._our_errors():
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NotFound(f"the content of the {self._kind.name} is gone") from None

    async def delete(self, tenant: str, artifact_id: str) -> None:
        await asyncio.to_thread(self._delete, self._path(tenant, artifact_id))

    def _delete(self, path: Path) -> None:
        with self._our_errors(), contextlib.suppress(FileNotFoundError):
            path.unlink()
            with contextlib.suppress(OSError):  # other contents of the tenant are in it
                path.parent.rmdir()

    async def list(self) -> AsyncGenerator[KeptContent, None]:
        contents = self._contents()
        while found := await asyncio.to_thread(lambda: list(islice(contents, _LISTED_AT_ONCE))):
            for one in found:
                yield one

    def _contents(self) -> Iterator[KeptContent]:
        with self._our_errors():
            for tenant in os.scandir(self._directory):
                if tenant.name == _SAVING or not tenant.is_dir(follow_symlinks=False):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    for entry in os.scandir(tenant.path):
                        if self._kind.is_id(entry.name):
                            with contextlib.suppress(FileNotFoundError):
                                modified = entry.stat(follow_symlinks=False).st_mtime
                                yield KeptContent(tenant.name, entry.name, modified)

    async def close(self) -> None:
        return None

    def _path(self, tenant: str, artifact_id: str) -> Path:
        assert self._kind.is_id(artifact_id), artifact_id
        return self._directory / tenant / artifact_id

    def _our_errors(self) -> contextlib.AbstractContextManager[None]:
        return _our_errors(self._kind.name)


class _Writing:
    """One content on its way to its place. Its methods block, and are called one after the other."""

    def __init__(self, path: Path, saving: Path, what: str, min_free: int, fault: Callable[[str], None]) -> None:
        self._path, self._part, self._min_free, self._fault = path, saving / path.name, min_free, fault
        self._what = what
        self._fd = -1
        self._size, self._hash = 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        with _our_errors(self._what):
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._part, flags, 0o600)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._fault("content begun")
            self._check_room(len(data))
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
            self._hash.update(data)
            self._size += len(data)

    def finish(self, data: bytes) -> Content:
        self.write(data)
        with _our_errors(self._what):
            self._fault("content written")
            # Synced before it gets its name: after a crash a name never leads to half a content.
            os.fsync(self._fd)
            self._fault("content synced")
            for _ in range(10):
                _make_directory(self._path.parent)
                # deleting the tenant's last artifact has just removed the directory
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self._part, self._path)
                    break
            else:
                raise Unavailable(f"the directory of the tenant's {self._what}s is gone each time")
            _sync_directory(self._path.parent)
            self._fault("content in place")
        os.close(self._fd)
        self._fd = -1
        return Content(self._size, self._hash.hexdigest())

    def undo(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for path in (self._part, self._path):
            with contextlib.suppress(OSError):
                path.unlink()

    def _check_room(self, size: int) -> None:
        if self._min_free:
            disk = os.fstatvfs(self._fd)
            if disk.f_bavail * disk.f_frsize - size < self._min_free:
                raise NoSpace(
                    f"the disk of the {self._what}s is nearly full",
                    remedy=f"delete {self._what}s, or ask the operator for room",
                )


def _make_directory(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _our_errors(what: str) -> Iterator[None]:
    """Translates errors of the file system into ours, without paths of this machine."""
    try:
        yield
    except (FileNotFoundError, BlockingIOError):
        raise
    except OSError as exc:
        if exc.errno in _FULL:
            raise NoSpace(f"the disk of the {what}s is full", remedy=f"delete {what}s") from exc
        raise Unavailable(f"the directory of the {what}s cannot be used: {exc.strerror}") from exc
