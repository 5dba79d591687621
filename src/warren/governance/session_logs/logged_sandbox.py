"""The sandbox of a session that has a log: a `MeteredSandbox` that hands on what its commands do.

A command that a request waits for has its output in the result. The output of a command that somebody reads as it
comes is noted on the way; that of all others is read by a task, a piece a second at most. No command waits for its log.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Final

from warren.governance.audit.redaction import SHORTEST
from warren.governance.metered_sandbox import CommandMetering, MeteredSandbox
from warren.governance.session_logs.entries import MOST_OUTPUT, NewEntry, OutputPart, Values
from warren.governance.session_logs.logs import Logs
from warren.interfaces.sandbox import Process, Sandbox
from warren.kernel.tracing import NO_SPAN, Span
from warren.model.access import Caller
from warren.model.code import CELL_PREFIX, is_context, language_of
from warren.model.command_output import STDERR, Piece
from warren.model.errors import SandboxLost, WarrenError
from warren.model.operations import Chunk, Command, ExecResult, OutputStream, Reason, TerminalSize
from warren.model.secrets import authority_variables
from warren.model.session import Session
from warren.model.session_log import LogLevel
from warren.sessions.output_events import close_source, with_keepalives
from warren.sessions.refused_process import RefusedProcess
from warren.sessions.request_context import current_caller

_GATHER_S: Final = 0.3
_PIECE_S: Final = 1.0
_END_S: Final = 10.0
_SILENT_S: Final = 3600.0
_NUMBERS: Final = {OutputStream.STDOUT: 1, OutputStream.STDERR: STDERR, OutputStream.TERMINAL: 3}
_HARMLESS: Final = frozenset(
    {"HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "LANG", "TERM", "TZ", *authority_variables()}
    | {"E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"}
)
"""Variables whose values are no secrets, and stand in many outputs."""


class LoggedSandbox(MeteredSandbox):
    """It knows the level of its session, which never changes."""

    __slots__ = ("_level", "_logs")

    def __init__(self, logs: Logs, metering: CommandMetering, session: Session, sandbox: Sandbox) -> None:
        super().__init__(metering, session, sandbox)
        self._logs = logs
        self._level = LogLevel(session.logs)

    async def _exec(self, command: Command, stdin: bytes | AsyncIterable[bytes], process_id: str) -> ExecResult:
        logged = await self._logged(command, process_id or f"c_{os.urandom(6).hex()}", process_id)
        logged.begin(command)
        try:
            result = await super()._exec(command, stdin, process_id)
        except BaseException as exc:
            logged.fail(exc)
            raise
        if self._level is LogLevel.OUTPUT or logged.is_cell:
            written = result.written
            logged.add(OutputPart(written.ends(MOST_OUTPUT), 0, written.total))
        logged.end(result)
        return result

    async def _start(self, command: Command, process_id: str, follow: bool, span: Span) -> tuple[Process, bool]:
        if is_context(process_id):
            return await super()._start(command, process_id, follow, span)
        logged = await self._logged(command, process_id or f"c_{os.urandom(6).hex()}", process_id)
        try:
            process, is_followed = await super()._start(command, process_id, follow, span)
        except BaseException as exc:
            logged.begin(command)
            logged.fail(exc)
            raise
        logged.command_id = process.id or logged.command_id
        logged.begin(command, background=not follow)
        if isinstance(process, RefusedProcess):
            logged.end(await process.wait())
            return process, is_followed
        running = self._logs.running[self._session.id, process.id] = RunningLog(self, logged)
        if not (self._level is LogLevel.OUTPUT or logged.is_cell):
            return process, is_followed
        if follow:
            return LoggedProcess(process, running), is_followed
        running.follow(process, 0)
        return process, is_followed

    async def until_ended(
        self, process: Process, payer: Caller | None, *, background: bool, had_s: float = 0.0, span: Span = NO_SPAN
    ) -> None:
        """Takes up the log of a command that an earlier server process has begun."""
        known = self._session.id, process.id
        if known not in self._logs.running:
            secrets = await self._secrets({})
            logged = LoggedCommand(self._logs.add, self._session, self._level, "command", process.id, "", secrets)
            running = self._logs.running[known] = RunningLog(self, logged)
            if self._level is LogLevel.OUTPUT and not process.id.startswith(CELL_PREFIX):
                running.follow(process, await self._logs.offset_of(self._session, process.id))
        await super().until_ended(process, payer, background=background, had_s=had_s, span=span)

    def _note_end(self, process_id: str, result: ExecResult) -> None:
        running = self._logs.running.pop((self._session.id, process_id), None)
        if running is not None:
            running.end(result)

    async def _logged(self, command: Command, command_id: str, process_id: str) -> "LoggedCommand":
        secrets = await self._secrets({**command.base_env, **command.env})
        is_cell = process_id.startswith(CELL_PREFIX)
        kind = "cell" if is_cell else "command" if command.terminal is None else "terminal"
        context = command.argv[-1] if is_cell and command.argv else ""
        return LoggedCommand(self._logs.add, self._session, self._level, kind, command_id, context, secrets)

    async def _secrets(self, env: dict[str, str]) -> tuple[str, ...] | None:
        env = {**self._session.env, **env}
        values = {value for name, value in env.items() if len(value) >= SHORTEST and name not in _HARMLESS}
        if self._session.secrets:
            found = await self._logs.secret_values(self._session)
            if found is None:
                return None
            values |= found
        return tuple(sorted(values))

    async def written_by(self, process_id: str) -> int:
        return next((info.bytes_total for info in await self.processes() if info.id == process_id), 0)

    def run(self, work: Any, name: str) -> None:
        self._metering.follow(work, name)


class LoggedCommand:
    """What is handed on of one command."""

    def __init__(
        self,
        add: Callable[[NewEntry, Session], None],
        session: Session,
        level: LogLevel,
        kind: str,
        command_id: str,
        context_id: str,
        secrets: tuple[str, ...] | None,
    ) -> None:
        self._add, self._session, self._level, self.kind = add, session, level, kind
        self.command_id, self._context_id, self._secrets = command_id, context_id, secrets
        self.is_cell = kind == "cell"

    def begin(self, command: Command, *, background: bool = False) -> None:
        judged = command.as_judged()
        text = judged.shell or (judged.argv[-1:] if self.is_cell else judged.argv)
        values: Values = {"key_id": current_caller().key_id or None}
        if self.is_cell:
            language = language_of(self._context_id)
            values |= {"context_id": self._context_id, "language": language.name if language else None}
            text = text if isinstance(text, str) else "".join(text)
        else:
            values |= {"user": command.user or None, "background": background}
        self._put("opened" if self.kind == "terminal" else "started", values, command=text, cwd=command.cwd)

    def add(self, part: OutputPart) -> None:
        self._put("", {}, output=part)

    def end(self, result: ExecResult) -> None:
        values: Values = {
            "process_id": result.process_id or None,
            "exit_code": result.exit_code,
            "reason": str(result.reason),
            "signal": result.signal,
            "duration_ms": round(result.duration_ms, 3),
            "cpu_ms": round(result.cpu_ms, 3),
            "bytes_total": result.bytes_total,
        }
        if result.reason is Reason.REFUSED:
            values["detail"] = result.stderr.strip()[:500]
        self._put("closed" if self.kind == "terminal" else "ended", values, is_last=True)

    def fail(self, exc: BaseException) -> None:
        """It was not run, or its caller has left and it was ended."""
        if isinstance(exc, asyncio.CancelledError | SandboxLost):
            reason = Reason.SANDBOX_LOST if isinstance(exc, SandboxLost) else Reason.CANCELLED
            self._put("ended", {"exit_code": None, "reason": str(reason)}, is_last=True)
        else:
            code = exc.code if isinstance(exc, WarrenError) else "internal_error"
            self._put("failed", {"reason": code}, is_last=True)

    def _put(self, event: str, values: Values, **more: Any) -> None:
        session = self._session
        new = NewEntry(
            session.tenant,
            session.id,
            self._level,
            0.0,
            self.kind,
            self.command_id,
            event,
            values,
            secrets=self._secrets,
            is_cell=self.is_cell,
            **more,
        )
        self._add(new, session)


class RunningLog:
    """A command that was started. Its end is logged when its output was. Who reads to the end knows how it ended even
    if it was forgotten at that moment."""

    def __init__(self, sandbox: LoggedSandbox, logged: LoggedCommand) -> None:
        self._sandbox, self.logged = sandbox, logged
        self._result: ExecResult | None = None
        self._ended = asyncio.Event()
        self._is_read = self._is_over = False

    def end(self, result: ExecResult) -> None:
        self._result = self._result or result
        self._ended.set()
        if not self._is_read:
            self._finish()

    def _finish(self) -> None:
        if self._result is not None and not self._is_over:
            self._is_over = True
            self.logged.end(self._result)

    async def note_end_of(self, process: Process) -> None:
        """Called when all of its output was read."""
        with contextlib.suppress(WarrenError):
            self._result = await process.ended()

    def begin_reading(self) -> None:
        self._is_read = True

    def end_reading(self, process: Process, at: int, *, to_its_end: bool) -> None:
        """The reader has left. What the command writes from now on is followed."""
        self._is_read = False
        if self._result is not None:
            self._finish()
        elif not to_its_end:
            self.follow(process, at)

    def follow(self, process: Process, at: int) -> None:
        self._is_read = True
        self._sandbox.run(self._follow(process, at), f"logging {process.id}")

    async def _follow(self, process: Process, at: int) -> None:
        logged_to = at
        with contextlib.suppress(WarrenError):
            while (end := await self._log_piece(process, at, logged_to)) is not None:
                logged_to = end
                if end - at >= MOST_OUTPUT:
                    await asyncio.sleep(_PIECE_S)
                    total = await self._sandbox.written_by(process.id)
                    end = end if total - end <= 2 * MOST_OUTPUT else total - MOST_OUTPUT
                at = end
            await self.note_end_of(process)
        if self._result is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._ended.wait()
        self._is_read = False
        self._finish()

    async def _log_piece(self, process: Process, at: int, logged_to: int) -> int | None:
        """Logs what is written next, once something was; returns where it ends, None if the command has ended."""
        buffer, is_over, now = OutputBuffer(logged_to), True, asyncio.get_running_loop().time
        source = with_keepalives(process.output(at), lambda: _GATHER_S if buffer.pieces else _SILENT_S)
        until = 0.0
        try:
            async for chunk in source:
                if chunk is not None:
                    until = until or now() + _PIECE_S
                    buffer.add(chunk)
                if buffer.pieces and (chunk is None or buffer.end - at >= MOST_OUTPUT or now() >= until):
                    is_over = False
                    break
        finally:
            await close_source(source)
        end = buffer.end
        if buffer.pieces:
            self.logged.add(buffer.take(wait=until > 0 and now() >= until))
        return None if is_over else end


class OutputBuffer:
    """The beginning and the end of what was written since it was taken last."""

    def __init__(self, at: int) -> None:
        self._begin = self.end = at
        self.pieces: list[Piece] = []
        self._size = 0
        self._tail: deque[Piece] = deque()
        self._tail_size = 0

    def add(self, chunk: Chunk) -> None:
        size = len(chunk.data)
        self.end = chunk.offset + size
        piece = Piece(_NUMBERS[chunk.stream], chunk.offset, chunk.data)
        if (room := MOST_OUTPUT - self._size) > 0:
            self.pieces.append(piece if size <= room else piece._replace(data=chunk.data[:room]))
            self._size += min(size, room)
            if size <= room:
                return
            piece = piece._replace(offset=chunk.offset + room, data=chunk.data[room:])
        self._tail.append(piece)
        self._tail_size += len(piece.data)
        while self._tail_size - len(self._tail[0].data) >= MOST_OUTPUT:
            self._tail_size -= len(self._tail.popleft().data)

    def take(self, *, wait: bool) -> OutputPart:
        tail, room = list[Piece](), MOST_OUTPUT
        for stream, offset, data in reversed(self._tail):
            tail.append(Piece(stream, offset + max(0, len(data) - room), data[-room:]))
            room -= len(data)
        part = OutputPart(self.pieces + tail[::-1], self._begin, self.end, wait)
        self._begin, self.pieces, self._size = self.end, [], 0
        self._tail.clear()
        self._tail_size = 0
        return part


class _TimedBuffer(OutputBuffer):
    """Hands on what it has a while after it came."""

    def __init__(self, logged: LoggedCommand) -> None:
        super().__init__(0)
        self._logged = logged
        self._timer: asyncio.TimerHandle | None = None

    def add(self, chunk: Chunk) -> None:
        super().add(chunk)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._hand_on)

    def _hand_on(self) -> None:
        self._timer = None
        goes_on = bool(self.pieces)
        self._logged.add(self.take(wait=goes_on))  # without more of it, the beginning of a line waits no longer
        if goes_on:
            self._timer = asyncio.get_running_loop().call_later(_PIECE_S, self._hand_on)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.pieces:
            self._logged.add(self.take(wait=False))


class LoggedProcess:
    """A process whose first reader from the beginning reads for the log as well."""

    def __init__(self, process: Process, running: RunningLog) -> None:
        self._process, self._running = process, running
        self._has_reader = False

    def __repr__(self) -> str:
        return f"<LoggedProcess {self._process!r}>"

    @property
    def id(self) -> str:
        return self._process.id

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self, offset: int = 0) -> AsyncIterator[Chunk]:
        if offset or self._has_reader:
            return self._process.output(offset)
        self._has_reader = True
        return self._noted()

    async def _noted(self) -> AsyncIterator[Chunk]:
        running = self._running
        running.begin_reading()
        buffer = _TimedBuffer(running.logged)
        source, to_its_end = self._process.output(0), False
        try:
            async for chunk in source:
                buffer.add(chunk)
                yield chunk
            to_its_end = True
            await running.note_end_of(self._process)
        finally:
            await close_source(source)
            buffer.close()
            running.end_reading(self._process, buffer.end, to_its_end=to_its_end)

    async def wait(self) -> ExecResult:
        return await self._process.wait()

    async def ended(self) -> ExecResult:
        return await self._process.ended()

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def signal(self, number: int) -> None:
        await self._process.signal(number)

    async def kill(self, grace_s: float = 2.0) -> None:
        await self._process.kill(grace_s)

    async def resize(self, size: TerminalSize) -> None:
        await self._process.resize(size)
