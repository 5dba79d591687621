"""`warren exec`: a command in a session of a server, as if it ran here: its streams, its exit code.

The command runs over a WebSocket, whose messages carry its output byte by byte, and ends with it. Ctrl-C, or a reader
of its output that goes away, ends the command with all its processes before `warren` returns.
"""

import asyncio
import base64
import contextlib
import json
from functools import partial
from typing import Any, Final

import click

from warren.cli.console import (
    Sink,
    check_terminal,
    exit_code_of,
    read_stream,
    run_remote_terminal,
    show_command,
    until_signal,
)
from warren.cli.options import command_options, parse_pairs, replace_lost_option, server_options, thread_option
from warren.cli.output import print_json
from warren.cli.remote import RemoteServer, complete_session, split_session
from warren.config.settings import read_settings
from warren.model.errors import ServerUnreachable, WarrenError
from warren.sdk.protocol import ClientRequest, error_from_event

Values = dict[str, Any]

MEMORY_HINT: Final = "`warren create --memory MB` makes a session with more"
_KILL_S: Final = 10.0
_AFTER_DASHES: Final = "warren.exec"
_CUT_OFF: Final = "the server stopped, or nobody took the output for long; -d and `warren logs` wait for slow readers"


class _ExecCommand(click.Command):
    """Takes the words after `--` as the command, whatever they look like; without `--`, all words after SESSION."""

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
@replace_lost_option
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="End it, and all it started, after S seconds.")
@command_options("where the last command ended, at first /workspace")
@click.option("-e", "--env", "variables", multiple=True, metavar="K=V", help="Environment variable for the command.")
@click.option("-i", "--interactive", is_flag=True, help="Pass stdin on.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Give it a terminal (and stdin).")
@click.option("-d", "--detach", is_flag=True, help="Start it in the background and print its process id.")
@click.option("--name", default="", metavar="N", help="With -d: a process id of your own.")
@server_options
@click.pass_context
def execute(ctx: click.Context, /, words: tuple[str, ...], thread: str, url: str, as_json: bool, **options: Any) -> int:
    """Run a command in a session.

    Its output and exit code are passed on, and so is stdin with -i; Ctrl-C ends it. A thread without a session gets
    one. Without --timeout the server's time-out applies (120 seconds), but not to -t and -d.

    Example: warren exec --thread conv-42 -- python3 -c 'print(6 * 7)'
    """
    name, argv = _split_command(ctx, words, thread)
    timeout_s: float | None = options["timeout_s"]
    command: Values = {
        "command": list(argv),
        "user": options["user"],
        "cwd": options["cwd"],
        "env": parse_pairs("-e", options["variables"]),
    }
    if timeout_s is not None:
        command["timeout_s"] = timeout_s
    _check_options(as_json=as_json, **options)
    with RemoteServer(url) as server:
        session_id = server.find_or_create(name, thread, options["replace_lost"])
        if options["detach"]:
            return _start(server, session_id, {**command, "process_id": options["name"]}, as_json)
        if options["terminal"]:
            command["env"] = {"TERM": read_settings().terminal, **command["env"]}
            return asyncio.run(until_signal(run_in_terminal(server, session_id, command, timeout_s)))
        run = partial(_run_to_end, server, session_id, command, options["interactive"])
        return asyncio.run(until_signal(show_command(run, timeout_s, as_json, MEMORY_HINT)))


def _split_command(ctx: click.Context, words: tuple[str, ...], thread: str) -> tuple[str, tuple[str, ...]]:
    name, rest = split_session(words, thread)
    argv: tuple[str, ...] = ctx.meta.get(_AFTER_DASHES, rest)
    if _AFTER_DASHES in ctx.meta and rest:
        raise click.UsageError(f"put `--` right before the command: what is {rest[0]!r}?")
    if not argv:
        raise click.UsageError("which command? Write it after `--`")
    return name, argv


def _check_options(*, detach: bool, terminal: bool, interactive: bool, name: str, as_json: bool, **_: object) -> None:
    if detach and (terminal or interactive):
        raise click.UsageError("-d goes with neither -i nor -t: nobody is there")
    if name and not detach:
        raise click.UsageError("--name is for a command in the background: -d")
    if terminal and as_json:
        raise click.UsageError("-t and --json do not go together")
    if terminal:
        check_terminal("warren exec -t", "warren exec -i")


def _start(server: RemoteServer, session_id: str, command: Values, as_json: bool) -> int:
    started = server.backend.call("start_process", session_id, **command)
    print_json(started) if as_json else click.echo(started["process_id"])
    return 0


async def run_in_terminal(server: RemoteServer, session_id: str, command: Values, timeout_s: float | None) -> int:
    result = await run_remote_terminal(server.url, server.key, session_id, command)
    return exit_code_of(result, timeout_s, MEMORY_HINT)


async def _run_to_end(server: RemoteServer, session_id: str, command: Values, interactive: bool, sink: Sink) -> Values:
    """Returns how the command ended. Cancelling this, or an error of the sink, ends the command too."""
    from warren.sdk.aio.transport import AsyncTransport

    transport = AsyncTransport(server.url, server.key)
    request = ClientRequest("GET", f"/api/sessions/{session_id}/exec", {"encoding": "base64"})
    try:
        async with transport.socket(request) as socket:
            await socket.send(json.dumps(command))
            sending = asyncio.create_task(_send_input(socket, interactive))
            try:
                return await _receive_output(socket, sink)
            except (BrokenPipeError, asyncio.CancelledError):
                await _kill(socket)
                raise
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, WarrenError):
                    await sending
    finally:
        await transport.close()


async def _send_input(socket: Any, interactive: bool) -> None:
    if interactive:
        async for data in read_stream(0):
            await socket.send(data)
    await socket.send(json.dumps({"type": "close_stdin"}))


async def _receive_output(socket: Any, sink: Sink) -> Values:
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


async def _kill(socket: Any) -> None:
    async def drop(stream: str, data: bytes) -> None:
        return None

    with contextlib.suppress(WarrenError, TimeoutError):
        async with asyncio.timeout(_KILL_S):
            await socket.send(json.dumps({"type": "kill"}))
            await _receive_output(socket, drop)
