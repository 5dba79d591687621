"""The terminal here and a program in a sandbox, joined: for `warren shell` and `warren exec -t`.

The terminal is put into raw mode: every key, Ctrl-C too, goes to the program inside, and its size is handed on
whenever it changes. It is put back in every case.
"""

import asyncio
import contextlib
import os
import signal
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from warren.cli.streams import read_stream, write_stream
from warren.model.errors import WarrenError
from warren.model.operations import Chunk, Reason, Stream, TerminalSize

if TYPE_CHECKING:
    from warren.sdk.aio.process import AsyncTerminal
    from warren.sdk.results import ExecuteResult

# Leaves the alternate screen, shows the cursor, ends bracketed paste, mouse reports and colours.
_SOBER = b"\033[?1049l\033[?25h\033[?2004l\033[?1000l\033[?1002l\033[?1006l\033[0m"


class Ended(Protocol):
    @property
    def reason(self) -> str: ...


E = TypeVar("E", bound=Ended)
E_co = TypeVar("E_co", bound=Ended, covariant=True)


class Talking(Protocol[E_co]):
    """What is needed of a program with a terminal, wherever it runs."""

    def output(self) -> AsyncIterator[Chunk]: ...
    async def wait(self) -> E_co: ...
    async def write(self, data: bytes) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def resize(self, size: TerminalSize) -> None: ...


def check_terminal(command: str, instead: str) -> None:
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError(f"`{command}` needs a terminal on stdin and stdout; for scripts there is `{instead}`")


def size_here() -> TerminalSize:
    try:
        size = os.get_terminal_size(1)
    except OSError:
        return TerminalSize()
    return TerminalSize(size.lines or 24, size.columns or 80)


async def converse(process: Talking[E]) -> E:
    """Until the program ends; gives its result."""
    with _raw_mode(0) as ended_well:
        async with _followed_size(process), _fed(process):
            async for chunk in process.output():
                await write_stream(1, chunk.data)
            result = await process.wait()
        ended_well(result.reason == Reason.EXITED)
    return result


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
async def _fed(process: Talking[Any]) -> AsyncIterator[None]:
    async def feed() -> None:
        async for data in read_stream(0):
            await process.write(data)
        await process.signal(signal.SIGHUP)

    async with _alongside(feed()):
        yield


@contextlib.asynccontextmanager
async def _followed_size(process: Talking[Any]) -> AsyncIterator[None]:
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await process.resize(size_here())

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    changed.set()
    try:
        async with _alongside(follow()):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.asynccontextmanager
async def _alongside(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        # What goes wrong with the program is said by its output's end; here it is said a second time at most.
        with contextlib.suppress(asyncio.CancelledError, WarrenError):
            await task


class RemoteTerminal:
    """A terminal of a server."""

    def __init__(self, terminal: "AsyncTerminal") -> None:
        self._terminal = terminal

    async def output(self) -> AsyncIterator[Chunk]:
        while data := await self._terminal.read():
            yield Chunk(Stream.TERMINAL, self._terminal.offset - len(data), data)

    async def wait(self) -> "ExecuteResult":
        assert self._terminal.result is not None
        return self._terminal.result

    async def write(self, data: bytes) -> None:
        await self._terminal.write(data)

    async def signal(self, number: int) -> None:
        await self._terminal.signal(number)

    async def resize(self, size: TerminalSize) -> None:
        await self._terminal.resize(size.rows, size.columns)


async def converse_with_server(url: str, key: str, session_id: str, command: dict[str, Any]) -> "ExecuteResult":
    """Runs `command` in a terminal of the session; it has ended, and is forgotten, when this returns or raises."""
    from warren.sdk.aio.process import open_terminal
    from warren.sdk.aio.remote import AsyncRemote
    from warren.sdk.aio.transport import AsyncTransport

    backend = AsyncRemote(AsyncTransport(url, key))
    size = size_here()
    how: dict[str, Any] = {"rows": size.rows, "columns": size.columns}
    try:
        started = await backend.call("start_process", session_id, **command, terminal=how)
        process_id = started["process_id"]
        try:
            async with open_terminal(backend, session_id, process_id=process_id, offset=0, **how) as terminal:
                return await converse(RemoteTerminal(terminal))
        finally:
            with contextlib.suppress(WarrenError):
                await backend.call("send_signal", session_id, process_id=process_id, signal="HUP")
                await backend.call("forget_process", session_id, process_id=process_id)
    finally:
        await backend.close()
