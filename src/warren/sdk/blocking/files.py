"""The half of the client that moves files: between this machine and the sandbox, and within the sandbox.

Everything is streamed. `progress` is called with the bytes done and the bytes in all (None while that is not known).
"""

# Made from ../aio/files.py by scripts/generate_sync.py: edit that one.

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from warren.model.errors import FileNotFound, FileProblem, InvalidRequest, IsDirectory, NotADirectory
from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.flavour import in_thread
from warren.sdk.results import FileChange, FileEntry
from warren.sdk.wire import CHUNK

Progress = Callable[[int, int | None], None]
_WORKSPACE = "/workspace"


class Files:
    _backend: Backend

    def _session(self) -> str:
        raise NotImplementedError

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
        try:
            size = os.fstat(file.fileno()).st_size
            target = remote_path or path.name
            octal = f"{mode:o}" if mode is not None else ""
            session_id = self._session()
            parts = _reading(file, size, progress)
            return FileEntry.of(self._backend.write(session_id, target, parts, octal.zfill(3) if octal else ""))
        finally:
            file.close()

    def download_file(
        self, remote_path: str, local_path: str | os.PathLike[str] = "", *, progress: Progress | None = None
    ) -> Path:
        """A file of the sandbox onto this machine; the old file stays until the new one is whole."""
        target = Path(local_path).expanduser() if local_path else Path(Path(remote_path).name)
        if target.is_dir():
            target = target / Path(remote_path).name
        with self._backend.read(self._session(), remote_path) as (size, parts):
            temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
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
        if not path.is_dir():
            raise NotADirectory(f"{path} is not a directory of this machine")
        with tempfile.TemporaryFile() as file:
            size = in_thread(_pack, path, file)
            return self._backend.unpack(self._session(), remote_path, _reading(file, size, progress))

    def download_dir(
        self, remote_path: str, local_path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Path:
        """A tree of the sandbox onto this machine. Links and paths that lead out of it are refused."""
        target = Path(local_path).expanduser()
        with tempfile.TemporaryFile() as file:
            with self._backend.pack(self._session(), remote_path) as parts:
                done = 0
                for part in parts:
                    in_thread(file.write, part)
                    done += len(part)
                    if progress is not None:
                        progress(done, None)
            in_thread(_unpack, file, target)
        return target

    def read_file(self, path: str) -> bytes:
        with self._backend.read(self._session(), path) as (_, parts):
            data = bytearray()
            for part in parts:
                data += part
            return bytes(data)

    def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        return (self.read_file(path)).decode(encoding, errors)

    def write_file(self, path: str, data: str | bytes, *, mode: int | None = None) -> FileEntry:
        """All of it or nothing: a reader sees the old file or the new one. Directories on the way are made."""
        raw = data.encode() if isinstance(data, str) else data
        octal = f"{mode:o}".zfill(3) if mode is not None else ""
        return FileEntry.of(self._backend.write(self._session(), path, raw, octal))

    def list_files(self, path: str = _WORKSPACE, *, depth: int = 1) -> list[FileEntry]:
        return [FileEntry.of(each) for each in self._backend.list_files(self._session(), path, depth)]

    def stat(self, path: str) -> FileEntry:
        return FileEntry.of(self._backend.stat(self._session(), path))

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFound:
            return False
        return True

    def mkdir(self, path: str) -> FileEntry:
        """Directories on the way are made too."""
        return FileEntry.of(self._backend.mkdir(self._session(), path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        self._backend.remove(self._session(), path, recursive)

    def move(self, source: str, target: str) -> FileEntry:
        return FileEntry.of(self._backend.move(self._session(), source, target))

    def watch(self, path: str = _WORKSPACE, *, recursive: bool = False) -> Iterator[FileChange]:
        """Changes as they happen. The first is `watching`: from then on none is missed."""
        for name, values in self._backend.watch(self._session(), path, recursive):
            yield FileChange.of({"change": name, **values})


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


def _pack(path: Path, file: IO[bytes]) -> int:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
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
    file.seek(0)
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=file) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, OSError) as exc:
        raise InvalidRequest(f"what the sandbox sent cannot be unpacked into {target}: {exc}") from exc
