"""Snapshots over the fake provider: names, whose they are, what they may use, and what crashes leave."""

import asyncio
import contextlib
import io
import random
import tarfile
import zlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, replace
from typing import Any

import pytest
from unit.session_world import TENANT, World, world

from warren.interfaces.store import Page
from warren.kernel.signing import Signer
from warren.model.access import Caller, Quota, Scope
from warren.model.capability import Capability
from warren.model.environment import Environment
from warren.model.errors import Conflict, Forbidden, InvalidRequest, LimitReached, NotFound, QuotaExceeded, Unavailable
from warren.model.events import Event, EventKind
from warren.model.session import EndReason, OnIdle, Session, SessionState
from warren.model.snapshot import Snapshot, SnapshotOwner, SnapshotRules, SnapshotWish, is_snapshot_name
from warren.model.spec import Limits
from warren.sessions.new_session import NewSession
from warren.sessions.operations.call import Call, OperationContext
from warren.sessions.operations.snapshots import delete_snapshot
from warren.sessions.request_context import RequestContext, set_request_context
from warren.sessions.snapshots import forks, transfer
from warren.sessions.snapshots.beginnings import check_beginning, with_room
from warren.sessions.snapshots.byte_reader import PIECE, ByteReader
from warren.sessions.snapshots.expiry import SnapshotExpiry
from warren.sessions.snapshots.records import SnapshotRecords
from warren.sessions.snapshots.sealing import Sealing
from warren.sessions.snapshots.service import SnapshotOptions, Snapshots
from warren.sessions.snapshots.signed_files import MARK, SignedFile, write_file
from warren.testing.fake_artifacts import FakeArtifacts
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio

ABLE = frozenset({Capability.TERMINALS, Capability.SNAPSHOTS, Capability.PAUSE})
KEY = bytes(range(32))


def shop(**parts: Any) -> contextlib.AbstractAsyncContextManager[World]:
    return world(provider=FakeProvider(capabilities=ABLE), **parts)


def room(w: World) -> Snapshots:
    assert w.lifecycle.snapshots is not None
    return w.lifecycle.snapshots


async def new(w: World, tenant: str = TENANT, **request: Any) -> Session:
    return (await w.sessions.create(tenant, NewSession(**request))).session


async def write(w: World, session: Session, path: str, data: bytes) -> None:
    async with w.sessions.using(session.tenant, session.id) as (_, sandbox):
        await sandbox.write(path, data)


async def read(w: World, session: Session, path: str) -> bytes:
    async with w.sessions.using(session.tenant, session.id) as (_, sandbox):
        return b"".join([part async for part in sandbox.read(path)])


async def save(w: World, session: Session, name: str = "", **wish: Any) -> Snapshot:
    return await forks.save(w.sessions, room(w), session.tenant, session.id, SnapshotWish(name, **wish))


async def kept(w: World) -> set[str]:
    return set(await w.provider.saved_disks.list())


async def joined(source: Any) -> bytes:
    return b"".join([part async for part in source])


async def parts(data: bytes, size: int = 70_001) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


# -- saving and starting


async def test_a_session_starts_with_the_files_of_another_and_each_goes_its_own_way() -> None:
    async with shop() as w:
        first = await new(w, image="python", limits={"disk_mb": 2048})
        await write(w, first, "a.txt", b"one")
        snapshot = await save(w, first, "ready", metadata={"of": "me"})
        await write(w, first, "a.txt", b"two")
        second = await new(w, snapshot="ready")
        assert await read(w, second, "a.txt") == b"one"
        await write(w, second, "b.txt", b"mine")
        again = await save(w, second)
        assert (second.snapshot, second.image, second.limits.disk_mb if second.limits else 0) == (
            snapshot.id, "python", 2048,
        )  # fmt: skip
        assert (again.parent, snapshot.session_id, snapshot.image, snapshot.disk_mb, snapshot.metadata) == (
            snapshot.id, first.id, "python", 2048, {"of": "me"},
        )  # fmt: skip
        await room(w).delete(TENANT, "ready")
        assert await read(w, second, "b.txt") == b"mine"
        with pytest.raises(NotFound):
            await new(w, snapshot="ready")
        assert await kept(w) == {again.id}


