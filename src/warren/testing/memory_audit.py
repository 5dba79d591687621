"""The audit record in memory. It keeps the newest deeds until the process ends and passes the contract of the files."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from warren.interfaces.audit import MOST_ON_PAGE, AuditPage, Query
from warren.model.audit import DROPPED, CommandText, Deed
from warren.model.errors import InvalidRequest, Unavailable
from warren.tenancy.audit.deeds import deed_of, is_wanted, kept_line, line_of

KEEP: Final = 10_000


class MemoryAudit:
    def __init__(self, *, commands: CommandText = CommandText.REDACTED, keep: int = KEEP) -> None:
        self._commands = commands
        self._lines: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._next = 1
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryAudit: {len(self._lines)}{' closed' if self._closed else ''}>"

    def record(self, deed: Deed, secrets: Iterable[str] = ()) -> None:
        if self._closed:
            return
        try:
            line = kept_line(deed, secrets, self._commands)
        except Exception:  # the contract says that `record` never raises, whatever the deed holds
            line = line_of(Deed(0.0, DROPPED, result="lost", detail={"count": 1}))
        self._lines.append((self._next, line))
        self._next += 1

    async def find(self, query: Query) -> AuditPage:
        if self._closed:
            raise Unavailable("the audit record is closed")
        limit = max(1, min(query.limit, MOST_ON_PAGE))
        before = _number(query.after) if query.after else self._next
        found: list[Deed] = []
        for number, line in reversed(self._lines):
            deed = deed_of(line)
            if number < before and deed is not None and is_wanted(query, deed):
                found.append(deed)
                if len(found) == limit:
                    return AuditPage(found, str(number))
        return AuditPage(found)

    async def close(self) -> None:
        self._closed = True


def _number(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequest(f"{after[:80]!r} is no page of the audit record", remedy="give the `after` of a page")
    return int(after)
