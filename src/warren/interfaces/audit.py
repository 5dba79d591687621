"""The audit log: writes entries and finds them again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from warren.model.audit import AuditEntry, RequestRecord

MAX_ON_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """Selects entries. `tenant` None selects those of all tenants, and those without a tenant. `since` is inclusive,
    `until` exclusive; an empty text selects all. `after` continues after the page that returned it."""

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
    """Entries, newest first. Pass `after` to get the next page; it is empty if nothing older is left. A search that
    reads a lot and finds little ends early, so a page may have fewer entries than asked for, or none, and still have an
    `after`."""

    entries: Sequence[AuditEntry]
    after: str = ""


class AuditLog(Protocol):
    """Entries can be added and found, never changed. The size is bounded: the oldest entries are deleted first.

    `record` never waits and never raises. It counts an entry that cannot be kept; a later entry with the action
    `audit.dropped` tells the tenant how many of its entries were lost, and in which period. The entries of one tenant
    never displace those of another. Before an entry is kept, `secrets` (of at least 6 characters) and whatever looks
    like a secret are removed from its detail, and long texts are cut; tenant, key, client, action and result are kept
    as they are. `secrets` None means that there are too many to search for; then texts are left out.
    `find` returns a page of at most MAX_ON_PAGE entries, newest first, including everything recorded before the call
    (if the disk keeps up). It raises InvalidRequest for an `after` that it never returned, and Unavailable when it
    cannot read.
    `close` writes the waiting entries, without details if that takes long. Entries recorded later are lost. It may be
    called again.
    """

    def record(self, entry: AuditEntry | RequestRecord, secrets: Collection[str] | None = ()) -> None: ...
    async def find(self, query: Query) -> AuditPage: ...
    async def close(self) -> None: ...