async def test_a_paused_session_is_saved_and_stays_paused() -> None:
    async with shop() as w:
        session = await new(w)
        await w.provider.freeze(session.sandbox_id)
        await room(w).save(session, SnapshotWish())
        assert w.provider.machines[session.sandbox_id].frozen
        async with room(w).saved_for(session) as hidden:
            pass
        assert (hidden.owner, hidden.expires_at, hidden.name) == (SnapshotOwner.SESSION, None, "")
        assert [one.id for one in (await room(w).records.list(TENANT))[0]] != [hidden.id]
        assert hidden.id in [one.id for one in (await room(w).records.list(TENANT, hidden=True))[0]]


async def test_a_session_that_has_ended_and_a_provider_that_cannot_are_refused() -> None:
    async with world() as w:
        session = await new(w)
        with pytest.raises(InvalidRequest, match="snapshots"):
            await save(w, session)
    async with shop() as w:
        session = await new(w)
        await w.sessions.delete(TENANT, session.id)
        with pytest.raises(Exception, match="has ended"):
            await save(w, session)


def test_names() -> None:
    for name in ("a", "A.b-c_1", "x" * 64):
        assert is_snapshot_name(name)
    for name in ("", "snap_", "snap_x", ".a", "-a", "a/b", "a b", "ä", "x" * 65, "a\n"):
        assert not is_snapshot_name(name)


async def test_a_name_moves_to_the_newest_and_the_others_keep_their_ids() -> None:
    async with shop() as w:
        session = await new(w)
        old = await save(w, session, "ready")
        await w.clock.advance(1)
        saved = await asyncio.gather(*(save(w, session, "ready") for _ in range(3)))
        records = room(w).records
        named = await records.get(TENANT, "ready")
        found, _ = await records.list(TENANT)
        assert {one.id for one in found} == {old.id, *(one.id for one in saved)}
        assert [one.id for one in found if one.name] == [named.id]
        assert (await records.get(TENANT, old.id)).name == ""
        await room(w).delete(TENANT, "ready")
        with pytest.raises(NotFound):
            await records.get(TENANT, "ready")


async def test_tenants_do_not_see_each_others() -> None:
    async with shop() as w:
        mine = await save(w, await new(w, "a"), "ready")
        theirs = await save(w, await new(w, "a.b"), "theirs")
        for tenant, own, foreign in (("a", mine, theirs), ("a.b", theirs, mine)):
            assert await room(w).records.list(tenant) == ([own], None)
            for which in (foreign.id, foreign.name, "", "../x", f"{foreign.tenant}/{foreign.id}"):
                with pytest.raises(NotFound):
                    await room(w).records.get(tenant, which)
            with pytest.raises(NotFound):
                await room(w).delete(tenant, foreign.id)
            with pytest.raises(NotFound):
                await new(w, tenant, snapshot=foreign.id)
            with pytest.raises(NotFound):
                await forks.save(w.sessions, room(w), tenant, foreign.session_id, SnapshotWish())


async def test_a_public_one_starts_the_sessions_of_every_tenant_and_is_not_theirs() -> None:
    async with shop() as w:
        session = await new(w, "operators")
        await write(w, session, "a.txt", b"for all")
        shared = await save(w, session, "tools", public=True)
        other = await new(w, "b", snapshot="tools")
        assert await read(w, other, "a.txt") == b"for all"
        for which in ("tools", shared.id):
            with pytest.raises(NotFound):
                await room(w).records.get("b", which)
            with pytest.raises(NotFound):
                await room(w).delete("b", which)
        await write(w, other, "a.txt", b"of b")
        await save(w, other, "tools")
        assert await read(w, await new(w, "b", snapshot="tools"), "a.txt") == b"of b"
        assert await read(w, await new(w, "c", snapshot="tools"), "a.txt") == b"for all"
        await room(w).delete("operators", "tools")
        with pytest.raises(NotFound):
            await new(w, "c", snapshot="tools")


