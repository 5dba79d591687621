"""A server that is stopped for a while, and a machine that was restarted."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from faults.caller import Caller, calling
from faults.conftest import StartServer
from faults.host_view import sandboxes
from faults.invariants import Ledger, check, occupied, settled
from server_process import ServerProcess

from warren.app.wiring import DATABASE
from warren.sandboxes.host.record import SandboxRecord
from warren.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    return start_server()


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with calling(server.url) as caller:
        yield caller


async def test_a_server_that_stood_still_goes_on_as_if_nothing_had_been(
    server: ServerProcess, caller: Caller, own_state: Path
) -> None:
    ledger = Ledger()
    held = await occupied(caller, ledger)
    asked = [
        asyncio.ensure_future(caller.exec(held.id, "sleep 1; echo done")),
        asyncio.ensure_future(caller.create("during the pause")),
        asyncio.ensure_future(caller.create(limits={"memory_mb": 256})),
    ]
    await asyncio.sleep(0.02)
    server.send(signal.SIGSTOP)
    await asyncio.sleep(4)
    server.send(signal.SIGCONT)
    ran, *created = await asyncio.gather(*asked)
    assert ran.good()["stdout"] == "done\n"
    for answer in created:
        ledger.holds(answer.good())
    await check(caller, own_state, ledger)


@pytest.mark.extended
async def test_after_a_restart_of_the_machine_sessions_are_lost_and_say_so(
    server: ServerProcess, caller: Caller, own_state: Path
) -> None:
    thread = (await caller.create(thread_id="t")).good()["session_id"]
    alone = (await caller.create()).good()["session_id"]
    server.kill()
    await pretend_a_reboot(own_state)
    server.start()
    for session_id in (thread, alone):
        shown = (await caller.show(session_id)).good()
        assert (shown["state"], shown["reason"], shown["detail"]) == ("lost", "lost", "the machine was restarted")
        refused = await caller.exec(session_id, "true")
        assert (refused.status, refused.body["code"]) == (410, "sandbox_lost")
        assert "the machine was restarted" in refused.body["detail"]
    assert (await caller.create(thread_id="t")).status == 410
    fresh = (await caller.create(thread_id="t", replace_lost=True)).good()
    assert fresh["previous"]["session_id"] == thread
    assert fresh["previous"]["detail"] == "the machine was restarted"
    (await caller.delete(alone)).good()
    await settled(caller, own_state)


async def pretend_a_reboot(state_dir: Path) -> None:
    """All that was running is gone, and what was written down is of another boot."""
    for name in sandboxes(state_dir):
        directory = state_dir / "sandboxes" / name
        record = SandboxRecord.load(directory)
        if record is not None:
            if record.alive():
                os.kill(record.pid, signal.SIGKILL)
            replace(record, boot_id="another boot").save(directory)
    store = await SqliteStore.open(state_dir / DATABASE)
    for session in await store.active():
        assert await store.swap(session.changed(epoch="another boot"))
    await store.close()
