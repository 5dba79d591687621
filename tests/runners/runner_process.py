"""Starts the runner of a language as the keeper does, without a sandbox, and runs cells in it.

The runner has a socket on descriptor 3, pipes on 1 and 2, /dev/null on 0, and a session of its own.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from this_run import patience

RUNNERS: Final = Path(__file__).parents[2] / "src" / "warren" / "runners"
PATIENCE_S: Final = patience(60.0)


class RunnerEnded(Exception):
    """The runner is gone; `code` is its exit code, or minus the signal that ended it."""

    def __init__(self, code: int, cell: "Cell") -> None:
        super().__init__(f"the runner ended with {code}: {cell}")
        self.code = code
        self.cell = cell


class Part(NamedTuple):
    kind: str
    """`stdout`, `stderr`, or the type of an event."""
    data: Any
    at: float


@dataclass
class Cell:
    """What came of a cell. `parts` has everything in the order in which the keeper would hand it on."""

    parts: list[Part] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, data: Any) -> None:
        self.parts.append(Part(kind, data, time.monotonic()))

    def all(self, kind: str) -> list[Any]:
        return [part.data for part in self.parts if part.kind == kind]

    @property
    def order(self) -> list[str]:
        return [part.kind for part in self.parts]

    @property
    def stdout(self) -> str:
        return b"".join(self.all("stdout")).decode()

    @property
    def stderr(self) -> str:
        return b"".join(self.all("stderr")).decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [part.data for part in self.parts if part.kind not in ("stdout", "stderr")]

    @property
    def results(self) -> list[dict[str, Any]]:
        return self.all("result")

    @property
    def main(self) -> dict[str, Any] | None:
        return next((result for result in self.results if result["is_main_result"]), None)

    @property
    def text(self) -> str | None:
        """The text of the last value."""
        return self.main["text"] if self.main else None

    @property
    def error(self) -> dict[str, str] | None:
        error: dict[str, str] | None = self.end["error"]
        return error


class Runner:
    """A runner, ready for cells when it is made. Use it with `with`: neither it nor its children live longer."""

    def __init__(
        self, argv: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._socket, theirs = socket.socketpair()
        started = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,
            preexec_fn=lambda: os.set_inheritable(os.dup2(theirs.fileno(), 3), True),
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | dict(env or {}),
            start_new_session=True,
        )
        theirs.close()
        assert self.process.stdout
        assert self.process.stderr
        self._pipes = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        for pipe in self._pipes.values():
            os.set_blocking(pipe.fileno(), False)
        self._received = b""
        self.hello = self.finish(last=b"h").end
        self.start_s = time.monotonic() - started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in self._pipes.values():
            pipe.close()

    def run(self, code: str, env: Mapping[str, str] | None = None, **how: Any) -> Cell:
        """Runs a cell to its end; `how` as for `finish`."""
        self.send(code, env)
        return self.finish(**how)

    def send(self, code: str, env: Mapping[str, str] | None = None) -> None:
        payload = json.dumps({"code": code, "env": dict(env or {})}).encode()
        self._socket.sendall(b"Q" + len(payload).to_bytes(4, "big") + payload)

    def finish(
        self,
        patience_s: float = PATIENCE_S,
        interrupt_at: str = "",
        after_s: float = 0.0,
        again_s: float = math.inf,
        last: bytes = b"x",
    ) -> Cell:
        """What comes of the cell; the runner gets SIGINT some time after each `interrupt_at` that the cell prints.

        With `again_s` it gets it again until the cell ends: a shell that forks at that very moment does not notice it.
        """
        cell, until, seen, interrupt = Cell(), time.monotonic() + patience_s, 0, math.inf
        while True:
            while frame := self._next_frame():
                self._drain(cell)
                values = json.loads(frame[5:])
                if frame[:1] == last:
                    cell.end = values
                    return cell
                assert frame[:1] == b"r", frame[:100]
                cell.add(values["type"], values)
            assert time.monotonic() < until, f"no {last!r} within {patience_s} s: {cell}"
            sources: list[Any] = [self._socket, *self._pipes.values()]
            wait_s = max(0.0, min(1.0, interrupt - time.monotonic()))
            if self._socket in select.select(sources, [], [], wait_s)[0]:
                self._receive(cell)
            self._drain(cell)
            if interrupt_at and cell.stdout.count(interrupt_at) > seen:
                seen, interrupt = seen + 1, time.monotonic() + after_s
            if time.monotonic() >= interrupt:
                interrupt = time.monotonic() + again_s
                self.interrupt()

    def interrupt(self) -> None:
        """As the keeper does: SIGINT to the process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def hang_up(self) -> None:
        """The keeper is gone."""
        self._socket.close()

    def is_quiet(self) -> bool:
        """Whether nothing came after the end of the cell."""
        return not self._received and not select.select([self._socket], [], [], 0.01)[0]

    def settle(self) -> None:
        """Returns when the runner sleeps and has no signal left to handle."""
        while True:
            status = self._status()
            if status["State"].startswith("S") and not int(status["ShdPnd"], 16) | int(status["SigPnd"], 16):
                return
            time.sleep(0.001)

    def memory_mb(self) -> float:
        return int(self._status()["VmRSS"].split()[0]) / 1024

    def await_text(self, text: str, patience_s: float = 20) -> None:
        """Returns when this was written while no cell runs."""
        cell, until = Cell(), time.monotonic() + patience_s
        while text not in cell.stdout + cell.stderr:
            assert time.monotonic() < until, cell
            time.sleep(0.01)
            self._drain(cell)

    def _status(self) -> dict[str, str]:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def _next_frame(self) -> bytes:
        size = 5 + int.from_bytes(self._received[1:5], "big")
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
            code = self.process.wait(10)
            self._drain(cell)
            raise RunnerEnded(code, cell)
        self._received += data

    def _drain(self, cell: Cell) -> None:
        """Takes what lies in the pipes."""
        for name, pipe in self._pipes.items():
            while data := pipe.read(1 << 20):
                cell.add(name, data)
