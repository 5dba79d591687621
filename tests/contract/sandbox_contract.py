"""What every sandbox promises of its commands (interfaces/sandbox.py); files are in files_contract.py.

The suite uses only words the fake's small shell knows. A test module subclasses it together with
`provider_contract.ProviderHooks` and gives it a `provider` fixture.
"""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
from contract.provider_contract import ProviderHooks

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import (
    Conflict,
    InvalidPath,
    InvalidRequest,
    ProcessNotFound,
    SandboxLost,
    UnknownUser,
)
from warren.model.operations import Command, ExecResult, OutputStream, Reason, TerminalSize


async def sh(sandbox: Sandbox, text: str) -> ExecResult:
    return await sandbox.exec(Command(shell=text))


async def all_of(process: Process, offset: int = 0) -> bytes:
    return b"".join([chunk.data async for chunk in process.output(offset)])


async def until_written(process: Process, wanted: bytes) -> None:
    """Waits until the process has written that."""
    seen = b""
    reading = process.output()
    async for chunk in reading:
        seen += chunk.data
        if wanted in seen:
            break
    await reading.aclose()  # type: ignore[attr-defined]


class SandboxHooks(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    @pytest.fixture
    async def sandbox(self, provider: Provider) -> AsyncIterator[Sandbox]:
        box = await provider.create(self.spec())
        try:
            with anyio.fail_after(60):
                yield box
        finally:
            await provider.destroy(box.id)


@pytest.mark.anyio
class SandboxContract(SandboxHooks):
    # How a command ends.

    @pytest.mark.parametrize("code", [0, 3, 255])
    async def test_an_exit_code_is_a_result(self, sandbox: Sandbox, code: int) -> None:
        result = await sh(sandbox, f"exit {code}")
        assert (result.exit_code, result.reason, result.signal) == (code, Reason.EXITED, None)

    async def test_a_program_that_is_not_there_is_127(self, sandbox: Sandbox) -> None:
        assert (await sh(sandbox, "no-such-program")).exit_code == 127
        result = await sandbox.exec(Command(argv=("no-such-program",)))
        assert (result.exit_code, result.reason) == (127, Reason.EXITED)
        assert "no-such-program" in result.stderr
        assert (await sandbox.exec(Command(argv=("/no/such/program",)))).exit_code == 127

    async def test_a_file_that_cannot_be_executed_is_126(self, sandbox: Sandbox) -> None:
        await sandbox.write("plain", b"text", mode=0o644)
        assert (await sh(sandbox, "./plain")).exit_code == 126
        assert (await sandbox.exec(Command(argv=("/workspace/plain",)))).exit_code == 126

    @pytest.mark.parametrize("number", [1, 9, 15])
    async def test_death_by_a_signal_is_128_and_the_signal(self, sandbox: Sandbox, number: int) -> None:
        result = await sh(sandbox, f"kill -{number} $$")
        assert (result.exit_code, result.reason, result.signal) == (128 + number, Reason.SIGNAL, number)

    async def test_duration_is_measured(self, sandbox: Sandbox) -> None:
        assert 50 <= (await sh(sandbox, "sleep 0.05")).duration_ms < 5000

    async def test_an_argv_is_not_read_by_a_shell(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(Command(argv=("echo", "$HOME; exit 3", "a  b")))).stdout == "$HOME; exit 3 a  b\n"

    async def test_commands_run_as_the_sandbox_user_in_the_workspace(self, sandbox: Sandbox) -> None:
        uid = await self.user_uid(sandbox)
        assert (await sh(sandbox, "whoami; id -u; pwd")).stdout == f"sandboxuser\n{uid}\n/workspace\n"

    async def test_an_unknown_user_raises(self, sandbox: Sandbox) -> None:
        with pytest.raises(UnknownUser):
            await sandbox.exec(Command(shell="true", user="nobody-at-all"))

    async def test_an_unknown_directory_raises(self, sandbox: Sandbox) -> None:
        with pytest.raises(InvalidPath):
            await sandbox.exec(Command(shell="true", cwd="/no/such/directory"))

    # What it says.

    async def test_stdout_and_stderr_come_apart_and_in_order(self, sandbox: Sandbox) -> None:
        result = await sh(sandbox, "echo one; echo two >&2; echo three; echo four >&2")
        assert result.stdout == "one\nthree\n"
        assert result.stderr == "two\nfour\n"
        assert result.output == "one\ntwo\nthree\nfour\n"

    async def test_bytes_that_are_no_text_are_replaced_and_counted(self, sandbox: Sandbox) -> None:
        result = await sh(sandbox, r"printf 'a\xff\x00b'")
        assert (result.stdout, result.bytes_total, result.truncated) == ("a�\0b", 4, False)

    async def test_a_character_cut_in_two_writes_is_one_character(self, sandbox: Sandbox) -> None:
        result = await sh(sandbox, r"printf '\xc3'; sleep 0.02; echo x >&2; printf '\xa4'")
        assert (result.stdout, result.stderr) == ("ä", "x\n")
        assert "�" not in result.output

    async def test_output_is_capped_and_says_how_much_there_was(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(Command(shell="echo start; head -c 300000 /dev/zero; echo end", keep_bytes=2000))
        assert result.bytes_total == 300010
        assert result.truncated
        assert result.stdout.startswith("start\n")
        assert result.stdout.endswith("\0end\n")
        assert "bytes not kept" in result.stdout
        assert len(result.stdout) < 2200
        assert result.exit_code == 0

    async def test_nothing_kept_is_still_counted(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(Command(shell="echo 12345", keep_bytes=0))
        assert (result.bytes_total, result.truncated, result.exit_code) == (6, True, 0)
        assert "6 bytes not kept" in result.output

    async def test_five_megabytes_of_output_are_kept(self, sandbox: Sandbox) -> None:
        result = await sh(sandbox, "head -c 5000000 /dev/zero")
        assert (len(result.stdout), result.truncated, result.bytes_total) == (5_000_000, False, 5_000_000)

    # State from one command to the next.

    async def test_cd_and_export_last(self, sandbox: Sandbox) -> None:
        await sh(sandbox, "cd /tmp; export GREETING='hello world'")
        assert (await sh(sandbox, 'pwd; echo "$GREETING"')).stdout == "/tmp\nhello world\n"

    async def test_a_failing_command_hands_its_state_on_too(self, sandbox: Sandbox) -> None:
        await sh(sandbox, "cd /tmp; exit 3")
        assert (await sh(sandbox, "pwd")).stdout == "/tmp\n"

    async def test_without_carry_state_a_command_starts_fresh_and_leaves_nothing(self, sandbox: Sandbox) -> None:
        await sh(sandbox, "cd /tmp; export KEPT=1")
        fresh = await sandbox.exec(Command(shell="pwd; echo [$KEPT]; cd /; export OTHER=1", carry_state=False))
        assert fresh.stdout == "/workspace\n[]\n"
        assert (await sh(sandbox, "pwd; echo [$KEPT][$OTHER]")).stdout == "/tmp\n[1][]\n"

    async def test_the_environment_of_one_command_does_not_last(self, sandbox: Sandbox) -> None:
        await sh(sandbox, "export MINE=1")
        result = await sandbox.exec(Command(shell="echo $MINE$ONCE", env={"ONCE": "b", "MINE": "a"}))
        assert result.stdout == "ab\n"
        assert (await sh(sandbox, "echo [$MINE][$ONCE]")).stdout == "[1][]\n"

    async def test_the_directory_of_one_command_does_not_last(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(Command(shell="pwd", cwd="/tmp"))).stdout == "/tmp\n"
        assert (await sh(sandbox, "pwd")).stdout == "/workspace\n"

    async def test_a_carried_directory_that_is_gone_does_not_wedge_the_sandbox(self, sandbox: Sandbox) -> None:
        await sh(sandbox, "mkdir /workspace/gone; cd /workspace/gone")
        await sandbox.remove("gone", recursive=True)
        assert (await sh(sandbox, "echo still here")).stdout == "still here\n"

    # Input.

    async def test_without_stdin_a_reader_sees_the_end_at_once(self, sandbox: Sandbox) -> None:
        assert (await sh(sandbox, "cat; echo done")).stdout == "done\n"

    async def test_stdin_bytes_arrive_unchanged(self, sandbox: Sandbox) -> None:
        data = "line\n\tä".encode() + b"\0\n"
        assert (await sandbox.exec(Command(argv=("cat",)), data)).stdout.encode() == data

    async def test_stdin_is_streamed(self, sandbox: Sandbox) -> None:
        async def source() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield bytes(100_000)

        assert (await sandbox.exec(Command(argv=("wc", "-c")), source())).stdout.strip() == "5000000"

    async def test_two_megabytes_of_stdin_at_once_come_back(self, sandbox: Sandbox) -> None:
        data = b"0123456789abcdef" * 131072
        result = await sandbox.exec(Command(argv=("cat",)), data)
        assert result.stdout.encode() == data

    async def test_a_command_that_does_not_read_its_stdin_still_ends(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(Command(shell="head -c 3000000 /dev/zero"), bytes(2_000_000))
        assert (result.exit_code, result.bytes_total) == (0, 3_000_000)

    async def test_an_endless_stdin_does_not_delay_the_end(self, sandbox: Sandbox) -> None:
        async def endless() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        with anyio.fail_after(10):
            assert (await sandbox.exec(Command(shell="exit 4"), endless())).exit_code == 4

    async def test_a_stdin_that_raises_ends_the_command(self, sandbox: Sandbox) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"some"
            raise ValueError("the source broke")

        with anyio.fail_after(10), pytest.raises(ValueError, match="the source broke"):
            await sandbox.exec(Command(argv=("cat",)), broken())
        assert not [info for info in await sandbox.processes() if info.running]

    # Being ended.

    async def test_a_time_out_ends_the_whole_tree_and_counts_it(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(Command(shell="echo begun; sleep 60 & sleep 60 & sleep 60", timeout_s=0.3))
        assert result.reason is Reason.TIMEOUT
        assert result.stdout == "begun\n"
        assert result.killed >= 3
        assert result.survivors == 0
        assert result.exit_code in (124, 137, 143)
        assert result.duration_ms < 10_000

    async def test_a_command_that_ignores_term_is_killed_after_the_grace_time(self, sandbox: Sandbox) -> None:
        command = Command(shell="trap '' TERM; sleep 60; sleep 60; sleep 60", timeout_s=0.2, grace_s=0.2)
        with anyio.fail_after(15):
            result = await sandbox.exec(command)
        assert (result.reason, result.survivors) == (Reason.TIMEOUT, 0)

    async def test_a_command_within_its_time_out_is_left_alone(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(Command(shell="exit 5", timeout_s=30))).exit_code == 5

    async def test_cancelling_exec_ends_the_command(self, sandbox: Sandbox) -> None:
        task = asyncio.ensure_future(sandbox.exec(Command(shell="echo x > /workspace/begun; sleep 60", grace_s=0.2)))
        await self.until_exists(sandbox, "begun")
        task.cancel()
        with anyio.fail_after(10), pytest.raises(asyncio.CancelledError):
            await task
        assert not [info for info in await sandbox.processes() if info.running]

    async def test_cancelling_exec_by_a_scope_ends_the_command(self, sandbox: Sandbox) -> None:
        with anyio.move_on_after(0.2) as scope:
            await sandbox.exec(Command(shell="sleep 60", grace_s=0.2))
        assert scope.cancelled_caught
        assert not [info for info in await sandbox.processes() if info.running]

    async def test_a_background_child_does_not_delay_the_result(self, sandbox: Sandbox) -> None:
        with anyio.fail_after(10):
            result = await sh(sandbox, "sleep 60 & echo done")
        assert (result.stdout, result.exit_code) == ("done\n", 0)
        assert result.background == 1

    async def test_exec_leaves_no_entry_in_the_list_of_processes(self, sandbox: Sandbox) -> None:
        await sh(sandbox, "true")
        assert [info.id for info in await sandbox.processes()] == []

    # Side by side.

    async def test_parallel_commands_do_not_wait_for_each_other(self, sandbox: Sandbox) -> None:
        slow = asyncio.ensure_future(sh(sandbox, "sleep 60"))
        with anyio.fail_after(10):
            results = await asyncio.gather(*(sh(sandbox, f"exit {n}") for n in range(10)))
        assert [result.exit_code for result in results] == list(range(10))
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    # Started commands.

    async def test_a_started_command_runs_on_its_own(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="cat; exit 7"))
        info = next(info for info in await sandbox.processes() if info.id == process.id)
        assert (info.running, info.exit_code, info.reason, info.terminal) == (True, None, None, False)
        assert "cat" in info.command
        await process.close_stdin()
        assert (await process.wait()).exit_code == 7
        info = next(info for info in await sandbox.processes() if info.id == process.id)
        assert (info.running, info.exit_code, info.reason) == (False, 7, Reason.EXITED)

    async def test_stdin_of_a_started_command_goes_on_until_it_is_closed(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("cat",)))
        await process.write(b"one\n")
        await until_written(process, b"one\n")
        await process.write(b"two\n")
        await process.close_stdin()
        assert (await process.wait()).stdout == "one\ntwo\n"

    async def test_a_command_started_without_stdin_has_an_empty_one(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("cat",), stdin=False))
        with anyio.fail_after(10):
            assert (await process.wait()).exit_code == 0
        await process.write(b"too late")

    async def test_a_command_can_last_until_its_output_is_closed(self, sandbox: Sandbox) -> None:
        line = "sh -c 'sleep 0.3; echo child' & echo shell; exit 3"
        process = await sandbox.start(Command(shell=line, until_closed=True))
        await until_written(process, b"shell\n")
        assert [info.running for info in await sandbox.processes()] == [True]
        with anyio.fail_after(10):
            result = await process.wait()
        assert (result.stdout, result.exit_code) == ("shell\nchild\n", 3)

    async def test_writing_after_the_end_is_ignored(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("true",)))
        await process.wait()
        await process.write(b"too late")
        await process.close_stdin()
        await process.write(b"and again")

    async def test_output_is_replayed_from_any_offset_any_number_of_times(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="echo 0123456789; echo abcdef >&2"))
        await process.wait()
        assert await all_of(process) == b"0123456789\nabcdef\n"
        assert await all_of(process, 4) == b"456789\nabcdef\n"
        assert await all_of(process, 14) == b"def\n"
        assert await all_of(process, 18) == b""
        chunks = [chunk async for chunk in process.output(9)]
        assert [(chunk.stream, chunk.offset) for chunk in chunks] == [
            (OutputStream.STDOUT, 9),
            (OutputStream.STDERR, 11),
        ]

    async def test_several_readers_see_the_same(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="cat; echo end"))
        readers = [asyncio.ensure_future(all_of(process)) for _ in range(3)]
        waiting = asyncio.ensure_future(process.wait())
        await process.write(b"x" * 100_000)
        await process.close_stdin()
        with anyio.fail_after(10):
            seen = await asyncio.gather(*readers)
            result = await waiting
        assert seen == [b"x" * 100_000 + b"end\n"] * 3
        assert result.stdout == "x" * 100_000 + "end\n"

    async def test_a_reader_who_leaves_early_stops_nothing(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="echo first; cat; echo last"))
        await until_written(process, b"first\n")
        await process.close_stdin()
        assert (await process.wait()).stdout == "first\nlast\n"

    async def test_following_loses_nothing_even_beyond_what_is_kept(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="cat; head -c 30000000 /dev/zero; echo end", keep_bytes=2_000_000))
        reading = process.output()
        await process.write(b"go\n")
        first = await anext(reading)
        await process.close_stdin()
        size, last = len(first.data), first
        async for chunk in reading:
            assert chunk.offset == size
            size += len(chunk.data)
            last = chunk
        assert size == 30_000_007
        assert last.data.endswith(b"end\n")

    async def test_a_followed_command_waits_for_its_first_reader(self, sandbox: Sandbox) -> None:
        line = "echo first; " + "; ".join(["echo " + "x" * 50_000] * 60)
        process = await sandbox.start(Command(shell=line, keep_bytes=1024), follow=True)
        await anyio.sleep(0.3)
        assert len(await all_of(process)) == 6 + 60 * 50_001

    async def test_reading_slowly_slows_the_command_down(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("yes",)))
        reading = process.output()
        await anext(reading)
        begun = (await sandbox.processes())[0].bytes_total  # nothing slowed it down before somebody read
        sizes = [0, 1]
        with anyio.fail_after(30):
            while sizes[-1] != sizes[-2]:
                await asyncio.sleep(0.1)
                sizes.append((await sandbox.processes())[0].bytes_total)
        assert sizes[-1] - begun < 20_000_000
        await process.kill(0)
        await reading.aclose()  # type: ignore[attr-defined]

    async def test_a_result_can_be_had_again_and_again(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="echo hi; exit 3"))
        one, two = await process.wait(), await (await sandbox.process(process.id)).wait()
        assert one.exit_code == two.exit_code == 3
        assert one.output == two.output == "hi\n"

    async def test_an_id_that_exists_is_a_conflict_and_starts_nothing(self, sandbox: Sandbox) -> None:
        await sandbox.start(Command(argv=("cat",)), process_id="mine")
        with pytest.raises(Conflict):
            await sandbox.start(Command(shell="echo x > /workspace/started"), process_id="mine")
        assert [info.id for info in await sandbox.processes()] == ["mine"]
        assert (await sh(sandbox, "test -e /workspace/started")).exit_code == 1

    async def test_an_id_that_cannot_be_is_refused(self, sandbox: Sandbox) -> None:
        for bad in ("a b", "x" * 65, "a\nb", "ä", "../x"):
            with pytest.raises(InvalidRequest):
                await sandbox.start(Command(argv=("true",)), process_id=bad)

    async def test_start_raises_for_an_unknown_user_or_directory(self, sandbox: Sandbox) -> None:
        with pytest.raises(UnknownUser):
            await sandbox.start(Command(shell="true", user="nobody-at-all"))
        with pytest.raises(InvalidPath):
            await sandbox.start(Command(shell="true", cwd="/no/such/directory"))
        assert await sandbox.processes() == []

    async def test_an_unknown_process_is_not_found(self, sandbox: Sandbox) -> None:
        with pytest.raises(ProcessNotFound):
            await sandbox.process("nobody")
        with pytest.raises(ProcessNotFound):
            await sandbox.forget("nobody")

    async def test_a_forgotten_process_is_gone_from_the_list(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("true",)))
        await process.wait()
        await sandbox.forget(process.id)
        assert await sandbox.processes() == []
        with pytest.raises(ProcessNotFound):
            await sandbox.process(process.id)

    async def test_a_running_process_cannot_be_forgotten(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("cat",)))
        with pytest.raises(Conflict):
            await sandbox.forget(process.id)

    async def test_kill_ends_the_tree_and_wait_says_how_many(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="sleep 60 & sleep 60 & echo up; sleep 60"))
        await until_written(process, b"up\n")
        await process.kill(0.2)
        with anyio.fail_after(10):
            result = await process.wait()
        assert (result.reason, result.survivors, result.stdout) == (Reason.CANCELLED, 0, "up\n")
        assert result.killed >= 3

    async def test_kill_all_ends_every_command_and_keeps_files_and_output(self, sandbox: Sandbox) -> None:
        await sandbox.write("kept", b"1")
        first = await sandbox.start(Command(shell="sleep 60 & sleep 60 & echo up; sleep 60"))
        second = await sandbox.start(Command(argv=("cat",)))
        left = await sh(sandbox, "sleep 60 & echo left")
        assert left.background == 1
        await until_written(first, b"up\n")
        with anyio.fail_after(10):
            killed, again = await asyncio.gather(sandbox.kill_all(), sandbox.kill_all())
        assert max(killed, again) >= 5
        for process in (first, second):
            with anyio.fail_after(5):
                result = await process.wait()
            assert (result.reason, result.exit_code > 128) == (Reason.CANCELLED, True)
        assert (await first.wait()).stdout == "up\n"
        assert not any(info.running or info.background for info in await sandbox.processes())
        assert await sandbox.kill_all() == 0
        assert (await sh(sandbox, "cat kept; echo works")).stdout == "1works\n"

    async def test_killing_what_has_ended_is_harmless(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="exit 3"))
        await process.wait()
        await process.kill()
        assert (await process.wait()).exit_code == 3

    async def test_a_signal_reaches_the_command(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("sleep", "60")))
        await process.signal(15)
        with anyio.fail_after(10):
            result = await process.wait()
        assert (result.exit_code, result.signal, result.reason) == (143, 15, Reason.SIGNAL)

    @pytest.mark.parametrize("number", [10, 15])
    async def test_a_signal_ends_a_shell_and_its_program_however_early_it_comes(
        self, sandbox: Sandbox, number: int
    ) -> None:
        for moment in range(60):
            process = await self.begun(sandbox, "sleep 60", moment % 12)
            await process.signal(number)
            with anyio.fail_after(10):
                result = await process.wait()
                while (await sandbox.processes())[0].background:
                    await asyncio.sleep(0.005)
            assert (result.exit_code, result.signal, result.reason) == (128 + number, number, Reason.SIGNAL)
            await sandbox.forget(process.id)

    async def test_a_kill_is_not_held_up_to_its_grace_time_however_early_it_comes(self, sandbox: Sandbox) -> None:
        for moment in range(60):
            process = await self.begun(sandbox, "sleep 60", moment % 12)
            with anyio.fail_after(10):
                await process.kill(50)
                assert (await process.wait()).reason is Reason.CANCELLED
            await sandbox.forget(process.id)

    async def begun(self, sandbox: Sandbox, line: str, pings: int) -> Process:
        """A shell somewhere on its way to the line's program: each ping gives it a little more time."""
        process = await sandbox.start(Command(shell=line))
        for _ in range(pings):
            await sandbox.ping()
        return process

    async def test_a_signal_that_is_none_is_refused(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("cat",)))
        for number in (0, -1, 65, 1000):
            with pytest.raises(InvalidRequest):
                await process.signal(number)

    async def test_a_time_out_holds_for_started_commands_too(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="sleep 60", timeout_s=0.2))
        with anyio.fail_after(10):
            assert (await process.wait()).reason is Reason.TIMEOUT

    async def test_a_terminal_has_one_stream_and_can_be_resized(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="echo on a terminal", terminal=TerminalSize(30, 100)))
        result = await process.wait()
        assert "on a terminal" in result.output
        assert {chunk.stream async for chunk in process.output()} == {OutputStream.TERMINAL}
        other = await sandbox.start(Command(shell="sleep 60", terminal=TerminalSize()))
        await other.resize(TerminalSize(50, 200))
        await other.kill(0)

    async def test_what_is_no_terminal_cannot_be_resized(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("cat",)))
        with pytest.raises(InvalidRequest):
            await process.resize(TerminalSize())

    # The sandbox dies.

    async def test_a_lost_sandbox_is_a_result_for_exec_and_wait(self, provider: Provider, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="echo x > /workspace/begun; sleep 60"))
        running = asyncio.ensure_future(sh(sandbox, "sleep 60"))
        waiting = asyncio.ensure_future(process.wait())
        await self.until_exists(sandbox, "begun")
        await self.lose(provider, sandbox)
        with anyio.fail_after(10):
            results = [await running, await waiting, await sh(sandbox, "true"), await process.wait()]
        assert [result.reason for result in results] == [Reason.SANDBOX_LOST] * 4
        assert [result.exit_code for result in results] == [-1] * 4
        assert all("lost" in result.stderr for result in results)

    async def test_everything_else_raises_sandbox_lost_at_once(self, provider: Provider, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(argv=("cat",)))
        reading = asyncio.ensure_future(all_of(process))
        await self.lose(provider, sandbox)
        with anyio.fail_after(10):
            with pytest.raises(SandboxLost):
                await reading
            for call in (
                sandbox.ping(), sandbox.stat("/"), sandbox.write("x", b""), sandbox.list("/"), sandbox.processes(),
                sandbox.start(Command(argv=("true",))), sandbox.mkdir("d"), sandbox.remove("x"), process.write(b"x"),
                sandbox.process(process.id), process.kill(), process.signal(15), sandbox.rename("a", "b"),
            ):  # fmt: skip
                with pytest.raises(SandboxLost):
                    await call
            with pytest.raises(SandboxLost):
                await anext(sandbox.read("/etc/passwd"))

    async def test_a_loss_is_told_once_with_its_reason(self, provider: Provider, sandbox: Sandbox) -> None:
        told: list[str] = []
        heard = asyncio.Event()
        sandbox.when_lost(told.append)
        sandbox.when_lost(lambda why: heard.set())
        await sandbox.ping()
        assert told == []
        await self.lose(provider, sandbox)
        with anyio.fail_after(10):
            await heard.wait()
        assert len(told) == 1
        assert told[0]
        assert "does not answer" not in told[0]
        await provider.destroy(sandbox.id)
        await asyncio.sleep(0)
        assert len(told) == 1

    async def test_who_asks_after_the_loss_is_told_at_once(self, provider: Provider, sandbox: Sandbox) -> None:
        told: list[str] = []
        heard = asyncio.Event()
        sandbox.when_lost(lambda why: heard.set())
        await self.lose(provider, sandbox)
        with anyio.fail_after(10):
            await heard.wait()
        sandbox.when_lost(told.append)
        assert len(told) == 1

    async def test_after_close_no_loss_is_told(self, provider: Provider, sandbox: Sandbox) -> None:
        told: list[str] = []
        sandbox.when_lost(told.append)
        await sandbox.close()
        sandbox.when_lost(told.append)
        await self.lose(provider, sandbox)
        await asyncio.sleep(0.01)
        assert told == []

    async def test_ping_answers(self, sandbox: Sandbox) -> None:
        await sandbox.ping()

    async def until_exists(self, sandbox: Sandbox, path: str) -> None:
        while path not in [info.name for info in await sandbox.list("/workspace")]:
            await asyncio.sleep(0.005)

    async def test_exec_under_a_name_stays_known_until_it_is_forgotten(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(Command(shell="cat"), b"said", process_id="mine")).stdout == "said"
        with pytest.raises(Conflict):
            await sandbox.exec(Command(shell="echo again"), process_id="mine")
        again = await (await sandbox.process("mine")).wait()
        assert (again.stdout, again.exit_code) == ("said", 0)
        await sandbox.forget("mine")
        assert (await sandbox.exec(Command(shell="echo again"), process_id="mine")).stdout == "again\n"
        await sandbox.forget("mine")
