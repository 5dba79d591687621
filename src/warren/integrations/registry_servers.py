"""The protocol of MCP servers that tools of the registry name, without any I/O.

The server's shell itself says hello to it (`initialize`), so that a call need only send its request and look for the
answer with its id among the lines that the server writes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from warren.model.errors import InvalidRequest
from warren.model.tool import McpServer

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
_TAIL: Final = 2000


def process_name(server: McpServer) -> str:
    """Returns the process id of a server: the same for the same command and variables."""
    described = json.dumps([server.command, server.env], sort_keys=True)
    return f"mcp-{hashlib.sha256(described.encode()).hexdigest()[:12]}"


def start_command(server: McpServer) -> list[str]:
    return ["bash", "-c", _START, "bash", *server.command]


class AnswerReader:
    """Looks for the answer to a request in what a server writes from `offset` on."""

    def __init__(self, request_id: str, offset: int) -> None:
        self._request_id, self._first = request_id, offset
        self._line = self._errors = b""

    def read(self, found: Mapping[str, Any]) -> dict[str, Any] | None:
        """Reads a piece of output, as `read_output` gives it, and returns the answer if it is there.

        Raises InvalidRequest if the server has ended, or writes more than an answer may have.
        """
        for chunk in found["chunks"]:
            data = base64.b64decode(chunk["data"])
            if chunk["stream"] != "stdout":
                self._errors = (self._errors + data)[-_TAIL:]
                continue
            *whole, self._line = (self._line + data).split(b"\n")
            for each in whole:
                if (answer := _answer_in(each, self._request_id)) is not None:
                    return answer
        if not found["running"] and not found["chunks"]:
            said = self._errors.decode(errors="replace").strip()
            raise InvalidRequest(f"the MCP server of this tool has ended{f': {said}' if said else ''}")
        if len(self._line) > _MAX_ANSWER or found["next_offset"] - self._first > 16 * _MAX_ANSWER:
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


def read_answer(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the server's answer as text, and whether it says that the tool has failed. It is not to be trusted."""
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
