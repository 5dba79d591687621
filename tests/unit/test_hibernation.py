"""Hibernated sessions: what is kept, who restores them, quotas, and what a crash or a restart leaves."""

import asyncio
import contextlib
from typing import Any

import pytest
from unit.session_world import TENANT, World, world

from warren.access.tenants import Tenant
from warren.model.access import Quota
from warren.model.capability import Capability
from warren.model.errors import (
    InvalidRequest,
    Misdirected,
    NoSpace,
    QuotaExceeded,
    SandboxLost,
    SessionPaused,
    Unavailable,
)
from warren.model.events import Event, EventKind
from warren.model.network import NetworkRules
from warren.model.session import EndReason, OnIdle, Session, SessionState
from warren.sessions.new_session import Defaults, NewSession
from warren.sessions.snapshots import forks
from warren.sessions.snapshots.expiry import SnapshotExpiry
from warren.sessions.snapshots.service import Snapshots
from warren.testing.fake_artifacts import FakeArtifacts
from warren.testing.fake_provider import FakeProvider
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

S = SessionState
ABLE = frozenset({Capability.TERMINALS, Capability.PAUSE, Capability.SNAPSHOTS, Capability.EGRESS})


class Crash(BaseException):
    """The server is gone at this point."""


class FullProvider(FakeProvider):
    """Its disk is full, or it has no room for another sandbox, when it is told so."""

    is_full = has_no_room = False

    async def save_disk(self, sandbox_id: str, name: str, **given: Any) -> Any:
        if self.is_full:
            raise NoSpace("the disk is full")
        return await super().save_disk(sandbox_id, name, **given)

    async def create(self, spec: Any) -> Any:
        if self.has_no_room:
            raise NoSpace("the disk is full")
        return await super().create(spec)


def lair(**parts: Any) -> contextlib.AbstractAsyncContextManager[World]:
    return world(**{"provider": FullProvider(capabilities=ABLE), **parts})


def room(w: World) -> Snapshots:
    assert w.lifecycle.snapshots is not None
    return w.lifecycle.snapshots


async def created(w: World, **wishes: Any) -> Session:
    session = (await w.sessions.create(TENANT, NewSession(**wishes))).session
    async with w.sessions.using(TENANT, session.id) as (_, sandbox):
        await sandbox.write("kept.txt", b"kept")
    return session


async def hibernated(w: World, session: Session) -> Session:
    return await w.sessions.pause(TENANT, session.id, {}, to_disk=True)


async def content(w: World, session: Session) -> bytes:
    async with w.sessions.using(TENANT, session.id) as (_, sandbox):
        return b"".join([part async for part in sandbox.read("kept.txt")])


async def saved_disks(w: World) -> set[str]:
    return set(await w.provider.saved_disks.list())


async def sweep(w: World) -> None:
    await w.lifecycle.activity.tasks.wait()
    await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()


async def test_it_gives_its_sandbox_back_and_its_next_use_restores_its_files() -> None:
    events: list[Event] = []
    async with lair() as w:
        w.tenancy.events.subscribe(events.append)
        row = await created(w, thread_id="conv", max_lifetime_s=300, network=NetworkRules(allow=("example.com",)))
        asleep = await hibernated(w, row)
        assert (asleep.state, asleep.sandbox_id, w.provider.machines) == (S.HIBERNATED, "", {})
        assert await saved_disks(w) == {asleep.saved}
        assert await hibernated(w, row) == asleep
        await w.clock.advance(1000)
        await w.reaper.tick()
        assert await w.session(row) == asleep
        found = await asyncio.gather(*(content(w, row) for _ in range(5)))
        assert set(found) == {b"kept"}
        running = await w.session(row)
        assert (running.state, running.restored, running.saved, len(w.provider.machines)) == (S.RUNNING, 1, "", 1)
        assert w.provider.machines[running.sandbox_id].network.allow == ("example.com",)
        await sweep(w)
        assert await saved_disks(w) == set()
        assert await room(w).records.used_bytes(TENANT) == 0
        await w.clock.advance(299)
        await content(w, row)
        await w.clock.advance(2)
        await w.reaper.tick()
        assert (await w.session(row)).reason is EndReason.LIFETIME
    kinds = [event.kind for event in events]
    assert [kind for kind in kinds if "session" in kind] == [
        EventKind.SESSION_CREATED, EventKind.SESSION_PAUSED, EventKind.SESSION_HIBERNATED, EventKind.SESSION_RESUMED,
        EventKind.SESSION_EXPIRED,
    ]  # fmt: skip


async def test_a_thread_that_comes_back_has_its_files() -> None:
    async with lair() as w:
        row = await created(w, thread_id="conv", idle_timeout_s=60, on_idle=OnIdle.HIBERNATE, max_lifetime_s=600)
        for _ in range(3):
            await w.clock.advance(70)
            await w.reaper.tick()
            await w.lifecycle.activity.tasks.wait()
            assert (await w.session(row)).state is S.HIBERNATED
            same = await w.sessions.create(TENANT, NewSession(thread_id="conv"))
            assert (same.session.id, same.created, await content(w, row)) == (row.id, False, b"kept")
        assert (await w.session(row)).restored == 3


