"""Keeps the rows of volumes, and what each tenant has of them in all. `Volumes` (service.py) writes them."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict
from typing import Final, NamedTuple

from warren.interfaces.records import Record, RecordStore
from warren.kernel.logs import get_log
from warren.kernel.pacing import Pace
from warren.model.errors import NotFound, Unavailable
from warren.model.volume import Volume, VolumeState, is_volume_id

_KIND: Final = "volume"
_USE: Final = "volume_use"
_PAGE: Final = 200
_TRIES: Final = 50
SHOWN: Final = frozenset({VolumeState.READY, VolumeState.MOVING})
_log = get_log(__name__)


class Use(NamedTuple):
    """What the volumes of a tenant take: the sum of their sizes, and their number."""

    volumes_mb: int = 0
    volumes: int = 0


class VolumeRow(NamedTuple):
    record: Record
    volume: Volume


class VolumeRecords:
    """`wall` is the wall-clock time."""

    def __init__(self, records: RecordStore, wall: Callable[[], float] = time.time) -> None:
        self._records, self._wall = records, wall

    async def find(self, tenant: str, name: str) -> VolumeRow | None:
        """Finds a volume by its name or id, in whatever state. A move whose time is over is undone."""
        row = await self._look_up(tenant, name)
        while row is not None and row.volume.state is VolumeState.MOVING and row.volume.moving_until < self._wall():
            row = await self.change(row, row.volume.settled()) or await self._look_up(tenant, name)
        return row

    async def _look_up(self, tenant: str, name: str) -> VolumeRow | None:
        if not is_volume_id(name):
            record = await self._records.get(_KIND, f"{tenant}/{name}") if "/" not in name else None
            return None if record is None else _row(record)
        for record in await self._records.list(_KIND, group=name, limit=1):
            if record.id.startswith(f"{tenant}/"):
                return _row(record)
        return None

    async def shown(self, tenant: str, name: str) -> VolumeRow:
        """Raises NotFound, also for one that is being made or deleted."""
        row = await self.find(tenant, name)
        if row is None or row.volume.state not in SHOWN:
            raise NotFound(f"there is no volume {name[:140]!r}", remedy="GET /api/volumes lists those there are")
        return row

    async def ready(self, tenant: str, name: str, place: str | None = None) -> VolumeRow:
        """Raises NotFound as `shown`, and Unavailable for one that moves, or is not at this place (any more)."""
        row = await self.shown(tenant, name)
        if row.volume.state is VolumeState.MOVING or place not in (None, row.volume.place):
            raise Unavailable(
                f"the volume {row.volume.name!r} moves to another machine", remedy="try again", retry_after_s=2
            )
        return row

    async def add(self, volume: Volume) -> VolumeRow | None:
        """Returns None if the tenant has one of that name."""
        record = Record(_KIND, f"{volume.tenant}/{volume.name}", json.dumps(asdict(volume)), group=volume.id)
        return VolumeRow(record, volume) if await self._records.put(record) else None

    async def change(self, row: VolumeRow, volume: Volume) -> VolumeRow | None:
        """Returns None if another change came first. A change survives a loss of power, as what was synced in the
        volume does."""
        record = row.record.changed(json.dumps(asdict(volume)))
        if not await self._records.put(record):
            return None
        await self._records.sync()
        return VolumeRow(record, volume)

    async def remove(self, volume: Volume) -> bool:
        was_there = await self._records.delete(_KIND, f"{volume.tenant}/{volume.name}")
        await self._records.sync()
        return was_there

    async def rows(self, tenant: str = "", after: str = "") -> AsyncGenerator[VolumeRow, None]:
        """Yields the rows of a tenant, or of all, in the order of their names."""
        prefix, pace = f"{tenant}/" if tenant else "", Pace()
        at = f"{prefix}{after}"
        while page := await self._records.list(_KIND, after=at, limit=_PAGE):
            for record in page:
                if not record.id.startswith(prefix):
                    return
                if (row := _row(record)) is not None:
                    yield row
                await pace.give_way()
            at = page[-1].id

    # -- what a tenant has in all

    async def used(self, tenant: str | None) -> Use:
        """What one tenant has, or all tenants together."""
        if tenant is not None:
            current = await self._records.get(_USE, tenant)
            return Use(**json.loads(current.value)) if current else Use()
        total, after = Use(), ""
        while page := await self._records.list(_USE, after=after, limit=_PAGE):
            for use in (Use(**json.loads(record.value)) for record in page):
                total = Use(total.volumes_mb + use.volumes_mb, total.volumes + use.volumes)
            after = page[-1].id
        return total

    async def charge(self, tenant: str, change: Use, bounds: Mapping[str, int]) -> str:
        """Adds to what the tenant has. Returns the name of the bound that this would exceed, or ""; then nothing was
        added."""
        for attempt in range(_TRIES):
            current = await self._records.get(_USE, tenant)
            before = Use(**json.loads(current.value)) if current else Use()
            total = Use(*(max(0, was + more) for was, more in zip(before, change, strict=True)))
            for name, most in bounds.items():
                if getattr(total, name) > most and getattr(change, name) > 0:
                    return name
            value = json.dumps(total._asdict())
            if await self._records.put(current.changed(value) if current else Record(_USE, tenant, value)):
                return ""
            await asyncio.sleep(0.001 * attempt)
        raise Unavailable("the sum of the tenant's volumes changes all the time", retry_after_s=1)

    async def count_anew(self) -> None:
        """Corrects the sums of all tenants: a crash may have come between a change and its sum."""
        after = ""
        while page := await self._records.list(_USE, after=after, limit=_PAGE):
            for record in page:
                volumes = [row.volume async for row in self.rows(record.id)]
                value = json.dumps(Use(sum(each.size_mb for each in volumes), len(volumes))._asdict())
                if value != record.value:
                    await self._records.put(record.changed(value))
            after = page[-1].id


def _row(record: Record) -> VolumeRow | None:
    try:
        return VolumeRow(record, Volume.from_mapping(json.loads(record.value)))
    except (ValueError, TypeError, KeyError) as exc:
        _log.warning("volume_record_damaged", volume=record.id, error=exc)
        return None


async def place_of(records: RecordStore, tenant: str, name: str) -> str:
    """Returns the worker that has a volume; "" if there is no such volume, or one machine only."""
    row = await VolumeRecords(records).find(tenant, name)
    return row.volume.place if row else ""
