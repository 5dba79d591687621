"""Commands and terminals that E2B's clients start and follow.

A client starts a command and reads its output from the answer. The command runs on when the client leaves; this client
and others find it again by its pid. A command is forgotten when it has ended.
"""

import asyncio
import binascii
import contextlib
import os
import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import anyio
from starlette.responses import Response

from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.connect import Message, deadline_exceeded, server_stream, timeout_of
from warren.http.e2b.control.sandboxes import template_of
from warren.http.e2b.envd.places import called_user
from warren.http.e2b.envd.process_control import find_process, process_not_found
from warren.http.e2b.envd.process_messages import Config, OfProcess, StartRequest, terminal_size
from warren.http.e2b.envd.started import StartedCommand, StartedCommands
from warren.http.e2b.errors import ConnectError
from warren.http.e2b.template_defaults import usual_user
from warren.http.e2b.users import SandboxUser, resolve
from warren.interfaces.sandbox import Process, Sandbox
from warren.kernel.shielding import run_shielded
from warren.model.e2b import sandbox_env
from warren.model.errors import CommandRefused, InvalidPath, SandboxLost, WarrenError
from warren.model.operations import Chunk, Command, ExecResult, OutputStream, Reason
from warren.model.session import Session
from warren.sessions.output_events import close_source
from warren.sessions.refused_process import RefusedProcess
from warren.sessions.validation import validated

_PREFIX: Final = "e2b_"  # of the ids of commands that this wire has started
_PIECE: Final = 32 * 1024
_LONGEST_S: Final = 7 * 86400.0
_SHELLS: Final = frozenset({"bash", "/bin/bash", "/usr/bin/bash", "sh", "/bin/sh", "/usr/bin/sh"})
_KEEPALIVE: Final[Message] = {"event": {"keepalive": {}}}
_DATA: Final = {
    OutputStream.STDOUT: b'{"event":{"data":{"stdout":"',
    OutputStream.STDERR: b'{"event":{"data":{"stderr":"',
    OutputStream.TERMINAL: b'{"event":{"data":{"pty":"',
}
_SIGNAL_TEXTS: Final = {
    1: "hangup",
    2: "interrupt",
    3: "quit",
    4: "illegal instruction",
    5: "trace/breakpoint trap",
    6: "aborted",
    7: "bus error",
    8: "floating point exception",
    9: "killed",
    10: "user defined signal 1",
    11: "segmentation fault",
    12: "user defined signal 2",
    13: "broken pipe",
    14: "alarm clock",
    15: "terminated",
}


async def _start(call: E2bCall, message: Message) -> AsyncIterator[Message | bytes]:
    request = validated(StartRequest, message)
    async with call.sandbox() as (session, sandbox):
        begun: list[Process] = []
        try:
            await run_shielded(_start_command(call, session, sandbox, request, begun))
        except asyncio.CancelledError:  # the client has left, and the command runs on
            for process in begun:
                with _reading(call, sandbox, process), anyio.CancelScope(shield=True):
                    output = process.output()
                    await _leave(output, await ask_for_output(output))
            raise
        (process,) = begun
        with _reading(call, sandbox, process):
            del message, request  # they may be long, and the command may run for days
            async for item in _events(process, process.pid, 0):
                yield item


async def _start_command(
    call: E2bCall, session: Session, sandbox: Sandbox, request: StartRequest, begun: list[Process]
) -> None:
    """Starts the command and adds its process to `begun`, where the caller finds it even if it was cancelled."""
    usual = await usual_user(call, session)
    user = await resolve(sandbox, called_user(call) or usual)
    cwd = _absolute(request.process.cwd or "", user) if request.process.cwd or not session.image else ""
    command = _command(call, session, request, user, cwd)
    try:
        process = await sandbox.start(command, process_id=_PREFIX + os.urandom(6).hex(), follow=True)
    except InvalidPath as exc:
        if exc.message.endswith("No such file or directory"):
            raise ConnectError("invalid_argument", f"cwd '{cwd}' does not exist") from None
        raise
    if isinstance(process, RefusedProcess):
        refusal = await process.wait()
        raise CommandRefused(refusal.stderr.strip(), remedy="ask for another command, or another policy")
    call.started.add(session.id, process.id, _record(request))
    begun.append(process)


def _command(call: E2bCall, session: Session, request: StartRequest, user: SandboxUser, cwd: str) -> Command:
    config, timeout_s = request.process, timeout_of(call)
    env = {
        **user.env,
        **session.env,
        **sandbox_env(session.id, template_of(call, session)),
        **config.envs,
    }
    return Command(
        argv=(config.cmd, *config.args),
        env=env,
        cwd=cwd,
        user=user.name,
        timeout_s=None if timeout_s is None else min(timeout_s, _LONGEST_S),
        grace_s=0.0,
        carry_state=False,
        terminal=None if request.pty is None else terminal_size(request.pty),
        judged_as=_line_of(config),
        stdin=request.takes_input,
        until_closed=True,
    )


