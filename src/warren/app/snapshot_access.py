"""Reads the snapshots of this machine's server without it: `warren run --snapshot` starts from one."""

import contextlib
from collections.abc import AsyncIterator

from warren.app.wiring import (
    DATABASE,
    build_clock,
    build_encryption,
    build_environments,
    build_snapshot_store,
    snapshot_options,
)
from warren.config.settings import Settings
from warren.interfaces.disks import SavedDisk, SavedDisks
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import NotFound, SandboxNotFound
from warren.sessions.snapshots.records import SnapshotRecords
from warren.sessions.snapshots.service import Snapshots
from warren.stores.sqlite import SqliteStore


class _Disks:
    """The saved disks of one provider, which has no sandboxes here."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.providers = {provider.name: provider.capabilities}

    def saved_disks(self, provider: str = "") -> SavedDisks:
        return self._provider.saved_disks

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        raise SandboxNotFound(f"there is no sandbox {sandbox_id}")

    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk:
        raise SandboxNotFound(f"there is no sandbox {sandbox_id}")


@contextlib.asynccontextmanager
async def open_snapshots(settings: Settings, provider: Provider | None) -> AsyncIterator[Snapshots]:
    """Yields the snapshots of the state directory, with the contents of this provider. Raises NotFound if no server has
    kept any there."""
    path = settings.state_dir / DATABASE
    if not path.exists():
        raise NotFound("no server has kept snapshots on this machine", remedy="`warren snapshot` asks a server")
    clock, database = build_clock(), await SqliteStore.open(path, encryption=build_encryption(settings))
    store = await build_snapshot_store(settings)
    disks = None if provider is None else _Disks(provider)
    options = snapshot_options(settings, store, build_environments(settings))
    try:
        yield Snapshots(SnapshotRecords(database.records, clock), disks, clock, options)
    finally:
        if store is not None:
            await store.close()
        await database.close()
