"""Background commands of a sandbox, and terminals in it."""

# Made from src/warren/sdk/aio/process.py by scripts/generate_sync.py: edit that one.

import base64
import contextlib
import json
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

from warren.model.errors import Conflict, SandboxLost, WarrenError
from warren.sdk.blocking.backend import Backend, SocketLike
from warren.sdk.protocol import error_from_event
from warren.sdk.results import ExecuteResult, OutputChunk, OutputDecoder, ProcessInfo

_LONGEST_WAIT_S: Final = 60.0
_SHORTEST_WAIT_S: Final = 0.01
_PIECE_BYTES: Final = 1024 * 1024
_STDIN_S: Final = 3600.0  # a command may take its time to read


class Process:
    """A background command. It goes on in the sandbox without this object; `client.process(id)` finds it again."""

    def __init__(self, backend: Backend, session_id: str, process_id: str) -> None:
        self._backend, self._session_id, self.id = backend, session_id, process_id

    def __repr__(self) -> str:
        return f"<Process {self.id} of {self._session_id}>"

    def _call(self, operation: str, *, work_s: float = 0.0, **arguments: Any) -> dict[str, Any]:
        return self._backend.call(operation, self._session_id, process_id=self.id, work_s=work_s, **arguments)

    def info(self) -> ProcessInfo:
        """Returns the command, and whether it still runs."""
        return ProcessInfo.of(self._call("get_process"))

    def output(self, offset: int = 0) -> str:
        """Returns the output that is kept so far, from a byte offset on; bytes that are not UTF-8 are replaced."""
        return (self.output_bytes(offset)).decode(errors="replace")

    def output_bytes(self, offset: int = 0) -> bytes:
        """Returns the output that is kept so far as bytes, from a byte offset on."""
        parts, has_more = [], True
        while has_more:
            how: dict[str, Any] = {"offset": offset, "limit": _PIECE_BYTES, "encoding": "base64"}
            found = self._call("read_output", **how)
            parts += [base64.b64decode(chunk["data"]) for chunk in found["chunks"]]
            has_more = bool(found["chunks"]) and found["next_offset"] > offset
            offset = found["next_offset"]
        return b"".join(parts)

    def follow(self, offset: int = 0) -> Generator[OutputChunk, None, None]:
        """Yields the output as it comes, until the command ends. Leaving the loop does not end the command."""
        decoder = OutputDecoder()
        wanted = {"process_id": self.id, "offset": offset, "encoding": "base64"}
        following = self._backend.events("read_output", self._session_id, **wanted)
        with contextlib.closing(following) as events:
            for name, values in events:
                if name == "output":
                    yield decoder.decode(values)
        yield from decoder.finish()

    def wait(self, timeout: float | None = None) -> ExecuteResult:
        """Waits for the end and returns the result. Raises TimeoutError if it still runs after `timeout` seconds."""
        left_s = timeout
        while True:
            wait_s = _LONGEST_WAIT_S if left_s is None else min(_LONGEST_WAIT_S, max(left_s, _SHORTEST_WAIT_S))
            found = self._call("wait_for_process", work_s=wait_s, timeout_s=wait_s)
            if "output" in found:  # else it is shown as a process that still runs
                return ExecuteResult.of(found)
            if left_s is not None and (left_s := left_s - _LONGEST_WAIT_S) <= 0:
                raise TimeoutError(f"the command {self.id} still runs after {timeout} s")

    def write(self, data: str | bytes) -> None:
        """Writes to its standard input."""
        raw = data.encode() if isinstance(data, str) else data
        for start in range(0, len(raw), _PIECE_BYTES):
            piece = base64.b64encode(raw[start : start + _PIECE_BYTES]).decode()
            self._call("write_stdin", work_s=_STDIN_S, data_base64=piece)

    def close_stdin(self) -> None:
        """Closes its standard input."""
        self._call("write_stdin", work_s=_STDIN_S, close=True)

    def signal(self, signal: str | int) -> None:
        """Sends a signal, by name (TERM, INT …) or number."""
        self._call("send_signal", signal=signal)

    def kill(self, grace_s: float = 2.0) -> ExecuteResult:
        """Ends the command and everything it started; the result says how many processes were killed."""
        return ExecuteResult.of(self._call("kill_process", work_s=grace_s, grace_s=grace_s))

    def forget(self) -> None:
        """Ends the command, if it runs, and deletes its output."""
        self._call("forget_process")


class Terminal:
    """An open terminal. `process_id` and `offset` are what you need to come back to it later."""

    def __init__(self, socket: SocketLike) -> None:
        self._socket = socket
        self.process_id = ""
        self.offset = 0
        self.result: ExecuteResult | None = None

    def __repr__(self) -> str:
        state = "open" if self.result is None else f"ended with {self.result.exit_code}"
        return f"<Terminal {self.process_id} {state}>"

    def write(self, data: str | bytes) -> None:
        """Types `data`."""
        self._socket.send(data.encode() if isinstance(data, str) else data)

    def resize(self, rows: int, columns: int) -> None:
        """Tells its programs the new size of the window."""
        self._send(type="resize", rows=rows, columns=columns)

    def signal(self, signal: str | int) -> None:
        """Sends a signal, by name (TERM, INT …) or number."""
        self._send(type="signal", signal=signal)

    def read(self, timeout: float | None = None) -> bytes:
        """Returns the next piece of output; empty when the terminal has ended. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.result is None:
            message = self._socket.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if isinstance(message, bytes):
                self.offset += len(message)
                return message
            if message is None:
                raise SandboxLost("the terminal was cut off", remedy="open it again with its process_id and offset")
            self._handle(json.loads(message))
        return b""

    def read_until(self, text: str, timeout: float = 30.0) -> str:
        """Reads until `text` has come; returns all that was read. Raises TimeoutError if it does not come in time."""
        seen, sought, deadline = b"", text.encode(), time.monotonic() + timeout
        while sought not in seen:
            try:
                piece = self.read(max(0.0, deadline - time.monotonic()))
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

    def begin(self) -> None:
        """Waits until the terminal is open."""
        while not self.process_id:
            message = self._socket.receive(_LONGEST_WAIT_S)
            if not isinstance(message, str):
                raise SandboxLost("the terminal did not open")
            self._handle(json.loads(message))

    def _send(self, **message: Any) -> None:
        self._socket.send(json.dumps(message))


def _tail(seen: bytes) -> str:
    return repr(seen[-200:].decode(errors="replace"))


@contextlib.contextmanager
def open_terminal(backend: Backend, session_id: str, **how: Any) -> Iterator[Terminal]:
    with backend.socket("terminal_socket", session_id, **how) as socket:
        terminal = Terminal(socket)
        terminal.begin()
        yield terminal


@contextlib.contextmanager
def start_terminal(backend: Backend, session_id: str, command: dict[str, Any], **how: Any) -> Iterator[Terminal]:
    """Opens a terminal whose command has a user or variables; returns to it if it exists already."""
    started_id = ""
    with contextlib.suppress(Conflict):
        started = backend.call(
            "start_process", session_id, **command, terminal={k: how[k] for k in ("rows", "columns")}
        )
        started_id = how["process_id"] = started["process_id"]
    try:
        with open_terminal(backend, session_id, **how) as terminal:
            started_id = ""
            yield terminal
    finally:
        if started_id:  # the caller does not know its id
            with contextlib.suppress(WarrenError):
                backend.call("forget_process", session_id, process_id=started_id)
