"""`warren mcp`: sandboxes as tools for programs that speak the Model Context Protocol."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from warren.cli.options import network_options, network_values
from warren.model.addresses import is_loopback
from warren.model.errors import InvalidRequest, Unavailable
from warren.model.session import check_thread_id

if TYPE_CHECKING:
    from warren.integrations.mcp.sandboxes import Sandboxes
    from warren.integrations.mcp.server import ToolServer
    from warren.model.tool import Tool

_SHUTDOWN_S = 3


def _refuse_argument(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuses the key as an argument: every user of the machine can read arguments."""
    if ctx.get_parameter_source("key") is ParameterSource.COMMANDLINE:
        raise click.UsageError("give the key by the environment variable WARREN_MCP_KEY: others can read arguments")
    return value


@click.command()
@click.option("--url", default="", metavar="URL", help="The Warren server. By default WARREN_URL.")
@click.option("--local", is_flag=True, help="Without a server: this process makes the sandboxes, on this machine.")
@click.option(
    "--thread",
    default="mcp",
    metavar="T",
    show_default=True,
    envvar="WARREN_MCP_THREAD",
    help="The name of the default sandbox.",
)
@click.option(
    "--environment", default="", metavar="NAME", help="The environment of new sandboxes. By default the server's."
)
@click.option("--agent", default="", metavar="NAME", help="An agent of the registry: serve its tools too.")
@network_options
@click.option("--http", is_flag=True, help="Serve HTTP instead of standard input and output.")
@click.option(
    "--host", default="127.0.0.1", metavar="HOST", show_default=True, help="With --http: the address to listen on."
)
@click.option(
    "--port", default=8010, show_default=True, type=click.IntRange(0, 65535), metavar="N", help="With --http: the port."
)
@click.option(
    "--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="Another name that clients reach it by."
)
@click.option("--key", default="", envvar="WARREN_MCP_KEY", hidden=True, callback=_refuse_argument)
def mcp(
    url: str,
    local: bool,
    thread: str,
    environment: str,
    agent: str,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    internet: bool,
    no_network: bool,
    http: bool,
    host: str,
    port: int,
    allowed_hosts: tuple[str, ...],
    key: str,
) -> None:
    """Serve sandboxes to an MCP client, on stdin and stdout or by HTTP.

    With --http, clients find it at /mcp (streamable HTTP) and at /sse (SSE). The tools' argument sandbox chooses a
    sandbox, else the header X-Warren-Thread, else --thread; the sandbox outlives the connection. Give keys by the
    environment (WARREN_MCP_KEY, and WARREN_API_KEY for the Warren server), where other users cannot see them.

    Example: warren mcp --url http://localhost:8000 --thread my-project
    """
    if local and url:
        raise click.UsageError("give either --local or --url")
    check_thread_id(thread)
    if http:
        check_exposure(host, key)
    network = network_values(allow, deny, internet, no_network)
    made_with = {"environment": environment, "network": network, "agent": agent}
    asyncio.run(_serve(url, local, thread, made_with, (host, port, allowed_hosts, key) if http else None))


def check_exposure(host: str, key: str) -> None:
    """Raises InvalidRequest if others than this machine could reach a server without a key: its callers can run
    commands in every sandbox."""
    if not key and not is_loopback(host):
        raise InvalidRequest(
            f"without a key the MCP server listens on loopback only, not on {host}",
            remedy="set WARREN_MCP_KEY to a long random text, or leave --host out",
        )


async def _serve(
    url: str, local: bool, thread: str, made_with: dict[str, Any], http: tuple[str, int, tuple[str, ...], str] | None
) -> None:
    async with _open_server(url, local, thread, made_with) as server:
        if http is not None:
            await _serve_http(server, *http)
        elif not (number := await _serve_stdio(server)):
            return
    if http is None:
        # A thread that waits for a client that does not read cannot be woken, and an orderly exit would wait for it.
        os._exit(128 + number)


async def _serve_stdio(server: "ToolServer") -> int:
    """Serves until the client closes the stream (returns 0), or a signal comes (returns its number)."""
    from warren.integrations.mcp.stdio import serve_stdio

    caught: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, caught.put_nowait, number)
    serving, signalled = asyncio.ensure_future(serve_stdio(server)), asyncio.ensure_future(caught.get())
    await asyncio.wait([serving, signalled], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        signalled.cancel()
        serving.result()
        return 0
    serving.cancel()
    return signalled.result()


@contextlib.asynccontextmanager
async def _open_server(url: str, local: bool, thread: str, made_with: dict[str, Any]) -> "AsyncIterator[ToolServer]":
    from warren.integrations.mcp.sandboxes import Sandboxes
    from warren.integrations.mcp.server import ToolServer
    from warren.model.version import __version__
    from warren.sdk.addresses import parse_address
    from warren.sdk.aio.platform import open_backend
    from warren.sdk.discovery import find_url

    if not local:
        parse_address(url or find_url())  # a mistake in it is told now, not to the first call
    sandboxes = Sandboxes(partial(open_backend, "local" if local else "remote", url, None), thread=thread, **made_with)
    try:
        yield ToolServer(sandboxes, __version__, await _load_tools(sandboxes, made_with["agent"]))
    finally:
        await sandboxes.close()


async def _load_tools(sandboxes: "Sandboxes", agent: str) -> "tuple[Tool, ...]":
    from warren.integrations.aio.agents import load_agent

    return (await load_agent(await sandboxes.connect(), agent)).tools if agent else ()


async def _serve_http(server: "ToolServer", host: str, port: int, allowed_hosts: tuple[str, ...], key: str) -> None:
    try:
        import uvicorn

        from warren.integrations.mcp.sdk_adapter import build_http_app
    except ModuleNotFoundError as exc:
        raise Unavailable(
            f"serving MCP over HTTP needs the package {exc.name}, which is not installed",
            remedy="pip install 'warren-sandbox[mcp]'",
        ) from exc
    listener = _listen(host, port)
    app = build_http_app(server, host, allowed_hosts, key)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S)
    shown_host = f"[{host}]" if ":" in host else host
    click.echo(f"Warren serves MCP at http://{shown_host}:{listener.getsockname()[1]}/mcp (SSE at /sse)", err=True)
    await uvicorn.Server(config).serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off, which costs 40 ms a call, only if the protocol is named.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as exc:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {exc.strerror or exc}", remedy="choose another --port"
        ) from exc
