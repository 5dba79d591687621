"""What a caller may say to a process over a WebSocket, or over the local mode's stand-in for one."""

from typing import Any

from warren.interfaces.sandbox import Process
from warren.model.errors import InvalidJson, InvalidRequest
from warren.model.operations import TerminalSize
from warren.model.strict_json import read_json
from warren.sessions.processes import signal_number
from warren.sessions.schemas import data_of


async def apply_message(process: Process, message: dict[str, Any]) -> None:
    kind = message.get("type")
    if kind == "stdin":
        await process.write(data_of(_text(message, "data"), _text(message, "data_base64")))
    elif kind == "close_stdin":
        await process.close_stdin()
    elif kind == "signal":
        await process.signal(signal_number(_signal(message)))
    elif kind == "resize":
        await process.resize(TerminalSize(_number(message, "rows"), _number(message, "columns")))
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


def _number(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number")
    return value


def _signal(message: dict[str, Any]) -> str | int:
    value = message.get("signal")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequest("signal must be a name or a number")
    return value