@pytest.mark.parametrize(
    ("environment", "image", "provider", "complaint"),
    [
        (Environment("e", "base"), "", "docker", "one of the provider fake"),
        (Environment("e", "base", writable_root=True), "", "fake", "workspace alone"),
        (Environment("e", "base"), "", "fake", ""),
        (Environment("e", "base"), "python", "fake", ""),
    ],
)
def test_what_a_snapshot_does_not_fit(environment: Environment, image: str, provider: str, complaint: str) -> None:
    snapshot = some_snapshot()
    if not complaint:
        check_beginning(snapshot, environment, image, provider)
        whole = replace(snapshot, writable_root=True)
        writable = replace(environment, writable_root=True)
        if not image:
            check_beginning(whole, writable, "", provider)
            return
        snapshot, environment, complaint = whole, writable, "changes of the image 'base'"
    with pytest.raises(InvalidRequest, match=complaint):
        check_beginning(snapshot, environment, image, provider)


def test_the_disk_is_as_large_as_that_of_the_snapshot() -> None:
    limits = Limits(disk_mb=100)
    assert with_room(limits, replace(some_snapshot(), disk_mb=300), ()).disk_mb == 300
    assert with_room(limits, replace(some_snapshot(), disk_mb=50), ("disk_mb",)).disk_mb == 100
    with pytest.raises(InvalidRequest, match="disk_mb 300"):
        with_room(limits, replace(some_snapshot(), disk_mb=300), ("disk_mb",))


def some_snapshot() -> Snapshot:
    return Snapshot("snap_" + "0" * 27, TENANT, "n", "fake", "base", "base", False, 64, 1, "", 0.0, None)


async def test_what_a_session_goes_on_from_is_deleted_with_it_alone() -> None:
    async with shop() as w:
        session = await new(w)
        session = await w.sessions.pause(TENANT, session.id, {}, to_disk=True)
        hidden = await room(w).records.get(TENANT, session.saved)
        unused: Any = None
        context = OperationContext(
            sessions=w.sessions, provider="", environments=unused, default_environment="", images=unused,
            snapshots=room(w),
        )  # fmt: skip
        call = Call(context, TENANT, snapshot=hidden.id)
        with pytest.raises(Conflict, match="goes on from"):
            await delete_snapshot(call)
        await w.sessions.delete(TENANT, session.id)
        assert await kept(w) == set()


# -- quotas and expiry


async def test_a_quota_bounds_the_tenant_however_many_save_at_once() -> None:
    told: list[tuple[str, str]] = []

    async def bound_of(tenant: str, key_id: str) -> int:
        return bound

    async def report(tenant: str, key_id: str) -> None:
        told.append((tenant, key_id))

    bound = 1 << 40
    async with shop(snapshots={"bound_of": bound_of, "report_limit": report}) as w:
        session = await new(w)
        await write(w, session, "a", bytes(10_000))
        size = (await save(w, session)).bytes
        bound = 3 * size + 100
        done = await asyncio.gather(*(save(w, session) for _ in range(8)), return_exceptions=True)
        saved = [one for one in done if isinstance(one, Snapshot)]
        assert len(saved) == 2
        assert all(isinstance(one, Snapshot | QuotaExceeded) for one in done)
        assert told
        assert (len(await kept(w)), await room(w).records.used_bytes(TENANT)) == (3, 3 * size)
        fork = await forks.fork(w.sessions, room(w), TENANT, session.id, forks.Fork(1))  # gone in a moment
        assert len(fork.sessions) == 1
        await room(w).delete(TENANT, saved[0].id)
        assert await room(w).records.used_bytes(TENANT) == 2 * size
        await save(w, session)


async def test_a_tenant_may_have_so_many() -> None:
    async with shop(snapshots={"rules": SnapshotRules(max_count=2)}) as w:
        session = await new(w)
        await save(w, session)
        await save(w, session)
        with pytest.raises(LimitReached):
            await save(w, session)
        async with room(w).saved_for(session):
            pass


