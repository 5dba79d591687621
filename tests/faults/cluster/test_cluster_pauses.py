"""A process stands still for longer than a lease: nobody writes into what was given up, and nothing is there twice."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from faults.caller import Answer
from faults.cluster.cluster_caller import ClusterCaller, calling_cluster
from faults.cluster.cluster_invariants import ended
from faults.cluster.cluster_world import TRUSTED, ClusterWorld, inside, stopped
from faults.cluster.conftest import NewWorld
from faults.host_view import sandboxes
from faults.world import until
from server_process import ServerProcess

from warren.cluster.auth import encode_caller
from warren.model.access import ALL_SCOPES, Caller

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.extended]

PAUSE_S: Final = 20.0
GIVEN_UP_S: Final = 15.0


@pytest.fixture(scope="module")
def world(new_world: NewWorld) -> ClusterWorld:
    return new_world()


@pytest.fixture
async def caller(world: ClusterWorld) -> AsyncIterator[ClusterCaller]:
    async with calling_cluster(world.urls) as caller:
        await world.recovered(caller)
        yield caller
        await world.recovered(caller)
        for session in await caller.sessions():
            await ended(caller, session["session_id"])
        await world.settled(caller)


async def thread_with_file(caller: ClusterCaller, thread_id: str) -> dict[str, Any]:
    session: dict[str, Any] = (await caller.create(thread_id=thread_id)).good()
    (await caller.upload(session["session_id"], "thread.txt", thread_id.encode())).good()
    return session


async def is_lost(caller: ClusterCaller, session_id: str) -> bool:
    return session_id in {session["session_id"] for session in await caller.sessions(state="lost")}


async def test_a_worker_that_stood_still_is_fenced_and_clears_away_what_was_given_up(
    world: ClusterWorld, caller: ClusterCaller
) -> None:
    old = await thread_with_file(caller, "paused")
    worker = world.workers[old["worker"]]
    async with watched(lambda: inside(worker.state_dir, old["sandbox_id"], "late.txt")) as written:
        early = await said_to(worker, old["session_id"], "echo x > /workspace/early.txt; sleep 3")
        await until(lambda: is_inside(worker, old, "early.txt"), "a command runs")
        with stopped(worker.pid):
            await asyncio.gather(asyncio.sleep(PAUSE_S), given_up(caller, old))
            new = await started_anew(caller, old)
            late = await said_to(worker, old["session_id"], "echo late > /workspace/late.txt")
            assert old["sandbox_id"] in sandboxes(worker.state_dir)
        assert await late() in (410, 503)
        assert await early() in (410, 502)
        await until(lambda: destroyed(worker, old["sandbox_id"]), "the old sandbox is destroyed")
    assert written == []
    await check_given_up(world, caller, old["session_id"])
    assert await caller.output(new["session_id"], "cat thread.txt") == "paused"
    assert world.threads()["paused"] == 1


async def given_up(caller: ClusterCaller, session: dict[str, Any]) -> None:
    await until(lambda: is_lost(caller, session["session_id"]), "the session is lost", GIVEN_UP_S)


async def started_anew(caller: ClusterCaller, old: dict[str, Any]) -> dict[str, Any]:
    """The thread of a lost session has a new one, elsewhere, if that is asked for."""
    thread_id = old["thread_id"]
    assert (await caller.create(thread_id=thread_id)).status == 410
    new: dict[str, Any] = (await caller.create(thread_id=thread_id, replace_lost=True)).good()
    assert new["worker"] != old["worker"]
    assert new["previous"]["session_id"] == old["session_id"]
    (await caller.upload(new["session_id"], "thread.txt", thread_id.encode())).good()
    return new


async def said_to(worker: ServerProcess, session_id: str, command: str) -> "Callable[[], Any]":
    """A request that lies in the worker's socket until it goes on; the status it is answered with then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    body = json.dumps({"command": command}).encode()
    headers = {**TRUSTED, "x-warren-caller": encode_caller(Caller(scopes=ALL_SCOPES)).decode()}
    head = f"POST /api/sessions/{session_id}/exec HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    await writer.drain()

    async def status() -> int:
        async with asyncio.timeout(30):
            line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    return status


@contextlib.asynccontextmanager
async def watched(look: "Callable[[], str]") -> AsyncIterator[list[str]]:
    """Whatever is seen meanwhile."""
    seen: list[str] = []

    async def watch() -> None:
        while True:
            seen.extend(filter(None, [look()]))
            await asyncio.sleep(0.01)

    watching = asyncio.ensure_future(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def is_inside(worker: ServerProcess, session: dict[str, Any], name: str) -> bool:
    return bool(inside(worker.state_dir, session["sandbox_id"], name))


async def destroyed(worker: ServerProcess, sandbox_id: str) -> bool:
    return sandbox_id not in sandboxes(worker.state_dir)


async def check_given_up(world: ClusterWorld, caller: ClusterCaller, session_id: str) -> None:
    for number in range(len(world.urls)):
        for _ in range(5):  # on a busy machine a coordinator may find the store away for a moment, and says so
            refused = await caller.through(number).exec(session_id, "true")
            if refused.status != 503:
                break
            await asyncio.sleep(1)
        assert (refused.status, refused.body["code"]) in ((410, "sandbox_lost"), (410, "session_ended")), refused


async def test_a_coordinator_that_stood_still_harms_nobody(world: ClusterWorld, caller: ClusterCaller) -> None:
    session = await thread_with_file(caller, "through-one")
    with stopped(world.coordinators[0].pid):
        await used_for(caller.through(1), session["session_id"], PAUSE_S)
        other = (await caller.through(1).create()).good()
    assert await caller.through(0).output(session["session_id"], "cat thread.txt") == "through-one"
    assert await caller.through(0).output(other["session_id"], "echo hello") == "hello\n"


async def test_all_coordinators_stand_still_and_nothing_is_given_up(world: ClusterWorld, caller: ClusterCaller) -> None:
    session = await thread_with_file(caller, "all-still")
    with contextlib.ExitStack() as all_stopped:
        for coordinator in world.coordinators:
            all_stopped.enter_context(stopped(coordinator.pid))
        await asyncio.sleep(PAUSE_S)
    for number in range(len(world.urls)):
        assert await caller.through(number).output(session["session_id"], "cat thread.txt") == "all-still"


async def test_running_sessions_go_on_while_redis_stands_still(world: ClusterWorld, caller: ClusterCaller) -> None:
    sessions = [await thread_with_file(caller, f"without-redis-{number}") for number in range(3)]
    for number in range(len(world.urls)):
        for session in sessions:
            await caller.through(number).output(session["session_id"], "true")
    with stopped(world.redis.pid):
        await asyncio.gather(*(used_for(caller, session["session_id"], PAUSE_S) for session in sessions))
        refused = await caller.create()
        check_refused_for_now(refused)
    for session in sessions:
        assert await caller.output(session["session_id"], "cat thread.txt") == session["thread_id"]

    async def creates() -> bool:
        return (await caller.create()).ok

    await until(creates, "new sessions are made again")


async def used_for(caller: ClusterCaller, session_id: str, seconds: float) -> None:
    """Every command in this time works."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        assert await caller.output(session_id, "echo hello") == "hello\n"
        await asyncio.sleep(0.2)


def check_refused_for_now(answer: Answer) -> None:
    assert answer.status == 503, answer
    assert float(answer.headers["retry-after"]) > 0  # type: ignore[attr-defined]
