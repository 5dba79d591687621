"""The MCP SDK, whichever of its versions 1 and 2 is installed: streamable HTTP at /mcp, the older SSE at /sse.

No other file imports the SDK. What goes through it is the protocol's JSON, which is the same in both versions; they
differ in how a server gets its handlers.
"""

import contextlib
import hmac
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from warren.integrations.extras import missing_package

try:
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.sse import SseServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "mcp") from None

from warren.integrations.mcp.server import INSTRUCTIONS, NAME, ToolServer

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


def build_sdk_server(server: ToolServer) -> Any:
    if hasattr(Server, "call_tool"):
        return _build_for_version_1(server)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate(server.list_tools())

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _call_tool(server, params, context)

    return Server(
        NAME, version=server.version, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _build_for_version_1(server: ToolServer) -> Any:
    built: Any = Server(NAME, version=server.version, instructions=INSTRUCTIONS)
    answer: Any = types.ServerResult

    async def list_tools(request: Any) -> Any:
        return answer(types.ListToolsResult.model_validate(server.list_tools()))

    async def call_tool(request: Any) -> Any:
        return answer(await _call_tool(server, request.params, built.request_context))

    built.request_handlers |= {types.ListToolsRequest: list_tools, types.CallToolRequest: call_tool}
    return built


async def _call_tool(server: ToolServer, params: Any, context: Any) -> types.CallToolResult:
    headers: Mapping[str, str] | None = getattr(context.request, "headers", None)
    return types.CallToolResult.model_validate(await server.call_tool(params.name, params.arguments or {}, headers))


def build_http_app(server: ToolServer, host: str, allowed_hosts: Sequence[str] = (), key: str = "") -> ASGIApp:
    """Returns the application with both transports. It refuses requests to names but `host` and `allowed_hosts`."""
    built, security = build_sdk_server(server), transport_security(host, allowed_hosts)
    streamable = StreamableHTTPSessionManager(built, stateless=True, security_settings=security)
    sse = SseServerTransport("/messages/", security_settings=security)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with streamable.run():
            yield

    async def serve_sse(scope: Scope, receive: Receive, send: Send) -> None:
        async with sse.connect_sse(scope, receive, send) as (read, write):
            await built.run(read, write, built.create_initialization_options())

    routes = [
        Route("/mcp", _Endpoint(streamable.handle_request)),
        Route("/sse", _Endpoint(serve_sse), methods=["GET"]),
        Mount("/messages/", sse.handle_post_message),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    return KeyGuard(app, key) if key else app


class _Endpoint:
    """Makes a route take an ASGI application: for a plain function it would expect a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def transport_security(host: str, allowed_hosts: Sequence[str] = ()) -> TransportSecuritySettings:
    """Returns protection from web pages that make a browser talk to this server under their name (DNS rebinding)."""
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    names = list(dict.fromkeys([*_LOOPBACK, bracketed, *allowed_hosts]))
    hosts = [each for name in names for each in (name, f"{name}:*")]
    origins = [f"{scheme}://{each}" for scheme in ("http", "https") for each in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


class KeyGuard:
    """Lets requests with `Authorization: Bearer <key>` in, and answers 401 to all others."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        else:
            refusal = PlainTextResponse(
                "send the key of this server: Authorization: Bearer …\n", 401, {"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", []) if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
