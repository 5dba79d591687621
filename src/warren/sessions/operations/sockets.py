"""Opens terminals, and applies a caller's messages to a process, for WebSockets and the local mode's sockets."""

import contextlib
from typing import Any, Final

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.code import check_not_reserved
from warren.model.errors import InvalidJson, InvalidRequest, ProcessNotFound
from warren.model.operations import Command, TerminalSize
from warren.model.session import Session
from warren.model.strict_json import read_json
from warren.sessions.operations.processes import signal_number
from warren.sessions.schemas import data_of

_SHELL: Final = "exec bash -l"


async def open_terminal(
    session: Session,
    sandbox: Sandbox,
    size: TerminalSize | None,
    *,
    process_id: str = "",
    command: str = "",
    cwd: str = "",
    existing_only: bool = False,
) -> Process:
    """Resizes and returns the terminal `process_id`; starts it, with `command` or a shell, if it does not exist, unless
    `existing_only`.

    Without a size an existing one keeps its own.
    """
    existing = [info for info in await sandbox.processes() if info.id == process_id] if process_id else []
    if not existing and existing_only:
        raise ProcessNotFound(f"there is no process {process_id[:80]!r}")
    if not existing:
        check_not_reserved(process_id)
        size = size or TerminalSize()
        in_terminal = Command(shell=command or _SHELL, cwd=cwd, base_env=session.env, terminal=size)
        return await sandbox.start(in_terminal, process_id=process_id)
    if not existing[0].terminal:
        raise InvalidRequest(f"{process_id!r} has no terminal", remedy="attach to it instead")
    process = await sandbox.process(process_id)
    if size is not None:
        with contextlib.suppress(InvalidRequest):  # it has ended, and with it the window
            await process.resize(size)
    return process


async def apply_message(process: Process, message: dict[str, Any]) -> None:
    kind = message.get("type")
    if kind == "stdin":
        await process.write(data_of(_text(message, "data"), _text(message, "data_base64")))
    elif kind == "close_stdin":
        await process.close_stdin()
    elif kind == "signal":
        await process.signal(signal_number(_signal(message)))
    elif kind == "resize":
        await process.resize(TerminalSize(number_in(message, "rows"), number_in(message, "columns")))
    elif kind == "kill":
        await process.kill()
    else:
        raise InvalidRequest(
            f"there is no message {str(kind)[:80]!r}", remedy="stdin, close_stdin, signal, resize or kill"
        )


def read_message(text: str) -> dict[str, Any]:
    try:
        values = read_json(text.encode())
    except InvalidJson as exc:
        raise InvalidJson(exc.message.replace("the body", "the message"), remedy="send a JSON object") from None
    if not isinstance(values, dict):
        raise InvalidRequest("the message is JSON, but not a JSON object")
    return values


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a text")
    return value


def number_in(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number")
    return value


def _signal(message: dict[str, Any]) -> str | int:
    value = message.get("signal")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequest("signal must be a name or a number")
    return value
