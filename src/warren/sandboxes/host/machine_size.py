"""The size of this machine: its memory, its cores, and how many processes it can have."""

import os
import re
from pathlib import Path


def most_processes() -> int:
    """Returns how many processes and threads this machine can have."""
    return min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))


def memory_total_mb() -> int:
    found = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) >> 10 if found else 0


def usable_cores() -> int:
    """Returns how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def default_reserve_of(memory_total_mb: int) -> int:
    """Returns how many MiB of that memory sandboxes leave free unless the operator says otherwise."""
    return max(256, memory_total_mb * 5 // 100)
