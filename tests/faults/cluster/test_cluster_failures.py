"""Single failures of a cluster, and what is left of sessions, threads and deadlines afterwards."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from faults.caller import Caller
from faults.cluster.cluster_caller import ClusterCaller, calling_cluster
from faults.cluster.cluster_invariants import ended
from faults.cluster.cluster_world import ClusterWorld
from faults.cluster.conftest import NewWorld
from faults.cluster.test_cluster_pauses import thread_with_file
from faults.host_view import sandboxes
from faults.world import until
from server_process import ServerProcess

from warren.sandboxes.host.record import SandboxRecord

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.extended]

AGAIN_S: Final = 30.0  # after which a Redis without data takes new sessions; a lease, on a busy machine


@pytest.fixture(scope="module")
def world(new_world: NewWorld) -> ClusterWorld:
    return new_world(coordinators=3)


@pytest.fixture
async def caller(world: ClusterWorld) -> AsyncIterator[ClusterCaller]:
    async with calling_cluster(world.urls) as caller:
        await world.recovered(caller)
        yield caller
        await world.recovered(caller)
        for session in await caller.sessions():
            await ended(caller, session["session_id"])
        await world.settled(caller)


async def on_every_worker(world: ClusterWorld, caller: ClusterCaller, name: str) -> dict[str, dict[str, Any]]:
    """Threads with a file, at least one on each worker, by their workers."""
    found: dict[str, dict[str, Any]] = {}
    for number in range(50):
        session = await thread_with_file(caller, f"{name}-{number}")
        if session["worker"] in found:
            (await caller.delete(session["session_id"])).good()
        found.setdefault(session["worker"], session)
        if len(found) == len(world.workers):
            return found
    raise AssertionError(f"of 50 sessions none was on {set(world.workers) - set(found)}")


async def check_there(caller: ClusterCaller, sessions: dict[str, dict[str, Any]]) -> None:
    """Each runs, with its file, and its thread leads to it, through every coordinator."""
    for session in sessions.values():
        for number in range(len(caller.urls)):
            through = caller.through(number)
            shown = (await through.show(session["session_id"])).good()
            assert shown["state"] == "running", shown
            assert await through.output(session["session_id"], "cat thread.txt") == session["thread_id"]
            again = (await through.create(thread_id=session["thread_id"])).good()
            assert (again["session_id"], again["created"]) == (session["session_id"], False)


async def test_a_redis_that_was_restarted_with_its_data_has_every_session(
    world: ClusterWorld, caller: ClusterCaller
) -> None:
    sessions = await on_every_worker(world, caller, "with-data")
    world.redis.kill()
    assert (await caller.create()).status == 503
    world.restart_redis()
    await world.recovered(caller)
    await check_there(caller, sessions)


@pytest.mark.parametrize("is_flushed", [False, True], ids=["restarted", "flushed"])
async def test_a_redis_without_its_data_gets_every_session_again(
    world: ClusterWorld, caller: ClusterCaller, *, is_flushed: bool
) -> None:
    sessions = await on_every_worker(world, caller, f"without-data-{is_flushed}")
    if is_flushed:
        world.redis.ask("FLUSHALL")
    else:
        world.restart_redis(with_data=False)
    thread_id = next(iter(sessions.values()))["thread_id"]
    answers = [await created_at_last(caller, thread_id=thread_id), await created_at_last(caller)]
    assert answers[0]["session_id"] in {session["session_id"] for session in sessions.values()}
    assert answers[1]["created"]
    await world.recovered(caller)
    await check_there(caller, sessions)


async def created_at_last(caller: ClusterCaller, **body: Any) -> dict[str, Any]:
    """Until then it is refused in a way that says to try again."""
    answers = []

    async def is_made() -> bool:
        answers.append(await caller.create(**body))
        assert answers[-1].status in (0, 200, 201, 503), answers[-1]
        return answers[-1].ok

    await until(is_made, "a session is made", AGAIN_S)
    found: dict[str, Any] = answers[-1].body
    return found


async def test_a_hundred_creates_of_one_thread_through_three_coordinators_give_one_session(
    world: ClusterWorld, caller: ClusterCaller
) -> None:
    through = [caller.through(number % len(world.urls)) for number in range(100)]
    answers = await asyncio.gather(*(one.create(thread_id="hundred") for one in through))
    assert len({answer.good()["session_id"] for answer in answers}) == 1
    assert sum(answer.status == 201 for answer in answers) == 1


async def test_a_machine_that_was_restarted_has_lost_its_sessions_and_says_so(
    world: ClusterWorld, caller: ClusterCaller
) -> None:
    sessions = await on_every_worker(world, caller, "reboot")
    name, lost = sessions.popitem()
    worker = world.workers[name]
    with world.without_failover():
        worker.kill()
        pretend_a_reboot(worker.state_dir)
        await world.restart(worker)
    await world.recovered(caller)
    shown = (await caller.show(lost["session_id"])).good()
    assert (shown["state"], shown["reason"], shown["detail"]) == ("lost", "lost", "the machine was restarted")
    assert (await caller.exec(lost["session_id"], "true")).status == 410
    assert lost["sandbox_id"] not in sandboxes(worker.state_dir)
    await check_there(caller, sessions)


def pretend_a_reboot(state_dir: Path) -> None:
    """All that was running is gone, and what was written down is of another boot."""
    clock = state_dir / "clock.json"
    clock.write_text(json.dumps({**json.loads(clock.read_text()), "boot": "another boot"}))
    for name in sandboxes(state_dir):
        record = SandboxRecord.load(state_dir / "sandboxes" / name)
        if record is not None and record.alive():
            os.kill(record.pid, signal.SIGKILL)


async def test_a_rolling_restart_disturbs_no_session_of_other_workers(
    world: ClusterWorld, caller: ClusterCaller
) -> None:
    sessions = await on_every_worker(world, caller, "rolling")
    for name, worker in world.workers.items():
        others = [session for other, session in sessions.items() if other != name]
        async with undisturbed(caller, others):
            await restarted(world, worker)
            await world.recovered(caller)
    for coordinator in world.coordinators:
        async with undisturbed(caller, list(sessions.values())):
            await restarted(world, coordinator)
    await world.recovered(caller)
    await check_there(caller, sessions)


async def restarted(world: ClusterWorld, process: ServerProcess) -> None:
    process.send(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait_for_end) == 0
    await world.restart(process)


@contextlib.asynccontextmanager
async def undisturbed(caller: ClusterCaller, sessions: list[dict[str, Any]]) -> AsyncIterator[None]:
    """Meanwhile these are used, and every request is answered."""
    over = asyncio.Event()

    async def use(session: dict[str, Any]) -> None:
        while not over.is_set():
            assert await caller.output(session["session_id"], "cat thread.txt") == session["thread_id"]

    async with asyncio.TaskGroup() as using:
        for session in sessions:
            using.create_task(use(session))
        try:
            yield
        finally:
            over.set()


class TestClocksThatDiffer:
    """One worker and one coordinator believe that it is three days later.

    Under libfaketime `time.sleep` raises EINVAL if the time is over by the time it is asked for, so they wait by
    another call.
    """

    @pytest.fixture
    def apart(self, new_world: NewWorld, image_cache: Path, tmp_path: Path) -> Iterator[ClusterWorld]:
        before = {*Path("/dev/shm").glob("*faketime*")}
        [library] = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        world = ClusterWorld(image_cache)
        ahead = {
            "LD_PRELOAD": str(library),
            "FAKETIME": "+3d",
            "NO_FAKE_STAT": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        (tmp_path / "sitecustomize.py").write_text(
            "import select, time\ntime.sleep = lambda seconds: select.select((), (), (), seconds)\n"
        )
        for process in (world.workers["worker-1"], world.coordinators[0]):
            process.environ.update(ahead, PYTHONPATH=f"{tmp_path}:{process.environ['PYTHONPATH']}")
        try:
            world.start()
            yield world
        finally:
            world.close()
            for path in {*Path("/dev/shm").glob("*faketime*")} - before:
                path.unlink(missing_ok=True)

    async def test_sessions_neither_expire_early_nor_late_and_are_listed_in_order(self, apart: ClusterWorld) -> None:
        async with calling_cluster(apart.urls) as caller:
            await apart.recovered(caller)
            sessions = await on_every_worker(apart, caller, "clocks")
            await check_there(caller, sessions)
            for number in range(len(apart.urls)):
                listed = await caller.through(number).sessions()
                dates = [session["created_at"] for session in listed]
                assert dates == sorted(dates, reverse=True)
                assert {session["session_id"] for session in listed} >= {one["session_id"] for one in sessions.values()}
            await check_expiry(caller, apart)

    async def test_a_restart_under_another_clock_loses_nothing(self, apart: ClusterWorld) -> None:
        async with calling_cluster(apart.urls) as caller:
            await apart.recovered(caller)
            sessions = await on_every_worker(apart, caller, "clocks-restarted")
            with apart.without_failover():
                apart.workers["worker-1"].kill()
                await apart.restart(apart.workers["worker-1"])
            apart.coordinators[0].kill()
            await apart.restart(apart.coordinators[0])
            await apart.recovered(caller)
            await check_there(caller, sessions)


async def check_expiry(caller: ClusterCaller, world: ClusterWorld) -> None:
    """Of each worker: a session that is used lives, one that is idle ends, in its time."""
    asked_at: list[float] = []
    short: list[dict[str, Any]] = []
    for _ in range(2 * len(world.workers)):
        asked_at.append(time.monotonic())
        short.append((await caller.create(idle_timeout_s=3)).good())
    for session, since in zip(short, asked_at, strict=True):
        state = (await caller.show(session["session_id"])).good()["state"]
        assert state == "running" or time.monotonic() - since >= 3  # creating all of them may last longer than that
    for session in short:
        await until(lambda session=session: has_ended(caller, session["session_id"]), "an idle session ends", 30)


async def has_ended(caller: Caller, session_id: str) -> bool:
    shown = (await caller.show(session_id)).good()
    return bool(shown["state"] == "ended" and shown["reason"] == "idle")
