"""`warren code`: runs a file of code in an interpreter of a session, and shows what it gives.

Texts go to stdout and stderr as they come, pictures into files. Ctrl-C interrupts the code.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final

import click

from warren import AsyncSandboxClient
from warren.cli.console import EXIT_TIMEOUT, until_signal, write_stream
from warren.cli.main import EXIT_WARREN_FAILED, report
from warren.cli.options import environment_option, parse_pairs, replace_lost_option, server_options
from warren.cli.output import print_json, printable
from warren.cli.remote import ImageProgress, RemoteServer, complete_session
from warren.sdk.code_results import Execution, ExecutionError, OutputMessage, Result

EXIT_CODE_FAILED: Final = 1
_LANGUAGES: Final = {
    ".py": "python",
    ".js": "javascript",
    ".mjs": "javascript",
    ".ts": "typescript",
    ".sh": "bash",
    ".r": "r",
    ".java": "java",
}

session_option = click.option(
    "--session", default="", metavar="S", shell_complete=complete_session, help="In this session.  [a fresh one]"
)
session_thread_option = click.option("--thread", default="", metavar="T", help="In this thread's session.")
context_option = click.option("--context", default="", metavar="C", help="In this interpreter.  [the language's own]")


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "-l", "--language", default="", metavar="L",
    help="python, javascript, typescript, bash, r or java.  [by FILE's suffix]",
)  # fmt: skip
@session_option
@session_thread_option
@replace_lost_option
@environment_option("Environment of a fresh session.")
@context_option
@click.option("--timeout", type=float, metavar="S", help="Interrupt it after S seconds.")
@click.option("-e", "variables", multiple=True, metavar="K=V", help="Environment variable for this code.")
@click.option("--save", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Save pictures that it shows into DIR.")  # fmt: skip
@server_options
def code(
    file: IO[bytes],
    language: str,
    context: str,
    timeout: float | None,
    variables: tuple[str, ...],
    directory: Path | None,
    url: str,
    as_json: bool,
    **where: Any,
) -> int:
    """Run a file of code, or - for stdin, in an interpreter.

    The interpreter of a session keeps its variables for the next `warren code` or `warren repl`; without --session or
    --thread a fresh session is made and ended. The value of the last expression is printed. The exit code is 1 if the
    code raised an error, 124 if its time ran out.

    Example: warren code --session ses_0123 --save charts analysis.py
    """
    text = file.read().decode(errors="surrogateescape")
    language = language or _LANGUAGES.get(Path(file.name).suffix.lower(), "")
    options: dict[str, Any] = {"timeout": timeout, "env": parse_pairs("-e", variables), "context": context}

    async def run() -> int:
        async with open_client(server, session) as client:
            if as_json:
                execution = await client.run_code(text, language, **options)
                print_json(json.loads(execution.to_json()))
                save_pictures(execution, directory)
            else:
                printer = Printer(directory)
                execution = await client.run_code(text, language, **options, **printer.callbacks)
            return exit_code_of(execution)

    with RemoteServer(url) as server:
        session = find_session(server, **where)
        try:
            return asyncio.run(until_signal(run()))
        except BrokenPipeError:
            return 128 + signal.SIGPIPE


def find_session(
    server: RemoteServer, session: str, thread: str, replace_lost: bool, environment: str
) -> dict[str, Any]:
    """Returns the options for a client of the session that is meant, or of a fresh one that ends with the client."""
    if session and thread:
        raise click.UsageError("give --session or --thread, not both")
    if (session or thread) and environment:
        raise click.UsageError("--environment is for a fresh session: it does not go with --session and --thread")
    if session or thread:
        return {"session_id": server.find_or_create(session, thread, replace_lost)}
    if replace_lost:
        raise click.UsageError("--replace-lost needs --thread")
    return {"environment": environment}


@contextlib.asynccontextmanager
async def open_client(server: RemoteServer, session: dict[str, Any]) -> AsyncIterator[AsyncSandboxClient]:
    progress = ImageProgress()
    async with contextlib.AsyncExitStack() as stack:
        try:
            client = AsyncSandboxClient(server.url, api_key=server.key, on_image_progress=progress, **session)
            await stack.enter_async_context(client)
        finally:
            progress.end()
        yield client


class Printer:
    """Shows the output and the results of code while it runs."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @property
    def callbacks(self) -> dict[str, Any]:
        return dict.fromkeys(("on_stdout", "on_stderr", "on_result", "on_error"), self.show)

    async def show(self, given: OutputMessage | Result | ExecutionError) -> None:
        if isinstance(given, OutputMessage):
            await _write(2 if given.error else 1, given)
        elif isinstance(given, ExecutionError):
            await _write(2, f"{(given.traceback or str(given)).rstrip()}\n")
        elif given.is_picture:
            save_picture(given, self._directory)
        elif given.text is not None:
            await _write(1, f"{given.text}\n")
        else:
            report(f"the code showed a value that is no text: {printable(', '.join(given.formats()))}")


async def _write(fd: int, text: str) -> None:
    await write_stream(fd, text.encode(errors="replace"))


def save_pictures(execution: Execution, directory: Path | None) -> None:
    for result in execution.results:
        if directory is not None and result.is_picture:
            save_picture(result, directory)


def save_picture(result: Result, directory: Path | None) -> None:
    """Saves a picture under a name that no file has yet, and says so on stderr."""
    if directory is None:
        report("the code showed a picture", "--save DIR saves pictures into files")
        return
    directory.mkdir(parents=True, exist_ok=True)
    taken = {path.stem for path in directory.iterdir()}
    number = next(number for number in range(1, len(taken) + 2) if f"picture-{number}" not in taken)
    click.echo(f"[{result.save(directory / f'picture-{number}')}]", err=True)


def exit_code_of(execution: Execution) -> int:
    """Returns the exit code of `warren` for this code; reports an end that the code did not choose itself."""
    if execution.truncated:
        report("some output is missing: the code gave more than is kept")
    if execution.reason == "timeout":
        report("the code was interrupted: its time ran out", "--timeout S gives it longer")
        return EXIT_TIMEOUT
    if execution.reason == "sandbox_lost":
        report("the sandbox was lost while the code ran")
        return EXIT_WARREN_FAILED
    if execution.context_lost:
        report(f"the interpreter was lost ({execution.context_lost}), with its variables")
    return 0 if execution.ok else EXIT_CODE_FAILED
