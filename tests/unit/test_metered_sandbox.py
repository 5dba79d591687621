"""Every command passes the overseer: policies, exec seconds, word of its end."""

import asyncio
import tracemalloc
from collections.abc import Iterator

import pytest
from unit.session_world import TENANT, World, world

from warren.access.tenants import Tenant
from warren.interfaces.audit import Query
from warren.model.access import Caller, Quota
from warren.model.capability import Capability
from warren.model.code import find_language
from warren.model.errors import CommandRefused, Forbidden, QuotaExceeded, RateLimited
from warren.model.events import CommandEndedData, Event, EventKind, SessionCreatedData
from warren.model.operations import Command, Reason
from warren.model.policy import Policy
from warren.sandboxes.keepers import start_keeper
from warren.sessions.new_session import NewSession
from warren.sessions.request_context import RequestContext, set_request_context
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio

DENY = Policy.from_mapping({"mode": "enforce", "deny": ["curl"]})


@pytest.fixture(autouse=True)
def nobody_asks() -> Iterator[None]:
    set_request_context(RequestContext())
    yield
    set_request_context(RequestContext())


def heard(w: World) -> list[Event]:
    events: list[Event] = []
    w.tenancy.events.subscribe(events.append)
    return events


async def test_a_denied_command_is_a_result_that_names_the_rule_and_nothing_ran() -> None:
    async with world(policy=DENY) as w:
        events = heard(w)
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            result = await sandbox.exec(Command(shell="touch ran; curl http://x"))
            assert (result.reason, result.exit_code) == (Reason.REFUSED, 126)
            assert "curl" in result.output
            assert [info.name for info in await sandbox.list("/workspace")] == []
            assert (await sandbox.exec(Command(shell="echo fine"))).output == "fine\n"
        kinds = [event.kind for event in events]
        assert kinds == [EventKind.SESSION_CREATED, EventKind.COMMAND_REFUSED, EventKind.COMMAND_FINISHED]


async def test_a_denied_command_in_the_background_is_an_error_and_as_a_stream_says_why() -> None:
    async with world(policy=DENY) as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            with pytest.raises(CommandRefused, match="curl"):
                await sandbox.start(Command(shell="curl x"))
            process = await sandbox.start(Command(shell="curl x"), follow=True)
            said = b"".join([chunk.data async for chunk in process.output()])
            assert b"refused by policy" in said
            assert (await process.wait()).exit_code == 126
            assert not list(await sandbox.processes())


async def test_the_policy_of_a_tenant_holds_beside_that_of_the_environment() -> None:
    async with world(policy=DENY) as w:
        await w.tenancy.tenants.put(Tenant("strict", policy=Policy.from_mapping({"mode": "enforce", "deny": ["cat"]})))
        for tenant, refused in (("strict", {"curl x", "cat x"}), ("other", {"curl x"})):
            session = (await w.sessions.create(tenant, NewSession())).session
            async with w.sessions.using(tenant, session.id) as (_, sandbox):
                for line in ("curl x", "cat x", "echo x"):
                    result = await sandbox.exec(Command(shell=line))
                    assert (result.reason is Reason.REFUSED) == (line in refused)


async def test_in_audit_mode_a_command_runs_and_is_noted() -> None:
    async with world(policy=Policy.from_mapping({"mode": "audit", "deny": ["echo"]})) as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        request_context = RequestContext()
        set_request_context(request_context)
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            assert (await sandbox.exec(Command(shell="echo hi"))).output == "hi\n"
        assert (request_context.notes["policy"], request_context.notes["rule"]) == ("would refuse", "echo")


