"""`warren.batch`, a function over many sandboxes, and `warren.pytest`, the fixture for tests of other projects."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.conftest import NewState
from server_process import ServerProcess, running_server
from this_run import patience

from warren import AsyncSandboxClient, SandboxClient, WarrenError, batch
from warren.model.errors import InvalidRequest, NoCapacity, SandboxLost

pytestmark = pytest.mark.anyio
ROOM = 4


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_server(new_state(), "--pool-size", "2", "--max-sandboxes", str(ROOM)) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left(server: ServerProcess) -> Iterator[None]:
    yield
    assert SandboxClient.list_sessions(server.url) == []


def double(sandbox: SandboxClient, number: int) -> str:
    return sandbox.execute(f"echo $(({number} * 2))").output


async def double_async(sandbox: AsyncSandboxClient, number: int) -> str:
    return (await sandbox.execute(f"echo $(({number} * 2))")).output


def test_each_input_has_an_outcome(server: ServerProcess) -> None:
    found = {done.index: done for done in batch.run(double, range(12), parallel=3, server_url=server.url)}
    assert [found[index].get() for index in range(12)] == [f"{2 * number}\n" for number in range(12)]
    assert {done.attempts for done in found.values()} == {1}


async def test_more_than_there_is_room_for_waits(server: ServerProcess) -> None:
    inputs = iter(range(3 * ROOM))
    outcomes = [done async for done in batch.run_async(double_async, inputs, parallel=2 * ROOM, server_url=server.url)]
    assert sorted(done.get() for done in outcomes) == sorted(f"{2 * number}\n" for number in range(3 * ROOM))


async def test_sandboxes_work_at_the_same_time(server: ServerProcess) -> None:
    together = asyncio.Barrier(3)

    async def meet(sandbox: AsyncSandboxClient, _: int) -> None:
        await sandbox.execute("true")
        async with asyncio.timeout(patience(30)):
            await together.wait()

    async for done in batch.run_async(meet, range(3), parallel=3, server_url=server.url):
        done.get()


def test_errors_are_outcomes_and_some_are_tried_again(server: ServerProcess) -> None:
    calls = itertools.count(1)

    def fail(sandbox: SandboxClient, kind: type[Exception]) -> int:
        sandbox.execute("true")
        if (number := next(calls)) < 4:
            raise kind("not now")
        return number

    [lost] = batch.run(fail, [SandboxLost], server_url=server.url, retries={SandboxLost: 5})
    assert (lost.get(), lost.attempts) == (4, 4)
    calls = itertools.count(1)
    [lost] = batch.run(fail, [SandboxLost], server_url=server.url)
    assert (type(lost.error), lost.attempts) == (SandboxLost, 3)
    [wrong] = batch.run(fail, [ValueError], server_url=server.url, retries={WarrenError: 5})
    assert wrong.attempts == 1
    calls = itertools.count(1)
    [wrong] = batch.run(fail, [ValueError], server_url=server.url)
    with pytest.raises(ValueError, match="not now"):
        wrong.get()


def test_the_most_exact_kind_of_an_error_counts(server: ServerProcess) -> None:
    def fail(sandbox: SandboxClient, _: int) -> None:
        raise NoCapacity("full", retry_after_s=0.01)

    [full] = batch.run(fail, [1], server_url=server.url, retries={WarrenError: 9, NoCapacity: 1})
    assert full.attempts == 2


def test_who_stops_taking_ends_what_runs(server: ServerProcess) -> None:
    ended: list[str] = []
    begun = threading.Semaphore(0)

    def hold(sandbox: SandboxClient, number: int) -> None:
        if number == 0:
            begun.acquire()
            return
        begun.release()
        try:
            ended.append(sandbox.execute("sleep 1000", 2000).reason)
        except WarrenError as exc:
            ended.append(exc.code)

    began = time.monotonic()
    for done in batch.run(hold, range(100), parallel=ROOM, server_url=server.url):
        assert done.index == 0
        break
    assert SandboxClient.list_sessions(server.url) == []
    deadline = began + patience(60)
    while not ended:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ended[0] in ("sandbox_lost", "session_ended")


async def test_a_cancelled_task_leaves_nothing(server: ServerProcess) -> None:
    begun = asyncio.Event()

    async def hold(sandbox: AsyncSandboxClient, _: int) -> None:
        begun.set()
        await sandbox.execute("sleep 1000", 2000)

    async def take() -> None:
        async with contextlib.aclosing(batch.run_async(hold, range(9), parallel=3, server_url=server.url)) as outcomes:
            async for _ in outcomes:
                pass

    for delay_s in (0.0, 0.01, 0.05, 0.2):
        task = asyncio.create_task(take())
        await asyncio.sleep(delay_s)
        if delay_s == 0.2:
            await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await AsyncSandboxClient.list_sessions(server.url) == []


_HELD = """
import sys
from warren import batch

def hold(sandbox, number):
    print("begun", flush=True)
    sandbox.execute("sleep 1000", 2000)

for done in batch.run(hold, range(9), parallel=3, progress=True, server_url=sys.argv[1]):
    print(done)
"""


def test_an_interrupted_program_leaves_nothing(server: ServerProcess) -> None:
    argv = [sys.executable, "-c", _HELD, server.url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=patience(60))
    assert said.splitlines()[0] == "0 of 9, 0.0 a second"
    assert said.splitlines()[-1] == "KeyboardInterrupt"


def test_an_error_of_the_inputs_is_raised(server: ServerProcess) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise LookupError("no more of them")

    with pytest.raises(LookupError, match="no more"):
        list(batch.run(double, inputs(), server_url=server.url))


@pytest.mark.parametrize("options", [{"parallel": 0}, {"thread_id": "a"}, {"session_id": "ses_1"}])
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        next(batch.run(double, [1], **options))


_TESTS = """
import pytest

pytestmark = pytest.mark.sandbox(env={"PLACE": "module", "KIND": "a"})

@pytest.mark.parametrize("number", range(4))
def test_each_has_a_sandbox_of_its_own(sandbox, number):
    assert sandbox.execute("mkdir only && echo $PLACE").output == "module\\n"

@pytest.mark.sandbox(env={"PLACE": "test"})
def test_its_own_mark_counts(sandbox):
    assert sandbox.execute("echo $PLACE$KIND").output == "test\\n"

@pytest.mark.sandbox(environment="none")
def test_a_wrong_option_is_an_error(sandbox):
    raise AssertionError
"""


def test_the_fixture_gives_each_test_a_sandbox(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(_TESTS)
    argv = [sys.executable, "-m", "pytest", "-p", "warren.pytest", "--strict-markers", "-c", os.devnull]
    argv += ["-p", "xdist.plugin", "-n", "2", "--basetemp", str(tmp_path / "theirs")]
    environ = {**os.environ, "WARREN_URL": server.url, "WARREN_API_KEY": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*argv, "--rootdir", str(tmp_path), str(tmp_path)], env=environ, capture_output=True, text=True, check=False
    )
    assert "5 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "there is no environment 'none'" in done.stdout