async def test_what_is_paused_for_long_is_hibernated_and_ends_when_its_time_is_over() -> None:
    async with lair(defaults=Defaults(hibernate_after_s=100.0)) as w:
        row = await created(w, max_paused_s=500)
        await w.sessions.pause(TENANT, row.id, {})
        assert isinstance(w.provider, FullProvider)
        w.provider.is_full = True
        await w.clock.advance(101)
        await w.reaper.tick()
        await w.lifecycle.activity.tasks.wait()
        assert (await w.session(row)).state is S.PAUSED  # and is tried again, but not at once
        await w.sessions.resume(TENANT, row.id)
        assert await content(w, row) == b"kept"
        w.provider.is_full = False
        other = await created(w, max_paused_s=500)
        await w.sessions.pause(TENANT, other.id, {})
        await w.clock.advance(101)
        await w.reaper.tick()
        await w.lifecycle.activity.tasks.wait()
        assert (await w.session(other)).state is S.HIBERNATED
        await w.clock.advance(400)
        await w.reaper.tick()
        await w.lifecycle.activity.tasks.wait()
        assert (await w.session(other)).reason is EndReason.PAUSED_TOO_LONG
        assert await saved_disks(w) == set()


async def test_what_cannot_be_saved_runs_on() -> None:
    async with lair() as w:
        row = await created(w)
        assert isinstance(w.provider, FullProvider)
        w.provider.is_full = True
        with pytest.raises(NoSpace):
            await hibernated(w, row)
        assert ((await w.session(row)).state, w.provider.machines[row.sandbox_id].frozen) == (S.RUNNING, False)
        await w.sessions.pause(TENANT, row.id, {})
        with pytest.raises(NoSpace):
            await hibernated(w, row)
        assert ((await w.session(row)).state, w.provider.machines[row.sandbox_id].frozen) == (S.PAUSED, True)
        assert await content(w, row) == b"kept"
    async with world(provider=FakeProvider(capabilities=ABLE - {Capability.SNAPSHOTS})) as w:
        row = await created(w)
        with pytest.raises(InvalidRequest, match="snapshots"):
            await hibernated(w, row)
        with pytest.raises(InvalidRequest, match="snapshots"):
            await created(w, on_idle=OnIdle.HIBERNATE)
        assert (await w.session(row)).state is S.RUNNING


async def test_what_cannot_be_restored_stays_hibernated_and_is_tried_again() -> None:
    async with lair() as w:
        row = await created(w, thread_id="conv")
        await hibernated(w, row)
        assert isinstance(w.provider, FullProvider)
        w.provider.has_no_room = True
        with pytest.raises(NoSpace):
            await content(w, row)
        assert (await w.session(row)).state is S.HIBERNATED
        w.provider.has_no_room = False
        assert await content(w, row) == b"kept"


async def test_who_asked_for_it_restores_the_session_alone() -> None:
    async with lair() as w:
        row = await created(w, auto_resume=False)
        await hibernated(w, row)
        with pytest.raises(SessionPaused, match="hibernated"):
            await content(w, row)
        changed = await w.sessions.patch(TENANT, row.id, metadata={"a": "1"})
        await w.sessions.set_network(TENANT, row.id, NetworkRules(allow=("example.org",)))
        assert (changed.state, changed.metadata) == (S.HIBERNATED, {"a": "1"})
        running = await w.sessions.resume(TENANT, row.id)
        assert w.provider.machines[running.sandbox_id].network.allow == ("example.org",)
        assert await content(w, row) == b"kept"


async def test_quotas_count_it_as_paused_and_its_bytes_as_those_of_a_snapshot() -> None:
    async with lair() as w:
        await w.tenancy.tenants.put(Tenant(TENANT, Quota(sessions=1, paused_sessions=1, disk_mb=2048)))
        row = await created(w)
        asleep = await hibernated(w, row)
        held, _ = await w.store.held(TENANT, "")
        assert (held.sessions, held.paused_sessions, held.disk_mb) == (0, 1, 0)
        assert await room(w).records.used_bytes(TENANT) == (await room(w).records.get(TENANT, asleep.saved)).bytes


async def test_deleting_it_deletes_what_was_saved() -> None:
    async with lair() as w:
        row = await created(w, thread_id="conv")
        asleep = await hibernated(w, row)
        ended = await w.sessions.delete(TENANT, row.id)
        assert (ended.state, ended.reason, await saved_disks(w)) == (S.ENDED, EndReason.DELETED, set())
        assert await room(w).records.used_bytes(TENANT) == 0
        assert asleep.saved
        assert w.provider.machines == {}


async def test_it_is_forked_by_waking_it() -> None:
    async with lair() as w:
        row = await created(w)
        await hibernated(w, row)
        made = await forks.fork(w.sessions, room(w), TENANT, row.id, forks.Fork(2))
        assert [await content(w, one) for one in made.sessions] == [b"kept"] * 2
        assert await content(w, row) == b"kept"


