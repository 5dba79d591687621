"""`warren cp`: copies files and directories between this machine and a session, in both directions.

The target is found as `cp` finds it: in an existing directory under the source's own name, otherwise the given path.
"""

import contextlib
import os
import posixpath
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import click

from warren import FileEntry, SandboxClient
from warren.cli.options import replace_lost_option, server_options, thread_option
from warren.cli.output import ProgressLine, format_mib, print_json, write_bytes
from warren.cli.remote import RemoteServer
from warren.model.errors import FileNotFound, IsDirectory
from warren.sdk.protocol import CHUNK_BYTES

_WORKSPACE: Final = "/workspace"
Progress = Callable[[int, int | None], None]


class _Side(NamedTuple):
    """One side of the copy; `session` is None for this machine, empty for --thread's session."""

    session: str | None
    path: str


@click.command()
@click.argument("source")
@click.argument("target")
@thread_option
@replace_lost_option
@click.option("-r", "--recursive", is_flag=True, help="Copy directories, with their contents.")
@server_options
def cp(source: str, target: str, thread: str, replace_lost: bool, recursive: bool, url: str, as_json: bool) -> None:
    """Copy files to or from a session.

    One of SOURCE and TARGET is SESSION:PATH (with --thread just :PATH), the other a path of this machine. Relative
    paths in a session start in /workspace. `-` is stdin or stdout; with -r it is a tar. A path of this machine with
    a colon in it is written ./like:this.

    Example: warren cp -r ./project ses_0123:
    """
    local, remote, is_upload = _sides(_parse_side(source), _parse_side(target))
    _check_session(remote, thread)
    with RemoteServer(url) as server:
        name = remote.session or ""
        session_id = server.find_or_create(name, thread, replace_lost) if is_upload else server.find(name, thread)
        copy = _Copy(server, session_id, recursive)
        with _progress(local if is_upload else remote.path) as copy.progress:
            copied_to = copy.upload(local, remote.path) if is_upload else copy.download(remote.path, local)
    if as_json:
        print_json({"source": source, "target": copied_to, "bytes": copy.bytes_done})


def _parse_side(text: str) -> _Side:
    session, colon, path = text.partition(":")
    is_local = not colon or text.startswith(("/", ".", "~")) or "/" in session
    return _Side(None, text) if is_local else _Side(session, path)


def _sides(source: _Side, target: _Side) -> tuple[str, _Side, bool]:
    """Returns the local path, the side in the session, and whether the copy goes into the session."""
    if (source.session is None) == (target.session is None):
        raise click.UsageError("one side must be SESSION:PATH, and the other a path of this machine")
    return (source.path, target, True) if source.session is None else (target.path, source, False)


def _check_session(remote: _Side, thread: str) -> None:
    if thread and remote.session:
        raise click.UsageError("with --thread a path in the session is written :PATH")
    if not thread and not remote.session:
        raise click.UsageError("which session? Write SESSION:PATH, or give --thread T")


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with ProgressLine(Path(title).name or title) as line:
        yield lambda done, total: line(format_mib(done), done / total if total else None)


@dataclass
class _Copy:
    server: RemoteServer
    session_id: str
    recursive: bool
    bytes_done: int = 0
    progress: Progress = lambda done, total: None

    @property
    def client(self) -> SandboxClient:
        return self.server.client(self.session_id)

    def _count(self, done: int, total: int | None) -> None:
        self.bytes_done = done
        self.progress(done, total)

    # -- into the session

    def upload(self, local: str, remote: str) -> str:
        if local == "-":
            return self._upload_stdin(remote)
        path = Path(local).expanduser()
        target = self._remote_target(remote, path.resolve().name)
        if not path.is_dir():
            mode = path.stat().st_mode & 0o777 if path.exists() else None
            return self.client.upload_file(path, target, mode=mode, progress=self._count).path
        self._check_recursive(local)
        if self._stat(target) is None:
            self.client.mkdir(target)
        self.client.upload_dir(path, target, progress=self._count)
        return target

    def _upload_stdin(self, remote: str) -> str:
        parts = self._count_parts(iter(lambda: os.read(0, CHUNK_BYTES), b""), None)
        if self.recursive:
            self.server.backend.upload("write_archive", self.session_id, parts, path=remote or _WORKSPACE)
            return remote or _WORKSPACE
        if not remote or remote.endswith("/"):
            raise click.UsageError("a file from stdin needs a name: SESSION:PATH")
        return str(self.server.backend.upload("write_file", self.session_id, parts, path=remote)["path"])

    def _remote_target(self, remote: str, name: str) -> str:
        if not remote or remote.endswith("/"):
            return posixpath.join(_WORKSPACE, remote, name)
        entry = self._stat(remote)
        return posixpath.join(remote, name) if entry is not None and entry.is_dir else remote

    def _stat(self, path: str) -> FileEntry | None:
        try:
            return self.client.stat(path)
        except FileNotFound:
            return None

    # -- from the session

    def download(self, remote: str, local: str) -> str:
        entry = self.client.stat(remote or _WORKSPACE)
        if entry.is_dir:
            self._check_recursive(entry.path)
            return self._download_directory(entry.path, local)
        if local == "-":
            with self.server.backend.download("read_file", self.session_id, path=entry.path) as (size, parts):
                return self._write_stdout(self._count_parts(parts, size))
        target = self.client.download_file(remote, local, progress=self._count)
        target.chmod(target.stat().st_mode & 0o777 | int(entry.mode, 8) & 0o111)
        return str(target)

    def _download_directory(self, remote: str, local: str) -> str:
        if local == "-":
            with self.server.backend.download("read_archive", self.session_id, path=remote) as (_, parts):
                return self._write_stdout(self._count_parts(parts, None))
        target = Path(local).expanduser()
        if target.is_dir():
            target /= posixpath.basename(posixpath.normpath(posixpath.join(_WORKSPACE, remote)))
        return str(self.client.download_dir(remote, target, progress=self._count))

    def _write_stdout(self, parts: Iterable[bytes]) -> str:
        for part in parts:
            write_bytes(1, part)
        return "-"

    def _check_recursive(self, path: str) -> None:
        if not self.recursive:
            raise IsDirectory(f"{path} is a directory", remedy="give -r to copy it with its contents")

    def _count_parts(self, parts: Iterable[bytes], total: int | None) -> Iterator[bytes]:
        for part in parts:
            yield part
            self._count(self.bytes_done + len(part), total)
