"""What user code does at its worst, in real sandboxes: the result tells the truth and the sandbox lives on."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import warren
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import FileProblem, InvalidPath, NoSpace
from warren.model.operations import Command, Reason, TerminalSize
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
MIB = 1024 * 1024

pytestmark = pytest.mark.anyio


@pytest.fixture
async def box(provider: OciProvider) -> Sandbox:
    return await provider.create(SandboxSpec(limits=Limits(memory_mb=128, pids=64, disk_mb=32, cpus=1)))


async def works(box: Sandbox) -> bool:
    return (await box.exec(Command(argv=("echo", "alive")))).stdout == "alive\n"


async def until_shown(process: Process, text: bytes) -> None:
    shown = b""
    with anyio.fail_after(20):
        async for chunk in process.output():
            shown += chunk.data
            if text in shown:
                return


# -- processes


async def test_a_fork_bomb_ends_with_its_time_out_and_nothing_survives(box: Sandbox) -> None:
    result = await box.exec(Command(shell="bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=1, grace_s=0.2))
    assert (result.reason, result.survivors) == (Reason.TIMEOUT, 0)
    assert result.killed > 1
    assert await works(box)


async def test_the_agent_answers_while_a_fork_bomb_rages_and_can_end_it(box: Sandbox) -> None:
    bomb = await box.start(Command(shell="bomb() { bomb | bomb & }; bomb; sleep 60"))
    for _ in range(20):
        with anyio.fail_after(5):
            await box.ping()
            await box.processes()
    await bomb.kill(0)
    with anyio.fail_after(20):
        assert (await bomb.wait()).survivors == 0
    assert await works(box)


async def test_kill_all_ends_a_fork_bomb_that_has_left_no_process_for_others(box: Sandbox) -> None:
    """The bomb's processes leave their session, ignore every signal they can, and start others as long as they live."""
    bomb = "trap '' HUP TERM INT; while :; do setsid bash -c \"$BOMB\" & done"
    start = Command(shell='bash -c "$BOMB" > /dev/null 2>&1 & sleep 1', env={"BOMB": bomb}, timeout_s=30)
    assert (await box.exec(start)).background > 0
    with anyio.fail_after(15):
        assert await box.kill_all() > 30
    assert await box.kill_all() == 0
    assert await works(box)
    count = await box.exec(Command(argv=("sh", "-c", "ls -d /proc/[0-9]* | wc -l")))
    assert int(count.stdout) <= 5


async def test_at_the_limit_of_processes_a_command_still_starts_and_may_not_fork(box: Sandbox) -> None:
    fill = """
import subprocess, time
running = []
try:
    while True:
        running.append(subprocess.Popen(["sleep", "60"]))
except OSError:
    print("full", flush=True)
    time.sleep(60)
"""
    full = await box.start(Command(argv=("python3", "-c", fill)))
    await until_shown(full, b"full")
    assert await works(box)
    assert "Cannot fork" in (await box.exec(Command(argv=("sh", "-c", "true | true")))).stderr
    await full.kill(0)
    assert (await full.wait()).survivors == 0
    assert await works(box)


async def test_daemons_that_left_their_session_die_with_the_command(box: Sandbox) -> None:
    script = "for i in $(seq 20); do (setsid sh -c 'sleep 60 & sleep 60' &) ; done; echo up; sleep 60"
    result = await box.exec(Command(shell=script, timeout_s=1, grace_s=0.5))
    assert (result.reason, result.survivors, result.stdout) == (Reason.TIMEOUT, 0, "up\n")
    assert result.killed >= 41
    left = await box.exec(Command(shell="ps -eo comm | grep -c sleep"))
    assert left.stdout == "0\n"


async def test_zombies_are_reaped_and_do_not_touch_exit_codes(box: Sandbox) -> None:
    storm = await box.start(Command(shell="while :; do (true & true &) ; done"))
    codes = [(await box.exec(Command(shell=f"(true &); exit {n}"))).exit_code for n in range(40)]
    assert codes == list(range(40))
    await storm.kill(0)
    await storm.wait()
    with anyio.fail_after(5):
        while (await box.exec(Command(shell="ps -eo stat | grep -c ^Z"))).stdout != "0\n":
            await asyncio.sleep(0.05)


