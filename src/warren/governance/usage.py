"""What each tenant used on each day (UTC), kept as records.

`add` only adds in memory. About every second `run` adds the sums to the records in the store, by compare and swap:
several processes may count for the same day. Sums that the store does not take wait for the next time, one for each
tenant and day, MAX_SUMS at most. kill -9 loses the usage of the last second. Once an hour `run` deletes old days.

A record is named DAY/TENANT, so that a span of days is read in one piece, and is due at the beginning of its day, so
that the oldest are found without looking at the others.
"""

import asyncio
import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import InvalidRequest, NoSpace, Unavailable, WarrenError
from warren.model.usage import DayUsage, Usage

KEEP_DAYS: Final = 400
FLUSH_S: Final = 1.0
MAX_ROWS: Final = 100_000
MAX_SUMS: Final = 100_000
_KIND: Final = "usage"
_PRUNE_EVERY_S: Final = 3600.0
_BATCH: Final = 500
_TRIES: Final = 1000
_DAY_S: Final = 86400.0
_AMOUNTS: Final = tuple(each.name for each in fields(Usage))
_COLUMNS: Final = ("day", "tenant", *_AMOUNTS)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

_log = get_log("warren.usage")


@dataclass(slots=True)
class _Sum:
    """What was added for one tenant and day and is not saved yet; the fields are those of Usage."""

    sessions: int = 0
    commands: int = 0
    cpu_s: float = 0.0
    memory_mb_s: float = 0.0
    session_s: float = 0.0
    exec_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    egress_bytes: int = 0
    egress_connections: int = 0
    egress_refused: int = 0

    def add(self, usage: Usage) -> None:
        for name in _AMOUNTS:
            setattr(self, name, getattr(self, name) + getattr(usage, name))

    def usage(self) -> Usage:
        return Usage(*(getattr(self, name) for name in _AMOUNTS))


