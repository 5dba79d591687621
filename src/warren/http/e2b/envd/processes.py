"""Commands and terminals of E2B's clients: `process.Process`.

A client starts a command and reads its output from the answer. The command runs on when the client leaves; it and
others come back by its pid. A command is forgotten when it has ended.
"""

import asyncio
import base64
import binascii
import contextlib
import os
import posixpath
import signal as signals
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final

import anyio
from pydantic import BaseModel, BeforeValidator, Field, model_validator
from starlette.responses import Response

from warren.http.e2b.connect import (
    Message,
    client_stream,
    deadline_exceeded,
    server_stream,
    timeout_of,
    unary,
)
from warren.http.e2b.control.sandboxes import template_of
from warren.http.e2b.envd.places import called_user
from warren.http.e2b.envd.started import Record, StartedCommands
from warren.http.e2b.errors import ConnectError
from warren.http.e2b.routes import E2bCall, Route
from warren.http.e2b.template_defaults import usual_user
from warren.http.e2b.users import SandboxUser, resolve
from warren.interfaces.sandbox import Process, Sandbox
from warren.kernel.shielding import run_shielded
from warren.model.access import Scope
from warren.model.code import CELL_PREFIX, is_context
from warren.model.e2b import sandbox_env
from warren.model.errors import CommandRefused, InvalidPath, ProcessNotFound, SandboxLost, WarrenError
from warren.model.operations import Chunk, Command, ExecResult, ProcessInfo, Reason, Stream, TerminalSize
from warren.model.session import Session
from warren.sessions.output_events import close_source
from warren.sessions.refused_process import RefusedProcess
from warren.sessions.validation import validated

