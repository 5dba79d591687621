"""The audit record in memory: the newest entries, gone when the process ends. It passes the contract of the files."""

from collections import deque
from collections.abc import Collection
from typing import Final

from warren.governance.audit.entries import encode_entry, encode_redacted, matches, parse_entry
from warren.interfaces.audit import MAX_ON_PAGE, AuditPage, Query
from warren.model.audit import DROPPED, AuditEntry, CommandText, RequestRecord
from warren.model.errors import InvalidRequest, Unavailable

KEEP: Final = 10_000


class MemoryAudit:
    def __init__(self, *, commands: CommandText = CommandText.REDACTED, keep: int = KEEP) -> None:
        self._commands = commands
        self._lines: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._next = 1
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryAudit: {len(self._lines)}{' closed' if self._closed else ''}>"

    def record(self, entry: AuditEntry | RequestRecord, secrets: Collection[str] | None = ()) -> None:
        if self._closed:
            return
        try:
            entry = entry.as_entry() if isinstance(entry, RequestRecord) else entry
            line = encode_redacted(entry, secrets, self._commands)
        except Exception:  # whatever the entry contains: the contract is never to raise
            tenant = entry.tenant if isinstance(entry.tenant, str) else ""
            line = encode_entry(AuditEntry(0.0, DROPPED, tenant, result="lost", detail={"count": 1}))
        self._lines.append((self._next, line))
        self._next += 1

    async def find(self, query: Query) -> AuditPage:
        if self._closed:
            raise Unavailable("the audit record is closed")
        limit = max(1, min(query.limit, MAX_ON_PAGE))
        before = _number(query.after) if query.after else self._next
        found: list[AuditEntry] = []
        for number, line in reversed(self._lines):
            entry = parse_entry(line)
            if number < before and entry is not None and matches(query, entry):
                found.append(entry)
                if len(found) == limit:
                    return AuditPage(found, str(number))
        return AuditPage(found)

    async def close(self) -> None:
        self._closed = True


def _number(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequest(f"{after[:80]!r} is no page of the audit record", remedy="give the `after` of a page")
    return int(after)
