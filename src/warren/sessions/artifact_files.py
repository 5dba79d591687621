"""Finds the files of a sandbox that the paths and globs of a caller mean.

Everything in a sandbox may be hostile: what is looked at is bounded by number and time.
"""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.model.artifact import MAX_TOLD, Artifact, LeftOut, SaveResult, check_patterns, short_path
from warren.model.errors import FileNotFound, InvalidPath, InvalidRequest
from warren.model.operations import FileInfo, FileKind, Search, SearchMatch, check_path
from warren.model.spec import WORKSPACE
from warren.sessions.output_events import close_source

_MAGIC: Final = frozenset("*?[{\\")
_DEPTH: Final = 64
_MAX_LOOKED_AT: Final = 20_000
_SEARCH_S: Final = 30.0


class Tally:
    """Collects what one call saved and left out. It names at most MAX_TOLD of the files that were left out."""

    def __init__(self) -> None:
        self.artifacts: list[Artifact] = []
        self.left_out: list[LeftOut] = []
        self.left_out_count = 0

    def leave_out(self, path: str, why: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < MAX_TOLD:
            self.left_out.append(LeftOut(short_path(path), why))

    def result(self) -> SaveResult:
        return SaveResult(tuple(self.artifacts), tuple(self.left_out), self.left_out_count)


def check_paths(paths: Sequence[str]) -> None:
    """Raises what is wrong with paths and globs, before anything is done."""
    for path in check_patterns(paths):
        check_path(path)
        if _MAGIC.intersection(path):
            _search_for(path)


def _search_for(glob: str) -> Search:
    if glob.startswith("/"):
        if not glob.startswith(f"{WORKSPACE}/"):
            raise InvalidRequest(f"the glob {glob[:80]!r} leads out of {WORKSPACE}", remedy="name the file itself")
        glob = glob[len(WORKSPACE) :]
    return Search(WORKSPACE, glob, max_matches=_MAX_LOOKED_AT, timeout_s=_SEARCH_S)


async def named_files(sandbox: Sandbox, paths: Sequence[str], tally: Tally) -> AsyncGenerator[FileInfo, None]:
    for path in paths:
        try:
            info = await sandbox.stat(check_path(path))
        except (FileNotFound, InvalidPath) as exc:
            if not _MAGIC.intersection(path):
                tally.leave_out(path, exc.message)
                continue
            found = _matches(sandbox, path, tally)
        else:
            found = files_below(sandbox, info.path, tally) if info.kind is FileKind.DIRECTORY else _only(info)
        try:
            async for one in found:
                yield one
        finally:
            await close_source(found)


async def _only(info: FileInfo) -> AsyncGenerator[FileInfo, None]:
    yield info


async def files_below(sandbox: Sandbox, directory: str, tally: Tally) -> AsyncGenerator[FileInfo, None]:
    """Everything in a directory but directories. Links are not followed."""
    looked_at = 0
    entries = sandbox.entries(directory, depth=_DEPTH)
    try:
        async for info in entries:
            looked_at += 1
            if looked_at > _MAX_LOOKED_AT:
                tally.leave_out(directory, f"it has more than {_MAX_LOOKED_AT} entries: the others were not looked at")
                return
            if info.kind is not FileKind.DIRECTORY:
                yield info
    finally:
        await close_source(entries)


async def _matches(sandbox: Sandbox, glob: str, tally: Tally) -> AsyncGenerator[FileInfo, None]:
    found = sandbox.search(_search_for(glob))
    seen = 0
    try:
        async for match in found:
            if not isinstance(match, SearchMatch):
                if match.truncated:
                    tally.leave_out(glob, "the search was ended: it found or took too much")
            elif match.kind is not FileKind.DIRECTORY:
                seen += 1
                with contextlib.suppress(FileNotFound):
                    yield await sandbox.stat(match.path)
    finally:
        await close_source(found)
    if not seen:
        tally.leave_out(glob, "no file fits it")
