"""Where everything is kept that is neither a session nor a sandbox: keys, tenants, webhooks, what waits to be sent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """`value` is text the store does not look into. `group` is for listing, `due` (a time of day) for queues."""

    kind: str
    id: str
    value: str
    version: int = 1
    group: str = ""
    due: float | None = None

    def changed(self, value: str, due: float | None = None) -> "Record":
        return replace(self, value=value, version=self.version + 1, due=due)


class RecordStore(Protocol):
    """Records by kind and id. Every operation is atomic, also between processes that share it; what was
    acknowledged is there after kill -9 (not in memory). Raises NoSpace or Unavailable when it cannot work; then nothing
    was changed.

    `put` stores a new record (version 1) if there is none of that kind and id, or a change over the version
    it was made from; it says whether it did. `delete` says whether there was one. `list` gives those of a kind, and
    perhaps of a group, in the order of their ids (by code points), after the id `after`. `due` gives those whose time
    has come, the longest overdue first. `count` counts those of a kind, and perhaps of a group.
    """

    async def get(self, kind: str, record_id: str) -> Record | None: ...
    async def put(self, record: Record) -> bool: ...
    async def delete(self, kind: str, record_id: str) -> bool: ...
    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]: ...
    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]: ...
    async def count(self, kind: str, *, group: str = "") -> int: ...
