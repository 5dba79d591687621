"""Terminals: input, size, user, directory, environment; the end; and connecting to one that runs."""

import threading

from checks import done, refused, since, wait_until
from e2b import NotFoundException, Sandbox
from e2b.sandbox.commands.command_handle import CommandExitException, PtySize


class Screen:
    """Reads a terminal in a thread of its own."""

    def __init__(self, handle) -> None:
        self.data = b""
        self.outcome = None
        self._thread = threading.Thread(target=self._read, args=(handle,), daemon=True)
        self._thread.start()

    def _read(self, handle) -> None:
        try:
            self.outcome = handle.wait(on_pty=self._add)
        except Exception as exc:
            self.outcome = exc

    def _add(self, data: bytes) -> None:
        self.data += data

    def shows(self, text: str) -> None:
        wait_until(lambda: text.encode() in self.data)

    def ends(self) -> object:
        self._thread.join(30)
        return self.outcome


with Sandbox.create(timeout=300) as sandbox:
    pty = sandbox.pty
    handle = pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"COLOUR": "green"}, timeout=120)
    screen = Screen(handle)
    pty.send_stdin(handle.pid, b"stty size; pwd; echo $COLOUR-$TERM-$((6*7)); whoami\n")
    screen.shows("24 80")
    screen.shows("/tmp")
    screen.shows("green-xterm-256color-42")
    pty.resize(handle.pid, PtySize(rows=50, cols=132))
    pty.send_stdin(handle.pid, b"stty size\n")
    screen.shows("50 132")
    assert handle.pid in [info.pid for info in sandbox.commands.list()]
    pty.send_stdin(handle.pid, b"tty && echo is-$((1+1))-tty\n")
    screen.shows("is-2-tty")
    pty.send_stdin(handle.pid, b"exit 0\n")
    assert screen.ends().exit_code == 0

    handle = pty.create(PtySize(rows=10, cols=40), user="root")
    screen = Screen(handle)
    pty.send_stdin(handle.pid, b"echo I-am-$(whoami)\n")
    screen.shows("I-am-root")
    if since(2, 20):
        other = Screen(pty.connect(handle.pid))
        pty.send_stdin(handle.pid, b"echo both-$((2+3))\n")
        screen.shows("both-5")
        other.shows("both-5")
    if since(2, 63):
        pty.stream_input(handle.pid, [b"echo stream", b"ed-$((3+4))\n"])
        screen.shows("streamed-7")
    assert pty.kill(handle.pid) is True
    assert isinstance(screen.ends(), CommandExitException), screen.outcome
    wait_until(lambda: pty.kill(handle.pid) is False)
    with refused(NotFoundException):
        pty.send_stdin(handle.pid, b"x")
    with refused(NotFoundException if since(2, 44) else Exception):  # older ones pass it on as it is
        pty.resize(999_999, PtySize(rows=1, cols=1))
    handle = pty.create(PtySize(rows=24, cols=80))
    pty.send_stdin(handle.pid, b"exit 7\n")
    with refused(CommandExitException) as refusal:
        handle.wait()
    assert refusal.error.exit_code == 7
done()
