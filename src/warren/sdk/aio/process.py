"""Background commands of a sandbox, and terminals in it."""

import base64
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from warren.model.errors import Conflict, SandboxLost, WarrenError
from warren.sdk.aio.backend import AsyncBackend, AsyncSocketLike
from warren.sdk.protocol import error_from_event
from warren.sdk.results import ExecuteResult, OutputChunk, OutputDecoder, ProcessInfo

_LONGEST_WAIT_S: Final = 60.0
_SHORTEST_WAIT_S: Final = 0.01
_PIECE_BYTES: Final = 1024 * 1024
_STDIN_S: Final = 3600.0  # a command may take its time to read


class AsyncProcess:
    """A background command. It goes on in the sandbox without this object; `client.process(id)` finds it again."""

    def __init__(self, backend: AsyncBackend, session_id: str, process_id: str) -> None:
        self._backend, self._session_id, self.id = backend, session_id, process_id

    def __repr__(self) -> str:
        return f"<AsyncProcess {self.id} of {self._session_id}>"

    async def _call(self, operation: str, *, work_s: float = 0.0, **arguments: Any) -> dict[str, Any]:
        return await self._backend.call(operation, self._session_id, process_id=self.id, work_s=work_s, **arguments)

    async def info(self) -> ProcessInfo:
        """Returns the command, and whether it still runs."""
        return ProcessInfo.of(await self._call("get_process"))

    async def output(self, offset: int = 0) -> str:
        """Returns the output that is kept so far, from a byte offset on; bytes that are not UTF-8 are replaced."""
        return (await self.output_bytes(offset)).decode(errors="replace")

    async def output_bytes(self, offset: int = 0) -> bytes:
        """Returns the output that is kept so far as bytes, from a byte offset on."""
        parts, has_more = [], True
        while has_more:
            how: dict[str, Any] = {"offset": offset, "limit": _PIECE_BYTES, "encoding": "base64"}
            found = await self._call("read_output", **how)
            parts += [base64.b64decode(chunk["data"]) for chunk in found["chunks"]]
            has_more = bool(found["chunks"]) and found["next_offset"] > offset
            offset = found["next_offset"]
        return b"".join(parts)

    async def follow(self, offset: int = 0) -> AsyncGenerator[OutputChunk, None]:
        """Yields the output as it comes, until the command ends. Leaving the loop does not end the command."""
        decoder = OutputDecoder()
        wanted = {"process_id": self.id, "offset": offset, "encoding": "base64"}
        following = self._backend.events("read_output", self._session_id, **wanted)
        async with contextlib.aclosing(following) as events:
            async for name, values in events:
                if name == "output":
                    yield decoder.decode(values)
        for chunk in decoder.finish():
            yield chunk

    async def wait(self, timeout: float | None = None) -> ExecuteResult:
        """Waits for the end and returns the result. Raises TimeoutError if it still runs after `timeout` seconds."""
        left_s = timeout
        while True:
            wait_s = _LONGEST_WAIT_S if left_s is None else min(_LONGEST_WAIT_S, max(left_s, _SHORTEST_WAIT_S))
            found = await self._call("wait_for_process", work_s=wait_s, timeout_s=wait_s)
            if "output" in found:  # else it is shown as a process that still runs
                return ExecuteResult.of(found)
            if left_s is not None and (left_s := left_s - _LONGEST_WAIT_S) <= 0:
                raise TimeoutError(f"the command {self.id} still runs after {timeout} s")

    async def write(self, data: str | bytes) -> None:
        """Writes to its standard input."""
        raw = data.encode() if isinstance(data, str) else data
        for start in range(0, len(raw), _PIECE_BYTES):
            piece = base64.b64encode(raw[start : start + _PIECE_BYTES]).decode()
            await self._call("write_stdin", work_s=_STDIN_S, data_base64=piece)

    async def close_stdin(self) -> None:
        """Closes its standard input."""
        await self._call("write_stdin", work_s=_STDIN_S, close=True)

    async def signal(self, signal: str | int) -> None:
        """Sends a signal, by name (TERM, INT …) or number."""
        await self._call("send_signal", signal=signal)

    async def kill(self, grace_s: float = 2.0) -> ExecuteResult:
        """Ends the command and everything it started; the result says how many processes were killed."""
        return ExecuteResult.of(await self._call("kill_process", work_s=grace_s, grace_s=grace_s))

    async def forget(self) -> None:
        """Ends the command, if it runs, and deletes its output."""
        await self._call("forget_process")


