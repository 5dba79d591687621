"""Keeps the records of snapshots: finds them by id and by name, and counts how many bytes each tenant has in all.

`Snapshots` writes them; `SnapshotExpiry` looks for those that have expired. A name is that of the newest snapshot that
has it: the record of a new one takes it over in one step, and those of older ones are corrected afterwards.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Final

from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.pacing import Pace
from warren.model.errors import NotFound
from warren.model.session import size_of_metadata
from warren.model.snapshot import Snapshot, SnapshotOwner, is_snapshot_id, is_snapshot_name
from warren.sessions.tenant_use import PAGE, PAGE_LABELS, TenantUse

_KIND: Final = "snapshot"
_USE: Final = "snapshot_use"
_PUBLIC: Final = "snapshot_public"
_MAX_SCANNED: Final = 5000
_TRIES: Final = 10

_log = get_log(__name__)


class SnapshotRecords(TenantUse):
    def __init__(self, records: RecordStore, clock: Clock) -> None:
        super().__init__(records, _USE, "snapshots")
        self._records, self._clock = records, clock

    async def add(self, snapshot: Snapshot) -> Snapshot:
        """Adds a snapshot, which takes its name over. Returns it as it is now: a newer one may have the name. It then
        survives a loss of power: a content without its record would be removed at the next start."""
        await self._records.put(_record(snapshot))
        snapshot = await self._named(snapshot) if snapshot.name else snapshot
        await self._records.sync()
        return snapshot

    async def _named(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.public:
            await self._publish(snapshot)
        while len(named := await self._records.list(_KIND, group=_group(snapshot), limit=PAGE)) > 1:
            for record in named[1:]:
                await self._unname(record)
        is_newest = not named or named[0].id == _id(snapshot.tenant, snapshot.id)
        return snapshot if is_newest else replace(snapshot, name="")

    async def _unname(self, record: Record) -> None:
        if (snapshot := self._read_any(record)) is None:
            await self._records.delete(_KIND, record.id)
            return
        await self._records.put(replace(_record(replace(snapshot, name="")), version=record.version + 1))

    async def _publish(self, snapshot: Snapshot) -> None:
        value = _id(snapshot.tenant, snapshot.id)
        await self._records.put(Record(_PUBLIC, snapshot.id, value))
        for _ in range(_TRIES):
            known = await self._records.get(_PUBLIC, snapshot.name)
            if await self._records.put(known.changed(value) if known else Record(_PUBLIC, snapshot.name, value)):
                return

    async def remove(self, snapshot: Snapshot) -> bool:
        """Returns False if there was no such record any more. It does not come back when its content is gone."""
        record_id = _id(snapshot.tenant, snapshot.id)
        if snapshot.public:
            await self._records.delete(_PUBLIC, snapshot.id)
            known = await self._records.get(_PUBLIC, snapshot.name)
            if known is not None and known.value == record_id:
                await self._records.delete(_PUBLIC, snapshot.name)
        was_there = await self._records.delete(_KIND, record_id)
        await self._records.sync()
        return was_there

    async def exists(self, tenant: str, snapshot_id: str) -> bool:
        """Whether there is a record, also of one that has expired."""
        return await self._records.get(_KIND, _id(tenant, snapshot_id)) is not None

    async def expired(self) -> list[Snapshot]:
        """Returns some snapshots that have expired, or an empty list if there are none. Deletes damaged records among
        them."""
        while due := await self._records.due(_KIND, self._clock.wall(), PAGE):
            found = list[Snapshot]()
            for record in due:
                if (snapshot := self._read_any(record)) is not None:
                    found.append(snapshot)
                else:
                    await self._records.delete(_KIND, record.id)
            if found:
                return found
        return []

    # -- finding

    async def get(self, tenant: str, which: str) -> Snapshot:
        """Finds a snapshot of the tenant by its id or name. Raises NotFound, also for one of another tenant."""
        if (snapshot := await self._find(tenant, which)) is None:
            raise _unknown(which)
        return snapshot

    async def get_usable(self, tenant: str, which: str) -> Snapshot:
        """Finds one that the tenant may start from: its own, else a public one. Raises NotFound."""
        if (snapshot := await self._find(tenant, which)) is not None:
            return snapshot
        is_reference = is_snapshot_id(which) or is_snapshot_name(which)
        public = await self._records.get(_PUBLIC, which) if is_reference else None
        snapshot = None if public is None else await self._find(*public.value.split("/", 1))
        if snapshot is None or not snapshot.public:
            raise _unknown(which)
        return snapshot

    async def _find(self, tenant: str, which: str) -> Snapshot | None:
        record = None
        if is_snapshot_id(which):
            record = await self._records.get(_KIND, _id(tenant, which))
        elif is_snapshot_name(which):
            record = next(iter(await self._records.list(_KIND, group=f"{tenant}/{which}", limit=1)), None)
        return None if record is None else self._read(record)

    async def list(
        self,
        tenant: str,
        *,
        session_id: str = "",
        hidden: bool = False,
        after: str = "",
        limit: int = 100,
        name: str = "",
    ) -> tuple[list[Snapshot], str | None]:
        """Returns snapshots, the newest first, and the id after which the next page begins; None if there is none. A
        page may have fewer than `limit`. A `name` without a tag is that of all its tags."""
        found: list[Snapshot] = []
        scanned, labels, last = 0, 0, ""
        async with contextlib.aclosing(self.of_tenant(tenant, after)) as source:
            async for snapshot in source:
                if len(found) == limit or scanned == _MAX_SCANNED or labels > PAGE_LABELS:
                    return found, last
                scanned, last = scanned + 1, snapshot.id
                is_wanted = name in ("", snapshot.id, snapshot.name, snapshot.name.partition(":")[0])
                if is_wanted and (hidden or not snapshot.is_hidden) and session_id in ("", snapshot.session_id):
                    found.append(snapshot)
                    labels += size_of_metadata(snapshot.metadata)
        return found, None

    async def of_tenant(self, tenant: str, after: str = "") -> AsyncGenerator[Snapshot, None]:
        async with contextlib.aclosing(self.all(_id(tenant, after))) as source:
            async for snapshot in source:
                if snapshot.tenant != tenant:
                    return
                if not self._is_over(snapshot):
                    yield snapshot

    async def all(self, after: str = "") -> AsyncGenerator[Snapshot, None]:
        """Yields those of all tenants, also what has expired."""
        pace = Pace()
        while page := await self._records.list(_KIND, after=after, limit=PAGE):
            for record in page:
                if (snapshot := self._read_any(record)) is not None:
                    yield snapshot
                await pace.give_way()
            after = page[-1].id

    async def count(self, tenant: str) -> int:
        """How many snapshots the tenant has made, without hidden ones."""
        return len([one async for one in self.of_tenant(tenant) if one.owner is SnapshotOwner.USER])

    async def count_anew(self, use: Record, is_busy: Callable[[], bool]) -> None:
        async def sizes() -> AsyncGenerator[int, None]:
            async with contextlib.aclosing(self.all(_id(use.id, ""))) as source:
                async for snapshot in source:
                    if snapshot.tenant != use.id:
                        return
                    yield snapshot.charged_bytes

        await self.correct_use(use, sizes(), is_busy)

    def _is_over(self, snapshot: Snapshot) -> bool:
        return snapshot.expires_at is not None and snapshot.expires_at <= self._clock.wall()

    def _read(self, record: Record) -> Snapshot | None:
        """Returns None for a snapshot that has expired, or whose record is damaged."""
        snapshot = self._read_any(record)
        return None if snapshot is None or self._is_over(snapshot) else snapshot

    def _read_any(self, record: Record) -> Snapshot | None:
        try:
            return Snapshot.from_mapping(json.loads(record.value))
        except (ValueError, TypeError) as exc:
            _log.warning("snapshot_record_damaged", snapshot=record.id, error=exc)
            return None


def _record(snapshot: Snapshot) -> Record:
    value, record_id = json.dumps(snapshot.as_mapping()), _id(snapshot.tenant, snapshot.id)
    return Record(_KIND, record_id, value, group=_group(snapshot), due=snapshot.expires_at)


def _group(snapshot: Snapshot) -> str:
    return f"{snapshot.tenant}/{snapshot.name}" if snapshot.name else ""


def _id(tenant: str, snapshot_id: str) -> str:
    """No tenant's name has a slash in it, so the records of a tenant form one range of ids."""
    return f"{tenant}/{snapshot_id}"


def _unknown(which: str) -> NotFound:
    return NotFound(f"there is no snapshot {which[:80]!r}", remedy="GET /api/snapshots lists those there are")