async def test_a_background_child_that_holds_stdout_is_said_and_can_be_ended_later(box: Sandbox) -> None:
    start = time.monotonic()
    process = await box.start(Command(shell="sleep 60 & echo gone"))
    result = await process.wait()
    assert time.monotonic() - start < 10
    assert (result.stdout, result.background) == ("gone\n", 1)
    await process.kill(0)
    assert (await box.exec(Command(shell="ps -eo comm | grep -c sleep"))).stdout == "0\n"


# -- memory and disk


async def test_a_memory_hog_is_out_of_memory_and_the_sandbox_survives(box: Sandbox) -> None:
    result = await box.exec(Command(argv=("python3", "-c", "b = b'x' * 300_000_000")))
    assert (result.reason, result.exit_code) == (Reason.OOM, 137)
    assert await works(box)


async def test_a_hog_below_a_shell_is_told_too(box: Sandbox) -> None:
    result = await box.exec(Command(shell="python3 -c \"b = b'x' * 300_000_000\" || exit 3"))
    assert (result.reason, result.exit_code) == (Reason.OOM, 3)


async def test_an_ordinary_kill_is_no_out_of_memory(box: Sandbox) -> None:
    assert (await box.exec(Command(shell="kill -9 $$"))).reason == Reason.SIGNAL


async def test_the_disk_fills_to_its_limit_and_no_further(box: Sandbox) -> None:
    result = await box.exec(Command(shell="head -c 100M /dev/zero > /tmp/fill; stat -c %s /tmp/fill"))
    assert "No space left on device" in result.stderr
    assert int(result.stdout) < 32 * MIB
    with pytest.raises(NoSpace):
        await box.write("more", b"x" * 5 * MIB)
    assert await works(box)
    await box.remove("/tmp/fill")
    await box.write("more", b"x" * 5 * MIB)


async def test_inodes_run_out_before_the_machine_does(box: Sandbox) -> None:
    script = "import itertools\nfor n in itertools.count():\n    open(f'/tmp/f{n}', 'w')"
    result = await box.exec(Command(argv=("python3", "-c", script), timeout_s=60))
    assert result.reason == Reason.EXITED
    assert "No space left on device" in result.stderr
    assert await works(box)


async def test_dev_shm_has_a_limit_of_its_own(box: Sandbox) -> None:
    result = await box.exec(Command(shell="head -c 100M /dev/zero > /dev/shm/fill"))
    assert "No space left on device" in result.stderr
    assert await works(box)


# -- text


async def test_a_gigabyte_of_output_is_counted_and_its_head_and_tail_kept(box: Sandbox) -> None:
    before = _memory_mb()
    result = await box.exec(Command(shell="echo first; head -c 1000000000 /dev/zero; echo; echo last"))
    assert (result.bytes_total, result.truncated) == (1_000_000_012, True)
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("last\n")
    assert len(result.stdout) < 11 * MIB
    assert _memory_mb() - before < 150


@pytest.mark.extended  # where the kernel cannot queue a signal for each write, the order is not known
async def test_output_keeps_its_order_over_a_thousand_turns(box: Sandbox) -> None:
    result = await box.exec(Command(shell="for i in $(seq 1000); do echo o$i; echo e$i >&2; done"))
    assert result.output == "".join(f"o{n}\ne{n}\n" for n in range(1, 1001))
    assert result.stderr == "".join(f"e{n}\n" for n in range(1, 1001))


async def test_invalid_text_and_nul_bytes_come_through(box: Sandbox) -> None:
    result = await box.exec(Command(shell=r"printf 'a\xff\x00b\xc3'"))
    assert (result.stdout, result.bytes_total) == ("a\ufffd\0b\ufffd", 5)


async def test_a_megabyte_of_arguments(box: Sandbox) -> None:
    result = await box.exec(Command(argv=("sh", "-c", 'echo $#; echo "$*" | wc -c', "sh", *["x" * 100_000] * 10)))
    assert result.stdout == "10\n1000010\n"


