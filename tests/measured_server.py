"""`warren serve` that measures itself: how long a request holds the event loop, and how much memory it takes.

It takes the flags of `warren serve`. A task wakes every millisecond, and notes its greatest delay in the file `held` of
the state directory. Time in which the thread could run but had no processor does not count, so that a busy machine does
not look like a busy loop.
"""

import asyncio
import contextlib
import ctypes
import gc
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from server_process import ServerProcess, running_server

from warren.cli.serve import run_server
from warren.config.options import serve_options
from warren.config.settings import read_settings
from warren.http.server.serving import HttpServer

ARGV: Final = (sys.executable, str(Path(__file__)))
MIB: Final = 1024 * 1024
_FILE: Final = "held"
_SECONDS: Final = struct.Struct("d")
_TICK_S: Final = 0.001


class Costs:
    """What a server has cost since `reset`, which writes a negative time and waits until the server has seen it."""

    def __init__(self, server: ServerProcess) -> None:
        self._process = Path(f"/proc/{server.pid}")
        self._held = server.state_dir / _FILE
        self._before = 0.0

    def reset(self) -> None:
        with self._held.open("r+b") as file:
            file.write(_SECONDS.pack(-1.0))
        while self.held_ms < 0:
            time.sleep(_TICK_S)
        (self._process / "clear_refs").write_text("5")  # resets the peak
        self._before = self._status("VmRSS")

    @property
    def held_ms(self) -> float:
        return float(_SECONDS.unpack(self._held.read_bytes())[0]) * 1000

    @property
    def memory_mib(self) -> float:
        return self._status("VmHWM") - self._before

    def _status(self, name: str) -> float:
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


async def _measure(state_dir: Path) -> None:
    with (state_dir / _FILE).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _SECONDS.size)
    figures = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def waited_s() -> float:
        return int(os.pread(figures, 100, 0).split()[1]) / 1e9

    then, waited = time.perf_counter(), waited_s()
    while True:
        await asyncio.sleep(_TICK_S)
        if _SECONDS.unpack_from(shared)[0] < 0:
            _give_memory_back()
            _SECONDS.pack_into(shared, 0, 0.0)
            then, waited = time.perf_counter(), waited_s()
            continue
        now, waited_now = time.perf_counter(), waited_s()
        late = now - then - _TICK_S - (waited_now - waited)
        if late > _SECONDS.unpack_from(shared)[0]:
            _SECONDS.pack_into(shared, 0, late)
        then, waited = now, waited_now


def _give_memory_back() -> None:
    """Returns freed memory to the system, so that the next request is measured from a clean start."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def running_measured(state_dir: Path, *flags: str, **options: str) -> Iterator[ServerProcess]:
    """Does the same as running_server; `Costs` reads what the server measures."""
    (state_dir / _FILE).write_bytes(_SECONDS.pack(0.0))
    with running_server(state_dir, *flags, argv=ARGV, **options) as server:
        yield server


@click.command()
@serve_options
def main(flags: dict[str, Any]) -> None:
    settings = read_settings(flags=flags)
    start = HttpServer.start

    async def start_measured(self: HttpServer, announce: Callable[[int], Awaitable[None]]) -> None:
        await start(self, announce)
        self.measuring = asyncio.create_task(_measure(settings.state_dir))  # type: ignore[attr-defined]

    HttpServer.start = start_measured  # type: ignore[method-assign]
    sys.exit(run_server(settings))


if __name__ == "__main__":
    main()
