"""Agents of the registry in real agents, with a scripted model and real sandboxes."""

import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from frameworks.mcp_world import Tools, connected, stdio
from frameworks.scripted_model import scripted
from frameworks.test_threads import session_of, tool_texts
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from warren import SandboxClient
from warren.integrations.deepagents import agent_for
from warren.integrations.langgraph_tools import prompt_for, tools_for
from warren.model.errors import EntryNotFound, InvalidRequest

SERVER = """
import json, sys
count = 0
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        server = {"name": "test", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
    elif message["method"] == "tools/call":
        count += 1
        name, arguments = message["params"]["name"], message["params"]["arguments"]
        if arguments.get("word") == "die":
            sys.exit("told to die")
        if arguments.get("word") == "hang":
            continue
        text = f"{name} {arguments['word']} {count}"
        result = {"content": [{"type": "text", "text": text}], "isError": arguments["word"] == "bad"}
    else:
        continue
    print("noise on stderr", file=sys.stderr, flush=True)
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
ECHO = {
    "name": "echo",
    "description": "Says it again",
    "mcp": {"command": ["python3", "-u", "server.py"], "env": {"A": "b"}, "tool": "say"},
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    "timeout_s": 3,
}
OWN = {
    "environment": "base",
    "limits": {"memory_mb": 256},
    "tools": [
        "find_in_files",
        {
            "name": "say",
            "command": 'pwd; printf "%s" "$runtime"',
            "parameters": {"type": "object", "properties": {"runtime": {"type": "string", "maxLength": 30}}},
        },
        ECHO,
    ],
}


@pytest.fixture
def thread_id(url: str) -> Iterator[str]:
    thread_id = uuid.uuid4().hex
    yield thread_id
    SandboxClient.delete_thread(thread_id, url)


def used(tools: list[Any], thread_id: str, *calls: Any) -> list[str]:
    """Each of the calls in a turn of its own, without async."""
    script = [turn for each in calls for turn in (each, "done")]
    agent: Any = create_agent(scripted(*script), tools, checkpointer=InMemorySaver())
    state: Any = {}
    for _ in calls:
        state = agent.invoke({"messages": [("user", "go on")]}, {"configurable": {"thread_id": thread_id}})
    return tool_texts(state)


def test_a_packaged_agent_has_its_tools_beside_the_usual_ones(url: str, thread_id: str) -> None:
    tools = tools_for("coder", url)
    assert [tool.name for tool in tools][-3:] == ["list_files", "find_in_files", "run_tests"]
    find = tools[-2]
    assert set(find.args) == {"pattern", "directory", "files"}
    texts = used(
        tools,
        thread_id,
        [("write_file", {"path": "test_it.py", "content": "import unittest\nclass T(unittest.TestCase):\n"
          "  def test_a(self): self.assertEqual(6 * 7, 42)\n"})],
        [("find_in_files", {"pattern": "def .*;|6 . 7", "files": "*.py"}), ("run_tests", {"only": "test_a"})],
        [("find_in_files", {"patern": "x"})],
        [("find_in_files", {"pattern": "--help"})],
    )  # fmt: skip
    assert texts[1].startswith("/workspace/test_it.py:3:")
    assert texts[2].endswith("[exit code 0]")
    assert "needs the argument pattern" in texts[3]
    assert texts[4] == "[exit code 1]"
    session = session_of(url, thread_id)
    assert (session.agent, session.limits["memory_mb"]) == ("coder", 1024)


def test_tools_of_the_agents_own_are_checked_and_take_arguments_as_they_are(url: str, thread_id: str) -> None:
    tools = tools_for(OWN, url, standard=False)
    assert [tool.name for tool in tools] == ["find_in_files", "say", "echo"]
    hostile = "$(id) `id` \"'; id"
    texts = used(tools, thread_id, [("say", {"runtime": hostile})], [("say", {"runtime": "x" * 31})], [("say", {})])
    assert texts[0] == f"/workspace\n{hostile}\n[exit code 0]"
    assert "at most 30 are taken" in texts[1]
    assert texts[2] == "/workspace\n[exit code 0]"
    assert session_of(url, thread_id).limits["memory_mb"] == 256


def test_a_server_in_the_sandbox_answers_and_stays(url: str, thread_id: str) -> None:
    tools = tools_for(OWN, url)
    say = [[("echo", {"word": word})] for word in ("one", "two", "bad", "hang", "die", "again")]
    texts = used(tools, thread_id, [("write_file", {"path": "server.py", "content": SERVER})], *say)[1:]
    assert texts[0] == "say one 1\n[exit code 0]"
    assert texts[1] == "say two 2\n[exit code 0]"
    assert texts[2] == "say bad 3\n[exit code 1]"
    assert "gave no answer in 3 s" in texts[3]
    assert "has ended" in texts[4]
    assert "told to die" in texts[4]
    assert texts[5] == "say again 1\n[exit code 0]"
    together = [("echo", {"word": f"w{number}"}) for number in range(5)]
    answers = used(tools, thread_id, together)
    assert [answer.split()[1] for answer in answers] == [f"w{number}" for number in range(5)]
    assert sorted(answer.split()[2] for answer in answers) == ["2", "3", "4", "5", "6"]


def test_a_client_of_your_own_may_be_given(url: str) -> None:
    with SandboxClient(url, agent_config="coder") as client:
        client.write_file("a.txt", "needle")
        tools = {tool.name: tool for tool in tools_for("coder", client=client)}
        used_by = used(list(tools.values()), "any", [("find_in_files", {"pattern": "needle"})])
        assert used_by == ["/workspace/a.txt:1:needle\n[exit code 0]"]
        with pytest.raises(InvalidRequest, match="not both"):
            tools_for("coder", url, client=client)


@pytest.mark.anyio
async def test_the_same_without_blocking(url: str, thread_id: str) -> None:
    agent: Any = create_agent(scripted([("run_tests", {"directory": "/nowhere"})], "done"), tools_for("coder", url))
    state = await agent.ainvoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": thread_id}})
    assert "/nowhere: No such file" in tool_texts(state)[0]


def test_what_cannot_be_made_tools_of_is_refused_before_anything_runs(url: str) -> None:
    with pytest.raises(EntryNotFound, match="'codre'"):
        tools_for("codre", url)
    with pytest.raises(InvalidRequest, match="on an MCP server elsewhere"):
        tools_for({"tools": [{"name": "x", "mcp": {"url": "https://example.com/mcp"}}]}, url)


def test_a_deep_agent_is_made_of_an_entry(url: str, thread_id: str) -> None:
    model = scripted(
        [("write_file", {"file_path": "/workspace/a.txt", "content": "needle"})],
        [("find_in_files", {"pattern": "needle"})],
        "done",
    )
    agent = agent_for("coder", model, url, variables={"language": "Go"}, checkpointer=InMemorySaver())
    state = agent.invoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": thread_id}})
    assert tool_texts(state)[1] == "/workspace/a.txt:1:needle\n[exit code 0]"
    assert session_of(url, thread_id).agent == "coder"
    assert "programs in Go." in prompt_for("coder", url, {"language": "Go"})
    with pytest.raises(InvalidRequest, match="has no variable 'langage'"):
        agent_for("coder", model, url, variables={"langage": "Go"})


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["stdio", "handshake"])
async def test_an_mcp_server_serves_the_tools_of_an_agent(url: str, thread_id: str, transport: str) -> None:
    async with connected(transport, stdio(url, "--agent", "coder", "--thread", thread_id)) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert len(listed) == 15
        assert set(listed["find_in_files"].input_schema["properties"]) == {"pattern", "directory", "files", "sandbox"}
        tools = Tools(client)
        assert "needs the argument pattern" in await tools.refused("find_in_files")
        await tools.said("write_file", path="a.txt", content="needle")
        assert await tools.said("find_in_files", pattern="needle") == "/workspace/a.txt:1:needle\n"
        assert "[exit code 1]" in await tools.refused("find_in_files", pattern="needle", sandbox=f"{thread_id}-2")
    assert session_of(url, thread_id).agent == "coder"
    SandboxClient.delete_thread(f"{thread_id}-2", url)


def test_an_mcp_server_without_its_agent_does_not_start(url: str) -> None:
    place = stdio(url, "--agent", "nobody")
    ended = subprocess.run(
        [place.command, *place.args],
        env=place.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 125
    assert "there is no agent 'nobody'" in ended.stderr
