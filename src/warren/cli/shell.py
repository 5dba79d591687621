"""`warren shell`: an interactive terminal in a fresh sandbox.

The terminal here is put into raw mode: every key, Ctrl-C too, goes to the program inside, and its
size is handed on whenever it changes. It is put back in every case.
"""

import asyncio
import contextlib
import os
import signal
import termios
import tty
from collections.abc import AsyncIterator, Iterator

import click

from warren.cli.fresh import Wanted, sandbox_options, use_fresh_sandbox
from warren.cli.run import exit_code_of
from warren.cli.streams import read_stream, write_stream
from warren.config import read_settings
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.operations import Command, Reason, TerminalSize

_SHELL = "command -v bash >/dev/null && exec bash; exec sh"
# Leaves the alternate screen, shows the cursor, ends bracketed paste, mouse reports and colours.
_SOBER = b"\033[?1049l\033[?25h\033[?2004l\033[?1000l\033[?1002l\033[?1006l\033[0m"


@click.command()
@sandbox_options
@click.option("--user", default="", metavar="U", help="User inside the sandbox.  [sandboxuser]")
@click.option("--cwd", default="", metavar="D", help="Directory to start in.  [/workspace]")
def shell(user: str, cwd: str, **options: object) -> int:
    """Open an interactive terminal in a fresh sandbox."""
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError("`warren shell` needs a terminal on stdin and stdout; for scripts there is `warren run`")
    settings = read_settings()
    command = Command(
        argv=("/bin/sh", "-c", _SHELL), env={"TERM": settings.terminal}, user=user, cwd=cwd, terminal=_size_here()
    )
    wanted = Wanted(**options)  # type: ignore[arg-type]
    return use_fresh_sandbox(settings, wanted, lambda sandbox: _converse(sandbox, command))


async def _converse(sandbox: Sandbox, command: Command) -> int:
    process = await sandbox.start(command, follow=True)
    with _raw_mode(0) as ended_well:
        async with _followed_size(process), _fed(process):
            async for chunk in process.output():
                await write_stream(1, chunk.data)
            result = await process.wait()
        ended_well(result.reason is Reason.EXITED)
    return exit_code_of(result, command)


@contextlib.contextmanager
def _raw_mode(fd: int) -> "Iterator[_EndedWell]":
    before = termios.tcgetattr(fd)
    well = _EndedWell()
    tty.setraw(fd, termios.TCSADRAIN)
    try:
        yield well
    finally:
        if not well.value:
            with contextlib.suppress(OSError):
                os.write(1, _SOBER)
        with contextlib.suppress(termios.error):  # the terminal itself may be gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _EndedWell:
    value = False

    def __call__(self, value: bool) -> None:
        self.value = value


@contextlib.asynccontextmanager
async def _fed(process: Process) -> AsyncIterator[None]:
    async def feed() -> None:
        async for data in read_stream(0):
            await process.write(data)
        await process.signal(signal.SIGHUP)

    task = asyncio.create_task(feed())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _followed_size(process: Process) -> AsyncIterator[None]:
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await process.resize(_size_here())

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    task = asyncio.create_task(follow())
    changed.set()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _size_here() -> TerminalSize:
    try:
        size = os.get_terminal_size(1)
    except OSError:
        return TerminalSize()
    return TerminalSize(size.lines or 24, size.columns or 80)
