"""`warren exec`: a command in a session of a server, as if it ran here: its streams, its exit code.

It runs over a WebSocket, byte by byte as it is, and ends with it. Ctrl-C, or a reader that goes away, ends the
command with all its processes before this returns.
"""

import asyncio
import base64
import contextlib
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import click

from warren.cli.one_off import until_signal
from warren.cli.remote import (
    Server,
    complete_session,
    exit_code_of,
    parse_pairs,
    server_options,
    take_session,
    thread_option,
)
from warren.cli.streams import read_stream, write_stream
from warren.cli.tables import print_json
from warren.cli.terminal import check_terminal, converse_with_server
from warren.config.settings import read_settings
from warren.model.errors import ServerUnreachable, WarrenError
from warren.sdk.protocol import Request, error_from_event
from warren.sdk.results import ExecuteResult

Sink = Callable[[str, bytes], Awaitable[None]]
_FDS: Final = {"stdout": 1, "stderr": 2, "terminal": 1}
_END_S: Final = 10.0  # how long a command may take to be ended
_AFTER_DASHES: Final = "warren.exec"
_CUT_OFF: Final = "the server stopped, or nobody took the output for long; -d and `warren logs` wait for slow readers"


class _ExecCommand(click.Command):
    """What stands after `--` is the command, whatever it looks like; without `--`, all after SESSION is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_AFTER_DASHES] = tuple(args[at + 1 :])
            return super().parse_args(ctx, args[:at])
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


@click.command("exec", cls=_ExecCommand)
@click.argument("words", nargs=-1, metavar="SESSION -- COMMAND…", shell_complete=complete_session)
@thread_option
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="End it, and all it started, after S seconds.")
@click.option("--user", default="", metavar="U", help="User inside the sandbox.  [sandboxuser]")
@click.option("--cwd", default="", metavar="D", help="Directory.  [where the last command ended, at first /workspace]")
@click.option("-e", "variables", multiple=True, metavar="K=V", help="Environment variable for the command.")
@click.option("-i", "interactive", is_flag=True, help="Pass stdin on.")
@click.option("-t", "terminal", is_flag=True, help="Give it a terminal (and stdin).")
@click.option("-d", "--detach", is_flag=True, help="Start it in the background and print its process id.")
@click.option("--name", default="", metavar="N", help="With -d: a process id of your own.")
@server_options
@click.pass_context
def execute(ctx: click.Context, /, words: tuple[str, ...], thread: str, url: str, as_json: bool, **options: Any) -> int:
    """Run a command in a session.

    Its output and exit code are passed on, and so is stdin with -i; Ctrl-C ends it. A thread without a session gets
    one. Without --timeout the server's applies (120 seconds), but not to -t and -d.

    Example: warren exec --thread conv-42 -- python3 -c 'print(6 * 7)'
    """
    name, line = _split(ctx, words, thread)
    command = _command(line, **{key: options[key] for key in ("timeout_s", "user", "cwd", "variables")})
    _check_options(as_json=as_json, **options)
    with Server(url) as server:
        session_id = server.find_or_make(name, thread)
        if options["detach"]:
            return _detach(server, session_id, {**command, "process_id": options["name"]}, as_json)
        if options["terminal"]:
            command["env"] = {"TERM": read_settings().terminal, **command["env"]}
            ended = converse_with_server(server.url, server.key, session_id, command)
            return asyncio.run(until_signal(_coded(ended, options["timeout_s"])))
        work = _document if as_json else _pass_on
        return asyncio.run(until_signal(work(server, session_id, command, options["interactive"])))


def _split(ctx: click.Context, words: tuple[str, ...], thread: str) -> tuple[str, tuple[str, ...]]:
    name, rest = take_session(words, thread)
    line: tuple[str, ...] = ctx.meta.get(_AFTER_DASHES, rest)
    if _AFTER_DASHES in ctx.meta and rest:
        raise click.UsageError(f"put `--` right before the command: what is {rest[0]!r}?")
    if not line:
        raise click.UsageError("which command? Write it after `--`")
    return name, line


def _command(
    line: tuple[str, ...], timeout_s: float | None, user: str, cwd: str, variables: tuple[str, ...]
) -> dict[str, Any]:
    values: dict[str, Any] = {"command": list(line), "user": user, "cwd": cwd, "env": parse_pairs("-e", variables)}
    return values if timeout_s is None else {**values, "timeout_s": timeout_s}


def _check_options(*, detach: bool, terminal: bool, interactive: bool, name: str, as_json: bool, **_: object) -> None:
    if detach and (terminal or interactive):
        raise click.UsageError("-d goes with neither -i nor -t: nobody is there")
    if name and not detach:
        raise click.UsageError("--name is for a command in the background: -d")
    if terminal and as_json:
        raise click.UsageError("-t and --json do not go together")
    if terminal:
        check_terminal("warren exec -t", "warren exec -i")


def _detach(server: Server, session_id: str, command: dict[str, Any], as_json: bool) -> int:
    started = server.backend.start(session_id, command)
    print_json(started) if as_json else click.echo(started["process_id"])
    return 0


async def _coded(ended: Awaitable[ExecuteResult], timeout_s: float | None) -> int:
    return exit_code_of(await ended, timeout_s)


async def _pass_on(server: Server, session_id: str, command: dict[str, Any], interactive: bool) -> int:
    async def write(stream: str, data: bytes) -> None:
        await write_stream(_FDS[stream], data)

    try:
        ended = await run_to_end(server, session_id, command, interactive, write)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    return exit_code_of(ExecuteResult.of(ended), command.get("timeout_s"))


async def _document(server: Server, session_id: str, command: dict[str, Any], interactive: bool) -> int:
    parts: dict[str, bytearray] = {"output": bytearray(), "stdout": bytearray(), "stderr": bytearray()}

    async def collect(stream: str, data: bytes) -> None:
        parts["output"] += data
        parts[stream] += data

    ended = await run_to_end(server, session_id, command, interactive, collect)
    print_json({**ended, **{name: data.decode(errors="replace") for name, data in parts.items()}})
    return exit_code_of(ExecuteResult.of(ended), command.get("timeout_s"))


async def run_to_end(
    server: Server, session_id: str, command: dict[str, Any], interactive: bool, sink: Sink
) -> dict[str, Any]:
    """How it ended. Whatever stops this ends the command too."""
    from warren.sdk.aio.transport import AsyncTransport

    transport = AsyncTransport(server.url, server.key)
    request = Request("GET", f"/api/sessions/{session_id}/exec", {"encoding": "base64"})
    try:
        async with transport.socket(request) as socket:
            await socket.send(json.dumps(command))
            feeding = asyncio.create_task(_feed(socket, interactive))
            try:
                return await _listen(socket, sink)
            except (BrokenPipeError, asyncio.CancelledError):
                await _end(socket)
                raise
            finally:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError, WarrenError):
                    await feeding
    finally:
        await transport.close()


async def _feed(socket: Any, interactive: bool) -> None:
    if interactive:
        async for data in read_stream(0):
            await socket.send(data)
    await socket.send(json.dumps({"type": "close_stdin"}))


async def _listen(socket: Any, sink: Sink) -> dict[str, Any]:
    while (message := await socket.receive()) is not None:
        values = json.loads(message)
        if values["type"] == "output":
            await sink(values["stream"], base64.b64decode(values["data"]))
        elif values["type"] == "error":
            raise error_from_event(values)
        elif values["type"] == "result":
            del values["type"]
            return dict(values)
    raise ServerUnreachable("the connection was cut off while the command ran", remedy=_CUT_OFF)


async def _end(socket: Any) -> None:
    async def drop(stream: str, data: bytes) -> None:
        return None

    with contextlib.suppress(WarrenError, TimeoutError):
        async with asyncio.timeout(_END_S):
            await socket.send(json.dumps({"type": "kill"}))
            await _listen(socket, drop)
