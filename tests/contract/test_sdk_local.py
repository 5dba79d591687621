"""Local mode as a program has it: its beginning and its end, several loops and threads, and other programs beside it.

Each test runs programs of their own: what is tested is what a process leaves behind.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import clean_environ
from this_run import new_state_dir

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., str]


@pytest.fixture
def state(image_cache: Path) -> Iterator[Path]:
    path = new_state_dir(image_cache)
    yield path
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path)
    assert left == []


@pytest.fixture
def start(state: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(code: str, provider: str = "fake") -> "subprocess.Popen[str]":
        names = {"WARREN_STATE_DIR": str(state), "WARREN_PROVIDER": provider, "WARREN_POOL_SIZE": "1"}
        argv = [sys.executable, "-W", "error", "-c", f"from warren import *\n{code}"]
        process = subprocess.Popen(
            argv,
            env={**clean_environ(), **names},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Run:
    def run(code: str, provider: str = "fake") -> str:
        process = start(code, provider)
        said, complained = process.communicate(timeout=60)
        assert (process.returncode, complained) == (0, "")
        return said

    return run


def sandboxes(state: Path) -> int:
    return len(list((state / "sandboxes").glob("*")))


def test_a_program_that_closes_nothing_leaves_nothing_but_the_sessions_of_threads(run: Run, state: Path) -> None:
    code = """
a, b = SandboxClient(mode="local"), SandboxClient(mode="local", thread_id="kept")
a.execute("true"); b.write_file("note", "from the first program")
print("done")
"""
    assert run(code, "oci") == "done\n"
    assert sandboxes(state) == 1
    code = """
with SandboxClient(mode="local", thread_id="kept") as sandbox:
    print(sandbox.read_text("note"))
print(SandboxClient.delete_thread("kept", mode="local"))
"""
    assert run(code, "oci") == "from the first program\nTrue\n"


@pytest.mark.extended
def test_a_program_that_fails_leaves_nothing(start: Start) -> None:
    process = start('SandboxClient(mode="local").execute("true"); raise SystemExit(3)', "oci")
    assert process.wait(60) == 3


@pytest.mark.extended
def test_an_asyncio_program_that_closes_nothing_leaves_nothing(run: Run) -> None:
    code = """
import asyncio
async def main():
    print((await AsyncSandboxClient(mode="local").execute("echo hi")).output, end="")
asyncio.run(main())
"""
    assert run(code, "oci") == "hi\n"


@pytest.mark.extended
def test_a_second_program_is_told_who_has_the_state_directory(start: Start) -> None:
    first = start('SandboxClient(mode="local").execute("true"); print("ready", flush=True); input()')
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    code = """
try:
    SandboxClient(mode="local").execute("true")
except WarrenError as exc:
    print(type(exc).__name__, exc)
"""
    said, complained = start(code).communicate(timeout=60)
    assert f"(process {first.pid})" in said, complained
    assert said.startswith("Unavailable ")
    assert 'mode="remote"' in said
    assert "WARREN_STATE_DIR" in said
    first.communicate("\n", timeout=60)
    assert first.returncode == 0


@pytest.mark.extended
def test_loops_and_threads_use_one_service_at_once(run: Run) -> None:
    code = """
import asyncio, threading
from warren.local.engine import ENGINE
said = []
def blocking(number):
    with SandboxClient(mode="local") as sandbox:
        said.extend(sandbox.execute(f"echo {number}").output for _ in range(5))
async def native(number):
    async with AsyncSandboxClient(mode="local") as sandbox:
        results = await asyncio.gather(*(sandbox.execute(f"echo {number}") for _ in range(5)))
        said.extend(result.output for result in results)
work = [threading.Thread(target=blocking, args=(n,)) for n in range(3)]
work += [threading.Thread(target=lambda n=n: asyncio.run(native(n))) for n in range(3, 6)]
[each.start() for each in work]; [each.join() for each in work]
print(sorted(said) == sorted(f"{n}\\n" for n in range(6) for _ in range(5)), ENGINE)
"""
    assert run(code) == "True <Engine not running, 0 clients>\n"


@pytest.mark.extended
def test_it_can_end_and_begin_again(run: Run) -> None:
    code = """
for number in range(3):
    with SandboxClient(mode="local") as sandbox:
        print(sandbox.execute(f"echo {number}").output, end="")
