"""The server is killed at every step of everything it does; after a restart the invariants hold.

All cases use one server after another over one state directory, with two sessions that were there from the
beginning: their files and their counting processes outlive every kill.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.caller import Answer, Caller, calling
from faults.faulty_server import arm
from faults.invariants import COUNTER, Held
from faults.world import World, until
from marks import first_of

from warren.sandboxes.providers.oci import STEPS as PROVIDER_STEPS
from warren.sessions.lifecycle import STEPS as LIFECYCLE_STEPS
from warren.worker.options import STEPS as WORKER_STEPS

pytestmark = pytest.mark.anyio

OLD, NEW = b"old\n" * 50_000, b"new\n" * 500_000
ONCE = "cat; echo x >> once.txt; sleep 0.3; echo done"


class Worlds:
    """One world for all cases; another only when a case has left the last one broken."""

    def __init__(self, image_cache: Path) -> None:
        self._image_cache = image_cache
        self._world: World | None = None

    async def sound(self) -> World:
        if self._world is not None and await self._world.sound():
            return self._world
        await asyncio.to_thread(self.close)
        self._world = World(self._image_cache, "--makers", "0")  # a maker takes the steps of the provider
        await self._world.people()
        return self._world

    def close(self) -> None:
        if self._world is not None:
            self._world.close()


@pytest.fixture(scope="module")
def worlds(image_cache: Path) -> Iterator[Worlds]:
    worlds = Worlds(image_cache)
    yield worlds
    worlds.close()


@pytest.fixture
async def world(worlds: Worlds) -> World:
    return await worlds.sound()


@pytest.fixture
async def caller(world: World) -> AsyncIterator[Caller]:
    lasting = tuple(world.ledger.held)
    async with calling(world.server.url) as caller:
        yield caller
        if world.server.alive:
            await world.tidy(caller, *lasting)


async def a_session(world: World, caller: Caller, **body: Any) -> Held:
    return world.ledger.holds((await caller.create(**body)).good())


def around(*calls: str) -> list[str]:
    return [f"{when} {call}" for call in calls for when in ("before", "after")]


# -- create

BEGIN = [f"lifecycle {step}" for step in LIFECYCLE_STEPS[:3]]
CREATE = [*around("store add"), *BEGIN, *around("store swap")]
POOLED = [*CREATE, f"worker {WORKER_STEPS[0]}"]
COLD = [*BEGIN, f"worker {WORKER_STEPS[1]}", *(f"provider {step}" for step in PROVIDER_STEPS)]


@pytest.mark.parametrize("step", first_of(POOLED))
async def test_killed_while_it_creates_from_the_pool(world: World, caller: Caller, step: str) -> None:
    answer = await world.crash(caller, step, lambda caller: caller.create())
    assert answer.cut
    await world.check(caller)


@pytest.mark.parametrize("step", first_of(COLD))
async def test_killed_while_it_makes_a_sandbox(world: World, caller: Caller, step: str) -> None:
    answer = await world.crash(caller, step, lambda caller: caller.create(limits={"memory_mb": 256}))
    assert answer.cut
    await world.check(caller)


@pytest.mark.parametrize("step", first_of(POOLED))
async def test_a_thread_whose_create_was_killed_has_one_session_in_the_end(
    world: World, caller: Caller, step: str
) -> None:
    await world.crash(caller, step, lambda caller: caller.create(thread_id="t-1"))
    answers = await asyncio.gather(*(caller.create(thread_id="t-1") for _ in range(5)))
    assert len({answer.good()["session_id"] for answer in answers}) == 1
    assert len(await caller.sessions(thread_id="t-1")) == 1
    world.ledger.holds(answers[0].good())
    await world.check(caller)


@pytest.mark.parametrize("step", first_of(POOLED))
async def test_a_create_with_a_key_that_is_repeated_gives_one_session(world: World, caller: Caller, step: str) -> None:
    def create(caller: Caller) -> Any:
        return caller.create(key=f"create {step}", metadata={"by": "key"})

    await world.crash(caller, step, create)
    answers = await asyncio.gather(*(create(caller) for _ in range(5)))
    assert len({answer.good()["session_id"] for answer in answers}) == 1
    assert len(await caller.sessions(metadata="by=key")) == 1
    world.ledger.holds(answers[0].good())
    await world.check(caller)


# -- exec


@pytest.mark.parametrize("step", first_of(around("sandbox exec")))
async def test_killed_while_a_command_runs(world: World, caller: Caller, step: str) -> None:
    held = await a_session(world, caller)
    answer = await world.crash(caller, step, lambda caller: caller.exec(held.id, "echo x > ran.txt"))
    assert answer.cut
    await world.check(caller)
    assert await caller.output(held.id, "cat ran.txt || true") in ("", "x\n")


KEYED = around("store claim_key", "sandbox exec", "store answer_key", "sandbox forget")


@pytest.mark.parametrize("step", first_of(KEYED))
async def test_a_command_with_a_key_that_is_repeated_ran_once(world: World, caller: Caller, step: str) -> None:
    held = await a_session(world, caller)
    answer = await world.crash(caller, step, lambda caller: caller.exec(held.id, ONCE, key="k"))
    assert answer.cut
    repeated = await asyncio.gather(*(caller.exec(held.id, ONCE, key="k") for _ in range(3)))
    assert [(one.good()["exit_code"], one.good()["stdout"]) for one in repeated] == [(0, "done\n")] * 3
    assert await caller.output(held.id, "cat once.txt") == "x\n"
    await world.check(caller)


async def test_a_command_with_a_key_goes_on_while_no_server_is_there(world: World, caller: Caller) -> None:
    held = await a_session(world, caller)
    request_context = asyncio.ensure_future(caller.exec(held.id, ONCE.replace("0.3", "1"), key="k"))
    await until(lambda: caller.output(held.id, "cat once.txt || true"), "the command has begun")
    world.server.kill()
    assert (await request_context).cut
    world.restart()
    result = (await caller.exec(held.id, ONCE.replace("0.3", "1"), key="k")).good()
    assert (result["exit_code"], result["stdout"]) == (0, "done\n")
    assert await caller.output(held.id, "cat once.txt") == "x\n"
    await world.check(caller)


STDIN = around("store claim_key", "sandbox start", "process write", "store answer_key", "process close_stdin")


@pytest.mark.parametrize("step", first_of([*STDIN, "after store answer_key 2"]))
async def test_a_command_with_a_key_never_runs_on_half_of_its_stdin(world: World, caller: Caller, step: str) -> None:
    held = await a_session(world, caller)

    def run(caller: Caller) -> Any:
        return caller.exec(held.id, "cat > all.txt && echo x >> once.txt", key="k", stdin="0123456789" * 1000)

    await world.crash(caller, step, run)
    first, again = (await run(caller)).good(), (await run(caller)).good()
    assert first == again
    assert first["reason"] in ("exited", "cancelled")
    ran = await caller.output(held.id, "cat once.txt || true")
    assert ran == ("x\n" if first["exit_code"] == 0 else "")
    if first["exit_code"] == 0:
        assert await caller.output(held.id, "wc -c < all.txt") == "10000\n"
    await world.check(caller)


@pytest.mark.parametrize("step", first_of(around("sandbox start")))
async def test_a_background_process_is_started_once(world: World, caller: Caller, step: str) -> None:
    held = await a_session(world, caller)
    await world.crash(caller, step, lambda caller: caller.start(held.id, COUNTER, "mine"))
    again = await caller.start(held.id, COUNTER, "mine")
    assert again.status in (201, 409), again
    held.counter = "mine"
    await world.check(caller)
    counters = (await caller.output(held.id, "pgrep -f 'n=0; whil[e]'")).split()
    parents = (await caller.output(held.id, f"ps -o ppid= -p {','.join(counters)}; true")).split()
    # Between its fork and its exec, a `sleep` has the command line of its shell.
    assert len([parent for parent in parents if parent not in counters]) == 1, (counters, parents)


async def test_a_stream_that_is_killed_ends_and_the_session_goes_on(world: World, caller: Caller) -> None:
    held = await a_session(world, caller)
    command = "touch begun; while :; do echo y; sleep 0.05; done"
    request_context = asyncio.ensure_future(caller.exec(held.id, command, stream=True))
    await until(lambda: caller.output(held.id, "ls begun || true"), "the stream has begun")
    world.server.kill()
    assert (await request_context).cut
    world.restart()
    await world.check(caller)


# -- upload


@pytest.mark.parametrize("step", first_of(around("sandbox write")))
async def test_an_upload_that_is_killed_leaves_the_old_file_or_the_new(world: World, caller: Caller, step: str) -> None:
    held = await a_session(world, caller)
    (await caller.upload(held.id, "data.txt", OLD)).good()
    held.files["data.txt"] = {OLD, NEW}
    answer = await world.crash(caller, step, lambda caller: caller.upload(held.id, "data.txt", NEW))
    assert answer.cut
    await world.check(caller)


async def test_an_upload_that_is_killed_half_way_leaves_the_old_file(world: World, caller: Caller) -> None:
    held = await a_session(world, caller)
    (await caller.upload(held.id, "data.txt", OLD)).good()
    held.files["data.txt"] = {OLD}

    async def half() -> AsyncIterator[bytes]:
        yield NEW[: len(NEW) // 2]
        await asyncio.sleep(0.2)
        world.server.kill()
        yield NEW[len(NEW) // 2 :]

    answer: Answer = await caller.upload(held.id, "data.txt", half())
    assert answer.cut
    world.restart()
    await world.check(caller)
    assert await caller.output(held.id, "ls -A") == "data.txt\n"


# -- the end of a session

END = [f"worker {step}" for step in WORKER_STEPS[2:]] + [f"lifecycle {step}" for step in LIFECYCLE_STEPS[4:6]]


@pytest.mark.parametrize("step", first_of([*around("store swap"), *END]))
async def test_a_session_whose_expiry_is_killed_is_gone_after_the_restart(
    world: World, caller: Caller, step: str
) -> None:
    session = (await caller.create(idle_timeout_s=1)).good()

    async def nothing(caller: Caller) -> Answer:
        return Answer(0)

    await world.crash(caller, step, nothing)
    await until(lambda: has_ended(caller, session["session_id"]), "it has expired")
    assert (await caller.show(session["session_id"])).good()["reason"] == "idle"
    await world.check(caller)


async def has_ended(caller: Caller, session_id: str) -> bool:
    return bool((await caller.show(session_id)).good()["state"] == "ended")


@pytest.mark.parametrize(
    "step", first_of([*around("store swap", "store swap 2"), f"lifecycle {LIFECYCLE_STEPS[3]}", *END])
)
async def test_a_delete_that_is_killed_is_finished_by_the_next_server(world: World, caller: Caller, step: str) -> None:
    session_id = (await a_session(world, caller)).id
    answer = await world.crash(caller, step, lambda caller: caller.delete(session_id))
    assert answer.cut
    if step == "before store swap":  # nobody had written down yet that it is to end
        await world.check(caller)
        (await caller.delete(session_id)).good()
    world.ledger.dropped(session_id)
    await world.check(caller)


async def test_a_cleanup_by_the_flat_endpoint_can_be_repeated(world: World, caller: Caller) -> None:
    session_id = (await a_session(world, caller, thread_id="t-2")).id

    async def cleanup(caller: Caller) -> Answer:
        return await caller.ask("POST", "/cleanup", json={"thread_id": "t-2"})

    assert (await world.crash(caller, "worker destroyed", cleanup)).cut
    (await cleanup(caller)).good()
    world.ledger.dropped(session_id)
    await world.check(caller)


# -- pauses

PAUSES = [f"lifecycle {step}" for step in LIFECYCLE_STEPS[6:10]]
HIBERNATIONS = [f"lifecycle {step}" for step in LIFECYCLE_STEPS[10:]]
SAVING = [f"snapshots {step}" for step in ("disk saved", "charged", "record stored")]


@pytest.mark.parametrize("step", first_of([*around("store swap"), *PAUSES]))
async def test_a_session_outlives_a_kill_while_it_is_paused_or_resumed(world: World, caller: Caller, step: str) -> None:
    session_id = (await a_session(world, caller)).id
    resumes = "resum" in step
    if resumes:
        (await caller.ask("POST", f"/api/sessions/{session_id}/pause")).good()
    verb = "resume" if resumes else "pause"
    answer = await world.crash(caller, step, lambda caller: caller.ask("POST", f"/api/sessions/{session_id}/{verb}"))
    assert answer.cut
    shown = (await caller.show(session_id)).good()
    assert (shown["state"] == "running") is (resumes or step == "before store swap")
    assert (await caller.exec(session_id, "echo on")).good()["stdout"] == "on\n"
    await world.check(caller)


@pytest.mark.parametrize("step", first_of([*HIBERNATIONS, *SAVING, *(f"restore: {step}" for step in BEGIN[1:])]))
async def test_a_session_outlives_a_kill_while_it_is_hibernated_or_restored(
    world: World, caller: Caller, step: str
) -> None:
    lasting = tuple(world.ledger.held)
    session_id = (await a_session(world, caller)).id
    (await caller.exec(session_id, "echo kept > file; sync")).good()
    restores, step = "restor" in step, step.removeprefix("restore: ")
    to_disk = {"json": {"to_disk": True}}
    if restores:
        (await caller.ask("POST", f"/api/sessions/{session_id}/pause", **to_disk)).good()
    verb, body = ("resume", {}) if restores else ("pause", to_disk)
    path = f"/api/sessions/{session_id}/{verb}"
    assert (await world.crash(caller, step, lambda caller: caller.ask("POST", path, **body))).cut
    assert (await caller.exec(session_id, "cat file")).good()["stdout"] == "kept\n"
    await world.check(caller)
    await world.tidy(caller, *lasting)

    async def is_clean() -> bool:
        hidden = (await caller.ask("GET", "/api/snapshots?hidden=true")).good()["snapshots"]
        return not hidden and not [*(world.state_dir / "disks" / "saved").glob("*.img")]

    await until(is_clean, "nothing that was saved is left")


# -- taking over, and stopping


@pytest.mark.parametrize("step", first_of([*around("store swap", "store swap 3"), *END]))
async def test_a_server_that_is_killed_while_it_takes_over_is_taken_over_itself(
    world: World, caller: Caller, step: str
) -> None:
    session_id = (await a_session(world, caller)).id
    arm(world.state_dir, "lifecycle stopping")
    assert (await caller.delete(session_id)).cut
    world.server.wait_for_end()
    arm(world.state_dir, step)
    world.server.start(wait=False)
    await asyncio.to_thread(world.restart)
    world.ledger.dropped(session_id)
    await world.check(caller)


@pytest.mark.parametrize("step", first_of([f"worker {step}" for step in WORKER_STEPS[2:]]))
async def test_a_server_that_is_killed_while_it_stops_keeps_its_sessions(
    world: World, caller: Caller, step: str
) -> None:
    await a_session(world, caller)

    async def stop(caller: Caller) -> Answer:
        world.server.send(signal.SIGTERM)
        return Answer(0)

    await world.crash(caller, step, stop)
    await world.check(caller)


def test_no_step_is_left_out() -> None:
    tried = {*POOLED, *COLD, *END, *PAUSES, *HIBERNATIONS, f"lifecycle {LIFECYCLE_STEPS[3]}"}
    steps = {"lifecycle": LIFECYCLE_STEPS, "worker": WORKER_STEPS, "provider": PROVIDER_STEPS}
    assert {f"{part} {step}" for part, names in steps.items() for step in names} <= tried
