"""Nothing that ran goes uncounted: however a command ends, and whoever sees it."""

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from unit.session_world import TENANT, World, world

from warren.access.tenants import Tenant
from warren.governance.quotas import Quotas
from warren.governance.usage import day_of
from warren.interfaces.sandbox import Sandbox
from warren.model.access import Caller, Quota
from warren.model.errors import Unavailable
from warren.model.operations import Command, Reason
from warren.model.policy import Policy
from warren.model.usage import Usage
from warren.sessions.idempotency import exec_once
from warren.sessions.new_session import NewSession
from warren.sessions.request_context import RequestContext, set_request_context

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def nobody_asks() -> Iterator[None]:
    set_request_context(RequestContext())
    yield
    set_request_context(RequestContext())


async def used(w: World) -> Usage:
    today: date = day_of(w.clock.wall())
    (row,) = await w.tenancy.usage.between(TENANT, today, today)
    return row.usage


async def until_running(sandbox: Sandbox) -> None:
    while not [info for info in await sandbox.processes() if info.running]:
        await asyncio.sleep(0)


async def test_a_command_whose_caller_leaves_is_counted_for_the_time_it_had() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            running = asyncio.create_task(sandbox.exec(Command(shell="sleep 100")))
            await until_running(sandbox)
            await w.clock.advance(30)
            running.cancel()
            await asyncio.wait([running])
        assert running.cancelled()
        counted = await used(w)
        assert (counted.commands, counted.exec_s) == (1, 30)


async def test_a_command_that_is_broken_off_is_counted_for_the_time_it_had() -> None:
    async with world() as w:
        w.tenancy.metering.slice_s = 0.05
        session = (await w.sessions.create(TENANT, NewSession())).session
        set_request_context(RequestContext(caller := Caller(quota=Quota(exec_seconds_per_day=1000))))
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            running = asyncio.create_task(sandbox.exec(Command(shell="sleep 100")))
            await until_running(sandbox)
            await w.clock.advance(20)
            await w.tenancy.metering.quotas.spend(caller, "exec_seconds", 1000)
            assert (await running).reason is Reason.CANCELLED
        assert (await used(w)).exec_s == 20


async def test_a_background_command_that_goes_with_its_session_is_counted() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            await sandbox.start(Command(shell="sleep 100"))
        await w.clock.advance(40)
        await w.sessions.delete(TENANT, session.id)
        while not (counted := await used(w)).commands:
            await asyncio.sleep(0.01)
        assert 39 < counted.exec_s <= 40


async def test_after_a_restart_running_commands_are_still_paid_for() -> None:
    async with world() as w:
        await w.tenancy.tenants.put(Tenant(TENANT, Quota(exec_seconds_per_day=3)))
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            process = await sandbox.start(Command(shell="sleep 100"))
        await w.worker.close()
        again = World(clock=w.clock, provider=w.provider, store=w.store)
        again.tenancy.metering.slice_s = 0.01
        await again.reaper.recover()
        await again.worker.start()
        async with again.sessions.using(TENANT, session.id) as (_, sandbox):
            assert (await (await sandbox.process(process.id)).wait()).exit_code != 0
        await again.tenancy.close()
        await again.worker.close()


async def test_a_background_command_runs_on_while_nobody_can_say_what_is_left() -> None:
    async with world() as w:
        w.tenancy.metering.slice_s = 0.01
        tried = asyncio.Event()

        async def no_store(tenant: str, what: str) -> float:
            tried.set()
            raise Unavailable("the store does not answer")

        session = (await w.sessions.create(TENANT, NewSession())).session
        set_request_context(RequestContext(caller := Caller(quota=Quota(exec_seconds_per_day=1000))))
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            process = await sandbox.start(Command(shell="sleep 100"))
            w.tenancy.metering.quotas = Quotas(w.clock, spent_before=no_store)
            await tried.wait()
            assert await w.tenancy.metering.can_go_on(caller)
            assert (await w.tenancy.usage.between(TENANT, *[day_of(w.clock.wall())] * 2))[0].usage.commands == 0
            await process.kill(0)


async def test_a_refused_command_with_a_key_and_stdin_is_a_result_like_any_other() -> None:
    deny = Policy.from_mapping({"mode": "enforce", "deny": ["curl"]})
    async with world(policy=deny) as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        for _ in range(2):
            notes = await noted(w, session.id, Command(shell="curl x"), b"in")
            assert (notes["exit_code"], notes["reason"]) == (126, "refused")
        assert notes["replayed"]


async def test_what_is_answered_again_is_noted_like_the_first_time() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        first = await noted(w, session.id, Command(shell="exit 5"), b"")
        again = await noted(w, session.id, Command(shell="exit 5"), b"")
        told = ("command", "exit_code", "reason", "session_id")
        assert [again[name] for name in told] == [first[name] for name in told] == ["exit 5", 5, "exited", session.id]
        assert again["replayed"]
        assert "replayed" not in first


async def noted(w: World, session_id: str, command: Command, stdin: bytes) -> dict[str, Any]:
    set_request_context(request_context := RequestContext())
    await w.sessions.get(TENANT, session_id)
    await exec_once(w.sessions, TENANT, session_id, command, stdin, "key")
    return request_context.notes
