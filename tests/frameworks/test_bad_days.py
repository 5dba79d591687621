"""A sandbox that is gone, a command that takes too long, no server: the agent's run goes on, and the model is told."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from deepagents import create_deep_agent
from e2e.conftest import NewState
from e2e.hosts import Hosts
from frameworks.scripted_model import scripted
from frameworks.test_threads import session_of, tool_texts
from langgraph.checkpoint.memory import InMemorySaver
from server_process import running_server

from warren import AsyncSandboxClient, SandboxClient
from warren.integrations.deepagents import ThreadSandbox, WarrenSandbox


@pytest.fixture
def backend(url: str) -> Iterator[ThreadSandbox]:
    backend = ThreadSandbox(url, timeout=60)
    yield backend
    backend.close()


class Conversation:
    """One call of `execute` or another tool in each turn."""

    def __init__(self, backend: ThreadSandbox, *calls: tuple[str, dict[str, Any]]) -> None:
        self.thread_id = uuid.uuid4().hex
        script = [turn for each in calls for turn in ([each], "done")]
        self._agent = create_deep_agent(model=scripted(*script), backend=backend, checkpointer=InMemorySaver())

    def turn(self) -> str:
        config: Any = {"configurable": {"thread_id": self.thread_id}}
        state = self._agent.invoke({"messages": [("user", "go on")]}, config)
        assert state["messages"][-1].text == "done"
        return tool_texts(state)[-1]


def run(command: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return ("execute", {"command": command, **arguments})


def test_a_sandbox_that_died_is_told_and_the_next_command_has_a_fresh_one(
    url: str, hosts: Hosts, backend: ThreadSandbox
) -> None:
    talk = Conversation(backend, run("echo 1 > /workspace/a"), run("cat /workspace/a"), run("ls /workspace; echo on"))
    talk.turn()
    hosts.lose(str(session_of(url, talk.thread_id).sandbox_id))
    second, third = talk.turn(), talk.turn()
    assert "are gone" in second
    assert "fresh sandbox" in second + third
    assert third.startswith("on") or "\non" in third
    backend.delete_thread(talk.thread_id)


def test_a_session_that_ended_between_two_turns_is_replaced_with_a_notice(url: str, backend: ThreadSandbox) -> None:
    talk = Conversation(backend, run("echo 1 > /workspace/a"), run("ls /workspace; echo on"))
    talk.turn()
    with SandboxClient(url, thread_id=talk.thread_id) as other:
        other.cleanup()
    second = talk.turn()
    assert "fresh sandbox" in second
    assert "on" in second
    backend.delete_thread(talk.thread_id)


def test_reading_a_file_after_the_sandbox_died_says_that_there_is_none(
    url: str, hosts: Hosts, backend: ThreadSandbox
) -> None:
    read = ("read_file", {"file_path": "/workspace/a"})
    talk = Conversation(backend, run("echo 1 > /workspace/a"), read)
    talk.turn()
    hosts.lose(str(session_of(url, talk.thread_id).sandbox_id))
    assert "file_not_found" in talk.turn()
    backend.delete_thread(talk.thread_id)


def test_a_command_that_takes_too_long_is_exit_code_124(url: str) -> None:
    with SandboxClient(url) as client:
        backend = WarrenSandbox(client=client)
        answer = backend.execute("echo begun; sleep 60", timeout=1)
        assert answer.exit_code == 124
        assert "begun" in answer.output
        assert "stopped after 1 seconds" in answer.output
        assert backend.execute("echo on").output == "on\n"


OPERATIONS: list[Callable[[WarrenSandbox], Any]] = [
    lambda backend: backend.ls("/"),
    lambda backend: backend.read("/a"),
    lambda backend: backend.write("/a", ""),
    lambda backend: backend.edit("/a", "b", "c"),
    lambda backend: backend.delete("/a"),
    lambda backend: backend.grep("a"),
    lambda backend: backend.glob("*"),
    lambda backend: backend.upload_files([("/a", b"")])[0],
    lambda backend: backend.download_files(["/a"])[0],
]


def nowhere() -> WarrenSandbox:
    return WarrenSandbox(client=SandboxClient("http://127.0.0.1:9"))


def test_without_a_server_every_operation_has_a_result_that_says_so() -> None:
    with ThreadPoolExecutor(len(OPERATIONS) + 1) as threads:
        answer = threads.submit(nowhere().execute, "true")
        errors = [each.error for each in threads.map(lambda operation: operation(nowhere()), OPERATIONS)]
    assert answer.result().exit_code == 125
    assert "warren serve" in answer.result().output
    assert all(error and "cannot be reached" in error for error in errors)


@pytest.mark.anyio
async def test_without_a_server_async_has_the_same_results() -> None:
    client = AsyncSandboxClient("http://127.0.0.1:9")
    backend = WarrenSandbox(client=client)
    assert (await backend.aexecute("true")).exit_code == 125
    assert "cannot be reached" in str((await backend.aglob("*")).error)
    await client.close()


def test_a_wrong_key_is_told_with_the_remedy(new_state: NewState) -> None:
    with running_server(new_state(), WARREN_API_KEY="right-key-0123456789abcdef0123456789") as server:
        client = SandboxClient(server.url, api_key="wrong")
        answer = WarrenSandbox(client=client).execute("true")
        client.close()
        assert answer.exit_code == 125
        assert "key" in answer.output
