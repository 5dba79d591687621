"""The streams, the terminal and the signals of this process, for commands that run a program in a sandbox.

Streams are used in an event loop without changing their flags, which belong to other processes too: the loop waits
until a terminal, pipe or socket is ready, and it is then read, or written in pieces that cannot block. A regular file
is always ready.

`attach_terminal` joins this terminal with a program in a sandbox, for `warren shell` and `warren exec -t`. It puts the
terminal into raw mode, so every key, Ctrl-C too, goes to the program; passes on changes of its size; and restores it
in every case.
"""

import asyncio
import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from warren.cli.main import EXIT_WARREN_FAILED, report
from warren.cli.output import STREAM_FDS, print_json
from warren.model.errors import WarrenError
from warren.model.operations import Chunk, ExecResult, OutputStream, Reason, TerminalSize
from warren.sdk.results import ExecuteResult

if TYPE_CHECKING:
    from warren.sdk.aio.process import AsyncTerminal

Values = dict[str, Any]
Sink = Callable[[str, bytes], Awaitable[None]]

EXIT_TIMEOUT: Final = 124
_PIECE_BYTES: Final = 4096  # PIPE_BUF on Linux: a pipe that polls as writable takes this much without blocking
_READ_BYTES: Final = 256 * 1024

# Leaves the alternate screen, shows the cursor, ends bracketed paste, mouse reports and colours.
_RESET_SCREEN: Final = b"\033[?1049l\033[?25h\033[?2004l\033[?1000l\033[?1002l\033[?1006l\033[0m"


# -- streams


async def read_stream(fd: int) -> AsyncIterator[bytes]:
    """Yields what comes in on `fd`, until its end."""
    while True:
        await _wait_until_ready(fd, select.POLLIN)
        try:
            data = os.read(fd, _READ_BYTES)
        except OSError:  # a terminal that hung up
            return
        if not data:
            return
        yield data


async def write_stream(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        await _wait_until_ready(fd, select.POLLOUT)
        view = view[os.write(fd, view[:_PIECE_BYTES]) :]


async def _wait_until_ready(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if poll.poll(0):
        return
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if event == select.POLLIN else (loop.add_writer, loop.remove_writer)
    )

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fd, wake)
    try:
        await ready
    finally:
        remove(fd)


# -- commands


async def until_signal(work: Awaitable[int]) -> int:
    """Returns the exit code of `work`, or 128 + N when the signal N cancelled it.

    Signals after the first wait until the work has cleaned up.
    """
    task = asyncio.ensure_future(work)
    caught: list[int] = []

    def cancel(number: int) -> None:
        if not caught:
            caught.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cancel, number)
    try:
        return int(await task)
    except asyncio.CancelledError:
        if not caught:
            raise
        return 128 + caught[0]


async def show_command(
    run: Callable[[Sink], Awaitable[Values]], timeout_s: float | None, as_json: bool, memory_hint: str
) -> int:
    """Runs a command and returns its exit code. Passes its output on, or prints all of it in one JSON document.

    `run` calls the sink with every piece of output and returns how the command ended.
    """
    collected = {"output": bytearray(), "stdout": bytearray(), "stderr": bytearray()}

    async def collect(stream: str, data: bytes) -> None:
        collected["output"] += data
        collected[stream] += data

    async def pass_on(stream: str, data: bytes) -> None:
        await write_stream(STREAM_FDS[stream], data)

    try:
        ended = await run(collect if as_json else pass_on)
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    if as_json:
        print_json({**ended, **{name: data.decode(errors="replace") for name, data in collected.items()}})
    return exit_code_of(ExecuteResult.of(ended), timeout_s, memory_hint)


def exit_code_of(result: ExecuteResult | ExecResult, timeout_s: float | None, memory_hint: str) -> int:
    """Returns the exit code of `warren` for a command; reports an end that the command did not choose itself."""
    if result.reason == Reason.TIMEOUT:
        limit = "its time-out" if timeout_s is None else f"{timeout_s:g} s"
        report(f"the command was ended after {limit}, with {result.killed} processes", "--timeout S gives it longer")
        return EXIT_TIMEOUT
    if result.reason == Reason.OOM:
        report("the command ran out of memory", memory_hint)
    if result.reason == Reason.SANDBOX_LOST:
        report("the sandbox was lost while the command ran")
        return EXIT_WARREN_FAILED
    return result.exit_code


