"""Reaches what is in volumes for callers that have no sandbox with them.

The host never looks into a volume's file system. A sandbox mounts the volume at ROOT, and its agent reads and writes
there, as in any session's; nothing else runs in it, and it has no network. It is no session: no row names it, and after
a crash the worker destroys it with all others that no row names. It stays for a while after its last use.

Each takes the memory and disk of its environment, so a tenant may have four at a time, and all together eight. Who
wants one more takes the place of one that nobody uses: one of its own if there is one, else the one that was used
longest ago, unless the tenant has four. If that finds none it is told to try again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claim
from warren.kernel.fair_share import FairShare
from warren.kernel.owned_tasks import OwnedTasks
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability
from warren.model.errors import (
    Conflict,
    RateLimited,
    SandboxLost,
    SandboxNotFound,
    Stopping,
    Unavailable,
    WarrenError,
)
from warren.model.spec import WORKSPACE
from warren.model.volume import Volume, VolumeMount
from warren.sessions.basis import SessionBasis
from warren.sessions.volumes.records import VolumeRecords

ROOT: Final = f"{WORKSPACE}/volume"
_MOST: Final = 8
_EACH: Final = 4
_IDLE_S: Final = 20.0


@dataclass(eq=False)
class _Open:
    """A volume that a sandbox has for callers; `users` of them use it now."""

    volume: Volume
    used: float
    making: asyncio.Task[Sandbox] | None = None
    users: int = 0


class VolumeContents:
    """`place` is what other processes know this one's volumes by."""

    def __init__(self, basis: SessionBasis, records: VolumeRecords, place: str) -> None:
        self._basis, self._records, self._place = basis, records, place
        self._open: dict[str, _Open] = {}  # by volume id
        self._share = FairShare(_MOST, each=_EACH)
        self._tasks = OwnedTasks()
        self._closed = False

    def __repr__(self) -> str:
        return f"<VolumeContents: {len(self._open)} open>"

    @asynccontextmanager
    async def using(self, tenant: str, volume_id: str, environment: str) -> AsyncGenerator[Sandbox, None]:
        """The sandbox that has the volume at ROOT, of this environment if there is none yet. Raises NotFound,
        RateLimited, and what making a sandbox raises."""
        volume = (await self._records.ready(tenant, volume_id)).volume
        opened = self._open.get(volume.id) or await self._enter(volume)
        opened.users += 1
        making: asyncio.Task[Sandbox] | None = None
        try:
            # Looked at now that it is among those in use: `delete` looks there after it has marked the volume.
            await self._records.ready(tenant, volume.id, self._place)
            making = opened.making
            if making is None or (making.done() and (making.cancelled() or making.exception())):
                making = opened.making = self._tasks.run(self._make(volume, environment))
            # Not cancelled with the caller: the next one finds what was made.
            yield await asyncio.shield(making)
        except (SandboxLost, SandboxNotFound) as exc:
            if making is not None and opened.making is making:
                opened.making = None
                self._tasks.run(self._destroy(making))
            raise Unavailable("what the volume was read by is gone", remedy="try again", retry_after_s=1) from exc
        finally:
            opened.users -= 1
            opened.used = self._basis.clock.now()

    async def _enter(self, volume: Volume) -> _Open:
        if self._closed:
            raise Stopping("the server is being stopped", retry_after_s=5)
        if not self._share.may_take(volume.tenant):
            await self._make_place(volume.tenant)
        if (other := self._open.get(volume.id)) is not None:
            return other
        if not self._share.try_take(volume.tenant):
            raise RateLimited("too many volumes are read and written at once", remedy="try again", retry_after_s=2)
        opened = self._open[volume.id] = _Open(volume, self._basis.clock.now())
        self._tasks.run(self._end_when_idle(opened))
        return opened

    async def _make_place(self, tenant: str) -> None:
        idle = [each for each in self._open.values() if not each.users]
        own = [each for each in idle if each.volume.tenant == tenant]
        if found := own or (idle if self._share.held(tenant) < _EACH else []):
            await self.leave(min(found, key=lambda each: each.used).volume.id)

    async def _make(self, volume: Volume, environment: str) -> Sandbox:
        worker = self._basis.worker
        if worker is None:
            raise Unavailable("no worker is here to keep volumes", retry_after_s=5)
        provider = next((name for name, has in worker.providers.items() if Capability.VOLUMES in has), "")
        image = await worker.prepare(environment, "", provider, volume.tenant)
        sandbox = (await worker.claim(Claim(environment, image, tenant=volume.tenant, provider=provider))).sandbox
        try:
            await sandbox.mkdir(ROOT)
            await worker.attach(sandbox.id, VolumeMount(volume.id, volume.name, ROOT))
        except BaseException:
            await run_shielded(worker.destroy(sandbox.id))
            raise
        return sandbox

    # -- ending

    async def leave(self, volume_id: str) -> None:
        """Lets go of a volume. Raises Conflict if a caller reads or writes in it."""
        opened = self._open.get(volume_id)
        if opened is None:
            return
        if opened.users:
            raise Conflict("somebody reads or writes in the volume now", remedy="try again when that is done")
        del self._open[volume_id]
        await run_shielded(self._end(opened))

    async def _end(self, opened: _Open) -> None:
        try:
            if opened.making is not None:
                await self._destroy(opened.making)
        finally:
            self._share.give_back(opened.volume.tenant)

    async def _destroy(self, making: asyncio.Task[Sandbox]) -> None:
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None and self._basis.worker is not None:
            await self._basis.worker.destroy(making.result().id)

    async def _end_when_idle(self, opened: _Open) -> None:
        clock, volume_id = self._basis.clock, opened.volume.id
        while self._open.get(volume_id) is opened:
            await clock.sleep(max(1.0, opened.used + _IDLE_S - clock.now()))
            if not opened.users and clock.now() >= opened.used + _IDLE_S and self._open.get(volume_id) is opened:
                await self.leave(volume_id)

    async def close(self) -> None:
        """Ends all, also those in use."""
        self._closed = True
        opened, self._open = list(self._open.values()), {}
        await self._tasks.cancel()
        for each in opened:
            try:
                await self._end(each)
            except WarrenError:  # the next start destroys it
                continue