async def test_expired_ones_are_gone_at_once_and_removed_later() -> None:
    events: list[Event] = []
    async with shop(snapshots={"rules": SnapshotRules(ttl_s=100)}) as w:
        w.tenancy.events.subscribe(events.append)
        session = await new(w)
        usual = await save(w, session, "usual")
        kept_longer = await save(w, session, expires_in_s=1000)
        for_ever = await save(w, session, expires_in_s=0)
        await w.clock.advance(101)
        with pytest.raises(NotFound):
            await new(w, snapshot="usual")
        await SnapshotExpiry(room(w), w.clock, w.store.get).expire()
        assert await kept(w) == {kept_longer.id, for_ever.id}
        await w.clock.advance(1000)
        await SnapshotExpiry(room(w), w.clock, w.store.get).expire()
        assert await kept(w) == {for_ever.id}
        assert await room(w).records.used_bytes(TENANT) == for_ever.bytes
        deleted = [event.data for event in events if event.kind is EventKind.SNAPSHOT_DELETED]
        assert [one["snapshot_id"] for one in map(asdict, deleted)] == [usual.id, kept_longer.id]


# -- crashes


class _Crash(BaseException):
    pass


class _Killed(Snapshots):
    """As if the process were killed: nothing that handles errors runs."""

    async def _discard(self, making: object) -> None:
        return None


@pytest.mark.parametrize(
    ("step", "packed"),
    [
        *((step, False) for step in ("disk saved", "charged", "record stored")),
        *((step, True) for step in ("disk saved", "content stored", "charged", "record stored")),
    ],
)
async def test_a_crash_leaves_all_of_a_snapshot_or_nothing(step: str, packed: bool) -> None:
    """The next process, with the same saved disks, store and records, finds what the crash left at its first sweep."""
    reached = asyncio.Event()
    store = FakeArtifacts() if packed else None

    def fault(name: str) -> None:
        if name == step:
            reached.set()
            raise _Crash

    async with shop(snapshots={"store": store}) as w:
        session = await new(w)
        before = await save(w, session, "before")
        crashing = _Killed(
            SnapshotRecords(w.store.records, w.clock),
            w.worker,
            w.clock,
            SnapshotOptions(signer=room(w).signer, environment_of=w.environment, store=store, fault=fault),
        )
        await w.clock.advance(1)
        with pytest.raises(_Crash):
            await crashing.save(session, SnapshotWish("after"))
        assert reached.is_set()
        listed = [one.name for one in (await room(w).records.list(TENANT))[0]]
        assert listed == (["after", "before"] if step == "record stored" else ["before"])
        await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
        assert [one.name for one in (await room(w).records.list(TENANT))[0]] == listed
        rows = (await room(w).records.list(TENANT))[0]
        assert await room(w).records.used_bytes(TENANT) == sum(one.bytes for one in rows)
        if store is not None:
            assert {one.artifact_id async for one in store.list()} == {one.id for one in rows}
        assert await kept(w) == {one.id for one in rows}
        assert (await new(w, snapshot=before.id)).snapshot == before.id


@pytest.mark.parametrize("step", ["disk saved", "content stored", "charged"])
async def test_a_failed_save_leaves_nothing(step: str) -> None:
    def fault(name: str) -> None:
        if name == step:
            raise Unavailable("the disk is slow")

    store = FakeArtifacts()
    async with shop(snapshots={"store": store, "fault": fault}) as w:
        session = await new(w)
        with pytest.raises(Unavailable):
            await save(w, session, "x")
        assert await kept(w) == set()
        assert [one async for one in store.list()] == []
        assert await room(w).records.used_bytes(TENANT) == 0


async def test_a_sweep_reports_and_removes_what_has_lost_its_content_but_not_for_an_empty_store() -> None:
    async with shop() as w:
        session = await new(w)
        lost, stays = await save(w, session, "lost"), await save(w, session, "stays")
        await w.provider.saved_disks.delete(lost.id)
        with pytest.raises(NotFound, match="is gone"):
            await new(w, snapshot="lost")
        await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
        assert [one.id for one in (await room(w).records.list(TENANT))[0]] == [stays.id]
        assert await room(w).records.used_bytes(TENANT) == stays.bytes
    store = FakeArtifacts()
    async with shop(snapshots={"store": store}) as w:
        session = await new(w)
        saved = [await save(w, session), await save(w, session)]
        contents = dict(store._contents)
        store._contents.clear()  # a directory that is not mounted
        await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
        assert len((await room(w).records.list(TENANT))[0]) == 2
        store._contents.update(contents)
        await store.delete(TENANT, saved[0].id)
        await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
        assert [one.id for one in (await room(w).records.list(TENANT))[0]] == [saved[1].id]