async def test_an_ended_command_is_told_and_counted() -> None:
    async with world() as w:
        events = heard(w)
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            await sandbox.exec(Command(shell="exit 3"))
            await (await sandbox.start(Command(shell="echo hi"))).wait()
        while len(events) < 3:
            await asyncio.sleep(0)
        created, *ended = [event.data for event in events]
        assert isinstance(created, SessionCreatedData)
        assert [(data.exit_code, data.background) for data in ended if isinstance(data, CommandEndedData)] == [
            (3, False),
            (0, True),
        ]
        await w.sessions.delete(TENANT, session.id)
        assert events[-1].kind is EventKind.SESSION_ENDED
        (today,) = await w.tenancy.usage.between(TENANT, *[_today(w)] * 2)
        assert (today.usage.sessions, today.usage.commands) == (1, 2)


def _today(w: World) -> "object":
    from warren.governance.usage import day_of

    return day_of(w.clock.wall())


async def test_expiry_and_loss_are_told_and_in_the_record() -> None:
    async with world() as w:
        events = heard(w)
        lost = (await w.sessions.create(TENANT, NewSession())).session
        idle = (await w.sessions.create(TENANT, NewSession())).session
        await w.lifecycle.losses.mark_lost(lost, "it died")
        await w.clock.advance(1900)
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        kinds = {(event.session_id, event.kind) for event in events}
        assert (lost.id, EventKind.SESSION_LOST) in kinds
        assert (idle.id, EventKind.SESSION_EXPIRED) in kinds
        actions = {(deed.session_id, deed.action) for deed in (await w.audit.find(Query(TENANT))).entries}
        assert {(lost.id, "session.lost"), (idle.id, "session.expired")} <= actions


async def test_a_command_whose_exec_seconds_run_out_is_ended_with_what_it_said() -> None:
    async with world() as w:
        w.tenancy.metering.slice_s = 0.3
        session = (await w.sessions.create(TENANT, NewSession())).session
        set_request_context(RequestContext(Caller(quota=Quota(exec_seconds_per_day=2))))
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            result = await sandbox.exec(Command(shell="echo begun; sleep 100"))
            assert result.output.startswith("begun\n")
            assert "exec seconds of this day are used up" in result.output
            assert result.exit_code != 0
            with pytest.raises(QuotaExceeded, match="used up"):
                await sandbox.exec(Command(shell="true"))
            with pytest.raises(QuotaExceeded, match="used up"):
                await sandbox.start(Command(shell="true"))
            assert not [info for info in await sandbox.processes() if info.running]


async def test_while_a_sandbox_is_frozen_nothing_is_paid() -> None:
    async with world(provider=FakeProvider(capabilities=frozenset({Capability.PAUSE}))) as w:
        w.tenancy.metering.slice_s = 0.02
        session = (await w.sessions.create(TENANT, NewSession())).session
        caller = Caller(quota=Quota(exec_seconds_per_day=10_000))
        set_request_context(RequestContext(caller))
        quotas = w.tenancy.metering.quotas
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            process = await sandbox.start(Command(shell="sleep 100"))
            running = asyncio.create_task(sandbox.exec(Command(shell="sleep 100")))
            while await quotas.left(caller, "exec_seconds") > 9_990:
                await asyncio.sleep(0.01)
            await w.provider.freeze(sandbox.id)
            left = await quotas.left(caller, "exec_seconds")
            await asyncio.sleep(0.3)
            assert await quotas.left(caller, "exec_seconds") >= left - 2
            await w.provider.thaw(sandbox.id)
            while await quotas.left(caller, "exec_seconds") >= left - 2:
                await asyncio.sleep(0.01)
            await process.kill(0)
            running.cancel()


async def test_a_command_whose_seconds_others_have_used_up_is_broken_off() -> None:
    async with world() as w:
        w.tenancy.metering.slice_s = 0.1
        session = (await w.sessions.create(TENANT, NewSession())).session
        caller = Caller(quota=Quota(exec_seconds_per_day=100))
        set_request_context(RequestContext(caller))
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            running = asyncio.create_task(sandbox.exec(Command(shell="sleep 100")))
            while not await sandbox.processes():
                await asyncio.sleep(0)
            assert await w.tenancy.metering.quotas.spend(caller, "exec_seconds", 90)
            await w.tenancy.metering.quotas.spend(caller, "exec_seconds", 90)
            result = await running
            assert (result.reason, result.exit_code) == (Reason.CANCELLED, 137)
            assert not [info for info in await sandbox.processes() if info.running]


