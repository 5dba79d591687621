"""A command of the fake sandbox: a task that runs the small shell, and the output that it kept.

Background commands run in tasks of their own. Ending the command cancels and counts them all.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from warren.model.command_output import CommandOutput
from warren.model.errors import InvalidRequest, SandboxLost, WarrenError
from warren.model.operations import Chunk, Command, ExecResult, OutputStream, ProcessStatus, Reason, TerminalSize
from warren.sandboxes.agent.channel import Output
from warren.sandboxes.agent.command_result import lost_result
from warren.testing.fake_contexts import FakeAgent
from warren.testing.fake_shell import Exit, FakeShell, Signalled

_LAG_BYTES = 256 * 1024
_HARMLESS = {17, 18, 23, 28}


class Log:
    """Keeps the beginning and the end of the output."""

    def __init__(self, keep: int) -> None:
        self._head_room = keep // 2
        self._tail_keep = keep - self._head_room
        self._head: list[Output] = []
        self._tail: deque[Output] = deque()
        self._tail_size = 0
        self.total = 0

    def add(self, stream: int, data: bytes) -> None:
        head, tail = data[: self._head_room], data[self._head_room :]
        self._head_room -= len(head)
        if head:
            self._head.append(Output(stream, self.total, head))
        if tail:
            self._tail.append(Output(stream, self.total + len(head), tail))
            self._tail_size += len(tail)
        self.total += len(data)
        while self._tail_size > self._tail_keep:
            oldest = self._tail.popleft()
            cut = min(len(oldest.data), self._tail_size - self._tail_keep)
            self._tail_size -= cut
            if cut < len(oldest.data):
                self._tail.appendleft(Output(oldest.stream, oldest.offset + cut, oldest.data[cut:]))

    def kept(self, offset: int = 0) -> list[Output]:
        found = []
        for output in (*self._head, *self._tail):
            cut = max(0, offset - output.offset)
            if cut < len(output.data):
                found.append(Output(output.stream, output.offset + cut, output.data[cut:]))
        return found


class FakeFreezer:
    """Whether a fake sandbox stands still, and how long it did altogether, as far as it was told."""

    def __init__(self) -> None:
        self._thawed = asyncio.Event()
        self._thawed.set()
        self.paused_s = 0.0

    @property
    def frozen(self) -> bool:
        return not self._thawed.is_set()

    def set(self, frozen: bool) -> None:
        if frozen:
            self._thawed.clear()
        else:
            self._thawed.set()

    async def thawed(self) -> None:
        await self._thawed.wait()


class FakeProcess:
    def __init__(
        self,
        process_id: str,
        pid: int,
        command: Command,
        lost: Callable[[], WarrenError | None],
        freezer: FakeFreezer | None = None,
    ) -> None:
        self._id, self.pid, self._command = process_id, pid, command
        self.ignored: set[int] = set()
        self.handlers: dict[int, Callable[[], object]] = {}  # by signal
        self.children: dict[int, asyncio.Future[object]] = {}
        self.log = Log(command.keep_bytes)
        self.user = ""
        self._lost = lost
        self._freezer = freezer or FakeFreezer()
        self._paused_before_s = self._freezer.paused_s
        self._main: asyncio.Task[None] | None = None
        self._stdin = asyncio.Queue[bytes]()
        self._stdin_closed = not command.stdin
        self._notified = asyncio.Event()
        self._readers: dict[object, int] = {}
        self._started = time.monotonic()
        self._result: ExecResult | None = None
        self._ending: tuple[Reason, int | None] | None = None
        self._killed = 0

    @property
    def id(self) -> str:
        return self._id

    @property
    def running(self) -> bool:
        return self._result is None

    # For the sandbox.

    def begin(self, shell: FakeShell | FakeAgent, at_end: Callable[[], None]) -> None:
        self.user = shell.user
        self._main = asyncio.get_running_loop().create_task(self._run(shell, at_end))
        self._main.add_done_callback(self._main_ended)

    def _main_ended(self, main: asyncio.Task[None]) -> None:
        if main.cancelled():  # `_run` cannot do this: it may not have begun
            reason, signal = self._ending or (Reason.SIGNAL, 9)
            self._finish(128 + (signal or 9), signal, reason)

    async def _run(self, shell: FakeShell | FakeAgent, at_end: Callable[[], None]) -> None:
        timer = None
        if self._command.timeout_s is not None:
            timer = asyncio.create_task(self._end_after(self._command.timeout_s))
        code, signal, reason = 0, None, Reason.EXITED
        try:
            if isinstance(shell, FakeShell) and self._command.shell:
                code = await shell.run(self._command.shell)
                at_end()
            else:
                code = await shell.call(list(self._command.argv))
        except Exit as exc:
            code = exc.code
        except Signalled as exc:
            code, signal, reason = 128 + exc.number, exc.number, Reason.SIGNAL
        except Exception as exc:  # whatever the small shell cannot do, the command must end
            code = 2
            await self.emit(2, f"the fake cannot run this: {exc!r}\n".encode(errors="replace"))
        finally:
            if timer is not None:
                timer.cancel()
        if self._command.until_closed and self.children and reason is Reason.EXITED:
            await asyncio.wait(list(self.children.values()))
        await self._freezer.thawed()
        self._finish(code, signal, reason)

    @property
    def _ran_s(self) -> float:
        return time.monotonic() - self._started - (self._freezer.paused_s - self._paused_before_s)

    async def _end_after(self, limit_s: float) -> None:
        while (left_s := limit_s - self._ran_s) > 0 or self._freezer.frozen:
            await asyncio.sleep(left_s)
            await self._freezer.thawed()
        self.end(Reason.TIMEOUT)

    def _finish(self, code: int, signal: int | None, reason: Reason) -> None:
        written = CommandOutput()
        for output in self.log.kept():
            written.add(*output)
        written.total = self.log.total
        self._result = ExecResult(
            exit_code=code, written=written, reason=reason, signal=signal,
            duration_ms=self._ran_s * 1000, cpu_ms=0.0, bytes_total=self.log.total,
            truncated=written.kept < self.log.total, killed=self._killed,
            background=len(self.children), process_id=self._id,
        )  # fmt: skip
        self.notify()

    def end(self, reason: Reason) -> None:
        """Ends the command and everything it started."""
        signal = 9 if 15 in self.ignored else 15
        for child in list(self.children.values()):
            child.cancel()
            self._killed += 1
        if self._main is not None and not self._main.done():
            self._killed += 1
            self._ending = self._ending or (reason, signal)
            self._main.cancel()

    def notify(self) -> None:
        self._notified.set()
        self._notified = asyncio.Event()

    def spawn(self, work: Awaitable[object]) -> None:
        child = asyncio.ensure_future(work)
        pid = self.pid * 1000 + len(self.children) + 1
        self.children[pid] = child
        child.add_done_callback(lambda done: (self.children.pop(pid, None), done.cancelled() or done.exception()))

    def signal_pid(self, pid: int, number: int) -> bool:
        return pid in self.children and self.children[pid].cancel()

    async def emit(self, stream: int, data: bytes) -> None:
        while any(self.log.total - at > _LAG_BYTES for at in self._readers.values()):
            await self._notified.wait()
        await self._freezer.thawed()
        self.log.add(3 if self._command.terminal else stream, data)
        self.notify()

    async def take_input(self) -> bytes:
        if self._stdin_closed and self._stdin.empty():
            return b""
        data = await self._stdin.get()
        await self._freezer.thawed()
        return data

    def info(self) -> ProcessStatus:
        ended = self._result
        return ProcessStatus(
            id=self._id, command=self._command.shell or " ".join(self._command.argv), user=self.user,
            running=ended is None, terminal=self._command.terminal is not None, pid=self.pid,
            bytes_total=self.log.total, truncated=bool(ended and ended.truncated),
            started_s_ago=self._ran_s, exit_code=ended.exit_code if ended else None,
            reason=ended.reason if ended else None, background=len(self.children),
        )  # fmt: skip

    # For the caller.

    def hold(self) -> None:
        """Counts a reader until the first one comes, so that no output is dropped before that."""
        self.log = Log(max(self._command.keep_bytes, 4 * _LAG_BYTES))
        self._readers[self] = 0

    async def output(self, offset: int = 0) -> AsyncIterator[Chunk]:
        if offset < 0:
            raise InvalidRequest(f"an offset of {offset} cannot be")
        me, streams = object(), {1: OutputStream.STDOUT, 2: OutputStream.STDERR, 3: OutputStream.TERMINAL}
        self._readers[me] = at = offset
        self._readers.pop(self, None)
        try:
            while True:
                changed, ended = self._notified, not self.running
                for output in self.log.kept(at):
                    at = self._readers[me] = output.offset + len(output.data)
                    self.notify()
                    yield Chunk(streams[output.stream], output.offset, output.data)
                self._check_not_lost()
                if ended:
                    return
                if changed is self._notified:
                    await changed.wait()
        finally:
            del self._readers[me]
            self.notify()

    async def wait(self) -> ExecResult:
        self._readers.pop(self, None)
        self.notify()
        return await self._wait_for_end()

    async def ended(self) -> ExecResult:
        return replace(await self._wait_for_end(), written=CommandOutput())

    async def _wait_for_end(self) -> ExecResult:
        while (lost := self._lost()) is None:
            if self._result is not None:
                return self._result
            await self._notified.wait()
        return lost_result(lost.message, self._id)

    async def write(self, data: bytes) -> None:
        self._check_not_lost()
        if data and self.running and not self._stdin_closed:
            self._stdin.put_nowait(data)

    async def close_stdin(self) -> None:
        self._check_not_lost()
        self._stdin_closed = True
        self._stdin.put_nowait(b"")

    async def signal(self, number: int) -> None:
        self._check_not_lost()
        if not 0 < number <= 64:
            raise InvalidRequest(f"there is no signal {number}")
        if self.running and number in self.handlers:
            self.handlers[number]()
        elif self.running and number not in _HARMLESS | self.ignored and self._main is not None:
            self._ending = self._ending or (Reason.SIGNAL, number)
            self._main.cancel()

    async def kill(self, grace_s: float = 2.0) -> None:
        self._check_not_lost()
        self.end(Reason.CANCELLED)

    async def resize(self, size: TerminalSize) -> None:
        self._check_not_lost()
        if self._command.terminal is None:
            raise InvalidRequest(f"process {self._id} has no terminal")

    def _check_not_lost(self) -> None:
        if isinstance(lost := self._lost(), SandboxLost):
            raise lost
