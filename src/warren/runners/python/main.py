"""The runner of Python: runs cells one after the other in one namespace, in any Python (3.8 or later) of an image.

The keeper starts it, writes requests to descriptor 3 and reads hello, events and ends from it. Text goes to 1 and 2.
This file is compiled at every start, so it holds only what is needed to say hello and to wait: the descriptors, the
frames, the interrupts, the loop. `cells` runs a cell, and `context` is what it shares with `display`, `errors`,
`magics` and others, which are loaded at need.

A SIGINT that comes while user code runs raises KeyboardInterrupt there. One that comes after the request and before
user code, or in the middle of a frame, is noted in `pending` and raised as soon as user code runs. One that comes when
no cell runs and no request waits is dropped.
"""

import _signal
import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

HERE = os.path.dirname(os.path.abspath(__file__))


class RunnerChannel:
    """Descriptor 3 and the interrupts. The descriptors live at high numbers, where no user code steps on them."""

    def __init__(self) -> None:
        self.fd = _move(3, 1021)
        os.close(3)
        self.standard = ((1, _move(1, 1022), _identity(1)), (2, _move(2, 1023), _identity(2)))
        self.main_thread = _thread.get_ident()
        self.lock = _thread.allocate_lock()
        self.writer = 0  # the thread that is in the middle of a frame
        self.outbox: list[tuple[bytes, bytes]] = []
        self.held: list[bytes] = []  # events that threads made between two cells
        self.header = bytearray(5)
        self.length = -1  # of the request whose header was read
        self.is_open = False  # a cell runs and its end was not sent: events may be
        self.in_cell = False
        self.owes_end = False  # a request was read and its end was not sent
        self.guarded = False
        self.shields = 0
        self.pending = False
        self.is_child = False  # this process was forked by user code

    def wait(self) -> bool:
        """Waits for the next request; returns False when the keeper is gone. Continues a wait that an error left."""
        header = self.header
        if self.length < 0:
            count = 5 if header[0] else os.readv(self.fd, [header])
            self.in_cell = True
            while 0 < count < 5:
                rest = os.read(self.fd, 5 - count)
                header[count : count + len(rest)] = rest
                count = count + len(rest) if rest else 0
            if count < 5:
                return False
            if header[0] != ord("Q"):
                self.die()
            self.length = int.from_bytes(header[1:], "big")
        self.in_cell = True
        header[:] = bytes(5)
        return True

    def read(self) -> bytes:
        self.owes_end = True
        parts: list[bytes] = []
        while True:
            try:
                rest = self.length - sum(map(len, parts))
                if rest <= 0 or b"" in parts:
                    self.length = -1
                    return b"".join(parts)
                # What was read is in the list before a signal handler of the user's can raise an error.
                parts.extend(map(os.read, (self.fd,), (min(rest, 1 << 20),)))
            except BaseException as exc:
                self.check(exc)

    def send(self, kind: bytes, payload: bytes) -> None:
        """Sends a whole frame. Events go to the cell that runs; the next cell gets those that come when none does."""
        if self.is_child:
            return
        me = _thread.get_ident()
        is_main = me == self.main_thread
        error = None
        if is_main:
            self.shields += 1
        try:
            self.outbox.append((kind, payload))
            # A signal handler of the user's may come here in the middle of another frame: that call sends this one too.
            if self.writer != me:
                with self.lock:
                    try:
                        self.writer = me
                        while self.outbox:
                            error = self._send(*self.outbox.pop(0)) or error
                    finally:
                        self.writer = 0
        finally:
            if is_main:
                self.shields -= 1
        if error is not None:
            raise error
        if is_main and self.pending and self.guarded:
            self.pending = False
            raise KeyboardInterrupt

    def _send(self, kind: bytes, payload: bytes) -> "BaseException | None":
        if kind == b"r" and not self.is_open:
            del self.held[:-15]
            self.held.append(payload)
            return None
        if kind == b"x":
            self.is_open = False
        frame, error = kind + len(payload).to_bytes(4, "big") + payload, None
        written: list[int] = []
        while True:
            try:
                while sum(written) < len(frame):
                    written.extend(map(os.write, (self.fd,), (memoryview(frame)[sum(written) :],)))
                if kind == b"x":
                    self.owes_end = False
                return error
            except BaseException as exc:
                self.check(exc)
                error = exc

    def check(self, error: BaseException) -> None:
        """Ends the process for an error of the channel itself; one of the user's signal handlers passes."""
        if isinstance(error, OSError) and error.errno in (9, 22, 32, 88, 104):  # EBADF, EINVAL, EPIPE …
            self.die()

    def die(self) -> None:
        """Ends the process: the code closed the descriptor on which results travel, or the keeper is gone."""
        try:
            os.write(2, b"The connection of this context was closed: the code closed descriptors it did not open.\n")
        finally:
            os._exit(70)

    def on_interrupt(self, number: int, frame: "FrameType | None") -> None:
        if self.is_child:
            raise KeyboardInterrupt
        if not self.in_cell:
            self.pending = self.header[0] != 0 or self._has_request()
            return
        if self.shields or not self.guarded or (frame is not None and frame.f_code is _GUARD):
            self.pending = True
            return
        raise KeyboardInterrupt

    def _has_request(self) -> bool:
        import select

        return bool(select.select([self.fd], [], [], 0)[0])

    def guard(self, function: "Callable[..., Any]", *arguments: "Any") -> "tuple[Any, BaseException | None]":
        """Calls what may run user code. Only what `_enter` calls is ever interrupted, never this function."""
        self.guarded = True
        try:
            return self._enter(function, arguments), None
        except BaseException as exc:
            return None, exc
        finally:
            self.guarded = False

    def _enter(self, function: "Callable[..., Any]", arguments: "tuple[Any, ...]") -> "Any":
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt
        return function(*arguments)

    def restore_descriptors(self) -> None:
        """Undoes what user code did to 1 and 2."""
        for number, saved, identity in self.standard:
            if _identity(number) != identity:
                try:
                    os.dup2(saved, number)
                except OSError:
                    self.die()

    def forked(self) -> None:
        """Closes the channel in a child that user code forked: it sends nothing, and never returns into the loop."""
        self.is_child = True
        self.lock = _thread.allocate_lock()
        self.writer = 0
        try:
            os.close(self.fd)
        except OSError:
            pass


