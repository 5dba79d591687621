"""/api/sessions/{id}/processes: commands and terminals that run on their own."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from fastapi import Body, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from warren.http.context import (
    Accept,
    Context,
    Ctx,
    Encoding,
    ProcessId,
    Reader,
    Runner,
    SessionId,
    answer,
    data_of,
    new_router,
)
from warren.http.event_streams import EVENT_STREAM, Encoder, event, outputs, stream_events
from warren.http.routes.exec import unless_gone
from warren.http.schemas import (
    ExecView,
    KillBody,
    OutputView,
    ProcessBody,
    ProcessList,
    ProcessView,
    SignalBody,
    StdinBody,
    TerminalBody,
    end_view,
    exec_view,
    process_view,
)
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import InvalidRequest
from warren.model.operations import Chunk, TerminalSize
from warren.sessions import processes
from warren.sessions.processes import find

router = new_router(prefix="/api/sessions/{session_id}/processes", tags=["processes"])

_MOST: Final = 8 * 1024 * 1024
_LONGEST_WAIT_S: Final = 300.0
_KEPT_S: Final = 10.0  # what was written is there; if none of it was kept, waiting does not help


@router.post("", status_code=201, response_model=ProcessView, summary="Start a command in the background")
async def start_process(session_id: SessionId, body: ProcessBody, context: Ctx, tenant: Runner) -> Response:
    """It runs until it ends, is killed, or its `timeout_s` is over, whoever is connected; also over a restart."""
    async with context.sessions.using(tenant, session_id) as (session, sandbox):
        return answer(process_view(await processes.start(sandbox, body.wanted(session), body.process_id)), 201)


@router.get("", response_model=ProcessList, summary="List commands and terminals")
async def list_processes(session_id: SessionId, context: Ctx, tenant: Reader) -> Response:
    """Those that run, and those that ended and were not forgotten. Looking does not count as use."""
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        return answer({"processes": [process_view(info) for info in await sandbox.processes()]})


@router.get("/{process_id}", response_model=ProcessView, summary="Show a command or terminal")
async def get_process(session_id: SessionId, process_id: ProcessId, context: Ctx, tenant: Reader) -> Response:
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        return answer(process_view(await find(sandbox, process_id)))


@router.get(
    "/{process_id}/output",
    response_model=OutputView,
    summary="Read its output from an offset on",
    responses={200: {"content": {EVENT_STREAM: {}}}},
)
async def read_output(
    session_id: SessionId,
    process_id: ProcessId,
    request: Request,
    context: Ctx,
    tenant: Reader,
    offset: Annotated[int, Query(ge=0, lt=1 << 62, description="`next_offset` of the answer before")] = 0,
    limit: Annotated[int, Query(ge=1, le=_MOST, description="Bytes")] = 1024 * 1024,
    wait_s: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S, description="If there is nothing: wait so long")] = 0,
    encoding: Encoding = "text",
    accept: Accept = "",
    last_event_id: Annotated[str, Header(description="Where a broken stream goes on")] = "",
) -> Response:
    """What is kept of it, or (`Accept: text/event-stream`) everything from there on, as it comes, until it ends.

    A gap between two chunks' offsets says that the output between them was not kept.
    """
    Encoder(encoding)
    if EVENT_STREAM in accept:
        at = _event_offset(last_event_id) if last_event_id else offset
        return await stream_events(_follow(context, tenant, session_id, process_id, at, encoding))
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        return answer(await unless_gone(request, read_some(sandbox, process_id, offset, limit, wait_s, encoding)))


def _event_offset(last_event_id: str) -> int:
    if not last_event_id.isdecimal() or len(last_event_id) > 18:
        raise InvalidRequest(
            f"the Last-Event-ID {last_event_id[:80]!r} is not from this stream",
            remedy="send the `id` of the last event that came, or leave the header out",
        )
    return int(last_event_id)


async def _follow(
    context: Context, tenant: str, session_id: str, process_id: str, offset: int, encoding: str
) -> AsyncGenerator[bytes | None, None]:
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        process = await sandbox.process(process_id)
        yield event("started", {"process_id": process.id})
        async for shown in outputs(process, offset, encoding, context.keepalive_s):
            yield None if shown is None else event("output", shown, shown["next_offset"])
        yield event("result", end_view(await process.wait()))


async def read_some(
    sandbox: Sandbox, process_id: str, offset: int, limit: int, wait_s: float, encoding: str
) -> dict[str, Any]:
    info = await find(sandbox, process_id)
    process = await sandbox.process(process_id)
    chunks: list[Chunk] = []
    if offset < info.bytes_total or (info.running and wait_s):
        try:
            async with asyncio.timeout(wait_s if offset >= info.bytes_total else _KEPT_S):
                chunks = await _some(process, offset, max(info.bytes_total, offset + 1), limit)
        except TimeoutError:
            pass
    shown = _shown(chunks, encoding)
    if shown and shown[-1]["next_offset"] <= offset:
        # Less than a character: shown broken, or it would be asked for again and again.
        shown = _shown(chunks, encoding, final=True)
    end = shown[-1]["next_offset"] if shown else offset
    still = (await find(sandbox, process_id)).running
    return {"chunks": shown, "next_offset": end, "running": still}


def _shown(chunks: list[Chunk], encoding: str, *, final: bool = False) -> list[dict[str, Any]]:
    encoder = Encoder(encoding)
    return [encoder.show(chunk, final=final and chunk is chunks[-1]) for chunk in chunks]


async def _some(process: Process, offset: int, until: int, limit: int) -> list[Chunk]:
    """Chunks from `offset` up to what there was when we looked, or to the limit."""
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


@router.get(
    "/{process_id}/wait",
    response_model=ExecView,
    summary="Wait for its end",
    responses={202: {"model": ProcessView, "description": "It still runs"}},
)
async def wait_for_process(
    session_id: SessionId,
    process_id: ProcessId,
    request: Request,
    context: Ctx,
    tenant: Reader,
    timeout_s: Annotated[float, Query(gt=0, le=_LONGEST_WAIT_S, description="Wait so long at most")] = 60,
) -> Response:
    """The result, as for exec. 202 with the process as it is when it still runs after `timeout_s`."""
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        result = await unless_gone(request, processes.ended_within(sandbox, process_id, timeout_s))
        if result is None:
            return answer(process_view(await find(sandbox, process_id)), 202)
        return answer(exec_view(result))


@router.post("/{process_id}/stdin", status_code=204, summary="Write to its standard input")
async def write_stdin(
    session_id: SessionId, process_id: ProcessId, body: StdinBody, context: Ctx, tenant: Runner
) -> Response:
    """`data` or `data_base64`; with `close` that was all. What comes after its end is ignored."""
    data = data_of(body.data, body.data_base64)
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await processes.feed(sandbox, process_id, data, close=body.close)
    return Response(status_code=204)


@router.post("/{process_id}/signal", status_code=204, summary="Send it a signal")
async def send_signal(
    session_id: SessionId, process_id: ProcessId, body: SignalBody, context: Ctx, tenant: Runner
) -> Response:
    """To it and its process group; `kill` is what ends everything it started."""
    number = processes.signal_number(body.signal)
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await (await sandbox.process(process_id)).signal(number)
    return Response(status_code=204)


@router.post("/{process_id}/resize", status_code=204, summary="Change the size of its terminal")
async def resize_terminal(
    session_id: SessionId, process_id: ProcessId, body: TerminalBody, context: Ctx, tenant: Runner
) -> Response:
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        await (await sandbox.process(process_id)).resize(TerminalSize(body.rows, body.columns))
    return Response(status_code=204)


@router.post("/{process_id}/kill", response_model=ExecView, summary="End it and everything it started")
async def kill_process(
    session_id: SessionId,
    process_id: ProcessId,
    context: Ctx,
    tenant: Runner,
    body: Annotated[KillBody | None, Body()] = None,
) -> Response:
    """Answers when the whole tree of processes is gone, with how many had to be killed."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        return answer(exec_view(await processes.kill(sandbox, process_id, (body or KillBody()).grace_s)))


@router.delete("/{process_id}", status_code=204, summary="End it and forget its output")
async def forget_process(session_id: SessionId, process_id: ProcessId, context: Ctx, tenant: Runner) -> Response:
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await processes.forget(sandbox, process_id)
    return Response(status_code=204)
