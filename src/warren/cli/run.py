"""`warren run`: one command in a fresh sandbox, as if it ran here: its streams, its exit code."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import click

from warren.cli.main import EXIT_WARREN_FAILED, report
from warren.cli.one_off import Wanted, sandbox_options, use_fresh_sandbox
from warren.cli.streams import read_stream, write_stream
from warren.cli.tables import print_json
from warren.config.settings import read_settings
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.operations import Command, ExecResult, Reason, Stream

_EXIT_TIMEOUT = 124
Sink = Callable[[Stream, bytes], Awaitable[None]]
_FDS = {Stream.STDOUT: 1, Stream.STDERR: 2, Stream.TERMINAL: 1}


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@sandbox_options
@click.option("--timeout", type=float, metavar="S", help="End the command, with all its processes, after S seconds.")
@click.option("--user", default="", metavar="U", help="User inside the sandbox.  [sandboxuser]")
@click.option("--cwd", default="", metavar="D", help="Directory to start in.  [/workspace]")
@click.option("-e", "variables", multiple=True, metavar="K=V", help="Environment variable for the command.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
@click.argument("command", nargs=-1, required=True)
def run(
    command: tuple[str, ...],
    timeout: float | None,
    user: str,
    cwd: str,
    variables: tuple[str, ...],
    as_json: bool,
    **options: object,
) -> int:
    """Run a command in a fresh sandbox.

    stdin (if it is no terminal), output and exit code are passed on; with --json the output is in the document.

    Example: warren run -- python3 -c 'print(6 * 7)'
    """
    wanted = Wanted(**options)  # type: ignore[arg-type]
    order = Command(argv=command, env=parse_variables(variables), user=user, cwd=cwd, timeout_s=timeout)
    work = _document if as_json else _pass_on
    return use_fresh_sandbox(read_settings(), wanted, lambda sandbox: work(sandbox, order))


def parse_variables(variables: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in variables]
    for name, equals, _ in pairs:
        if not equals:
            raise click.UsageError(f"-e {name}: expected K=V")
    return {name: value for name, _, value in pairs}


async def _pass_on(sandbox: Sandbox, command: Command) -> int:
    async def write(stream: Stream, data: bytes) -> None:
        await write_stream(_FDS[stream], data)

    try:
        result = await _run(sandbox, command, write)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    return exit_code_of(result, command)


async def _document(sandbox: Sandbox, command: Command) -> int:
    """All it said, as `warren exec --json` gives it: what is kept for others to read is only a part of it."""
    parts: dict[str, bytearray] = {"output": bytearray(), "stdout": bytearray(), "stderr": bytearray()}

    async def collect(stream: Stream, data: bytes) -> None:
        parts["output"] += data
        parts[stream] += data

    result = await _run(sandbox, command, collect)
    print_json({**asdict(result), **{name: data.decode(errors="replace") for name, data in parts.items()}})
    return exit_code_of(result, command)


async def _run(sandbox: Sandbox, command: Command, sink: Sink) -> ExecResult:
    process = await sandbox.start(command, follow=True)
    feeding = asyncio.create_task(_feed(process))
    try:
        async for chunk in process.output():
            await sink(chunk.stream, chunk.data)
        return await process.wait()
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding


async def _feed(process: Process) -> None:
    """Hands stdin on. A terminal is not handed on: that is what `warren shell` is for."""
    if sys.stdin is not None and not os.isatty(0):
        async for data in read_stream(0):
            await process.write(data)
    await process.close_stdin()


def exit_code_of(result: ExecResult, command: Command) -> int:
    if result.reason is Reason.TIMEOUT:
        report(f"the command was ended after {command.timeout_s:g} s, with {result.killed} processes")
        return _EXIT_TIMEOUT
    if result.reason is Reason.OOM:
        report("the command ran out of memory", "give it more: --memory MB")
    if result.reason is Reason.SANDBOX_LOST:
        report("the sandbox was lost while the command ran")
        return EXIT_WARREN_FAILED
    return result.exit_code