async def test_it_outlives_a_restart_of_the_machine() -> None:
    async with lair() as w:
        row = await created(w, thread_id="conv")
        await hibernated(w, row)
    async with world(clock=ManualClock(5.0, epoch="boot-2"), provider=w.provider, store=w.store) as n:
        await n.reaper.tick()
        await sweep(n)
        assert (await n.session(row)).state is S.HIBERNATED
        assert await content(n, row) == b"kept"


async def test_one_whose_files_are_gone_is_lost() -> None:
    async with lair() as w:
        row = await created(w)
        asleep = await hibernated(w, row)
        await room(w).delete(TENANT, asleep.saved)
        with pytest.raises(SandboxLost, match="its saved files are gone"):
            await content(w, row)


async def test_another_worker_restores_it_if_it_can_read_what_was_saved() -> None:
    far = FakeProvider(capabilities=ABLE)
    for shared in (True, False):
        store = FakeArtifacts(shared=True) if shared else None
        async with lair(snapshots={"store": store, "place": "w1"}, in_cluster=True) as w:
            row = await created(w)
            await hibernated(w, row)
            here = {"provider": far, "store": w.store, "in_cluster": True, "clock": w.clock}
            async with world(snapshots={"store": store, "place": "w2"}, **here) as other:
                if shared:
                    assert await content(other, row) == b"kept"
                    assert (await w.session(row)).state is S.RUNNING
                else:
                    with pytest.raises(Misdirected):
                        await content(other, row)
                    assert await content(w, row) == b"kept"


async def to_disk_and_back(w: World, row: Session) -> None:
    await hibernated(w, row)
    await content(w, row)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        ("hibernating", S.PAUSED),
        ("disk saved", S.PAUSED),
        ("record stored", S.PAUSED),
        ("hibernated", S.HIBERNATED),
        ("restoring", S.HIBERNATED),
        ("claimed", S.HIBERNATED),
        ("running", S.RUNNING),
        ("restored", S.RUNNING),
    ],
)
async def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(step: str, state: SessionState) -> None:
    armed = False

    def fault(at: str) -> None:
        if armed and at == step:
            raise Crash

    async with lair(fault=fault, snapshots={"fault": fault}) as w:
        row = await created(w)
        armed = True
        w.lifecycle.ending.give_up_start = _nothing  # type: ignore[method-assign]
        w.lifecycle.ending.destroy_sandbox = _nothing  # type: ignore[method-assign]
        w.lifecycle.pausing._hibernate_or_resume = w.lifecycle.pausing._hibernate  # type: ignore[method-assign]
        with contextlib.suppress(Crash):
            await to_disk_and_back(w, row)
    async with world(clock=w.clock, provider=w.provider, store=w.store) as n:
        assert (await n.session(row)).state is state
        await sweep(n)
        assert await saved_disks(n) == ({(await n.session(row)).saved} if state is S.HIBERNATED else set())
        async with asyncio.timeout(5.0):
            while len(n.provider.machines) != (state is not S.HIBERNATED):
                await asyncio.sleep(0.01)
        assert await content(n, row) == b"kept"
        await n.sessions.delete(TENANT, row.id)
        await sweep(n)
        assert (await saved_disks(n), n.provider.machines) == (set(), {})
        assert await room(n).records.used_bytes(TENANT) == 0


async def _nothing(*_: Any, **__: Any) -> None:
    """What a process that is gone does."""


async def test_a_store_that_fails_when_the_restore_does_has_it_hibernated_later() -> None:
    async with lair() as w:
        row = await created(w)
        await hibernated(w, row)
        assert isinstance(w.provider, FullProvider)
        w.provider.has_no_room = True

        async def fill() -> None:
            w.store.full = True

        creating = asyncio.ensure_future(content(w, row))
        while (await w.session(row)).state is not S.CREATING:
            await asyncio.sleep(0)
        await fill()
        with pytest.raises((NoSpace, Unavailable)):
            await creating
        w.store.full = w.provider.has_no_room = False
        await w.reaper.tick()
        assert await content(w, row) == b"kept"


async def test_a_full_quota_of_sessions_keeps_it_hibernated() -> None:
    async with lair() as w:
        row = await created(w)
        await hibernated(w, row)
        await w.tenancy.tenants.put(Tenant(TENANT, Quota(sessions=1)))
        other = await created(w)
        with pytest.raises(QuotaExceeded):
            await content(w, row)
        assert (await w.session(row)).state is S.HIBERNATED
        await w.sessions.delete(TENANT, other.id)
        assert await content(w, row) == b"kept"


async def test_one_whose_row_cannot_be_synced_gives_its_sandbox_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with lair() as w:
        row = await created(w)

        async def fail() -> None:
            if (await w.session(row)).state is S.HIBERNATED:  # the snapshot was synced before
                raise NoSpace("the disk is full")

        monkeypatch.setattr(w.store.records, "sync", fail)
        assert (await hibernated(w, row)).state is S.HIBERNATED
        assert w.provider.machines == {}
        monkeypatch.undo()
        assert await content(w, row) == b"kept"
