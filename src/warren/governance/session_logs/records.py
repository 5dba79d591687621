"""Keeps the records of the logs of sessions: finds them, and counts how many bytes those of each tenant take."""

import asyncio
import json
from typing import Final

from warren.governance.session_logs.files import Name
from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import Unavailable, WarrenError
from warren.model.session_log import LogRecord

_KIND: Final = "session_log"
_USE: Final = "session_log_use"
_PAGE: Final = 200
_TRIES: Final = 50

_log = get_log(__name__)


class LogRecords:
    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records, self._clock = records, clock

    async def get(self, name: Name) -> LogRecord | None:
        record = await self._records.get(_KIND, _id(name))
        return _read(record) if record is not None else None

    async def save(self, log: LogRecord, look_again_at: float) -> None:
        """The record is due when the log expires; until its session has ended, at the given time."""
        due = look_again_at if log.expires_at is None else log.expires_at
        value, record_id = json.dumps(log.as_mapping()), _id((log.tenant, log.session_id))
        for attempt in range(_TRIES):
            current = await self._records.get(_KIND, record_id)
            earlier = _read(current) if current else None
            if earlier is not None and log.first_at > earlier.first_at > 0:
                value = json.dumps({**log.as_mapping(), "first_at": earlier.first_at})
            changed = (
                current.changed(value, due) if current else Record(_KIND, record_id, value, group=log.tenant, due=due)
            )
            if await self._records.put(changed):
                await self._count(log.tenant, log.bytes - (earlier.bytes if earlier else 0))
                return
            await asyncio.sleep(0.001 * attempt)
        raise Unavailable("the record of the log changes all the time", retry_after_s=1)

    async def remove(self, name: Name) -> None:
        current = await self._records.get(_KIND, _id(name))
        if current is not None and await self._records.delete(_KIND, current.id):
            log = _read(current)
            await self._count(name[0], -(log.bytes if log else 0))

    async def due(self) -> list[LogRecord]:
        """Returns records whose time has come. Deletes damaged ones among them."""
        found: list[LogRecord] = []
        for record in await self._records.due(_KIND, self._clock.wall(), _PAGE):
            if (log := _read(record)) is None:
                await self._records.delete(_KIND, record.id)
            else:
                found.append(log)
        return found

    # -- what a tenant has in all

    async def _count(self, tenant: str, size: int) -> None:
        """What cannot be counted now is counted by the next sweep."""
        try:
            for attempt in range(_TRIES if size else 0):
                current = await self._records.get(_USE, tenant)
                total = str(max(0, (int(current.value) if current else 0) + size))
                if await self._records.put(current.changed(total) if current else Record(_USE, tenant, total)):
                    return
                await asyncio.sleep(0.001 * attempt)
        except WarrenError as exc:
            _log.warning("session_log_use_not_saved", tenant=tenant, action="count_later", error=exc)

    async def used_bytes(self, tenant: str | None) -> int:
        """The bytes that the logs of one tenant take, or those of all tenants."""
        if tenant is not None:
            current = await self._records.get(_USE, tenant)
            return int(current.value) if current else 0
        return sum([int(use.value) for use in await self._users()])

    async def _users(self) -> list[Record]:
        found, after = list[Record](), ""
        while page := await self._records.list(_USE, after=after, limit=_PAGE):
            found += page
            after = page[-1].id
        return found

    async def count_anew(self) -> None:
        """Corrects the sums of tenants; one that changes meanwhile is corrected by the next sweep."""
        for use in await self._users():
            total, after = 0, ""
            while page := await self._records.list(_KIND, group=use.id, after=after, limit=_PAGE):
                total += sum(log.bytes for log in map(_read, page) if log is not None)
                after = page[-1].id
            if total != int(use.value):
                await self._records.put(use.changed(str(total)))


async def place_of_log(records: RecordStore, name: Name) -> str:
    """Returns the worker that keeps the log of a session; "" if there is none."""
    record = await records.get(_KIND, _id(name))
    log = _read(record) if record is not None else None
    return log.place if log is not None else ""


def _read(record: Record) -> LogRecord | None:
    try:
        return LogRecord.from_mapping(json.loads(record.value))
    except (ValueError, TypeError, KeyError) as exc:
        _log.warning("session_log_record_damaged", log=record.id, error=exc)
        return None


def _id(name: Name) -> str:
    """No tenant's name has a slash in it."""
    return f"{name[0]}/{name[1]}"
