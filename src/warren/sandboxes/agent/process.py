"""Runs commands in a sandbox through its agent.

`Commands` holds what all processes of a sandbox share: the link, which commands run at the same time, and one
channel per process for its stdin. `AgentProcess` is only a handle with an id; the process lives in the sandbox.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

import anyio

from warren.kernel.answer_memory import SHORT_BYTES, give_back_room, make_room
from warren.kernel.pacing import Pace
from warren.model.command_output import CommandOutput
from warren.model.errors import InvalidRequest, ProcessNotFound, ProtocolError, SandboxLost
from warren.model.operations import (
    MAX_KEEP_BYTES,
    Chunk,
    Command,
    ExecResult,
    OutputStream,
    ProcessStatus,
    TerminalSize,
    check_process_id,
    new_process_id,
)
from warren.sandboxes.agent.channel import AgentChannel, AgentReply, Output
from warren.sandboxes.agent.command_result import (
    REMEMBERED,
    OomTracker,
    base_env_fields,
    drop_oldest,
    exec_result,
    lost_result,
    process_info,
    start_payload,
)
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.wire import (
    STDIN_WINDOW,
    ControlOp,
    Flag,
    Records,
    StreamNumber,
    WireFields,
    WireRequest,
    WireResponse,
    WireTag,
    fields,
)

NO_REPLAY = 1 << 63
_LEAST_KEPT = 1 << 20  # the agent keeps at least this much output of a command that can be followed
_SLACK_BYTES = 64 * 1024
_PACED = 100  # pieces of output that are taken in one go
_MAX_GAPS = 10_000  # the agent keeps the head and the tail of an output: there is one gap, seldom more
_HANG_S = 30.0  # more than WAIT_S of answer_memory: waiting for room is no silence of the agent
_STDIN, _DEFER, _ONCE = int(Flag.STDIN), int(Flag.DEFER), int(Flag.ONCE)
_STREAMS = {
    int(StreamNumber.STDOUT): OutputStream.STDOUT,
    int(StreamNumber.STDERR): OutputStream.STDERR,
    int(StreamNumber.TERMINAL): OutputStream.TERMINAL,
}


class Commands:
    def __init__(
        self,
        link: AgentLink,
        env: Mapping[str, str],
        oom_kills: Callable[[], int],
        frozen: Callable[[], bool] = lambda: False,
    ) -> None:
        self._link = link
        self.frozen = frozen
        self.paused_s = 0.0  # in all, since it was connected
        self._env = dict(env)
        self._env_fields = base_env_fields(env)
        self._oom = OomTracker(oom_kills)
        self._keep: dict[str, int] = {}
        self._stdin: dict[str, StdinPipe] = {}
        self._waiting_channels: dict[str, AgentChannel] = {}  # by process id, until the first reader takes them

    async def exec(self, command: Command, stdin: bytes | AsyncIterable[bytes], process_id: str = "") -> ExecResult:
        once = 0 if process_id else _ONCE
        process_id = check_process_id(process_id) if process_id else new_process_id()
        try:
            self._oom.begin(process_id)
            return await self._run(command, stdin, process_id, once)
        except SandboxLost as exc:
            return lost_result(exc.message, process_id)
        finally:
            self._oom.forget(process_id)

    async def _run(
        self, command: Command, stdin: bytes | AsyncIterable[bytes], process_id: str, once: int
    ) -> ExecResult:
        has_stdin = not isinstance(stdin, bytes) or bool(stdin)
        flags = _DEFER | once | (_STDIN if has_stdin else 0)
        channel = await self._link.open(WireRequest.START, self._start_payload(command, process_id, flags))
        feeder: asyncio.Task[None] | None = None
        timer: HangTimer | None = None
        try:
            if has_stdin:
                feeder = await self._feed(channel, stdin, process_id)
            if command.timeout_s is not None:
                timer = HangTimer(channel, command.timeout_s + command.grace_s + _HANG_S, self)
            try:
                end, outputs = await _collect(channel, command.keep_bytes)
            finally:
                if timer is not None:
                    timer.cancel()
        except asyncio.CancelledError:
            await self._end_cancelled(channel, process_id, command.grace_s)
            raise
        finally:
            if feeder is not None:
                await _stop(feeder)
            channel.close()
        if feeder is not None and not feeder.cancelled() and (failure := feeder.exception()) is not None:
            raise failure
        return self._result(channel, end, outputs, process_id)

    async def _feed(
        self, channel: AgentChannel, stdin: bytes | AsyncIterable[bytes], process_id: str
    ) -> asyncio.Task[None] | None:
        """Sends an input that fits the window at once, and a larger one in a task beside the reading of the output."""
        if isinstance(stdin, bytes) and len(stdin) <= STDIN_WINDOW:
            await channel.send(stdin)
            channel.send_eof()
            return None

        def kill_on_failure(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self._post_kill(process_id)

        feeder = asyncio.create_task(send_all(channel, stdin), name=f"stdin of {process_id}")
        feeder.add_done_callback(kill_on_failure)
        return feeder

    def note_pause(self, paused_s: float) -> None:
        self.paused_s += max(0.0, paused_s)

    def _start_payload(self, command: Command, process_id: str, flags: int) -> bytes:
        env = base_env_fields({**self._env, **command.base_env}) if command.base_env else self._env_fields
        return start_payload(command, process_id, env, flags)

    def _post_kill(self, process_id: str, grace_s: float = 0) -> None:
        grace = (WireTag.GRACE_MS, round(grace_s * 1000))
        self._link.post(WireRequest.CONTROL, _control_payload(process_id, ControlOp.KILL, grace))

    async def _end_cancelled(self, channel: AgentChannel, process_id: str, grace_s: float) -> None:
        """Kills the command and waits, for a limited time, until its processes have ended."""
        # Shielded, so that the processes end although the caller was cancelled; bounded, because the agent may hang.
        with anyio.move_on_after(grace_s + 10, shield=True), contextlib.suppress(SandboxLost, ProtocolError):
            self._post_kill(process_id, grace_s)
            await channel.last()

    def _result(self, channel: AgentChannel, end: WireFields, outputs: CommandOutput, process_id: str) -> ExecResult:
        try:
            return exec_result(end, outputs, process_id, self._oom)
        except ProtocolError as exc:
            raise channel.violation(exc.message) from None

    async def start(self, command: Command, process_id: str, *, follow: bool = False) -> "AgentProcess":
        process_id = check_process_id(process_id) if process_id else new_process_id()
        flags = int(Flag.LOSSLESS | (Flag.STDIN if command.stdin else 0))
        channel = await self._link.open(WireRequest.START, self._start_payload(command, process_id, flags))
        try:
            pid = await _wait_for_start(channel)
            if self._oom.running >= REMEMBERED:
                raise channel.violation("more commands that run than an agent can have")
        except BaseException as exc:
            channel.close()
            # The agent may have started the command, and the caller gets no handle to end it.
            if isinstance(exc, asyncio.CancelledError):
                self._post_kill(process_id)
            raise
        if follow:
            self._waiting_channels[process_id] = channel
        else:
            channel.close()
        self._oom.begin(process_id)
        self._keep[process_id] = command.keep_bytes
        drop_oldest(self._keep)
        return AgentProcess(self, process_id, pid)

    async def find(self, process_id: str) -> "AgentProcess":
        channel = await self._link.open(
            WireRequest.ATTACH, _attach_payload(check_process_id(process_id), NO_REPLAY, Flag(0)), discard_output=True
        )
        try:
            await channel.last()
        finally:
            channel.close()
        return AgentProcess(self, process_id)

    async def all(self) -> Sequence[ProcessStatus]:
        channel = await self._link.open(WireRequest.LIST)
        found = list[ProcessStatus]()
        try:
            async for entry in read_records(channel):
                found.append(process_info(entry))
                if len(found) > REMEMBERED:
                    raise ProtocolError(f"more than {REMEMBERED} processes in a list")
        except ProtocolError as exc:
            raise channel.violation(exc.message) from None
        finally:
            channel.close()
        self._oom.adopt(found)
        return found

    async def control(self, process_id: str, op: ControlOp, *extra: tuple[WireTag, int]) -> None:
        channel = await self._link.open(WireRequest.CONTROL, _control_payload(process_id, op, *extra))
        try:
            await channel.last()
        finally:
            channel.close()

    async def forget(self, process_id: str) -> None:
        await self.control(check_process_id(process_id), ControlOp.FORGET)
        self._keep.pop(process_id, None)
        self._oom.forget(process_id)

    async def wait(self, process_id: str) -> ExecResult:
        """Waits for the end without reading output, and then fetches the output that the agent kept."""
        if (held := self._waiting_channels.pop(process_id, None)) is not None:
            held.close()
        try:
            channel, end, _ = await self._wait_for_end(process_id, NO_REPLAY)
            outputs = CommandOutput()
            with contextlib.suppress(ProcessNotFound):  # another caller has forgotten it: its output is gone
                channel, end, outputs = await self._wait_for_end(process_id, 0)
        except SandboxLost as exc:
            return lost_result(exc.message, process_id)
        return self._result(channel, end, outputs, process_id)

    async def ended(self, process_id: str) -> ExecResult:
        try:
            channel, end, _ = await self._wait_for_end(process_id, NO_REPLAY)
        except SandboxLost as exc:
            return lost_result(exc.message, process_id)
        return self._result_alone(channel, end, process_id)

    def _result_alone(self, channel: AgentChannel, end: WireFields, process_id: str) -> ExecResult:
        result = self._result(channel, end, CommandOutput(), process_id)
        return replace(result, truncated=bool(end.number(WireTag.TRUNCATED)))

    async def _wait_for_end(self, process_id: str, offset: int) -> tuple[AgentChannel, WireFields, CommandOutput]:
        channel = await self._link.open(WireRequest.ATTACH, _attach_payload(process_id, offset, Flag.FOLLOW))
        try:
            keep = 0 if offset == NO_REPLAY else max(self._keep.get(process_id, MAX_KEEP_BYTES), _LEAST_KEPT)
            return channel, *await _collect(channel, keep)
        finally:
            channel.close()

    async def output(self, process_id: str, offset: int, at_end: Callable[[ExecResult], None]) -> AsyncIterator[Chunk]:
        held = self._waiting_channels.pop(process_id, None) if offset == 0 else None
        channel = held or await self._link.open(
            WireRequest.ATTACH, _attach_payload(process_id, offset, Flag.FOLLOW | Flag.LOSSLESS)
        )
        at = offset
        try:
            while isinstance(item := await channel.take(), Output):
                if item.offset < at:
                    raise channel.violation("output that goes backwards")
                at = item.offset + len(item.data)
                yield Chunk(_STREAMS[item.stream], item.offset, item.data)
            if isinstance(item, AgentReply) and item.kind == WireResponse.EXIT:
                at_end(self._result_alone(channel, item.fields, process_id))
        finally:
            channel.close()

    async def stdin(self, process_id: str) -> "StdinPipe":
        pipe = self._stdin.get(process_id)
        if pipe is None or pipe.channel.ended:
            self._stdin = {key: held for key, held in self._stdin.items() if not held.channel.ended}
            payload = _attach_payload(process_id, NO_REPLAY, Flag.FOLLOW)
            channel = await self._link.open(WireRequest.ATTACH, payload, discard_output=True)
            # Another writer may have opened one while this one waited.
            pipe = self._stdin.get(process_id)
            if pipe is not None and not pipe.channel.ended:
                channel.close()
            else:
                pipe = self._stdin[process_id] = StdinPipe(channel)
        return pipe


class StdinPipe:
    """The stdin of a process; several writers take turns."""

    def __init__(self, channel: AgentChannel) -> None:
        self.channel = channel
        self._turn = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        async with self._turn:
            if not await self.channel.send(data):
                await self._raise_if_lost()

    async def close(self) -> None:
        async with self._turn:
            if self.channel.ended:
                await self._raise_if_lost()
            self.channel.send_eof()

    async def _raise_if_lost(self) -> None:
        """Raises if the process is unknown or the sandbox is lost. The end of the command is not an error."""
        await self.channel.last()


class AgentProcess:
    def __init__(self, commands: Commands, process_id: str, pid: int = 0) -> None:
        self._commands = commands
        self._id = process_id
        self._pid = pid
        self._result: ExecResult | None = None  # once somebody has read all of the output

    def __repr__(self) -> str:
        return f"<AgentProcess {self._id}>"

    @property
    def id(self) -> str:
        return self._id

    @property
    def pid(self) -> int:
        return self._pid

    def output(self, offset: int = 0) -> AsyncIterator[Chunk]:
        if not 0 <= offset < NO_REPLAY:
            raise InvalidRequest(f"an offset of {offset} cannot be")
        return self._commands.output(self._id, offset, self._note_end)

    def _note_end(self, result: ExecResult) -> None:
        self._result = result

    async def wait(self) -> ExecResult:
        return await self._commands.wait(self._id)

    async def ended(self) -> ExecResult:
        return self._result or await self._commands.ended(self._id)

    async def write(self, data: bytes) -> None:
        await (await self._commands.stdin(self._id)).write(data)

    async def close_stdin(self) -> None:
        await (await self._commands.stdin(self._id)).close()

    async def signal(self, number: int) -> None:
        if not 0 < number <= 64:
            raise InvalidRequest(f"there is no signal {number}")
        await self._commands.control(self._id, ControlOp.SIGNAL, (WireTag.SIGNAL, number))

    async def kill(self, grace_s: float = 2.0) -> None:
        if not 0 <= grace_s <= 600:
            raise InvalidRequest(f"a grace time of {grace_s} s cannot be: 0 to 600")
        await self._commands.control(self._id, ControlOp.KILL, (WireTag.GRACE_MS, round(grace_s * 1000)))

    async def resize(self, size: TerminalSize) -> None:
        await self._commands.control(
            self._id, ControlOp.RESIZE, (WireTag.ROWS, size.rows), (WireTag.COLS, size.columns)
        )


async def send_all(channel: AgentChannel, source: bytes | AsyncIterable[bytes]) -> None:
    """Sends everything the source gives, then EOF. Stops early when the channel ends."""
    if isinstance(source, bytes):
        if await channel.send(source):
            channel.send_eof()
        return
    try:
        async for part in source:
            if not await channel.send(part):
                return
        channel.send_eof()
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def _collect(channel: AgentChannel, keep: int) -> tuple[WireFields, CommandOutput]:
    """Returns the end and all the output that the agent kept, and rejects more than it was told to keep.

    The agent holds the output until it is taken. If the server has no room for a long one, only its beginning is kept.
    """
    outputs, pace, most = CommandOutput(), Pace(), keep + _SLACK_BYTES
    at = size = count = gaps = 0
    has_room: bool | None = None
    while True:
        item = await channel.take()
        if type(item) is Output:
            _, offset, data = item
            size += len(data)
            if offset < at or size > most:
                raise channel.violation("output that goes backwards, or more than was to be kept")
            if offset > at:
                gaps += 1
                if gaps > _MAX_GAPS:
                    raise channel.violation("output with more gaps than anybody can read")
            at = offset + len(data)
            if size > SHORT_BYTES and has_room is None:
                has_room = await make_room(most)
            if has_room is not False:
                outputs.add(*item)
            count += 1
            if not count % _PACED:
                await pace.give_way()
        elif type(item) is AgentReply and item.kind == WireResponse.EXIT:
            if has_room:
                give_back_room(most - size)
            return item.fields, outputs
        elif type(item) is AgentReply and item.kind == WireResponse.DONE:
            raise channel.violation("a command that is done without an end")


async def read_records(channel: AgentChannel) -> AsyncIterator[WireFields]:
    """Yields the records of a channel that carries nothing else, in turns with other work."""
    records, pace = Records(), Pace()
    while isinstance(data := await channel.take(), bytes):
        records.add(data)
        while (found := next_record(channel, records)) is not None:
            yield found
            await pace.give_way()
    if len(records):
        raise channel.violation("a list that ends in the middle of a record")


def next_record(channel: AgentChannel, records: Records) -> WireFields | None:
    try:
        return records.next()
    except ProtocolError as exc:
        raise channel.violation(exc.message) from None


class HangTimer:
    """Gives up a command that the agent should have ended. Time in which the sandbox is frozen does not count."""

    __slots__ = ("_channel", "_commands", "_due", "_handle", "_loop")

    def __init__(self, channel: AgentChannel, after_s: float, commands: Commands) -> None:
        self._channel = channel
        self._commands = commands
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + after_s - commands.paused_s
        self._handle = self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        is_frozen = self._commands.frozen()
        left_s = self._due + self._commands.paused_s - self._loop.time()
        if is_frozen or left_s > 0:
            self._handle = self._loop.call_later(max(left_s, 0.0) + (_HANG_S if is_frozen else 0.0), self._look)
        else:
            self._channel.give_up(
                SandboxLost("the agent did not end the command after its time-out: the sandbox hangs")
            )

    def cancel(self) -> None:
        self._handle.cancel()


async def _wait_for_start(channel: AgentChannel) -> int:
    """Returns the pid."""
    reply = await channel.take()
    if not isinstance(reply, AgentReply):
        raise channel.violation("output of a command that has not started")
    try:
        return reply.fields.number(WireTag.PID)
    except ProtocolError as exc:
        raise channel.violation(exc.message) from None


async def _stop(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])


def _attach_payload(process_id: str, offset: int, flags: Flag) -> bytes:
    return fields([(WireTag.ID, process_id), (WireTag.OFFSET, offset), (WireTag.FLAGS, int(flags))])


def _control_payload(process_id: str, op: ControlOp, *extra: tuple[WireTag, int]) -> bytes:
    return fields([(WireTag.ID, process_id), (WireTag.OP, int(op)), *extra])
