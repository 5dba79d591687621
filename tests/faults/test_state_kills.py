"""The server is killed while sessions are paused, resumed, saved, restored and forked, and volumes attached.

Whenever that is: what was acknowledged is there with the contents it had, a snapshot that is listed can be restored,
and neither a disk, a loop device, a mount nor a frozen cgroup is left that belongs to nobody.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.caller import Answer, Caller, calling
from faults.host_view import cgroups, sandboxes
from faults.invariants import settled
from faults.world import World, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

KILLS = 200
KINDS = ("attach", "detach", "fork", "pause", "restore", "resume", "save")
SEED = 20_261_118
WRITE = "head -c 3000000 /dev/urandom > kept.bin && sync && sha256sum kept.bin"


@dataclass
class Story:
    """What was acknowledged: the hash of each session's file, of each snapshot's, of each volume's."""

    sessions: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)


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
        await forget_all(caller)


async def post(caller: Caller, session: str, what: str, **body: Any) -> Answer:
    return await caller.ask("POST", f"/api/sessions/{session}/{what}", json=body)


async def filled(caller: Caller, story: Story) -> str:
    session = str((await caller.create()).good()["session_id"])
    story.sessions[session] = await written(caller, session)
    return session


async def written(caller: Caller, session: str, command: str = WRITE) -> str:
    return (await caller.output(session, command)).split()[0]


async def hash_in(caller: Caller, session: str, path: str = "kept.bin") -> str:
    return (await caller.output(session, f"sha256sum {path}")).split()[0]


async def forget_all(caller: Caller) -> None:
    for session in await caller.sessions():
        (await caller.delete(session["session_id"])).good()
    for snapshot in (await caller.ask("GET", "/api/snapshots?limit=1000")).good()["snapshots"]:
        (await caller.ask("DELETE", f"/api/snapshots/{snapshot['snapshot_id']}")).good()
    for volume in (await caller.ask("GET", "/api/volumes?limit=1000")).good()["volumes"]:
        (await caller.ask("DELETE", f"/api/volumes/{volume['name']}")).good()


async def check(world: World, caller: Caller, story: Story) -> None:
    await settled(caller, world.state_dir)
    listed = (await caller.ask("GET", "/api/snapshots?limit=1000")).good()["snapshots"]
    assert story.snapshots.keys() <= {each["snapshot_id"] for each in listed}
    await until(lambda: only_listed(world, len(listed)), "no saved disk is left without a snapshot")
    for session, known in story.sessions.items():
        assert await hash_in(caller, session) == known  # a paused one resumes
    await check_frozen(world, caller)


async def only_listed(world: World, count: int) -> bool:
    saved = world.state_dir / "disks" / "saved"
    return not saved.is_dir() or len([path for path in saved.iterdir() if path.suffix == ".img"]) == count


async def check_frozen(world: World, caller: Caller) -> None:
    """Nothing stands still but the sandboxes of paused sessions."""
    states = {session["sandbox_id"]: session["state"] for session in await caller.sessions()}
    for name in sandboxes(world.state_dir):
        if states.get(name) != "paused":
            assert not is_frozen(name), f"sandbox {name} is frozen, and {states.get(name, 'in the pool')}"


def is_frozen(sandbox: str) -> bool:
    states = [path / "freezer.state" for path in cgroups(sandbox)]
    events = [path / "cgroup.events" for path in cgroups(sandbox)]
    with contextlib.suppress(OSError):  # it has just ended
        is_frozen = any(path.exists() and path.read_text().strip() != "THAWED" for path in states)
        return is_frozen or any(path.exists() and "frozen 1" in path.read_text() for path in events)
    return False


async def check_snapshot(caller: Caller, snapshot: str, known: str) -> None:
    copy = (await caller.create(snapshot=snapshot)).good()["session_id"]
    assert await hash_in(caller, copy) == known
    (await caller.delete(copy)).good()


