"""Commands and terminals that run in the background."""

import asyncio
import contextlib
import signal as signals
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Final

from pydantic import BaseModel, Field

from warren.interfaces.sandbox import Process, Sandbox
from warren.kernel.answer_memory import SHORT_BYTES, give_back_room, make_room
from warren.kernel.pacing import Pace
from warren.model.code import check_not_reserved
from warren.model.errors import InvalidRequest, ProcessNotFound
from warren.model.operations import Chunk, Command, ProcessStatus, TerminalSize
from warren.model.session import Session
from warren.sessions.long_values import LongList
from warren.sessions.operations.call import Call, Handler, OperationReply, Values
from warren.sessions.operations.commands import EVENTS, Encoding
from warren.sessions.output_events import Encoder, Events, close_source, process_events
from warren.sessions.schemas import Body, CommandBody, ExecView, data_of, exec_view, one_of

_MAX_OUTPUT: Final = 8 * 1024 * 1024
_PIECE: Final = 64 * 1024  # longer chunks are cut
_FEW: Final = 100
_MAX_CHUNKS: Final = 10_000  # in one answer; the caller goes on from its end
_MAX_WAIT_S: Final = 300.0
_READ_S: Final = 10.0  # for output that was written before; if the agent has not kept it, waiting does not help


class TerminalBody(Body):
    rows: int = Field(24, ge=1, le=9999)
    columns: int = Field(80, ge=1, le=9999)


class ProcessBody(CommandBody):
    process_id: str = Field("", description="A name of your own for it; starting it twice is a conflict")
    terminal: TerminalBody | None = Field(None, description="Give it a terminal of this size")

    def to_command(self, session: Session | None = None) -> Command:
        command = super().to_command(session)
        size = TerminalSize(self.terminal.rows, self.terminal.columns) if self.terminal else None
        return replace(command, terminal=size)


class StdinBody(Body):
    data: str = Field("", description="Text")
    data_base64: str = Field("", description="The same for bytes that are no text")
    close: bool = Field(False, description="End of input after this")


class SignalBody(Body):
    signal: Annotated[str | int, one_of("a name or a whole number")] = Field(
        description="Name or number", examples=["TERM"]
    )


class KillBody(Body):
    grace_s: float = Field(2.0, ge=0, le=600, allow_inf_nan=False, description="Time between TERM and KILL")


class ProcessView(BaseModel):
    process_id: str
    command: str
    user: str
    running: bool
    terminal: bool
    bytes_total: int
    truncated: bool
    started_s_ago: float
    exit_code: int | None
    reason: str | None
    background: int


class ProcessList(BaseModel):
    processes: list[ProcessView]


class KilledView(BaseModel):
    killed: int = Field(description="Processes that were ended")


class ChunkView(BaseModel):
    stream: str = Field(description="stdout, stderr or terminal")
    offset: int = Field(description="Of its first byte in all of the output")
    next_offset: int
    encoding: str
    data: str


class OutputView(BaseModel):
    chunks: list[ChunkView]
    next_offset: int
    running: bool


class OutputQuery(BaseModel):
    offset: Annotated[int, Field(ge=0, lt=1 << 62, description="`next_offset` of the answer before")] = 0
    limit: Annotated[int, Field(ge=1, le=_MAX_OUTPUT, description="Bytes")] = 1024 * 1024
    wait_s: Annotated[float, Field(ge=0, le=_MAX_WAIT_S, description="If there is nothing: wait so long")] = 0
    encoding: Encoding = "text"


class WaitQuery(BaseModel):
    timeout_s: Annotated[float, Field(gt=0, le=_MAX_WAIT_S, description="Wait so long at most")] = 60


async def start_process(call: Call, body: ProcessBody) -> Values:
    """The process runs until it ends, is killed, or reaches `timeout_s`: without a connection, also over a restart."""
    check_not_reserved(body.process_id)
    process = await call.sandbox.start(body.to_command(call.session), process_id=body.process_id)
    return process_view(await _find(call.sandbox, process.id))