_GUARD = RunnerChannel.guard.__code__


def _move(number: int, wanted: int) -> int:
    try:
        return os.dup2(number, wanted, inheritable=False)
    except OSError:  # the limit of descriptors is lower
        return os.dup(number)


def _identity(number: int) -> "tuple[int, int] | None":
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _prepare() -> None:
    """Makes this look like an interpreter in which nothing was started."""
    global __name__, __package__
    if sys.path and sys.path[0] == HERE:
        sys.path[0] = ""
    sys.argv = [""]
    # This module becomes the package `_warren`; `__main__` is what the cells see.
    own = sys.modules["__main__"]
    __name__ = __package__ = "_warren"
    globals()["__path__"] = [HERE]
    sys.modules["_warren"] = own
    sys.modules["__main__"] = type(sys)("__main__")
    # By lines also where PYTHONUNBUFFERED is set: else `print` writes its newline apart, as a piece of its own.
    how = {"encoding": "utf-8", "errors": "backslashreplace", "line_buffering": True, "write_through": False}
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(**how)  # type: ignore[union-attr]


def main() -> None:
    channel = RunnerChannel()
    _signal.signal(_signal.SIGINT, channel.on_interrupt)
    os.register_at_fork(after_in_child=channel.forked)
    _prepare()
    channel.send(b"h", b'{"version": "%d.%d.%d"}' % sys.version_info[:3])
    from . import cells

    cells.start(channel)
    error = None
    while True:
        try:
            return _serve_all(channel, error)
        except BaseException as exc:
            error = exc


def _serve_all(channel: RunnerChannel, error: "BaseException | None") -> None:
    """Serves until the keeper is gone. It also goes on after an error that a signal handler of the user's raised."""
    from . import cells

    while True:
        try:
            if error is not None:
                cells.recover(error)
            while channel.wait():
                cells.serve(channel.read())
            return
        except BaseException as exc:
            error = exc


if __name__ == "__main__":
    if sys.version_info < (3, 8):
        sys.stderr.write("A context of Python needs Python 3.8 or later; this is %d.%d.\n" % sys.version_info[:2])
        sys.exit(69)
    main()