async def test_a_sweep_removes_what_a_fork_has_left_and_nothing_of_one_that_runs() -> None:
    async with shop() as w:
        session = await new(w)
        left = await save(w, session, owner=SnapshotOwner.FORK)
        async with room(w).present(left):
            await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
            assert await kept(w) == {left.id}
        await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
        assert await kept(w) == set()
        assert not await room(w).records.exists(TENANT, left.id)


async def test_a_sweep_takes_nothing_that_is_being_made() -> None:
    async with shop() as w:
        session = await new(w)
        for _ in range(5):
            sweeping = asyncio.create_task(SnapshotExpiry(room(w), w.clock, w.store.get).sweep())
            saved = await asyncio.gather(*(save(w, session) for _ in range(4)))
            await sweeping
            assert {one.id for one in saved} <= await kept(w)


async def test_deleting_while_sessions_start_from_it_gives_a_session_or_404() -> None:
    async with shop() as w:
        source = await new(w)
        await write(w, source, "a", b"whole")
        for _ in range(10):
            await save(w, source, "x")
            w.provider.delay_s = 0.001
            starts = [asyncio.create_task(new(w, snapshot="x")) for _ in range(3)]
            await asyncio.sleep(random.random() / 500)
            await room(w).delete(TENANT, "x")
            for done in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(done, Session):
                    assert await read(w, done, "a") == b"whole"
                else:
                    assert isinstance(done, NotFound)
            assert await kept(w) == set()


# -- the store of several machines


async def test_other_workers_start_from_what_the_shared_store_has() -> None:
    store = FakeArtifacts(shared=True)
    async with shop(snapshots={"store": store, "place": "w1"}) as w:
        session = await new(w)
        await write(w, session, "a", b"far")
        saved = await save(w, session, "x")
        assert (saved.place, saved.packed) == ("", True)
        far = FakeProvider(capabilities=ABLE)
        async with world(provider=far, store=w.store, snapshots={"store": store, "place": "w2"}) as other:
            started = await new(other, snapshot="x")
            assert await read(other, started, "a") == b"far"
            assert await kept(other) == {saved.id}
            await room(other).delete(TENANT, "x")
            assert await kept(other) == set()
        assert [one async for one in store.list()] == []
        assert await kept(w) == {saved.id}
        await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
        assert await kept(w) == set()


async def test_what_another_worker_keeps_is_asked_of_it() -> None:
    async with shop(snapshots={"place": "w1"}) as w:
        saved = await save(w, await new(w), "x")
        assert saved.place == "w1"
        far = FakeProvider(capabilities=ABLE)
        async with world(provider=far, store=w.store, snapshots={"place": "w2"}) as other:
            with pytest.raises(Unavailable, match="'w1', which keeps the snapshot"):
                await new(other, snapshot="x")
            await SnapshotExpiry(room(other), other.clock, other.store.get).sweep()
            assert (await room(other).records.get(TENANT, "x")).id == saved.id


async def test_disks_are_kept_when_a_cluster_has_lost_all_its_records() -> None:
    for place, left in (("w1", True), ("", False)):
        async with shop(snapshots={"place": place}) as w:
            saved = await save(w, await new(w), "x")
            async with contextlib.aclosing(room(w).records.users()) as users:
                async for use in users:
                    await w.store.records.delete(use.kind, use.id)
            await w.store.records.delete("snapshot", f"{TENANT}/{saved.id}")
            await SnapshotExpiry(room(w), w.clock, w.store.get).sweep()
            assert await kept(w) == ({saved.id} if left else set())


async def test_disks_that_nobody_uses_make_room() -> None:
    async with shop(snapshots={"store": FakeArtifacts(), "rules": SnapshotRules(cache_bytes=1)}) as w:
        session = await new(w)
        await write(w, session, "a", b"kept")
        saved = await save(w, session, "x")
        assert await kept(w) == set()
        assert await read(w, await new(w, snapshot="x"), "a") == b"kept"
        assert await kept(w) == set()
        assert saved.packed