async def list_processes(call: Call) -> Values:
    """Running processes, and ended ones that were not forgotten. Looking does not count as use."""
    shown = [process_view(info) for info in await call.sandbox.processes()]
    return {"processes": shown if len(shown) <= _FEW else LongList(shown)}


async def get_process(call: Call) -> Values:
    return process_view(await _find(call.sandbox, call.process_id))


async def read_output(call: Call, query: OutputQuery) -> Values:
    """What is kept of it, or (`Accept: text/event-stream`) everything from there on, as it comes, until it ends.

    A gap between two chunks' offsets says that the output between them was not kept.
    """
    info = await _find(call.sandbox, call.process_id)
    process = await call.sandbox.process(call.process_id)
    offset, chunks = query.offset, list[Chunk]()
    if offset < info.bytes_total or (info.running and query.wait_s):
        limit = await _limit_to_room(min(query.limit, max(info.bytes_total - offset, SHORT_BYTES)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(query.wait_s if offset >= info.bytes_total else _READ_S):
                await _read_chunks(process, offset, max(info.bytes_total, offset + 1), limit, chunks)
        if limit > SHORT_BYTES:
            give_back_room(limit - sum(len(chunk.data) for chunk in chunks))
    end = await _end_of(chunks, query)
    final = bool(chunks) and end <= offset
    if final:
        # Only a part of a character came. It is shown as a broken one, else the caller would ask for it for ever.
        end = chunks[-1].offset + len(chunks[-1].data)
    shown = _show(chunks, query.encoding, final=final)
    still_runs = (await _find(call.sandbox, call.process_id)).running
    is_long = len(chunks) > _FEW or end - offset > _PIECE
    return {"chunks": LongList(shown) if is_long else list(shown), "next_offset": end, "running": still_runs}


async def _limit_to_room(limit: int) -> int:
    return limit if limit <= SHORT_BYTES or await make_room(limit) else SHORT_BYTES


async def follow_output(call: Call, query: OutputQuery) -> Events:
    offset = _event_offset(call.last_event_id) if call.last_event_id else query.offset
    process = await call.sandbox.process(call.process_id)
    async for event in process_events(process, offset, query.encoding, call.context.keepalive_s):
        yield event


def _event_offset(last_event_id: str) -> int:
    if not last_event_id.isdecimal() or len(last_event_id) > 18:
        raise InvalidRequest(
            f"the Last-Event-ID {last_event_id[:80]!r} is not from this stream",
            remedy="send the `id` of the last event that came, or leave the header out",
        )
    return int(last_event_id)


async def _end_of(chunks: Sequence[Chunk], query: OutputQuery) -> int:
    """Returns where the next answer begins: before the bytes of a character that is not complete yet."""
    end, encoder, pace = query.offset, Encoder(query.encoding), Pace()
    for chunk in chunks:
        end = encoder.show(chunk)["next_offset"]
        await pace.give_way()
    return end


def _show(chunks: Sequence[Chunk], encoding: str, *, final: bool) -> Iterator[Values]:
    encoder = Encoder(encoding)
    for chunk in chunks:
        yield encoder.show(chunk, final=final and chunk is chunks[-1])


async def _read_chunks(process: Process, offset: int, until: int, limit: int, chunks: list[Chunk]) -> None:
    """Adds chunks from `offset` up to `until`, or to the limit."""
    room, source, pace = limit, process.output(offset), Pace()
    try:
        async for chunk in source:
            for at in range(0, min(len(chunk.data), room), _PIECE):
                piece = chunk.data[at : min(at + _PIECE, room)]
                chunks.append(Chunk(chunk.stream, chunk.offset + at, piece))
            room -= len(chunk.data)
            if chunk.offset + len(chunk.data) >= until or room <= 0 or len(chunks) >= _MAX_CHUNKS:
                break
            await pace.give_way()
    finally:
        await close_source(source)


async def wait_for_process(call: Call, query: WaitQuery) -> OperationReply:
    """The result, as for exec. 202 with the process as it is when it still runs after `timeout_s`."""
    process = await call.sandbox.process(call.process_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(query.timeout_s):
            return OperationReply(exec_view(await process.wait()), 200)
    return OperationReply(await get_process(call), 202)


async def write_stdin(call: Call, body: StdinBody) -> None:
    """`data` or `data_base64`; with `close` that was all. What comes after its end is ignored."""
    data = data_of(body.data, body.data_base64)
    process = await call.sandbox.process(call.process_id)
    if data:
        await process.write(data)
    if body.close:
        await process.close_stdin()


async def send_signal(call: Call, body: SignalBody) -> None:
    """To it and its process group; `kill` is what ends everything it started."""
    number = signal_number(body.signal)
    await (await call.sandbox.process(call.process_id)).signal(number)


async def resize_terminal(call: Call, body: TerminalBody) -> None:
    size = TerminalSize(body.rows, body.columns)
    await (await call.sandbox.process(call.process_id)).resize(size)
    call.context.terminal_viewers.resized(call.session_id, call.process_id, size)


async def kill_process(call: Call, body: KillBody | None) -> Values:
    """Answers when the whole tree of processes is gone, with how many had to be killed."""
    process = await call.sandbox.process(call.process_id)
    await process.kill((body or KillBody()).grace_s)
    return exec_view(await process.wait())


async def kill_all(call: Call) -> Values:
    """Ends everything but the sandbox itself, at once and without grace: what a fork bomb leaves, too.

    Files, session and the output of commands stay; file operations under way fail.
    """
    return {"killed": await call.sandbox.kill_all()}


async def forget_process(call: Call) -> None:
    info = await _find(call.sandbox, call.process_id)
    if info.running or info.background:
        process = await call.sandbox.process(call.process_id)
        await process.kill()
        await process.ended()
    await call.sandbox.forget(call.process_id)


async def _find(sandbox: Sandbox, process_id: str) -> ProcessStatus:
    for info in await sandbox.processes():
        if info.id == process_id:
            return info
    raise ProcessNotFound(f"there is no process {process_id!r}")


def signal_number(name: str | int) -> int:
    if isinstance(name, int):
        if not 0 < name <= 64:
            raise InvalidRequest(f"there is no signal {name}")
        return name
    try:
        return int(signals.Signals[f"SIG{name.upper().removeprefix('SIG')}"])
    except KeyError:
        raise InvalidRequest(
            f"there is no signal {name!r}", remedy="TERM, INT, KILL, HUP, USR1 … or a number"
        ) from None


def process_view(info: ProcessStatus) -> Values:
    values = asdict(info)
    del values["pid"]
    return {"process_id": values.pop("id"), **values}


HANDLERS = (
    Handler("start_process", start_process, body=ProcessBody, result=ProcessView),
    Handler("list_processes", list_processes, result=ProcessList),
    Handler("get_process", get_process, result=ProcessView),
    Handler(
        "read_output",
        read_output,
        follow_output,
        query=OutputQuery,
        result=OutputView,
        other_results={200: EVENTS},
        headers=("accept", "last_event_id"),
    ),
    Handler(
        "wait_for_process",
        wait_for_process,
        query=WaitQuery,
        result=ExecView,
        other_results={202: {"model": ProcessView, "description": "It still runs"}},
    ),
    Handler("write_stdin", write_stdin, body=StdinBody),
    Handler("send_signal", send_signal, body=SignalBody),
    Handler("resize_terminal", resize_terminal, body=TerminalBody),
    Handler("kill_process", kill_process, body=KillBody, result=ExecView),
    Handler("kill_all", kill_all, result=KilledView),
    Handler("forget_process", forget_process),
)