# -- the terminal


class _Ended(Protocol):
    @property
    def reason(self) -> str: ...


E = TypeVar("E", bound=_Ended)
E_co = TypeVar("E_co", bound=_Ended, covariant=True)


class TerminalProcess(Protocol[E_co]):
    """What `attach_terminal` needs of a program with a terminal, wherever it runs."""

    def output(self) -> AsyncIterator[Chunk]: ...
    async def wait(self) -> E_co: ...
    async def write(self, data: bytes) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def resize(self, size: TerminalSize) -> None: ...


def check_terminal(command: str, instead: str) -> None:
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError(f"`{command}` needs a terminal on stdin and stdout; for scripts there is `{instead}`")


def terminal_size() -> TerminalSize:
    try:
        size = os.get_terminal_size(1)
    except OSError:
        return TerminalSize()
    return TerminalSize(size.lines or 24, size.columns or 80)


async def attach_terminal(process: TerminalProcess[E]) -> E:
    """Joins this terminal with a program until the program ends; returns its result."""
    with _raw_mode(0) as mode:
        async with _following_size(process), _passing_input(process):
            async for chunk in process.output():
                await write_stream(1, chunk.data)
            result = await process.wait()
        mode.reset_screen = result.reason != Reason.EXITED
    return result


class _RawMode:
    reset_screen = True


@contextlib.contextmanager
def _raw_mode(fd: int) -> Iterator[_RawMode]:
    before = termios.tcgetattr(fd)
    mode = _RawMode()
    tty.setraw(fd, termios.TCSADRAIN)
    try:
        yield mode
    finally:
        if mode.reset_screen:
            with contextlib.suppress(OSError):
                os.write(1, _RESET_SCREEN)
        with contextlib.suppress(termios.error):  # the terminal itself may be gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.asynccontextmanager
async def _passing_input(process: TerminalProcess[Any]) -> AsyncIterator[None]:
    async def pass_on() -> None:
        async for data in read_stream(0):
            await process.write(data)
        await process.signal(signal.SIGHUP)

    async with _in_background(pass_on()):
        yield


@contextlib.asynccontextmanager
async def _following_size(process: TerminalProcess[Any]) -> AsyncIterator[None]:
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            with contextlib.suppress(WarrenError):  # the next change tries again
                await process.resize(terminal_size())

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    changed.set()
    try:
        async with _in_background(follow()):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.asynccontextmanager
async def _in_background(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        # An error here repeats what the program's output already reports.
        with contextlib.suppress(asyncio.CancelledError, WarrenError):
            await task


class _RemoteTerminal:
    """A terminal of a server as a TerminalProcess."""

    def __init__(self, terminal: "AsyncTerminal") -> None:
        self._terminal = terminal

    async def output(self) -> AsyncIterator[Chunk]:
        while data := await self._terminal.read():
            yield Chunk(OutputStream.TERMINAL, self._terminal.offset - len(data), data)

    async def wait(self) -> ExecuteResult:
        assert self._terminal.result is not None
        return self._terminal.result

    async def write(self, data: bytes) -> None:
        await self._terminal.write(data)

    async def signal(self, number: int) -> None:
        await self._terminal.signal(number)

    async def resize(self, size: TerminalSize) -> None:
        await self._terminal.resize(size.rows, size.columns)


async def run_remote_terminal(url: str, key: str, session_id: str, command: Values) -> ExecuteResult:
    """Runs `command` in a terminal of the session; the server has ended and forgotten it when this returns."""
    from warren.sdk.aio.process import open_terminal
    from warren.sdk.aio.remote import AsyncRemote
    from warren.sdk.aio.transport import AsyncTransport

    backend = AsyncRemote(AsyncTransport(url, key))
    size = terminal_size()
    rows_and_columns: Values = {"rows": size.rows, "columns": size.columns}
    try:
        started = await backend.call("start_process", session_id, **command, terminal=rows_and_columns)
        process_id = started["process_id"]
        try:
            opened = open_terminal(backend, session_id, process_id=process_id, offset=0, **rows_and_columns)
            async with opened as terminal:
                return await attach_terminal(_RemoteTerminal(terminal))
        finally:
            with contextlib.suppress(WarrenError):
                await backend.call("send_signal", session_id, process_id=process_id, signal="HUP")
                await backend.call("forget_process", session_id, process_id=process_id)
    finally:
        await backend.close()
