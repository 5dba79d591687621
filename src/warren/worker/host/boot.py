"""Which boot of the machine this is: what was true of a former one need not hold."""

from functools import cache
from pathlib import Path


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