class AsyncTerminal:
    """An open terminal. `process_id` and `offset` are what you need to come back to it later."""

    def __init__(self, socket: AsyncSocketLike) -> None:
        self._socket = socket
        self.process_id = ""
        self.offset = 0
        self.result: ExecuteResult | None = None

    def __repr__(self) -> str:
        state = "open" if self.result is None else f"ended with {self.result.exit_code}"
        return f"<AsyncTerminal {self.process_id} {state}>"

    async def write(self, data: str | bytes) -> None:
        """Types `data`."""
        await self._socket.send(data.encode() if isinstance(data, str) else data)

    async def resize(self, rows: int, columns: int) -> None:
        """Tells its programs the new size of the window."""
        await self._send(type="resize", rows=rows, columns=columns)

    async def signal(self, signal: str | int) -> None:
        """Sends a signal, by name (TERM, INT …) or number."""
        await self._send(type="signal", signal=signal)

    async def read(self, timeout: float | None = None) -> bytes:
        """Returns the next piece of output; empty when the terminal has ended. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.result is None:
            message = await self._socket.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if isinstance(message, bytes):
                self.offset += len(message)
                return message
            if message is None:
                raise SandboxLost("the terminal was cut off", remedy="open it again with its process_id and offset")
            self._handle(json.loads(message))
        return b""

    async def read_until(self, text: str, timeout: float = 30.0) -> str:
        """Reads until `text` has come; returns all that was read. Raises TimeoutError if it does not come in time."""
        seen, sought, deadline = b"", text.encode(), time.monotonic() + timeout
        while sought not in seen:
            try:
                piece = await self.read(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(f"{text!r} did not come in {timeout} s, but {_tail(seen)}") from None
            if not piece:
                raise SandboxLost(f"the terminal ended before {text!r} came, after {_tail(seen)}")
            seen += piece
        return seen.decode(errors="replace")

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "started":
            self.process_id, self.offset = message["process_id"], message["offset"]
        elif message["type"] == "gap":  # what lies between was not kept
            self.offset = message["offset"]
        elif message["type"] == "result":
            self.result = ExecuteResult.of(message)
        elif message["type"] == "error":
            raise error_from_event(message)

    async def begin(self) -> None:
        """Waits until the terminal is open."""
        while not self.process_id:
            message = await self._socket.receive(_LONGEST_WAIT_S)
            if not isinstance(message, str):
                raise SandboxLost("the terminal did not open")
            self._handle(json.loads(message))

    async def _send(self, **message: Any) -> None:
        await self._socket.send(json.dumps(message))


def _tail(seen: bytes) -> str:
    return repr(seen[-200:].decode(errors="replace"))


@contextlib.asynccontextmanager
async def open_terminal(backend: AsyncBackend, session_id: str, **how: Any) -> AsyncIterator[AsyncTerminal]:
    async with backend.socket("terminal_socket", session_id, **how) as socket:
        terminal = AsyncTerminal(socket)
        await terminal.begin()
        yield terminal


@contextlib.asynccontextmanager
async def start_terminal(
    backend: AsyncBackend, session_id: str, command: dict[str, Any], **how: Any
) -> AsyncIterator[AsyncTerminal]:
    """Opens a terminal whose command has a user or variables; returns to it if it exists already."""
    started_id = ""
    with contextlib.suppress(Conflict):
        started = await backend.call(
            "start_process", session_id, **command, terminal={k: how[k] for k in ("rows", "columns")}
        )
        started_id = how["process_id"] = started["process_id"]
    try:
        async with open_terminal(backend, session_id, **how) as terminal:
            started_id = ""
            yield terminal
    finally:
        if started_id:  # the caller does not know its id
            with contextlib.suppress(WarrenError):
                await backend.call("forget_process", session_id, process_id=started_id)