async def test_an_encrypted_store_has_nothing_of_the_files_and_no_disk_stays() -> None:
    store = FakeArtifacts()
    async with shop(snapshots={"store": store, "sealing": Sealing([KEY])}) as w:
        session = await new(w)
        await write(w, session, "a", b"very secret text")
        saved = await save(w, session, "x")
        assert await kept(w) == set()
        data = store._contents[TENANT, saved.id][0]
        assert b"very secret text" not in data
        assert await read(w, await new(w, snapshot="x"), "a") == b"very secret text"
        assert await kept(w) == set()
        assert b"very secret text" in await joined(transfer.download(room(w), saved))
        store._contents[TENANT, saved.id] = data[:-1], 0.0
        with pytest.raises(Unavailable, match="damaged"):
            await new(w, snapshot="x")
        assert await kept(w) == set()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
async def test_what_is_sealed_is_read_only_as_it_was(size: int) -> None:
    data = random.Random(size).randbytes(size)
    sealing = Sealing([KEY])
    sealed = await joined(sealing.seal(parts(data), "a/1"))
    assert await joined(sealing.unseal(parts(sealed), "a/1")) == data
    assert await joined(Sealing([bytes(32), KEY]).unseal(parts(sealed), "a/1")) == data
    other = await joined(sealing.seal(parts(data), "a/1"))
    head, chunk = 32, PIECE + 20
    wrong: list[tuple[bytes, str]] = [(sealed, "a/2"), (sealed[:-1], "a/1"), (sealed + b"x", "a/1"), (b"", "a/1")]
    wrong += [(other[:head] + sealed[head:], "a/1"), (sealed[: head + 10], "a/1"), (sealed[:head], "a/1")]
    if size > PIECE:
        one, two = sealed[head : head + chunk], sealed[head + chunk : head + 2 * chunk]
        wrong += [(sealed[: head + chunk], "a/1"), (sealed[:head] + two + one + sealed[head + 2 * chunk :], "a/1")]
        wrong += [(sealed[: head + chunk] + sealed[head + 2 * chunk :], "a/1")] if size > 2 * PIECE else []
        wrong += [(sealed[: head + chunk] + other[head + chunk :], "a/1")]
    for text, purpose in wrong:
        with pytest.raises(Unavailable):
            await joined(sealing.unseal(parts(text), purpose))
    with pytest.raises(Unavailable):
        await joined(Sealing([bytes(32)]).unseal(parts(sealed), "a/1"))


# -- download and upload


@pytest.mark.parametrize("size", [0, 10, 2 * PIECE, 2 * PIECE + 5])
async def test_a_file_is_taken_back_only_as_it_was_given_to_this_tenant(size: int) -> None:
    signer, data = Signer([KEY], b"p", 32), random.Random(size).randbytes(size)
    text = await joined(write_file(signer, "a", {"x": 1}, parts(data)))

    async def taken(text: bytes, tenant: str = "a", by: Signer = signer) -> bytes:
        reader = ByteReader(parts(text))
        assert await reader.up_to(len(MARK)) == MARK
        file = SignedFile(by, reader)
        assert await file.read(tenant) == {"x": 1}
        return await joined(file.content())

    assert await taken(text) == data
    assert await taken(text, by=Signer([bytes(32), KEY], b"p", 32)) == data
    other = await joined(write_file(signer, "a", {"x": 1}, parts(bytes(size))))
    head, chunk = len(MARK) + 4 + len(b'{"x": 1}') + 32, PIECE + 36
    wrong = [text[:-1], text + b"x", text[:head], text.replace(b'"x": 1', b'"x": 2', 1)]
    wrong += [text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :] for at in (len(MARK), head - 1, head, len(text) - 1)]
    if size > PIECE:
        one, two = text[head : head + chunk], text[head + chunk : head + 2 * chunk]
        wrong += [text[: head + chunk], text[:head] + two + one, text[: head + chunk] + other[head + chunk :]]
        wrong += [text[:head] + two]
    for each in wrong:
        with pytest.raises((InvalidRequest, AssertionError)):
            await taken(each)
    with pytest.raises(InvalidRequest, match="for this tenant"):
        await taken(text, "b")
    with pytest.raises(InvalidRequest, match="by this installation"):
        await taken(text, by=Signer([bytes(32)], b"p", 32))


async def put(w: World, data: bytes, tenant: str = TENANT, name: str = "", **more: Any) -> Snapshot:
    asked = transfer.Upload(SnapshotWish(name), **more)
    return await transfer.upload(w.sessions, room(w), tenant, asked, parts(data))


