"""Starts `warren` by forking a process that has imported it already: importing it again takes a second or more.

`Popen` and `run` replace those of subprocess for `python -m warren.… …` and `python tests/….py …`. The started process
can see three differences: /proc/PID/cmdline and /proc/PID/environ are those of the warm parent, its parent is the warm
parent, and options of the interpreter (PYTHON…) have no effect. Every other program is started by subprocess, and what
needs a variable of the linker (LD_PRELOAD).

The warm parent is `python tests/warm_parent.py`. A run of several processes starts it at once, any other run when it is
first needed; conftest.py ends it. It listens on an abstract socket, whose name is in the environment variable
TEST_WARM_PARENT. A request is a line of JSON with the three descriptors of stdio. The answer is two lines: the
process's id, and, when it has ended, its wait status and the processor time that it and its children have used.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from this_run import patience

VARIABLE: Final = "TEST_WARM_PARENT"
_TESTS: Final = os.path.dirname(os.path.abspath(__file__))
_LONGEST_REQUEST: Final = 1 << 20
_WAITED: Final = -1

processor_s = 0.0
"""What the processes that were waited for here have used. Nobody else counts it: they are no children of this one."""


class Popen(subprocess.Popen[Any]):
    """A `subprocess.Popen` that forks the warm parent if it can."""

    _answers: int | None = None
    """A descriptor: a forgotten socket object would warn, and nobody needs to wait for a process."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _, pass_fds, cwd, env, _, _, shell, *pipes = rest[:13]
        _, gid, gids, uid, umask, start_new_session, process_group = rest[13:]
        special = (executable, preexec_fn, pass_fds, shell, gid, gids, uid)
        is_plain = not any(special) and umask == -1 and "LD_PRELOAD" not in (env or os.environ)
        if not is_plain or not is_warm(args):
            super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc]
            return
        start()
        request = {
            "argv": [os.fspath(arg) for arg in args[1:]],
            "environ": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd or os.getcwd()),
            "start_new_session": bool(start_new_session),
            "process_group": process_group,
        }
        stdio = [number if given == -1 else given for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        with socket.socket(socket.AF_UNIX) as parent:
            parent.connect(f"\0{os.environ[VARIABLE]}")
            socket.send_fds(parent, [b"+"], stdio)
            parent.sendall(json.dumps(request).encode() + b"\n")
            self._answers = parent.detach()
        self.pid = self._next_answer()["pid"]
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _next_answer(self) -> dict[str, Any]:
        assert self._answers is not None
        answer = b""
        while not answer.endswith(b"\n"):
            part = os.read(self._answers, 1)
            if not part:
                raise ChildProcessError("the warm parent has ended")
            answer += part
        values: dict[str, Any] = json.loads(answer)
        return values

    def __del__(self, *args: Any, **kwargs: Any) -> None:
        if self._answers not in (None, _WAITED):
            os.close(self._answers)
        super().__del__(*args, **kwargs)  # type: ignore[misc]

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._answers is None:
            code: int | None = super()._internal_poll(*args, **kwargs)  # type: ignore[misc]
            return code
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid and self.returncode is None:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        global processor_s
        if self._answers is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if not select.select([self._answers], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        answer = self._next_answer()
        os.close(self._answers)
        self._answers = _WAITED
        processor_s += answer["processor_s"]
        return self.pid, answer["status"]


def is_warm(args: object) -> bool:
    if not isinstance(args, (list, tuple)):
        return False
    match [os.fspath(arg) for arg in args[:3]]:
        case [sys.executable, "-m", module]:
            return module.startswith("warren.")
        case [sys.executable, script, *_]:
            return script.startswith(_TESTS) and script.endswith(".py")
    return False


def run(
    args: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    if timeout is not None:
        timeout = patience(timeout)
    with Popen(args, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


_process: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Starts the warm parent, unless there is one. It imports in the background; requests wait until it has."""
    global _process
    if VARIABLE in os.environ:
        return
    name = f"{os.environ.get('TEST_RUN', 'warren-test')}-{secrets.token_hex(8)}"
    _process = subprocess.Popen([sys.executable, __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert _process.stdout is not None
    _process.stdout.readline()  # until it listens
    os.environ[VARIABLE] = name


def stop() -> None:
    """Ends the warm parent, if this process has started it."""
    global _process
    if _process is not None:
        del os.environ[VARIABLE]
        _process.communicate()
        _process = None


# -- the rest runs in the warm parent and in its children


class _Parent:
    def __init__(self, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen(100)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == sys.stdin.fileno():
                    return
                if key.fileobj is self._listener:
                    self._start(self._listener.accept()[0])
                else:
                    self._tell_end(key.fd, *key.data)

    def _start(self, client: socket.socket) -> None:
        peer = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
        if peer != os.geteuid():  # an abstract socket has no mode: anybody on this machine can connect
            client.close()
            return
        _, stdio, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb") as lines:
            request = json.loads(lines.readline(_LONGEST_REQUEST))
        pid = os.fork()
        if pid == 0:
            _become(request, stdio)
        for fd in stdio:
            os.close(fd)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))
        _tell(client, {"pid": pid})

    def _tell_end(self, pidfd: int, pid: int, client: socket.socket) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        _tell(client, {"status": status, "processor_s": usage.ru_utime + usage.ru_stime})
        client.close()


def _tell(client: socket.socket, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the process that asked has ended
        client.sendall(json.dumps(answer).encode() + b"\n")


def _become(request: Mapping[str, Any], stdio: Sequence[int]) -> NoReturn:
    code = 1
    try:
        _arrange(request, stdio)
        code = _run_program(request["argv"])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _arrange(request: Mapping[str, Any], stdio: Sequence[int]) -> None:
    """Gives this forked process the session, descriptors and environment that a new process would have."""
    if request["start_new_session"]:
        os.setsid()
    if request["process_group"] >= 0:
        os.setpgid(0, request["process_group"])
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    _set_path(request["argv"][0])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_stream(0, "<stdin>")))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_stream(1, "<stdout>")), line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_stream(2, "<stderr>")), errors="backslashreplace", line_buffering=True
    )
    random.seed()
    # The only random value that is made at import, so all children would share it.
    sys.modules["warren.model.events"]._RUN = f"evt_{secrets.token_hex(12)}"  # type: ignore[attr-defined]


def _stream(fd: int, name: str) -> io.FileIO:
    file = io.FileIO(fd, "w" if fd else "r", closefd=False)
    file.name = name  # type: ignore[misc]
    return file


def _set_path(program: str) -> None:
    """Sets sys.path as the interpreter does: first the script's directory, or the current one, then PYTHONPATH."""
    first = os.getcwd() if program == "-m" else os.path.dirname(program)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, given), *_own_path]


def _run_program(argv: Sequence[str]) -> int:
    try:
        if argv[0] == "-m":
            sys.argv = [*argv[1:]]
            sys.modules.pop(argv[1], None)
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [*argv]
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as exc:
        if isinstance(exc.code, str):
            print(exc.code, file=sys.stderr)
            return 1
        return int(exc.code or 0)
    return 0


_own_path: list[str] = []
"""Where a new interpreter looks: what is installed."""

_LATER: Final = (
    *("uvloop", "httptools", "uvicorn.lifespan.on", "uvicorn.protocols.http.httptools_impl", "redis.asyncio"),
    *("websockets.legacy.server", "cryptography.x509", "aiodocker", "encodings.idna", "concurrent.futures.thread"),
)
"""What servers import when they begin to serve."""


def _import_everything() -> None:
    import warren

    left_out = ("warren.integrations", "warren.runners")
    for module in pkgutil.walk_packages(warren.__path__, "warren.", onerror=lambda _: None):
        if not module.name.startswith(left_out) and not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for name in _LATER:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    parent = _Parent(sys.argv[1])
    print("it listens", flush=True)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    _own_path[:] = [path for path in sys.path if path != _TESTS and path not in given]
    _import_everything()
    gc.collect()
    gc.freeze()
    parent.run()


if __name__ == "__main__":
    main()
