"""Starts the runner of a language as the keeper does, and runs cells in it.

The runner has a socket on descriptor 3, pipes on 1 and 2, /dev/null on 0, and a session of its own.
"""

import json
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

RUNNERS = Path(__file__).parents[2] / "src" / "warren" / "runners"
PATIENCE_S = 30.0


class RunnerEnded(Exception):
    """The runner is gone; `code` is its exit code, or minus the signal that ended it."""

    def __init__(self, code: int, cell: "Cell") -> None:
        super().__init__(f"the runner ended with {code}: {cell}")
        self.code = code
        self.cell = cell


@dataclass
class Cell:
    """What came of a cell. `parts` has everything in the order in which the keeper would hand it on."""

    parts: list[tuple[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    def text(self, name: str) -> str:
        return b"".join(data for kind, data in self.parts if kind == name).decode()

    @property
    def stdout(self) -> str:
        return self.text("stdout")

    @property
    def stderr(self) -> str:
        return self.text("stderr")

    @property
    def results(self) -> list[dict[str, Any]]:
        return [event for kind, event in self.parts if kind == "event" and event["type"] == "result"]

    @property
    def main(self) -> dict[str, Any] | None:
        return next((result for result in self.results if result["is_main_result"]), None)

    @property
    def value(self) -> str | None:
        """The text of the last value."""
        return self.main["text"] if self.main else None

    @property
    def error(self) -> dict[str, str] | None:
        assert self.end is not None
        error: dict[str, str] | None = self.end["error"]
        return error


class Runner:
    """A runner, ready for cells when it is made. Use it with `with`: it is killed at the end."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] = {}) -> None:
        self._socket, theirs = socket.socketpair()
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        places = [(their_out, 1), (their_err, 2), (theirs.fileno(), 3)]
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, *place) for place in places]
        started = time.monotonic()
        self.pid = os.posix_spawnp(
            "env",
            ["env", "-C", str(cwd), *argv],
            {**os.environ, **env},
            file_actions=actions,
            setsid=True,
            setsigdef=[signal.SIGPIPE],
        )
        theirs.close()
        os.close(their_out)
        os.close(their_err)
        self._pipes = {out: "stdout", err: "stderr"}
        self._received = b""
        self._code: int | None = None
        hello = Cell()
        self.hello = json.loads(self._frame(hello, b"h", PATIENCE_S))
        self.start_s = time.monotonic() - started

    def run(
        self,
        code: str,
        *,
        env: Mapping[str, str] = {},
        interrupt_at: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Cell:
        """Runs a cell to its end; the process group gets SIGINT when the cell has printed `interrupt_at`.

        It gets it again each second: a shell that forks at that very moment does not notice the first one.
        """
        return self.run_request(json.dumps({"code": code, "env": dict(env)}).encode(), interrupt_at, patience_s)

    def run_request(self, request: bytes, interrupt_at: str | None = None, patience_s: float = PATIENCE_S) -> Cell:
        self._socket.sendall(b"Q" + struct.pack(">I", len(request)) + request)
        cell = Cell()
        cell.end = json.loads(self._frame(cell, b"x", patience_s, interrupt_at))
        return cell

    def interrupt(self) -> None:
        os.killpg(self.pid, signal.SIGINT)

    def hang_up(self) -> None:
        """The keeper is gone."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._code = os.waitstatus_to_exitcode(status)
        return status

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._code is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._socket.close()
        for pipe in self._pipes:
            os.close(pipe)

    def _frame(self, cell: Cell, wanted: bytes, patience_s: float, interrupt_at: str | None = None) -> bytes:
        until = time.monotonic() + patience_s
        next_interrupt = 0.0
        while True:
            while frame := self._next_frame():
                self._drain(cell)
                if frame[:1] == wanted:
                    return frame[5:]
                assert frame[:1] == b"r", frame[:100]
                cell.parts.append(("event", json.loads(frame[5:])))
            assert time.monotonic() < until, f"no {wanted!r} within {patience_s} s: {cell}"
            with selectors.DefaultSelector() as selector:
                for source in (*self._pipes, self._socket.fileno()):
                    selector.register(source, selectors.EVENT_READ)
                ready = {key.fd for key, _ in selector.select(1.0)}
            if self._socket.fileno() in ready:
                self._receive(cell)
            self._drain(cell)
            if interrupt_at and interrupt_at in cell.stdout and time.monotonic() > next_interrupt:
                next_interrupt = time.monotonic() + 1.0
                self.interrupt()

    def _next_frame(self) -> bytes:
        if len(self._received) < 5:
            return b""
        size = 5 + struct.unpack(">I", self._received[1:5])[0]
        if len(self._received) < size:
            return b""
        frame, self._received = self._received[:size], self._received[size:]
        return frame

    def _receive(self, cell: Cell) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            code = os.waitstatus_to_exitcode(self.wait())
            self._drain(cell)
            raise RunnerEnded(code, cell)
        self._received += data

    def _drain(self, cell: Cell) -> None:
        """Takes what lies in the pipes."""
        for pipe, name in self._pipes.items():
            os.set_blocking(pipe, False)
            try:
                while data := os.read(pipe, 1 << 20):
                    cell.parts.append((name, data))
            except BlockingIOError:
                pass