_SERVICE: Final = "/process.Process"
_PREFIX: Final = "e2b_"  # of the ids of commands that this wire has started
_PIECE: Final = 32 * 1024
_LONGEST_S: Final = 7 * 86400.0
_SHELLS: Final = frozenset({"bash", "/bin/bash", "/usr/bin/bash", "sh", "/bin/sh", "/usr/bin/sh"})
_KEEPALIVE: Final[Message] = {"event": {"keepalive": {}}}
_DATA: Final = {
    Stream.STDOUT: b'{"event":{"data":{"stdout":"',
    Stream.STDERR: b'{"event":{"data":{"stderr":"',
    Stream.TERMINAL: b'{"event":{"data":{"pty":"',
}
_SIGNALS: Final = {
    "SIGNAL_SIGTERM": signals.SIGTERM,
    "SIGNAL_SIGKILL": signals.SIGKILL,
    15: signals.SIGTERM,
    9: signals.SIGKILL,
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


# -- messages


def _decode(text: Any) -> Any:
    """Base64 of either alphabet, with or without its padding."""
    if not isinstance(text, str):
        return text
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError("must be base64") from None


class _Values(BaseModel):
    """Fields that are null count as absent; those that nobody knows are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        return {name: one for name, one in values.items() if one is not None} if isinstance(values, dict) else values


_Data = Annotated[bytes, BeforeValidator(_decode)]


class _Config(_Values):
    cmd: str = ""
    args: list[str] = []
    envs: dict[str, str] = {}
    cwd: str | None = None


class _Size(_Values):
    cols: Annotated[int, Field(ge=0, le=0xFFFF)] = 0
    rows: Annotated[int, Field(ge=0, le=0xFFFF)] = 0


class _Pty(_Values):
    size: _Size | None = None


class _StartRequest(_Values):
    process: _Config = _Config()
    pty: _Pty | None = None
    tag: str | None = None
    stdin: bool = True

    @property
    def takes_input(self) -> bool:
        return self.stdin or self.pty is not None


class _Selector(_Values):
    pid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    tag: str | None = None


class _Input(_Values):
    stdin: _Data | None = None
    pty: _Data | None = None


class _OfProcess(_Values):
    process: _Selector = _Selector()


class _SignalRequest(_OfProcess):
    signal: str | int = 0


class _InputRequest(_OfProcess):
    input: _Input = _Input()


class _UpdateRequest(_OfProcess):
    pty: _Pty | None = None


class _InputData(_Values):
    input: _Input = _Input()


class _InputEvent(_Values):
    start: _OfProcess | None = None
    data: _InputData | None = None
    keepalive: dict[str, Any] | None = None


# -- starting and following


async def _start(call: E2bCall, message: Message) -> AsyncIterator[Message | bytes]:
    request = validated(_StartRequest, message)
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
    call: E2bCall, session: Session, sandbox: Sandbox, request: _StartRequest, begun: list[Process]
) -> None:
    """Adds the process to `begun`."""
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


def _command(call: E2bCall, session: Session, request: _StartRequest, user: SandboxUser, cwd: str) -> Command:
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
        terminal=None if request.pty is None else _terminal_size(request.pty),
        judged_as=_line_of(config),
        stdin=request.takes_input,
        until_closed=True,
    )


def _record(request: _StartRequest) -> Record:
    config = request.process
    texts = (config.cmd, *config.args, *config.envs, *config.envs.values(), config.cwd or "", request.tag or "")
    size = sum(len(text) for text in texts) + 100 * len(texts)
    return Record(config.model_dump(exclude_none=True), request.tag, request.takes_input, size)


def _line_of(config: _Config) -> str:
    """The line of a shell that does nothing but run it, for policies and the audit record."""
    if config.cmd in _SHELLS and len(config.args) > 1 and config.args[:-1] in (["-l", "-c"], ["-lc"], ["-c"]):
        return config.args[-1]
    return ""


def _absolute(path: str, user: SandboxUser) -> str:
    if path == "~" or path.startswith("~/"):
        path = user.home + path[1:]
    return posixpath.normpath(posixpath.join(user.home, path))


def _terminal_size(pty: _Pty) -> TerminalSize:
    size = pty.size or _Size()
    return TerminalSize(size.rows or 24, size.cols or 80)


async def _connect(call: E2bCall, message: Message) -> AsyncIterator[Message | bytes]:
    """Output from now on."""
    selector = validated(_OfProcess, message).process
    async with call.sandbox(counts=False) as (_, sandbox):
        await call.sessions.uses.record(call.tenant, call.session_id)
        info = await _find(call, sandbox, selector)
        with _not_found(info):
            process = await sandbox.process(info.id)
            with _reading(call, sandbox, process):
                async for item in _events(process, info.pid, info.bytes_total):
                    yield item


@contextlib.contextmanager
def _reading(call: E2bCall, sandbox: Sandbox, process: Process) -> Iterator[None]:
    """The command is not forgotten during the block. Its last reader sees to that it is when it has ended."""
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


# -- processes that run


async def _list(call: E2bCall, message: Message) -> Message:
    async with call.sandbox(counts=False) as (_, sandbox):
        return {"processes": [_listed(call, info) for info in await sandbox.processes() if _is_shown(info)]}


def _listed(call: E2bCall, info: ProcessInfo) -> Message:
    record = call.started.find(call.session_id, info.id)
    if record is None:
        return {"config": _config_in_title(info.command), "pid": info.pid}
    return {"config": record.config, "pid": info.pid, **({} if record.tag is None else {"tag": record.tag})}


def _config_in_title(title: str) -> dict[str, Any]:
    """What the sandbox still knows of a command: the beginning of its line."""
    for start in ("/bin/bash -l -c ", "/bin/bash -i -l"):
        if title.startswith(start):
            args = start.split()[1:]
            return {"cmd": "/bin/bash", "args": [*args, title[len(start) :]] if "-c" in args else args}
    program, *args = title.split(" ") if title else [""]
    return {"cmd": program, "args": args}


def _is_shown(info: ProcessInfo) -> bool:
    return info.running and not is_context(info.id) and not info.id.startswith(CELL_PREFIX)


async def _find(call: E2bCall, sandbox: Sandbox, selector: _Selector) -> ProcessInfo:
    if selector.pid is None and selector.tag is None:
        raise ConnectError("invalid_argument", "the request names no process: give its pid or its tag")
    for info in await sandbox.processes():
        record = call.started.find(call.session_id, info.id)
        has_tag = selector.pid is None and record is not None and record.tag == selector.tag
        if _is_shown(info) and (has_tag or info.pid == selector.pid):
            return info
    name = f"pid {selector.pid}" if selector.pid is not None else f"tag {str(selector.tag)[:80]}"
    raise ConnectError("not_found", f"process with {name} not found")


async def _send_signal(call: E2bCall, message: Message) -> Message:
    request = validated(_SignalRequest, message)
    async with call.sandbox() as (_, sandbox):
        info = await _find(call, sandbox, request.process)
        number = _SIGNALS.get(request.signal)
        if number is None:
            raise ConnectError("unimplemented", f"invalid signal: {str(request.signal)[:80]}")
        with _not_found(info):
            await (await sandbox.process(info.id)).signal(number)
    return {}


async def _send_input(call: E2bCall, message: Message) -> Message:
    request = validated(_InputRequest, message)
    async with call.sandbox() as (_, sandbox):
        info = await _find(call, sandbox, request.process)
        with _not_found(info):
            await _write(call, info, await sandbox.process(info.id), request.input)
    return {}


async def _write(call: E2bCall, info: ProcessInfo, process: Process, data: _Input) -> None:
    if data.stdin is None and data.pty is None:
        raise ConnectError("invalid_argument", "there is no input: give stdin or pty")
    if info.terminal and data.pty is None:
        raise ConnectError("failed_precondition", "the process has a terminal: send the input as pty, not as stdin")
    if not info.terminal and data.stdin is None:
        raise ConnectError("failed_precondition", "the process has no terminal: send the input as stdin, not as pty")
    record = call.started.find(call.session_id, info.id)
    if record is not None and not record.stdin:
        raise ConnectError("failed_precondition", "stdin not enabled or closed: start the process with stdin")
    await process.write((data.pty if info.terminal else data.stdin) or b"")


async def _stream_input(call: E2bCall, messages: AsyncIterator[Message]) -> Message:
    async with call.sandbox() as (_, sandbox):
        info: ProcessInfo | None = None
        async for message in messages:
            event = validated(_InputEvent, message)
            if event.start is not None:
                info = await _find(call, sandbox, event.start.process)
                process = await sandbox.process(info.id)
            elif event.data is not None:
                if info is None:
                    raise ConnectError("invalid_argument", "the first message must say which process gets the input")
                with _not_found(info):
                    await _write(call, info, process, event.data.input)
    return {}


async def _close_stdin(call: E2bCall, message: Message) -> Message:
    selector = validated(_OfProcess, message).process
    async with call.sandbox() as (_, sandbox):
        info = await _find(call, sandbox, selector)
        if info.terminal:
            raise ConnectError("failed_precondition", "the process has a terminal: send Ctrl+D (0x04) instead")
        with _not_found(info):
            await (await sandbox.process(info.id)).close_stdin()
        call.started.close_stdin(call.session_id, info.id)
    return {}


async def _update(call: E2bCall, message: Message) -> Message:
    request = validated(_UpdateRequest, message)
    async with call.sandbox() as (_, sandbox):
        info = await _find(call, sandbox, request.process)
        if request.pty is not None and request.pty.size is not None:
            if not info.terminal:
                raise ConnectError("failed_precondition", "the process has no terminal")
            with _not_found(info):
                await (await sandbox.process(info.id)).resize(_terminal_size(request.pty))
    return {}


@contextlib.contextmanager
def _not_found(info: ProcessInfo) -> Iterator[None]:
    """The process may end and be forgotten while a call is about to use it."""
    try:
        yield
    except ProcessNotFound:
        raise ConnectError("not_found", f"process with pid {info.pid} not found") from None


async def _health(call: E2bCall) -> Response:
    async with call.sandbox(counts=False):
        return Response(None, 204)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/health", "e2b_health", None, _health),
    server_stream(f"{_SERVICE}/Start", "e2b_start_process", Scope.EXEC, _start, _KEEPALIVE),
    server_stream(f"{_SERVICE}/Connect", "e2b_connect_process", Scope.EXEC, _connect, _KEEPALIVE),
    unary(f"{_SERVICE}/List", "e2b_list_processes", Scope.READ, _list),
    unary(f"{_SERVICE}/SendSignal", "e2b_signal_process", Scope.EXEC, _send_signal),
    unary(f"{_SERVICE}/SendInput", "e2b_send_input", Scope.EXEC, _send_input),
    unary(f"{_SERVICE}/CloseStdin", "e2b_close_stdin", Scope.EXEC, _close_stdin),
    unary(f"{_SERVICE}/Update", "e2b_update_process", Scope.EXEC, _update),
    client_stream(f"{_SERVICE}/StreamInput", "e2b_stream_input", Scope.EXEC, _stream_input),
)