"""
    assert run(code) == "0\n1\n2\n"


@pytest.mark.extended
def test_a_forked_process_is_told_that_it_cannot_use_it_and_harms_nothing(run: Run) -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
sandbox = SandboxClient(mode="local")
sandbox.execute("true")
child = os.fork()
if child == 0:
    try:
        sandbox.execute("true")
    except WarrenError as exc:
        print(exc.message, flush=True)
    try:
        SandboxClient(mode="local").execute("true")
    except WarrenError as exc:
        print(exc.remedy, flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1], sandbox.execute("echo still here").output, end="")
"""
    said = run(code)
    assert said.count("forked") == 1
    assert "spawn" in said
    assert said.endswith("0 still here\n")


def test_control_c_ends_the_command(run: Run) -> None:
    code = """
import os, signal, threading
with SandboxClient(mode="local") as sandbox:
    def interrupt():
        while not sandbox.processes():
            pass
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        sandbox.execute("sleep 1000")
    except KeyboardInterrupt:
        print("interrupted")
    while sandbox.execute("pgrep -x sleep").output:
        pass
    print("no sleep")
"""
    assert run(code, "oci") == "interrupted\nno sleep\n"


@pytest.mark.extended
def test_a_call_in_another_thread_hears_that_the_client_was_closed(run: Run) -> None:
    code = """
import threading
sandbox = SandboxClient(mode="local", thread_id="kept")
sandbox.create_session()
said = []
def work():
    try:
        sandbox.execute("sleep 1000")
    except WarrenError as exc:
        said.append(exc.message)
caller = threading.Thread(target=work)
caller.start()
while not sandbox.processes():
    pass
sandbox.close()
caller.join(30)
print(said)
print(SandboxClient.delete_thread("kept", mode="local"))
"""
    assert run(code, "oci") == "['this client was closed while it was in use']\nTrue\n"


@pytest.mark.extended
def test_what_the_collector_closes_in_any_thread_stops_nobody(run: Run) -> None:
    code = """
import gc, threading
from warren.local.engine import ENGINE

class Cycle:
    def __init__(self, held):
        self.me, self.held = self, held

async def collect():
    gc.collect()
    return threading.current_thread().name

class Leaves:
    def __init__(self, client):
        self.me, self.client = self, client
    def __del__(self):
        self.client.close()

gc.disable()
keeper = SandboxClient(mode="local")
stream = keeper.stream("echo on; sleep 1000")
next(stream)
Cycle(stream)
Leaves(SandboxClient(mode="local", session_id=keeper.session_id))
del stream
print(ENGINE.wait(collect()))
while any(process.running for process in keeper.processes()):
    pass
keeper.leave()
print(ENGINE)
"""
    assert run(code, "oci") == "warren local\n<Engine not running, 0 clients>\n"


@pytest.mark.extended
def test_the_last_client_may_be_closed_by_the_collector_in_the_engines_own_thread(run: Run) -> None:
    code = """
import gc, time
from warren.local.engine import ENGINE

class Leaves:
    def __init__(self):
        self.me, self.client = self, SandboxClient(mode="local", thread_id="t")
        self.client.execute("true"); self.client.cleanup()
    def __del__(self):
        self.client.close()

async def collect():
    gc.collect()

gc.disable()
Leaves()
ENGINE.wait(collect())
while "not running" not in repr(ENGINE):
    time.sleep(0.01)
print(SandboxClient(mode="local").execute("echo again").output, end="")
"""
    assert run(code) == "again\n"


@pytest.mark.extended
def test_what_is_cancelled_at_any_moment_leaves_nothing_running(run: Run) -> None:
    code = """
import asyncio, random
async def follow(sandbox):
    async for _ in sandbox.stream("while echo on; do sleep 0.01; done"):
        pass
async def main():
    async with AsyncSandboxClient(mode="local") as sandbox:
        for number in range(60):
            work = sandbox.execute("sleep 1000") if number % 2 else follow(sandbox)
            task = asyncio.ensure_future(work)
            for _ in range(number % 7):
                await asyncio.sleep(0 if number < 40 else 0.003)
            task.cancel()
            await asyncio.wait([task])
        while any(process.running for process in await sandbox.processes()):
            await asyncio.sleep(0.01)
        print((await sandbox.execute("echo fine")).output, end="")
asyncio.run(main())
"""
    assert run(code, "oci") == "fine\n"


def test_settings_that_cannot_be_are_told_with_the_first_use(start: Start) -> None:
    code = """
import os
os.environ["WARREN_PROVIDER"] = "nothing"
sandbox = SandboxClient(mode="local")
try:
    sandbox.execute("true")
except WarrenError as exc:
    print(exc)
"""
    said, complained = start(code).communicate(timeout=60)
    assert "WARREN_PROVIDER" in said, complained
