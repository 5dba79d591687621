"""The store of everything but sessions and sandboxes: keys, tenants, webhooks, and what waits to be sent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """`value`: text that the store does not interpret. `group`: for listing. `due`: for queues, a wall-clock time."""

    kind: str
    id: str
    value: str
    version: int = 1
    group: str = ""
    due: float | None = None

    def changed(self, value: str, due: float | None = None) -> "Record":
        return replace(self, value=value, version=self.version + 1, due=due)


class RecordStore(Protocol):
    """Records by kind and id. Every operation is atomic, also between processes that share the store. Acknowledged
    changes survive kill -9 (except in the store in memory). Every call raises NoSpace or Unavailable when the store
    cannot work; then nothing was changed.

    `put` stores a new record (version 1) if none of that kind and id exists, or a change if the stored version is the
    one it was made from; it returns whether it did. `delete` returns whether the record existed. `list` returns the
    records of a kind (and group, if given) in the order of their ids by code points, after the id `after`. `due`
    returns the records whose time has come, the longest overdue first. `count` counts the records of a kind (and group,
    if given). `sync` returns when everything acknowledged before also survives a loss of power, as far as the store can
    see to that: for what must not contradict files.
    """

    async def get(self, kind: str, record_id: str) -> Record | None: ...
    async def put(self, record: Record) -> bool: ...
    async def delete(self, kind: str, record_id: str) -> bool: ...
    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]: ...
    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]: ...
    async def count(self, kind: str, *, group: str = "") -> int: ...
    async def sync(self) -> None: ...
