"""The audit log as JSON lines in a directory: private, of bounded size, read newest first.

An entry is in a file a fraction of a second after it was recorded. kill -9 loses the entries of that time and may leave
half a line, which readers skip; a power failure loses what the kernel had not yet written to the disk. All files
together take at most `keep_files` times `max_bytes`.

Files are read from their end, in blocks. A position is the number of a file and where a line begins in it: the next
page starts with the line before. Files only grow, or are removed whole, so a position stays valid.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from warren.governance.audit.chain import Verification
from warren.governance.audit.entries import MAX_LINE, SEARCH_BYTES, PageBuilder, parse_position
from warren.governance.audit.file_lines import lines_before
from warren.governance.audit.rotating_files import (
    KEEP_FILES,
    MAX_BYTES,
    RotatingFiles,
    file_name,
    make_directory,
    numbers_in,
    opened_directory,
    opened_to_read,
)
from warren.governance.audit.writer import MAX_QUEUE, AuditWriter
from warren.governance.audit.written_log import CLOSE_S, FLUSH_S, WrittenLog
from warren.interfaces.audit import AuditPage, Query
from warren.model.audit import CommandText
from warren.model.errors import Unavailable


class FileAudit(WrittenLog):
    """Use `open`: it makes the directory, and raises Unavailable if it cannot. Queries run one at a time."""

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        commands: CommandText = CommandText.REDACTED,
        max_bytes: int = MAX_BYTES,
        keep_files: int = KEEP_FILES,
        queue_most: int = MAX_QUEUE,
    ) -> "FileAudit":
        await asyncio.to_thread(make_directory, directory)
        return cls(directory, AuditWriter(RotatingFiles(directory, max_bytes, keep_files), commands, queue_most))

    def __init__(self, directory: Path, writer: AuditWriter, *, close_most_s: float = CLOSE_S) -> None:
        super().__init__(directory, writer, close_most_s)
        self._directory = directory

    async def _find(self, query: Query) -> AuditPage:
        return await asyncio.get_running_loop().run_in_executor(self._queries, self._read, query)

    def _read(self, query: Query) -> AuditPage:
        self._writer.flush(FLUSH_S)
        return read_page(self._directory, query)


class _Line(NamedTuple):
    number: int
    start: int
    text: bytes


def read_page(directory: Path, query: Query, search_bytes: int = SEARCH_BYTES) -> AuditPage:
    page = PageBuilder(query, search_bytes)
    try:
        for line in _lines(directory, query.after):
            if page.take(line.text):
                return AuditPage(page.found, f"{line.number}-{line.start}")
    except OSError as exc:
        raise Unavailable(f"the audit record cannot be read: {exc.strerror}") from exc
    return AuditPage(page.found)


def _lines(directory: Path, after: str) -> Iterator[_Line]:
    number, before = parse_position(after) if after else (None, None)
    with opened_directory(directory) as fd:
        for each in sorted(numbers_in(fd), reverse=True):
            if number is None or each <= number:
                yield from _lines_of(fd, each, before if each == number else None)


def _lines_of(directory: int, number: int, before: int | None) -> Iterator[_Line]:
    with opened_to_read(directory, number) as fd:
        if fd is not None:
            size = os.fstat(fd).st_size
            end = size if before is None else min(size, before)
            yield from (_Line(number, start, text) for start, text in lines_before(fd, end))


def verify_files(directory: Path, head: str = "") -> Verification:
    """Follows the chain of hashes through all files, the oldest first. `head`: a hash that must be part of it."""
    found = Verification()
    found.look_for(head)
    try:
        with opened_directory(directory) as parent:
            for number in sorted(numbers_in(parent)):
                with opened_to_read(parent, number) as fd:
                    if fd is not None:
                        _verify_file(fd, number, found)
    except OSError as exc:
        raise Unavailable(f"the audit record in {directory} cannot be read: {exc.strerror}") from exc
    found.end()
    return found


def _verify_file(fd: int, number: int, found: Verification) -> None:
    with open(os.dup(fd), "rb") as file:
        count = 0
        while line := file.readline(2 * MAX_LINE):
            count += 1
            found.take(line.rstrip(b"\n"), f"{file_name(number)}, line {count}")
