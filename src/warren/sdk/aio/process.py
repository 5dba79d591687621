"""A command that runs in the background of a sandbox, and a terminal in one."""

import base64
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from warren.model.errors import Conflict, SandboxLost, WarrenError
from warren.sdk.aio.backend import AsyncBackend, AsyncSocketLike
from warren.sdk.chunks import Chunks
from warren.sdk.results import ExecuteResult, OutputChunk, ProcessInfo
from warren.sdk.wire import from_event

_WAIT_S: Final = 60.0
_LEAST_S: Final = 0.01
_PIECE: Final = 1024 * 1024


class AsyncProcess:
    """It lives in the sandbox: losing this object changes nothing, and `client.process(id)` finds it again."""

    def __init__(self, backend: AsyncBackend, session_id: str, process_id: str) -> None:
        self._backend, self._session_id, self.id = backend, session_id, process_id

    def __repr__(self) -> str:
        return f"<AsyncProcess {self.id} of {self._session_id}>"

    async def info(self) -> ProcessInfo:
        return ProcessInfo.of(await self._backend.process(self._session_id, self.id))

    async def output(self, offset: int = 0) -> str:
        """What is kept of its output so far, from a byte offset on; what is no UTF-8 is replaced."""
        return (await self.output_bytes(offset)).decode(errors="replace")

    async def output_bytes(self, offset: int = 0) -> bytes:
        """The same, every byte of it."""
        parts, running = [], True
        while running:
            how = {"offset": offset, "limit": _PIECE, "encoding": "base64"}
            found = await self._backend.output(self._session_id, self.id, **how)
            parts += [base64.b64decode(chunk["data"]) for chunk in found["chunks"]]
            running = bool(found["chunks"]) and found["next_offset"] > offset
            offset = found["next_offset"]
        return b"".join(parts)

    async def follow(self, offset: int = 0) -> AsyncGenerator[OutputChunk, None]:
        """Its output as it comes, until it ends. Leaving the loop does not end it."""
        chunks = Chunks()
        async with contextlib.aclosing(self._backend.follow(self._session_id, self.id, offset)) as events:
            async for name, values in events:
                if name == "output":
                    yield chunks.chunk(values)
        for chunk in chunks.rest():
            yield chunk

    async def wait(self, timeout: float | None = None) -> ExecuteResult:
        """Its result. TimeoutError if it still runs after `timeout` seconds."""
        left = timeout
        while True:
            this_time = _WAIT_S if left is None else min(_WAIT_S, max(left, _LEAST_S))
            found = await self._backend.wait(self._session_id, self.id, this_time)
            if found is not None:
                return ExecuteResult.of(found)
            if left is not None and (left := left - _WAIT_S) <= 0:
                raise TimeoutError(f"the command {self.id} still runs after {timeout} s")

    async def write(self, data: str | bytes) -> None:
        """To its standard input."""
        raw = data.encode() if isinstance(data, str) else data
        for start in range(0, len(raw), _PIECE):
            piece = base64.b64encode(raw[start : start + _PIECE]).decode()
            await self._backend.stdin(self._session_id, self.id, {"data_base64": piece})

    async def close_stdin(self) -> None:
        await self._backend.stdin(self._session_id, self.id, {"close": True})

    async def signal(self, signal: str | int) -> None:
        """By name (TERM, INT …) or number."""
        await self._backend.signal(self._session_id, self.id, signal)

    async def kill(self, grace_s: float = 2.0) -> ExecuteResult:
        """Ends it and everything it started; the result says how many that were."""
        return ExecuteResult.of(await self._backend.kill(self._session_id, self.id, grace_s))

    async def forget(self) -> None:
        """Ends it, if it runs, and forgets its output."""
        await self._backend.forget(self._session_id, self.id)


class AsyncTerminal:
    """An open terminal. `process_id` and `offset` are what it takes to come back to it later."""

    def __init__(self, socket: AsyncSocketLike) -> None:
        self._socket = socket
        self.process_id = ""
        self.offset = 0
        self.result: ExecuteResult | None = None

    def __repr__(self) -> str:
        state = "open" if self.result is None else f"ended with {self.result.exit_code}"
        return f"<AsyncTerminal {self.process_id} {state}>"

    async def write(self, data: str | bytes) -> None:
        """What is typed."""
        await self._socket.send(data.encode() if isinstance(data, str) else data)

    async def resize(self, rows: int, columns: int) -> None:
        await self._say(type="resize", rows=rows, columns=columns)

    async def signal(self, signal: str | int) -> None:
        await self._say(type="signal", signal=signal)

    async def read(self, timeout: float | None = None) -> bytes:
        """The next piece of what it shows; empty when it has ended. TimeoutError if nothing comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.result is None:
            message = await self._socket.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if isinstance(message, bytes):
                self.offset += len(message)
                return message
            if message is None:
                raise SandboxLost("the terminal was cut off", remedy="open it again with its process_id and offset")
            self._take(json.loads(message))
        return b""

    async def read_until(self, text: str, timeout: float = 30.0) -> str:
        """What it shows up to and with `text`, and what came with it. TimeoutError if it does not come in time."""
        seen, wanted, deadline = b"", text.encode(), time.monotonic() + timeout
        while wanted not in seen:
            try:
                piece = await self.read(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(f"{text!r} did not come in {timeout} s, but {_tail(seen)}") from None
            if not piece:
                raise SandboxLost(f"the terminal ended before {text!r} came, after {_tail(seen)}")
            seen += piece
        return seen.decode(errors="replace")

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "started":
            self.process_id, self.offset = message["process_id"], message["offset"]
        elif message["type"] == "result":
            self.result = ExecuteResult.of(message)
        elif message["type"] == "error":
            raise from_event(message)

    async def begin(self) -> None:
        while not self.process_id:
            message = await self._socket.receive(_WAIT_S)
            if not isinstance(message, str):
                raise SandboxLost("the terminal did not open")
            self._take(json.loads(message))

    async def _say(self, **message: Any) -> None:
        await self._socket.send(json.dumps(message))


def _tail(seen: bytes) -> str:
    return repr(seen[-200:].decode(errors="replace"))


@contextlib.asynccontextmanager
async def open_terminal(backend: AsyncBackend, session_id: str, **how: Any) -> AsyncIterator[AsyncTerminal]:
    async with backend.terminal(session_id, **how) as socket:
        terminal = AsyncTerminal(socket)
        await terminal.begin()
        yield terminal


@contextlib.asynccontextmanager
async def start_terminal(
    backend: AsyncBackend, session_id: str, command: dict[str, Any], **how: Any
) -> AsyncIterator[AsyncTerminal]:
    """As `open_terminal`, with what only a command can have: a user, variables. One that is there is come back to."""
    made = ""
    with contextlib.suppress(Conflict):
        started = await backend.start(session_id, {**command, "terminal": {k: how[k] for k in ("rows", "columns")}})
        made = how["process_id"] = started["process_id"]
    try:
        async with open_terminal(backend, session_id, **how) as terminal:
            made = ""
            yield terminal
    finally:
        if made:  # nobody knows of it
            with contextlib.suppress(WarrenError):
                await backend.forget(session_id, made)
