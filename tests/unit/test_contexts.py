"""What the server remembers of code contexts, and how long it waits for them."""

import asyncio

import pytest
from unit.session_world import TENANT, world

from warren.model.errors import Unavailable
from warren.model.operations import Command
from warren.sessions.contexts import Contexts, with_keeper
from warren.sessions.new_session import NewSession

pytestmark = pytest.mark.anyio


async def test_a_cell_does_not_wait_for_a_context_that_took_the_place_of_its_own() -> None:
    """Restarted while the cell's output was read: the id is that of a context which may run for hours."""
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            known = Contexts()
            await known.keeper_of(sandbox, session, "ctx_bash")
            async with asyncio.timeout(10):
                assert await known.note_lost(sandbox, "ctx_bash") == "killed"
            assert [one.state for one in await known.list(sandbox)] == ["idle"]


async def test_variables_of_contexts_that_are_remembered_have_a_bound() -> None:
    """Nobody tells when a session has ended, and with it its contexts."""
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            known = Contexts(most=100, max_bytes=10_000)
            made = [await known.create(sandbox, session, "bash", env={"A": "x" * 3000}) for _ in range(5)]
            assert repr(known) == "<Contexts: 3 remembered>"
            for one in made:
                await known.delete(sandbox, one.id)
            await known.create(sandbox, session, "bash", env={"A": "x" * 9000})
            assert repr(known) == "<Contexts: 1 remembered>"


async def test_a_restarted_server_knows_how_a_context_was_created() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            made = await Contexts().create(sandbox, session, "bash", cwd="/tmp", env={"A": "x\ny", "B": "="}, idle_s=77)
            later = Contexts()
            assert (await later.restart(sandbox, session, made.id)).cwd == "/tmp"
            keeper = await later.keeper_of(sandbox, session, made.id)
            assert (keeper.cwd, keeper.env, keeper.idle_s) == ("/tmp", {"A": "x\ny", "B": "="}, 77)
            await later.delete(sandbox, made.id)
            assert repr(later) == "<Contexts: 0 remembered>"


async def test_contexts_are_listed_oldest_first_and_a_restarted_server_knows_whose_they_are() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            made = [
                await Contexts().create(sandbox, session, language, user=user)
                for language, user in (("bash", ""), ("python", "root"), ("bash", ""))
            ]
            later = Contexts()
            assert [one.id for one in await later.list(sandbox)] == [one.id for one in made]
            for again in (False, True):  # as it was found, and as it was started anew
                keepers = [await later.keeper_of(sandbox, session, one.id, look=again) for one in made]
                assert [keeper.user for keeper in keepers] == ["", "root", ""]
                commands = [with_keeper(Command(argv=("cell",)), keeper) for keeper in keepers]
                assert [command.user for command in commands] == ["", "root", ""]
                await later.restart(sandbox, session, made[1].id)


async def test_a_context_that_does_not_get_ready_holds_up_others_for_a_bounded_time() -> None:
    async with world() as w:
        session = (await w.sessions.create(TENANT, NewSession())).session
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            known = Contexts(turn_s=0.2)
            keeper = await known.keeper_of(sandbox, session, "ctx_bash")
            async with known._turn(sandbox):  # as while an interpreter is started
                async with asyncio.timeout(10):
                    assert await known.keeper_of(sandbox, session, "ctx_bash", look=True) is keeper
                    with pytest.raises(Unavailable, match="being started"):
                        await known.keeper_of(sandbox, session, "ctx_python", look=True)
                    with pytest.raises(Unavailable, match="being started"):
                        await known.create(sandbox, session, "bash")
            assert (await known.keeper_of(sandbox, session, "ctx_python")).language.name == "python"
