"""What the MCP tests share: the real client on each transport, and `warren mcp` as a process of its own."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import warm_parent
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent
from server_process import clean_environ, free_port
from this_run import patience

# A client opens stdio with the newest protocol; "handshake" is stdio as all earlier clients use it.
TRANSPORTS = ("http", "stdio", "handshake", "sse")
_START_S = patience(30.0)


class Tools:
    """The tools of a connected client: `await tools.bash(command="ls")` gives the answer's text."""

    def __init__(self, client: Client, sandbox: str = "") -> None:
        self.client, self._sandbox = client, sandbox

    async def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        named = {"sandbox": self._sandbox} if self._sandbox else {}
        result = await self.client.call_tool(tool, {**named, **arguments})
        assert isinstance(result, CallToolResult)
        return result

    async def said(self, tool: str, /, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert not result.is_error, text_of(result)
        return text_of(result)

    async def refused(self, tool: str, /, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert result.is_error, text_of(result)
        return text_of(result)


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def stdio(url: str, *flags: str, **environ: str) -> StdioServerParameters:
    arguments = ["-m", "warren.cli.main", "mcp", *flags]
    return StdioServerParameters(
        command=sys.executable, args=arguments, env={**clean_environ(), "WARREN_URL": url, **environ}
    )


@contextlib.asynccontextmanager
async def connected(
    transport: str, place: "StdioServerParameters | HttpServer", *, mode: str = "auto", **headers: str
) -> AsyncIterator[Client]:
    if isinstance(place, StdioServerParameters):
        async with Client(place, mode="legacy" if transport == "handshake" else mode) as client:
            yield client
    elif transport == "sse":
        async with Client(sse_client(f"{place.url}/sse", headers=headers), mode=mode) as client:
            yield client
    else:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(f"{place.url}/mcp", http_client=http), mode=mode) as client,
        ):
            yield client


class HttpServer:
    """`warren mcp --http` in a process of its own; `log` is what it wrote."""

    def __init__(self, warren_url: str, *flags: str, **environ: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [sys.executable, "-m", "warren.cli.main", "mcp", "--http", "--port", str(self.port), *flags]
        self._process = warm_parent.Popen(
            argv, env={**clean_environ(), "WARREN_URL": warren_url, **environ}, stderr=subprocess.PIPE
        )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "it ended by itself"
            with contextlib.suppress(httpx2.TransportError):
                httpx2.get(f"{self.url}/", timeout=5)
                return
            time.sleep(0.05)
        raise AssertionError("it was not ready in time")

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=20)
        return self._process.returncode


@contextlib.contextmanager
def http_server(warren_url: str, *flags: str, **environ: str) -> Iterator[HttpServer]:
    server = HttpServer(warren_url, *flags, **environ)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