class UsageBook:
    def __init__(self, records: RecordStore, clock: Clock, *, keep_days: int = KEEP_DAYS) -> None:
        self._records = records
        self._clock = clock
        self._keep_days = keep_days
        self._sums: dict[tuple[date, str], _Sum] = {}
        self._today, self._today_from = date.min, -math.inf
        self._flushing = asyncio.Lock()
        self._pruned = -_PRUNE_EVERY_S
        self._too_many = False

    def __repr__(self) -> str:
        return f"<UsageBook: {len(self._sums)} sums to save>"

    def add(self, tenant: str, usage: Usage) -> None:
        """Adds to the tenant's usage of today."""
        self._of_today(tenant).add(usage)

    def add_request(self, tenant: str, bytes_in: int, bytes_out: int) -> None:
        found = self._of_today(tenant)
        found.bytes_in += bytes_in
        found.bytes_out += bytes_out

    def add_command(self, tenant: str, ran_s: float, cpu_s: float) -> None:
        found = self._of_today(tenant)
        found.commands += 1
        found.exec_s += ran_s
        found.cpu_s += cpu_s

    def _of_today(self, tenant: str) -> _Sum:
        now = self._clock.wall()
        if not self._today_from <= now < self._today_from + _DAY_S:
            self._today = day_of(now)
            self._today_from = _start_of(self._today)
        return self._sums.get((self._today, tenant)) or self._sum(self._today, tenant)

    async def run(self) -> None:
        trouble = ""
        while True:
            await self._clock.sleep(FLUSH_S)
            try:
                await self.flush()
                await self._prune_if_due()
                trouble = ""
            except Exception as exc:
                # The sums in memory depend on this loop: it must survive whatever the store raises.
                if repr(exc) != trouble:
                    trouble = repr(exc)
                    _log.error("usage_not_saved", action="retry", error=exc, exc=_unforeseen(exc))

    async def flush(self) -> None:
        """Saves what was added before. Raises the first error of the store; what it refuses waits for the next time."""
        await run_shielded(self._flush())

    async def close(self) -> None:
        """Saves the rest; what the store does not take now is lost, and logged."""
        try:
            await self.flush()
        except WarrenError as exc:
            _log.warning("usage_lost", sums=len(self._sums), error=exc)

    async def between(self, tenant: str | None, first: date, last: date) -> Sequence[DayUsage]:
        """Returns the usage from the first day to the last, both included, by day, then by tenant; of all tenants if
        `tenant` is None. Saves first what this process has counted."""
        await self.flush()
        rows: list[DayUsage] = []
        after = first.isoformat()
        while page := await self._records.list(_KIND, group=tenant or "", after=after, limit=_BATCH):
            rows += (row for row in map(_row, page) if row.day <= last and tenant in (None, row.tenant))
            after = page[-1].id
            if after[:10] > last.isoformat():
                break
            if len(rows) > MAX_ROWS:
                raise InvalidRequest(f"this is usage of more than {MAX_ROWS} rows", remedy="ask for fewer days at once")
        return rows

    async def prune(self) -> int:
        """Deletes the days that are too old; returns the number of deleted records."""
        end = _start_of(day_of(self._clock.wall()) - timedelta(days=self._keep_days)) - 1.0
        deleted = 0
        while old := await self._records.due(_KIND, end, _BATCH):
            gone = [await self._records.delete(_KIND, record.id) for record in old]
            deleted += sum(gone)
            await asyncio.sleep(0)
        return deleted

    async def _prune_if_due(self) -> None:
        if self._clock.now() - self._pruned >= _PRUNE_EVERY_S:
            await self.prune()
            self._pruned = self._clock.now()

    async def _flush(self) -> None:
        trouble: Exception | None = None
        async with self._flushing:
            for key in list(self._sums):
                usage = self._sums.pop(key).usage()
                try:
                    await self._save(*key, usage)
                except Exception as exc:
                    self._sum(*key).add(usage)
                    trouble = trouble or exc
                    if _is_away(exc):
                        break  # each of the others would wait as long, for nothing
                await asyncio.sleep(0)
        if trouble is not None:
            raise trouble

    def _sum(self, day: date, tenant: str) -> _Sum:
        """Returns the sum to add to. If there are too many sums, it returns one that is never saved."""
        found = self._sums.get((day, tenant))
        if found is not None:
            return found
        if len(self._sums) >= MAX_SUMS:
            if not self._too_many:
                _log.error("usage_lost", reason="too_many_sums", sums=MAX_SUMS)
            self._too_many = True
            return _Sum()
        found = self._sums[day, tenant] = _Sum()
        return found

    async def _save(self, day: date, tenant: str, usage: Usage) -> None:
        """Adds the usage to the record, also while others do the same."""
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


class _RecordDamaged(Unavailable):
    """One record cannot be read; the store works."""


def _unforeseen(exc: Exception) -> Exception | None:
    return None if isinstance(exc, WarrenError) else exc


def _is_away(exc: Exception) -> bool:
    return isinstance(exc, Unavailable | NoSpace) and not isinstance(exc, _RecordDamaged)


def day_of(wall: float) -> date:
    return datetime.fromtimestamp(wall, UTC).date()


def as_csv(rows: Iterable[DayUsage]) -> str:
    """Writes a table with a line of names. A text that a spreadsheet would take for a formula gets a ' before it."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(_COLUMNS)
    for row in rows:
        table.writerow(_without_formula(value) for value in row_view(row).values())
    return out.getvalue()


def row_view(row: DayUsage) -> dict[str, Any]:
    return {"day": row.day.isoformat(), "tenant": row.tenant, **row.usage.as_mapping()}


def _without_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _start_of(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()


def _text(usage: Usage) -> str:
    return json.dumps(usage.as_mapping())


def _row(record: Record) -> DayUsage:
    try:
        usage = Usage.from_mapping(_mapping(record.value))
        return DayUsage(date.fromisoformat(record.id[:10]), record.group, usage)
    except (ValueError, TypeError) as exc:
        raise _RecordDamaged(f"the usage record {record.id!r} is damaged", remedy="delete it from the store") from exc


def _mapping(text: str) -> dict[str, Any]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not a mapping")
    return values
