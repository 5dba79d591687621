"""The audit record as JSON lines in a directory: private, of bounded size, found again newest first.

A deed is in a file a fraction of a second after it was recorded. kill -9 loses the deeds of that time and may leave
half a line, which readers pass over; a power failure loses what the kernel had not yet brought to the disk. The whole
takes at most `keep_files` times `max_bytes`.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from warren.interfaces.audit import AuditPage, Query
from warren.model.audit import CommandText, Deed
from warren.model.errors import Unavailable
from warren.shielding import run_shielded
from warren.tenancy.audit.journal import KEEP_FILES, MAX_BYTES, Journal, make_directory
from warren.tenancy.audit.reading import read_page
from warren.tenancy.audit.writer import QUEUE_MOST, AuditWriter

_FLUSH_MOST_S: Final = 5.0
_CLOSE_MOST_S: Final = 5.0


class FileAudit:
    """Use `open`: it makes the directory, and raises Unavailable if there cannot be one. One query is worked on
    at a time."""

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        commands: CommandText = CommandText.REDACTED,
        max_bytes: int = MAX_BYTES,
        keep_files: int = KEEP_FILES,
        queue_most: int = QUEUE_MOST,
    ) -> "FileAudit":
        await asyncio.to_thread(make_directory, directory)
        return cls(directory, AuditWriter(Journal(directory, max_bytes, keep_files), commands, queue_most))

    def __init__(self, directory: Path, writer: AuditWriter) -> None:
        self._directory = directory
        self._writer = writer
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="warren-audit-read")
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._writer.waiting} waiting"
        return f"<FileAudit {self._directory}: {state}, {self._writer.dropped} dropped>"

    @property
    def dropped(self) -> int:
        """How many deeds were lost since it was opened."""
        return self._writer.dropped

    def record(self, deed: Deed, secrets: Iterable[str] = ()) -> None:
        self._writer.give(deed, secrets)

    async def find(self, query: Query) -> AuditPage:
        if self._closed:
            raise Unavailable("the audit record is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._found, query)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await run_shielded(asyncio.to_thread(self._writer.close, _CLOSE_MOST_S))
        self._reader.shutdown(wait=False)

    def _found(self, query: Query) -> AuditPage:
        self._writer.flush(_FLUSH_MOST_S)
        return read_page(self._directory, query)
