"""Cases the agent once got wrong, with the real agent in throw-away namespaces."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from contract.namespace_provider import NamespaceProvider
from contract.test_agent import BIN

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.operations import Command
from warren.model.spec import SandboxSpec

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["warren-agent", "warren-agent-sanitized"])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    provider = NamespaceProvider(BIN / request.param, tmp_path)
    sandbox = await provider.create(SandboxSpec())
    yield sandbox
    await sandbox.close()
    await provider.destroy(sandbox.id)
    await provider.close()


async def test_shell_state_of_one_user_is_not_anothers(box: Sandbox) -> None:
    await box.exec(Command(shell="export SECRET=mine; cd /tmp"))
    other = await box.exec(Command(shell="echo [$SECRET]; pwd", user="1234"))
    assert other.stdout == "[]\n/workspace\n"
    assert (await box.exec(Command(shell="echo [$SECRET]; pwd"))).stdout == "[mine]\n/tmp\n"


async def test_a_long_line_runs_whatever_descriptors_are_open(box: Sandbox) -> None:
    line = ": " + "x" * 130_000 + "\necho hello"
    said = []
    for _ in range(22):
        await box.start(Command(argv=("sleep", "60")))
        said.append((await box.exec(Command(shell=line))).stdout)
    assert set(said) == {"hello\n"}


async def test_two_kills_of_an_ended_command_are_both_answered(box: Sandbox) -> None:
    process = await box.start(Command(shell="sleep 60 & echo up"))
    assert (await process.wait()).background == 1
    with anyio.fail_after(10):
        await asyncio.gather(process.kill(0), process.kill(0))
    assert (await box.exec(Command(shell="ps -e | grep -c sleep"))).stdout == "0\n"


async def test_a_command_that_ends_while_it_is_killed_tells_of_the_kill(box: Sandbox) -> None:
    for _ in range(20):
        process = await box.start(Command(shell="sleep 60 & sleep 60 & echo up; read line"))
        shown = process.output()
        await anext(shown)
        await shown.aclose()  # type: ignore[attr-defined]
        await asyncio.gather(process.close_stdin(), process.kill(0))
        result = await process.wait()
        assert result.survivors == 0
        assert result.killed >= 2 or result.background == 2
        if result.background:
            await process.kill(0)
        await box.forget(process.id)


async def echo(process: Process, shown: AsyncIterator[bytes], word: bytes) -> None:
    await process.write(word + b"\n")
    got = b""
    while not got.endswith(word + b"\n"):
        got += await anext(shown)


async def test_commands_that_speak_at_once_are_all_heard(box: Sandbox) -> None:
    async def pieces(process: Process) -> AsyncIterator[bytes]:
        async for chunk in process.output():
            yield chunk.data

    processes = [await box.start(Command(argv=("cat",))) for _ in range(4)]
    readers = [pieces(process) for process in processes]
    for turn in range(150):
        with anyio.fail_after(5):
            await asyncio.gather(
                *(echo(process, shown, b"%d" % turn) for process, shown in zip(processes, readers, strict=True))
            )
    for process, shown in zip(processes, readers, strict=True):
        await process.kill(0)
        await shown.aclose()  # type: ignore[attr-defined]
