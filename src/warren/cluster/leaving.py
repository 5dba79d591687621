"""A worker that is about to be stopped gets no new sessions, and waits for those it has: `warren cluster leave`.

That runs beside the worker, as a hook of whatever stops it, and needs no coordinator and no key: it marks the worker in
Redis, and reads there what the worker reports. The mark goes when the worker registers again.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warren.cluster.roster import HEARTBEAT_S, Roster
from warren.model.errors import NotFound, Unavailable
from warren.sessions.volumes.records import VolumeRecords

_LOOK_S: Final = 1.0
# Until then every coordinator has seen the mark, and the worker has reported what it was given before.
_NOTICED_S: Final = 3 * HEARTBEAT_S


@dataclass(frozen=True, slots=True)
class Remainder:
    """What a worker still has. `sessions` counts those that are being made too."""

    sessions: int = 0
    volumes: int = 0

    def __bool__(self) -> bool:
        return bool(self.sessions or self.volumes)


async def leave(
    roster: Roster,
    volumes: VolumeRecords,
    worker_id: str,
    *,
    wait_s: float,
    for_good: bool,
    tell: Callable[[Remainder], None],
) -> Remainder:
    """Returns once nothing is left, or after `wait_s` what is left. `tell` gets it whenever it has changed.

    With `for_good` the worker also waits until its volumes have moved to others. One that does not serve has nothing.
    While Redis is away it is asked again; raises Unavailable if it is away when `wait_s` are over.
    """
    until = time.monotonic() + wait_s
    last: Remainder | None = None
    changed_at = 0.0
    while True:
        try:
            left = await _look(roster, volumes, worker_id, for_good)
        except Unavailable:
            if time.monotonic() >= until:
                raise
        else:
            now = time.monotonic()
            if left != last:
                tell(left)
                last, changed_at = left, now
            if now >= until or (not left and now >= changed_at + _NOTICED_S):
                return left
        await asyncio.sleep(max(0.0, min(_LOOK_S, until - time.monotonic())))


async def _look(roster: Roster, volumes: VolumeRecords, worker_id: str, for_good: bool) -> Remainder:
    """Marks the worker, again if Redis has lost the mark."""
    try:
        member = await roster.mark_as_leaving(worker_id, for_good=for_good)
    except NotFound:
        return Remainder()
    if not member.alive:
        return Remainder()
    there = [row async for row in volumes.rows() if row.volume.place == worker_id] if for_good else []
    return Remainder(member.report.claimed + member.report.waiting, len(there))
