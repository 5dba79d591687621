"""The time of day jumps by a day, forwards and backwards, under a running server: nobody notices but the calendar.

The server runs under libfaketime, which reads the offset from a file. It leaves the clock that deadlines are counted on
alone, as a machine whose clock is set does.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from faults.caller import Caller, calling
from faults.conftest import StartServer
from faults.invariants import Ledger, check, occupied
from faults.test_kill_points import has_ended
from faults.world import until
from marks import first_of
from server_process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.serial, pytest.mark.extended]

DAY_S = 86400.0


@pytest.fixture
def offset(own_state: Path) -> Path:
    path = own_state / "offset"
    path.write_text("+0")
    return path


@pytest.fixture
def server(start_server: StartServer, offset: Path) -> Iterator[ServerProcess]:
    before = {*Path("/dev/shm").glob("*faketime*")}
    [library] = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    server = start_server(
        LD_PRELOAD=str(library),
        FAKETIME_TIMESTAMP_FILE=str(offset),
        FAKETIME_NO_CACHE="1",
        NO_FAKE_STAT="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    yield server
    server.kill()
    for path in {*Path("/dev/shm").glob("*faketime*")} - before:  # what the library of a killed process leaves
        path.unlink()


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with calling(server.url) as caller:
        yield caller


def jump(offset: Path, days: int) -> None:
    new = offset.with_suffix(".new")
    new.write_text(f"{days:+d}d")
    new.rename(offset)


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC).timestamp()


@pytest.mark.parametrize("days", first_of([1, -1]), ids=["forward", "back"])
async def test_nothing_expires_early_or_late_when_the_clock_is_set(
    server: ServerProcess, caller: Caller, own_state: Path, offset: Path, days: int
) -> None:
    ledger = Ledger()
    lasting = await occupied(caller, ledger)
    short = (await caller.create(idle_timeout_s=6)).good()["session_id"]
    begun = time.monotonic()
    jump(offset, days)
    await check(caller, own_state, ledger)
    shown = (await caller.show(short)).good()
    assert shown["state"] == "running" or time.monotonic() - begun > 5
    await until(lambda: has_ended(caller, short), "it has expired")
    assert 5 < time.monotonic() - begun < 25
    await check_commands(caller, lasting.id)
    server.kill()
    server.start()
    await check(caller, own_state, ledger)


async def check_commands(caller: Caller, session_id: str) -> None:
    begun = time.monotonic()
    result = (await caller.exec(session_id, "sleep 60", timeout_s=1)).good()
    assert result["reason"] == "timeout"
    assert 0.9 < time.monotonic() - begun < 20
    result = (await caller.exec(session_id, "sleep 1; echo slept", timeout_s=30)).good()
    assert (result["reason"], result["stdout"]) == ("exited", "slept\n")


async def test_keys_are_answered_whatever_the_clock_says(caller: Caller, offset: Path) -> None:
    session_id = (await caller.create("made once")).good()["session_id"]
    first = (await caller.exec(session_id, "echo x >> once; cat once", key="k")).good()
    for days in (1, -1, 0):
        jump(offset, days)
        await asyncio.sleep(0.6)  # the reaper has looked at it
        assert (await caller.create("made once")).good()["session_id"] == session_id
        assert (await caller.exec(session_id, "echo x >> once; cat once", key="k")).good() == first


async def test_what_is_shown_follows_the_clock(caller: Caller, offset: Path) -> None:
    old = (await caller.create(idle_timeout_s=600)).good()
    for days in (1, -1):
        jump(offset, days)
        now = time.time() + days * DAY_S
        new = (await caller.create(idle_timeout_s=600)).good()
        assert abs(moment(new["created_at"]) - now) < 60
        assert abs(moment(new["expires_at"]) - (now + 600)) < 60
        shown: dict[str, Any] = (await caller.show(old["session_id"])).good()
        assert shown["created_at"] == old["created_at"]
        assert abs(moment(shown["expires_at"]) - (now + 600)) < 60
