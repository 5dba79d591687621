"""What keeper and cell client of code contexts promise (agent/keeper.c, agent/cell.c), with a runner of the tests' own.

The runner runs the code of a cell as Python in its own process, like every runner, and gives it `send`, which writes
any frame to the keeper. So user code here can do all that user code can, and what a broken runner would.
"""

import asyncio
import json
import random
import re
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import pytest
from contract.provider_contract import ProviderHooks
from this_run import patience

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.command_output import STDERR
from warren.model.operations import MAX_KEEP_BYTES, Command, ExecResult, ProcessStatus, Reason
from warren.model.spec import AGENT_PROGRAM, RUNNERS

ID = "ctx_test"
_RUNNER = b"""
import json, os, signal, socket, struct, subprocess, sys, threading, time
channel = socket.socket(fileno=3)
os.set_inheritable(3, False)

def send(kind, payload=b""):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # an interrupt must not leave half a frame
    channel.sendall(kind + struct.pack(">I", len(payload)) + payload)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)

def read(size):
    data = b""
    while len(data) < size:
        data += channel.recv(min(size - len(data), 1 << 20)) or os._exit(0)
    return data

signal.signal(signal.SIGINT, signal.SIG_IGN)
names, count = {**globals()}, 0
send(b"h", b'{"version": "1"}')
while True:
    request = json.loads(read(struct.unpack(">xI", read(5))[0]))
    count, error = count + 1, None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exec(request["code"], names)
    except BaseException as exc:
        error = type(exc).__name__
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    send(b"x", json.dumps([count, error]).encode())
"""
# Connects to the keeper as a cell client would; `request` is a whole one.
_CLIENT = f"""
import socket, struct, sys, time
def call(data):
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0warren-context-{ID}")
    s.sendall(data)
    return s
request = b"Q" + struct.pack(">I", 14) + b'{{"code": "1"}} '
"""


@dataclass(frozen=True)
class Cell:
    """What came of a cell: its frames, each a letter and a payload."""

    result: ExecResult
    frames: list[tuple[str, bytes]]

    @property
    def shape(self) -> str:
        """The letters, with neighbours that are the same joined: how text is cut into frames is nobody's business."""
        return re.sub(r"(.)\1+", r"\1", "".join(kind for kind, _ in self.frames))

    @property
    def end(self) -> object:
        kind, payload = self.frames[-1]
        return json.loads(payload) if kind == "x" else f"{kind} {payload.decode()}"

    def text(self, kind: str = "o") -> bytes:
        return b"".join(payload for each, payload in self.frames if each == kind)


def frames_of(data: bytes) -> list[tuple[str, bytes]]:
    """Fails if the bytes are not whole frames."""
    frames, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from(">cI", data, at)
        assert len(data) >= at + 5 + size
        frames.append((kind.decode(), data[at + 5 : at + 5 + size]))
        at += 5 + size
    return frames


async def told_by(keeper: Process) -> bytes:
    """All that it says until the runner is ready."""
    output, data = keeper.output(), b""
    while b'"version"' not in data:
        data += (await anext(output)).data
    await output.aclose()  # type: ignore[attr-defined]
    return data


def cell_of(result: ExecResult) -> Cell:
    data = b"".join(piece.data for piece in result.written.pieces() if piece.stream != STDERR)
    assert not result.truncated
    return Cell(result, frames_of(data))


