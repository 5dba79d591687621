"""Sessions as callers see them: made once, kept by use, gone in time, and honest about it."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from unit.session_world import TENANT, FullStore, world

from warren.interfaces.store import NO_CAPS, Caps, Page
from warren.model.access import Caller
from warren.model.errors import (
    InvalidRequest,
    KeyReused,
    NoCapacity,
    NoSpace,
    ProviderUnavailable,
    SandboxLost,
    SessionEnded,
    SessionMismatch,
    SessionNotFound,
    Stopping,
    WarrenError,
)
from warren.model.operations import Command
from warren.model.session import EndReason, Session, SessionState
from warren.model.spec import Layer, Limits
from warren.model.tenant_images import pulled_image
from warren.sessions.mismatches import find_mismatch, is_same_image
from warren.sessions.new_session import NewSession, fingerprint
from warren.sessions.request_context import RequestContext, set_request_context
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio


async def test_a_hundred_first_calls_of_a_thread_make_one_sandbox() -> None:
    async with world(provider=FakeProvider(delay_s=0.01)) as w:
        wanted = NewSession(thread_id="conv")
        opened = await asyncio.gather(*(w.sessions.create(TENANT, wanted) for _ in range(100)))
        assert len({each.session.id for each in opened}) == 1
        assert sum(each.created for each in opened) == 1
        assert w.provider.created == 1


@pytest.mark.parametrize(
    ("has", "asked", "differs"),
    [
        ({"environment": "python"}, {}, {}),
        ({"environment": "python", "limits": {"pids": 50}}, {"environment": "python", "limits": {"pids": 50}}, {}),
        ({}, {"env": {"A": "1"}, "metadata": {"a": "b"}, "require": frozenset({Layer.SECCOMP})}, {}),
        ({}, {"environment": "python"}, {"environment": ("base", "python")}),
        ({}, {"environment": "base", "image": "base", "limits": {"memory_mb": 512, "cpus": 0.5}}, {}),
        ({"image": "python"}, {"environment": "base", "image": "node"}, {"image": ("python", "node")}),
        ({}, {"limits": {"pids": 60, "cpus": 2}}, {"limits.pids": (256, 60), "limits.cpus": (0.5, 2)}),
        ({}, {"provider": "fake"}, {}),
        ({}, {"provider": "oci", "gpus": ()}, {"provider": ("fake", "oci")}),
        ({}, {"gpus": ("any", "1")}, {"gpus": ([], ["any", "1"])}),
        ({}, {"agent_config": {"environment": "Node", "limits": {"pids": 9}}, "limits": {"pids": 256}},
         {"environment": ("base", "Node")}),
        ({"image": "team/app:1"}, {"environment": "docker.io/team/app:1"}, {}),
        ({"image": "team/app:1"}, {"environment": "team/app:2"}, {"image": ("team/app:1", "team/app:2")}),
    ],
)  # fmt: skip
async def test_a_thread_s_session_is_compared_with_what_a_request_names(
    has: dict[str, Any], asked: dict[str, Any], differs: dict[str, Any]
) -> None:
    async with world(provider=FakeProvider(images=frozenset({"base", "python", "node", "team/app:1"}))) as w:
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv", **has))).session
        kept = await w.sessions.create(TENANT, NewSession(thread_id="conv", **asked, on_mismatch="keep"))
        assert {name: (each["has"], each["asked"]) for name, each in kept.mismatch.items()} == differs
        assert kept.session.id == row.id
        await w.clock.advance(50)
        wanted = NewSession(thread_id="conv", **asked)
        if not differs:
            assert (await w.sessions.create(TENANT, wanted)).session.id == row.id
            return
        with pytest.raises(SessionMismatch) as caught:
            await w.sessions.create(TENANT, wanted)
        assert caught.value.mismatch == kept.mismatch
        assert (await w.session(row)).used == row.used, "a refused request is no use"


async def test_a_pulled_image_and_a_processor_are_the_same_by_all_their_names() -> None:
    assert is_same_image("python:3.12", pulled_image("acme", "docker.io/library/python:3.12"))
    assert not is_same_image("python:3.12", pulled_image("acme", "python:3.13"))
    assert not is_same_image("python", "python:latest"), "the one is an image of this machine"
    row = Session(id="s", tenant="t", environment="base", epoch="e", created_at=0, started=0, used=0, gpus=("0",))
    for asked, same in ((("any",), True), (("0",), True), (("GPU-5c3a",), True), (("1",), False), ((), False)):
        assert (not find_mismatch(row, NewSession(gpus=asked), "base", Limits())) is same


async def test_a_refused_wish_leaves_its_key_to_the_request_that_replaces() -> None:
    async with world() as w:
        old = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        other = NewSession(thread_id="conv", environment="python")
        for _ in range(2):
            with pytest.raises(SessionMismatch):
                await w.sessions.create(TENANT, other, "k")
        wanted = replace(other, on_mismatch="replace")
        new = await w.sessions.create(TENANT, wanted, "r")
        again = await w.sessions.create(TENANT, wanted, "r")
        assert (new.created, again.replayed) == (True, True)
        assert new.session.id == again.session.id != old.id
        assert (await w.session(old)).reason is EndReason.REPLACED
        assert len(await w.provider.list_ids()) == 1


def test_the_usual_answer_to_a_mismatch_does_not_change_what_a_key_stands_for() -> None:
    assert fingerprint(NewSession(thread_id="conv")) == (
        "5b1af00f8279651b9c542b4c3180c36d08d70fe9c38c98fb03352ea45cbb6ec1"
    )
    assert fingerprint(NewSession(on_mismatch="keep")) != fingerprint(NewSession())


async def test_threads_of_two_tenants_do_not_meet() -> None:
    async with world() as w:
        one = await w.sessions.create("one", NewSession(thread_id="conv"))
        two = await w.sessions.create("two", NewSession(thread_id="conv"))
        assert one.session.sandbox_id != two.session.sandbox_id
        with pytest.raises(SessionNotFound) as caught:
            await w.sessions.get("two", one.session.id)
        assert caught.value.remedy == "create one: POST /api/sessions"
        set_request_context(RequestContext(Caller("two", "key_first")))
        with pytest.raises(SessionNotFound) as caught:
            await w.sessions.get("two", one.session.id)
        assert "reaches the sessions of the tenant 'two'; for another tenant's: warren keys" in caught.value.remedy


async def test_a_failed_create_is_told_to_all_who_wait_and_leaves_the_thread_free() -> None:
    async with world() as w:
        w.worker.no_claims = ProviderUnavailable("the engine is away")
        wanted = NewSession(thread_id="conv")
        results = await asyncio.gather(*(w.sessions.create(TENANT, wanted) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, WarrenError) for result in results)
        w.worker.no_claims = None
        assert (await w.sessions.create(TENANT, wanted)).created


async def test_the_same_key_gives_the_same_session_and_another_request_is_refused() -> None:
    async with world() as w:
        first = await w.sessions.create(TENANT, NewSession(metadata={"a": "1"}), "k")
        again = await w.sessions.create(TENANT, NewSession(metadata={"a": "1"}), "k")
        assert again.session.id == first.session.id
        assert again.replayed
        with pytest.raises(KeyReused):
            await w.sessions.create(TENANT, NewSession(metadata={"a": "2"}), "k")
        await w.sessions.delete(TENANT, first.session.id)
        after = await w.sessions.create(TENANT, NewSession(metadata={"a": "1"}), "k")
        assert (after.session.id, after.session.state) == (first.session.id, SessionState.ENDED)


async def test_a_key_whose_create_failed_can_be_used_again() -> None:
    async with world() as w:
        w.worker.no_claims = ProviderUnavailable("the engine is away")
        with pytest.raises(ProviderUnavailable):
            await w.sessions.create(TENANT, NewSession(), "k")
        w.worker.no_claims = None
        assert (await w.sessions.create(TENANT, NewSession(), "k")).created


async def test_a_caller_that_goes_away_leaves_no_sandbox_that_nobody_can_ask_for() -> None:
    async with world(provider=FakeProvider(delay_s=0.02)) as w:
        task = asyncio.ensure_future(w.sessions.create(TENANT, NewSession()))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await w.lifecycle.wait_for_tasks()
        assert await w.provider.list_ids() == []
        assert await w.store.list(TENANT, Page()) == []


async def test_a_caller_that_goes_away_gives_up_its_place_in_the_queue() -> None:
    async with world(provider=FakeProvider(delay_s=600)) as w:
        request_context = asyncio.ensure_future(w.sessions.create(TENANT, NewSession()))
        while not w.worker.stats().pools["base"].waiting:
            await asyncio.sleep(0)
        (row,) = await w.store.list(TENANT, Page())
        looking = asyncio.ensure_future(w.lifecycle.starting.wait_until_settled(row))
        await asyncio.sleep(0)
        request_context.cancel()
        await asyncio.wait([request_context])
        await w.lifecycle.wait_for_tasks()
        assert w.worker.stats().pools["base"].waiting == 0
        ended = await w.session(row)
        assert (ended.reason, ended.detail) == (EndReason.FAILED, "the caller went away")
        await w.clock.advance(1)
        assert await looking == ended


async def test_a_caller_of_a_thread_that_goes_away_leaves_the_session_to_the_others() -> None:
    async with world(provider=FakeProvider(delay_s=0.02)) as w:
        first = asyncio.ensure_future(w.sessions.create(TENANT, NewSession(thread_id="conv")))
        await asyncio.sleep(0.005)
        second = asyncio.ensure_future(w.sessions.create(TENANT, NewSession(thread_id="conv")))
        await asyncio.sleep(0.005)
        first.cancel()
        assert (await second).session.state is SessionState.RUNNING
        assert w.provider.created == 1


async def test_use_keeps_a_session_and_looking_does_not() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=100))).session
        await w.clock.advance(90)
        await w.sessions.get(TENANT, row.id)
        await w.store.list(TENANT, Page())
        async with w.sessions.using(TENANT, row.id, counts=False):
            pass
        assert (await w.session(row)).used == row.used
        async with w.sessions.using(TENANT, row.id) as (_, sandbox):
            await sandbox.exec(Command(shell="true"))
        await w.clock.advance(90)
        await w.reaper.tick()
        assert (await w.session(row)).state is SessionState.RUNNING
        await w.clock.advance(20)
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        ended = await w.session(row)
        assert (ended.state, ended.reason) == (SessionState.ENDED, EndReason.IDLE)
        assert await w.provider.list_ids() == []


async def test_a_long_operation_keeps_its_session_and_its_end_counts_as_use() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=100, max_lifetime_s=10000))).session
        async with w.sessions.using(TENANT, row.id):
            for _ in range(30):
                await w.clock.advance(10)
                await w.reaper.tick()
        now = w.clock.now()
        assert (await w.session(row)).used > now - 11
        await w.clock.advance(90)
        await w.reaper.tick()
        assert (await w.session(row)).state is SessionState.RUNNING


async def test_the_maximum_lifetime_ends_also_a_session_in_use() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(max_lifetime_s=50))).session

        async def use_for_long() -> None:
            async with w.sessions.using(TENANT, row.id) as (_, sandbox):
                await w.clock.advance(51)
                await w.reaper.tick()
                await w.lifecycle.wait_for_tasks()
                await sandbox.ping()

        with pytest.raises(SessionEnded, match="maximum lifetime"):
            await use_for_long()


async def test_renewal_and_expiry_never_both_win() -> None:
    for _ in range(50):
        async with world() as w:
            row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=10))).session
            await w.clock.advance(11)
            renewed, _ = await asyncio.gather(
                w.sessions.keep_alive(TENANT, row.id), w.reaper.tick(), return_exceptions=True
            )
            await w.lifecycle.wait_for_tasks()
            state = (await w.session(row)).state
            assert (state is SessionState.RUNNING) == isinstance(renewed, Session)


async def test_keep_alive_starts_the_idle_clock_anew_and_not_the_lifetime() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=100, max_lifetime_s=150))).session
        await w.clock.advance(90)
        kept = await w.sessions.keep_alive(TENANT, row.id)
        assert kept.used == w.clock.now()
        assert kept.deadline == row.started + 150


async def test_patch_merges_metadata_and_checks_what_it_is_given() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(metadata={"a": "1", "b": "2"}))).session
        new = await w.sessions.patch(TENANT, row.id, idle_timeout_s=7, metadata={"b": None, "c": "3"})
        assert (new.idle_timeout_s, new.metadata) == (7.0, {"a": "1", "c": "3"})
        with pytest.raises(InvalidRequest):
            await w.sessions.patch(TENANT, row.id, max_lifetime_s=0)
        assert await w.session(row) == new


async def test_a_lost_sandbox_is_reported_and_replaced_only_when_asked() -> None:
    async with world() as w:
        losses = asyncio.ensure_future(w.reaper.watch_losses(w.worker))
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        w.provider.lose(row.sandbox_id, "its first process has ended")
        for _ in range(10):
            await asyncio.sleep(0)
        lost = await w.session(row)
        assert (lost.state, lost.detail) == (SessionState.LOST, "its first process has ended")
        with pytest.raises(SandboxLost, match="its first process has ended"):
            async with w.sessions.using(TENANT, row.id):
                pass
        with pytest.raises(SandboxLost, match="its first process has ended"):
            await w.sessions.create(TENANT, NewSession(thread_id="conv"))
        fresh = await w.sessions.create(TENANT, NewSession(thread_id="conv", replace_lost=True))
        assert fresh.created
        assert fresh.session.previous is not None
        assert (fresh.session.previous.session_id, fresh.session.previous.reason) == (row.id, EndReason.LOST)
        losses.cancel()


async def test_a_thread_whose_session_expired_is_told_so() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv", idle_timeout_s=10))).session
        await w.clock.advance(12)
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        fresh = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        assert fresh.previous is not None
        assert (fresh.previous.session_id, fresh.previous.reason) == (row.id, EndReason.IDLE)


async def test_delete_is_idempotent_and_says_later_that_it_was_deleted() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        await asyncio.gather(w.sessions.delete(TENANT, row.id), w.sessions.delete(TENANT, row.id))
        assert (await w.sessions.delete(TENANT, row.id)).state is SessionState.ENDED
        with pytest.raises(SessionEnded, match="it was deleted"):
            async with w.sessions.using(TENANT, row.id):
                pass
        assert await w.provider.list_ids() == []


async def test_a_deletion_is_acknowledged_when_the_store_has_the_end() -> None:
    async with world() as w:
        w.fault = lambda step: setattr(w.store, "full", w.store.full or step == "destroyed")
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        deleting = [asyncio.ensure_future(w.sessions.delete(TENANT, row.id)) for _ in range(2)]
        await w.clock.advance(1)
        assert not any(task.done() for task in deleting)
        assert (await w.session(row)).state is SessionState.STOPPING
        w.store.full = False
        await w.clock.advance(1)
        assert [(await task).state for task in deleting] == [SessionState.ENDED] * 2
        assert (await w.session(row)).state is SessionState.ENDED


async def test_a_deletion_that_the_store_cannot_save_is_refused_and_saved_later() -> None:
    async with world() as w:
        w.fault = lambda step: setattr(w.store, "full", w.store.full or step == "destroyed")
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        for _ in range(2):
            deleting = asyncio.ensure_future(w.sessions.delete(TENANT, row.id))
            for _ in range(2):
                await w.clock.advance(5)
            with pytest.raises(NoSpace):
                await deleting
        assert await w.provider.list_ids() == []
        w.store.full = False
        await w.reaper.tick()
        assert (await w.session(row)).state is SessionState.ENDED
        assert (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).created


async def test_a_deletion_whose_caller_goes_away_is_done_all_the_same() -> None:
    async with world(store=SlowStore()) as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        deleting = asyncio.ensure_future(w.sessions.delete(TENANT, row.id))
        while (await w.session(row)).state is SessionState.RUNNING:
            await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.wait([deleting])
        assert deleting.cancelled()
        await w.lifecycle.wait_for_tasks()
        assert (await w.session(row)).state is SessionState.ENDED
        assert await w.provider.list_ids() == []


class SlowStore(FullStore):
    """It takes a while until one hears of a change that was made."""

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        done = await super().swap(session, caps)
        await asyncio.sleep(0.01)
        return done


async def test_deleting_a_session_while_it_is_made_leaves_nothing() -> None:
    async with world(provider=FakeProvider(delay_s=0.02)) as w:
        creating = asyncio.ensure_future(w.sessions.create(TENANT, NewSession(thread_id="conv")))
        await asyncio.sleep(0.005)
        row = await w.sessions.of_thread(TENANT, "conv")
        assert row.state is SessionState.CREATING
        await w.sessions.delete(TENANT, row.id)
        with pytest.raises(SessionEnded):
            await creating
        await w.lifecycle.wait_for_tasks()
        assert await w.provider.list_ids() == []


async def test_a_store_that_is_full_fails_the_create_and_leaves_no_sandbox() -> None:
    async with world() as w:
        w.store.full = True
        with pytest.raises(NoSpace):
            await w.sessions.create(TENANT, NewSession(thread_id="conv"))
        assert await w.provider.list_ids() == []
        w.store.full = False
        await w.reaper.tick()
        assert (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).created


class RefusingStore(FullStore):
    """A store that takes no changes of some sessions."""

    refused: frozenset[str] = frozenset()

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        if session.id in self.refused:
            raise NoSpace("this one does not fit")
        return await super().swap(session, caps)


async def test_sessions_that_the_store_refuses_to_end_keep_no_others_from_expiry() -> None:
    store = RefusingStore()
    async with world(store=store) as w:
        ended, first, second, kept = [
            (await w.sessions.create(TENANT, NewSession(idle_timeout_s=idle_s))).session for idle_s in (60, 60, 61, 900)
        ]
        w.worker.no_destroying = ProviderUnavailable("the engine is away")
        with pytest.raises(ProviderUnavailable):
            await w.sessions.delete(TENANT, ended.id)
        w.worker.no_destroying = None
        for row in (first, kept):
            w.lifecycle.activity.unsaved_ends[row.id] = row.moved_to(SessionState.STOPPING).moved_to(SessionState.ENDED)
        store.refused = frozenset({first.id, kept.id})
        await w.clock.advance(90)
        with pytest.raises(NoSpace):
            await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        assert (await w.session(second)).reason is EndReason.IDLE
        assert (await w.session(ended)).reason is EndReason.DELETED
        assert set(await w.provider.list_ids()) == {first.sandbox_id, kept.sandbox_id}


async def test_a_server_that_stops_takes_no_work_and_waits_for_what_runs() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, row.id):
            stopping = asyncio.ensure_future(w.sessions.stop(30, destroy=True))
            await asyncio.sleep(0)
            with pytest.raises(Stopping):
                await w.sessions.create(TENANT, NewSession())
            with pytest.raises(Stopping):
                async with w.sessions.using(TENANT, row.id):
                    pass
            assert not stopping.done()
        await stopping
        assert (await w.session(row)).reason is EndReason.SHUTDOWN
        assert await w.provider.list_ids() == []


async def test_a_sandbox_that_cannot_be_destroyed_now_is_destroyed_later() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        w.worker.no_destroying = ProviderUnavailable("the engine is away")
        with pytest.raises(ProviderUnavailable):
            await w.sessions.delete(TENANT, row.id)
        w.worker.no_destroying = None
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        assert (await w.session(row)).state is SessionState.ENDED
        assert await w.provider.list_ids() == []


async def test_an_error_nobody_foresaw_keeps_no_other_session_from_expiring() -> None:
    async with world() as w:
        stuck = (await w.sessions.create(TENANT, NewSession())).session
        other = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=10))).session
        w.worker.no_destroying = RuntimeError("a bug")
        with pytest.raises(RuntimeError):
            await w.sessions.delete(TENANT, stuck.id)
        reaping = asyncio.ensure_future(w.reaper.run())
        await w.clock.advance(20)
        assert (await w.session(other)).state is SessionState.STOPPING
        w.worker.no_destroying = None
        await w.clock.advance(1)
        await w.lifecycle.wait_for_tasks()
        assert {(await w.session(row)).state for row in (stuck, other)} == {SessionState.ENDED}
        assert not reaping.done()
        reaping.cancel()


async def test_the_reaper_outlives_a_row_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=10))).session

        async def broken() -> None:
            raise KeyError("a row of another version")

        w.store.first = broken
        reaping = asyncio.ensure_future(w.reaper.run())
        await w.clock.advance(20)
        await w.lifecycle.wait_for_tasks()
        assert (await w.session(row)).reason is EndReason.IDLE
        assert "a row of another version" in caplog.text
        reaping.cancel()


async def test_a_thread_whose_session_ends_while_it_is_asked_for_gets_a_new_one() -> None:
    async with world() as w:
        first = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        await w.clock.advance(60)
        w.store.first = lambda: w.sessions.delete(TENANT, first.id)
        second = await w.sessions.create(TENANT, NewSession(thread_id="conv"))
        assert second.created
        assert second.session.id != first.id


async def test_of_a_session_that_ended_little_is_kept_however_much_it_had() -> None:
    async with world() as w:
        long = NewSession(
            metadata={str(number): "x" * 1000 for number in range(60)},
            env={f"{'N' * 1000}{number}": "" for number in range(60)},
        )
        session = (await w.sessions.create(TENANT, long)).session
        ended = await w.sessions.delete(TENANT, session.id)
        assert list(ended.metadata) == ["0", "1", "2", "3"]
        assert len(ended.env) == 4


async def test_of_a_session_that_ended_only_the_names_of_its_variables_are_kept() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(env={"TOKEN": "secret"}))).session
        assert (await w.session(row)).env == {"TOKEN": "secret"}
        assert (await w.sessions.delete(TENANT, row.id)).env == {"TOKEN": ""}
        assert (await w.session(row)).env == {"TOKEN": ""}


@pytest.mark.parametrize("env", [{"A": "é" * 70_000}, {f"A{number}": "x" * 100_000 for number in range(11)}])
async def test_variables_no_program_could_start_with_are_refused(env: dict[str, str]) -> None:
    async with world() as w:
        with pytest.raises(InvalidRequest, match="bytes"):
            await w.sessions.create(TENANT, NewSession(env=env))
        assert list(await w.store.list(TENANT, Page())) == []


async def test_use_that_a_full_store_cannot_note_is_noted_later_and_disturbs_nobody() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=100))).session
        await w.clock.advance(90)
        w.store.full = True
        await w.sessions.uses.record(TENANT, row.id)
        await w.clock.advance(60)
        await w.reaper.tick()
        assert (await w.session(row)).used == row.used
        w.store.full = False
        await w.reaper.tick()
        assert (await w.session(row)).used == w.clock.now()


async def test_a_session_is_shown_also_while_its_sandbox_cannot_be_reached() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        w.worker.no_sandboxes = ProviderUnavailable("the engine is away")
        assert await w.sessions.find_sandbox(row) is None
        w.worker.no_sandboxes = None
        assert await w.sessions.find_sandbox(row) is not None


async def test_the_life_of_a_session_is_logged_as_events(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warren.sessions")
    async with world() as w:
        ended = (await w.sessions.create(TENANT, NewSession())).session
        lost = (await w.sessions.create(TENANT, NewSession())).session
        await w.sessions.delete(TENANT, ended.id)
        await w.lifecycle.losses.mark_lost(lost, "the sandbox is lost: killed")
        w.worker.no_claims = NoCapacity("there is no room")
        with pytest.raises(NoCapacity):
            await w.sessions.create(TENANT, NewSession())
    events = [(record.message, record.fields) for record in caplog.records]  # type: ignore[attr-defined]
    assert [name for name, _ in events] == [
        "session_created",
        "session_created",
        "session_ended",
        "session_lost",
        "session_not_created",
    ]
    created, values = events[0][1], {"session": ended.id, "tenant": TENANT}
    assert created == {
        **values,
        "environment": "base",
        "sandbox": ended.sandbox_id,
        "pooled": ended.pooled,
        "ms": created["ms"],
    }
    assert events[2][1] == {**values, "reason": EndReason.DELETED, "detail": None}
    assert events[3][1] == {"session": lost.id, "tenant": TENANT, "detail": "killed"}
    assert events[4][1]["detail"] == "there is no room"


async def test_a_session_shows_the_gpus_it_got_and_keeps_them_over_a_restart() -> None:
    async with world(provider=FakeProvider(gpus=("0", "1"))) as w:
        made = (await w.sessions.create(TENANT, NewSession(gpus=("any",)))).session
        assert made.gpus == ("0",)
        assert (await w.sessions.create(TENANT, NewSession(gpus=("1",)))).session.gpus == ("1",)
        with pytest.raises(NoCapacity, match="no free GPU"):
            await w.sessions.create(TENANT, NewSession(gpus=("any",)))
        assert (await w.sessions.create(TENANT, NewSession())).session.gpus == ()
        async with world(clock=w.clock, provider=w.provider, store=w.store) as again:
            with pytest.raises(NoCapacity, match="no free GPU"):
                await again.sessions.create(TENANT, NewSession(gpus=("any",)))
            await again.sessions.delete(TENANT, made.id)
            assert (await again.sessions.create(TENANT, NewSession(gpus=("any",)))).session.gpus == ("0",)


async def test_without_gpus_a_request_for_one_says_who_can_allow_it() -> None:
    async with world() as w:
        with pytest.raises(InvalidRequest, match="does not have the capability gpu") as refused:
            await w.sessions.create(TENANT, NewSession(gpus=("any",)))
        assert "option gpus" in refused.value.remedy
