"""The server that bench/service.py measures: a `warren serve` of its own, with fresh state and the tests' images."""

import asyncio
import contextlib
import math
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from server_process import ServerProcess  # noqa: E402
from service_client import Client, connect  # noqa: E402

IMAGES = ROOT / "build" / "test-state" / "images"
_OF_PROCESS = 2  # the clock of a process is its id and this, as clock_getcpuclockid(3) makes it
_STOP_S = 300.0
_FILL_S = 300.0


class Server:
    """A running server: its memory, sandboxes and pool."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self.port = process.port
        self.state = process.state_dir

    def memory_mb(self, name: str = "VmRSS") -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024

    def cpu_s(self) -> float:
        """CPU time of the server's process, all its threads, in user and system mode."""
        return time.clock_gettime(~self._process.pid << 3 | _OF_PROCESS)

    def forget_peak(self) -> None:
        """Resets the peak of the server's memory (VmHWM)."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5\n")

    def sandboxes(self) -> int:
        return sum(1 for entry in (self.state / "sandboxes").iterdir() if not entry.name.startswith("."))

    async def pool(self, client: Client) -> int:
        return int((await client.call("GET", "/health"))["pool_size"])

    async def wait_for_pool(self, client: Client, size: int) -> int:
        deadline = time.monotonic() + _FILL_S
        while (ready := await self.pool(client)) < size:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the pool has {ready} sandboxes after {_FILL_S:.0f} s, not {size}")
            await asyncio.sleep(0.05)
        return ready

    @contextlib.asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[Client]]:
        made = await connect(self.port, count)
        try:
            yield made
        finally:
            for client in made:
                client.close()


@contextlib.contextmanager
def serving(*flags: str, **environ: str) -> Iterator[Server]:
    """Runs a server; everything it made is gone at the end."""
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    quiet = ("--on-stop", "destroy", "--stop-grace", "1s", "--log-level", "warning")
    # Connections must survive while a pool is filled.
    timeouts = {"WARREN_KEEP_ALIVE_S": "1h", "WARREN_HEADER_TIMEOUT_S": "1h"}
    process = ServerProcess(state, *quiet, *flags, **timeouts, **environ)
    try:
        process.start()
        yield Server(process)
        _report(process)
    finally:
        _stop(process)
        shutil.rmtree(state, ignore_errors=True)


def _report(process: ServerProcess) -> None:
    """Prints warnings and errors that the server logged while it was measured."""
    lines = [line for line in process.log.splitlines() if " warning " in line or " error " in line]
    for line in lines[:5]:
        print(f"  (server) {line[:160]}")
    if len(lines) > 5:
        print(f"  (server) and {len(lines) - 5} lines more")


def _stop(process: ServerProcess) -> None:
    if process.alive:
        process.send(signal.SIGTERM)
    try:
        process.wait_for_end(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        print(f"  the server did not stop in {_STOP_S:.0f} s and was killed: sandboxes may be left", file=sys.stderr)


def percentile(values: list[float], percent: float) -> float:
    """By nearest rank; NaN for no values."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] if ranked else math.nan


def mean(values: list[float]) -> float:
    return statistics.mean(values) if values else math.nan
