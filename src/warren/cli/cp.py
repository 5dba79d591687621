"""`warren cp`: files and directories between this machine and a session, in both directions.

What goes where is decided as `cp` does it: into a directory that is there, under its own name; otherwise to the
path that is given.
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
from warren.cli.progress import ProgressLine
from warren.cli.remote import Server, server_options, thread_option
from warren.cli.tables import print_json, show_mib
from warren.model.errors import FileNotFound, IsDirectory
from warren.sdk.protocol import CHUNK_BYTES

_WORKSPACE: Final = "/workspace"
Progress = Callable[[int, int | None], None]


class CopyTarget(NamedTuple):
    """A side of the copy; `session` is None for this machine, empty for --thread's session."""

    session: str | None
    path: str


@click.command()
@click.argument("source")
@click.argument("target")
@thread_option
@click.option("-r", "--recursive", is_flag=True, help="Directories, with all that is in them.")
@server_options
def cp(source: str, target: str, thread: str, recursive: bool, url: str, as_json: bool) -> None:
    """Copy files to or from a session.

    One of SOURCE and TARGET is SESSION:PATH (with --thread just :PATH), the other a path of this machine. Relative
    paths in a session start in /workspace. `-` is stdin or stdout; with -r it is a tar. A path of this machine with
    a colon in it is written ./like:this.

    Example: warren cp -r ./project ses_0123:
    """
    here, there, upload = _sides(_place(source), _place(target))
    _check_session(there, thread)
    with Server(url) as server:
        find = server.find_or_make if upload else server.find
        copy = _Copy(server, find(there.session or "", thread), recursive)
        with _progress(here if upload else there.path) as copy.progress:
            to = copy.up(here, there.path) if upload else copy.down(there.path, here)
    if as_json:
        print_json({"source": source, "target": to, "bytes": copy.bytes_done})


def _place(text: str) -> CopyTarget:
    session, colon, path = text.partition(":")
    is_local = not colon or text.startswith(("/", ".", "~")) or "/" in session
    return CopyTarget(None, text) if is_local else CopyTarget(session, path)


def _sides(source: CopyTarget, target: CopyTarget) -> tuple[str, CopyTarget, bool]:
    """The path here, the place there, and whether it goes there."""
    if (source.session is None) == (target.session is None):
        raise click.UsageError("one side must be SESSION:PATH, and the other a path of this machine")
    return (source.path, target, True) if source.session is None else (target.path, source, False)


def _check_session(there: CopyTarget, thread: str) -> None:
    if thread and there.session:
        raise click.UsageError("with --thread a path in the session is written :PATH")
    if not thread and not there.session:
        raise click.UsageError("which session? Write SESSION:PATH, or give --thread T")


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with ProgressLine(Path(title).name or title) as line:
        yield lambda done, total: line(show_mib(done), done / total if total else None)


@dataclass
class _Copy:
    server: Server
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

    # -- from here to there

    def up(self, here: str, there: str) -> str:
        if here == "-":
            return self._up_stdin(there)
        path = Path(here).expanduser()
        target = self._target_there(there, path.resolve().name)
        if not path.is_dir():
            mode = path.stat().st_mode & 0o777 if path.exists() else None
            return self.client.upload_file(path, target, mode=mode, progress=self._count).path
        self._check_recursive(here)
        if self._entry(target) is None:
            self.client.mkdir(target)
        self.client.upload_dir(path, target, progress=self._count)
        return target

    def _up_stdin(self, there: str) -> str:
        parts = self._counted(iter(lambda: os.read(0, CHUNK_BYTES), b""), None)
        if self.recursive:
            self.server.backend.unpack(self.session_id, there or _WORKSPACE, parts)
            return there or _WORKSPACE
        if not there or there.endswith("/"):
            raise click.UsageError("a file from stdin needs a name: SESSION:PATH")
        return str(self.server.backend.write(self.session_id, there, parts, "")["path"])

    def _target_there(self, there: str, name: str) -> str:
        if not there or there.endswith("/"):
            return posixpath.join(_WORKSPACE, there, name)
        entry = self._entry(there)
        return posixpath.join(there, name) if entry is not None and entry.is_dir else there

    def _entry(self, path: str) -> FileEntry | None:
        try:
            return self.client.stat(path)
        except FileNotFound:
            return None

    # -- from there to here

    def down(self, there: str, here: str) -> str:
        entry = self.client.stat(there or _WORKSPACE)
        if entry.is_dir:
            self._check_recursive(entry.path)
            return self._down_directory(entry.path, here)
        if here == "-":
            with self.server.backend.read(self.session_id, entry.path) as (size, parts):
                return self._to_stdout(self._counted(parts, size))
        target = self.client.download_file(there, here, progress=self._count)
        target.chmod(target.stat().st_mode & 0o777 | int(entry.mode, 8) & 0o111)
        return str(target)

    def _down_directory(self, there: str, here: str) -> str:
        if here == "-":
            with self.server.backend.pack(self.session_id, there) as parts:
                return self._to_stdout(self._counted(parts, None))
        target = Path(here).expanduser()
        if target.is_dir():
            target /= posixpath.basename(posixpath.normpath(posixpath.join(_WORKSPACE, there)))
        return str(self.client.download_dir(there, target, progress=self._count))

    def _to_stdout(self, parts: Iterable[bytes]) -> str:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(1, view) :]
        return "-"

    def _check_recursive(self, path: str) -> None:
        if not self.recursive:
            raise IsDirectory(f"{path} is a directory", remedy="give -r, to copy all that is in it")

    def _counted(self, parts: Iterable[bytes], total: int | None) -> Iterator[bytes]:
        for part in parts:
            yield part
            self._count(self.bytes_done + len(part), total)
