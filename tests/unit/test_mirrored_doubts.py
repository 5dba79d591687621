"""Changes that were made in the shared store while nobody could tell: they are found out, and seen to."""

import asyncio
from dataclasses import replace

import pytest
from contract.store_values import S, a_session
from unit.restoring_store import RestoringStore
from unit.session_world import TENANT, world

from warren.interfaces.records import Record
from warren.interfaces.store import NO_CAPS, Added, Caps, Key
from warren.model.errors import Misdirected, SessionEnded, Unavailable
from warren.model.session import EndReason, Session
from warren.sessions.new_session import NewSession
from warren.stores.memory import MemoryRecords
from warren.stores.mirrored import MirroredStore

pytestmark = pytest.mark.anyio


class Shared(RestoringStore):
    """`loses`: the next changes are made, or not, and nobody hears of it. `silent_until`: that takes as long."""

    loses = False
    makes = True
    silent_until: asyncio.Event | None = None

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        if not self.loses:
            return await super().add(session, key, caps)
        if self.makes:
            await super().add(session, key, caps)
        raise Unavailable("Redis is away")

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        if not self.loses:
            return await super().swap(session, caps)
        if self.makes:
            await super().swap(session, caps)
        if self.silent_until is not None:
            await self.silent_until.wait()
        raise Unavailable("Redis is away")


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def store(shared: Shared) -> MirroredStore:
    return MirroredStore(shared, MemoryRecords(), "w")


async def running(store: MirroredStore) -> Session:
    session, _ = await store.add(a_session(worker="w", thread_id="t", idle_timeout_s=1000.0))
    run = session.moved_to(S.RUNNING, sandbox_id="box")
    assert await store.swap(run)
    return run


async def turned_out(store: MirroredStore) -> list[Session]:
    """What is due a while after it is first looked for."""
    assert await store.due(100.0, 100) == []
    return list(await store.due(110.0, 100))


async def test_a_session_that_was_added_unheard_is_due(store: MirroredStore, shared: Shared) -> None:
    shared.loses = True
    with pytest.raises(Unavailable):
        await store.add(a_session(worker="w"))
    shared.loses = False
    [found] = await turned_out(store)
    assert found.state is S.CREATING
    assert found in store.own()
    assert await store.due(120.0, 100) == []


async def test_what_was_not_made_is_forgotten(store: MirroredStore, shared: Shared) -> None:
    session = await running(store)
    shared.loses, shared.makes = True, False
    for change in (session.moved_to(S.STOPPING, reason=EndReason.DELETED), session.changed(used=200.0)):
        with pytest.raises(Unavailable):
            await store.swap(change)
    with pytest.raises(Unavailable):
        await store.add(a_session(worker="w"))
    shared.loses = False
    assert await turned_out(store) == []
    assert list(store.own()) == [session]
    assert await store.get(session.tenant, session.id) == session


async def test_an_end_that_was_written_unheard_is_due_and_nobody_is_given_the_session_meanwhile(
    store: MirroredStore, shared: Shared
) -> None:
    session = await running(store)
    stopping = session.moved_to(S.STOPPING, reason=EndReason.DELETED)
    shared.loses = True
    with pytest.raises(Unavailable):
        await store.swap(stopping)
    shared.loses, shared.away = False, True
    with pytest.raises(Unavailable, match="was ended is not known"):
        await store.get(session.tenant, session.id)
    with pytest.raises(Unavailable, match="was ended is not known"):
        await store.of_thread(session.tenant, "t")
    assert await turned_out(store) == []
    shared.away = False
    assert await store.due(110.0, 100) == [stopping]
    assert await store.get(session.tenant, session.id) == stopping


async def test_what_comparing_has_brought_to_light_is_due_all_the_same(store: MirroredStore, shared: Shared) -> None:
    session = await running(store)
    stopping = session.moved_to(S.STOPPING, reason=EndReason.DELETED)
    shared.loses = True
    with pytest.raises(Unavailable):
        await store.swap(stopping)
    shared.loses = False
    await store.reconcile()
    assert await turned_out(store) == [stopping]


async def test_a_caller_that_goes_away_over_a_change_leaves_a_doubt(store: MirroredStore, shared: Shared) -> None:
    adding = asyncio.ensure_future(store.add(a_session(worker="w")))
    adding.cancel()
    await asyncio.wait([adding])
    assert await turned_out(store) == []


async def test_a_session_whose_start_was_written_unheard_and_failed_is_given_to_nobody(shared: Shared) -> None:
    def fault(step: str) -> None:
        shared.loses = shared.loses or step == "claimed"

    async with world(store=MirroredStore(shared, MemoryRecords(), "local"), fault=fault) as w:
        with pytest.raises(Unavailable):
            await w.sessions.create(TENANT, NewSession(thread_id="conv"))
        shared.loses, w.fault = False, lambda step: None
        [row] = await shared.active()
        assert row.state is S.RUNNING
        await w.lifecycle.losses.check_sandbox(row)
        with pytest.raises(Unavailable, match="could not be made"):
            await w.sessions.create(TENANT, NewSession(thread_id="conv"))
        await w.lifecycle.wait_for_tasks()
        ended = await w.session(row)
        assert (ended.state, ended.reason) == (S.ENDED, EndReason.FAILED)
        assert (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).created