@dataclass
class Context:
    sandbox: Sandbox
    program: str
    process: Process = field(init=False)
    pid: int = 0

    async def start(self, *options: str, runner: bytes = _RUNNER) -> "Context":
        await self.sandbox.write("runner.py", runner)
        argv = (self.program, "context", "--id", ID, *options, "--", "python3", "/workspace/runner.py")
        self.process = await self.sandbox.start(Command(argv=argv), process_id=ID)
        assert frames_of(await told_by(self.process)) == [("d", b"/workspace"), ("h", b'{"version": "1"}')]
        self.pid = (await self.info()).pid
        return self

    async def info(self, process_id: str = ID) -> ProcessStatus:
        return next(each for each in await self.sandbox.processes() if each.id == process_id)

    async def run(
        self, code: str, *, timeout_s: float | None = None, process_id: str = "", grace_s: float = 5.0
    ) -> ExecResult:
        argv = (self.program, "cell", "--pid", str(self.pid), ID)
        command = Command(argv=argv, keep_bytes=MAX_KEEP_BYTES, timeout_s=timeout_s, grace_s=grace_s)
        return await self.sandbox.exec(command, json.dumps({"code": code}).encode(), process_id=process_id)

    async def cell(self, code: str, *, timeout_s: float | None = None, process_id: str = "") -> Cell:
        return cell_of(await self.run(code, timeout_s=timeout_s, process_id=process_id))

    async def ended(self) -> int:
        with anyio.fail_after(20):
            return (await self.process.ended()).exit_code

    async def sh(self, line: str) -> str:
        return (await self.sandbox.exec(Command(shell=line))).output

    async def appears(self, path: str) -> None:
        """Waits until a cell has made that file."""
        while await self.sh(f"test -e {path} || echo no"):
            await asyncio.sleep(0.01)

    async def processes(self) -> list[str]:
        """The command lines of keepers, cell clients and runners."""
        lines = await self.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
        return re.findall(r"agent\S* (?:context|cell)|runner\.py", lines)


# Waits, for ever, without ever being in the way of an interrupt.
_WAIT = "open('/tmp/here', 'w'); time.sleep(1000)"
_STUBBORN = "signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(1000)"