@pytest.mark.extended
async def test_two_hundred_kills_lose_nothing_that_was_acknowledged(world: World, caller: Caller) -> None:
    chance, story = random.Random(SEED), Story()
    volume = (await caller.ask("POST", "/api/volumes", json={"name": "lasting", "size_mb": 64})).good()["name"]
    outcomes: Counter[str] = Counter()
    reach_s = dict.fromkeys(KINDS, 0.25) | dict.fromkeys(("attach", "detach", "pause", "resume"), 0.02)
    for number in range(KILLS):
        while len(story.sessions) < 3:
            await filled(caller, story)
        first, second, third = chance.sample(sorted(story.sessions), 3)
        works = works_on(caller, story, first, second, await mounting(caller, story, third, volume, number))
        if story.snapshots:
            works["restore"] = partial(caller.create, snapshot=chance.choice(sorted(story.snapshots)))
        chosen = chance.sample(sorted(works), 3)
        if "resume" in chosen and "pause" not in chosen:
            (await post(caller, second, "pause")).good()
        working = [asyncio.ensure_future(works[kind]()) for kind in chosen]
        aim = chance.choice(chosen)  # about as often in the middle of it as behind it, however fast the machine is
        await asyncio.sleep(chance.uniform(0.0, reach_s[aim]))
        world.server.kill()
        answers = await asyncio.gather(*working)
        reach_s[aim] *= 1.25 if answers[chosen.index(aim)].cut else 0.8
        await asyncio.to_thread(world.restart)
        outcomes.update(
            f"{kind} {'cut' if answer.cut else 'done' if answer.ok else answer.status}"
            for kind, answer in zip(chosen, answers, strict=True)
        )
        await check(world, caller, story)
        if number % 10 == 9 and story.snapshots:
            snapshot = chance.choice(sorted(story.snapshots))
            await check_snapshot(caller, snapshot, story.snapshots[snapshot])
        for session in await caller.sessions():
            if session["session_id"] not in story.sessions or chance.random() < 0.2:
                (await caller.delete(session["session_id"])).good()
                story.sessions.pop(session["session_id"], None)
        for snapshot in sorted(story.snapshots)[:-5]:
            (await caller.ask("DELETE", f"/api/snapshots/{snapshot}")).good()
            del story.snapshots[snapshot]
    print(dict(sorted(outcomes.items())))
    for snapshot, known in story.snapshots.items():
        await check_snapshot(caller, snapshot, known)
    for name, known in story.volumes.items():
        session = (await caller.create(volumes=[{"name": name, "path": "/workspace/v"}])).good()["session_id"]
        assert await hash_in(caller, session, "v/data") == known
    assert not [kind for kind in KINDS if not outcomes[f"{kind} cut"] or not outcomes[f"{kind} done"]], outcomes


Works = dict[str, Callable[[], Awaitable[Answer]]]


def works_on(caller: Caller, story: Story, first: str, second: str, mounting: Works) -> Works:
    async def saved() -> Answer:
        known = story.sessions[first]
        answer = await post(caller, first, "snapshots")
        if answer.ok:
            story.snapshots[answer.body["snapshot_id"]] = known
        return answer

    return {
        "save": saved,
        "pause": lambda: post(caller, second, "pause"),
        "resume": lambda: post(caller, second, "resume"),
        "fork": lambda: post(caller, first, "fork", count=2),
        **mounting,
    }


async def mounting(caller: Caller, story: Story, session: str, volume: str, number: int) -> Works:
    """Takes the volume away from a session that has it; else mounts it there, and fills it the first time."""
    if there := (await caller.show(session)).good()["volumes"]:
        query = f"/api/sessions/{session}/volumes?path={there[0]['path']}"
        return {"detach": lambda: caller.ask("DELETE", query)}
    path = f"/workspace/v{number}"

    async def attached() -> Answer:
        answer = await post(caller, session, "volumes", name=volume, path=path)
        if answer.ok and not story.volumes:
            command = f"head -c 100000 /dev/urandom > {path}/data && sync && sha256sum {path}/data"
            ran = await caller.exec(session, command)
            if ran.ok and ran.body["exit_code"] == 0:
                story.volumes[volume] = ran.body["stdout"].split()[0]
        return answer

    return {"attach": attached}


async def test_what_was_saved_is_what_was_there_whatever_is_killed(world: World, caller: Caller) -> None:
    story = Story()
    session = await filled(caller, story)
    snapshot = (await post(caller, session, "snapshots", name="before")).good()
    story.snapshots[snapshot["snapshot_id"]] = story.sessions[session]
    story.sessions[session] = await written(caller, session)
    (await post(caller, session, "pause")).good()
    world.server.kill()
    await asyncio.to_thread(world.restart)
    assert (await caller.show(session)).good()["state"] == "paused"
    await check(world, caller, story)
    for name, known in story.snapshots.items():
        await check_snapshot(caller, name, known)
