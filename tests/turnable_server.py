"""`warren serve` whose clock a test can move forward, so that nobody waits for sessions to expire.

It takes the flags of `warren serve`. The file `clock` in its state directory says how many seconds its clock is ahead;
a test changes it with `turn`. A task that sleeps by this clock wakes as soon as its time has come.
"""

import asyncio
import contextlib
import mmap
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from server_process import ServerProcess, running_server

from warren.cli.serve import run_server
from warren.config.options import serve_options
from warren.config.settings import read_settings
from warren.kernel.clock import SystemClock, boot_time

ARGV: Final = (sys.executable, str(Path(__file__)))
_FILE: Final = "clock"
_SECONDS: Final = struct.Struct("d")
_LOOK_EVERY_S: Final = 0.02


def turn(state_dir: Path, seconds: float) -> None:
    """Moves the clock of the server with this state directory forward."""
    with (state_dir / _FILE).open("r+b") as file:
        ahead = _SECONDS.unpack(file.read())[0]
        file.seek(0)
        file.write(_SECONDS.pack(ahead + seconds))


def use_turned_clock(state_dir: Path) -> None:
    """Makes every clock of this process follow the file."""
    with (state_dir / _FILE).open("rb") as file:
        shared = mmap.mmap(file.fileno(), _SECONDS.size, prot=mmap.PROT_READ)

    def ahead() -> float:
        return float(_SECONDS.unpack_from(shared)[0])

    async def sleep(self: SystemClock, seconds: float) -> None:
        end = self.now() + seconds
        while (left := end - self.now()) > 0:
            await asyncio.sleep(min(left, _LOOK_EVERY_S))

    methods: dict[str, Callable[..., Any]] = {
        "now": lambda self: boot_time() + ahead(),
        "wall": lambda self: time.time() + ahead(),
        "sleep": sleep,
    }
    for name, method in methods.items():
        setattr(SystemClock, name, method)


@contextlib.contextmanager
def running_turnable(state_dir: Path, *flags: str, **options: str) -> Iterator[ServerProcess]:
    """Does the same as running_server; `turn` moves the server's clock."""
    (state_dir / _FILE).write_bytes(_SECONDS.pack(0.0))
    with running_server(state_dir, *flags, argv=ARGV, **options) as server:
        yield server


@click.command()
@serve_options
def main(flags: dict[str, Any]) -> None:
    settings = read_settings(flags=flags)
    use_turned_clock(settings.state_dir)
    sys.exit(run_server(settings))


if __name__ == "__main__":
    main()
