"""A program that uses `warren mcp` with version 1 of the MCP SDK, on both sides: it runs where that is installed.

Its argument is the URL of a Warren server; it prints what it got over each transport, as JSON.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

_COMMAND = ["-m", "warren.cli.main", "mcp"]


@contextlib.asynccontextmanager
async def opened(transport: str, port: int) -> AsyncIterator[ClientSession]:
    headers = {"X-Warren-Thread": "by-header"}
    streams: Any = {
        "stdio": lambda: stdio_client(
            StdioServerParameters(command=sys.executable, args=[*_COMMAND, "--thread", "by-flag"], env=dict(os.environ))
        ),
        "http": lambda: streamablehttp_client(f"http://127.0.0.1:{port}/mcp", headers=headers),
        "sse": lambda: sse_client(f"http://127.0.0.1:{port}/sse", headers=headers),
    }[transport]
    async with streams() as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def use(session: ClientSession) -> dict[str, Any]:
    tools = (await session.list_tools()).tools
    info = await session.call_tool("sandbox_info", {})
    wrong = await session.call_tool("write_file", {"path": "a", "content": "b", "mode": 7})
    unknown = await session.call_tool("nope", {})
    written = await session.call_tool("write_file", {"path": "a.txt", "content": "hello"})
    read = await session.call_tool("read_file", {"path": "a.txt"})
    return {
        "with_schema": sum(tool.outputSchema is not None for tool in tools),
        "sandbox": (info.structuredContent or {})["sandbox"],
        "wrong": [wrong.isError, wrong.content[0].text],
        "unknown": [unknown.isError, unknown.content[0].text],
        "written": written.structuredContent,
        "read": read.content[0].text,
    }


async def use_all(port: int) -> dict[str, Any]:
    found = {}
    for transport in ("stdio", "http", "sse"):
        async with opened(transport, port) as session:
            found[transport] = await use(session)
    return found


def main(url: str) -> None:
    os.environ["WARREN_URL"] = url
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = subprocess.Popen([sys.executable, *_COMMAND, "--http", "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        print(json.dumps({"version": version("mcp"), **asyncio.run(use_all(port))}))
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    main(sys.argv[1])