@pytest.mark.anyio
class ContextsContract(ProviderHooks):
    """A test module gives it a `provider`, and the `program` inside if it is not the agent's own."""

    program = AGENT_PROGRAM
    most_memory_kb = 12_000

    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    @pytest.fixture
    async def context(self, provider: Provider) -> AsyncIterator[Context]:
        sandbox = await provider.create(self.spec())
        try:
            with anyio.fail_after(60):
                yield Context(sandbox, await self.program_in(sandbox))
        finally:
            await provider.destroy(sandbox.id)

    async def program_in(self, sandbox: Sandbox) -> str:
        return self.program

    # What a cell gives.

    async def test_state_lasts_and_text_keeps_its_place_before_results(self, context: Context) -> None:
        await context.start()
        assert (await context.cell("a = 41")).end == [1, None]
        code = """
os.write(1, b"one")
send(b"r", b"first")
time.sleep(0.05)
subprocess.run(["sh", "-c", "echo two; echo three >&2"])
send(b"r", b"second")
time.sleep(0.05)
os.write(2, str(a + 1).encode())
1 / 0"""
        cell = await context.cell(code)
        assert cell.frames[:3] == [("b", b""), ("o", b"one"), ("r", b"first")]
        assert cell.shape == "boroerex"
        assert (cell.text("o"), cell.text("e")) == (b"onetwo\n", b"three\n42")
        assert (cell.end, cell.result.exit_code) == ([2, "ZeroDivisionError"], 0)

    async def test_every_byte_arrives_and_what_is_too_much_is_told(self, context: Context) -> None:
        await context.start()
        code = """
block = bytes(range(256)) * 4096
for _ in range(40): os.write(1, block)
for n in range(40): send(b"r", bytes([n]) * 1000000)"""
        with anyio.fail_after(30):
            cell = await context.cell(code)
        text, events = cell.text(), [payload for kind, payload in cell.frames if kind == "r"]
        assert text == (bytes(range(256)) * 4096 * 12)[: len(text)]
        assert 11 << 20 < len(text) < 12 << 20
        assert events == [bytes([n]) * 1_000_000 for n in range(16)]
        cuts = {payload.split()[0]: int(payload.split()[1]) for kind, payload in cell.frames if kind == "c"}
        assert cuts == {b"text": (40 << 20) - len(text), b"events": 24}
        assert cell.end == [1, None]
        assert (await context.cell("print(len(block))")).text() == b"1048576\n"

    @pytest.mark.parametrize(
        ("flood", "least"),
        [
            ("channel.sendall(b'r\\0\\0\\0\\2{}' * 1000)", 1_000),
            ("os.write(1, b'x'); os.write(2, b'y')", 10),  # joined by a keeper that has no time for each
        ],
        ids=["events", "text"],
    )
    async def test_frames_without_end_come_at_a_bounded_rate(self, context: Context, flood: str, least: int) -> None:
        """2,500 at once, 1,000 a second after that, and what one read brings."""
        await context.start()
        cell = await context.cell(f"while True: {flood}", timeout_s=1)
        assert cell.result.reason is Reason.TIMEOUT
        assert least < len(cell.frames) < 2_500 + 1_000 * cell.result.duration_ms / 1000 + 4_000
        assert cell.result.duration_ms < 1000 * patience(1 + 4)

    async def test_frames_above_the_rate_wait_and_none_is_lost(self, context: Context) -> None:
        await context.start()
        cell = await context.cell("for n in range(12_000): send(b'r', str(n).encode())")
        assert [int(payload) for kind, payload in cell.frames if kind == "r"] == list(range(12_000))
        assert (cell.shape, cell.end) == ("brx", [1, None])
        assert cell.result.duration_ms > 1000

    async def test_cells_wait_for_each_other_in_order(self, context: Context) -> None:
        await context.start()
        order = "order = [*globals().get('order', []), {}]; print(order)"
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(context.run(_WAIT, process_id="first"))
            await context.appears("/tmp/here")
            later = []
            for n in range(3):
                later.append(tasks.create_task(context.cell(order.format(n))))
                while len([line for line in await context.processes() if "cell" in line]) < n + 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            waiting = tasks.create_task(context.run("never = 1", process_id="waiting"))
            while len([line for line in await context.processes() if "cell" in line]) < 5:
                await asyncio.sleep(0.01)
            await (await context.sandbox.process("waiting")).kill()  # costs nothing
            await (await context.sandbox.process("first")).signal(2)
        assert cell_of(first.result()).end == [1, "KeyboardInterrupt"]
        assert [each.result().text() for each in later] == [b"[0]\n", b"[0, 1]\n", b"[0, 1, 2]\n"]
        assert waiting.result().exit_code == 143
        assert cell_of(waiting.result()).frames == []
        assert (await context.cell("print('never' in globals())")).text() == b"False\n"

    async def test_one_client_too_many_is_told_that_the_context_is_busy(self, context: Context) -> None:
        await context.start()
        waiting = f"{_CLIENT}\nheld = [call(request) for _ in range(64)]\nprint('held', flush=True)\ntime.sleep(1000)"
        async with asyncio.TaskGroup() as tasks:
            cell = tasks.create_task(context.run(_WAIT, process_id="first"))
            await context.appears("/tmp/here")
            crowd = await context.sandbox.start(Command(argv=("python3", "-c", waiting)), process_id="crowd")
            async for _ in crowd.output():
                break
            refused = await context.run("1")
            await crowd.kill()
            await crowd.ended()  # until then it holds its places
            await (await context.sandbox.process("first")).signal(15)
        assert (refused.exit_code, "too many cells wait" in refused.stderr) == (75, True)
        assert cell_of(refused).frames == []
        assert cell_of(cell.result()).end == [1, "KeyboardInterrupt"]
        assert (await context.cell("print(7)")).text() == b"7\n"

    # How a cell is cut short.

    async def test_a_client_that_vanishes_has_its_cell_interrupted(self, context: Context) -> None:
        await context.start()
        code = f"seen = 0\ntry: {_WAIT}\nexcept KeyboardInterrupt: seen = 1"
        for how in ("killed", "cancelled"):
            running = asyncio.create_task(context.run(code, process_id=how))
            await context.appears("/tmp/here")
            if how == "killed":
                await context.sh(f"kill -9 {(await context.info(how)).pid}")
                assert (await running).signal == 9
            else:
                running.cancel()
                await asyncio.wait([running])
            assert (await context.cell("print(seen); os.unlink('/tmp/here')")).text() == b"1\n"

    async def test_a_time_out_interrupts_and_keeps_the_state(self, context: Context) -> None:
        await context.start()
        cell = await context.cell("a = 1; print('begun', flush=True)\nwhile True: pass", timeout_s=0.5)
        assert (cell.shape, cell.text(), cell.end) == ("box", b"begun\n", [1, "KeyboardInterrupt"])
        assert cell.result.reason is Reason.TIMEOUT
        assert (await context.cell("print(a)")).text() == b"1\n"

    async def test_an_interrupt_that_nobody_noticed_comes_once_more(self, context: Context) -> None:
        await context.start()
        code = "signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, signal.default_int_handler))"
        cell = await context.cell(f"a = 1; {code}\nwhile True: pass", timeout_s=0.5)
        assert (cell.shape, cell.end) == ("bx", [1, "KeyboardInterrupt"])
        assert (await context.cell("print(a)")).text() == b"1\n"

    async def test_a_cell_that_cannot_be_interrupted_loses_the_context(self, context: Context) -> None:
        await context.start("--grace-ms", "300")
        cell = await context.cell(_STUBBORN, timeout_s=0.3)
        assert (cell.shape, cell.text(), cell.end) == ("bol", b"deaf\n", "l signal 9")
        assert cell.result.reason is Reason.TIMEOUT
        assert await context.ended() == 137
        assert (await context.run("1")).exit_code == 69

    async def test_an_interrupt_of_the_context_ends_the_cell_and_nothing_else(self, context: Context) -> None:
        await context.start()
        await context.process.signal(2)
        assert (await context.cell("print(1)")).text() == b"1\n"
        running = asyncio.create_task(context.cell(_WAIT))
        await context.appears("/tmp/here")
        await context.process.signal(2)
        assert (await running).end == [2, "KeyboardInterrupt"]

    # Who dies, and what the others do then.

    @pytest.mark.parametrize(
        ("deed", "end", "code"),
        [
            ("os.kill(os.getpid(), 9)", "l signal 9", 137),
            ("os.kill(os.getpid(), 15)", "l signal 15", 143),
            ("os._exit(3)", "l exit 3", 3),
            ("os.close(3); time.sleep(1000)", "l protocol", 137),
            ("send(b'z'); time.sleep(1000)", "l protocol", 137),
            ("channel.sendall(b'r' + b'\\xff' * 4); time.sleep(1000)", "l protocol", 137),
            ("channel.sendall(b'r\\0\\0\\1\\0half'); os._exit(4)", "l exit 4", 4),
            (
                "subprocess.Popen(['sleep', '1000'], close_fds=False); os.set_inheritable(3, True); os._exit(5)",
                "l exit 5",
                5,
            ),
        ],
    )
    async def test_a_runner_that_ends_is_told_with_the_text_so_far(
        self, context: Context, deed: str, end: str, code: int
    ) -> None:
        await context.start()
        cell = await context.cell(f"print('so far', flush=True); {deed}")
        assert (cell.shape, cell.text(), cell.end) == ("bol", b"so far\n", end)
        assert cell.result.exit_code == 70
        assert await context.ended() == code

    async def test_the_death_of_the_keeper_ends_runner_and_cells(self, context: Context) -> None:
        await context.start()
        running = asyncio.create_task(context.cell(f"print('so far', flush=True); {_WAIT}"))
        await context.appears("/tmp/here")
        waiting = asyncio.create_task(context.cell("1"))
        while len(await context.processes()) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await context.sh(f"kill -9 {context.pid}")
        cell = await running
        assert (cell.shape, cell.end, cell.result.exit_code) == ("bol", "l gone", 70)
        cell = await waiting
        assert (cell.shape, cell.end, cell.result.exit_code) == ("l", "l gone", 70)
        assert (await context.run("1")).exit_code == 69
        assert await context.processes() == []

    async def test_running_out_of_memory_is_the_reason_of_the_end(self, context: Context) -> None:
        await context.start()
        cell = await context.cell("print('so far', flush=True); [bytearray(1 << 24) for _ in range(1000)]")
        assert (cell.text(), cell.end, cell.result.exit_code) == (b"so far\n", "l signal 9", 70)
        with anyio.fail_after(20):
            assert (await context.process.ended()).reason is Reason.OOM

    async def test_a_runner_that_cannot_start_says_why(self, context: Context) -> None:
        for argv, code, text in (
            (("no-such-program",), 127, "no-such-program: command not found"),
            (("/workspace",), 126, "/workspace: Permission denied"),
            (("sh", "-c", "yes filler | head -c 9000; echo broken >&2; exit 3"), 3, "broken"),
            (("true",), 1, "the runner ended before it was ready"),
            (("sh", "-c", "printf x >&3; printf '\\0\\0\\0\\0' >&3; sleep 1000"), 137, "before it was ready"),
        ):
            command = Command(argv=(context.program, "context", "--id", ID, "--", *argv), timeout_s=10)
            result = await context.sandbox.exec(command)
            assert (result.exit_code, text in result.stderr, result.stdout) == (code, True, "")
            assert len(result.stderr) < 2200

    async def test_directory_and_variables_are_told_before_the_hello(self, context: Context) -> None:
        await context.sandbox.write("runner.py", _RUNNER)
        argv = (context.program, "context", "--id", ID, "--env", "A", "--env", "NONE", "--env", "B", "--")
        for value, told in (("x\ny=", [("v", b"A=1\0B=x\ny=\0")]), ("y" * 120_000, [])):
            env = {"A": "1" if told else value, "B": value, **({} if told else {"NONE": value})}
            command = Command(argv=(*argv, "python3", "/workspace/runner.py"), env=env, cwd="/tmp")
            process = await context.sandbox.start(command, process_id=ID)
            assert frames_of(await told_by(process)) == [("d", b"/tmp"), *told, ("h", b'{"version": "1"}')]
            await process.kill(0)
            await process.ended()
            await context.sandbox.forget(ID)

    async def test_a_runner_that_never_reads_is_killed_when_the_time_is_up(self, context: Context) -> None:
        runner = _RUNNER.replace(b"while True:", b"time.sleep(1000)\nwhile True:")
        await context.start("--grace-ms", "200", runner=runner)
        cell = await context.cell("#" * 2_000_000, timeout_s=1.5)
        assert (cell.end, cell.result.reason) == ("l signal 9", Reason.TIMEOUT)
        assert await context.ended() == 137

    async def test_an_idle_context_ends_by_itself(self, context: Context) -> None:
        await context.start("--idle-s", "1")
        await context.cell("time.sleep(1.2)")  # a cell that runs is not idle
        assert (await context.info()).running
        assert await context.ended() == 0
        assert (await context.run("1")).exit_code == 69
        assert await context.processes() == []

    async def test_the_end_of_a_context_leaves_nothing_behind(self, context: Context) -> None:
        await context.start()
        await context.cell("subprocess.Popen(['sleep', '1000'], start_new_session=True)")
        await context.process.kill()
        await context.process.wait()  # a kill is an order; the result comes when the whole tree is gone
        assert await context.processes() == []
        left = await context.sh("grep warren-context /proc/net/unix; pgrep sleep")
        assert left == ""

    # What user code does on the side.

    async def test_text_between_cells_comes_first_in_the_next(self, context: Context) -> None:
        await context.start()
        later = "threading.Thread(target=lambda: ({}, open('/tmp/done', 'w'))).start()"
        await context.cell(later.format("time.sleep(0.1), os.write(2, b'late'), send(b'r', b'late')"))
        await context.appears("/tmp/done")
        cell = await context.cell("os.unlink('/tmp/done'); os.write(1, b'own')")
        assert cell.frames[:-1] == [("b", b""), ("e", b"late"), ("o", b"own")]
        await context.cell(later.format("time.sleep(0.1), [os.write(1, b'x' * 1000) for _ in range(300)]"))
        await context.appears("/tmp/done")  # it did not block
        cell = await context.cell("1")
        assert 50_000 < len(cell.text()) < 65_536
        assert cell.frames[-2] == ("c", f"text {300_000 - len(cell.text())}".encode())

    async def test_what_a_cell_starts_may_stay_and_go_on_writing(self, context: Context) -> None:
        await context.start()
        with anyio.fail_after(5):  # a child that keeps 1, 2 and 3 does not delay the end
            cell = await context.cell("if os.fork() == 0: time.sleep(1000)\nprint('parent')")
        assert cell.text() == b"parent\n"
        await context.cell("subprocess.Popen(['sh', '-c', 'while sleep 0.05; do echo tick; done'])")
        assert b"tick\n" in (await context.cell("time.sleep(0.5)")).text()

    async def test_a_client_that_does_not_read_holds_up_nobody_for_ever(self, context: Context) -> None:
        await context.start()
        running = asyncio.create_task(
            context.cell(
                f"{_WAIT.split(';')[0]}; time.sleep(0.3)\nfor _ in range(8): os.write(1, b'x' * 1000000)",
                process_id="slow",
            )
        )
        await context.appears("/tmp/here")
        client = (await context.info("slow")).pid
        await context.sh(f"kill -STOP {client}; sleep 0.8")
        memory = await context.sh(f"grep VmRSS /proc/{context.pid}/status")
        assert int(memory.split()[1]) < self.most_memory_kb
        await context.sh(f"kill -CONT {client}")
        assert len((await running).text()) == 8_000_000
        # One whose cell has ended does not keep others from theirs.
        running = asyncio.create_task(
            context.cell("open('/tmp/now', 'w'); time.sleep(0.3); os.write(1, b'x' * 900000)", process_id="slower")
        )
        await context.appears("/tmp/now")
        client = (await context.info("slower")).pid
        await context.sh(f"kill -STOP {client}")
        assert (await context.cell("print(1)")).text() == b"1\n"
        await context.sh(f"kill -CONT {client}")
        assert len((await running).text()) == 900_000

    async def test_clients_that_send_nonsense_disturb_nobody(self, context: Context) -> None:
        await context.start()
        script = (
            _CLIENT
            + """
huge = b"Q\\xff\\xff\\xff\\xff"
for each in (b"", b"Q", huge, b"Z\\0\\0\\0\\1x", b"Q\\0\\0\\0\\0", request[:-1], request + b"iiiiii", b"i\\0\\0\\0\\0"):
    call(each).close()
held = [call(each) for each in (*[b""] * 20, request[:-1], huge, b"i\\0\\0\\0\\0")]
print("sent", flush=True)
time.sleep(1000)"""
        )
        crowd = await context.sandbox.start(Command(argv=("python3", "-c", script)))
        async for _ in crowd.output():
            break
        with anyio.fail_after(15):
            assert (await context.cell("print(1)")).text() == b"1\n"
        await crowd.kill()
        assert (await context.cell("print(2)")).text() == b"2\n"

    async def test_whatever_comes_at_once_every_cell_gets_whole_frames(self, context: Context) -> None:
        """Cells that print, send and start others at random, of which some are ended at a random moment."""
        await context.start("--grace-ms", "5000")
        dice = random.Random(1)
        noise = """
import random
dice = random.Random({seed})
for _ in range(40):
    size = dice.choice((0, 1, 5, 4096, 70000, 300000))
    deed = dice.randrange(6)
    if deed == 0: os.write(dice.choice((1, 2)), b"t" * size)
    if deed == 1: send(b"r", b"e" * size)
    if deed == 2: send(b"h", b"h" * size)
    if deed == 3: subprocess.Popen(["head", "-c", str(size), "/dev/zero"])
    if deed == 4: time.sleep(dice.random() / 100)
    if deed == 5:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        signal.signal(signal.SIGALRM, lambda *_: os.write(2, b"alarm"))"""
        for _ in range(6):
            limits = [dice.choice((None, 0.05, 0.2)) for _ in range(4)]
            codes = [noise.format(seed=dice.random()) for _ in limits]
            each = zip(codes, limits, strict=True)
            cells = await asyncio.gather(*(context.cell(code, timeout_s=limit) for code, limit in each))
            assert {cell.frames[-1][0] if cell.frames else "x" for cell in cells} == {"x"}
        assert (await context.cell("print(1)")).text().endswith(b"1\n")
        assert (await context.info()).running

    # What cannot be forged.

    async def test_frames_in_text_stay_text(self, context: Context) -> None:
        await context.start()
        forged = struct.pack(">cI", b"x", 10) + b"[99, null]"
        cell = await context.cell(f"os.write(1, {forged!r}); os.write(2, {forged!r})")
        assert (cell.text("o"), cell.text("e"), cell.end) == (forged, forged, [1, None])

    async def test_frames_of_the_runner_between_cells_are_nobodys(self, context: Context) -> None:
        await context.start()
        late = """
def forge():
    time.sleep(0.1)
    send(b"r", b"x")
    send(b"x", b"[99]")
    channel.sendall(b"x\\0\\0\\0\\4[9")
    open("/tmp/done", "w")
threading.Thread(target=forge).start()"""
        await context.cell(late)
        await context.appears("/tmp/done")
        cell = await context.cell("channel.sendall(b'9]'); print(1)")
        assert (cell.frames[:-1], cell.end) == ([("b", b""), ("o", b"1\n")], [2, None])
        assert (await context.cell("send(b'x', b'y' * 2000000); time.sleep(0.2)")).end == {}  # too long for an end
        await asyncio.sleep(0.5)
        assert (await context.cell("print(1)")).end == [4, None]

    async def test_user_code_cannot_reach_the_descriptors_of_keeper_and_client(self, context: Context) -> None:
        await context.start()
        spy = f"""
import os, sys
found, until = set(), __import__("time").monotonic() + 2.0
while __import__("time").monotonic() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{{pid}}/cmdline").read().split("\\0")
        except OSError:
            continue
        if line[0] != {context.program!r} or line[1] not in ("cell", "context"):
            continue
        found.add(line[1])
        for way in ("fd", "fd/0", "fd/1", "fd/3", "fd/4", "maps"):
            try:
                flags = os.O_RDONLY if way in ("fd", "maps") else os.O_RDWR
                fd = os.open(f"/proc/{{pid}}/{{way}}", flags)
                if way != "maps" or os.read(fd, 1):  # there are none of a process that has just ended
                    found.add(f"{{line[1]}} {{way}}")
                os.close(fd)
            except OSError:
                pass
print(sorted(found))"""
        spying = asyncio.create_task(context.sandbox.exec(Command(argv=("python3", "-c", spy))))
        count = 0
        while not spying.done():
            assert (await context.cell("1")).shape == "bx"
            count += 1
        assert count > 2
        seen = (await spying).stdout
        assert seen == "['cell', 'context']\n", seen
        assert "Permission denied" in await context.sh(f"head -c 4 {AGENT_PROGRAM}")

    async def test_who_takes_the_name_of_a_dead_context_gets_no_request(self, context: Context) -> None:
        await context.start()
        await context.sh(f"kill -9 {context.pid}")
        await context.ended()
        squat = f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.bind("\\0warren-context-{ID}")
