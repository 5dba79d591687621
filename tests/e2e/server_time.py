"""How time passes for the server under test: its clock is turned on, or the test really waits.

A test counts in units, which are long where the clock can be turned: then it does not matter how slow the machine is.
"""

import asyncio
from pathlib import Path
from typing import Protocol

from turnable_server import turn


class ServerTime(Protocol):
    unit_s: float

    async def passes(self, units: float) -> None: ...


class TurnedTime:
    unit_s = 300.0

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    async def passes(self, units: float) -> None:
        turn(self._state_dir, units * self.unit_s)


class RealTime:
    unit_s = 1.0

    async def passes(self, units: float) -> None:
        await asyncio.sleep(units * self.unit_s)
