"""What tenants used is added up by day, kept, and given out as tables."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.governance.usage import FLUSH_S, MAX_SUMS, UsageBook, as_csv, day_of, row_view
from warren.interfaces.records import Record, RecordStore
from warren.model.errors import NoSpace, Unavailable
from warren.model.usage import NO_USAGE, DayUsage, Usage
from warren.stores.memory import MemoryRecords
from warren.stores.sqlite import SqliteStore
from warren.testing.manual_clock import ManualClock

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC).timestamp()
TODAY = date(2026, 3, 31)
TOMORROW = date(2026, 4, 1)
ONE = Usage(1, 2, 3.5, 4.5, 5.5, 6.5, 7, 8, 9, 10, 11)
EVER = (date(1970, 1, 2), date(9999, 12, 31))

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOON)


@pytest.fixture(params=["memory", "sqlite"])
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RecordStore]:
    if request.param == "memory":
        yield MemoryRecords()
        return
    store = await SqliteStore.open(tmp_path / "sessions.db")
    yield store.records
    await store.close()


class RefusingRecords(MemoryRecords):
    """A disk that is full until somebody makes room."""

    full = False

    async def put(self, record: Record) -> bool:
        if self.full:
            raise NoSpace("no space left")
        return await super().put(record)


class AwayRecords(MemoryRecords):
    """A store that does not answer until it is back."""

    away = False
    asked = 0

    async def get(self, kind: str, record_id: str) -> Record | None:
        self.asked += 1
        if self.away:
            raise Unavailable("the store does not answer")
        return await super().get(kind, record_id)


class BusyRecords(MemoryRecords):
    """Others have their turn before every change."""

    async def put(self, record: Record) -> bool:
        await asyncio.sleep(0)
        return await super().put(record)


async def test_what_is_added_is_found_on_its_day(records: RecordStore, clock: ManualClock) -> None:
    book = UsageBook(records, clock)
    for _ in range(3):
        book.add("acme", ONE)
    book.add("other", Usage(sessions=1))
    assert await book.between("acme", TODAY, TODAY) == [
        DayUsage(TODAY, "acme", Usage(3, 6, 10.5, 13.5, 16.5, 19.5, 21, 24, 27, 30, 33))
    ]
    assert [row.tenant for row in await book.between(None, TODAY, TODAY)] == ["acme", "other"]
    assert await book.between("nobody", *EVER) == []
    assert repr(book) == "<UsageBook: 0 sums to save>"


async def test_at_midnight_utc_a_new_day_begins(records: RecordStore, clock: ManualClock) -> None:
    book = UsageBook(records, clock)
    clock.set_wall(datetime(2026, 4, 1, tzinfo=UTC).timestamp() - 0.001)
    book.add("acme", ONE)
    clock.set_wall(datetime(2026, 4, 1, tzinfo=UTC).timestamp())
    book.add("acme", ONE.plus(ONE))
    rows = await book.between("acme", *EVER)
    assert [(row.day, row.usage.sessions) for row in rows] == [(TODAY, 1), (TOMORROW, 2)]
    assert [row.day for row in await book.between("acme", TOMORROW, TOMORROW)] == [TOMORROW]
    assert [row.day for row in await book.between(None, TODAY, TODAY)] == [TODAY]
    assert await book.between("acme", TOMORROW, TODAY) == []


async def test_two_books_add_to_the_same_day(records: RecordStore, clock: ManualClock) -> None:
    books = [UsageBook(records, clock) for _ in range(2)]
    for _ in range(20):
        for book in books:
            book.add("acme", Usage(commands=1))
        await asyncio.gather(*(book.flush() for book in books))
    (row,) = await books[0].between("acme", TODAY, TODAY)
    assert row.usage.commands == 40


async def test_nothing_is_lost_between_many_who_change_the_same_record(clock: ManualClock) -> None:
    records = BusyRecords()
    books = [UsageBook(records, clock) for _ in range(10)]
    for book in books:
        book.add("acme", ONE)
    await asyncio.gather(*(book.flush() for book in books))
    (row,) = await books[0].between("acme", TODAY, TODAY)
    assert row.usage.sessions == 10


async def test_what_was_kept_is_there_after_a_restart_and_added_to(tmp_path: Path, clock: ManualClock) -> None:
    for expected in (1, 2):
        store = await SqliteStore.open(tmp_path / "sessions.db")
        book = UsageBook(store.records, clock)
        book.add("acme", ONE)
        await book.close()
        (row,) = await book.between("acme", TODAY, TODAY)
        assert row.usage.sessions == expected
        await store.close()


async def test_it_is_kept_about_every_second(clock: ManualClock) -> None:
    records = MemoryRecords()
    book = UsageBook(records, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(book.run)
        await anyio.wait_all_tasks_blocked()
        book.add("acme", ONE)
        assert await records.count("usage") == 0
        await clock.advance(FLUSH_S)
        assert await records.count("usage") == 1
        tasks.cancel_scope.cancel()


async def test_what_a_full_disk_refuses_waits_and_is_kept_later(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    records = RefusingRecords()
    records.full = True
    book = UsageBook(records, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(book.run)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            book.add("acme", ONE)
            await clock.advance(FLUSH_S)
        assert [record.message for record in caplog.records] == ["usage_not_saved"]
        assert str(caplog.records[0].fields["error"]) == "no space left"
        assert repr(book) == "<UsageBook: 1 sums to save>"
        records.full = False
        await clock.advance(FLUSH_S)
        tasks.cancel_scope.cancel()
    (row,) = await book.between("acme", TODAY, TODAY)
    assert row.usage.sessions == 3


async def test_what_is_used_while_the_store_is_away_is_kept_when_it_is_back(clock: ManualClock) -> None:
    records = AwayRecords()
    book = UsageBook(records, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(book.run)
        await anyio.wait_all_tasks_blocked()
        records.away = True
        for _ in range(30):
            for tenant in ("acme", "other", "third"):
                book.add(tenant, ONE)
            await clock.advance(FLUSH_S)
        assert records.asked == 30  # who waits for the first does not wait for each of the others
        assert repr(book) == "<UsageBook: 3 sums to save>"
        records.away = False
        await clock.advance(FLUSH_S)
        tasks.cancel_scope.cancel()
    rows = await book.between(None, TODAY, TODAY)
    assert [(row.tenant, row.usage.sessions) for row in rows] == [("acme", 30), ("other", 30), ("third", 30)]


async def test_what_waits_is_bounded(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    book = UsageBook(MemoryRecords(), clock)
    for number in range(MAX_SUMS + 5):
        book.add(str(number), ONE)
    book.add("0", ONE)
    assert repr(book) == f"<UsageBook: {MAX_SUMS} sums to save>"
    assert len(caplog.records) == 1


async def test_what_cannot_be_kept_at_the_end_is_told(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    records = RefusingRecords()
    records.full = True
    book = UsageBook(records, clock)
    book.add("acme", ONE)
    await book.close()
    assert [(record.message, record.fields["sums"]) for record in caplog.records] == [("usage_lost", 1)]


async def test_a_cancelled_flush_neither_loses_nor_doubles(clock: ManualClock) -> None:
    book = UsageBook(BusyRecords(), clock)
    for number in range(50):
        book.add(f"tenant{number}", ONE)
    flush = asyncio.ensure_future(book.flush())
    await asyncio.sleep(0)
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    rows = await book.between(None, TODAY, TODAY)
    assert [row.usage for row in rows] == [ONE] * 50


async def test_days_that_are_too_old_are_deleted(clock: ManualClock) -> None:
    records = MemoryRecords()
    book = UsageBook(records, clock, keep_days=10)
    for day in range(30):
        clock.set_wall(NOON + day * 86400)
        for tenant in ("acme", "other"):
            book.add(tenant, ONE)
    await book.flush()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(book.run)
        await anyio.wait_all_tasks_blocked()
        await clock.advance(FLUSH_S)
        tasks.cancel_scope.cancel()
    today = day_of(clock.wall())
    rows = await book.between("acme", *EVER)
    assert [(today - row.day).days for row in rows] == list(range(10, -1, -1))
    assert await records.count("usage") == 22


async def test_more_than_a_page_of_rows_comes_whole_and_in_order(records: RecordStore, clock: ManualClock) -> None:
    book = UsageBook(records, clock)
    for number in range(1201):
        book.add(f"t{number:04}", ONE)
    rows = await book.between(None, TODAY, TODAY)
    assert [row.tenant for row in rows] == [f"t{number:04}" for number in range(1201)]


async def test_tenants_names_do_not_run_into_each_other(records: RecordStore, clock: ManualClock) -> None:
    book = UsageBook(records, clock)
    names = ["a", "a.b", "a-b", "a_b", "A", "2026-03-31", "a/b", "*"]
    for number, name in enumerate(names, 1):
        book.add(name, Usage(sessions=number))
    for number, name in enumerate(names, 1):
        (row,) = await book.between(name, *EVER)
        assert (row.tenant, row.usage.sessions) == (name, number)


@pytest.mark.parametrize("value", ["", "{", "[]", '{"sessions": "x"}', '{"sessions": -1}', '{"cpu_s": NaN}'])
async def test_a_damaged_record_is_named(clock: ManualClock, value: str) -> None:
    records = MemoryRecords()
    await records.put(Record("usage", "2026-03-31/acme", value, group="acme"))
    book = UsageBook(records, clock)
    with pytest.raises(Unavailable, match="2026-03-31/acme"):
        await book.between("acme", TODAY, TODAY)


async def test_a_damaged_record_does_not_keep_others_from_being_counted(clock: ManualClock) -> None:
    records = MemoryRecords()
    await records.put(Record("usage", "2026-03-31/acme", "{", group="acme"))
    book = UsageBook(records, clock)
    book.add("acme", ONE)
    book.add("other", ONE)
    with pytest.raises(Unavailable):
        await book.flush()
    assert await records.get("usage", "2026-03-31/other") is not None
    assert repr(book) == "<UsageBook: 1 sums to save>"


@pytest.mark.parametrize("figure", [-1, -0.5, float("nan"), float("inf")])
async def test_a_figure_that_is_none_is_refused(figure: float) -> None:
    with pytest.raises(ValueError, match="must be a number, 0 or more"):
        Usage(cpu_s=figure)


_usages = st.builds(Usage, *[st.integers(0, 10**15)] * 8)


@given(_usages, _usages)
def test_adding_is_the_same_either_way_round(one: Usage, other: Usage) -> None:
    assert one.plus(other) == other.plus(one)
    assert one.plus(NO_USAGE) == one
    assert Usage.from_mapping(one.as_mapping()) == one


def test_figures_of_other_versions_are_read() -> None:
    assert Usage.from_mapping({"sessions": 2, "gpu_s": 5}) == Usage(sessions=2)


def test_the_table_has_a_line_of_names_and_one_for_each_row() -> None:
    assert as_csv([DayUsage(TODAY, "acme", ONE)]) == (
        "day,tenant,sessions,commands,cpu_s,memory_mb_s,session_s,exec_s,bytes_in,bytes_out,"
        "egress_bytes,egress_connections,egress_refused\r\n"
        "2026-03-31,acme,1,2,3.5,4.5,5.5,6.5,7,8,9,10,11\r\n"
    )
    assert row_view(DayUsage(TODAY, "acme", ONE)) == {"day": "2026-03-31", "tenant": "acme", **ONE.as_mapping()}


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("x")'])
def test_a_name_cannot_become_a_formula(name: str) -> None:
    ((_, tenant, *_),) = list(csv.reader(io.StringIO(as_csv([DayUsage(TODAY, name, ONE)]), newline="")))[1:]
    assert tenant == f"'{name}"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_whatever_a_name_holds_it_stays_in_its_cell(name: str) -> None:
    rows = list(csv.reader(io.StringIO(as_csv([DayUsage(TODAY, name, ONE)]), newline="")))
    assert len(rows) == 2
    assert rows[1][1].removeprefix("'") == name.removeprefix("'")
    assert rows[1][2:] == ["1", "2", "3.5", "4.5", "5.5", "6.5", "7", "8", "9", "10", "11"]
