"""Removes artifacts that have expired, and contents that a crash left without a record: a task of the service."""

import contextlib
from typing import Final

from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import WarrenError
from warren.sessions.artifacts import Artifacts

_EXPIRE_EVERY_S: Final = 60.0
_SWEEP_EVERY_S: Final = 3600.0
_LEFT_AFTER_S: Final = 3600.0  # in a shared store: older content without a record is not being saved by another process

_log = get_log(__name__)


class ArtifactExpiry:
    def __init__(self, artifacts: Artifacts, clock: Clock) -> None:
        self._artifacts, self._clock = artifacts, clock

    async def run(self) -> None:
        """Removes expired artifacts each minute, and contents without a record at the start and each hour."""
        swept = -_SWEEP_EVERY_S
        while True:
            try:
                await self.expire()
                if self._clock.now() - swept >= _SWEEP_EVERY_S:
                    await self.sweep()
                    swept = self._clock.now()
            except Exception as exc:
                # Nothing would ever expire without this loop, so it goes on whatever a part of it raises.
                _log.error("artifact_expiry_failed", error=exc, exc=None if isinstance(exc, WarrenError) else exc)
            await self._clock.sleep(_EXPIRE_EVERY_S)

    async def expire(self) -> None:
        while expired := await self._artifacts.records.expired():
            for artifact in expired:
                await self._artifacts.remove(artifact)

    async def sweep(self) -> None:
        """Removes contents without a record, and counts anew what tenants have."""
        records, store, saving = self._artifacts.records, self._artifacts.store, self._artifacts.saving
        if store is None:
            return
        latest = self._clock.wall() - _LEFT_AFTER_S if store.shared else None
        async with contextlib.aclosing(store.list()) as kept:
            async for one in kept:
                # Whoever saves has its id in `saving` before the content is there, and until the record is.
                if one.artifact_id in saving or (latest is not None and one.modified > latest):
                    continue
                if not await records.exists(one.tenant, one.artifact_id):
                    _log.info("artifact_left_over", tenant=one.tenant, artifact=one.artifact_id, action="deleted")
                    await store.delete(one.tenant, one.artifact_id)
        async with contextlib.aclosing(records.users()) as users:
            async for use in users:
                await records.count_anew(use, lambda: bool(saving))
