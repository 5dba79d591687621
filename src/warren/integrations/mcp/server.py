"""The MCP server: the tools with their hints, and the ways to reach it.

Over stdio the client starts the server and is its only client. Over HTTP it serves the streamable transport at /mcp and
the older SSE transport at /sse. Connections have no state here, so any of them may break and come back.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.integrations.mcp.command_tools import CommandTools
from warren.integrations.mcp.file_tools import FileTools
from warren.integrations.mcp.sandbox_tools import SandboxTools
from warren.integrations.mcp.sandboxes import Sandboxes

INSTRUCTIONS: Final = """\
These tools give you an isolated Linux computer of your own. Use bash to run commands: the working directory and \
exported variables last between calls, and files stay in /workspace. Nothing you do there touches the user's machine. \
Start servers and long jobs with bash_background. The argument sandbox chooses another, separate computer by a name; \
leave it out unless you need one. If an answer says that the sandbox is fresh, earlier files are gone."""

_READS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)

_CHANGES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)
_REPEATABLE: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


def build_server(sandboxes: Sandboxes, version: str) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("warren", instructions=INSTRUCTIONS, version=version, log_level="WARNING")
    commands, files, boxes = CommandTools(sandboxes), FileTools(sandboxes), SandboxTools(sandboxes)
    tools: Sequence[tuple[Callable[..., Any], str, ToolAnnotations]] = (
        (commands.bash, "Run a command", _CHANGES),
        (commands.bash_background, "Start a background command", _CHANGES),
        (commands.background_output, "Read background output", _READS),
        (commands.background_stop, "Stop a background command", _REPEATABLE),
        (commands.stop_all, "Stop everything that runs", _REPEATABLE),
        (files.read_file, "Read a file", _READS),
        (files.write_file, "Write a file", _REPEATABLE),
        (files.edit_file, "Edit a file", _CHANGES),
        (files.list_files, "List files", _READS),
        (files.search_files, "Search files", _READS),
        (boxes.sandbox_info, "Show the sandbox", _READS),
        (boxes.reset_sandbox, "Start afresh", _REPEATABLE),
    )
    for tool, title, annotations in tools:
        server.add_tool(tool, title=title, annotations=annotations)
    return server


def build_http_app(server: MCPServer[Any], host: str, allowed_hosts: Sequence[str] = (), key: str = "") -> ASGIApp:
    """`allowed_hosts`: further names of this server; a request to any other name is refused."""
    security = transport_security(host, allowed_hosts)
    app = server.streamable_http_app(stateless_http=True, transport_security=security)
    app.router.routes.extend(server.sse_app(transport_security=security).routes)
    return KeyGuard(app, key) if key else app


def transport_security(host: str, allowed_hosts: Sequence[str] = ()) -> TransportSecuritySettings:
    """Protects against web pages that make a browser talk to this server under their own name (DNS rebinding)."""
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
