"""`ThreadSandbox(mode="local")`: an agent's conversations without a server, in one program and in the next."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import clean_environ
from this_run import new_state_dir

_PROGRAM = """
import asyncio, sys
from deepagents import create_deep_agent
from frameworks.scripted_model import scripted
from langchain_core.messages import ToolMessage
from warren.integrations.deepagents import ThreadSandbox

backend = ThreadSandbox(mode="local")

def agent(*commands):
    calls = [[("execute", {"command": command})] for command in commands]
    return create_deep_agent(model=scripted(*calls, "done"), backend=backend)

def said(state):
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]

def of(thread):
    return {"messages": [("user", "go")]}, {"configurable": {"thread_id": thread}}
"""

_FIRST = """
async def beside():
    return said(await agent("echo async > note; hostname").ainvoke(*of("two")))

print(said(agent("echo blocking > note", "cat note").invoke(*of("one"))))
asyncio.run(beside())
print(said(agent("cat note").invoke(*of("two"))))
"""

_NEXT = """
async def later():
    return said(await agent("cat note").ainvoke(*of("one"))), said(await agent("cat note").ainvoke(*of("two")))

print(asyncio.run(later()))
backend.delete_thread("one")
asyncio.run(backend.adelete_thread("two"))
"""


@pytest.fixture
def state(image_cache: Path) -> Iterator[Path]:
    path = new_state_dir(image_cache)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run(state: Path) -> Callable[[str], str]:
    def run(code: str) -> str:
        environ = {"WARREN_STATE_DIR": str(state), "WARREN_POOL_SIZE": "1", "PYTHONPATH": ":".join(sys.path)}
        argv = [sys.executable, "-c", _PROGRAM + code]
        done = subprocess.run(argv, env={**clean_environ(), **environ}, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.extended
def test_threads_have_sandboxes_of_their_own_and_the_next_program_finds_them(
    run: Callable[[str], str], state: Path
) -> None:
    first, second = run(_FIRST).splitlines()
    assert "blocking" in first
    assert "async" in second
    assert "blocking" not in second
    assert len(list((state / "sandboxes").glob("*"))) == 2
    later = run(_NEXT)
    assert later.index("blocking") < later.index("async")
    assert list((state / "sandboxes").glob("*")) == []
