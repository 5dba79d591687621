"""The server that is measured: a `warren serve` of its own, with a state directory of its own, gone afterwards."""

import asyncio
import contextlib
import ctypes
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final

from warren.config.settings import environment_with
from warren.kernel.free_ports import free_port
from warren.measure.http_client import Client, connect
from warren.model.errors import ProviderUnavailable, WarrenError

_SET_PDEATHSIG: Final = 1
_START_S: Final = 60.0
_STOP_S: Final = 300.0
_FILL_S: Final = 300.0
_KEPT: Final = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")
_libc = ctypes.CDLL(None, use_errno=True)


class MeasuredServer:
    """A running server, its pool, and clients of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, state_dir: Path, key: str) -> None:
        self.process, self.key = process, key
        self.port, self.state = port, state_dir

    async def pool(self, client: Client) -> int:
        return int((await client.call("GET", "/health"))["pool_size"])

    async def wait_for_pool(self, client: Client, size: int) -> int:
        deadline = time.monotonic() + _FILL_S
        while (ready := await self.pool(client)) < size:
            if time.monotonic() > deadline:
                raise ProviderUnavailable(f"the pool has {ready} sandboxes after {_FILL_S:.0f} s, not {size}")
            await asyncio.sleep(0.05)
        return ready

    @contextlib.asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[Client]]:
        made = await connect(self.port, count, self.key)
        try:
            yield made
        finally:
            for client in made:
                client.close()


@contextlib.contextmanager
def serving(
    state_dir: Path, *flags: str, key: str = "", variables: Mapping[str, str] | None = None
) -> Iterator[MeasuredServer]:
    """Runs a server; all its sandboxes are gone at the end, and so is `state_dir`. Without `key` it asks for none.

    It ends as well when this process dies, by whatever signal; then only the directory is left.
    """
    port, log = free_port(), state_dir / "server.log"
    argv = [sys.executable, "-m", "warren.cli.main", "serve", "--state-dir", str(state_dir), "--port", str(port)]
    argv += ["--on-stop", "destroy", "--stop-grace", "1s", "--log-level", "warning", *flags]
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                env=_environment(state_dir, key, variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for this process, which then stops the server
                preexec_fn=_end_with_parent,
            )
        try:
            _wait_until_ready(process, port, log)
            yield MeasuredServer(process, port, state_dir, key)
            _report(log)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


def _environment(state_dir: Path, key: str, more: Mapping[str, str]) -> dict[str, str]:
    """Settings of this machine's own server do not count."""
    access = {"WARREN_API_KEY": key} if key else {"WARREN_AUTH": "false"}
    # Connections must survive while a pool is filled.
    timeouts = {"WARREN_KEEP_ALIVE_S": "1h", "WARREN_HEADER_TIMEOUT_S": "1h"}
    files = {"WARREN_CONFIG": "/dev/null", "WARREN_CREDENTIALS": str(state_dir / "credentials.json")}
    kept = {name: value for name, value in environment_with({}).items() if name in _KEPT}
    return {**kept, **access, **timeouts, **files, **more}


def _end_with_parent() -> None:
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        url = f"http://127.0.0.1:{port}/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.02)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise ProviderUnavailable(
        f"the server that is to be measured did not start: {lines[-1] if lines else 'it says nothing'}",
        remedy="`warren doctor` says what this machine lacks",
    )


def _report(log: Path) -> None:
    """Passes on what the server complained of while it was measured."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if " warning " in line or " error " in line]
    for line in lines[:5]:
        sys.stderr.write(f"  (server) {line[:160]}\n")
    if len(lines) > 5:
        sys.stderr.write(f"  (server) and {len(lines) - 5} lines more\n")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise WarrenError(
            f"the measured server did not stop in {_STOP_S:.0f} s and was killed",
            remedy="sandboxes of it may be left: look for them with `ps`",
        ) from None
