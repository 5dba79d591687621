"""What each tenant used on each day (UTC), kept as records.

`add` only adds up in memory. `run` brings the sums to the store about every second, by a change over the record as it
is there: several processes may add to the same day. What a store that does not work refuses is kept and brought later,
as one sum for each tenant and day, of MOST_SUMS at most; kill -9 loses the figures of the last second. Once an hour
`run` deletes the days that are too old.

A record is named DAY/TENANT, so that a span of days is read in one piece, and is due at the beginning of its day, so
that the oldest are found without looking at the others.
"""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from warren.clock import Clock
from warren.interfaces.records import Record, RecordStore
from warren.model.errors import InvalidRequest, NoSpace, Unavailable, WarrenError
from warren.model.usage import NO_USAGE, DayUsage, Usage
from warren.shielding import run_shielded

KEEP_DAYS: Final = 400
FLUSH_S: Final = 1.0
MOST_ROWS: Final = 100_000
MOST_SUMS: Final = 100_000
_KIND: Final = "usage"
_PRUNE_EVERY_S: Final = 3600.0
_BATCH: Final = 500
_TRIES: Final = 1000
_DAY_S: Final = 86400.0

_log = logging.getLogger("warren.usage")


class UsageBook:
    def __init__(self, records: RecordStore, clock: Clock, *, keep_days: int = KEEP_DAYS) -> None:
        self._records = records
        self._clock = clock
        self._keep_days = keep_days
        self._sums: dict[tuple[date, str], Usage] = {}
        self._today, self._today_from = date.min, -math.inf
        self._flushing = asyncio.Lock()
        self._pruned = -_PRUNE_EVERY_S
        self._too_many = False

    def __repr__(self) -> str:
        return f"<UsageBook: {len(self._sums)} sums to be kept>"

    def add(self, tenant: str, usage: Usage) -> None:
        """Counts for the day it is now."""
        now = self._clock.wall()
        if not self._today_from <= now < self._today_from + _DAY_S:
            self._today = day_of(now)
            self._today_from = _start_of(self._today)
        self._put_back((self._today, tenant), usage)

    async def run(self) -> None:
        trouble = ""
        while True:
            await self._clock.sleep(FLUSH_S)
            try:
                await self.flush()
                await self._prune_in_time()
                trouble = ""
            except Exception as exc:
                # The figures wait in memory for this loop: it outlives whatever the store raises.
                if repr(exc) != trouble:
                    trouble = repr(exc)
                    unforeseen = None if isinstance(exc, WarrenError) else exc
                    _log.warning("usage cannot be kept, it is tried again: %s", exc, exc_info=unforeseen)

    async def flush(self) -> None:
        """Brings to the store what was added before. What it refuses waits on, and why it did is raised."""
        await run_shielded(self._flush())

    async def close(self) -> None:
        """Brings the rest to the store; what it does not take now is lost, and told."""
        try:
            await self.flush()
        except WarrenError as exc:
            _log.warning("the last usage of %d tenants could not be kept: %s", len(self._sums), exc)

    async def between(self, tenant: str | None, first: date, last: date) -> Sequence[DayUsage]:
        """From the first day to the last, both included; by day, then by tenant. None: of all tenants. What was
        not yet kept, of this process, is kept before."""
        await self.flush()
        rows: list[DayUsage] = []
        after = first.isoformat()
        while page := await self._records.list(_KIND, group=tenant or "", after=after, limit=_BATCH):
            rows += (row for row in map(_row, page) if row.day <= last and tenant in (None, row.tenant))
            after = page[-1].id
            if after[:10] > last.isoformat():
                break
            if len(rows) > MOST_ROWS:
                raise InvalidRequest(
                    f"this is usage of more than {MOST_ROWS} rows", remedy="ask for fewer days at once"
                )
        return rows

    async def prune(self) -> int:
        """Deletes the days that are older than what is kept; says how many records that were."""
        end = _start_of(day_of(self._clock.wall()) - timedelta(days=self._keep_days)) - 1.0
        deleted = 0
        while old := await self._records.due(_KIND, end, _BATCH):
            gone = [await self._records.delete(_KIND, record.id) for record in old]
            deleted += sum(gone)
            await asyncio.sleep(0)
        return deleted

    async def _prune_in_time(self) -> None:
        if self._clock.now() - self._pruned >= _PRUNE_EVERY_S:
            await self.prune()
            self._pruned = self._clock.now()

    async def _flush(self) -> None:
        trouble: Exception | None = None
        async with self._flushing:
            for key in list(self._sums):
                usage = self._sums.pop(key)
                try:
                    await self._keep(*key, usage)
                except Exception as exc:
                    self._put_back(key, usage)
                    trouble = trouble or exc
                    if _is_away(exc):
                        break  # each of the others would wait as long, for nothing
                await asyncio.sleep(0)
        if trouble is not None:
            raise trouble

    def _put_back(self, key: tuple[date, str], usage: Usage) -> None:
        if key not in self._sums and len(self._sums) >= MOST_SUMS:
            if not self._too_many:
                _log.error("usage of more than %d tenants waits to be kept: that of others is lost", MOST_SUMS)
            self._too_many = True
            return
        self._sums[key] = self._sums.get(key, NO_USAGE).plus(usage)

    async def _keep(self, day: date, tenant: str, usage: Usage) -> None:
        """Adds it to what is there, whoever else does the same."""
        name = f"{day.isoformat()}/{tenant}"
        for _ in range(_TRIES):
            known = await self._records.get(_KIND, name)
            if known is None:
                changed = Record(_KIND, name, _text(usage), group=tenant, due=_start_of(day))
            else:
                changed = known.changed(_text(_row(known).usage.plus(usage)), due=known.due)
            if await self._records.put(changed):
                return
        raise Unavailable(f"the usage of {tenant} is changed by others all the time")


class _Damaged(Unavailable):
    """One record; the store works."""


def _is_away(exc: Exception) -> bool:
    return isinstance(exc, Unavailable | NoSpace) and not isinstance(exc, _Damaged)


def day_of(wall: float) -> date:
    return datetime.fromtimestamp(wall, UTC).date()


def _start_of(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()


def _text(usage: Usage) -> str:
    return json.dumps(usage.as_mapping())


def _row(record: Record) -> DayUsage:
    try:
        usage = Usage.from_mapping(_mapping(record.value))
        return DayUsage(date.fromisoformat(record.id[:10]), record.group, usage)
    except (ValueError, TypeError) as exc:
        raise _Damaged(f"the usage record {record.id!r} is damaged", remedy="delete it from the store") from exc


def _mapping(text: str) -> dict[str, Any]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not a mapping")
    return values