async def test_one_argument_of_a_megabyte_is_126_with_a_reason(box: Sandbox) -> None:
    result = await box.exec(Command(argv=("echo", "x" * MIB)))
    assert (result.exit_code, result.stderr) == (126, "echo: Argument list too long\n")


async def test_a_shell_line_of_two_megabytes(box: Sandbox) -> None:
    result = await box.exec(Command(shell=": " + "x" * 2 * MIB + "\necho done; cd /tmp"))
    assert (result.stdout, result.exit_code) == ("done\n", 0)
    assert (await box.exec(Command(shell="pwd"))).stdout == "/tmp\n"


async def test_fifty_megabytes_of_stdin(box: Sandbox) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * MIB

    assert (await box.exec(Command(argv=("wc", "-c")), parts())).stdout == f"{50 * MIB}\n"


# -- files


async def test_what_is_no_plain_file_is_not_read(box: Sandbox) -> None:
    await box.exec(Command(shell="mkfifo pipe; mkdir folder"))
    for path, error in (("pipe", InvalidPath), ("folder", FileProblem), ("/dev/zero", InvalidPath)):
        with anyio.fail_after(5), pytest.raises(error):
            _ = [part async for part in box.read(path)]


async def test_a_file_that_shrinks_while_it_is_packed_does_not_upset_the_connection(box: Sandbox) -> None:
    await box.write("log", b"x" * 8 * MIB)
    first = True
    total = 0
    async for part in box.pack("/workspace"):
        total += len(part)
        if first:
            await box.exec(Command(shell=": > log"))
            first = False
    assert total >= 8 * MIB
    assert await works(box)


async def test_links_lead_only_where_the_user_may_go(box: Sandbox) -> None:
    await box.exec(Command(shell="ln -s /proc/1/environ agent; ln -s /etc/passwd passwd"))
    with pytest.raises(FileProblem):
        _ = [part async for part in box.read("agent")]
    with pytest.raises(FileProblem):
        await box.write("passwd", b"root::0:0::/:/bin/sh\n")
    assert (await box.exec(Command(shell="head -1 /etc/passwd"))).stdout.startswith("sandboxuser:")


# -- the connection


async def test_terminals_are_found_again_with_what_they_showed(provider: OciProvider, box: Sandbox) -> None:
    terminals = [
        await box.start(Command(argv=("bash", "--norc"), terminal=TerminalSize()), process_id=f"t{n}") for n in range(3)
    ]
    for n, terminal in enumerate(terminals):
        await terminal.write(f"echo $((40 + {n}))\n".encode())
        await until_shown(terminal, f"4{n}\r".encode())
    await box.close()
    again = await provider.adopt(box.id)
    for n in range(3):
        found = await again.process(f"t{n}")
        await found.write(b"exit\n")
        shown = b"".join([chunk.data async for chunk in found.output()])
        assert f"4{n}\r".encode() in shown
        assert (await found.wait()).exit_code == 0


async def test_a_worker_killed_in_the_middle_of_exec_loses_nothing(provider: OciProvider, state_dir: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider
async def main():
    state = Path({str(state_dir)!r})
    box = await OciProvider(state, ImageStore(state), Path({str(BIN)!r})).create(SandboxSpec())
    command = Command(shell="echo begun; until [ -e go ]; do sleep 0.05; done; echo ended; exit 7")
    task = asyncio.ensure_future(box.exec(command))
    while not await box.processes():
        await asyncio.sleep(0.05)
    print(box.id, flush=True)
    await task
asyncio.run(main())
"""
    worker = spawned(script)
    assert worker.stdout is not None
    sandbox_id = (await asyncio.to_thread(worker.stdout.readline)).strip()
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    box = await provider.adopt(sandbox_id)
    (found,) = await box.processes()
    assert found.running
    await box.write("go", b"")
    with anyio.fail_after(10):
        result = await (await box.process(found.id)).wait()
    assert (result.stdout, result.exit_code, result.reason) == ("begun\nended\n", 7, Reason.EXITED)


def spawned(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def _memory_mb() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") / MIB
