"""What a new server makes of what the one before it left."""

import asyncio

import pytest
from unit.session_world import TENANT, World, world

from warren.model.errors import InvalidRequest, KeyReused, SandboxLost, UnknownUser
from warren.model.operations import Command
from warren.model.session import EndReason, SessionState
from warren.sessions.idempotency import exec_once
from warren.sessions.new_session import NewSession
from warren.stores.session_json import decode_session, encode_session
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class Crash(BaseException):
    """The server is gone at this point."""


def crashing_at(step: str) -> object:
    def fault(at: str) -> None:
        if at == step:
            raise Crash

    return fault


async def test_a_running_session_goes_on_with_its_files_and_commands() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        async with w.sessions.using(TENANT, row.id) as (_, sandbox):
            await sandbox.write("f", b"kept")
            await sandbox.start(Command(shell="sleep 60"), process_id="bg")
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            same = await next_one.sessions.create(TENANT, NewSession(thread_id="conv"))
            assert same.session.id == row.id
            async with next_one.sessions.using(TENANT, row.id) as (_, sandbox):
                assert b"".join([part async for part in sandbox.read("f")]) == b"kept"
                assert [info.id for info in await sandbox.processes() if info.running] == ["bg"]


async def test_a_session_keeps_the_agent_that_it_was_made_for() -> None:
    inline = {"description": "mine", "limits": {"memory_mb": 256}, "env": {"TOKEN": "hidden"}, "idle_timeout_s": 60}
    async with world() as w:
        named = (await w.sessions.create(TENANT, NewSession(agent_config="coder"))).session
        own = (await w.sessions.create(TENANT, NewSession(agent_config=inline, limits={"pids": 99}))).session
    assert (named.agent, named.agent_config["name"], named.environment) == ("coder", "coder", "base")
    assert named.limits is not None
    assert (named.limits.memory_mb, named.limits.pids) == (1024, 512)
    assert own.limits is not None
    assert (own.agent, own.limits.memory_mb, own.limits.pids, own.idle_timeout_s) == ("", 256, 99, 60)
    assert (own.env, own.agent_config["env_names"]) == ({"TOKEN": "hidden"}, ["TOKEN"])
    for row in (named, own):
        assert decode_session(encode_session(row)) == row
    async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
        assert (await next_one.session(named)).agent_config == named.agent_config


async def test_what_the_request_says_itself_wins_over_its_agent() -> None:
    async with world() as w:
        asked = NewSession(agent_config="coder", environment="other", limits={"memory_mb": 128}, idle_timeout_s=77)
        row = (await w.sessions.create(TENANT, asked)).session
        assert row.limits is not None
        assert (row.environment, row.limits.memory_mb, row.limits.pids, row.idle_timeout_s) == ("other", 128, 512, 77)
        for config, error in (
            ("coded", "there is no agent 'coded'"),
            ({"tools": ["nothing"]}, "there is no tool 'nothing'"),
            ({"environment": "nowhere"}, "there is no environment 'nowhere'"),
            ({"prompt": {"name": "coding", "variables": {"x": "y"}}}, "has no variable 'x'"),
            ({"tool": []}, "agent_config: there is no key 'tool'"),
        ):
            with pytest.raises(InvalidRequest, match=error):
                await w.sessions.create(TENANT, NewSession(agent_config=config), "key")
        first = await w.sessions.create(TENANT, NewSession(agent_config="coder"), "key")
        assert (await w.sessions.create(TENANT, NewSession(agent_config="coder"), "key")).session.id == first.session.id
        with pytest.raises(KeyReused):
            await w.sessions.create(TENANT, NewSession(), "key")


@pytest.mark.parametrize("step", ["stored", "claimed"])
async def test_a_session_half_made_is_undone_and_its_sandbox_destroyed(step: str) -> None:
    async with world(fault=crashing_at(step)) as w:
        w.store.full = step == "stored"  # a server that is gone writes no end down
        with pytest.raises(Crash):
            await w.sessions.create(TENANT, NewSession(thread_id="conv"), "k")
        row = await w.sessions.of_thread(TENANT, "conv")
        assert row.state is SessionState.CREATING
        w.store.full = False
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            assert (await next_one.session(row)).reason is EndReason.UNDONE
            again = await next_one.sessions.create(TENANT, NewSession(thread_id="conv"), "k")
            assert again.created
            assert await next_one.provider.list_ids() == [again.session.sandbox_id]


