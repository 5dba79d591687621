"""The half of the client that moves files: between this machine and the sandbox, and within the sandbox.

Everything is streamed. `progress` is called with the bytes done and the bytes in all (None while that is not known).
"""

# Made from src/warren/sdk/aio/files.py by scripts/generate_sync.py: edit that one.

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from warren.model.errors import (
    FileNotFound,
    FileProblem,
    InvalidRequest,
    IsDirectory,
    NotADirectory,
    RangeNotSatisfiable,
)
from warren.sdk.blocking.platform import Pieces, in_thread, pieces_of
from warren.sdk.blocking.session_holder import SessionHolder
from warren.sdk.results import FileChange, FileEntry
from warren.sdk.wire import CHUNK, new_key

if TYPE_CHECKING:
    import tarfile

Progress = Callable[[int, int | None], None]
_WORKSPACE = "/workspace"


class Files(SessionHolder):
    def upload_file(
        self,
        local_path: str | os.PathLike[str],
        remote_path: str = "",
        *,
        mode: int | None = None,
        progress: Progress | None = None,
    ) -> FileEntry:
        """A file of this machine into the sandbox; by default under its own name in the workspace."""
        path = Path(local_path).expanduser()
        file = in_thread(_open, path)
        target, octal = remote_path or path.name, _octal(mode)
        try:
            if not file.seekable():  # a pipe: how much comes is not known, and it comes once
                return self.write_file(target, file, mode=mode)
            size = os.fstat(file.fileno()).st_size
            written = self._call(
                lambda session_id: self._backend.write(session_id, target, _reading(file, size, progress), octal)
            )
            return FileEntry.of(written)
        finally:
            file.close()

    def download_file(
        self, remote_path: str, local_path: str | os.PathLike[str] = "", *, progress: Progress | None = None
    ) -> Path:
        """A file of the sandbox onto this machine; the old file stays until the new one is whole."""
        target = Path(local_path).expanduser() if local_path else Path(Path(remote_path).name)
        if target.is_dir():
            target = target / Path(remote_path).name
        opened = self._opened(lambda session_id: self._backend.read(session_id, remote_path, 0, None))
        with opened as (size, parts), contextlib.closing(parts):
            temporary = target.with_name(f".{new_key()}.part")
            try:
                with in_thread(_create, temporary) as file:
                    done = 0
                    for part in parts:
                        in_thread(file.write, part)
                        done += len(part)
                        if progress is not None:
                            progress(done, size)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        return target

    def upload_dir(
        self, local_path: str | os.PathLike[str], remote_path: str = _WORKSPACE, *, progress: Progress | None = None
    ) -> int:
        """A tree of this machine into the sandbox; says how many files and directories that were."""
        path = Path(local_path).expanduser()
        if not path.exists():
            raise FileNotFound(f"there is no directory {path} on this machine")
        if not path.is_dir():
            raise NotADirectory(f"{path} is not a directory of this machine", remedy="use upload_file")
        with _temporary() as file:
            size = in_thread(_pack, path, file)
            return self._call(
                lambda session_id: self._backend.unpack(session_id, remote_path, _reading(file, size, progress))
            )

    def download_dir(
        self, remote_path: str, local_path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Path:
        """A tree of the sandbox onto this machine. Links and paths that lead out of it are refused."""
        target = Path(local_path).expanduser()
        with _temporary() as file:
            opened = self._opened(lambda session_id: self._backend.pack(session_id, remote_path))
            with opened as parts, contextlib.closing(parts):
                done = 0
                for part in parts:
                    in_thread(file.write, part)
                    done += len(part)
                    if progress is not None:
                        progress(done, None)
            in_thread(_unpack, file, target)
        return target

    def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """All of it, or `length` bytes from `offset` on; fewer, or none, where it ends before."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest(f"{length} bytes from {offset} on cannot be read", remedy="count both from 0")
        # Of no byte there is no range: one is read, to hear what is wrong with the file, and not given.
        wanted = None if length is None else max(1, length)
        opened = self._opened(lambda session_id: self._backend.read(session_id, path, offset, wanted))
        data = bytearray()
        try:
            with opened as (_, parts), contextlib.closing(parts):
                for part in parts:
                    data += part
        except RangeNotSatisfiable:
            return b""
        return bytes(data[:length])

    def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        return (self.read_file(path)).decode(encoding, errors)

    def write_file(self, path: str, data: str | bytes | Pieces, *, mode: int | None = None) -> FileEntry:
        """All of it or nothing: a reader sees the old file or the new one. Directories on the way are made.

        `data` may also be a file that is open for reading, or anything that gives bytes piece by piece, however much
        that will be. It is taken once, so it is sent once: what breaks is not repeated.
        """
        octal = _octal(mode)
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            return FileEntry.of(self._write_pieces(path, data, octal))
        raw = data.encode() if isinstance(data, str) else bytes(data)
        return FileEntry.of(self._call(lambda session_id: self._backend.write(session_id, path, raw, octal)))

    def _write_pieces(self, path: str, data: Pieces, octal: str) -> dict[str, Any]:
        pieces = pieces_of(data)
        with contextlib.closing(pieces):
            if self.thread_id:
                # It may have ended: the fresh one must be there before the first piece is taken.
                self._call(self._backend.keep_alive)
            return self._backend.write(self._session(), path, pieces, octal)

    def list_files(self, path: str = _WORKSPACE, *, depth: int = 1) -> list[FileEntry]:
        found = self._call(lambda session_id: self._backend.list_files(session_id, path, depth))
        return [FileEntry.of(each) for each in found]

    def stat(self, path: str) -> FileEntry:
        return FileEntry.of(self._call(lambda session_id: self._backend.stat(session_id, path)))

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFound:
            return False
        return True

    def mkdir(self, path: str) -> FileEntry:
        """Directories on the way are made too."""
        return FileEntry.of(self._call(lambda session_id: self._backend.mkdir(session_id, path)))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        self._call(lambda session_id: self._backend.remove(session_id, path, recursive))

    def move(self, source: str, target: str) -> FileEntry:
        return FileEntry.of(self._call(lambda session_id: self._backend.move(session_id, source, target)))

    def watch(self, path: str = _WORKSPACE, *, recursive: bool = False) -> Generator[FileChange, None, None]:
        """Changes as they happen. The first is `watching`: from then on none is missed."""
        events = self._events(lambda session_id: self._backend.watch(session_id, path, recursive))
        with contextlib.closing(events):
            for name, values in events:
                yield FileChange.of({"change": name, **values})


def _octal(mode: int | None) -> str:
    return "" if mode is None else f"{mode:03o}"


def _reading(file: IO[bytes], size: int, progress: Progress | None) -> Iterator[bytes]:
    in_thread(file.seek, 0)
    done = 0
    while part := in_thread(file.read, CHUNK):
        yield part
        done += len(part)
        if progress is not None:
            progress(done, size)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise FileNotFound(f"there is no file {path} on this machine") from None
    except IsADirectoryError:
        raise IsDirectory(f"{path} is a directory", remedy="use upload_dir") from None
    except OSError as exc:
        raise FileProblem(f"{path} cannot be read: {exc.strerror}") from exc


def _create(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as exc:
        raise FileProblem(f"{path.parent} cannot be written to: {exc.strerror}") from exc


# What few programs need is imported when it is needed: the client is to be there quickly.


def _temporary() -> IO[bytes]:
    import tempfile

    return tempfile.TemporaryFile()


def _pack(path: Path, file: IO[bytes]) -> int:
    import tarfile

    def plain(member: "tarfile.TarInfo") -> "tarfile.TarInfo | None":
        if not (member.isfile() or member.isdir() or member.issym()):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # A file with two names goes twice: sandboxes take no hard links from outside.
        tar.inodes = _NoLinks()  # type: ignore[attr-defined]
        for entry in sorted(path.iterdir()):
            tar.add(entry, entry.name, filter=plain)
    return file.tell()


class _NoLinks(dict[tuple[int, int], str]):
    def __contains__(self, _: object) -> bool:
        return False


def _unpack(file: IO[bytes], target: Path) -> None:
    import tarfile

    file.seek(0)
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=file) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, OSError) as exc:
        raise InvalidRequest(f"what the sandbox sent cannot be unpacked into {target}: {exc}") from exc