async def test_a_download_comes_back_with_its_name_and_its_files() -> None:
    async with shop() as w:
        session = await new(w, image="python")
        await write(w, session, "a", b"carried")
        saved = await save(w, session, "x", metadata={"k": "v"})
        data = await joined(transfer.download(room(w), saved))
        await room(w).delete(TENANT, "x")
        back = await put(w, data)
        assert (back.name, back.image, back.metadata, back.sha256) == ("x", "python", {"k": "v"}, saved.sha256)
        assert back.id != saved.id
        assert await read(w, await new(w, snapshot="x"), "a") == b"carried"
        for bad in (data[:-1], data[:200], data + b"x", data.replace(b"carried", b"changed")):
            with pytest.raises(InvalidRequest):
                await put(w, bad)
        with pytest.raises(InvalidRequest):
            await put(w, data, "other")
        assert await kept(w) == {back.id}
        assert await room(w).records.used_bytes(TENANT) == back.bytes
        assert (await put(w, data, name="other-name")).name == "other-name"


def tar_of(members: Iterable[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def gzipped(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=31)
    return deflater.compress(data) + deflater.flush()


def zstd(data: bytes) -> bytes:
    from warren.images.transfer.zstd_stream import zstd_module

    compressed: bytes = zstd_module().compress(data)
    return compressed


async def test_a_tar_becomes_a_snapshot_inside_a_sandbox_that_is_gone_afterwards() -> None:
    async with shop() as w:
        content = random.Random(1).randbytes(3 * PIECE)
        tar = tar_of([("dir/a", content), ("artifacts/b", b"")])
        half = len(tar) // 2
        for data in (tar, gzipped(tar), gzipped(tar[:half]) + gzipped(tar[half:]), zstd(tar)):
            saved = await put(w, data, name="t", environment="base", disk_mb=100)
            assert (saved.disk_mb, saved.name) == (100, "t")
            assert await read(w, await new(w, snapshot="t"), "dir/a") == content
        uploads = await w.store.list(TENANT, Page(states=frozenset({SessionState.ENDED})))
        assert len(uploads) == 4
        assert all(one.artifacts is not None and one.artifacts.saved == 0 for one in uploads)
        assert all(one.reason is EndReason.DELETED for one in uploads)
        assert await put(w, tar, path="/workspace/deep") != saved
        assert await read(w, await new(w, snapshot="t"), "dir/a") == content


async def test_a_gzip_member_may_begin_at_any_byte() -> None:
    """The first one ends a byte before the end of what is read at once."""

    def stored(data: bytes) -> bytes:
        deflater = zlib.compressobj(0, wbits=31)
        return deflater.compress(data) + deflater.flush()

    async with shop() as w:
        content = random.Random(1).randbytes(2 * PIECE)
        tar = tar_of([("a", content)])
        cut = next(n for n in range(PIECE - 2000, PIECE) if len(stored(tar[:n])) == PIECE - 1)
        await put(w, stored(tar[:cut]) + stored(tar[cut:]), name="t")
        assert await read(w, await new(w, snapshot="t"), "a") == content


async def test_hostile_uploads_leave_nothing() -> None:
    async with shop() as w:
        bad = [
            b"", b"attack", MARK, MARK + bytes(10), MARK + b"\xff" * 100, b"\x1f\x8b", gzipped(b"x" * 1000)[:-4],
            gzipped(b"no tar, no tar" * 100), zstd(b"x" * 10_000)[:-4], b"\x28\xb5\x2f\xfd" + bytes(100),
            tar_of([("../out", b"x")]), tar_of([("/etc/passwd", b"x")]), tar_of([("a", b"x" * 2000)])[:700],
            b"\x53\xef" * 4096,  # the magic of ext4, and no tar
            bytes(1080) + b"\x53\xef" * 4096, gzipped(bytes(10240)),  # as an ext4 image begins, which is a tar's end
        ]  # fmt: skip
        for data in bad:
            if data == b"":
                continue
            with pytest.raises(InvalidRequest):
                await put(w, data)
        with pytest.raises(NotFound):
            await put(w, tar_of([("a", b"")]), image="template/0/x/y")
        assert (await kept(w), w.provider.machines) == (set(), {})
        set_request_context(RequestContext(caller=Caller(scopes=frozenset({Scope.FILES}))))
        with pytest.raises(Forbidden, match="may not make one"):
            await put(w, tar_of([("a", b"")]))
        quota = Quota(environments=("other",))
        set_request_context(RequestContext(caller=Caller(quota=quota)))
        with pytest.raises(Forbidden):
            await put(w, tar_of([("a", b"")]))
        set_request_context(RequestContext())


async def test_long_labels_make_pages_short() -> None:
    async with shop() as w:
        records, labels = room(w).records, {"a": "x" * 4096, "b": "x" * 4000}
        one = await room(w).save(await new(w), SnapshotWish(metadata=labels))
        for number in range(40):
            await records.add(replace(one, id=f"snap_{number:027x}"))
        found, after = await records.list(TENANT, limit=1000)
        assert (len(found), after) == (33, found[-1].id)
        assert len((await records.list(TENANT, after=found[-1].id, limit=1000))[0]) == 8


# -- forks


async def test_forks_have_the_files_and_what_the_session_was_made_with_and_nothing_of_each_other() -> None:
    async with shop() as w:
        source = await new(
            w, thread_id="t", image="python", env={"A": "1"}, metadata={"m": "1"}, idle_timeout_s=77.0,
            limits={"memory_mb": 300, "disk_mb": 200}, on_idle=OnIdle.PAUSE, max_paused_s=88.0,
        )  # fmt: skip
        await write(w, source, "a", b"common")
        asked = forks.Fork(3, metadata={"n": "2"})
        made = (await forks.fork(w.sessions, room(w), TENANT, source.id, asked)).sessions
        assert len({one.id for one in made}) == 3
        for one in made:
            assert (one.forked_from, one.thread_id, one.image, one.env, one.limits, one.idle_timeout_s) == (
                source.id, "", "python", {"A": "1"}, source.limits, 77.0,
            )  # fmt: skip
            assert (one.on_idle, one.max_paused_s) == (OnIdle.PAUSE, 88.0)
            assert one.metadata == {"m": "1", "n": "2"}
            assert await read(w, one, "a") == b"common"
        await write(w, made[0], "a", b"changed")
        assert [await read(w, one, "a") for one in (*made[1:], source)] == [b"common"] * 3
        assert (await kept(w), await room(w).records.list(TENANT, hidden=True)) == (set(), ([], None))


async def test_what_cannot_be_forked_is_said_of_each() -> None:
    async with shop() as w:
        source, other = await new(w), await new(w, thread_id="taken")
        result = await forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(3, ("one", "taken", "two"), {}))
        assert sorted(one.thread_id for one in result.sessions) == ["one", "two"]
        assert [(at, type(exc)) for at, exc in result.errors.items()] == [(1, Conflict)]
        with pytest.raises(Conflict):
            await forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(1, ("taken",)))
        for threads in (("a",), ("a", "a")):
            with pytest.raises(InvalidRequest):
                await forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(2, threads))
        with pytest.raises(NotFound):
            await forks.fork(w.sessions, room(w), "b", source.id, forks.Fork(1))
        assert (await w.session(other)).state is SessionState.RUNNING
        assert await kept(w) == set()


async def test_a_fork_with_a_key_is_made_once() -> None:
    async with shop() as w:
        source = await new(w)
        asked = (forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(2), "key") for _ in range(3))
        first, *others = await asyncio.gather(*asked)
        assert all({one.id for one in each.sessions} == {one.id for one in first.sessions} for each in others)
        again = await forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(2), "key")
        assert {one.id for one in again.sessions} == {one.id for one in first.sessions}
        assert again.replayed
        with pytest.raises(InvalidRequest):
            await forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(3), "key")
        assert len(w.provider.machines) == 3


async def test_a_fork_that_is_cancelled_leaves_no_sessions() -> None:
    async with shop() as w:
        source = await new(w)
        w.provider.delay_s = 0.05
        task = asyncio.create_task(forks.fork(w.sessions, room(w), TENANT, source.id, forks.Fork(4)))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await w.lifecycle.wait_for_tasks()
        assert list(w.provider.machines) == [source.sandbox_id]
        assert await kept(w) == set()
