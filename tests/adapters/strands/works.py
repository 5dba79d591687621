"""The sandbox does what Strands asks of it, and agents work through it with its tools."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from scripted import Scripted
from strands import Agent
from strands.sandbox import ExecutionResult, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError

from warren import AsyncSandboxClient
from warren.integrations.strands import WarrenSandbox
from warren.model.errors import UnknownEnvironment


async def check_commands(box: WarrenSandbox) -> None:
    said = await box.execute('echo "$PLACE $MORE"; pwd; echo bad >&2; exit 3', env={"MORE": "now"}, cwd="/tmp")
    assert (said.exit_code, said.stdout, said.stderr) == (3, "here now\n/tmp\n", "bad\n"), said
    await box.execute("cd /tmp; export LEFT=1")
    assert (await box.execute("pwd; echo $LEFT")).stdout == "/workspace\n\n"
    assert (await box.execute("no-such-program")).exit_code == 127

    seen: list[Any] = []
    async for chunk in box.execute_streaming("echo one; sleep 1; echo two >&2; echo three"):
        seen.append(chunk)
        if len(seen) == 1:
            assert seen == [StreamChunk("one\n", "stdout")]
    assert StreamChunk("two\n", "stderr") in seen
    assert seen[-1] == ExecutionResult(exit_code=0, stdout="one\nthree\n", stderr="two\n")
    async with contextlib.aclosing(box.execute_streaming("echo $$; exec sleep 900")) as left:
        pid = (await anext(left)).data.strip()
    await until_gone(box, f"kill -0 {pid}")

    assert len((await box.execute("seq 1200000")).stdout) == 8_488_896
    assert len((await box.execute("yes | head -c 30000000")).stdout) == 30_000_000
    slow = await failure(SandboxTimeoutError, box.execute("echo so far; echo bad >&2; sleep 60", timeout=1))
    assert (slow.stdout, slow.stderr) == ("so far\n", "bad\n")
    for wrong in ({"timeout": 0}, {"env": {"a b": "c"}}):
        await failure(ValueError, box.execute("true", **wrong))
    await failure(FileNotFoundError, box.execute("true", cwd="/workspace/none"))

    program = "import os\nfor part in ('a', \"b\"):\n    print(part, os.environ['MORE'])\nraise SystemExit(4)"
    ran = await box.execute_code(program, "python3", env={"MORE": "$x"})
    assert (ran.exit_code, ran.stdout) == (4, "a $x\nb $x\n"), ran
    assert (await box.execute_code("x", "no-such-language")).exit_code == 127
    await failure(ValueError, box.execute_code("x", "python3; id"))
    await failure(SandboxTimeoutError, box.execute_code("while True: pass", "python3", timeout=1))

    running = asyncio.create_task(box.execute("sleep 1000"))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running])
    await until_gone(box, "ps -eo comm | grep -w sleep")


async def until_gone(box: WarrenSandbox, probe: str) -> None:
    for _ in range(100):
        if (await box.execute(probe)).exit_code:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the command of a caller who has gone still runs")


async def check_files(box: WarrenSandbox) -> None:
    data = bytes(range(256)) * 40_000
    await box.write_file("deep/data.bin", data)
    assert await box.read_file("/workspace/deep/data.bin") == data
    [entry] = await box.list_files("deep")
    assert (entry.name, entry.is_dir, entry.size) == ("data.bin", False, len(data))
    assert [(each.name, each.is_dir, each.size) for each in await box.list_files("/workspace")] == [
        ("deep", True, None)
    ]
    await failure(FileNotFoundError, box.read_file("none"))
    await failure(IsADirectoryError, box.read_file("deep"))
    await failure(PermissionError, box.write_file("/etc/passwd", b""))
    await failure(OSError, box.write_file("deep/data.bin/x", b""))
    for path in ("none", "deep/data.bin"):
        await failure(SandboxPathNotFoundError, box.list_files(path))
    await box.write_text("text", "é\n")
    assert await box.read_text("text") == "é\n"
    await box.remove_file("text")
    await failure(FileNotFoundError, box.remove_file("text"))


async def check_sessions() -> None:
    async with AsyncSandboxClient() as client:
        await client.create_session()
        async with WarrenSandbox(session_id=client.session_id, working_dir="/workspace/sub") as box:
            await box.write_file("x", b"1")
            assert (await box.execute("cat x; pwd")).stdout == "1/workspace/sub\n"
        assert await client.read_file("sub/x") == b"1"
    gone = WarrenSandbox(session_id=box.session_id)
    for work in (gone.execute("true"), gone.read_file("x"), gone.list_files("x")):
        await failure(ConnectionError, work)
    await gone.aclose()
    await failure(UnknownEnvironment, WarrenSandbox(environment="nowhere").execute("true"))
    async with WarrenSandbox(limits={"memory_mb": 200}, metadata={"of": "two"}) as box:
        await asyncio.gather(*(box.execute("true") for _ in range(5)))
        [session] = await AsyncSandboxClient.list_sessions(metadata={"of": "two"})
        assert session.session_id == box.session_id
        assert session.limits is not None
        assert session.limits["memory_mb"] == 200
    await failure(ConnectionError, box.execute("true"))

    for pause_s in (0.0, 0.02, 0.2):
        async with WarrenSandbox() as box:
            begun = asyncio.create_task(box.execute("true"))
            await asyncio.sleep(pause_s)
            begun.cancel()
            await asyncio.wait([begun])
    assert await AsyncSandboxClient.list_sessions() == []


def answer(box: WarrenSandbox, tool: str, **given: Any) -> str:
    return str(Agent(Scripted(tool, given), sandbox=box, callback_handler=None)("go"))


def check_agents() -> None:
    with WarrenSandbox() as one, WarrenSandbox() as other:
        assert '"exit_code": 0' in answer(one, "sandbox_shell", command="echo one > name")
        assert '"exit_code": 1' in answer(other, "sandbox_shell", command="cat name")
        assert "one" in answer(one, "sandbox_file_editor", command="view", path="/workspace/name")
        answer(one, "sandbox_file_editor", command="str_replace", path="/workspace/name", old_str="one", new_str="two")
        assert "two" in answer(one, "sandbox_shell", command="cat name")
        assert "so far" in answer(one, "sandbox_shell", command="echo so far; sleep 60", timeout=1)


async def failure(kind: type[Exception], work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def main() -> None:
    async with WarrenSandbox(env={"PLACE": "here"}) as box:
        await check_files(box)
        await check_commands(box)
    await check_sessions()


asyncio.run(main())
check_agents()
assert asyncio.run(AsyncSandboxClient.list_sessions()) == []
