"""What every session store promises (interfaces/store.py), as tests with sentences for names.

A store's own test module subclasses `StoreContract` and gives it a `store` fixture; a store that outlives its
process also subclasses `DurableStoreContract` and says how a new process would open it (`reopened`).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from contract.records_contract import RecordsContract
from contract.store_caps_contract import StoreCapsContract
from contract.store_keys_contract import StoreKeysContract
from contract.store_values import (
    ACTIVE,
    ALL,
    EPOCH,
    STRANGE,
    S,
    a_full_session,
    a_key,
    a_session,
    added,
    ended,
    swapped,
)

from warren.interfaces.store import Added, KeyRecord, Page, SessionStore
from warren.model.access import ANY_TENANT
from warren.model.errors import Conflict
from warren.model.preview import PreviewRules
from warren.model.session import Session, SessionState


@pytest.mark.anyio
class StoreContract(StoreKeysContract, StoreCapsContract, RecordsContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[SessionStore]:
        raise NotImplementedError
        yield

    # Sessions.

    async def test_a_session_comes_back_with_every_field(self, store: SessionStore) -> None:
        session = a_full_session()
        assert await store.add(session) == (session, Added.NEW)
        assert await store.get("acme", session.id) == session

    async def test_a_session_of_defaults_comes_back_as_it_was(self, store: SessionStore) -> None:
        session = await added(store)
        assert await store.get("acme", session.id) == session

    @pytest.mark.parametrize("text", STRANGE, ids=ascii)
    async def test_strange_text_is_kept_exactly(self, store: SessionStore, text: str) -> None:
        values = {"tenant": text, "thread_id": text, "environment": text, "env": {"A": text}, "detail": text}
        session = await added(store, key=a_key(text, tenant=text, fingerprint=text), **values)
        assert await store.get(text, session.id) == session
        assert await store.of_thread(text, text) == session
        page = Page(thread_id=text, environment=text)
        assert list(await store.list(text, page)) == [session]

    async def test_text_that_only_looks_alike_is_not_mixed_up(self, store: SessionStore) -> None:
        threads = ("é", "e\u0301", "E", "e", "\U0001f407", "\ud83d\udc07", "1", "1.0", " 1", "%", "_")
        sessions = [await added(store, thread_id=text) for text in threads]
        for text, session in zip(threads, sessions, strict=True):
            assert await store.of_thread("acme", text) == session

    async def test_every_change_gives_another_revision_if_it_tells_one(self, store: SessionStore) -> None:
        seen = [store.revision]
        session = await added(store)
        seen.append(store.revision)
        after = await ended(store, session)
        seen.append(store.revision)
        assert await store.get("acme", session.id) == after
        assert store.revision == seen[-1]
        await store.purge("another epoch", 0)
        seen.append(store.revision)
        assert len({*seen}) == len(seen) or {*seen} == {None}

    async def test_another_tenant_does_not_see_a_session(self, store: SessionStore) -> None:
        session = await added(store, thread_id="t")
        assert await store.get("other", session.id) is None
        assert await store.of_thread("other", "t") is None
        assert not await store.list("other", Page(states=ALL))
        assert not await store.swap(replace(session, tenant="other", version=2))

    async def test_what_is_unknown_is_not_found(self, store: SessionStore) -> None:
        for text in ("", "ses_none", "\ud800"):
            assert await store.get("acme", text) is None
            assert await store.of_thread("acme", text) is None

    async def test_an_id_is_never_given_twice(self, store: SessionStore) -> None:
        session = await added(store)
        with pytest.raises(Conflict):
            await store.add(replace(session, tenant="other", detail="another"))
        assert await store.get("acme", session.id) == session

    # Threads.

    @pytest.mark.parametrize("state", ACTIVE)
    async def test_a_thread_with_an_active_session_gives_that_one(
        self, store: SessionStore, state: SessionState
    ) -> None:
        session = await added(store, thread_id="t", state=state)
        late = a_session(thread_id="t")
        assert await store.add(late) == (session, Added.THREAD)
        assert await store.get("acme", late.id) is None

    async def test_an_ended_session_does_not_hold_the_thread(self, store: SessionStore) -> None:
        first = await ended(store, await added(store, thread_id="t"))
        assert await store.of_thread("acme", "t") == first
        second = await added(store, thread_id="t")
        assert await store.of_thread("acme", "t") == second

    async def test_threads_are_apart_by_tenant_and_sessions_without_a_thread_too(self, store: SessionStore) -> None:
        for tenant, thread_id in (("acme", "t"), ("other", "t"), ("acme", ""), ("acme", ""), ("acmet", "")):
            await added(store, tenant=tenant, thread_id=thread_id)
        assert len(await store.active()) == 5
        assert await store.of_thread("acme", "") is None

    async def test_a_hundred_adds_of_a_thread_at_once_make_one_session(self, store: SessionStore) -> None:
        answers = await asyncio.gather(*(store.add(a_session(thread_id="t")) for _ in range(100)))
        assert [which for _, which in answers].count(Added.NEW) == 1
        assert len({session.id for session, _ in answers}) == 1
        assert len(await store.active()) == 1

    async def test_a_thread_that_is_over_gives_its_newest_session(self, store: SessionStore) -> None:
        made = {}
        for created_at in (5.0, 9.0, 9.0, 7.0):
            session = await ended(store, await added(store, thread_id="t", created_at=created_at))
            made[created_at, session.id] = session
        assert await store.of_thread("acme", "t") == made[max(made)]

    async def test_the_active_session_of_a_thread_comes_before_a_newer_ended_one(self, store: SessionStore) -> None:
        await ended(store, await added(store, thread_id="t", created_at=9.0))
        older = await added(store, thread_id="t", created_at=5.0)
        assert await store.of_thread("acme", "t") == older

    # Changes.

    async def test_a_change_is_stored(self, store: SessionStore) -> None:
        session = await swapped(store, await added(store), S.RUNNING, sandbox_id="sb_1", worker="local")
        assert await store.get("acme", session.id) == session
        touched = await swapped(store, session, S.RUNNING, used=150.0)
        assert await store.get("acme", session.id) == touched

    async def test_a_change_made_from_an_old_version_is_not_stored(self, store: SessionStore) -> None:
        first = await added(store)
        second = await swapped(store, first, S.RUNNING)
        assert not await store.swap(first.moved_to(S.STOPPING))
        assert not await store.swap(second)
        assert not await store.swap(replace(second, version=4))
        assert await store.get("acme", first.id) == second

    async def test_a_change_of_an_unknown_session_is_not_stored(self, store: SessionStore) -> None:
        session = a_session(version=2)
        assert not await store.swap(session)
        assert not await store.swap(replace(session, version=1))
        assert await store.get("acme", session.id) is None

    @pytest.mark.parametrize("state", [S.RUNNING, S.STOPPING])
    async def test_of_fifty_changes_at_once_one_wins(self, store: SessionStore, state: SessionState) -> None:
        session = await added(store, state=S.RUNNING)
        changes = [session.moved_to(state, detail=str(number)) for number in range(50)]
        won = await asyncio.gather(*(store.swap(change) for change in changes))
        assert won.count(True) == 1
        assert await store.get("acme", session.id) == changes[won.index(True)]

    # Lists.

    async def test_a_list_is_newest_first_then_by_id(self, store: SessionStore) -> None:
        made = [await added(store, created_at=at) for at in (3.0, 1.0, 2.0, 2.0, 2.0)]
        wanted = sorted(made, key=lambda one: (one.created_at, one.id), reverse=True)
        assert list(await store.list("acme", Page())) == wanted

    @pytest.mark.parametrize("limit", [1, 2, 7, 30])
    async def test_paging_gives_everything_once(self, store: SessionStore, limit: int) -> None:
        made = [
            await added(store, created_at=float(number // 3), metadata={"odd": str(number % 2)}) for number in range(25)
        ]
        for metadata, wanted in (({}, made), ({"odd": "1"}, made[1::2])):
            seen: list[Session] = []
            while found := await store.list(
                "acme", Page(metadata=metadata, limit=limit, after=seen[-1].id if seen else "")
            ):
                seen += found
                assert len(found) <= limit
                assert len(seen) <= len(made)
            assert seen == sorted(wanted, key=lambda one: (one.created_at, one.id), reverse=True)

    async def test_a_page_goes_on_after_a_session_that_is_no_longer_on_it(self, store: SessionStore) -> None:
        made = [await added(store, created_at=float(number)) for number in range(3)]
        await ended(store, made[1])
        assert list(await store.list("acme", Page(after=made[1].id))) == [made[0]]

    async def test_a_page_after_an_unknown_id_is_empty(self, store: SessionStore) -> None:
        await added(store)
        foreign = await added(store, tenant="other", created_at=2e9)
        for after in ("ses_none", foreign.id, "\ud800"):
            assert not await store.list("acme", Page(after=after))

    async def test_a_page_of_none_is_empty(self, store: SessionStore) -> None:
        await added(store)
        assert not await store.list("acme", Page(limit=0))
        assert not await store.list("acme", Page(states=frozenset()))

    async def test_a_list_is_filtered_by_state(self, store: SessionStore) -> None:
        made = {state: await added(store, state=state) for state in ACTIVE}
        made[S.ENDED] = await ended(store, await added(store))
        for state, session in made.items():
            assert list(await store.list("acme", Page(states=frozenset({state})))) == [session]
        assert {one.id for one in await store.list("acme", Page())} == {made[state].id for state in ACTIVE}
        assert len(await store.list("acme", Page(states=ALL))) == len(ALL)

    async def test_a_list_is_filtered_by_thread_and_environment(self, store: SessionStore) -> None:
        one = await added(store, thread_id="a", environment="x")
        two = await added(store, thread_id="b", environment="x")
        old = await ended(store, await added(store, thread_id="c", environment="y"))
        new = await added(store, thread_id="c", environment="y", created_at=2e9)
        assert list(await store.list("acme", Page(thread_id="a"))) == [one]
        assert {found.id for found in await store.list("acme", Page(environment="x"))} == {one.id, two.id}
        assert list(await store.list("acme", Page(thread_id="c"))) == [new]
        assert list(await store.list("acme", Page(thread_id="c", states=ALL))) == [new, old]
        assert not await store.list("acme", Page(thread_id="a", environment="y"))

    async def test_a_list_is_filtered_by_place_and_by_text(self, store: SessionStore) -> None:
        one = await added(store, thread_id="Ärger-1", worker="w1", provider="oci", created_at=2.0)
        two = await added(store, metadata={"User": "Zoë"}, worker="w2", provider="oci", created_at=1.0)
        assert list(await store.list("acme", Page(provider="oci"))) == [one, two]
        assert list(await store.list("acme", Page(provider="oci", worker="w2"))) == [two]
        for text, found in (("ärger", one), ("ZOË", two), ("user", two), (one.id[-9:], one)):
            assert list(await store.list("acme", Page(search=text))) == [found]
        assert list(await store.list("acme", Page(search="ses_", limit=1, after=one.id))) == [two]
        assert not await store.list("acme", Page(search="nowhere"))

    @pytest.mark.parametrize("limit", [1, 3, 100])
    async def test_operators_list_the_active_sessions_of_all_tenants(self, store: SessionStore, limit: int) -> None:
        made = [await added(store, tenant=f"t{number % 3}", created_at=float(number // 2)) for number in range(9)]
        await ended(store, await added(store))
        seen: list[Session] = []
        while found := await store.list(ANY_TENANT, Page(limit=limit, after=seen[-1].id if seen else "")):
            seen += found
            assert len(found) <= limit
        assert seen == sorted(made, key=lambda one: (one.created_at, one.id), reverse=True)
        gone = await ended(store, made[5])
        assert gone.id not in {one.id for one in await store.list(ANY_TENANT, Page())}
        assert len(await store.list(ANY_TENANT, Page(after=gone.id))) < len(made) - 1

    async def test_a_list_is_filtered_by_all_of_the_metadata(self, store: SessionStore) -> None:
        both = await added(store, metadata={"a": "1", "b": "2"}, created_at=3.0)
        one = await added(store, metadata={"a": "1"}, created_at=2.0)
        await added(store, env={"a": "1"}, metadata={"b": '"a":"1"', "c": "a"}, image="1")
        assert list(await store.list("acme", Page(metadata={"a": "1"}))) == [both, one]
        assert list(await store.list("acme", Page(metadata={"a": "1", "b": "2"}))) == [both]
        assert not await store.list("acme", Page(metadata={"a": "2"}))
        assert not await store.list("acme", Page(metadata={"A": "1"}))

    @pytest.mark.parametrize("text", STRANGE, ids=ascii)
    async def test_metadata_with_strange_text_is_found(self, store: SessionStore, text: str) -> None:
        session = await added(store, metadata={text: text})
        await added(store, metadata={text: "x", "x": text})
        assert list(await store.list("acme", Page(metadata={text: text}))) == [session]

    async def test_active_are_all_that_have_not_ended(self, store: SessionStore) -> None:
        made = {(await added(store, state=state, tenant=f"tenant-{state}")).id for state in ACTIVE}
        await ended(store, await added(store))
        assert {one.id for one in await store.active()} == made == set(await store.active_ids())

    async def test_due_are_those_whose_deadline_has_passed_the_longest_overdue_first(self, store: SessionStore) -> None:
        made = [
            await added(store, idle_timeout_s=50.0, tenant="other", state=S.RUNNING),
            await added(store, idle_timeout_s=40.0, state=S.LOST),
            await added(store, max_lifetime_s=45.0, state=S.RUNNING),
            await added(store, started=-900.0),
            await added(store, idle_timeout_s=60.0, state=S.RUNNING),
        ]
        made.sort(key=lambda one: one.deadline)
        now = made[3].deadline
        assert list(await store.due(now, 10)) == made[:4]
        assert list(await store.due(now, 2)) == made[:2]
        assert not await store.due(made[0].deadline - 0.1, 10)
        assert not await store.due(now, 0)

    async def test_what_is_stopping_or_ended_is_not_due(self, store: SessionStore) -> None:
        await swapped(store, await added(store), S.STOPPING)
        await ended(store, await added(store))
        assert not await store.due(1e9, 10)

    async def test_a_change_moves_the_deadline(self, store: SessionStore) -> None:
        first = await added(store)
        running = await swapped(store, first, S.RUNNING, idle_timeout_s=50.0)
        assert list(await store.due(running.deadline, 10)) == [running]
        touched = await swapped(store, running, S.RUNNING, used=140.0)
        assert not await store.due(running.deadline, 10)
        assert list(await store.due(touched.deadline, 10)) == [touched]

    async def test_count_says_how_many_there_are_in_each_state(self, store: SessionStore) -> None:
        assert await store.count() == dict.fromkeys(S, 0)
        for number, state in enumerate(ACTIVE):
            for _ in range(number):
                await added(store, state=state, tenant=f"tenant-{number}")
        await ended(store, await added(store))
        assert await store.count() == {**{state: number for number, state in enumerate(ACTIVE)}, S.ENDED: 1}

    # Forgetting.

    async def test_purge_forgets_what_ended_before_a_time_and_says_how_many(self, store: SessionStore) -> None:
        old = [await ended(store, await added(store, thread_id=f"{at}"), ended=at) for at in (10.0, 20.0)]
        kept = await ended(store, await added(store), ended=30.0)
        running = await added(store, used=1.0, started=1.0)
        assert await store.purge(EPOCH, 30.0) == 2
        assert [await store.get("acme", one.id) for one in (*old, kept, running)] == [None, None, kept, running]
        assert await store.of_thread("acme", "10.0") is None
        assert await store.purge(EPOCH, 30.0) == 0

    async def test_the_server_finds_a_session_of_any_tenant_with_its_previews(self, store: SessionStore) -> None:
        one = await added(store)
        changed = one.changed(previews=PreviewRules(2, (3000,), (8888,), everything=True)) if one.state.can_run else one
        if changed is not one:
            assert await store.swap(changed)
        assert await store.find(one.id) == changed == await store.get("acme", one.id)
        assert await store.find("ses_nothing") is None

    async def test_purge_forgets_what_ended_in_another_epoch(self, store: SessionStore) -> None:
        for epoch in ("a", EPOCH, "z"):
            await ended(store, await added(store, epoch=epoch))
        running = await added(store, epoch="a")
        assert await store.purge(EPOCH, 0.0) == 2
        assert len(await store.list("acme", Page(states=ALL))) == 2
        assert await store.get("acme", running.id) == running


@pytest.mark.anyio
class DurableStoreContract:
    """The first store is not closed: its process was killed."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[SessionStore]:
        raise NotImplementedError
        yield

    async def reopened(self, store: SessionStore) -> SessionStore:
        """The same store as a new process would open it. The test's fixture closes it."""
        raise NotImplementedError

    async def test_sessions_are_there_after_a_restart(self, store: SessionStore) -> None:
        full = a_full_session()
        await store.add(full)
        running = await swapped(store, await added(store), S.RUNNING, used=150.0, sandbox_id="sb_1")
        over = await ended(store, await added(store, thread_id="over"))
        again = await self.reopened(store)
        for session in (full, running, over):
            assert await again.get("acme", session.id) == session
        assert await again.of_thread("acme", "over") == over
        assert await again.count() == await store.count()

    async def test_keys_are_there_after_a_restart(self, store: SessionStore) -> None:
        session = await added(store, a_key())
        await store.claim_key(a_key("asked", scope=session.id), EPOCH, 1.0)
        await store.claim_key(a_key("answered", scope=session.id), EPOCH, 1.0)
        await store.answer_key(a_key("answered", scope=session.id), "42")
        again = await self.reopened(store)
        assert await again.add(a_session(), a_key()) == (session, Added.KEY)
        assert await again.claim_key(a_key("asked", scope=session.id), EPOCH, 2.0) == KeyRecord("one")
        assert await again.claim_key(a_key("answered", scope=session.id), EPOCH, 2.0) == KeyRecord("one", "42")

    async def test_what_was_forgotten_stays_forgotten_after_a_restart(self, store: SessionStore) -> None:
        session = await ended(store, await added(store, a_key()), ended=1.0)
        await store.claim_key(a_key("asked", scope=session.id), EPOCH, 1.0)
        await store.purge(EPOCH, 2.0)
        again = await self.reopened(store)
        assert await again.get("acme", session.id) is None
        assert await again.claim_key(a_key("asked", scope=session.id), EPOCH, 3.0) is None
        await added(again, a_key())

    async def test_two_that_share_it_agree(self, store: SessionStore) -> None:
        other = await self.reopened(store)
        answers = await asyncio.gather(*(one.add(a_session(thread_id="t")) for one in (store, other) * 20))
        assert [which for _, which in answers].count(Added.NEW) == 1
        session = answers[0][0]
        changes = [session.moved_to(S.RUNNING, detail=str(number)) for number in range(2)]
        won = await asyncio.gather(store.swap(changes[0]), other.swap(changes[1]))
        assert sorted(won) == [False, True]
        claims = await asyncio.gather(*(one.claim_key(a_key(), EPOCH, 1.0) for one in (store, other) * 20))
        assert claims.count(None) == 1
