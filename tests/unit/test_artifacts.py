"""Artifacts without a server: whose they are, what they may use, when they expire, what a sweep removes."""

import tracemalloc
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.session_world import TENANT, world

from warren.model.artifact import ArtifactRules, check_name, mime_of, name_of
from warren.model.errors import InvalidRequest, LimitReached, NotFound, QuotaExceeded
from warren.model.events import Event, EventKind
from warren.model.session import EndReason, Session
from warren.sessions.artifact_expiry import ArtifactExpiry
from warren.sessions.artifacts import Artifacts
from warren.sessions.event_hub import EventHub
from warren.sessions.new_session import NewSession
from warren.sessions.operations.call import Call, OperationContext
from warren.sessions.operations.code_artifacts import CellArtifacts
from warren.sessions.schemas import CodeBody
from warren.stores.memory import MemoryStore
from warren.stores.session_json import decode_session, encode_session
from warren.testing.fake_artifacts import FakeArtifacts
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

SESSION = Session("ses_1", "a", "base", "epoch", 0.0, 0.0, 0.0)


def new(**parts: Any) -> tuple[Artifacts, FakeArtifacts, ManualClock]:
    store, clock = FakeArtifacts(), ManualClock()
    return Artifacts(MemoryStore().records, store, clock, **parts), store, clock


async def kept(store: FakeArtifacts) -> list[str]:
    return [one.artifact_id async for one in store.list()]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/workspace/artifacts/a/b.png", "a/b.png"),
        ("/workspace/out/b.png", "out/b.png"),
        ("/tmp/b.png", "tmp/b.png"),
        ("/workspace/artifacts/../c", "c"),
    ],
)
def test_the_name_of_a_file(path: str, name: str) -> None:
    assert check_name(name_of(path)) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/../b", "/a", "a//b", "a\0b", "x" * 1025])
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)


def test_mime_types_do_not_depend_on_the_machine() -> None:
    assert [mime_of(name) for name in ("a.png", "a.tar.gz", "a.unknown", "A.PDF")] == [
        "image/png", "application/gzip", "application/octet-stream", "application/pdf",
    ]  # fmt: skip


async def test_tenants_do_not_see_each_others() -> None:
    artifacts, _, _ = new()
    mine = await artifacts.save_bytes(SESSION, "a.png", "image/png", b"mine")
    other = replace(SESSION, tenant="a.b", id="ses_2")
    theirs = await artifacts.save_bytes(other, "b.png", "image/png", b"theirs")
    for tenant, own, foreign in (("a", mine, theirs), ("a.b", theirs, mine)):
        assert await artifacts.records.list(tenant) == ([own], None)
        assert await artifacts.records.list(tenant, session_id=foreign.session_id) == ([], None)
        with pytest.raises(NotFound):
            await artifacts.records.get(tenant, foreign.id)
        with pytest.raises(NotFound):
            await artifacts.delete(tenant, foreign.id)


async def test_a_quota_bounds_the_tenant_and_is_given_back() -> None:
    told: list[Session] = []

    async def bound_of(session: Session) -> int:
        return 10

    async def report(session: Session) -> None:
        told.append(session)

    artifacts, store, _ = new(bound_of=bound_of, report_limit=report)
    first = await artifacts.save_bytes(SESSION, "1", "text/plain", b"123456")
    with pytest.raises(QuotaExceeded):
        await artifacts.save_bytes(replace(SESSION, id="ses_2"), "2", "text/plain", b"123456")
    assert (len(told), await artifacts.records.used_bytes("a"), len(await kept(store))) == (1, 6, 1)
    await artifacts.delete("a", first.id)
    assert await artifacts.records.used_bytes("a") == 0
    await artifacts.save_bytes(SESSION, "2", "text/plain", b"1234567890")


async def test_a_session_may_save_so_much() -> None:
    artifacts, _, _ = new(rules=ArtifactRules(max_bytes=10, max_count=2))
    await artifacts.save_bytes(SESSION, "1", "text/plain", b"")
    with pytest.raises(LimitReached):
        await artifacts.save_bytes(SESSION, "2", "text/plain", b"12345678901")
    await artifacts.save_bytes(SESSION, "2", "text/plain", b"1")
    with pytest.raises(LimitReached):
        await artifacts.save_bytes(SESSION, "3", "text/plain", b"")


