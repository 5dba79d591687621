"""The audit log: writes entries and finds them again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from warren.model.audit import AuditEntry, RequestRecord

MOST_ON_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """Selects entries. `tenant` None: those of all tenants, and those that belong to none. `since` is included, `until`
    is not; an empty text selects all. `after` is what the page before gave."""

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
    """Entries can be added and found, never changed. The size is bounded: the oldest entries are deleted first.

    `record` never waits and never raises: it counts an entry that cannot be kept, and an entry with the action
    `audit.dropped` says later, to the tenant whose entries they were, how many there were and from when to when. The
    entries of one tenant never take the place of another's. Before an entry is kept, `secrets` (at least 6 characters
    long) and what looks like a secret are removed from its detail, and long texts are cut; tenant, key, client, action
    and result stay as they are. `secrets` None says that there are too many to look for: texts are then left out.
    `find` gives a page, newest first, with everything that was recorded here before (if the disk keeps up), at most
    MOST_ON_PAGE entries. Raises InvalidRequest for an `after` it never gave, and Unavailable when it cannot read.
    `close` writes what waits; if that takes long, without the details. What is recorded afterwards is lost. May be
    called again.
    """

    def record(self, entry: AuditEntry | RequestRecord, secrets: Collection[str] | None = ()) -> None: ...
    async def find(self, query: Query) -> AuditPage: ...
    async def close(self) -> None: ...
