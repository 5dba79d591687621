"""`warren ports`, `open` and `forward`: servers inside a session's sandbox."""

import asyncio
import contextlib
import re
import signal
from functools import partial
from typing import Any, Final

import click

from warren.cli.console import until_signal
from warren.cli.main import report
from warren.cli.options import Duration, thread_option, url_option
from warren.cli.remote import Answer, RemoteServer, complete_session, line, server_command, split_session, table
from warren.model.errors import PortClosed, Unavailable, WarrenError
from warren.model.numbers import read_digits
from warren.model.preview import check_port
from warren.sdk.aio.remote import AsyncRemote
from warren.sdk.aio.transport import AsyncSocket, AsyncTransport

_PIECE: Final = 64 * 1024
_EOF: Final = "eof"
_OTHER_PORT: Final = "name another port of this machine before that of the sandbox: 8080:3000"
_RULE: Final = re.compile(r"(?:(?:([^\s\[\]]+|\[[0-9A-Fa-f:]+\]):)?([0-9]{1,5}):)?([0-9]{1,5})")


@click.command()
@click.argument("session", required=False, default="", shell_complete=complete_session)
@thread_option
@click.option("--wait", "wait_for", type=int, metavar="PORT", help="Wait until something listens on this port.")
@click.option("--timeout", type=Duration(), default=30.0, metavar="D", help="Wait at most so long: 1m.  [30s]")
@server_command
def ports(server: RemoteServer, session: str, thread: str, wait_for: int | None, timeout: float) -> Answer:
    """Show the ports on which servers inside a session listen.

    Example: warren ports ses_0123 --wait 3000
    """
    session_id = server.find(session, thread)
    waiting: dict[str, Any] = {"wait_for": check_port(wait_for), "timeout_s": timeout} if wait_for else {}
    found = server.backend.call("list_ports", session_id, work_s=timeout if wait_for else 0.0, **waiting)["ports"]
    if not found:
        return Answer(found, partial(report, "nothing listens in this sandbox"))
    rows = [(each["port"], each["address"], "yes" if each["public"] else "no") for each in found]
    return table(found, ("PORT", "ADDRESS", "PUBLIC"), rows)


@click.command("open")
@click.argument("words", nargs=-1, required=True, metavar="SESSION PORT")
@thread_option
@click.option("--expires", type=Duration(), default=3600.0, metavar="D", help="How long the link opens: 1d.  [1h]")
@click.option(
    "--path", "by_path", is_flag=True, help="A path of the server, for programs that cannot resolve the host."
)
@click.option("--local-host", is_flag=True, help="The server sees `localhost` as its host: some refuse other names.")
@click.option("--public/--private", default=None, help="Let everybody open it without a link, or not any more.")
@click.option("--revoke", is_flag=True, help="Close every link to this session that was made before.")
@server_command
def open_port(
    server: RemoteServer,
    words: tuple[str, ...],
    thread: str,
    expires: float,
    by_path: bool,
    local_host: bool,
    public: bool | None,
    revoke: bool,
) -> Answer:
    """Print a link that opens a server inside a session in a browser.

    Example: warren open ses_0123 3000
    """
    session, rest = split_session(words, thread)
    number = read_digits(rest[0]) if len(rest) == 1 else None
    if number is None:
        raise click.UsageError("which port? Give SESSION PORT, such as ses_0123 3000")
    port = check_port(number)
    session_id = server.find(session, thread)
    if revoke:
        server.backend.call("revoke_links", session_id)
    if public is not None:
        server.backend.call("change_port", session_id, port=str(port), public=public)
    host_header = "localhost" if local_host else ""
    values: dict[str, Any] = {"expires_s": expires, "host_header": host_header, "by_path": by_path}
    made = server.backend.call("create_link", session_id, port=port, **values)
    with contextlib.suppress(WarrenError):
        if port not in {each["port"] for each in server.backend.call("list_ports", session_id)["ports"]}:
            report(f"nothing listens on port {port} yet")
    return line(made, made["url"])


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="SESSION [[HOST:]PORT:]PORT...")
@thread_option
@url_option
def forward(words: tuple[str, ...], thread: str, url: str) -> int:
    """Let programs of this machine reach ports of a session, by any protocol over TCP.

    The first port is of this machine, the second of the sandbox; one alone stands for both. It listens on 127.0.0.1
    until Ctrl-C.

    Example: warren forward ses_0123 8080:3000 5432
    """
    session, rest = split_session(words, thread)
    rules = [_read_rule(text) for text in rest]
    if not rules:
        raise click.UsageError("which port? Give SESSION PORT, or SESSION PORT-HERE:PORT-THERE")
    with RemoteServer(url) as server:
        session_id = server.find(session, thread)
        server.backend.call("list_ports", session_id)  # whether it can be done at all
        address, key = server.url, server.key
    code = asyncio.run(until_signal(_forward_all(address, key, session_id, rules)))
    return 0 if code == 128 + signal.SIGINT else code  # Ctrl-C is how it is meant to end


