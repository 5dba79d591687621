"""The server is killed while it saves artifacts, step by step and at random moments.

Whenever that is: what was acknowledged is there with the right content, nothing is listed of which the content is
missing or half, the next start leaves no temporary file and no content without a record, and a session whose end was
interrupted has saved everything when it has ended.
"""

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from faults.caller import Answer, Caller, calling
from faults.world import World, until
from marks import first_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

FILES = 12
ROUNDS = 20
SEED = 20_261_116
FILL = f"mkdir -p artifacts; for i in $(seq {FILES}); do head -c $((i * 150000)) /dev/urandom > artifacts/$i; done"
PUTS = [f"artifacts content {step}" for step in ("begun", "written", "synced", "in place", "stored")]
SAVES = [*PUTS, *(f"{step} 5" for step in PUTS), "artifacts record stored", "artifacts record stored 5"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def world(image_cache: Path) -> AsyncIterator[World]:
    world = await asyncio.to_thread(World, image_cache)
    yield world
    await asyncio.to_thread(world.close)


@pytest.fixture
async def caller(world: World) -> AsyncIterator[Caller]:
    async with calling(world.server.url) as caller:
        yield caller


async def filled(caller: Caller) -> tuple[str, dict[str, str]]:
    """A session with files to save: its id, and the hash of each."""
    session_id = (await caller.create()).good()["session_id"]
    said = await caller.output(session_id, f"{FILL}; cd artifacts; sha256sum *")
    return session_id, {name: digest for digest, name in (line.split() for line in said.splitlines())}


async def save(caller: Caller, session_id: str) -> Answer:
    return await caller.ask("POST", f"/api/sessions/{session_id}/artifacts", json={"paths": ["artifacts"]})


async def check(world: World, caller: Caller) -> dict[str, dict[str, str]]:
    """Everything that is listed can be read as it was, and nothing else is on the disk. Gives hashes by session."""
    directory = world.state_dir / "artifacts"
    found: list[dict[str, Any]] = []

    async def is_settled() -> bool:
        """Sessions that a killed server was ending save what they have once more."""
        nonlocal found
        ending = await caller.sessions(state="stopping")
        found = (await caller.ask("GET", "/api/artifacts?limit=1000")).good()["artifacts"]
        # A tenant's empty directory is removed under it, which `os.walk` does not mind.
        on_disk = {name for _, _, names in os.walk(directory) for name in names if name.startswith("art_")}
        half = list((directory / ".saving").iterdir())
        return not ending and not half and on_disk == {one["artifact_id"] for one in found}

    await until(is_settled, "neither half a content nor one without a record is left")
    by_session: dict[str, dict[str, str]] = {}
    for one in found:
        content = (directory / "default" / one["artifact_id"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (one["size"], one["sha256"])
        by_session.setdefault(one["session_id"], {})[one["name"]] = one["sha256"]
    return by_session


async def forget_all(caller: Caller) -> None:
    for one in (await caller.ask("GET", "/api/artifacts?limit=1000")).good()["artifacts"]:
        await caller.ask("DELETE", f"/api/artifacts/{one['artifact_id']}")


@pytest.mark.parametrize("step", first_of(SAVES))
async def test_killed_while_it_saves_what_was_asked_for(world: World, caller: Caller, step: str) -> None:
    session_id, hashes = await filled(caller)
    answer = await world.crash(caller, step, lambda caller: save(caller, session_id))
    assert answer.cut
    there = (await check(world, caller)).get(session_id, {})
    assert there.items() <= hashes.items()
    assert len((await save(caller, session_id)).good()["artifacts"]) == FILES
    assert (await check(world, caller))[session_id] == hashes
    (await caller.delete(session_id)).good()
    assert (await check(world, caller))[session_id] == hashes
    await forget_all(caller)


@pytest.mark.parametrize(
    "step", first_of(["lifecycle stopping", *SAVES, "lifecycle artifacts saved", "lifecycle destroyed"])
)
async def test_killed_while_a_session_ends(world: World, caller: Caller, step: str) -> None:
    session_id, hashes = await filled(caller)
    answer = await world.crash(caller, step, lambda caller: caller.delete(session_id))
    assert answer.cut
    assert (await caller.delete(session_id)).good()["state"] == "ended"
    assert (await check(world, caller))[session_id] == hashes
    await forget_all(caller)


@pytest.mark.extended
async def test_twenty_kills_at_random_moments_lose_nothing(world: World, caller: Caller) -> None:
    chance = random.Random(SEED)
    cut = 0
    for _ in range(ROUNDS):
        sessions = dict([await filled(caller) for _ in range(2)])
        ids = list(sessions)
        working = [asyncio.create_task(save(caller, ids[0])), asyncio.create_task(caller.delete(ids[1]))]
        await asyncio.sleep(chance.uniform(0.0, 0.25))
        world.server.kill()
        saved, ended = await asyncio.gather(*working)
        await asyncio.to_thread(world.restart)
        cut += saved.cut + ended.cut
        there = await check(world, caller)
        if saved.ok:
            assert there[ids[0]] == sessions[ids[0]]
        if ended.ok:
            assert there[ids[1]] == sessions[ids[1]]
        for session_id in ids:
            if session_id in {one["session_id"] for one in await caller.sessions()} or not ended.cut:
                (await caller.delete(session_id)).good()
        assert await check(world, caller) == sessions
        await forget_all(caller)
    assert cut > ROUNDS / 2
