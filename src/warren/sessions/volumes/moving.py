"""Moves volumes that nobody uses between the workers of a cluster.

The worker that wants a volume gets it from the one that has it. Until the third step, one change of the row, the volume
is where it was:

1. The row says MOVING, to whom, and until when. From now on nobody begins to use the volume.
2. The image is copied, unless a session has the volume. The worker that sends it looks for one, and holds the lock on
   the image meanwhile, so no sandbox has it or gets it.
3. The row names the new place.
4. The old place removes its image.

What breaks off is undone by the worker that began it, and if that is gone by whoever reads the row after its time: then
the third step fails, because it changes only the row that the first one wrote. `copies` of a row are the workers that
may be left with an image; they remove it when they start (`Volumes.recover`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakValueDictionary

from warren.interfaces.volumes import VolumeImages
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.owned_tasks import OwnedTasks
from warren.kernel.shielding import run_shielded
from warren.model.errors import Conflict, NotFound, Unavailable, WarrenError
from warren.model.volume import Volume, VolumeState
from warren.sessions.volumes.records import VolumeRecords, VolumeRow

MOVE_S: Final = 900.0
"""How long a move takes at most."""
_LATEST_S: Final = 60.0
_LOOK_S: Final = 0.5
_log = get_log(__name__)

FetchVolume = Callable[[str, str], AsyncGenerator[bytes, None]]
"""Yields the packed volume of a tenant from the worker that has it. Raises Conflict for one that is in use there."""


@dataclass(frozen=True, slots=True)
class VolumeMoves:
    """`place` is this worker. `check_unused` raises Conflict for a volume that somebody uses."""

    place: str
    fetch: FetchVolume | None
    records: VolumeRecords
    images: Callable[[], VolumeImages]
    check_unused: Callable[[Volume], Awaitable[None]]
    clock: Clock
    fault: Callable[[str], None]
    tasks: OwnedTasks
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def bring(self, tenant: str, name: str) -> Volume:
        """Moves a volume here. Raises NotFound, Conflict if somebody uses it, Unavailable if its worker is away, and
        NoSpace."""
        row = await self.records.ready(tenant, name)
        if row.volume.place == self.place:
            return row.volume
        if self.fetch is None:
            raise Unavailable(f"the volume {row.volume.name!r} is on another machine")
        await self.check_unused(row.volume)
        async with self._turn(row.volume):
            return await self._bring(row, self.fetch)

    def _turn(self, volume: Volume) -> asyncio.Lock:
        """Whoever brings or removes an image holds this: one that comes back is not taken for one that has gone."""
        return self._turns.setdefault(volume.id, asyncio.Lock())

    async def _bring(self, row: VolumeRow, fetch: FetchVolume) -> Volume:
        volume, tenant = row.volume, row.volume.tenant
        marked = await self.records.change(row, self._marked(volume))
        if marked is None:
            raise Conflict(f"the volume {volume.name!r} was changed meanwhile", remedy="try again")
        try:
            self.fault("move marked")
            async with aclosing(fetch(tenant, volume.id)) as packed:
                await self.images().unpack(volume.id, packed)
            self.fault("move copied")
            copies = {*marked.volume.copies, volume.place} - {self.place}
            moved = await self.records.change(marked, replace(volume, place=self.place, copies=tuple(sorted(copies))))
            if moved is None:
                raise Unavailable(f"moving the volume {volume.name!r} took too long", retry_after_s=2)
        except BaseException:
            await run_shielded(self._undo(marked))
            raise
        self.fault("moved")
        _log.info("volume_moved", volume=volume.id, tenant=tenant, source=volume.place, size_mb=volume.size_mb)
        return moved.volume

    def _marked(self, volume: Volume) -> Volume:
        until, copies = self.clock.wall() + MOVE_S, tuple(sorted({*volume.copies, self.place}))
        return replace(volume, state=VolumeState.MOVING, moving_to=self.place, moving_until=until, copies=copies)

    async def _undo(self, marked: VolumeRow) -> None:
        """Raises nothing: why it failed must reach the caller. Whether the last change was made is looked up."""
        volume = marked.volume
        try:
            await self.records.change(marked, volume.settled())
            row = await self.records.find(volume.tenant, volume.id)
            if row is None or row.volume.place != self.place:
                await self.images().delete(volume.id)
        except WarrenError as exc:
            _log.warning("volume_copy_left", volume=volume.id, action="remove_at_next_start", error=exc)

    async def recovered(self, row: VolumeRow) -> Volume:
        """Undoes a move to this worker that a crash has broken off, and removes what moves have left here. Returns the
        volume as it is then."""
        volume = row.volume
        if volume.state is VolumeState.MOVING and volume.moving_to == self.place:
            now = await self.records.change(row, volume.settled()) or await self.records.find(volume.tenant, volume.id)
            volume = volume if now is None else now.volume
        if volume.place != self.place and self.place in volume.copies and volume.moving_to != self.place:
            try:
                await self.images().delete(volume.id)  # also what there is of one that has not come to its end
            except WarrenError as exc:
                _log.warning("volume_copy_left", volume=volume.id, action="remove_at_next_start", error=exc)
        return volume

    async def send(self, tenant: str, volume_id: str) -> AsyncGenerator[bytes, None]:
        """Yields the packed volume for the worker to which it moves, and removes it when it has moved. Raises NotFound
        for one that does not move from here, and Conflict for one that a sandbox has."""
        row = await self.records.find(tenant, volume_id)
        if row is None or row.volume.state is not VolumeState.MOVING or row.volume.place != self.place:
            raise NotFound("this volume does not move from here")
        await self.check_unused(row.volume)
        async with aclosing(self.images().pack(volume_id)) as pieces:
            async for piece in pieces:
                yield piece
        self.tasks.run(self._remove_when_moved(row.volume), f"following {volume_id}")

    async def _remove_when_moved(self, volume: Volume) -> None:
        while self.clock.wall() < volume.moving_until + _LATEST_S:
            await self.clock.sleep(_LOOK_S)
            try:
                async with self._turn(volume):
                    row = await self.records.find(volume.tenant, volume.id)
                    if row is not None and row.volume.place != self.place:
                        await self.images().delete(volume.id)
                if row is None or row.volume.state is not VolumeState.MOVING:
                    return
            except WarrenError as exc:
                _log.warning("volume_copy_left", volume=volume.id, action="try_again", error=exc)
