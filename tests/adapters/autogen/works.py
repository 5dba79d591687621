"""The executor alone, and with agents; what goes wrong; and sessions that others made."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.models.replay import ReplayChatCompletionClient

from warren import AsyncSandboxClient
from warren.integrations.autogen import WarrenCodeExecutor, WarrenCodeResult
from warren.model.errors import SessionEnded

PICTURE = "class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(40)\ndisplay(P())"


async def run(executor: CodeExecutor, *blocks: tuple[str, str]) -> WarrenCodeResult:
    found = await executor.execute_code_blocks(
        [CodeBlock(code, language) for language, code in blocks], CancellationToken()
    )
    assert isinstance(found, WarrenCodeResult)
    return found


async def failure(kind: type[BaseException], work: Awaitable[Any]) -> str:
    try:
        found = await work
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def alone() -> None:
    options: dict[str, Any] = {"env": {"PLACE": "here"}, "limits": {"memory_mb": 300}}
    executor = WarrenCodeExecutor(timeout=60, max_output_chars=20_000_000, **options)
    assert "does not run" in await failure(ValueError, run(executor, ("sh", "true")))
    await executor.stop()
    await executor.start()
    await executor.start()
    session = await executor.client.info()
    assert session.limits is not None
    assert session.limits["memory_mb"] == 300
    found = await run(
        executor, ("sh", "cd /tmp; echo $PLACE; echo wrong >&2"), ("bash", "pwd"), ("Python", "x = 6\nx * 7")
    )
    assert (found.exit_code, found.output) == (0, f"here\nwrong\n{session.workspace}\n42\n")
    assert (await run(executor, ("py", "print(x)"), ("", "x + 1"))).output == "6\n7\n"
    failed = await run(executor, ("python", "print('before')\n1 / 0"), ("sh", "echo never"))
    assert failed.exit_code == 1
    assert failed.output.startswith("before\nTraceback")
    assert failed.output.endswith("ZeroDivisionError: division by zero\n")
    assert (await run(executor, ("sh", "exit 5"))).exit_code == 5
    async with WarrenCodeExecutor(timeout=3) as hurried:
        for late in (("sh", "echo so far; sleep 60"), ("python", "print('so far')\nimport time\ntime.sleep(60)")):
            result = await run(hurried, late)
            assert result.exit_code == 124, result
            assert result.output.startswith("so far\n")
            assert "after 3 seconds" in result.output
    assert (await run(executor, ("python", "x"))).output == "6\n"
    for big in (("sh", "yes | head -c 10000000"), ("python", "print('y' * 9_999_999)")):
        assert len((await run(executor, big)).output) == 10_000_000
    shown = await run(executor, ("python", PICTURE))
    assert (shown.output, [each.mime_type for each in shown.pictures]) == ("[picture 1]\n", ["image/png"])
    assert "variables are lost" in (await run(executor, ("python", "import os\nos._exit(3)"))).output
    assert "NameError" in (await run(executor, ("python", "x"))).output
    assert "cobol" in await failure(ValueError, run(executor, ("cobol", "")))
    assert "no code" in await failure(ValueError, run(executor))

    data = bytes(range(256)) * 1000
    await executor.client.write_file("data.bin", data)
    await run(executor, ("python", "data = open('data.bin', 'rb').read()\nopen('copy.bin', 'wb').write(data)"))
    assert await executor.client.read_file("copy.bin") == data
    await executor.restart()
    assert "NameError" in (await run(executor, ("python", "data"))).output
    assert (await run(executor, ("sh", "ls"))).output == "copy.bin\ndata.bin\n"

    async with AsyncSandboxClient.attach(session.session_id) as client:
        await client.cleanup()
    for block in (("sh", "true"), ("python", "1")):
        gone = await run(executor, block)
        assert (gone.exit_code, session.session_id in gone.output) == (125, True)
    await executor.restart()
    assert (await run(executor, ("sh", "ls"))).output == ""
    await executor.stop()
    await executor.stop()


async def cancelled() -> None:
    async with WarrenCodeExecutor() as executor:
        await run(executor, ("python", "kept = 1"))
        for block in (("sh", "sleep 1000"), ("python", "import subprocess\nsubprocess.run(['sleep', '1000'])")):
            token = CancellationToken()
            asyncio.get_running_loop().call_later(2, token.cancel)
            await failure(asyncio.CancelledError, executor.execute_code_blocks([CodeBlock(block[1], block[0])], token))
            for _ in range(100):
                if "sleep" not in (await run(executor, ("sh", "ps -eo comm"))).output:
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError("what was cancelled still runs")
        assert (await run(executor, ("python", "kept"))).output == "1\n"
    for delay_s in (0.001, 0.02, 0.1):
        executor = WarrenCodeExecutor()
        starting = asyncio.create_task(executor.start())
        await asyncio.sleep(delay_s)
        starting.cancel()
        await asyncio.wait([starting])
        await executor.stop()
    assert await AsyncSandboxClient.list_sessions() == []


async def of_others() -> None:
    async with AsyncSandboxClient() as client:
        first, second = WarrenCodeExecutor(client=client), WarrenCodeExecutor(session_id=client.session_id)
        async with first, second:
            await run(first, ("python", "x = 1\nopen('shared', 'w').close()"))
            assert "NameError" in (await run(second, ("python", "x"))).output
            assert (await run(second, ("sh", "ls"))).output == "shared\n"
        assert await client.list_code_contexts() == []
        assert (await client.execute("ls")).output == "shared\n"
        loaded = CodeExecutor.load_component(first.dump_component())
        async with loaded:
            assert (await run(loaded, ("sh", "ls"))).output == "shared\n"
        await second.start()
        await client.cleanup()
        assert (await run(second, ("sh", "true"))).exit_code == 125
        assert "has ended" in await failure(SessionEnded, second.restart())
        await second.stop()


async def configured() -> None:
    limits = {"memory_mb": 256}
    made = WarrenCodeExecutor(timeout=7, api_key="wk_secret", limits=limits, environment="base")
    dumped = made.dump_component()
    assert "secret" not in dumped.model_dump_json()
    loaded = CodeExecutor.load_component(dumped)
    assert isinstance(loaded, WarrenCodeExecutor)
    assert loaded.dump_component() == dumped
    async with loaded:
        session = await loaded.client.info()
        assert session.limits is not None
        assert session.limits["memory_mb"] == 256
    assert "no session yet" in await failure(
        ValueError, asyncio.to_thread(WarrenCodeExecutor(client=AsyncSandboxClient()).dump_component)
    )


async def agents() -> None:
    async def one(number: int) -> None:
        script = [f"```python\nmine = {number}\n```", "```python\nprint('mine', mine)\n```\n```sh\nsleep 1\n```"]
        async with WarrenCodeExecutor() as executor:
            writer = AssistantAgent("writer", ReplayChatCompletionClient(script))
            runner = CodeExecutorAgent("runner", code_executor=executor)
            team = RoundRobinGroupChat([writer, runner], termination_condition=MaxMessageTermination(5))
            messages = (await team.run(task="go")).messages
            assert f"mine {number}" in str(messages[-1]), messages[-1]

    await asyncio.gather(one(1), one(2))


for check in (alone, cancelled, of_others, configured, agents):
    asyncio.run(check())