def _read_rule(text: str) -> tuple[str, int, int]:
    match = _RULE.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r}: expected PORT, PORT:PORT or HOST:PORT:PORT")
    there = check_port(int(match[3]))
    here = int(match[2]) if match[2] else there
    if not 0 <= here <= 65535:
        raise click.UsageError(f"{here} is not a port")
    return (match[1] or "127.0.0.1").strip("[]"), here, there


async def _forward_all(address: str, key: str, session_id: str, rules: list[tuple[str, int, int]]) -> int:
    remote = AsyncRemote(AsyncTransport(address, key))
    connections: set[asyncio.Task[Any]] = set()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(remote.close)
        stack.push_async_callback(_end, connections)
        for host, here, there in rules:
            listener = await _listen(remote, session_id, host, here, there, connections)
            stack.callback(listener.close)
            name = listener.sockets[0].getsockname()
            click.echo(f"{name[0]}:{name[1]} leads to port {there} of the sandbox")
        await asyncio.Event().wait()
    return 0


async def _end(connections: set[asyncio.Task[Any]]) -> None:
    ending = list(connections)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def _listen(
    remote: AsyncRemote, session_id: str, host: str, here: int, there: int, connections: set[asyncio.Task[Any]]
) -> asyncio.Server:
    """Listens on this machine. The task of each connection is in `connections` while it lasts."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with remote.socket("forward_socket", session_id, port=str(there)) as socket:
                await _relay(reader, writer, socket)
        except PortClosed as exc:
            report(exc.message)
        except (WarrenError, OSError, ExceptionGroup) as exc:
            report(f"a connection to port {there} ended: {_first(exc)}")
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    try:
        return await asyncio.start_server(accept, host, here, limit=_PIECE)
    except OSError as exc:
        raise Unavailable(f"cannot listen on {host} port {here}: {exc.strerror}", remedy=_OTHER_PORT) from exc


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: AsyncSocket) -> None:
    """Passes data on in both directions. Each ends by itself, and the connection when both have ended."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_send(reader, socket))
        tasks.create_task(_receive(socket, writer))


async def _send(reader: asyncio.StreamReader, socket: AsyncSocket) -> None:
    while data := await reader.read(_PIECE):
        await socket.send(data)
    await socket.send(_EOF)


async def _receive(socket: AsyncSocket, writer: asyncio.StreamWriter) -> None:
    while True:
        message = await socket.receive()
        if message is None:
            raise ConnectionResetError("the server closed it")
        if message == _EOF:
            writer.write_eof()
            await writer.drain()
            return
        assert isinstance(message, bytes)
        writer.write(message)
        await writer.drain()


def _first(exc: BaseException) -> BaseException:
    return _first(exc.exceptions[0]) if isinstance(exc, ExceptionGroup) else exc
