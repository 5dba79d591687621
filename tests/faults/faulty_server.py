"""`warren serve` that dies by kill -9 at a step it is told.

It takes the flags of `warren serve`. The file `fault` in its state directory holds the name of a step; it may be
written at any time. When the server reaches that step it removes the file and kills itself, so its next start
runs through. Steps are those of the lifecycle, the worker and the provider ("worker destroyed"), and the moments
before and after every call that writes to the store or speaks to a sandbox ("before store swap"), with the n-th
call of the kind as "before store swap 2". With CUTS_POWER in its environment the file system of the state directory
loses at that step what was not synced. Every sandbox it ever saw is noted in the file `seen`.
"""

import fcntl
import functools
import os
import signal
import struct
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from warren.app.service import Service
from warren.cli.serve import run_server
from warren.config.options import serve_options
from warren.config.settings import read_settings
from warren.sandboxes.agent.process import AgentProcess
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.stores.sqlite import SqliteStore

FAULT: Final = "fault"
SEEN: Final = "seen"
CUTS_POWER: Final = "CUTS_POWER"
_GOING_DOWN: Final = 0x8004587D  # the same of ext4 and xfs
_WITHOUT_FLUSH: Final = 2
ARGV: Final = (sys.executable, str(Path(__file__)))
CALLS: Final = (
    *((SqliteStore, "store", name) for name in ("add", "swap", "claim_key", "answer_key", "release_key")),
    *((AgentSandbox, "sandbox", name) for name in ("start", "exec", "write", "forget")),
    *((AgentProcess, "process", name) for name in ("write", "close_stdin")),
)


class Faults:
    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._seen: set[str] = set()
        self._lock = threading.Lock()  # contents of artifacts are written in threads

    def reached(self, step: str) -> None:
        with self._lock:
            self._reached(step)

    def _reached(self, step: str) -> None:
        self._note()
        file = self._state_dir / FAULT
        if not file.exists():
            return
        wanted, number = split(file.read_text())
        if step != wanted:
            return
        if number > 1:
            arm(self._state_dir, f"{wanted} {number - 1}")
            return
        file.unlink()
        if CUTS_POWER in os.environ:
            lose_unsynced(self._state_dir)
        os.kill(os.getpid(), signal.SIGKILL)

    def _note(self) -> None:
        found = {name for kind in ("sandboxes", "docker") for name in _names(self._state_dir / kind)}
        if new := found - self._seen:
            self._seen |= new
            with (self._state_dir / SEEN).open("a") as file:
                file.writelines(f"{name}\n" for name in new)


def lose_unsynced(place: Path) -> None:
    """Nothing is written to the file system any more, neither what waits to be written nor what its journal waits for:
    as after a loss of power."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _GOING_DOWN, struct.pack("<I", _WITHOUT_FLUSH))
    finally:
        os.close(fd)


def arm(state_dir: Path, step: str) -> None:
    """From now on the server of that state directory dies at that step."""
    new = state_dir / f".{FAULT}"
    new.write_text(step)
    new.rename(state_dir / FAULT)


def split(text: str) -> tuple[str, int]:
    """A step and how often it is reached before the server dies."""
    name, _, number = text.rpartition(" ")
    return (name, int(number)) if number.isdecimal() else (text, 1)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def watch(kind: type, part: str, name: str, reached: Callable[[str], None]) -> None:
    """The moments before and after each call of a method become steps."""
    method: Callable[..., Awaitable[Any]] = getattr(kind, name)

    @functools.wraps(method)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        reached(f"before {part} {name}")
        result = await method(*args, **kwargs)
        reached(f"after {part} {name}")
        return result

    setattr(kind, name, watched)


@click.command()
@serve_options
def main(flags: dict[str, Any]) -> None:
    settings = read_settings(flags=flags)
    faults = Faults(settings.state_dir)
    for kind, part, name in CALLS:
        watch(kind, part, name, faults.reached)
    sys.exit(run_server(settings, partial(Service, fault=faults.reached)))


if __name__ == "__main__":
    main()
