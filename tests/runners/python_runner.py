"""Starts the Python runner as the keeper does, without a sandbox: a socket on descriptor 3, pipes on 1 and 2."""

import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MAIN: Final = Path(__file__).parents[2] / "src/warren/runners/python/main.py"
CODE_PYTHON: Final = Path(__file__).parents[2] / "build/code-venv/bin/python"


@dataclass
class Ended:
    """What a cell gave."""

    stdout: str = ""
    stderr: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def results(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == "result"]

    @property
    def text(self) -> str | None:
        return next((result.get("text") for result in self.results if result["is_main_result"]), None)

    @property
    def error(self) -> dict[str, str] | None:
        assert self.end is not None, f"the runner ended: {self}"
        error: dict[str, str] | None = self.end["error"]
        return error


class PythonRunner:
    def __init__(
        self, python: str | Path = sys.executable, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._socket, theirs = socket.socketpair()
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        begun = time.perf_counter()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | dict(env or {})
        self.process = subprocess.Popen(
            [python, MAIN],
            stdin=subprocess.DEVNULL,
            stdout=out_theirs,
            stderr=err_theirs,
            close_fds=False,
            preexec_fn=lambda: os.dup2(theirs.fileno(), 3),
            cwd=cwd,
            env=environ,
            start_new_session=True,
        )
        theirs.close()
        os.close(out_theirs)
        os.close(err_theirs)
        self._texts = {out: "stdout", err: "stderr"}
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        for file in (self._socket, out, err):
            self._selector.register(file, selectors.EVENT_READ)
        os.set_blocking(out, False)
        os.set_blocking(err, False)
        kind, payload = next(self._frames(Ended(), 20))
        assert kind == b"h", kind
        self.start_s = time.perf_counter() - begun
        self.hello = json.loads(payload)

    def __enter__(self) -> "PythonRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._selector.close()
        for file in self._texts:
            os.close(file)

    def run(
        self,
        code: str,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
        on_text: Callable[[str], None] | None = None,
    ) -> Ended:
        """Runs a cell; `end` is None if the runner died of it."""
        self.send(code, env)
        return self.finish(timeout_s, on_text)

    def send(self, code: str, env: Mapping[str, str] | None = None) -> None:
        payload = json.dumps({"code": code, "env": dict(env or {})}).encode()
        self._socket.sendall(b"Q" + len(payload).to_bytes(4, "big") + payload)

    def finish(self, timeout_s: float = 60, on_text: Callable[[str], None] | None = None) -> Ended:
        ended = Ended()
        for kind, payload in self._frames(ended, timeout_s, on_text):
            self._read_texts(ended, on_text)
            if kind == b"r":
                event = json.loads(payload)
                ended.events.append(event)
                ended.order.append(event["type"])
            else:
                assert kind == b"x", kind
                ended.end = json.loads(payload)
                break
        return ended

    def hang_up(self) -> None:
        """The keeper is gone."""
        self._socket.close()

    def interrupt(self) -> None:
        """As the keeper does: SIGINT to the process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_at(self, code: str, text: str = "ready", after_s: float = 0.2) -> Ended:
        """Runs a cell and interrupts it some time after each `text` that it prints."""

        def on_text(printed: str) -> None:
            if text in printed:
                threading.Timer(after_s, self.interrupt).start()

        return self.run(code, on_text=on_text)

    def is_quiet(self) -> bool:
        """Whether nothing came after the end of the cell."""
        return not self._buffer and not select.select([self._socket], [], [], 0.01)[0]

    def settle(self) -> None:
        """Returns when the runner sleeps and has no signal left to handle."""
        while True:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if status["State"].startswith("S") and not int(status["ShdPnd"], 16) | int(status["SigPnd"], 16):
                return
            time.sleep(0.001)

    def read_text(self, until: str, timeout_s: float = 20) -> str:
        """What is written while no cell runs."""
        ended, deadline = Ended(), time.monotonic() + timeout_s
        while until not in ended.stdout + ended.stderr:
            assert time.monotonic() < deadline, ended
            self._read_texts(ended, None)
            time.sleep(0.01)
        return ended.stdout + ended.stderr

    def _frames(
        self, ended: Ended, timeout_s: float, on_text: Callable[[str], None] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        deadline = time.monotonic() + timeout_s
        while True:
            while len(self._buffer) >= 5:
                length = int.from_bytes(self._buffer[1:5], "big")
                if len(self._buffer) < 5 + length:
                    break
                frame, self._buffer = self._buffer[: 5 + length], self._buffer[5 + length :]
                yield frame[:1], frame[5:]
            assert time.monotonic() < deadline, f"no end in time: {ended}"
            ready = [key.fileobj for key, _ in self._selector.select(1)]
            self._read_texts(ended, on_text)
            if self._socket in ready:
                more = self._socket.recv(1 << 20)
                if not more:
                    self.process.wait(10)
                    self._read_texts(ended, on_text)
                    return
                self._buffer += more

    def _read_texts(self, ended: Ended, on_text: Callable[[str], None] | None) -> None:
        for file, name in self._texts.items():
            while True:
                try:
                    data = os.read(file, 1 << 16)
                except BlockingIOError:
                    break
                if not data:
                    break
                text = data.decode("utf-8", "replace")
                setattr(ended, name, getattr(ended, name) + text)
                ended.order.append(name)
                if on_text is not None:
                    on_text(text)