def _record(request: StartRequest) -> StartedCommand:
    config = request.process
    texts = (config.cmd, *config.args, *config.envs, *config.envs.values(), config.cwd or "", request.tag or "")
    size = sum(len(text) for text in texts) + 100 * len(texts)
    return StartedCommand(config.model_dump(exclude_none=True), request.tag, request.takes_input, size)


def _line_of(config: Config) -> str:
    """Returns the line that a shell is to run, for policies and the audit record; empty for any other program."""
    if config.cmd in _SHELLS and len(config.args) > 1 and config.args[:-1] in (["-l", "-c"], ["-lc"], ["-c"]):
        return config.args[-1]
    return ""


def _absolute(path: str, user: SandboxUser) -> str:
    if path == "~" or path.startswith("~/"):
        path = user.home + path[1:]
    return posixpath.normpath(posixpath.join(user.home, path))


async def _connect(call: E2bCall, message: Message) -> AsyncIterator[Message | bytes]:
    """Yields the output from now on."""
    selector = validated(OfProcess, message).process
    async with call.sandbox(counts=False) as (_, sandbox):
        await call.sessions.uses.record(call.tenant, call.session_id)
        info = await find_process(call, sandbox, selector)
        with process_not_found(info):
            process = await sandbox.process(info.id)
            with _reading(call, sandbox, process):
                async for item in _events(process, info.pid, info.bytes_total):
                    yield item


@contextlib.contextmanager
def _reading(call: E2bCall, sandbox: Sandbox, process: Process) -> Iterator[None]:
    """Keeps the command from being forgotten during the block. Its last reader has it forgotten when it has ended."""
    started, session_id, process_id = call.started, call.session_id, process.id
    started.begin_reading(session_id, process_id)
    try:
        yield
    finally:
        started.end_reading(session_id, process_id)
        is_ours = process_id.startswith(_PREFIX)
        if is_ours and not started.is_read(session_id, process_id) and started.begin_awaiting(session_id, process_id):
            forgetting = _forget_at_end(started, session_id, sandbox, process)
            call.sessions.metering.follow(forgetting, f"forgetting {process_id}")


async def _forget_at_end(started: StartedCommands, session_id: str, sandbox: Sandbox, process: Process) -> None:
    process_id = process.id
    try:
        await process.ended()
        if not started.is_read(session_id, process_id):
            started.remove(session_id, process_id)
            await sandbox.forget(process_id)
    except WarrenError:  # it was forgotten by somebody else, or went with its sandbox
        started.remove(session_id, process_id)
    finally:
        started.end_awaiting(session_id, process_id)


async def _events(process: Process, pid: int, offset: int) -> AsyncIterator[Message | bytes]:
    """Reads before it says that the command has started: the client misses nothing that comes after that, and a command
    that waits for its first reader does not wait for one who leaves at once."""
    output = process.output(offset)
    reading = await ask_for_output(output)
    try:
        yield {"event": {"start": {"pid": pid}}}
        chunk = await reading
        while chunk is not None:
            for piece in _pieces(chunk):
                yield piece
            chunk = await anext(output, None)
    finally:
        await _leave(output, reading)
    result = await process.ended()
    if result.reason is Reason.SANDBOX_LOST:
        raise SandboxLost(result.stderr or "the sandbox is gone")
    if result.reason is Reason.TIMEOUT:
        raise deadline_exceeded()
    yield {"event": {"end": _end_values(result)}}


async def ask_for_output(output: AsyncIterator[Chunk]) -> "asyncio.Future[Chunk | None]":
    """Returns when the sandbox has been asked for the output; the first of it is the result. A reader that nobody
    waits for would hold the command up for ever, so a client that leaves at this moment takes it along."""
    reading = asyncio.ensure_future(anext(output, None))
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await _leave(output, reading)
        raise
    return reading


async def _leave(output: AsyncIterator[Chunk], reading: "asyncio.Future[Chunk | None]") -> None:
    reading.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait([reading])
    await close_source(output)


def _pieces(chunk: Chunk) -> list[bytes]:
    head, data = _DATA[chunk.stream], chunk.data
    return [
        b"".join((head, binascii.b2a_base64(data[at : at + _PIECE], newline=False), b'"}}}'))
        for at in range(0, len(data), _PIECE)
    ]


def _end_values(result: ExecResult) -> dict[str, Any]:
    if result.signal is None:
        status = f"exit status {result.exit_code}"
        values: dict[str, Any] = {"exitCode": result.exit_code, "exited": True, "status": status}
        return {**values, "error": status} if result.exit_code else values
    status = f"signal: {_SIGNAL_TEXTS.get(result.signal, f'signal {result.signal}')}"
    why = f"{status}: the sandbox ran out of memory" if result.reason is Reason.OOM else status
    return {"exitCode": -1, "exited": False, "status": status, "error": why}


async def _health(call: E2bCall) -> Response:
    await call.check_awake()
    async with call.sandbox(counts=False):
        return Response(None, 204)


HANDLERS: Mapping[str, Run] = {
    "e2b_health": _health,
    "e2b_start_process": server_stream(_start, _KEEPALIVE),
    "e2b_connect_process": server_stream(_connect, _KEEPALIVE),
}
