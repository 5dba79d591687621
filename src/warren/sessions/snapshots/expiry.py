"""Removes snapshots that have expired, and what a crash has left of others: a task of the service.

A saved disk and a content of the store belong to a record, or to a snapshot that is being made; a record without its
content is damaged. Contents are listed before records, because a record comes after its content. The hidden snapshot of
a session belongs to its row.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from warren.interfaces.artifacts import ArtifactStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import WarrenError
from warren.model.session import Session
from warren.model.snapshot import Snapshot, SnapshotOwner, is_snapshot_id
from warren.sessions.snapshots.service import Snapshots

_EXPIRE_EVERY_S: Final = 60.0
_SWEEP_EVERY_S: Final = 3600.0
_LEFT_AFTER_S: Final = 3600.0  # in a shared store: older content without a record is not being saved by another process

_log = get_log(__name__)


FindSession = Callable[[str, str], Awaitable[Session | None]]


class SnapshotExpiry:
    def __init__(self, snapshots: Snapshots, clock: Clock, find_session: FindSession) -> None:
        self._snapshots, self._clock, self._find_session = snapshots, clock, find_session

    async def run(self) -> None:
        """Removes expired snapshots each minute, and what crashes have left at the start and each hour."""
        swept = -_SWEEP_EVERY_S
        while True:
            try:
                await self.expire()
                if self._clock.now() - swept >= _SWEEP_EVERY_S:
                    await self.sweep()
                    swept = self._clock.now()
            except Exception as exc:
                # Nothing would ever expire without this loop, so it goes on whatever a part of it raises.
                _log.error("snapshot_expiry_failed", error=exc, exc=None if isinstance(exc, WarrenError) else exc)
            await self._clock.sleep(_EXPIRE_EVERY_S)

    async def expire(self) -> None:
        while expired := await self._snapshots.records.expired():
            for snapshot in expired:
                await self._snapshots.remove(snapshot, "expired")

    async def sweep(self) -> None:
        """Removes saved disks and contents without a record, and records without a content; counts anew what tenants
        have."""
        snapshots = self._snapshots
        snapshots.begun = set(snapshots.making)
        try:
            await self._sweep_saved(snapshots.begun)
            for provider in snapshots.providers:
                await self._sweep_disks(provider, snapshots.begun)
            if snapshots.store is not None:
                await self._sweep_store(snapshots.store, snapshots.begun)
        finally:
            snapshots.begun = None
        async with contextlib.aclosing(snapshots.records.users()) as users:
            async for use in users:
                await snapshots.records.count_anew(use, lambda: bool(snapshots.making))

    async def _sweep_saved(self, begun: set[str]) -> None:
        snapshots = self._snapshots
        latest = self._clock.wall() - _LEFT_AFTER_S
        async with contextlib.aclosing(snapshots.records.all()) as rows:
            async for snapshot in rows:
                is_ours = snapshot.place == snapshots.place or snapshot.created_at < latest
                if snapshot.owner is SnapshotOwner.SESSION and is_ours and snapshot.id not in begun:
                    session = await self._find_session(snapshot.tenant, snapshot.session_id)
                    if session is None or not session.active or session.saved != snapshot.id:
                        await snapshots.remove(snapshot, "unused")

    async def _sweep_disks(self, provider: str, begun: set[str]) -> None:
        snapshots = self._snapshots
        disks = snapshots.disks(provider)
        without = {name for name in await disks.list() if is_snapshot_id(name)}
        async with contextlib.aclosing(snapshots.records.all()) as rows:
            async for snapshot in rows:
                if snapshot.provider != provider:
                    continue
                if self._is_left_by_fork(snapshot) and snapshot.id not in begun:
                    without.discard(snapshot.id)
                    await snapshots.remove(snapshot, "left")
                elif snapshot.id in without:
                    without.discard(snapshot.id)
                    if snapshot.packed and (disk := await disks.find(snapshot.id)) is not None:
                        snapshots.note_unpacked(provider, disk)
                elif self._should_be_here(snapshot) and snapshot.id not in begun:
                    await self._remove_damaged(snapshot)
        if snapshots.place and without - begun and not await self._has_users():
            # A Redis that has lost its data looks like this: a tenant that has deleted its last snapshot is known.
            _log.error("snapshot_records_missing", disks=len(without), action="kept")
            return
        for name in without - begun:
            if not snapshots.is_in_use(name):
                _log.info("saved_disk_left_over", disk=name, action="deleted")
                await disks.delete(name)
        await snapshots.trim_unpacked()

    async def _has_users(self) -> bool:
        async with contextlib.aclosing(self._snapshots.records.users()) as users:
            return await anext(users, None) is not None

    def _is_left_by_fork(self, snapshot: Snapshot) -> bool:
        """A fork uses its snapshot from the saving to its own end, in the process that has saved it."""
        is_ours = snapshot.owner is SnapshotOwner.FORK and snapshot.place == self._snapshots.place
        return is_ours and not self._snapshots.is_in_use(snapshot.id)

    def _should_be_here(self, snapshot: Snapshot) -> bool:
        is_fork = snapshot.owner is SnapshotOwner.FORK
        return not snapshot.packed and snapshot.place == self._snapshots.place and not is_fork

    async def _sweep_store(self, store: ArtifactStore, begun: set[str]) -> None:
        snapshots = self._snapshots
        latest = self._clock.wall() - _LEFT_AFTER_S if store.shared else None
        kept = {(one.tenant, one.artifact_id): one.modified async for one in store.list()}
        without, missing = dict(kept), list[Snapshot]()
        async with contextlib.aclosing(snapshots.records.all()) as rows:
            async for snapshot in rows:
                if without.pop((snapshot.tenant, snapshot.id), None) is None and snapshot.packed:
                    missing.append(snapshot)
        for (tenant, snapshot_id), modified in without.items():
            if snapshot_id in begun or (latest is not None and modified > latest):
                continue
            _log.info("snapshot_left_over", tenant=tenant, snapshot=snapshot_id, action="deleted")
            await store.delete(tenant, snapshot_id)
        if missing and not kept:  # a directory that is not mounted looks like this
            _log.error("snapshot_store_empty", missing=len(missing), action="none")
            return
        for snapshot in missing:
            is_new = latest is not None and snapshot.created_at > latest  # listed before another process has put it
            if snapshot.place in ("", snapshots.place) and snapshot.id not in begun and not is_new:
                await self._remove_damaged(snapshot)

    async def _remove_damaged(self, snapshot: Snapshot) -> None:
        _log.error("snapshot_content_missing", snapshot=snapshot.id, tenant=snapshot.tenant, action="removed")
        await self._snapshots.remove(snapshot, "damaged")
