"""A terminal for tests: what a user types, and what the user sees."""

import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable, Sequence
from fcntl import ioctl

import warm_parent
from this_run import patience

_PATIENCE_S = patience(20.0)


class Terminal:
    """A terminal with a command in it, as a user has one."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str], *, rows: int, columns: int) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self._slave)
        self.process = warm_parent.Popen(
            argv,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=environment,
            start_new_session=True,
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Reads until `text` comes; what came before it is done with."""
        deadline = time.monotonic() + _PATIENCE_S
        while text.encode() not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not come, this did: {self.seen!r}")
            self.seen += os.read(self._master, 65536)
        self.seen = self.seen.split(text.encode(), 1)[1]

    def drain(self) -> None:
        while select.select([self._master], [], [], 0.1)[0]:
            self.seen += os.read(self._master, 65536)

    @property
    def settings(self) -> list[object]:
        return list(termios.tcgetattr(self._slave))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(_PATIENCE_S)
        os.close(self._master)
        os.close(self._slave)


Open = Callable[..., Terminal]
"""Makes a terminal with the command of these arguments in it."""
