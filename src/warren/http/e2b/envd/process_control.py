"""Commands that run: E2B's clients list them, send them input and signals, and change the size of their terminals."""

import contextlib
import signal as signals
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.connect import Message, client_stream, unary
from warren.http.e2b.envd.process_messages import (
    Input,
    InputEvent,
    InputRequest,
    OfProcess,
    Selector,
    SignalRequest,
    UpdateRequest,
    terminal_size,
)
from warren.http.e2b.errors import ConnectError
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.code import CELL_PREFIX, is_context
from warren.model.errors import ProcessNotFound
from warren.model.operations import ProcessStatus
from warren.sessions.validation import validated

_SIGNALS: Final = {
    "SIGNAL_SIGTERM": signals.SIGTERM,
    "SIGNAL_SIGKILL": signals.SIGKILL,
    15: signals.SIGTERM,
    9: signals.SIGKILL,
}


async def _list(call: E2bCall, message: Message) -> Message:
    async with call.sandbox(counts=False) as (_, sandbox):
        return {"processes": [_listed(call, info) for info in await sandbox.processes() if _is_shown(info)]}


def _listed(call: E2bCall, info: ProcessStatus) -> Message:
    record = call.started.find(call.session_id, info.id)
    if record is None:
        return {"config": _config_in_title(info.command), "pid": info.pid}
    return {"config": record.config, "pid": info.pid, **({} if record.tag is None else {"tag": record.tag})}


def _config_in_title(title: str) -> dict[str, Any]:
    """Returns what the sandbox still knows of a command: the beginning of its line."""
    for start in ("/bin/bash -l -c ", "/bin/bash -i -l"):
        if title.startswith(start):
            args = start.split()[1:]
            return {"cmd": "/bin/bash", "args": [*args, title[len(start) :]] if "-c" in args else args}
    program, *args = title.split(" ") if title else [""]
    return {"cmd": program, "args": args}


def _is_shown(info: ProcessStatus) -> bool:
    return info.running and not is_context(info.id) and not info.id.startswith(CELL_PREFIX)


async def find_process(call: E2bCall, sandbox: Sandbox, selector: Selector) -> ProcessStatus:
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
    request = validated(SignalRequest, message)
    async with call.sandbox() as (_, sandbox):
        info = await find_process(call, sandbox, request.process)
        number = _SIGNALS.get(request.signal)
        if number is None:
            raise ConnectError("unimplemented", f"invalid signal: {str(request.signal)[:80]}")
        with process_not_found(info):
            await (await sandbox.process(info.id)).signal(number)
    return {}


async def _send_input(call: E2bCall, message: Message) -> Message:
    request = validated(InputRequest, message)
    async with call.sandbox() as (_, sandbox):
        info = await find_process(call, sandbox, request.process)
        with process_not_found(info):
            await _write(call, info, await sandbox.process(info.id), request.input)
    return {}


async def _write(call: E2bCall, info: ProcessStatus, process: Process, data: Input) -> None:
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
        info: ProcessStatus | None = None
        async for message in messages:
            event = validated(InputEvent, message)
            if event.start is not None:
                info = await find_process(call, sandbox, event.start.process)
                process = await sandbox.process(info.id)
            elif event.data is not None:
                if info is None:
                    raise ConnectError("invalid_argument", "the first message must say which process gets the input")
                with process_not_found(info):
                    await _write(call, info, process, event.data.input)
    return {}


async def _close_stdin(call: E2bCall, message: Message) -> Message:
    selector = validated(OfProcess, message).process
    async with call.sandbox() as (_, sandbox):
        info = await find_process(call, sandbox, selector)
        if info.terminal:
            raise ConnectError("failed_precondition", "the process has a terminal: send Ctrl+D (0x04) instead")
        with process_not_found(info):
            await (await sandbox.process(info.id)).close_stdin()
        call.started.close_stdin(call.session_id, info.id)
    return {}


async def _update(call: E2bCall, message: Message) -> Message:
    request = validated(UpdateRequest, message)
    async with call.sandbox() as (_, sandbox):
        info = await find_process(call, sandbox, request.process)
        if request.pty is not None and request.pty.size is not None:
            if not info.terminal:
                raise ConnectError("failed_precondition", "the process has no terminal")
            with process_not_found(info):
                await (await sandbox.process(info.id)).resize(terminal_size(request.pty))
    return {}


@contextlib.contextmanager
def process_not_found(info: ProcessStatus) -> Iterator[None]:
    """Turns ProcessNotFound into Connect's error: the process may end and be forgotten while a call is about to use
    it."""
    try:
        yield
    except ProcessNotFound:
        raise ConnectError("not_found", f"process with pid {info.pid} not found") from None


HANDLERS: Mapping[str, Run] = {
    "e2b_list_processes": unary(_list),
    "e2b_signal_process": unary(_send_signal),
    "e2b_send_input": unary(_send_input),
    "e2b_close_stdin": unary(_close_stdin),
    "e2b_update_process": unary(_update),
    "e2b_stream_input": client_stream(_stream_input),
}
