"""Commands and terminals that run on their own."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from pydantic import BaseModel, Field

from warren.interfaces.sandbox import Process
from warren.model.errors import InvalidRequest
from warren.model.operations import Chunk, TerminalSize
from warren.sessions import processes
from warren.sessions.operations.call import Call, Handler, Reply, Values
from warren.sessions.operations.commands import EVENTS, Encoding
from warren.sessions.output_events import Encoder, Events, process_events
from warren.sessions.schemas import (
    ExecView,
    KillBody,
    OutputView,
    ProcessBody,
    ProcessList,
    ProcessView,
    SignalBody,
    StdinBody,
    TerminalBody,
    data_of,
    exec_view,
    process_view,
)

_MOST: Final = 8 * 1024 * 1024
_LONGEST_WAIT_S: Final = 300.0
_KEPT_S: Final = 10.0  # what was written is there; if none of it was kept, waiting does not help


class OutputQuery(BaseModel):
    offset: Annotated[int, Field(ge=0, lt=1 << 62, description="`next_offset` of the answer before")] = 0
    limit: Annotated[int, Field(ge=1, le=_MOST, description="Bytes")] = 1024 * 1024
    wait_s: Annotated[float, Field(ge=0, le=_LONGEST_WAIT_S, description="If there is nothing: wait so long")] = 0
    encoding: Encoding = "text"


class WaitQuery(BaseModel):
    timeout_s: Annotated[float, Field(gt=0, le=_LONGEST_WAIT_S, description="Wait so long at most")] = 60


async def start_process(call: Call, body: ProcessBody) -> Values:
    """It runs until it ends, is killed, or its `timeout_s` is over, whoever is connected; also over a restart."""
    return process_view(await processes.start(call.sandbox, body.wanted(call.session), body.process_id))


async def list_processes(call: Call) -> Values:
    """Those that run, and those that ended and were not forgotten. Looking does not count as use."""
    return {"processes": [process_view(info) for info in await call.sandbox.processes()]}


async def get_process(call: Call) -> Values:
    return process_view(await processes.find(call.sandbox, call.process_id))


async def read_output(call: Call, query: OutputQuery) -> Values:
    """What is kept of it, or (`Accept: text/event-stream`) everything from there on, as it comes, until it ends.

    A gap between two chunks' offsets says that the output between them was not kept.
    """
    info = await processes.find(call.sandbox, call.process_id)
    process = await call.sandbox.process(call.process_id)
    offset, chunks = query.offset, list[Chunk]()
    if offset < info.bytes_total or (info.running and query.wait_s):
        try:
            async with asyncio.timeout(query.wait_s if offset >= info.bytes_total else _KEPT_S):
                chunks = await _read_chunks(process, offset, max(info.bytes_total, offset + 1), query.limit)
        except TimeoutError:
            pass
    shown = _show(chunks, query.encoding)
    if shown and shown[-1]["next_offset"] <= offset:
        # Less than a character: shown broken, or it would be asked for again and again.
        shown = _show(chunks, query.encoding, final=True)
    end = shown[-1]["next_offset"] if shown else offset
    still_runs = (await processes.find(call.sandbox, call.process_id)).running
    return {"chunks": shown, "next_offset": end, "running": still_runs}


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


def _show(chunks: list[Chunk], encoding: str, *, final: bool = False) -> list[Values]:
    encoder = Encoder(encoding)
    return [encoder.show(chunk, final=final and chunk is chunks[-1]) for chunk in chunks]


async def _read_chunks(process: Process, offset: int, until: int, limit: int) -> list[Chunk]:
    """Chunks from `offset` up to `until`, or to the limit."""
    chunks: list[Chunk] = []
    source = process.output(offset)
    try:
        async for chunk in source:
            room = limit - sum(len(taken.data) for taken in chunks)
            chunks.append(Chunk(chunk.stream, chunk.offset, chunk.data[:room]))
            if chunk.offset + len(chunk.data) >= until or len(chunk.data) >= room:
                break
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
    return chunks


async def wait_for_process(call: Call, query: WaitQuery) -> Reply:
    """The result, as for exec. 202 with the process as it is when it still runs after `timeout_s`."""
    result = await processes.ended_within(call.sandbox, call.process_id, query.timeout_s)
    if result is None:
        return Reply(await get_process(call), 202)
    return Reply(exec_view(result), 200)


async def write_stdin(call: Call, body: StdinBody) -> None:
    """`data` or `data_base64`; with `close` that was all. What comes after its end is ignored."""
    data = data_of(body.data, body.data_base64)
    await processes.feed(call.sandbox, call.process_id, data, close=body.close)


async def send_signal(call: Call, body: SignalBody) -> None:
    """To it and its process group; `kill` is what ends everything it started."""
    number = processes.signal_number(body.signal)
    await (await call.sandbox.process(call.process_id)).signal(number)


async def resize_terminal(call: Call, body: TerminalBody) -> None:
    await (await call.sandbox.process(call.process_id)).resize(TerminalSize(body.rows, body.columns))


async def kill_process(call: Call, body: KillBody | None) -> Values:
    """Answers when the whole tree of processes is gone, with how many had to be killed."""
    return exec_view(await processes.kill(call.sandbox, call.process_id, (body or KillBody()).grace_s))


async def forget_process(call: Call) -> None:
    await processes.forget(call.sandbox, call.process_id)


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
    Handler("forget_process", forget_process),
)
