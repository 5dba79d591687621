"""What the real agent does beyond the contracts, in throw-away namespaces: see namespace_provider.py."""

import asyncio
import contextlib

import anyio
import pytest
from contract.provider_kinds import AgentHooks
from contract.sandbox_contract import SandboxHooks

from warren.interfaces.sandbox import Sandbox
from warren.kernel.answer_memory import SHORT_BYTES, AnswerMemory, AnswerRoom, set_answer_room
from warren.model.errors import ProcessNotFound
from warren.model.operations import Command, ExecResult, Reason


@pytest.mark.anyio
class TestAgentSandbox(AgentHooks, SandboxHooks):
    async def test_forgetting_a_process_leaves_no_reader_hanging(self, sandbox: Sandbox) -> None:
        """More than a window of output, so that the agent still has some to send when it forgets."""
        process = await sandbox.start(Command(shell="head -c 1200000 /dev/zero"))
        reading = process.output()
        await anext(reading)
        while (await sandbox.processes())[0].running:
            await asyncio.sleep(0.005)
        await sandbox.forget(process.id)
        with anyio.fail_after(5), contextlib.suppress(ProcessNotFound):
            async for _ in reading:
                pass

    async def test_only_what_can_write_to_its_output_makes_a_command_last(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="sleep 60 >/dev/null 2>&1 & echo shell", until_closed=True))
        with anyio.fail_after(5):
            result = await process.wait()
        assert (result.stdout, result.exit_code, result.background) == ("shell\n", 0, 1)

    @pytest.mark.parametrize("end", ["signal", "time-out", "kill"])
    async def test_a_command_that_waits_for_its_output_to_be_closed_can_be_ended(
        self, sandbox: Sandbox, end: str
    ) -> None:
        line = "setsid sleep 60 & echo shell; exit 3"
        command = Command(shell=line, until_closed=True, timeout_s=0.5 if end == "time-out" else None, grace_s=0)
        process = await sandbox.start(command)
        while (info := (await sandbox.processes())[0]).running and not info.bytes_total:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        if end == "signal":
            await process.signal(9)
        elif end == "kill":
            await process.kill()
        with anyio.fail_after(5):
            result = await process.wait()
        reason = {"signal": Reason.EXITED, "time-out": Reason.TIMEOUT, "kill": Reason.CANCELLED}[end]
        assert (result.stdout, result.exit_code, result.reason) == ("shell\n", 3, reason)
        assert (await sandbox.processes())[0].background == (0 if end == "kill" else 1)

    async def test_a_killed_command_does_not_wait_for_those_who_hold_its_output(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="setsid sleep 60 & echo up; sleep 60", until_closed=True))
        await anext(process.output())
        await process.signal(9)
        with anyio.fail_after(5):
            assert (await process.wait()).signal == 9

    async def test_output_that_finds_no_room_is_cut_and_says_so(self, sandbox: Sandbox) -> None:
        async def run(size: int) -> ExecResult:
            set_answer_room(AnswerRoom(AnswerMemory(1024 * 1024, wait_s=0.05), "acme"))
            return await sandbox.exec(Command(shell=f"head -c {size} /dev/zero; exit 3"))

        cut = await asyncio.create_task(run(2_000_000))
        assert (cut.exit_code, cut.bytes_total, cut.truncated) == (3, 2_000_000, True)
        assert cut.written.kept <= SHORT_BYTES
        assert "bytes not kept" in cut.stdout
        short = await asyncio.create_task(run(SHORT_BYTES))
        assert (short.written.kept, short.truncated) == (SHORT_BYTES, False)

    async def test_an_end_that_was_not_taken_when_it_is_forgotten_is_not_found(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="cat; exit 3"))
        waiting = asyncio.ensure_future(process.wait())
        await process.close_stdin()
        with anyio.fail_after(5):
            assert (await waiting).exit_code == 3
        await sandbox.forget(process.id)
        with pytest.raises(ProcessNotFound):
            await process.wait()