async def test_the_results_of_a_cell_that_are_saved_have_a_bound() -> None:
    """Code of a stranger can show hundreds of thousands, each of which would wait for the disk."""
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        artifacts, store, _ = new()
        unused: Any = None
        context = OperationContext(
            sessions=w.sessions, provider="", environments=unused, default_environment="", images=unused,
            artifacts=artifacts,
        )  # fmt: skip
        call = Call(context, TENANT, session.id)
        cell = CellArtifacts(call, CodeBody(code="", save_results=True))
        for _ in range(160):
            await cell.take("cell_1", {"png": "AAAA", "svg": "<svg/>"})
        saved = (await cell.view())["saved"]
    assert (len(saved["artifacts"]), saved["left_out_count"], len(saved["left_out"])) == (200, 120, 100)
    assert len(await kept(store)) == 200


async def test_globs_of_callers_are_not_kept() -> None:
    artifacts, _, _ = new()
    await artifacts.save_bytes(SESSION, "plot.png", "image/png", b"1")

    async def look(first: int, count: int) -> None:
        for number in range(first, first + count):
            assert await artifacts.records.list("a", name="*[pq]*" * 10 + str(number)) == ([], None)

    await look(0, 600)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await look(600, 1000)
        assert tracemalloc.get_traced_memory()[0] - before < 1_500_000
    finally:
        tracemalloc.stop()
    found, _ = await artifacts.records.list("a", name="*.p[mn]g")
    assert [one.name for one in found] == ["plot.png"]


async def test_expired_ones_are_gone_at_once_and_removed_later() -> None:
    artifacts, store, clock = new(rules=ArtifactRules(ttl_s=100))
    one = await artifacts.save_bytes(SESSION, "1", "text/plain", b"x")
    await clock.advance(101)
    assert await artifacts.records.list("a") == ([], None)
    with pytest.raises(NotFound):
        await artifacts.records.get("a", one.id)
    await ArtifactExpiry(artifacts, clock).expire()
    assert (await kept(store), await artifacts.records.used_bytes("a")) == ([], 0)


async def test_a_sweep_removes_contents_without_records_and_counts_anew() -> None:
    artifacts, store, clock = new()
    one = await artifacts.save_bytes(SESSION, "1", "text/plain", b"x")

    async def crash() -> AsyncGenerator[bytes, None]:
        yield b"left by a crash"

    await store.put("a", one.id[:-4] + "0000", crash())
    await artifacts.records.change_use("a", 100, None)
    await ArtifactExpiry(artifacts, clock).sweep()
    assert (await kept(store), await artifacts.records.used_bytes("a")) == ([one.id], 1)


async def test_an_event_tells_of_each_and_a_broken_sandbox_ends_all_the_same() -> None:
    events: list[Event] = []
    artifacts, _, _ = new(events=EventHub(events.append))
    await artifacts.save_bytes(SESSION, "1", "text/plain", b"x")

    async def broken() -> Any:
        raise RuntimeError("no sandbox")

    saved = await artifacts.save_at_end(SESSION, broken)
    assert saved is not None
    assert (saved.saved, saved.left_out_count, saved.left_out[0].why) == (0, 1, "it could not be read")
    assert [event.kind for event in events] == [EventKind.ARTIFACT_CREATED, EventKind.ARTIFACT_LEFT_OUT]
    assert await artifacts.save_at_end(replace(SESSION, reason=EndReason.LOST), broken) is None
    row = replace(SESSION, artifacts=saved)
    assert decode_session(encode_session(row)) == row


async def test_a_store_that_is_elsewhere_is_not_read(tmp_path: Path) -> None:
    records = MemoryStore().records
    worker = Artifacts(records, FakeArtifacts(), ManualClock(), place="worker-1")
    coordinator = Artifacts(records, None, ManualClock())
    one = await worker.save_bytes(SESSION, "1", "text/plain", b"x")
    assert await coordinator.records.get("a", one.id) == one
    await coordinator.delete("a", one.id)
    await ArtifactExpiry(worker, ManualClock()).sweep()
    with pytest.raises(NotFound):
        await worker.records.get("a", one.id)
