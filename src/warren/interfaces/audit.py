"""Where entries are written down, and found again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from warren.model.audit import AuditEntry

MOST_ON_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """Which entries are wanted. `tenant` None: those of all tenants, and those that belong to none. `since` is
    included, `until` is not; an empty text leaves its field open. `after` is what the page before gave."""

    tenant: str | None
    since: float | None = None
    until: float | None = None
    session_id: str = ""
    key_id: str = ""
    action: str = ""
    limit: int = 100
    after: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Newest first. `after` asks for the next page; empty: there is nothing older. Looking through much to find
    little ends early: a page may have fewer entries than asked for, or none, and still say `after`."""

    entries: Sequence[AuditEntry]
    after: str = ""


class AuditLog(Protocol):
    """Deeds can be added and found, never changed. What is kept is bounded: the oldest go first.

    `record` never waits and never raises: a entry that cannot be kept is counted, and a entry with the action
    `audit.dropped` (of no tenant) says later how many there were and from when to when. Before a entry is kept,
    `secrets` (at least 6 characters long) and what looks like a secret are taken out of its detail, and what is too
    long is cut; tenant, key, client, action and result stay as they are.
    `find` gives a page, in the reverse order of recording, among them everything this log was given before (if the
    disk keeps up). At most MOST_ON_PAGE at once. Raises InvalidRequest for an `after` it never gave, and Unavailable
    when it cannot read.
    `close` writes what waits, for some seconds at most; what is recorded afterwards is lost. May be called again.
    """

    def record(self, entry: AuditEntry, secrets: Iterable[str] = ()) -> None: ...
    async def find(self, query: Query) -> AuditPage: ...
    async def close(self) -> None: ...
