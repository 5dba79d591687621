"""What every session store promises about quotas: they hold, however many come at once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from contract.store_values import S, a_key, a_session, added, ended, swapped

from warren.interfaces.store import NO_CAPS, Added, Caps, Held, SessionStore
from warren.model.errors import QuotaExceeded
from warren.model.session import Session


async def tried(store: SessionStore, caps: Caps, **values: Any) -> Session | None:
    """The session, if there was room for it."""
    try:
        return (await store.add(a_session(**values), None, caps))[0]
    except QuotaExceeded:
        return None


@pytest.mark.anyio
class StoreCapsContract:
    @pytest.fixture
    async def store(self) -> AsyncIterator[SessionStore]:
        raise NotImplementedError
        yield

    async def test_a_hundred_at_once_do_not_exceed_a_cap(self, store: SessionStore) -> None:
        made = await asyncio.gather(*(tried(store, Caps(sessions=7)) for _ in range(100)))
        assert sum(one is not None for one in made) == 7
        assert len(await store.active()) == 7

    async def test_what_is_refused_leaves_nothing(self, store: SessionStore) -> None:
        with pytest.raises(QuotaExceeded, match="may hold 0 sessions at once"):
            await store.add(a_session(thread_id="t"), a_key(), Caps(sessions=0))
        assert not await store.active()
        assert await store.of_thread("acme", "t") is None
        session = a_session(thread_id="t")
        assert await store.add(session, a_key()) == (session, Added.NEW)

    async def test_a_cap_is_for_one_tenant(self, store: SessionStore) -> None:
        await added(store, tenant="other")
        assert await tried(store, Caps(sessions=1)) is not None
        assert await tried(store, Caps(sessions=1)) is None

    async def test_only_sessions_with_a_sandbox_count(self, store: SessionStore) -> None:
        one, two = await added(store), await added(store)
        assert await tried(store, Caps(sessions=2)) is None
        await swapped(store, one, S.RUNNING, S.LOST)
        assert await tried(store, Caps(sessions=2)) is not None
        assert await tried(store, Caps(sessions=2)) is None
        await ended(store, two)
        assert await tried(store, Caps(sessions=2)) is not None

    async def test_disk_is_added_up(self, store: SessionStore) -> None:
        caps = Caps(disk_mb=100)
        assert await tried(store, caps, disk_mb=60) is not None
        assert await tried(store, caps, disk_mb=41) is None
        assert await tried(store, caps, disk_mb=40) is not None

    async def test_gpus_are_added_up(self, store: SessionStore) -> None:
        caps = Caps(gpus=3, key_gpus=2)
        assert await tried(store, caps, key_id="key_1", gpus=("any", "any")) is not None
        assert await tried(store, caps, key_id="key_1", gpus=("1",)) is None
        assert await tried(store, caps, key_id="key_2", gpus=("0", "1")) is None
        one = await tried(store, caps, key_id="key_2", gpus=("any",))
        assert one is not None
        assert await tried(store, Caps(gpus=3), gpus=("any",)) is None
        assert await tried(store, Caps(gpus=0)) is not None  # who wants none is not bound
        one = await swapped(store, replace(one, gpus=("7",)), S.RUNNING)
        assert await tried(store, caps, key_id="key_3", gpus=("any",)) is None
        await swapped(store, one, S.LOST)
        assert await tried(store, caps, key_id="key_3", gpus=("any",)) is not None

    async def test_what_is_held_can_be_read(self, store: SessionStore) -> None:
        assert await store.held("acme", "key_1") == (Held(0, 0), Held(0, 0))
        await tried(store, NO_CAPS, key_id="key_1", disk_mb=10, gpus=("0", "1"))
        last = await tried(store, NO_CAPS, key_id="key_2", disk_mb=5)
        await tried(store, NO_CAPS, key_id="key_1", disk_mb=7, tenant="other")
        assert await store.held("acme", "key_1") == (Held(2, 15, 2), Held(1, 10, 2))
        assert last is not None
        await ended(store, last)
        assert await store.held("acme", "key_2") == (Held(1, 10, 2), Held(0, 0))

    async def test_a_key_has_caps_of_its_own(self, store: SessionStore) -> None:
        caps = Caps(sessions=3, key_sessions=1, key_disk_mb=10)
        assert await tried(store, caps, key_id="key_1", disk_mb=10) is not None
        assert await tried(store, caps, key_id="key_1", disk_mb=0) is None
        assert await tried(store, caps, key_id="key_2", disk_mb=11) is None
        assert await tried(store, caps, key_id="key_2", disk_mb=10) is not None

    async def test_a_thread_that_has_its_session_gets_it_whatever_the_caps(self, store: SessionStore) -> None:
        held = await added(store, thread_id="t")
        assert await store.add(a_session(thread_id="t"), None, Caps(sessions=0)) == (held, Added.THREAD)

    async def test_a_known_key_gives_its_session_whatever_the_caps(self, store: SessionStore) -> None:
        held = await added(store, a_key())
        assert await store.add(a_session(), a_key(), Caps(sessions=0)) == (held, Added.KEY)

    async def test_paused_sessions_count_as_such_and_keep_their_disk_and_gpus(self, store: SessionStore) -> None:
        session = await added(store, key_id="key_1", disk_mb=10, gpus=("0",))
        await added(store, key_id="key_2", disk_mb=5)
        session = await swapped(store, session, S.RUNNING, S.PAUSED)
        assert await store.held("acme", "key_1") == (Held(1, 15, 1, 1), Held(0, 10, 1, 1))
        assert await tried(store, Caps(sessions=2)) is not None
        assert await tried(store, Caps(sessions=2)) is None
        assert await tried(store, Caps(disk_mb=15), disk_mb=1) is None
        lost = await swapped(store, session, S.LOST)
        assert await store.held("acme", "key_1") == (Held(2, 5), Held(0, 0))
        await swapped(store, lost, S.STOPPING, S.ENDED)
        asleep = await swapped(store, await added(store, key_id="key_1", disk_mb=10), S.RUNNING, S.PAUSED)
        asleep = await swapped(store, asleep, S.HIBERNATED, disk_mb=0)
        assert await store.held("acme", "key_1") == (Held(2, 5, 0, 1), Held(0, 0, 0, 1))
        with pytest.raises(QuotaExceeded):
            await store.swap(asleep.moved_to(S.CREATING, disk_mb=10), Caps(key_disk_mb=9))
        await swapped(store, asleep, S.CREATING, disk_mb=10)
        assert await store.held("acme", "key_1") == (Held(3, 15), Held(1, 10))

    async def test_a_hundred_changes_at_once_do_not_exceed_a_cap(self, store: SessionStore) -> None:
        running = [await swapped(store, await added(store, key_id=f"key_{n % 2}"), S.RUNNING) for n in range(100)]

        async def all_that_may(sessions: list[Session], to: S, caps: Caps) -> list[Session]:
            changed = [one.moved_to(to) for one in sessions]
            made = await asyncio.gather(*(store.swap(one, caps) for one in changed), return_exceptions=True)
            assert all(one is True or isinstance(one, QuotaExceeded) for one in made)
            return [one for one, done in zip(changed, made, strict=True) if done is True]

        paused = await all_that_may(running, S.PAUSED, Caps(paused_sessions=7, key_paused_sessions=4))
        assert len(paused) == 7
        assert max(sum(one.key_id == key for one in paused) for key in ("key_0", "key_1")) == 4
        assert len(await all_that_may(paused, S.RUNNING, Caps(sessions=96))) == 3
        held, _ = await store.held("acme", "")
        assert (held.sessions, held.paused_sessions) == (96, 4)

    async def test_only_what_takes_more_is_refused(self, store: SessionStore) -> None:
        full = Caps(sessions=0, disk_mb=0, paused_sessions=0, key_sessions=0, key_paused_sessions=0)
        session = await swapped(store, await added(store, disk_mb=9), S.RUNNING)
        session = await self._changed(store, session.changed(used=101.0), full)
        with pytest.raises(QuotaExceeded, match="may hold 0 paused sessions at once, and this would make 1"):
            await store.swap(session.moved_to(S.PAUSED), full)
        assert await store.get("acme", session.id) == session
        session = await self._changed(store, session.moved_to(S.PAUSED), Caps(disk_mb=0, paused_sessions=1))
        session = await self._changed(store, session.changed(used=102.0), full)
        with pytest.raises(QuotaExceeded, match="may hold 0 sessions at once"):
            await store.swap(session.moved_to(S.RUNNING), full)
        assert not await store.swap(replace(session, version=2), full)
        await self._changed(store, session.moved_to(S.LOST), full)

    async def _changed(self, store: SessionStore, session: Session, caps: Caps) -> Session:
        assert await store.swap(session, caps)
        return session
