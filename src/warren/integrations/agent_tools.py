"""Runs tools of the registry in a sandbox, for the blocking and for the async client.

A tool of an MCP server runs on a process of the session: the first call starts the server, and it stays for later ones,
whoever makes them. The server's shell itself says hello to it (`initialize`), so that a call need only send its request
and look for the answer with its id among the lines that the server writes.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from warren.integrations.plans import (
    EXIT_NOT_RUN,
    EXIT_TIMED_OUT,
    CommandReport,
    Plan,
    call,
    call_on,
    describe_error,
    run_command,
    shorten,
)
from warren.model.errors import Conflict, InvalidRequest, WarrenError
from warren.model.tool import McpServer, Tool

_PROTOCOL: Final = "2025-06-18"
_HELLO: Final = (
    {
        "jsonrpc": "2.0",
        "id": "warren-hello",
        "method": "initialize",
        "params": {
            "protocolVersion": _PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "warren", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)
_START: Final = (
    "exec 3<&0; exec \"$@\" < <(printf '%s\\n' '" + "' '".join(map(json.dumps, _HELLO)) + "'; exec cat <&3) 3<&-"
)
_MAX_ANSWER: Final = 4 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_LONGEST_WAIT_S: Final = 30.0
_TAIL: Final = 2000


def run_tool(tool: Tool, arguments: Any, max_chars: int | None = None) -> Plan[CommandReport]:
    """Never raises: what is wrong with the arguments, or with the sandbox, is told to the model."""
    try:
        if tool.mcp is not None:
            return (yield from _call_server(tool, tool.mcp, tool.read_arguments(arguments), max_chars))
        wanted = tool.command_for(arguments)
    except WarrenError as exc:
        return CommandReport(describe_error(exc), EXIT_NOT_RUN)
    command = wanted.command if isinstance(wanted.command, str) else list(wanted.command)
    return (yield from run_command(command, tool.timeout_s, max_chars=max_chars, env=wanted.env, carry_state=False))


def _call_server(
    tool: Tool, server: McpServer, arguments: Mapping[str, Any], max_chars: int | None
) -> Plan[CommandReport]:
    process, offset = yield from _find_server(server)
    request_id = secrets.token_hex(8)
    params = {"name": server.tool or tool.name, "arguments": arguments}
    yield from _send(process, {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})
    answer = yield from _wait_for_answer(process, offset, request_id, tool.timeout_s)
    if answer is None:
        cancelled = {"requestId": request_id, "reason": "time-out"}
        yield from _send(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        return CommandReport(f"[the tool {tool.name} gave no answer in {tool.timeout_s:g} s]", EXIT_TIMED_OUT)
    text, has_failed = _read_answer(answer)
    shown, is_cut = shorten(text, max_chars)
    return CommandReport(shown, 1 if has_failed else 0, is_cut)


def _find_server(server: McpServer) -> Plan[tuple[Any, int]]:
    """The server's process, and where its next output begins."""
    described = json.dumps([server.command, server.env], sort_keys=True)
    name = f"mcp-{hashlib.sha256(described.encode()).hexdigest()[:12]}"
    argv = ["bash", "-c", _START, "bash", *server.command]
    while True:
        try:
            process = yield from call("spawn", argv, name=name, env=dict(server.env), carry_state=False)
            return process, 0
        except Conflict:
            process = yield from call("process", name)
            info = yield from call_on(process, "info")
            if info.running:
                return process, info.bytes_total
            yield from call_on(process, "forget")


def _send(process: Any, message: Mapping[str, Any]) -> Plan[None]:
    yield from call_on(process, "write", json.dumps(message) + "\n")


def _wait_for_answer(process: Any, offset: int, request_id: str, timeout_s: float) -> Plan[dict[str, Any] | None]:
    """The answer with this id; None if it did not come in time. Raises InvalidRequest if the server has ended."""
    deadline, first, line, errors = time.monotonic() + timeout_s, offset, b"", b""
    while (left_s := deadline - time.monotonic()) > 0:
        wait_s = min(left_s, _LONGEST_WAIT_S)
        how = {"offset": offset, "limit": _PIECE, "encoding": "base64", "wait_s": wait_s}
        found = yield from call_on(process, "_call", "read_output", work_s=wait_s, **how)
        for chunk in found["chunks"]:
            data = base64.b64decode(chunk["data"])
            if chunk["stream"] != "stdout":
                errors = (errors + data)[-_TAIL:]
                continue
            *whole, line = (line + data).split(b"\n")
            for each in whole:
                if (answer := _answer_in(each, request_id)) is not None:
                    return answer
        offset = found["next_offset"]
        if not found["running"] and not found["chunks"]:
            said = errors.decode(errors="replace").strip()
            raise InvalidRequest(f"the MCP server of this tool has ended{f': {said}' if said else ''}")
        if len(line) > _MAX_ANSWER or offset - first > 16 * _MAX_ANSWER:
            raise InvalidRequest(f"the MCP server of this tool answers with more than {_MAX_ANSWER} bytes")
    return None


def _answer_in(line: bytes, request_id: str) -> dict[str, Any] | None:
    if request_id.encode() not in line or len(line) > _MAX_ANSWER:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_answer = isinstance(message, dict) and message.get("id") == request_id and "method" not in message
    return message if is_answer else None


def _read_answer(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """What the server answered as text, and whether it says that the tool has failed. It is not to be trusted."""
    if not isinstance(result := answer.get("result"), dict):
        error = answer.get("error")
        said = error.get("message") if isinstance(error, dict) else error
        return f"[the MCP server refused the call: {said}]", True
    content = result.get("content")
    texts = [_part_text(part) for part in content] if isinstance(content, list) else []
    if not any(texts) and result.get("structuredContent") is not None:
        texts = [json.dumps(result["structuredContent"])]
    return "\n".join(texts), result.get("isError") is True


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    if isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    return f"[{part.get('type')} {part.get('mimeType', '')}, which is no text]"
