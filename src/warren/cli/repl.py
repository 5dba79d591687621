"""`warren repl`: types code into an interpreter of a session, line by line.

Ctrl-C interrupts the code that runs, and a second one gives it up; Ctrl-D or `exit` ends. The lines that were typed are
remembered until then, and nowhere written.
"""

import ast
import asyncio
import codeop
import contextlib
import json
import signal
import warnings
from pathlib import Path
from typing import Any, Final

import click

from warren.cli.code import (
    Printer,
    context_option,
    exit_code_of,
    find_session,
    open_client,
    session_option,
    session_thread_option,
)
from warren.cli.console import check_terminal
from warren.cli.main import report
from warren.cli.options import environment_option, replace_lost_option, url_option
from warren.cli.remote import RemoteServer
from warren.model.errors import SandboxLost, ServerUnreachable, SessionEnded, SessionNotFound, WarrenError
from warren.sdk.aio.transport import AsyncSocket, AsyncTransport
from warren.sdk.code_results import Execution, ExecutionBuilder
from warren.sdk.protocol import ClientRequest, error_from_event, is_problem

_ENDS: Final = frozenset({"exit", "exit()", "quit", "quit()"})
_PASTE, _PASTE_END = ":paste", ":end"


@click.command()
@click.argument("language", default="python")
@session_option
@session_thread_option
@replace_lost_option
@environment_option("Environment of a fresh session.")
@context_option
@click.option("--timeout", type=float, default=0.0, metavar="S", help="Interrupt code after S seconds.  [never]")
@click.option("--save", "directory", type=click.Path(file_okay=False, path_type=Path), default=".", metavar="DIR",
              help="Save pictures into DIR.  [.]")  # fmt: skip
@url_option
def repl(language: str, context: str, timeout: float, directory: Path, url: str, **where: Any) -> None:
    """Type code into an interpreter: python, javascript, typescript, bash, r or java.

    In a fresh session that ends with it; with --session or --thread in that session, whose interpreter keeps its
    variables. Python asks for more lines as long as a statement is not complete. For other languages a line that ends
    with a backslash goes on in the next one; `:paste` takes lines as they are, up to a line `:end`. Pictures are saved
    into files. Ctrl-C interrupts the code, Ctrl-D or `exit` ends.

    Example: warren repl python --thread conv-42
    """
    check_terminal("warren repl", "warren code -")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` its keys and its memory
    with RemoteServer(url) as server, asyncio.Runner() as runner:
        session = find_session(server, **where)
        stack = contextlib.AsyncExitStack()
        try:
            client = runner.run(stack.enter_async_context(open_client(server, session)))
            transport = AsyncTransport(server.url, server.key)
            stack.push_async_callback(transport.close)
            # Code that does nothing starts the interpreter, and tells which one it is.
            started = runner.run(client.run_code("", language, context))
            click.echo(f"{started.language} in {client.session_id}, {started.context_id}; Ctrl-D ends it")
            values = {"context": started.context_id, "timeout_s": timeout}
            cells = _Cells(transport, client.session_id, values, Printer(directory))
            _run_cells(runner, cells, started.language)
        finally:
            runner.run(stack.aclose())


def _run_cells(runner: asyncio.Runner, cells: "_Cells", language: str) -> None:
    while True:
        try:
            cell = _read_cell(language)
            execution = runner.run(cells.run(cell)) if cell.strip() else None
            if execution is not None:
                exit_code_of(execution)
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return
        except (SandboxLost, SessionEnded, SessionNotFound):
            raise
        except WarrenError as exc:
            report(exc.message, exc.remedy)


class _Cells:
    """Runs each cell over a WebSocket of its own, so that Ctrl-C interrupts this cell and nobody else's."""

    def __init__(self, transport: AsyncTransport, session_id: str, values: dict[str, Any], printer: Printer) -> None:
        self._transport, self._values, self._printer = transport, values, printer
        self._request = ClientRequest("GET", f"/api/sessions/{session_id}/code")

    async def run(self, cell: str) -> Execution | None:
        """Runs a cell. Returns None if the user gives it up."""
        loop = asyncio.get_running_loop()
        async with self._transport.socket(self._request) as socket:
            task = asyncio.ensure_future(self._follow(socket, cell))
            interrupts: list[asyncio.Future[None]] = []

            def interrupt() -> None:
                if interrupts:
                    task.cancel()
                interrupts.append(asyncio.ensure_future(socket.send(json.dumps({"type": "interrupt"}))))

            loop.add_signal_handler(signal.SIGINT, interrupt)
            try:
                return await task
            except asyncio.CancelledError:
                report("this code was given up; if it does not heed that, its interpreter is ended")
                return None
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                await asyncio.gather(*interrupts, return_exceptions=True)

    async def _follow(self, socket: AsyncSocket, cell: str) -> Execution:
        await socket.send(json.dumps({"code": cell, **self._values}))
        builder = ExecutionBuilder()
        while (message := await socket.receive()) is not None:
            values = json.loads(message)
            name = values.pop("type")
            if is_problem(name, values):
                raise error_from_event(values)
            told = builder.add(name, values)
            if told is not None:
                await self._printer.show(told)
            if builder.has_ended:
                return builder.execution()
        raise ServerUnreachable("the connection was cut off while the code ran", remedy="the server may have stopped")


# -- what is typed


def _read_cell(language: str) -> str:
    """Returns the next cell that the user types. Raises EOFError if the user wants to end."""
    first, more = (">>> ", "... ") if language == "python" else (f"{language}> ", "... ")
    lines = [input(first)]
    if lines[0].strip() in _ENDS:
        raise EOFError
    if lines[0].strip() == _PASTE:
        return _read_pasted()
    while _needs_more(language, lines):
        lines.append(input(more))
    return join_lines(language, lines)


def _read_pasted() -> str:
    lines: list[str] = []
    with contextlib.suppress(EOFError):
        while (line := input()) != _PASTE_END:
            lines.append(line)
    return "\n".join(lines)


def _needs_more(language: str, lines: list[str]) -> bool:
    return is_incomplete_python("\n".join(lines)) if language == "python" else lines[-1].endswith("\\")


def join_lines(language: str, lines: list[str]) -> str:
    """Joins the lines of a cell. Python and bash know a backslash at the end of a line themselves; for other languages
    it only means that the cell goes on, and is removed."""
    if language in ("python", "bash"):
        return "\n".join(lines)
    return "\n".join(line.removesuffix("\\") for line in lines)


def is_incomplete_python(source: str) -> bool:
    """Whether a statement goes on. What is wrong, or new to this version of Python, is for the sandbox to judge."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compiler(source, "<input>", "single") is None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return False
