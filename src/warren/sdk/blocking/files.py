"""The file methods of the client: between this machine and the sandbox, and within the sandbox.

Everything is streamed. `progress` is called with the bytes done and the total (None while the total is not known).
"""

# Made from src/warren/sdk/aio/files.py by scripts/generate_sync.py: edit that one.

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any

from warren.model.errors import (
    FileNotFound,
    InvalidRequest,
    NotADirectory,
    RangeNotSatisfiable,
)
from warren.sdk.blocking.platform import ByteSource, in_thread, iterate_source
from warren.sdk.blocking.session_holder import SessionHolder
from warren.sdk.local_files import create_local, open_local, pack, temporary_file, unpack
from warren.sdk.protocol import CHUNK_BYTES, new_key
from warren.sdk.results import FileChange, FileEntry, FileMatch, SearchSummary

Progress = Callable[[int, int | None], None]
_WORKSPACE = "/workspace"


class Files(SessionHolder):
    """The part of a client that works with files. A path that does not begin with / is one in the workspace.

    `user`: whose rights count in the sandbox, and who owns what is written; such as root, where that is allowed.
    """

    def upload_file(
        self,
        local_path: str | os.PathLike[str],
        remote_path: str = "",
        *,
        mode: int | None = None,
        user: str = "",
        progress: Progress | None = None,
    ) -> FileEntry:
        """Copies a local file into the sandbox; by default under its own name in the workspace."""
        path = Path(local_path).expanduser()
        file = in_thread(open_local, path)
        target = remote_path or path.name
        how: dict[str, Any] = {"path": target, "mode": _octal(mode), "user": user or None}
        try:
            if not file.seekable():  # a pipe: its length is not known, and it can be read once only
                return self.write_file(target, file, mode=mode, user=user)
            size = os.fstat(file.fileno()).st_size
            written = self._call(
                lambda session_id: self._backend.upload(
                    "write_file", session_id, read_parts(file, size, progress), **how
                )
            )
            return FileEntry.of(written)
        finally:
            file.close()

    def download_file(
        self,
        remote_path: str,
        local_path: str | os.PathLike[str] = "",
        *,
        user: str = "",
        progress: Progress | None = None,
    ) -> Path:
        """Copies a file of the sandbox to this machine; an old file stays until the new one is complete."""
        target = Path(local_path).expanduser() if local_path else Path(Path(remote_path).name)
        if target.is_dir():
            target = target / Path(remote_path).name
        wanted = _wanted(remote_path, user)
        content = self._open(lambda session_id: self._backend.download("read_file", session_id, **wanted))
        with content as (size, parts), contextlib.closing(parts):
            save_parts(target, size, parts, progress)
        return target

    def upload_dir(
        self,
        local_path: str | os.PathLike[str],
        remote_path: str = _WORKSPACE,
        *,
        user: str = "",
        progress: Progress | None = None,
    ) -> int:
        """Copies a local directory into the sandbox; returns the number of files and directories."""
        path = Path(local_path).expanduser()
        if not path.exists():
            raise FileNotFound(f"there is no directory {path} on this machine")
        if not path.is_dir():
            raise NotADirectory(f"{path} is not a directory of this machine", remedy="use upload_file")
        with temporary_file() as file:
            size = in_thread(pack, path, file)
            written = self._call(
                lambda session_id: self._backend.upload(
                    "write_archive", session_id, read_parts(file, size, progress), **_wanted(remote_path, user)
                )
            )
            return int(written["members"])

    def download_dir(
        self,
        remote_path: str,
        local_path: str | os.PathLike[str],
        *,
        user: str = "",
        progress: Progress | None = None,
    ) -> Path:
        """Copies a directory of the sandbox to this machine. Links and paths that lead out of it are refused."""
        target = Path(local_path).expanduser()
        with temporary_file() as file:
            wanted = _wanted(remote_path, user)
            archive = self._open(lambda session_id: self._backend.download("read_archive", session_id, **wanted))
            with archive as (_, parts), contextlib.closing(parts):
                done = 0
                for part in parts:
                    in_thread(file.write, part)
                    done += len(part)
                    if progress is not None:
                        progress(done, None)
            in_thread(unpack, file, target)
        return target

    def read_file(self, path: str, *, offset: int = 0, length: int | None = None, user: str = "") -> bytes:
        """Returns the whole file, or `length` bytes from `offset` on; fewer, or none, where the file ends before."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest(f"{length} bytes from {offset} on cannot be read", remedy="count both from 0")
        # A range of no bytes does not exist: one byte is read, to learn what is wrong with the file, and dropped.
        read_length = None if length is None else max(1, length)
        wanted: dict[str, Any] = {**_wanted(path, user), "offset": offset, "length": read_length}
        content = self._open(lambda session_id: self._backend.download("read_file", session_id, **wanted))
        data = bytearray()
        try:
            with content as (_, parts), contextlib.closing(parts):
                for part in parts:
                    data += part
        except RangeNotSatisfiable:
            return b""
        return bytes(data[:length])

    def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict", *, user: str = "") -> str:
        """Returns the whole file as text."""
        return (self.read_file(path, user=user)).decode(encoding, errors)

    def write_file(
        self, path: str, data: str | bytes | ByteSource, *, mode: int | None = None, user: str = ""
    ) -> FileEntry:
        """Writes a file as a whole: a reader sees the old file or the new one. Missing directories are made.

        `data` may also be an open file, or any iterable of bytes, of any length. It can be read once only, so it is
        sent once only: a broken connection is not repeated.
        """
        raw = data.encode() if isinstance(data, str) else data
        return FileEntry.of(self._upload("write_file", raw, mode=_octal(mode), **_wanted(path, user)))

    def read_archive(self, path: str = _WORKSPACE, *, user: str = "") -> Generator[bytes, None, None]:
        """Yields a directory of the sandbox as a tar; names in it are relative to the directory."""
        wanted = _wanted(path, user)
        archive = self._open(lambda session_id: self._backend.download("read_archive", session_id, **wanted))
        with archive as (_, parts), contextlib.closing(parts):
            yield from parts

    def write_archive(self, data: bytes | ByteSource, path: str = _WORKSPACE, *, user: str = "") -> int:
        """Unpacks a tar into a directory of the sandbox; returns the number of files and directories in it.

        `data` may be an open file, or any iterable of bytes. Paths and links that lead out of the directory, and
        devices, are refused.
        """
        return int((self._upload("write_archive", data, **_wanted(path, user)))["members"])

    def _upload(self, operation: str, data: bytes | ByteSource, **arguments: Any) -> dict[str, Any]:
        if isinstance(data, (bytes, bytearray, memoryview)):
            raw = bytes(data)
            return self._call(lambda session_id: self._backend.upload(operation, session_id, raw, **arguments))
        chunks = iterate_source(data)
        with contextlib.closing(chunks):
            if self.thread_id:
                # The session may have ended: a fresh one must exist before the first chunk is read.
                self._perform("keep_session_alive")
            return self._backend.upload(operation, self._get_session(), chunks, **arguments)

    def list_files(self, path: str = _WORKSPACE, *, depth: int = 1) -> list[FileEntry]:
        """Lists a directory; with a `depth` above 1 also the directories in it."""
        found = self._perform("list_files", path=path, depth=depth)
        return [FileEntry.of(each) for each in found["files"]]

    def stat(self, path: str) -> FileEntry:
        """Returns what is at the path, without following a link. Raises FileNotFound."""
        return FileEntry.of(self._perform("stat_file", path=path))

    def exists(self, path: str) -> bool:
        """Returns whether there is anything at the path."""
        try:
            self.stat(path)
        except FileNotFound:
            return False
        return True

    def realpath(self, path: str) -> str:
        """Returns the path of a file with its links resolved. Raises FileNotFound."""
        return str((self._perform("resolve_path", path=path))["path"])

    def mkdir(self, path: str, *, exist_ok: bool = False) -> FileEntry:
        """Makes a directory, and the missing ones above it. With `exist_ok` it may exist already."""
        return FileEntry.of(self._perform("make_directory", path=path, exist_ok=exist_ok))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file; with `recursive` also a directory and all in it."""
        self._perform("remove_file", path=path, recursive=recursive)

    def move(self, source: str, target: str) -> FileEntry:
        """Renames a file or directory; a file at the target is replaced."""
        return FileEntry.of(self._perform("move_file", source=source, target=target))

    def search_files(
        self,
        pattern: str = "",
        *,
        glob: str = "",
        path: str = _WORKSPACE,
        ignore_case: bool = False,
        hidden: bool = False,
        max_matches: int = 1000,
        max_file_bytes: int = 10 * 1024 * 1024,
        timeout: float = 30.0,
        on_summary: Callable[[SearchSummary], None] | None = None,
    ) -> Generator[FileMatch, None, None]:
        """Yields the files below `path` whose name fits `glob`, or the lines in which `pattern` is found.

        `glob` is matched with names (`*.py`) or, if it has a slash, with paths (`src/**/*.py`); `pattern` is a POSIX
        extended regular expression, and files above `max_file_bytes` are not searched for it. `on_summary` receives
        what was left out, and which limit ended the search early.
        """
        events = self._follow(
            "search_files",
            path=path,
            glob=glob,
            pattern=pattern,
            ignore_case=ignore_case,
            hidden=hidden,
            max_matches=max_matches,
            max_file_bytes=max_file_bytes,
            timeout_s=timeout,
        )
        with contextlib.closing(events):
            for name, values in events:
                if name == "match":
                    yield FileMatch.of(values)
                elif name == "summary" and on_summary is not None:
                    on_summary(SearchSummary.of(values))

    def watch(self, path: str = _WORKSPACE, *, recursive: bool = False) -> Generator[FileChange, None, None]:
        """Yields changes as they happen. The first is `watching`: no change after it is missed."""
        events = self._follow("watch_files", path=path, recursive=recursive)
        with contextlib.closing(events):
            for name, values in events:
                yield FileChange.of({"change": name, **values})


def _wanted(path: str, user: str) -> dict[str, Any]:
    return {"path": path, "user": user or None}


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:03o}"


def save_parts(target: Path, size: int, parts: Generator[bytes, None, None], progress: Progress | None = None) -> None:
    """Writes a file of this machine; an old one stays until the new one is complete."""
    temporary = target.with_name(f".{new_key()}.part")
    try:
        with in_thread(create_local, temporary) as file:
            done = 0
            for part in parts:
                in_thread(file.write, part)
                done += len(part)
                if progress is not None:
                    progress(done, size)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def read_parts(file: IO[bytes], size: int, progress: Progress | None) -> Iterator[bytes]:
    in_thread(file.seek, 0)
    done = 0
    while part := in_thread(file.read, CHUNK_BYTES):
        yield part
        done += len(part)
        if progress is not None:
            progress(done, size)
