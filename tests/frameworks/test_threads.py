"""One backend, many conversations: a sandbox each, kept from turn to turn, never shared."""

import asyncio
import uuid
from typing import Any

import pytest
from deepagents import create_deep_agent
from frameworks.scripted_model import scripted
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from warren import SandboxClient, SessionInfo
from warren.integrations.deepagents import ThreadSandbox
from warren.model.errors import InvalidRequest

FIRST = [
    ("write_file", {"file_path": "/workspace/a", "content": "NAME-a"}),
    ("write_file", {"file_path": "/workspace/b", "content": "NAME-b"}),
    ("execute", {"command": "cd /workspace && export WHO=NAME && echo hello"}),
]
SECOND = [("execute", {"command": "echo $WHO; ls /workspace"})]
THIRD = [("read_file", {"file_path": "/workspace/a"}), ("execute", {"command": "cat a b; hostname"})]


def turns(name: str) -> list[Any]:
    def named(calls: list[tuple[str, dict[str, str]]]) -> list[Any]:
        return [(tool, {key: value.replace("NAME", name) for key, value in given.items()}) for tool, given in calls]

    return [named(FIRST), "written", named(SECOND), "listed", named(THIRD), "read"]


def tool_texts(state: dict[str, Any]) -> list[str]:
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


def session_of(url: str, thread_id: str) -> SessionInfo:
    with SandboxClient(url, thread_id=thread_id) as client:
        return client.info()


async def conversation(url: str, backend: ThreadSandbox, name: str, *, blocking: bool) -> list[str]:
    agent = create_deep_agent(model=scripted(*turns(name)), backend=backend, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": name}}
    state: Any = {}
    for turn in range(3):
        said: Any = {"messages": [("user", f"turn {turn}")]}
        state = await asyncio.to_thread(agent.invoke, said, config) if blocking else await agent.ainvoke(said, config)
    return tool_texts(state)


@pytest.mark.anyio
@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_two_threads_of_three_turns_have_two_sandboxes_and_share_nothing(url: str, blocking: bool) -> None:
    names = [f"{name}-{uuid.uuid4().hex}" for name in ("red", "blue")]
    backend = ThreadSandbox(url)
    texts = await asyncio.gather(*(conversation(url, backend, name, blocking=blocking) for name in names))
    for name, said in zip(names, texts, strict=True):
        other = names[1 - names.index(name)]
        assert len(said) == 6
        assert f"{name}\na\nb" in said[3]
        assert f"{name}-a" in said[4]
        assert f"{name}-a{name}-b" in said[5]
        assert not any(other in text for text in said)
    sessions = [session_of(url, name) for name in names]
    assert len({each.sandbox_id for each in sessions}) == 2
    assert all(each.created_at and each.previous is None for each in sessions)
    for name in names:
        await backend.adelete_thread(name)
    backend.close()
    await backend.aclose()


@pytest.mark.anyio
async def test_a_subagent_works_in_the_sandbox_of_its_conversation(url: str) -> None:
    backend, thread_id = ThreadSandbox(url), uuid.uuid4().hex
    model = scripted(
        [("task", {"description": "write a file", "subagent_type": "general-purpose"})],
        [("execute", {"command": "echo from the subagent > /workspace/note"})],
        "written",
        [("execute", {"command": "cat /workspace/note"})],
        "done",
    )
    config: Any = {"configurable": {"thread_id": thread_id}}
    state = await create_deep_agent(model=model, backend=backend).ainvoke({"messages": [("user", "go")]}, config)
    assert "from the subagent" in tool_texts(state)[-1]
    await backend.adelete_thread(thread_id)


def test_a_run_without_a_thread_id_is_one_clear_error(url: str) -> None:
    backend = ThreadSandbox(url)
    agent = create_deep_agent(model=scripted([("execute", {"command": "true"})], "done"), backend=backend)
    with pytest.raises(InvalidRequest, match=r"no thread id.*config="):
        agent.invoke({"messages": [("user", "go")]})


def test_outside_of_a_run_it_is_the_same_error(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no thread id"):
        ThreadSandbox(url).execute("true")


def test_a_wrong_option_is_found_when_the_backend_is_made(url: str) -> None:
    with pytest.raises(TypeError, match="enviroment"):
        ThreadSandbox(url, enviroment="python3")
    with pytest.raises(InvalidRequest, match="thread_id cannot be given"):
        ThreadSandbox(url, thread_id="x")


def test_making_one_asks_nothing_of_the_server() -> None:
    assert repr(ThreadSandbox("http://127.0.0.1:9")) == "<ThreadSandbox <ThreadClients 0 threads>>"
