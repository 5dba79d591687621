"""The stdio transport: one client, which starts the server and waits for it.

The MCP SDK takes more than a second to import, so a client that opens with the handshake (`initialize`) is served
without it: a server that has only tools answers four methods. A client of a later protocol, which opens with
`server/discover`, gets the SDK on the same streams.

Calls run at the same time; the client can cancel each of them, and all end with the connection.
"""

import asyncio
import importlib.util
import json
from typing import Any, Final

from warren.integrations.mcp.server import INSTRUCTIONS, NAME, ToolServer
from warren.integrations.mcp.streams import MAX_LINE_BYTES, Streams

VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_MODERN_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_MAX_CALLS: Final = 256

_PARSE_ERROR, _INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32700, -32600, -32601, -32602


async def serve_stdio(server: ToolServer) -> None:
    """Serves until the client closes its end."""
    streams = Streams()
    first = await streams.read_line()
    if not first:
        return
    streams.put_back(first)
    if _opens_modern(first) and importlib.util.find_spec("mcp_types"):  # version 2 of the SDK has this package
        from warren.integrations.mcp.sdk_adapter import serve_streams

        await serve_streams(server, streams)
    else:  # an unknown method makes a client of a later protocol fall back to the handshake
        await _InitializedConnection(server, streams).serve()


def _opens_modern(line: bytes) -> bool:
    try:
        message = json.loads(line)
        return message["method"] == "server/discover" or _MODERN_KEY in message["params"]["_meta"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


class _Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        self.error = {"code": code, "message": message}


class _InitializedConnection:
    """A connection of the protocol's versions that begin with `initialize`."""

    def __init__(self, server: ToolServer, streams: Streams) -> None:
        self._server, self._streams = server, streams
        self._calls: dict[str | int, asyncio.Task[dict[str, Any]]] = {}

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while line := await self._streams.read_line():
                if line.strip():
                    await self._take(line, tasks)
            for call in self._calls.values():
                call.cancel()

    async def _take(self, line: bytes, tasks: asyncio.TaskGroup) -> None:
        request_id: Any = None
        try:
            message = _read_message(line)
            if "id" not in message:
                return self._take_notification(message)
            if "method" not in message:
                return  # an answer, but nothing was asked
            request_id = message["id"]
            if isinstance(request_id, bool) or not isinstance(request_id, str | int):
                request_id = None
                raise _Refusal(_INVALID_REQUEST, "the id of a request must be a string or an integer")
            params = message.get("params", {})
            if not isinstance(params, dict):
                raise _Refusal(_INVALID_PARAMS, "params must be an object")
            if message["method"] == "tools/call":
                self._start_call(request_id, params, tasks)
            else:
                await self._send(request_id, result=self._answer(message["method"], params))
        except _Refusal as refusal:
            await self._send(request_id, error=refusal.error)

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            wanted = params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": NAME, "version": self._server.version},
                "instructions": INSTRUCTIONS,
            }
        if method == "tools/list":
            return self._server.list_tools()
        if method == "ping":
            return {}
        raise _Refusal(_METHOD_NOT_FOUND, f"this server has no method {str(method)[:100]!r}; it serves tools")

    def _start_call(self, request_id: str | int, params: dict[str, Any], tasks: asyncio.TaskGroup) -> None:
        name, arguments = params.get("name"), params.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise _Refusal(_INVALID_PARAMS, "a call needs the name of a tool, and its arguments as an object")
        if request_id in self._calls:
            raise _Refusal(_INVALID_REQUEST, f"a call with the id {str(request_id)[:100]!r} runs already")
        if len(self._calls) >= _MAX_CALLS:
            raise _Refusal(_INVALID_REQUEST, f"at most {_MAX_CALLS} calls run at the same time; wait for one to end")
        self._calls[request_id] = asyncio.ensure_future(self._server.call_tool(name, arguments))
        tasks.create_task(self._finish_call(request_id, self._calls[request_id]))

    async def _finish_call(self, request_id: str | int, call: asyncio.Task[dict[str, Any]]) -> None:
        """Sends the result; nothing if the client has cancelled the call. A cancelled call never cuts a line short."""
        await asyncio.wait([call])
        del self._calls[request_id]
        if not call.cancelled():
            await self._send(request_id, result=call.result())

    def _take_notification(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message.get("method") == "notifications/cancelled" and isinstance(params, dict):
            request_id = params.get("requestId")
            if isinstance(request_id, str | int) and (call := self._calls.get(request_id)):
                call.cancel()

    async def _send(self, request_id: str | int | None, **outcome: Any) -> None:
        await self._streams.write(json.dumps({"jsonrpc": "2.0", "id": request_id, **outcome}) + "\n")


def _read_message(line: bytes) -> dict[str, Any]:
    if len(line) >= MAX_LINE_BYTES:
        raise _Refusal(_PARSE_ERROR, f"a message may have {MAX_LINE_BYTES} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise _Refusal(_PARSE_ERROR, "a line must be one JSON-RPC message") from None
    if not isinstance(message, dict):
        raise _Refusal(_INVALID_REQUEST, "a line must be one JSON-RPC message, not several")
    return message