s.listen()
print("there", flush=True)
c, _ = s.accept()
print(c.recv(1000) or "nothing", flush=True)
try: c.sendall(b"b\\0\\0\\0\\0x\\0\\0\\0\\2{{}}")
except OSError: pass"""
        squatter = await context.sandbox.start(Command(argv=("python3", "-c", squat)), process_id="squatter")
        async for _ in squatter.output():
            break
        result = await context.run("1")
        assert (result.exit_code, result.stdout) == (69, "")
        assert "another process answers" in result.stderr
        assert (await squatter.wait()).stdout == "there\nnothing\n"

    async def test_the_runners_cannot_be_changed(self, context: Context) -> None:
        tried = await context.sh(f"cd {RUNNERS}; head -1 bash/main.sh; touch x bash/main.sh; rm -rf {RUNNERS}; ls")
        assert tried.startswith("#")
        assert tried.count("Read-only") >= 2
        assert "bash" in tried.splitlines()

    # The server dies.

    async def test_a_cell_outlives_the_server_that_asked_for_it(self, context: Context, provider: Provider) -> None:
        await context.start()
        code = """
os.write(1, b"before")
open("/tmp/here", "w")
while not os.path.exists("/tmp/go"): time.sleep(0.01)
send(b"r", b"after")"""
        running = asyncio.create_task(context.run(code, process_id="cell"))
        await context.appears("/tmp/here")
        await context.sandbox.close()
        await asyncio.wait([running])
        again = await self.reopened(provider)
        try:
            sandbox = await again.adopt(context.sandbox.id)
            await sandbox.write("/tmp/go", b"")
            cell = cell_of(await (await sandbox.process("cell")).wait())
            assert (cell.frames[:-1], cell.end) == ([("b", b""), ("o", b"before"), ("r", b"after")], [1, None])
            context.sandbox = sandbox
            assert (await context.cell("print(1)")).text() == b"1\n"
            assert (await context.info()).running
            await context.cell("[bytearray(1 << 24) for _ in range(1000)]")
            assert (await (await sandbox.process(ID)).ended()).reason is Reason.OOM
            await sandbox.close()
        finally:
            await again.close()
