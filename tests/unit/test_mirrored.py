"""A worker's own sessions: served while the shared store is away, and compared with it when it is back."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from contract.store_values import S, a_key, a_session, ended, swapped
from unit.restoring_store import RestoringStore

from warren.interfaces.records import Record
from warren.interfaces.store import NO_CAPS, Added, Caps, Page
from warren.model.errors import NoSpace, Unavailable
from warren.model.session import EndReason, Session, SessionState
from warren.stores.encryption import Encryption
from warren.stores.memory import MemoryRecords
from warren.stores.mirrored import MirroredStore

pytestmark = pytest.mark.anyio


def mine(**values: Any) -> Session:
    return a_session(**{"worker": "w", "state": S.RUNNING, **values})


class World:
    """A worker called w. `restarted` is it as its next process finds it: the same file, and what is shared."""

    def __init__(self) -> None:
        self.shared = RestoringStore()
        self.copies = MemoryRecords()
        self.store = MirroredStore(self.shared, self.copies, "w", Encryption(bytes(32)))

    async def restarted(self) -> MirroredStore:
        self.store = MirroredStore(self.shared, self.copies, "w", Encryption(bytes(32)))
        await self.store.load()
        return self.store

    async def added(self, **values: Any) -> Session:
        session, which = await self.store.add(mine(**values))
        assert which is Added.NEW
        return session

    @property
    def own(self) -> set[str]:
        return {session.id for session in self.store.own()}


@pytest.fixture
def world() -> World:
    return World()


# Its own rows.


async def test_the_next_process_has_the_rows_of_the_one_before(world: World) -> None:
    session = await swapped(world.store, await world.added(env={"TOKEN": "very-secret"}), S.RUNNING, used=150.0)
    await ended(world.store, await world.added())
    world.shared.away = True
    store = await world.restarted()
    assert list(store.own()) == [session]
    assert await store.get("acme", session.id) == session
    assert "very-secret" not in str(await world.copies.list("copy"))
    assert repr(store) == f"<MirroredStore of w: 1 sessions, {world.shared!r}>"


async def test_what_is_another_workers_is_not_kept_here(world: World) -> None:
    theirs = mine(worker="other")
    await world.store.add(theirs)
    assert await world.store.get("acme", theirs.id) == theirs
    assert world.own == set()
    assert not await world.store.active()
    assert not await world.store.due(1e12, 10)


async def test_the_session_of_a_thread_that_another_worker_has_is_not_ours(world: World) -> None:
    theirs = mine(worker="other", thread_id="t")
    await world.shared.add(theirs)
    assert await world.store.add(mine(thread_id="t")) == (theirs, Added.THREAD)
    assert world.own == set()


async def test_without_the_shared_store_own_sessions_are_found_and_nothing_is_changed(world: World) -> None:
    session = await world.added(thread_id="t")
    lost = await swapped(world.store, await world.added(), S.LOST)
    world.shared.away = True
    assert await world.store.get("acme", session.id) == session
    assert await world.store.of_thread("acme", "t") == session
    assert (await world.store.count())[S.RUNNING] == 1
    assert {one.id for one in await world.store.active()} == {session.id, lost.id}
    for call in (
        world.store.add(mine()),
        world.store.swap(session.changed(used=150.0)),
        world.store.of_thread("acme", "other"),
        world.store.of_thread("other", "t"),
        world.store.get("acme", lost.id),
        world.store.get("other", session.id),
    ):
        with pytest.raises(Unavailable):
            await call  # type: ignore[misc]
    assert await world.store.get("acme", session.id) == session


async def test_what_is_lost_anybody_may_have_ended(world: World) -> None:
    lost = await swapped(world.store, await world.added(), S.LOST)
    over = await ended(world.shared, lost)
    assert await world.store.get("acme", lost.id) == over
    assert world.own == set()


async def test_a_change_that_another_made_first_is_taken_over(world: World) -> None:
    session = await world.added()
    theirs = await swapped(world.shared, session, S.LOST, detail="given up")
    assert not await world.store.swap(session.changed(used=150.0))
    assert await world.store.get("acme", session.id) == theirs


async def test_a_session_that_the_shared_store_has_lost_is_not_gone_for_its_caller(world: World) -> None:
    session = await world.added()
    world.shared.lose_data()
    with pytest.raises(Unavailable, match="published again") as caught:
        await world.store.swap(session.changed(used=150.0))
    assert caught.value.retry_after_s
    assert await world.store.get("acme", session.id) == session
    assert not await world.store.swap(replace(session, tenant="other", version=2))


async def test_a_change_whose_answer_comes_after_a_later_change_does_not_undo_that(world: World) -> None:
    """The first change is made, and before its caller hears of it another has seen it and ended the session."""
    session = await world.added()
    later: list[Callable[[], Awaitable[object]]] = []

    class Slow(RestoringStore):
        async def swap(self, changed: Session, caps: Caps = NO_CAPS) -> bool:
            done = await super().swap(changed, caps)
            if later:
                await later.pop()()
            return done

    world.shared.__class__ = Slow
    used = session.changed(used=150.0)

    async def end_it() -> None:
        assert not await world.store.swap(session.moved_to(S.STOPPING))
        await ended(world.store, used)

    later.append(end_it)
    assert await world.store.swap(used)
    assert world.own == set()
    assert not await world.copies.list("copy")


async def test_a_copy_that_cannot_be_written_stops_nobody(world: World) -> None:
    class Full(MemoryRecords):
        async def put(self, record: Record) -> bool:
            raise NoSpace("the disk is full")

        async def delete(self, kind: str, record_id: str) -> bool:
            raise NoSpace("the disk is full")

    session = await world.added()
    world.copies.__class__ = Full
    session = await swapped(world.store, session, S.RUNNING, used=150.0)
    assert await world.store.get("acme", session.id) == session
    await world.added()
    await ended(world.store, session)
    assert len(world.own) == 1


async def test_keys_pages_and_records_are_the_shared_ones(world: World) -> None:
    session = await world.added()
    assert world.store.records is world.shared.records
    assert list(await world.store.list("acme", Page())) == [session]
    assert await world.store.claim_key(a_key(), "boot-1", 1.0) is None
    await world.store.answer_key(a_key(), "42")
    found = await world.shared.claim_key(a_key(), "boot-1", 1.0)
    assert found is not None
    assert found.answer == "42"
    await world.store.release_key(a_key())
    assert await world.shared.claim_key(a_key(), "boot-1", 1.0) is None


# Comparing: every state that it can have here, with every state that it can have there.


async def at(store: Any, session: Session, *states: SessionState) -> Session:
    for state in states:
        more: dict[str, Any] = {"reason": EndReason.DELETED, "ended": 200.0} if state is S.ENDED else {}
        session = session.moved_to(state, **more)
        assert await store.swap(session)
    return session


THERE = {
    "the same": (),
    "used since": (S.RUNNING,),
    "given up": (S.LOST,),
    "being ended": (S.STOPPING,),
    "ended": (S.STOPPING, S.ENDED),
}


@pytest.mark.parametrize(
    ("there", "is_kept", "state"),
    [
        ("the same", True, S.RUNNING),
        ("used since", True, S.RUNNING),
        ("given up", False, S.LOST),
        ("being ended", False, S.STOPPING),
        ("ended", False, None),
    ],
)
async def test_of_a_running_session_what_the_cluster_has_decided_holds(
    world: World, there: str, is_kept: bool, state: SessionState | None
) -> None:
    session = await world.added(thread_id="t")
    theirs = await at(world.shared, session, *THERE[there])
    store = await world.restarted()
    dropped = await store.reconcile()
    assert list(dropped) == ([] if is_kept else [session])
    assert [one.state for one in store.own()] == ([] if state is None else [state])
    assert await store.get("acme", session.id) == theirs
    assert await world.shared.get("acme", session.id) == theirs


async def test_a_running_session_that_was_lost_there_is_published_again(world: World) -> None:
    sessions = [await world.added(thread_id=f"t{number}") for number in range(3)]
    world.shared.lose_data()
    assert list(await world.store.reconcile()) == []
    for session in sessions:
        assert await world.shared.get("acme", session.id) == session
        assert await world.shared.of_thread("acme", session.thread_id) == session
    assert world.own == {session.id for session in sessions}
    assert await world.store.swap(sessions[0].changed(used=150.0))


async def test_a_running_session_that_is_older_there_is_brought_up_to_date(world: World) -> None:
    session = await world.added()
    older = session
    session = await swapped(world.store, session, S.RUNNING, used=150.0)
    world.shared.forget(session.id)
    await world.shared.add(older)
    assert list(await world.store.reconcile()) == []
    assert await world.shared.get("acme", session.id) == session


async def test_a_running_session_whose_thread_has_another_by_now_is_dropped(world: World) -> None:
    session = await world.added(thread_id="t")
    world.shared.lose_data()
    newer = mine(thread_id="t", worker="other")
    await world.shared.add(newer)
    assert list(await world.store.reconcile()) == [session]
    assert world.own == set()
    assert await world.store.of_thread("acme", "t") == newer
    assert await world.store.get("acme", session.id) is None


@pytest.mark.parametrize("state", [S.CREATING, S.LOST, S.STOPPING])
async def test_what_does_not_run_and_was_lost_there_is_dropped(world: World, state: SessionState) -> None:
    session = await world.added(state=state)
    world.shared.lose_data()
    assert list(await world.store.reconcile()) == [session]
    assert world.own == set()
    assert await world.shared.get("acme", session.id) is None


@pytest.mark.parametrize(
    ("here", "there", "is_kept"),
    [
        (S.CREATING, (), True),
        (S.CREATING, (S.RUNNING,), True),
        (S.CREATING, (S.STOPPING,), True),
        (S.CREATING, (S.ENDED,), False),
        (S.LOST, (), True),
        (S.LOST, (S.STOPPING,), True),
        (S.LOST, (S.STOPPING, S.ENDED), False),
        (S.STOPPING, (), True),
        (S.STOPPING, (S.ENDED,), False),
    ],
)
async def test_what_does_not_run_goes_on_from_where_the_cluster_has_it(
    world: World, here: SessionState, there: tuple[SessionState, ...], is_kept: bool
) -> None:
    session = await world.added(state=here)
    theirs = await at(world.shared, session, *there)
    assert list(await world.store.reconcile()) == ([] if is_kept else [session])
    assert list(world.store.own()) == ([theirs] if is_kept else [])


async def test_rows_of_ours_that_only_the_cluster_has_are_ours(world: World) -> None:
    """The file of the copies is gone, or the answer to `add` was lost."""
    running, creating = mine(), mine(state=S.CREATING)
    for session in (running, creating, mine(worker="other")):
        await world.shared.add(session)
    assert list(await world.store.reconcile()) == []
    assert world.own == {running.id, creating.id}
    assert {one.id for one in (await world.restarted()).own()} == {running.id, creating.id}


async def test_comparing_twice_changes_nothing_more(world: World) -> None:
    await world.added()
    await at(world.shared, await world.added(), S.LOST)
    world.shared.forget((await world.added()).id)
    assert len(await world.store.reconcile()) == 1
    rows = {session.id: session for session in world.store.own()}
    assert len(rows) == 3
    assert list(await world.store.reconcile()) == []
    assert {session.id: session for session in world.store.own()} == rows


async def test_comparing_fails_while_the_shared_store_is_away_and_drops_nothing(world: World) -> None:
    session = await world.added()
    world.shared.away = True
    with pytest.raises(Unavailable):
        await world.store.reconcile()
    assert list(world.store.own()) == [session]


# Changes that come back while something is being read.


class SlowReads(RestoringStore):
    """`meanwhile` happens once, between the call `after` and its answer: the answer is as things were before."""

    meanwhile: Callable[[], Awaitable[object]] | None = None
    after = ""

    async def _told(self, call: str) -> None:
        if self.meanwhile is not None and call == self.after:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()

    async def get(self, tenant: str, session_id: str) -> Session | None:
        found = await super().get(tenant, session_id)
        await self._told("get")
        return found

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None  # the one in memory reads the row to change it
        done = await super().swap(session, caps)
        self.meanwhile = meanwhile
        return done

    async def active(self) -> Sequence[Session]:
        found = await super().active()
        await self._told("active")
        return found

    async def restore(self, session: Session) -> bool:
        done = await super().restore(session)
        await self._told("restore")
        return done


class SlowWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.shared: SlowReads = SlowReads()
        self.store = MirroredStore(self.shared, self.copies, "w")

    def end_after(self, call: str, session: Session) -> None:
        """The session ends between that call and its answer."""
        states = (S.ENDED,) if session.state is S.STOPPING else (S.STOPPING, S.ENDED)
        self.shared.after, self.shared.meanwhile = call, lambda: at(self.store, session, *states)

    async def check_ended(self, session: Session) -> None:
        assert self.shared.meanwhile is None
        found = await self.store.get("acme", session.id)
        assert found is not None
        assert found.state is S.ENDED
        assert self.own == set()
        assert not await self.copies.list("copy")


@pytest.fixture
def slow_world() -> SlowWorld:
    return SlowWorld()


@pytest.mark.parametrize("state", [S.RUNNING, S.STOPPING])
async def test_what_ends_while_it_is_compared_stays_ended(slow_world: SlowWorld, state: SessionState) -> None:
    session = await slow_world.added(state=state)
    slow_world.end_after("active", session)
    assert list(await slow_world.store.reconcile()) == []
    await slow_world.check_ended(session)


async def test_what_is_made_and_ends_while_others_are_compared_stays_ended(slow_world: SlowWorld) -> None:
    session = mine()
    await slow_world.shared.add(session)  # its worker has not heard of it yet
    slow_world.end_after("active", session)
    await slow_world.store.reconcile()
    await slow_world.check_ended(session)


async def test_what_ends_while_it_is_restored_stays_ended(slow_world: SlowWorld) -> None:
    session = await slow_world.added()
    slow_world.shared.lose_data()
    slow_world.end_after("restore", session)
    assert list(await slow_world.store.reconcile()) == []
    await slow_world.check_ended(session)


async def test_what_ends_while_a_use_of_it_is_refused_stays_ended(slow_world: SlowWorld) -> None:
    session = await slow_world.added()
    stopping = await swapped(slow_world.store, session, S.STOPPING)
    slow_world.end_after("get", stopping)
    assert not await slow_world.store.swap(session.changed(used=150.0))
    await slow_world.check_ended(session)


class SlowStore(RestoringStore):
    """While a change is on its way, its worker compares; what is read is the same, and a new object, as from Redis."""

    store: MirroredStore

    async def active(self) -> list[Session]:
        return [replace(session) for session in await super().active()]

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        await self.store.reconcile()
        return await super().swap(session, caps)


async def test_what_was_read_again_over_a_change_does_not_hide_the_change() -> None:
    shared = SlowStore()
    shared.store = MirroredStore(shared, MemoryRecords(), "w")
    creating, _ = await shared.store.add(mine(state=SessionState.CREATING))
    assert await shared.store.swap(creating.moved_to(SessionState.RUNNING, sandbox_id="sb"))
    found = await shared.store.get(creating.tenant, creating.id)
    assert found is not None
    assert found.state is SessionState.RUNNING
