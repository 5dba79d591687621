"""Code contexts of the fake sandbox: its small shell plays every interpreter, and keeps its state between cells."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from warren.model.code import CELL_LOST, CELL_NO_KEEPER, NO_PROGRAM, frame
from warren.testing.fake_shell import FakeShell, FakeTerminal


class FakeKeeper(FakeTerminal, Protocol):
    handlers: dict[int, Callable[[], object]]


class FakeContext:
    """A shell, and the cell that runs in it."""

    def __init__(self, pid: int, shell: FakeShell) -> None:
        self.pid, self.shell = pid, shell
        self.turn = asyncio.Lock()
        self.cell: asyncio.Task[int] | None = None
        self.count = 0
        self.lost = False

    def interrupt(self) -> None:
        if self.cell is not None:
            self.cell.cancel()


class _CellTerminal:
    """Wraps the output of a cell's shell in frames, and passes them to the cell's process."""

    def __init__(self, process: FakeKeeper) -> None:
        self._process = process
        self.pid, self.ignored = process.pid, process.ignored

    async def emit(self, stream: int, data: bytes) -> None:
        await self._process.emit(1, frame("e" if stream == 2 else "o", data))

    async def take_input(self) -> bytes:
        return b""

    def spawn(self, work: Awaitable[object]) -> None:
        self._process.spawn(work)

    def signal_pid(self, pid: int, number: int) -> bool:
        return self._process.signal_pid(pid, number)


class FakeAgent:
    """Plays the agent's program as a command: `context` keeps a shell, `cell` runs code in it."""

    def __init__(self, contexts: dict[str, FakeContext], process: FakeKeeper, shell: FakeShell) -> None:
        self._contexts, self._process, self._shell = contexts, process, shell
        self.user = shell.user

    async def call(self, argv: list[str]) -> int:
        return await (self._keep(argv) if argv[1] == "context" else self._run_cell(argv))

    async def _keep(self, argv: list[str]) -> int:
        context_id, program = argv[argv.index("--id") + 1], argv[argv.index("--") + 1]
        if program not in ("bash", "python3"):  # the small shell plays both
            await self._process.emit(2, f"{program}: not found\n".encode())
            return NO_PROGRAM
        context = self._contexts[context_id] = FakeContext(self._process.pid, self._shell)
        self._process.handlers[2] = context.interrupt
        named = [name for option, name in itertools.pairwise(argv) if option == "--env"]
        variables = "".join(f"{name}={self._shell.env[name]}\0" for name in named)
        told = frame("d", self._shell.cwd.encode()) + frame("v", variables.encode())
        try:
            await self._process.emit(1, told + frame("h", b'{"version": "fake"}'))
            await asyncio.Event().wait()
        finally:
            context.lost = True
            context.interrupt()
        return 0

    async def _run_cell(self, argv: list[str]) -> int:
        parts = []
        while part := await self._process.take_input():
            parts.append(part)
        request = json.loads(b"".join(parts))
        context = self._contexts.get(argv[4])
        if context is None or context.lost or str(context.pid) != argv[3]:
            return CELL_NO_KEEPER
        async with context.turn:
            if context.lost:
                return CELL_NO_KEEPER
            return await self._run_code(context, request)

    async def _run_code(self, context: FakeContext, request: dict[str, Any]) -> int:
        shell, before = context.shell, dict(context.shell.env)
        await self._process.emit(1, frame("b", b""))
        shell.process, shell.env = _CellTerminal(self._process), {**before, **request["env"]}
        context.count += 1
        cell = context.cell = asyncio.ensure_future(shell.run(request["code"]))
        error: dict[str, str] | None = None
        try:
            await asyncio.wait([cell])
            if cell.cancelled():
                error = {"name": "Interrupted", "value": "", "traceback": ""}
            elif cell.exception() is not None:
                error = {"name": "FakeError", "value": repr(cell.exception()), "traceback": ""}
            elif cell.result():
                error = {"name": "ExitStatus", "value": str(cell.result()), "traceback": ""}
        except asyncio.CancelledError:  # a time-out, or the caller has left
            cell.cancel()
            await self._end(context, {"name": "Interrupted", "value": "", "traceback": ""})
            raise
        finally:
            context.cell = None
            for name in request["env"]:
                shell.env.pop(name, None)
                if name in before:
                    shell.env[name] = before[name]
        if context.lost:
            await self._process.emit(1, frame("l", b"signal 9"))
            return CELL_LOST
        await self._end(context, error)
        return 0

    async def _end(self, context: FakeContext, error: dict[str, str] | None) -> None:
        end = {"execution_count": context.count, "error": error}
        await self._process.emit(1, frame("x", json.dumps(end).encode()))