async def test_however_many_run_at_once_no_more_seconds_are_used_than_there_are() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        set_request_context(RequestContext(Caller(quota=Quota(exec_seconds_per_day=7))))
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            tried = (sandbox.exec(Command(shell="true")) for _ in range(100))
            found = await asyncio.gather(*tried, return_exceptions=True)
        assert sum(isinstance(one, QuotaExceeded) for one in found) == 93


async def test_a_background_command_is_ended_when_its_seconds_run_out() -> None:
    async with world() as w:
        w.tenancy.metering.slice_s = 0.01
        session = (await w.sessions.create(TENANT, NewSession())).session
        set_request_context(RequestContext(Caller(quota=Quota(exec_seconds_per_day=3))))
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            process = await sandbox.start(Command(shell="sleep 100"))
            assert (await process.wait()).exit_code != 0


async def test_after_a_restart_running_commands_are_followed_again() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            process = await sandbox.start(Command(shell="sleep 100"))
            await start_keeper(sandbox, find_language("bash"), "ctx_bash")
        await w.worker.close()
        again = World(clock=w.clock, provider=w.provider, store=w.store)
        events = heard(again)
        await again.reaper.recover()
        await again.worker.start()
        async with again.sessions.using(TENANT, session.id) as (_, sandbox):
            await (await sandbox.process("ctx_bash")).kill(0)  # a context that waits is no command
            await (await sandbox.process(process.id)).kill(0)
        while not events:
            await asyncio.sleep(0.01)
        assert (events[0].kind, events[0].json_data()["process_id"]) == (EventKind.COMMAND_FINISHED, process.id)
        await again.tenancy.close()
        await again.worker.close()


async def test_creates_a_minute_count_new_sessions_only() -> None:
    async with world() as w:
        set_request_context(RequestContext(Caller(quota=Quota(creates_per_minute=2))))
        for _ in range(5):
            await w.sessions.create(TENANT, NewSession(thread_id="one"))
        await w.sessions.create(TENANT, NewSession(thread_id="two"))
        with pytest.raises(RateLimited, match="more than 2 creates a minute"):
            await w.sessions.create(TENANT, NewSession(thread_id="three"))
        assert not (await w.store.of_thread(TENANT, "three"))


async def test_a_longer_life_than_the_quota_allows_cannot_be_had_by_a_change_either() -> None:
    async with world() as w:
        set_request_context(RequestContext(Caller(quota=Quota(max_lifetime_s=100))))
        with pytest.raises(Forbidden, match="may live for 100 s"):
            await w.sessions.create(TENANT, NewSession(max_lifetime_s=200))
        assert (await w.sessions.create(TENANT, NewSession())).session.max_lifetime_s == 100
        session = (await w.sessions.create(TENANT, NewSession(max_lifetime_s=50))).session
        with pytest.raises(Forbidden, match="may live for 100 s"):
            await w.sessions.patch(TENANT, session.id, max_lifetime_s=101)


async def test_long_lists_of_arguments_are_not_remembered_with_their_verdicts() -> None:
    async with world(policy=Policy.from_mapping({"mode": "audit", "deny": ["curl"]})) as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        refused = w.tenancy.metering.refused
        await refused(session, Command(argv=("true", "x" * 100_000)))
        tracemalloc.start()
        try:
            for number in range(40):
                await refused(session, Command(argv=("true", f"{number}" * 100_000)))
            assert tracemalloc.get_traced_memory()[0] < 2_000_000
        finally:
            tracemalloc.stop()
