"""What the audit logs in files and in Redis share: entries go to the thread of a writer, and queries wait for it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from warren.governance.audit.writer import AuditWriter
from warren.interfaces.audit import AuditPage, Query
from warren.kernel.shielding import run_shielded
from warren.model.errors import Unavailable

FLUSH_S: Final = 5.0
"""How long a query waits, at most, until what was recorded before it is written."""
CLOSE_S: Final = 5.0


class WrittenLog(ABC):
    """`place` names the log. `close` waits for `close_s`, calls `hurry`, which ends what keeps the writer waiting, and
    waits once more."""

    def __init__(
        self, place: object, writer: AuditWriter, close_s: float = CLOSE_S, hurry: Callable[[], None] | None = None
    ) -> None:
        self._place = place
        self._writer = writer
        self.record = writer.add
        self._close_s = close_s
        self._hurry = hurry
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="warren-audit-read")
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._writer.waiting} waiting"
        return f"<{type(self).__name__} {self._place}: {state}, {self._writer.dropped} dropped>"

    @property
    def dropped(self) -> int:
        """The number of entries lost since it was opened."""
        return self._writer.dropped

    async def find(self, query: Query) -> AuditPage:
        if self._closed:
            raise Unavailable("the audit record is closed")
        return await self._find(query)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not await run_shielded(asyncio.to_thread(self._writer.close, self._close_s)):
            if self._hurry is not None:
                self._hurry()
            await run_shielded(asyncio.to_thread(self._writer.close, self._close_s))
        self._queries.shutdown(wait=False)

    @abstractmethod
    async def _find(self, query: Query) -> AuditPage: ...
