"""Backend and capability do what Pydantic AI asks of them beyond its suite, and agents work through them."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from pydantic_ai import Agent, RunContext, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, WorkspaceRef
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    Workspace,
    WorkspaceOutputLimitError,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from warren import AsyncSandboxClient
from warren.integrations.pydantic_ai import WarrenBackend, WarrenWorkspace
from warren.model.errors import UnknownEnvironment


async def check_commands(box: WarrenBackend) -> None:
    said = await box.run('echo "$PLACE $MORE"; pwd', shell=True, env={"MORE": "now"})
    assert (said.exit_code, said.stdout) == (0, "here now\n/workspace\n"), said
    await box.run("cd /tmp; export LEFT=1", shell=True)
    assert (await box.run("pwd; echo $LEFT", shell=True)).stdout == "/workspace\n\n"
    assert (await box.run(["sh", "-c", "kill -9 $$"])).exit_code == 137

    long = await box.run(["sh", "-c", "seq 1200000"])
    assert (len(long.stdout), long.stdout[-8:]) == (8_488_896, "1200000\n")
    too_long = await failure(WorkspaceOutputLimitError, box.run("yes | head -c 30000000", shell=True))
    assert too_long.stdout.startswith("y\ny\n")
    slow = await failure(WorkspaceTimeoutError, box.run("echo so far; sleep 60", shell=True, timeout=1))
    assert slow.stdout == "so far\n"
    assert "stopped after 1 seconds" in str(slow)
    for timeout in (0, -1, float("inf")):
        await failure(ValueError, box.run(["true"], timeout=timeout))

    running = asyncio.create_task(box.run(["sleep", "1000"]))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running])
    for _ in range(100):
        if "sleep" not in (await box.run(["ps", "-eo", "comm"])).stdout:
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the command of a caller who has gone still runs")


async def check_files(box: WarrenBackend) -> None:
    data = bytes(range(256)) * 40_000
    await box.write_bytes("/workspace/deep/data.bin", data)
    assert await box.read_bytes("/workspace/deep/data.bin") == data
    assert [(each.path, each.size) for each in await box.list_dir("/workspace/deep")] == [
        ("/workspace/deep/data.bin", len(data))
    ]
    assert "none" in str(await failure(FileNotFoundError, box.read_bytes("/workspace/none")))
    await failure(IsADirectoryError, box.read_bytes("/workspace/deep"))
    await failure(PermissionError, box.write_bytes("/etc/passwd", b""))
    await box.run("ln -s . loops; ln -s none nowhere; ln -s round round", shell=True)
    assert [await box.exists(f"/workspace/{name}") for name in ("loops", "nowhere", "round")] == [True, False, False]
    await box.remove("/workspace/loops")  # the link alone
    assert await box.exists("/workspace/deep")
    elsewhere = WarrenBackend(ref=box.ref, working_dir="/workspace/deep")
    assert await elsewhere.working_dir() == "/workspace/deep"
    assert (await elsewhere.run(["ls"])).stdout == "data.bin\n"
    await failure(ValueError, elsewhere.remove("/workspace"))
    lost = WarrenBackend(ref=box.ref, working_dir="/workspace/none")
    await failure(FileNotFoundError, lost.working_dir())
    await failure(FileNotFoundError, lost.run(["ls"]))


async def check_sessions() -> None:
    async with AsyncSandboxClient() as client:
        async with WarrenBackend(client=client) as box:
            await box.write_bytes("/workspace/x", b"1")
            assert box.ref == WorkspaceRef(provider="warren", id=client.session_id)
        assert await client.read_file("x") == b"1"  # it is still there
        async with WarrenBackend(ref=box.ref) as same:
            assert await same.read_bytes("/workspace/x") == b"1"
        assert await client.read_file("x") == b"1"
        gone = WarrenBackend(client=client)
    for work in (gone.run(["true"]), gone.read_bytes("/workspace/x"), WarrenBackend(ref=box.ref).working_dir()):
        await failure(WorkspaceUnavailableError, work)
    await gone.destroy()
    await WarrenBackend(ref=box.ref).destroy()
    await WarrenBackend().destroy()
    await failure(UnknownEnvironment, WarrenBackend(environment="nowhere").working_dir())
    for ref in (WorkspaceRef(provider="local", id="/"), WorkspaceRef(provider="warren", id="ses_none")):
        try:
            await failure(WorkspaceUnavailableError, WarrenBackend(ref=ref).working_dir())
        except ValueError:
            assert ref.provider == "local"

    for pause_s in (0.0, 0.02, 0.2):
        box = WarrenBackend()
        begun = asyncio.create_task(box.working_dir())
        await asyncio.sleep(pause_s)
        begun.cancel()
        await asyncio.wait([begun])
        await box.destroy()
    assert await AsyncSandboxClient.list_sessions() == []


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Runs what the prompt says, then answers with what it said."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(str(last.content) or "nothing")])
    return ModelResponse(parts=[ToolCallPart("bash", {"command": last.content})])


def new_agent(workspace: WarrenWorkspace) -> Agent[None, str]:
    agent = Agent(FunctionModel(script), capabilities=[WarrenWorkspace(environment="nowhere"), workspace])

    @agent.tool
    async def bash(ctx: RunContext[None], command: str) -> str:
        return (await ctx.workspace.run(command, shell=True, timeout=60)).stdout.strip()

    return agent


async def check_agents() -> None:
    workspace = WarrenWorkspace(env={"PLACE": "there"}, metadata={"of": "agents"}, limits={"memory_mb": 200})
    agent = new_agent(workspace)
    both = await asyncio.gather(*(agent.run(f"echo {each} $PLACE | tee name") for each in ("one", "two")))
    assert [each.output for each in both] == ["one there", "two there"]
    sessions = await AsyncSandboxClient.list_sessions(metadata={"of": "agents"})
    assert {each.session_id for each in sessions} == {each.workspace.ref.id for each in both if each.workspace.ref}
    assert [each.limits["memory_mb"] for each in sessions] == [200, 200]

    next_turn = await agent.run("cat name", message_history=both[1].all_messages())
    assert (next_turn.output, next_turn.workspace.ref) == ("two there", both[1].workspace.ref)
    assert (await agent.run("cat name", workspace=both[0].workspace.ref)).output == "one there"
    assert await Workspace(workspace.backend(both[0].workspace.ref)).read_text("name") == "one there\n"
    fresh = await agent.run("ls", message_history=both[1].all_messages(), workspace="new")
    assert fresh.output == "nothing"
    for result in (*both, fresh):
        assert result.workspace.ref is not None
        await workspace.destroy(result.workspace.ref)
        await workspace.destroy(result.workspace.ref)
    await failure(WorkspaceUnavailableError, agent.run("ls", message_history=fresh.all_messages()))
    await failure(UserError, agent.run("ls", workspace=WorkspaceRef(provider="local", id="/")))

    async with WarrenBackend() as box:
        assert (await new_agent(workspace).run("pwd", workspace=box)).output == "/workspace"
    assert await AsyncSandboxClient.list_sessions() == []


async def failure(kind: type[Exception], work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def main() -> None:
    async with WarrenBackend(env={"PLACE": "here"}) as box:
        await check_commands(box)
        await check_files(box)
    await check_sessions()
    await check_agents()


asyncio.run(main())
new_agent(WarrenWorkspace()).run_sync("true")  # its loop stays open, and so does its session
[left] = asyncio.run(AsyncSandboxClient.list_sessions())
asyncio.run(WarrenWorkspace().destroy(WorkspaceRef(provider="warren", id=left.session_id)))
