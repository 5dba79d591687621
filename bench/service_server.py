"""The servers that these programs measure: those of warren.measure, with the images of the tests."""

import contextlib
import math
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from warren.measure import server as measured

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "build" / "test-state" / "images"
_OF_PROCESS = 2  # the clock id of a process: its pid and this, as clock_getcpuclockid(3) computes it


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else math.nan


class Server(measured.MeasuredServer):
    """A running server, with its memory, processor time and sandboxes."""

    def memory_mb(self, name: str = "VmRSS") -> float:
        return memory_mb(self.process.pid, name)

    def cpu_s(self) -> float:
        """Returns the CPU time of the server's process and all its threads, in user and system mode."""
        return time.clock_gettime(~self.process.pid << 3 | _OF_PROCESS)

    def forget_peak(self) -> None:
        """Resets the peak of the server's memory (VmHWM)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5\n")

    def sandboxes(self) -> int:
        return sum(1 for entry in (self.state / "sandboxes").iterdir() if not entry.name.startswith("."))


@contextlib.contextmanager
def serving(*flags: str, **environ: str) -> Iterator[Server]:
    """Runs a server without authentication, unless WARREN_API_KEY is given, and removes everything it made at the end.

    With `PYTHONPATH` it is the server of another checkout.
    """
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    source = {"PYTHONPATH": str(ROOT / "src")}
    auth = {"WARREN_AUTH": "true"} if "WARREN_API_KEY" in environ else {}
    with measured.serving(state, *flags, variables={**source, **auth, **environ}) as server:
        yield Server(server.process, server.port, server.state, server.key)