async def test_a_session_that_was_being_ended_is_ended() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        await w.store.swap(row.moved_to(SessionState.STOPPING, reason=EndReason.DELETED))
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            await next_one.lifecycle.wait_for_tasks()
            assert (await next_one.session(row)).state is SessionState.ENDED
            assert await next_one.provider.list_ids() == []


async def test_a_sandbox_that_died_meanwhile_is_reported_lost() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        w.provider.lose(row.sandbox_id, "somebody killed it")
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            with pytest.raises(SandboxLost, match="somebody killed it"):
                async with next_one.sessions.using(TENANT, row.id):
                    pass


async def test_after_a_restart_of_the_machine_every_session_is_lost_and_says_so() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(thread_id="conv"))).session
        later = ManualClock(5.0, epoch="boot-2")
        async with world(clock=later, store=w.store) as next_one:
            lost = await next_one.session(row)
            assert (lost.state, lost.detail) == (SessionState.LOST, "the machine was restarted")
            assert lost.deadline > later.now()


async def test_the_time_a_server_was_away_does_not_count_as_idle_to_the_last_second() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=300))).session
        await w.clock.advance(1000)
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            await next_one.reaper.tick()
            assert (await next_one.session(row)).state is SessionState.RUNNING
            await next_one.clock.advance(70)
            await next_one.reaper.tick()
            await next_one.lifecycle.wait_for_tasks()
            assert (await next_one.session(row)).reason is EndReason.IDLE


async def test_setting_the_time_of_day_changes_no_deadline() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(idle_timeout_s=100))).session
        for wall in (4_000_000_000.0, 0.0):
            w.clock.set_wall(wall)
            await w.reaper.tick()
            assert (await w.session(row)).state is SessionState.RUNNING


# -- commands that run once


async def run_once(w: World, session_id: str, line: str, key: str, stdin: bytes = b"") -> str:
    result = await exec_once(w.sessions, TENANT, session_id, Command(shell=line), stdin, key)
    return result.output


async def test_a_command_with_a_key_runs_once_and_gives_the_same_answer() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        line = "echo ran >> log; cat log"
        assert [await run_once(w, row.id, line, "k") for _ in range(3)] == ["ran\n"] * 3
        assert await run_once(w, row.id, line, "other") == "ran\nran\n"
        with pytest.raises(KeyReused):
            await run_once(w, row.id, "echo else", "k")


async def test_the_answer_is_there_after_a_restart_and_after_the_session() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        assert await run_once(w, row.id, "echo once", "k") == "once\n"
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            assert await run_once(next_one, row.id, "echo once", "k") == "once\n"
            await next_one.sessions.delete(TENANT, row.id)
            assert await run_once(next_one, row.id, "echo once", "k") == "once\n"


async def test_the_answer_is_there_when_the_values_of_the_sessions_variables_are_forgotten() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession(env={"A": "b"}))).session
        before, after = (Command(shell="echo $A", base_env={"A": value}) for value in ("b", ""))
        once = await exec_once(w.sessions, TENANT, row.id, before, b"", "k")
        await w.sessions.delete(TENANT, row.id)
        assert await exec_once(w.sessions, TENANT, row.id, after, b"", "k") == once


async def test_a_command_whose_server_died_before_the_answer_is_waited_for_and_not_run_again() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        line = "sleep 0.05; echo ran >> log; cat log"
        cut_off = asyncio.ensure_future(run_once(w, row.id, line, "k"))
        await asyncio.sleep(0.02)
        cut_off.cancel()
        async with world(clock=w.clock, provider=w.provider, store=w.store) as next_one:
            assert [await run_once(next_one, row.id, line, "k") for _ in range(2)] == ["ran\n"] * 2


async def test_a_command_that_cannot_start_frees_its_key() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        with pytest.raises(UnknownUser):
            await exec_once(w.sessions, TENANT, row.id, Command(shell="true", user="nobody-here"), b"", "k")
        assert await run_once(w, row.id, "echo now", "k") == "now\n"


async def test_stdin_with_a_key_is_bounded() -> None:
    async with world() as w:
        row = (await w.sessions.create(TENANT, NewSession())).session
        assert await run_once(w, row.id, "cat", "k", b"some") == "some"
        with pytest.raises(InvalidRequest, match="stdin"):
            await run_once(w, row.id, "cat", "k2", bytes(65 * 1024))
