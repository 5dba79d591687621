"""Clocks, which components get as a parameter.

Deadlines use `now`: seconds since the machine was started, including the time it was suspended. Setting the machine's
clock does not change it, and a restart of the server does not either. Its values can be compared only within one
`epoch`, which changes when the machine is restarted. `wall` is the time of day, for people. `wall_at` converts a moment
of `now` to a time of day; it gives the same result each time, unless the machine's clock was set in between.
"""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Final, Protocol

CLOCK_WAS_SET_S: Final = 0.5  # a smaller difference comes from reading two clocks in turn, or from slewing
boot_time: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Clock(Protocol):
    @property
    def epoch(self) -> str: ...
    def now(self) -> float: ...
    def wall(self) -> float: ...
    def wall_at(self, moment: float) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def __init__(self) -> None:
        self._epoch = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._offset = time.time() - boot_time()

    @property
    def epoch(self) -> str:
        return self._epoch

    # Each request asks a dozen times: a method in Python would take three times as long.
    now = staticmethod(boot_time)
    wall = staticmethod(time.time)

    def wall_at(self, moment: float) -> float:
        offset = self.wall() - self.now()
        if abs(offset - self._offset) > CLOCK_WAS_SET_S:
            self._offset = offset
        return moment + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ClusterClock(SystemClock):
    """The clock of a process in a cluster: it starts at the time of day of Redis and runs with the machine's clock.

    So processes on machines with different times of day agree about deadlines. Setting the time of a machine, or of
    Redis, does not change it later.
    """

    def __init__(self, offset_s: float) -> None:
        super().__init__()
        self.offset_s = offset_s

    @property
    def boot(self) -> str:
        return self._epoch

    @property
    def epoch(self) -> str:
        return "cluster"

    def now(self) -> float:
        return boot_time() + self.offset_s

    def wall(self) -> float:
        return boot_time() + self.offset_s

    def wall_at(self, moment: float) -> float:
        return moment
