"""A real `warren serve` in a process of its own, on a free port, for tests that talk HTTP to it."""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import this_run
import warm_parent
from this_run import patience

from warren.kernel.free_ports import free_port

_START_S = patience(60.0)
_STOP_S = patience(60.0)


class ServerProcess:
    """`start` returns when the server is ready; `kill` sends SIGKILL; `stop` sends SIGTERM and returns the exit code.

    It may be started again, on the same port and state. `argv`: another program in place of `warren serve` that takes
    the same flags. `tls`: what a client needs if the flags make the server speak HTTPS.
    """

    def __init__(
        self,
        state_dir: Path,
        *flags: str,
        provider: str = "oci",
        argv: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        **environ: str,
    ) -> None:
        self.state_dir = state_dir
        self._tls = tls
        self.port = free_port()
        self._argv = [*(argv or (sys.executable, "-m", "warren.cli.main", "serve")), "--state-dir", str(state_dir)]
        self._argv += ["--port", str(self.port), "--provider", provider, *flags]
        # Servers of tests need no key, unless the test sets one or asks for authentication.
        auth = {} if "WARREN_API_KEY" in environ else {"WARREN_AUTH": "false"}
        self.credentials = state_dir / "credentials.json"
        self.environ = {**clean_environ(), **auth, "WARREN_CREDENTIALS": str(self.credentials), **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = state_dir / "server.log"

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self, *, wait: bool = True) -> None:
        with self.log_path.open("ab") as log:
            self._process = warm_parent.Popen(
                self._argv, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, path: str = "/ready") -> None:
        """Waits until `path` answers; /health answers even if the server cannot make sandboxes."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if not self.alive:
                raise AssertionError(f"the server ended by itself:\n{self.log[-4000:]}")
            ready = f"{self.url}{path}"
            with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=5, context=self._tls):
                return
            time.sleep(0.02)
        raise AssertionError(f"the server was not ready in {_START_S} s:\n{self.log[-4000:]}")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_for_end(self, timeout_s: float = _STOP_S) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.alive:
            self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> int:
        if self.alive:
            self.send(signal.SIGTERM)
        return self.wait_for_end()


def clean_environ() -> dict[str, str]:
    """Returns the environment without the settings of this machine."""
    kept = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", this_run.VARIABLE)
    source = str(Path(__file__).parents[1] / "src")
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    path = os.pathsep.join(filter(None, (source, environ.get("PYTHONPATH"))))
    return {**environ, "PYTHONPATH": path, "WARREN_CONFIG": "/dev/null"}


@contextlib.contextmanager
def running_server(
    state_dir: Path,
    *flags: str,
    provider: str = "oci",
    argv: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
    **environ: str,
) -> Iterator[ServerProcess]:
    """Runs a server; at the end it is stopped and its sessions are destroyed."""
    server = ServerProcess(state_dir, "--on-stop", "destroy", *flags, provider=provider, argv=argv, tls=tls, **environ)
    try:
        server.start()
        yield server
    finally:
        server.stop()
