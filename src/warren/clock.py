"""Time as a parameter.

Deadlines are counted on `now`: seconds since the machine was started, suspended time included. Setting
the machine's clock does not move it, and it goes on when a server is restarted. Its figures mean
something only together with `epoch`, which changes when the machine is restarted. `wall` is the time
of day, for people; `wall_at` the time of day that belongs to a moment of `now`, the same each time it is asked for
unless the machine's clock was set in between.
"""

import asyncio
import time
from pathlib import Path
from typing import Final, Protocol

CLOCK_WAS_SET_S: Final = 0.5  # less than that is the two clocks being read one after the other, or being slewed


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

    def now(self) -> float:
        return boot_time()

    def wall(self) -> float:
        return time.time()

    def wall_at(self, moment: float) -> float:
        offset = self.wall() - self.now()
        if abs(offset - self._offset) > CLOCK_WAS_SET_S:
            self._offset = offset
        return moment + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ClusterClock(SystemClock):
    """The clock of a process in a cluster: goes as its machine's does, from where the time of day of Redis stood.

    So processes whose machines disagree about the time of day agree about deadlines. What is set on a machine, or in
    Redis, later moves nothing.
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
        return self.now()

    def wall_at(self, moment: float) -> float:
        return moment


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
