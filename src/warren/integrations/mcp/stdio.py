"""The stdio transport: one client, which starts the server and waits for it.

The MCP SDK takes more than a second to import, and a server that has only tools answers four methods: so clients are
served without it, those that open with the handshake (`initialize`) and those of the later protocol, whose requests
each say for themselves which version and what client they are of.

Calls run at the same time; the client can cancel each of them, and all end with the connection.
"""

import asyncio
import json
from typing import Any, Final

from warren.integrations.mcp.server import INSTRUCTIONS, NAME, ToolServer
from warren.integrations.mcp.streams import MAX_LINE_BYTES, Streams

VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)
_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_SERVER: Final = "io.modelcontextprotocol/serverInfo"
_MAX_CALLS: Final = 256

_PARSE_ERROR, _INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32700, -32600, -32601, -32602
_UNSUPPORTED_VERSION: Final = -32022
_NOT_CACHED: Final = {"cacheScope": "private", "ttlMs": 0}
_TOOLS: Final = {"tools": {"listChanged": False}}


async def serve_stdio(server: ToolServer) -> None:
    """Serves until the client closes its end."""
    streams = Streams()
    first = await streams.read_line()
    if not first:
        return
    kind = _ModernConnection if _opens_modern(first) else _InitializedConnection
    await kind(server, streams).serve(first)


def _opens_modern(line: bytes) -> bool:
    try:
        message = json.loads(line)
        return message["method"] == "server/discover" or _VERSION in message["params"]["_meta"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


class _Refusal(Exception):
    def __init__(self, code: int, message: str, **data: Any) -> None:
        self.error = {"code": code, "message": message, **({"data": data} if data else {})}


class _InitializedConnection:
    """A connection of the protocol's versions that begin with `initialize`.

    An unknown method makes a client of a later version fall back to it.
    """

    def __init__(self, server: ToolServer, streams: Streams) -> None:
        self._server, self._streams = server, streams
        self._calls: dict[str | int, asyncio.Task[dict[str, Any]]] = {}

    async def serve(self, line: bytes) -> None:
        async with asyncio.TaskGroup() as tasks:
            while line:
                if line.strip():
                    await self._take(line, tasks)
                line = await self._streams.read_line()
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
            self._check(message["method"], params)
            if message["method"] == "tools/call":
                self._start_call(request_id, params, tasks)
            else:
                await self._send(request_id, result=self._complete(self._answer(message["method"], params)))
        except _Refusal as refusal:
            await self._send(request_id, error=refusal.error)

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            wanted = params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
                "capabilities": _TOOLS,
                "serverInfo": self._about(),
                "instructions": INSTRUCTIONS,
            }
        if method == "tools/list":
            return self._server.list_tools()
        if method == "ping":
            return {}
        raise _no_method(method)

    def _about(self) -> dict[str, str]:
        return {"name": NAME, "version": self._server.version}

    def _check(self, method: str, params: dict[str, Any]) -> None:
        """Refuses a request that this version of the protocol does not take."""

    def _complete(self, result: dict[str, Any]) -> dict[str, Any]:
        """Adds what every result of this version of the protocol has."""
        return result

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
            await self._send(request_id, result=self._complete(call.result()))

    def _take_notification(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message.get("method") == "notifications/cancelled" and isinstance(params, dict):
            request_id = params.get("requestId")
            if isinstance(request_id, str | int) and (call := self._calls.get(request_id)):
                call.cancel()

    async def _send(self, request_id: str | int | None, **outcome: Any) -> None:
        await self._streams.write(json.dumps({"jsonrpc": "2.0", "id": request_id, **outcome}) + "\n")


class _ModernConnection(_InitializedConnection):
    """A connection of the protocol of 2026-07-28, which has no handshake."""

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "server/discover":
            about = {"supportedVersions": MODERN_VERSIONS, "capabilities": _TOOLS, "instructions": INSTRUCTIONS}
            return {**about, **_NOT_CACHED}
        if method == "tools/list":
            return {**self._server.list_tools(), **_NOT_CACHED}
        raise _no_method(method)

    def _check(self, method: str, params: dict[str, Any]) -> None:
        if method == "initialize":
            wanted = {"supported": MODERN_VERSIONS, "requested": params.get("protocolVersion")}
            raise _Refusal(_UNSUPPORTED_VERSION, "this connection has begun without the handshake", **wanted)
        meta = params.get("_meta")
        for name in (_VERSION, _CAPABILITIES):
            if not isinstance(meta, dict) or name not in meta:
                raise _Refusal(_INVALID_PARAMS, f"params._meta must have {name!r}")
        assert isinstance(meta, dict)
        if meta[_VERSION] not in MODERN_VERSIONS:
            wanted = {"supported": MODERN_VERSIONS, "requested": meta[_VERSION]}
            raise _Refusal(_UNSUPPORTED_VERSION, "this server does not have this version of the protocol", **wanted)

    def _complete(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "resultType": "complete", "_meta": {_SERVER: self._about(), **result.get("_meta", {})}}


def _no_method(method: object) -> _Refusal:
    return _Refusal(_METHOD_NOT_FOUND, f"this server has no method {str(method)[:100]!r}; it serves tools")


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
