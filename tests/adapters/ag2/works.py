"""The sandbox alone, and with agents; what goes wrong; Variables; and sessions that others made."""

import asyncio
import contextlib
import copy
import json
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import PurePosixPath
from typing import Any

from ag2 import Agent
from ag2.annotations import Variable
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig
from ag2.tools import SandboxCodeTool, SandboxShellTool
from ag2.tools.sandbox import CodeAdapter, LanguageRunner, Sandbox, SandboxFactory

from warren import AsyncSandboxClient
from warren.integrations.ag2 import WarrenEnvironment, WarrenSandbox


async def failure(kind: type[BaseException], work: Awaitable[Any]) -> str:
    try:
        found = await work
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def run(box: Sandbox, line: str, **how: Any) -> tuple[int, str]:
    found = await box.exec(["sh", "-c", line], **how)
    return found.exit_code, found.output


async def alone() -> None:
    options: dict[str, Any] = {"env": {"PLACE": "here"}, "limits": {"memory_mb": 300}}
    box = WarrenSandbox(timeout=30, max_output=20_000_000, **options)
    assert isinstance(box, Sandbox)
    assert copy.deepcopy(box) is box
    assert (box.host_workdir, box.client.session_id) == (None, "")
    assert (await box.exec([])).exit_code == 2
    assert await run(box, "echo $PLACE $OTHER; pwd; echo wrong >&2; exit 3", env={"OTHER": "there"}) == (
        3,
        f"here there\n{box.workdir}\nwrong",
    )
    session = await box.client.info()
    assert session.limits is not None
    assert session.limits["memory_mb"] == 300
    assert (await box.exec(["no-such-program"])).exit_code == 127
    code, said = await run(box, "echo so far; sleep 60", timeout=1)
    assert code == 124
    assert said.startswith("so far\n")
    assert "stopped after 1 seconds" in said
    assert len((await run(box, "yes | head -c 10000000"))[1]) == 9_999_999
    assert "ran out of memory" in (await run(box, "python3 -c 'x = b\"x\" * 900_000_000'"))[1]

    data = bytes(range(256)) * 40_000
    await box.put_file(PurePosixPath("deep/data.bin"), data)
    assert await box.client.read_file("deep/data.bin") == data
    await failure(IsADirectoryError, box.put_file(PurePosixPath("deep"), b""))
    await box.remove_file(PurePosixPath("deep/data.bin"))
    await box.remove_file(PurePosixPath("deep/data.bin"))
    assert await run(box, "ls deep") == (0, "")
    for path in ("/tmp/x", "../x"):
        await failure(ValueError, box.put_file(PurePosixPath(path), b""))
        await failure(ValueError, box.remove_file(PurePosixPath(path)))

    running = asyncio.create_task(run(box, "sleep 1000"))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running])
    for _ in range(100):
        if "sleep" not in (await run(box, "ps -eo comm"))[1]:
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the command of a caller who has gone still runs")

    async with AsyncSandboxClient.attach(session.session_id) as client:
        await client.cleanup()
    code, said = await run(box, "true")
    assert code == 125
    assert "fresh sandbox" in said
    assert await run(box, "ls") == (0, "")
    await box.aclose()
    await box.aclose()
    assert "closed" in await failure(RuntimeError, run(box, "true"))
    for delay_s in (0.001, 0.02, 0.1):
        box = WarrenSandbox()
        starting = asyncio.create_task(box.__aenter__())
        await asyncio.sleep(delay_s)
        starting.cancel()
        await asyncio.wait([starting])
        await box.aclose()
    assert await AsyncSandboxClient.list_sessions() == []


async def of_others() -> None:
    async with AsyncSandboxClient() as client:
        first, second = WarrenSandbox(client=client), WarrenSandbox(session_id=client.session_id)
        async with first, second:
            await first.put_file(PurePosixPath("shared"), b"")
            assert await run(second, "ls") == (0, "shared")
        assert (await client.execute("ls")).output == "shared\n"
        async with WarrenSandbox(session_id=client.session_id) as third:
            await client.cleanup()
            code, said = await run(third, "true")
            assert code == 125
            assert "has ended" in said
            await failure(ConnectionError, third.put_file(PurePosixPath("x"), b""))


def call(name: str, **arguments: Any) -> ToolCallEvent:
    return ToolCallEvent(name=name, arguments=json.dumps(arguments))


async def agents() -> None:
    async def one(number: int) -> None:
        model = TestConfig(
            call("run_code", code=f"open('n', 'w').write('{number}')", language="python"),
            call("run_shell_command", command="cat n; sleep 1; exit 4"),
            "done",
        )
        async with WarrenEnvironment(env={"NUMBER": str(number)}) as environment:
            assert isinstance(environment, SandboxFactory)
            tools = [SandboxCodeTool(environment, languages=("python", "bash")), SandboxShellTool(environment)]
            reply = await Agent("works", config=model, tools=tools).ask("go")
            assert reply.body == "done"
            async with environment.open() as box:
                assert await run(box, "cat n") == (0, str(number))

    await asyncio.gather(one(1), one(2))


async def variables() -> None:
    async with WarrenEnvironment(env=Variable("settings")) as environment:
        tool = SandboxShellTool(environment)
        for place in ("here", "there"):
            model = TestConfig(call("run_shell_command", command="echo $PLACE >> places"), "done")
            agent = Agent("works", config=model, tools=[tool])
            await agent.ask("go", variables={"settings": {"PLACE": place}})
        assert len(await AsyncSandboxClient.list_sessions()) == 2
        with contextlib.suppress(RuntimeError):
            async with environment.open():
                raise AssertionError("there is no conversation")
    with contextlib.suppress(TypeError):
        WarrenEnvironment(enviroment="base")
        raise AssertionError("a name that is no option")


async def code() -> None:
    async with WarrenEnvironment() as environment:
        runners = {"typescript": LanguageRunner(file_extension="ts", file_runner_argv=("cat",))}
        adapter = CodeAdapter(environment, languages=("python", "bash", "javascript", "typescript"), runners=runners)
        for language, text in (
            ("python", "print(42)"),
            ("bash", "echo 42"),
            ("javascript", "console.log(42)"),
            ("typescript", "42"),
        ):
            found = await adapter.run(text, language)  # type: ignore[arg-type]
            assert (found.exit_code, found.output) == (0, "42"), (language, found)
        async with environment.open() as box:
            assert await run(box, "ls") == (0, "")


def the_end_of_the_program() -> None:
    """A sandbox that nobody has closed ends with the program, also if each call had an event loop of its own."""
    program = (
        "import asyncio\nfrom warren.integrations.ag2 import WarrenSandbox\nbox = WarrenSandbox()\n"
        "for _ in range(2): print(asyncio.run(box.exec(['pwd'])).exit_code)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "0\n0\n"
    assert asyncio.run(AsyncSandboxClient.list_sessions()) == []


for check in (alone, of_others, agents, variables, code):
    asyncio.run(check())
the_end_of_the_program()
