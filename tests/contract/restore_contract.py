"""What a store promises that gets rows back from workers (`SharedStore` in stores/mirrored.py), as tests."""

from collections.abc import AsyncIterator

import pytest
from contract.store_values import ALL, S, a_full_session, a_session, added, ended, swapped

from warren.interfaces.store import Caps, Page
from warren.model.errors import QuotaExceeded
from warren.stores.mirrored import SharedStore


@pytest.mark.anyio
class RestoreContract:
    @pytest.fixture
    async def store(self) -> AsyncIterator[SharedStore]:
        raise NotImplementedError
        yield

    async def test_what_is_missing_is_there_again_with_every_field(self, store: SharedStore) -> None:
        session = a_full_session()
        assert await store.restore(session)
        assert await store.get("acme", session.id) == session
        assert await store.of_thread("acme", "t") == session
        assert list(await store.list("acme", Page())) == [session]
        assert list(await store.active()) == [session]
        assert (await store.count())[S.LOST] == 1

    async def test_it_can_be_changed_and_ended_like_any_other(self, store: SharedStore) -> None:
        session = a_session(state=S.RUNNING, version=5, thread_id="t")
        assert await store.restore(session)
        assert list(await store.due(session.deadline, 10)) == [session]
        over = await ended(store, await swapped(store, session, S.RUNNING, used=150.0))
        assert not await store.active()
        assert await store.of_thread("acme", "t") == over
        again = await added(store, thread_id="t")
        assert await store.of_thread("acme", "t") == again

    async def test_what_is_older_is_replaced_and_found_in_one_place_only(self, store: SharedStore) -> None:
        old = await added(store, thread_id="t", disk_mb=5)
        mine = old.moved_to(S.RUNNING, used=150.0).changed(disk_mb=7)
        assert await store.restore(mine)
        assert await store.get("acme", old.id) == mine
        assert list(await store.list("acme", Page(states=ALL))) == [mine]
        assert await store.count() == {**dict.fromkeys(S, 0), S.RUNNING: 1}

    @pytest.mark.parametrize("state", [S.RUNNING, S.LOST, S.STOPPING])
    async def test_what_is_as_new_or_newer_stays(self, store: SharedStore, state: S) -> None:
        mine = await swapped(store, await added(store), S.RUNNING)
        theirs = await swapped(store, mine, state, detail="theirs")
        assert not await store.restore(mine)
        assert not await store.restore(mine.changed(detail="mine"))
        assert await store.get("acme", mine.id) == theirs

    async def test_what_has_ended_does_not_come_back(self, store: SharedStore) -> None:
        mine = await swapped(store, await added(store, thread_id="t"), S.RUNNING)
        over = await ended(store, mine)
        assert not await store.restore(mine)
        assert await store.get("acme", mine.id) == over
        assert not await store.active()

    async def test_a_thread_that_has_another_session_keeps_it(self, store: SharedStore) -> None:
        newer = await added(store, thread_id="t")
        mine = a_session(thread_id="t", state=S.RUNNING, version=9)
        assert not await store.restore(mine)
        assert await store.get("acme", mine.id) is None
        assert await store.of_thread("acme", "t") == newer
        assert list(await store.active()) == [newer]
        assert await store.restore(a_session(thread_id="t", tenant="other", state=S.RUNNING))

    async def test_it_is_held_against_the_quota_once(self, store: SharedStore) -> None:
        mine = a_session(state=S.RUNNING, version=3, disk_mb=5)
        assert await store.restore(mine)
        assert await store.restore(mine.changed(used=150.0))
        with pytest.raises(QuotaExceeded, match="this would make 2"):
            await store.add(a_session(), None, Caps(sessions=1))
        await store.add(a_session(disk_mb=5), None, Caps(sessions=2, disk_mb=10))