async def test_a_session_that_is_running_in_the_store_alone_is_waited_for(shared: Shared) -> None:
    claimed = asyncio.Event()

    def fault(step: str) -> None:
        if step == "claimed" and not claimed.is_set():
            shared.loses, shared.silent_until = True, asyncio.Event()
            claimed.set()

    async with world(store=MirroredStore(shared, MemoryRecords(), "local"), fault=fault) as w:
        first = asyncio.ensure_future(w.sessions.create(TENANT, NewSession(thread_id="conv")))
        await claimed.wait()
        await asyncio.sleep(0)
        assert [row.state for row in await shared.active()] == [S.RUNNING]
        shared.loses = False
        second = asyncio.ensure_future(w.sessions.create(TENANT, NewSession(thread_id="conv")))
        done, _ = await asyncio.wait([second], timeout=0.05)
        assert not done
        assert shared.silent_until is not None
        shared.silent_until.set()
        for one in (first, second):
            with pytest.raises(Unavailable):
                await one
        assert (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).created


async def test_a_session_that_ended_while_it_was_waited_for_is_given_to_nobody(shared: Shared) -> None:
    async with world(store=MirroredStore(shared, MemoryRecords(), "local")) as w:
        running = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session

        async def ended_meanwhile() -> Session:
            assert (await w.sessions.delete(TENANT, running.id)).state is S.ENDED
            raise SessionEnded("it was deleted while it was being made")

        w.lifecycle.activity.begin_start(running, ended_meanwhile())
        assert (await w.lifecycle.starting.wait_until_settled(running)).state is S.ENDED


async def test_a_start_that_succeeds_while_it_is_to_be_undone_is_left_alone(shared: Shared) -> None:
    async with world(store=MirroredStore(shared, MemoryRecords(), "local")) as w:
        running = (await w.sessions.create(TENANT, NewSession())).session
        creating = replace(running, state=S.CREATING, version=running.version - 1)
        await w.lifecycle.ending.undo_start(creating)
        await w.lifecycle.wait_for_tasks()
        assert await w.session(running) == running


async def test_a_session_of_another_worker_is_given_out_by_that_worker_alone(shared: Shared) -> None:
    theirs = a_session(worker="w", tenant=TENANT, thread_id="conv", state=S.RUNNING)
    await shared.add(theirs)
    async with world(store=MirroredStore(shared, MemoryRecords(), "local"), in_cluster=True) as w:
        with pytest.raises(Misdirected) as caught:
            await w.sessions.create(TENANT, NewSession(thread_id="conv"))
        assert caught.value.worker == "w"


class SlowCopies(MemoryRecords):
    async def put(self, record: Record) -> bool:
        await asyncio.sleep(0.01)
        return await super().put(record)


async def test_a_caller_that_goes_away_while_a_change_is_copied_leaves_a_doubt(shared: Shared) -> None:
    store = MirroredStore(shared, SlowCopies(), "w")
    session = a_session(worker="w")
    adding = asyncio.ensure_future(store.add(session))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.wait([adding])
    assert await turned_out(store) == [session]
    stopping = session.moved_to(S.STOPPING)
    swapping = asyncio.ensure_future(store.swap(stopping))
    await asyncio.sleep(0)
    swapping.cancel()
    await asyncio.wait([swapping])
    assert await store.due(120.0, 100) == []
    assert await store.due(130.0, 100) == [stopping]


@pytest.mark.parametrize("makes", [True, False])
async def test_a_deletion_whose_last_change_was_in_doubt_is_shown_as_ended_once_it_is_acknowledged(
    shared: Shared, makes: bool
) -> None:
    store = MirroredStore(shared, MemoryRecords(), "local")

    def fault(step: str) -> None:
        shared.loses, shared.makes = shared.loses or step == "destroyed", makes

    async with world(store=store, fault=fault) as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        deleting = asyncio.ensure_future(w.sessions.delete(TENANT, row.id))
        await w.clock.advance(1)
        assert not deleting.done()
        shared.loses = False
        await w.clock.advance(1)
        assert (await deleting).state is S.ENDED
        assert (await w.session(row)).state is S.ENDED
        assert list(store.own()) == []


async def test_a_later_change_that_was_heard_of_settles_the_doubt(store: MirroredStore, shared: Shared) -> None:
    session = await running(store)
    shared.loses, shared.makes = True, False
    with pytest.raises(Unavailable):
        await store.swap(session.changed(used=200.0))
    shared.loses = False
    later = session.changed(used=300.0)
    assert await store.swap(later)
    assert await turned_out(store) == []
    assert list(store.own()) == [later]
