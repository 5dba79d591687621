"""The tools and the middleware in real agents, with a scripted model and real sandboxes."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.hosts import Hosts
from frameworks.scripted_model import scripted
from frameworks.test_threads import session_of, tool_texts
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver

from warren import SandboxClient
from warren.integrations.langgraph_tools import sandbox_tools
from warren.integrations.middleware import SandboxMiddleware
from warren.integrations.prompt import SANDBOX_PROMPT, sandbox_prompt
from warren.integrations.threads import ThreadClients
from warren.model.errors import InvalidRequest


@pytest.fixture
def clients(url: str) -> Iterator[ThreadClients]:
    clients = ThreadClients(url)
    yield clients
    clients.connections.close()


@pytest.fixture
def thread_id(url: str) -> Iterator[str]:
    thread_id = uuid.uuid4().hex
    yield thread_id
    SandboxClient.delete_thread(thread_id, url)


def bash(command: str, **arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("bash", {"command": command, **arguments})]


def used(clients: ThreadClients, thread_id: str, *calls: Any) -> list[str]:
    """Each of the calls in a turn of its own, without async."""
    script = [turn for each in calls for turn in (each, "done")]
    agent: Any = create_agent(scripted(*script), sandbox_tools(clients=clients), checkpointer=InMemorySaver())
    state: Any = {}
    for _ in calls:
        state = agent.invoke({"messages": [("user", "go on")]}, {"configurable": {"thread_id": thread_id}})
    return tool_texts(state)


def test_the_shell_remembers_where_it_is_from_turn_to_turn(clients: ThreadClients, thread_id: str) -> None:
    texts = used(clients, thread_id, bash("mkdir d; cd d; export A=1"), bash("echo $A; pwd"), bash("exit 3"))
    assert texts == ["[exit code 0]", "1\n/workspace/d\n[exit code 0]", "[exit code 3]"]


def run_code(code: str, **arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("run_code", {"code": code, **arguments})]


def test_code_keeps_its_variables_from_turn_to_turn(clients: ThreadClients, thread_id: str) -> None:
    calls = (
        run_code("x = 20"),
        run_code("print('out')\nx + 22"),
        run_code("1 / 0"),
        run_code("import time; time.sleep(60)", timeout=1),
        run_code("pwd; cd /tmp", language="bash"),
        run_code("x", language="cobol"),
    )
    texts = used(clients, thread_id, *calls)
    assert texts[:2] == ["[no output]", "out\n42"]
    assert texts[2].endswith("ZeroDivisionError: division by zero")
    assert "interrupted after 1 seconds" in texts[3]
    assert texts[4] == "/workspace"
    assert "no language 'cobol'" in texts[5]


@pytest.mark.anyio
async def test_what_code_showed_is_the_artifact_of_its_message(clients: ThreadClients, thread_id: str) -> None:
    code = "class P:\n  def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
    agent: Any = create_agent(scripted(run_code(code), "done"), sandbox_tools(clients=clients))
    state = await agent.ainvoke({"messages": [("user", "go on")]}, {"configurable": {"thread_id": thread_id}})
    [message] = [each for each in state["messages"] if each.type == "tool"]
    assert message.content == "[picture 1]"
    assert message.artifact["results"][0]["png"].startswith("iVBORw0KGgo")
    await clients.connections.aclose()


def test_files_are_written_listed_and_read(clients: ThreadClients, thread_id: str) -> None:
    texts = used(
        clients,
        thread_id,
        [("write_file", {"path": "a/b.txt", "content": "two\nlines\n"})],
        [("list_files", {"path": "a"}), ("read_file", {"path": "/workspace/a/b.txt"}), ("list_files", {})],
        [("read_file", {"path": "nothing"})],
    )
    assert texts[:4] == ["wrote 10 bytes to /workspace/a/b.txt", "b.txt (10 bytes)", "two\nlines\n", "a/"]
    assert texts[4].startswith("[sandbox: ")


def test_what_went_wrong_has_the_status_of_an_error(clients: ThreadClients, thread_id: str) -> None:
    calls = [("read_file", {"path": "nothing"}), ("list_files", {"path": "no/where"}), ("bash", {"command": "false"})]
    agent: Any = create_agent(scripted(calls, "done"), sandbox_tools(clients=clients))
    state = agent.invoke({"messages": [("user", "go on")]}, {"configurable": {"thread_id": thread_id}})
    told = {message.name: message for message in state["messages"] if message.type == "tool"}
    assert {name: message.status for name, message in told.items()} == {
        "read_file": "error",
        "list_files": "error",
        "bash": "success",
    }
    assert told["read_file"].content == "[sandbox: 'nothing': no such file or directory]"


def test_background_commands_are_started_watched_and_stopped(clients: ThreadClients, thread_id: str) -> None:
    [started] = used(clients, thread_id, [("bash_background", {"command": "echo ready; sleep 1000"})])
    process_id = started.rsplit(" ", 1)[1]
    texts = used(
        clients,
        thread_id,
        [("background_output", {"process_id": process_id, "wait_s": 1})],
        [("background_stop", {"process_id": process_id})],
        [("background_output", {"process_id": process_id})],
        [("background_output", {"process_id": "nobody"})],
    )
    assert texts[0] == "ready\n[still running]"
    assert texts[1].startswith(f"{process_id} has ended")
    assert texts[2].startswith("ready\n[exit code ")
    assert "nobody" in texts[3]


def test_a_long_output_is_shortened_in_the_middle(clients: ThreadClients, thread_id: str) -> None:
    [text] = used(clients, thread_id, bash("seq 1 100000"))
    assert text.startswith("1\n2\n")
    assert "characters left out" in text
    assert text.endswith("100000\n[exit code 0]")
    assert len(text) < 31_000


def test_a_time_out_is_told(clients: ThreadClients, thread_id: str) -> None:
    [text] = used(clients, thread_id, bash("sleep 60", timeout=1))
    assert "stopped after 1 seconds" in text
    assert text.endswith("[exit code 124]")


def test_without_a_server_the_model_is_told() -> None:
    [text] = used(ThreadClients("http://127.0.0.1:9"), "t", bash("true"))
    assert "cannot be reached" in text
    assert text.endswith("[exit code 125]")


def test_a_dead_sandbox_is_replaced_and_told(url: str, hosts: Hosts, clients: ThreadClients, thread_id: str) -> None:
    used(clients, thread_id, bash("touch a"))
    hosts.lose(str(session_of(url, thread_id).sandbox_id))
    texts = used(clients, thread_id, bash("ls"), bash("echo on"))
    assert "gone" in texts[0]
    assert "on\n[exit code 0]" in texts[1]


def test_no_thread_id_is_one_clear_error(clients: ThreadClients) -> None:
    agent: Any = create_agent(scripted(bash("true"), "done"), sandbox_tools(clients=clients))
    with pytest.raises(InvalidRequest, match="no thread id"):
        agent.invoke({"messages": [("user", "go")]})


def test_the_model_does_not_see_the_runtime(url: str) -> None:
    tools = {tool.name: tool for tool in sandbox_tools(url)}
    assert set(tools) == {
        "bash",
        "run_code",
        "bash_background",
        "background_output",
        "background_stop",
        "read_file",
        "write_file",
        "list_files",
    }
    assert set(tools["bash"].tool_call_schema.model_json_schema()["properties"]) == {"command", "timeout"}


def test_the_prompt_names_every_tool_that_it_speaks_of() -> None:
    names = ("bash", "run_code", "bash_background", "background_output", "background_stop", "read_file", "write_file")
    for name in names:
        assert f"`{name}`" in SANDBOX_PROMPT
    assert "no network" in sandbox_prompt(network=False)
    assert sandbox_prompt(notes="Use pytest.").endswith("\nUse pytest.\n")


# -- the middleware


class Listening:
    """What the model was sent, beside the script."""

    def __init__(self, *turns: Any) -> None:
        self.heard: list[list[BaseMessage]] = []
        heard = self.heard
        parent = type(scripted("x"))

        class Model(parent):  # type: ignore[misc, valid-type]
            def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Any:
                heard.append(messages)
                return super()._generate(messages, *args, **options)

        self.model = Model(messages=scripted(*turns).messages)


@pytest.mark.anyio
async def test_the_middleware_brings_tools_prompt_and_a_sandbox_that_is_warm(url: str, thread_id: str) -> None:
    middleware = SandboxMiddleware(url)
    listening = Listening("no tool needed", bash("echo hi"), "done")
    agent: Any = create_agent(
        listening.model, system_prompt="Be kind.", middleware=[middleware], checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": thread_id}}
    await agent.ainvoke({"messages": [("user", "hello")]}, config)
    for task in tuple(middleware._tasks):
        await task
    assert middleware.clients.pair(thread_id).session_id
    state = await agent.ainvoke({"messages": [("user", "hello")]}, config)
    assert tool_texts(state) == ["hi\n[exit code 0]"]
    system = listening.heard[0][0]
    assert isinstance(system, SystemMessage)
    assert system.text.startswith("Be kind.")
    assert "## Your sandbox" in system.text
    await middleware.clients.connections.aclose()


def test_the_middleware_works_in_blocking_agents_too(url: str, thread_id: str) -> None:
    middleware = SandboxMiddleware(url)
    agent: Any = create_agent(scripted(bash("echo hi"), "done"), middleware=[middleware])
    state = agent.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": thread_id}})
    assert tool_texts(state) == ["hi\n[exit code 0]"]
    middleware.clients.connections.close()


def test_the_middleware_without_a_server_does_not_end_the_run() -> None:
    middleware = SandboxMiddleware("http://127.0.0.1:9", prompt="")
    agent: Any = create_agent(scripted("hello"), middleware=[middleware])
    state = agent.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": "t"}})
    assert state["messages"][-1].text == "hello"
