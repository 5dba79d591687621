"""What every store of records promises (interfaces/records.py)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from contract.store_values import STRANGE

from warren.interfaces.records import Record
from warren.interfaces.store import SessionStore


def a_record(name: str = "one", **values: object) -> Record:
    return replace(Record("note", name, "text"), **values)  # type: ignore[arg-type]


@pytest.mark.anyio
class RecordsContract:
    @pytest.fixture
    async def store(self) -> AsyncIterator[SessionStore]:
        raise NotImplementedError
        yield

    async def test_a_record_comes_back_as_it_was_put(self, store: SessionStore) -> None:
        record = a_record(group="acme", due=12.5, value='{"a": "ü 🐇"}')
        assert await store.records.put(record)
        assert await store.records.get("note", "one") == record
        assert await store.records.get("other", "one") is None
        assert await store.records.get("note", "two") is None

    @pytest.mark.parametrize("text", STRANGE[:3], ids=ascii)
    async def test_strange_ids_and_groups_of_records_are_kept_exactly(self, store: SessionStore, text: str) -> None:
        record = a_record(text, group=text, value=text)
        assert await store.records.put(record)
        assert await store.records.get("note", text) == record
        assert list(await store.records.list("note", group=text)) == [record]

    async def test_a_new_record_does_not_replace_one_that_is_there(self, store: SessionStore) -> None:
        assert await store.records.put(a_record())
        assert not await store.records.put(a_record(value="other"))
        assert await store.records.get("note", "one") == a_record()

    async def test_a_change_counts_only_over_the_version_it_was_made_from(self, store: SessionStore) -> None:
        record = a_record()
        assert not await store.records.put(record.changed("of nothing"))
        assert await store.records.put(record)
        assert await store.records.put(record.changed("first", due=3.0))
        assert not await store.records.put(record.changed("second"))
        found = await store.records.get("note", "one")
        assert found == a_record(value="first", version=2, due=3.0)

    async def test_of_many_changes_at_once_one_counts(self, store: SessionStore) -> None:
        record = a_record()
        assert await store.records.put(record)
        puts = (store.records.put(record.changed(str(number))) for number in range(20))
        assert sum(await asyncio.gather(*puts)) == 1

    async def test_a_deleted_record_is_gone_and_may_come_again(self, store: SessionStore) -> None:
        assert await store.records.put(a_record(due=1.0))
        assert await store.records.delete("note", "one")
        assert not await store.records.delete("note", "one")
        assert await store.records.get("note", "one") is None
        assert not list(await store.records.due("note", 10, 10))
        assert await store.records.put(a_record())

    async def test_records_are_listed_by_id_in_pages(self, store: SessionStore) -> None:
        for name in ("b", "a", "ü", "c", "B"):
            assert await store.records.put(a_record(name, group="odd" if name in "ac" else "even"))
        assert await store.records.put(a_record("z", kind="other"))
        names = [one.id for one in await store.records.list("note")]
        assert names == ["B", "a", "b", "c", "ü"]
        assert [one.id for one in await store.records.list("note", after="a", limit=2)] == ["b", "c"]
        assert [one.id for one in await store.records.list("note", group="odd")] == ["a", "c"]
        assert list(await store.records.list("note", limit=0)) == []
        assert await store.records.count("note") == 5
        assert await store.records.count("note", group="even") == 3
        assert await store.records.count("nothing") == 0

    async def test_what_is_due_comes_longest_overdue_first(self, store: SessionStore) -> None:
        for name, due in (("late", 2.0), ("later", 1.0), ("soon", 9.0), ("never", None)):
            assert await store.records.put(a_record(name, due=due))
        assert [one.id for one in await store.records.due("note", 2.0, 10)] == ["later", "late"]
        assert [one.id for one in await store.records.due("note", 100.0, 1)] == ["later"]
        late = await store.records.get("note", "later")
        assert late is not None
        assert await store.records.put(late.changed("done"))
        assert [one.id for one in await store.records.due("note", 2.0, 10)] == ["late"]
