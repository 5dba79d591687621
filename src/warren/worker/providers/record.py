"""What is written down about a sandbox before it exists, and what a later process reads.

The record is in the sandbox's directory from the first moment on. With `pid` it says that the
sandbox was started; the start time tells that process from a later one with the same number, the
boot id tells that the machine was restarted since.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from warren.model.spec import Layer, Limits, SandboxSpec
from warren.worker.host.boot import boot_id

NAME: Final = "record.json"
_UNRECORDED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Record:
    sandbox_id: str
    boot_id: str
    runtime: str
    uid_index: int
    spec: SandboxSpec
    pid: int = 0
    start_time: int = 0
    maker: int = field(default_factory=os.getpid)
    maker_start_time: int = field(default_factory=lambda: start_time(os.getpid()) or 0)

    def started(self, pid: int) -> Self:
        return replace(self, pid=pid, start_time=start_time(pid) or 0)

    @property
    def abandoned(self) -> bool:
        """Nobody will ever use it: it ended with its maker, or its maker ended before it was finished."""
        maker_lives = self.boot_id == boot_id() and start_time(self.maker) == self.maker_start_time
        return not maker_lives and not self.alive() and (self.spec.ephemeral or not self.pid)

    def alive(self) -> bool:
        return self.pid > 0 and self.boot_id == boot_id() and start_time(self.pid) == self.start_time

    def save(self, directory: Path) -> None:
        values = asdict(self)
        values["spec"]["require"] = sorted(self.spec.require)
        temporary = directory / f".{NAME}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(values, file)
        temporary.rename(directory / NAME)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """None where there is none, or none that can be read."""
        try:
            values: dict[str, Any] = json.loads((directory / NAME).read_text())
            return cls(**{**values, "spec": _spec(values["spec"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def _spec(values: dict[str, Any]) -> SandboxSpec:
    limits = Limits(**values["limits"])
    require = frozenset(Layer(name) for name in values["require"])
    return SandboxSpec(**{**values, "limits": limits, "require": require})


def abandoned(directory: Path, kind: type[Record] = Record) -> bool:
    """Whether a sandbox's directory is what a maker left that is gone. One without a record is, after a while."""
    record = kind.load(directory)
    if record is not None:
        return record.abandoned
    try:
        return time.time() - directory.stat().st_mtime > _UNRECORDED_S
    except OSError:
        return False


def start_time(pid: int) -> int | None:
    """In clock ticks since boot; None when the process has ended, also when nobody has reaped it yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
