"""Saves the disks of sessions as snapshots, has them ready for sessions that start from one, and deletes them.

A snapshot is a record (records.py) and a content: a saved disk of the provider, or that disk packed in the store of
snapshots. The content comes first, the record last, so whatever is listed is whole; what a crash leaves has no record,
and `SnapshotExpiry` removes it. Who needs a saved disk uses `present`: as long as it is in use nothing takes it away.

The bytes of a tenant are charged when they are known, after the saving; a tenant saves two at a time, so it is never
further above its quota than by these, and only until they are refused.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from warren.interfaces.artifacts import ArtifactStore
from warren.interfaces.disks import SavedDisk, SavedDisks
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import Key
from warren.kernel.clock import Clock
from warren.kernel.fair_share import FairShare
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.kernel.signing import Signer
from warren.model.capability import Capability, Providers, choose_provider
from warren.model.environment import Environment
from warren.model.errors import LimitReached, NotFound, QuotaExceeded, Unavailable, WarrenError
from warren.model.events import Event, EventKind, SnapshotCreatedData, SnapshotDeletedData
from warren.model.session import Session
from warren.model.snapshot import Snapshot, SnapshotOwner, SnapshotRules, SnapshotWish, new_snapshot_id
from warren.sessions.event_hub import EventHub
from warren.sessions.snapshots.records import SnapshotRecords
from warren.sessions.snapshots.sealing import Sealing

_SAVES_AT_ONCE: Final = 2
_MAX_WAITING: Final = 32
_FORK_KEPT_S: Final = 3600.0  # a crash may leave the disk of a fork, and its worker may never come back

_log = get_log(__name__)

BoundOf = Callable[[str, str], Awaitable[int | None]]
LimitReport = Callable[[str, str], Awaitable[None]]
DiskNames = contextlib.AbstractAsyncContextManager[str]


async def _no_bound(tenant: str, key_id: str) -> int | None:
    return None


async def _no_report(tenant: str, key_id: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """`store`: where contents are kept packed; without one the saved disks are kept. `sealing` encrypts them there, and
    then no disk is kept unpacked. `place` is the name by which others reach what is kept here; empty: there are no
    others. `bound_of` gives the most bytes that a tenant, and the key of that id, may have in all; `report_limit` is
    called when they have them."""

    store: ArtifactStore | None = None
    sealing: Sealing | None = None
    signer: Signer
    environment_of: Callable[[str], Environment]
    rules: SnapshotRules = field(default_factory=SnapshotRules)
    place: str = ""
    bound_of: BoundOf = _no_bound
    report_limit: LimitReport = _no_report
    fault: Callable[[str], None] = lambda step: None


@dataclass(slots=True)
class Making:
    """A snapshot that is being made: what must be undone if nothing comes of it."""

    id: str
    tenant: str
    key_id: str
    provider: str = ""
    charged: int = 0
    is_stored: bool = False
    is_saved: bool = False


class DiskKeeper(Protocol):
    """What snapshots need of a worker."""

    @property
    def providers(self) -> Providers: ...
    async def sandbox(self, sandbox_id: str) -> Sandbox: ...
    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk: ...
    def saved_disks(self, provider: str = "") -> SavedDisks: ...


class Snapshots:
    """Without a `worker` this process only knows of snapshots that others keep."""

    def __init__(
        self,
        records: SnapshotRecords,
        worker: DiskKeeper | None,
        clock: Clock,
        options: SnapshotOptions,
        events: EventHub | None = None,
    ) -> None:
        self.records, self.worker, self._clock, self._options = records, worker, clock, options
        self.store, self.place, self.signer = options.store, options.place, options.signer
        self._events = events or EventHub()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.forking: dict[Key, asyncio.Task[Any]] = {}
        self._waiting = FairShare(each=_MAX_WAITING)
        self._begun_at = 0.0
        self.making: set[str] = set()
        self.begun: set[str] | None = None  # while a sweep runs: what was begun since
        self._in_use: Counter[str] = Counter()
        self._doomed: set[str] = set()  # deleted, and still in use
        self._unpacked: OrderedDict[str, tuple[str, int]] = OrderedDict()  # what the store has, too; provider and bytes

    def __repr__(self) -> str:
        return f"<Snapshots in {self.store or 'saved disks'!r}, {len(self.making)} being saved>"

    @property
    def is_encrypted(self) -> bool:
        return self._options.sealing is not None

    @property
    def providers(self) -> list[str]:
        """The providers here that save disks."""
        known = {} if self.worker is None else self.worker.providers
        return [name for name, has in known.items() if Capability.SNAPSHOTS in has]

    def disks(self, provider: str) -> SavedDisks:
        if self.worker is None:
            raise Unavailable("this process keeps no snapshots", remedy="ask a worker")
        choose_provider(self.worker.providers, provider, {Capability.SNAPSHOTS})
        return self.worker.saved_disks(provider)

    # -- saving

    @contextlib.asynccontextmanager
    async def saved_for(self, session: Session) -> AsyncIterator[Snapshot]:
        """Saves the disk of a session that is to give its sandbox back: hidden, without a name and an expiry. No sweep
        takes it for left over as long as the block takes, which saves the session's row."""
        async with self._saved(session, SnapshotWish(expires_in_s=0, owner=SnapshotOwner.SESSION)) as snapshot:
            yield snapshot

    async def save(self, session: Session, wish: SnapshotWish) -> Snapshot:
        """Saves the disk of a session that has a sandbox, running or frozen."""
        async with self._saved(session, wish) as snapshot:
            return snapshot

    @contextlib.asynccontextmanager
    async def _saved(self, session: Session, wish: SnapshotWish) -> AsyncIterator[Snapshot]:
        if self.worker is None:
            raise Unavailable("this process has no sandboxes", remedy="ask the session's worker")
        self.disks(session.provider)
        async with self.begin(session.tenant, session.key_id) as making:
            making.provider = session.provider
            await self._check_room(making, wish, session)
            disk = await self.worker.save_disk(
                session.sandbox_id, making.id, hashed=wish.owner is not SnapshotOwner.FORK
            )
            self._options.fault("disk saved")
            image, writable_root = session.image, False
            with contextlib.suppress(WarrenError):  # the environment may be gone
                environment = self._options.environment_of(session.environment)
                image, writable_root = image or environment.image, environment.writable_root
            about = {
                "name": wish.name,
                "provider": session.provider,
                "environment": session.environment,
                "image": image,
                "writable_root": writable_root,
                "session_id": session.id,
                "thread_id": session.thread_id,
                "parent": session.snapshot,
            }
            snapshot = self.new(making, disk, wish, about)
            yield await self.keep(making, snapshot)

    def new(self, making: Making, disk: SavedDisk, wish: SnapshotWish, about: Mapping[str, Any]) -> Snapshot:
        """Returns the snapshot for a disk that was just saved. What the wish says wins over what is known of it."""
        now = self._clock.wall()
        known = Snapshot.from_mapping(
            {
                **about,
                "id": making.id,
                "tenant": making.tenant,
                "created_at": now,
                "expires_at": self._expiry(wish, now),
            }
            | {"disk_mb": disk.disk_mb, "bytes": disk.bytes, "sha256": disk.sha256, "place": self.place}
            | {"stopped_s": disk.stopped_s}
        )
        metadata = {**known.metadata, **wish.metadata}
        name = wish.name or known.name
        return replace(known, name=name, public=wish.public, owner=wish.owner, metadata=metadata)

    def _expiry(self, wish: SnapshotWish, now: float) -> float | None:
        ttl_s = self._options.rules.ttl_s if wish.expires_in_s is None else wish.expires_in_s
        if wish.owner is SnapshotOwner.FORK:
            ttl_s = _FORK_KEPT_S
        return now + ttl_s if ttl_s else None

    @contextlib.asynccontextmanager
    async def begin(self, tenant: str, key_id: str) -> AsyncIterator[Making]:
        """Gives a snapshot its id when it is the tenant's turn. What was made of it is removed if the block raises."""
        if not self._waiting.try_take(tenant):
            raise Unavailable(f"{_MAX_WAITING} snapshots of the tenant are being made", retry_after_s=1)
        turn = self._turns.setdefault(tenant, asyncio.Semaphore(_SAVES_AT_ONCE))
        try:
            async with turn:
                # Of two in one millisecond the later one is the newer: names move to it.
                self._begun_at = max(self._clock.wall(), self._begun_at + 0.001)
                making = Making(new_snapshot_id(self._begun_at), tenant, key_id)
                self.making.add(making.id)
                if self.begun is not None:
                    self.begun.add(making.id)
                try:
                    yield making
                except BaseException:
                    if not making.is_saved:
                        await run_shielded(self._discard(making))
                    raise
                finally:
                    self.making.discard(making.id)
        finally:
            self._waiting.give_back(tenant)

    async def _check_room(self, making: Making, wish: SnapshotWish, session: Session) -> None:
        """Refuses before the saving what cannot fit: the disk of a running sandbox says how much it will be."""
        if wish.owner is SnapshotOwner.FORK:
            return
        expected, bound = 0, await self._options.bound_of(making.tenant, making.key_id)
        if bound is not None and session.state.can_run and self.worker is not None:
            with contextlib.suppress(WarrenError):
                expected = (await (await self.worker.sandbox(session.sandbox_id)).metrics()).disk_bytes
        await self.check_room(making, expected, counts=wish.owner is SnapshotOwner.USER)

    async def check_room(self, making: Making, expected: int, *, counts: bool = True) -> None:
        """Raises LimitReached for one snapshot too many, and QuotaExceeded if that many bytes do not fit."""
        most = self._options.rules.max_count
        if counts and await self.records.count(making.tenant) >= most:
            raise LimitReached(f"the tenant has {most} snapshots", remedy="delete some: `warren snapshot rm`")
        bound = await self._options.bound_of(making.tenant, making.key_id)
        if bound is not None and await self.records.used_bytes(making.tenant) + max(1, expected) > bound:
            raise await self._over_quota(making, bound)

    async def _over_quota(self, making: Making, bound: int) -> QuotaExceeded:
        await self._options.report_limit(making.tenant, making.key_id)
        return QuotaExceeded(
            f"the tenant's snapshots may have {bound} bytes in all",
            remedy="delete snapshots, or ask the operator for more",
        )

    async def keep(self, making: Making, snapshot: Snapshot) -> Snapshot:
        """Keeps a saved disk as the content of a snapshot, charges it, and adds the record."""
        if self.store is not None and snapshot.owner is not SnapshotOwner.FORK:
            content = await self.store.put(snapshot.tenant, snapshot.id, self._to_store(snapshot))
            making.is_stored = True
            place = "" if self.store.shared else self.place
            snapshot = replace(snapshot, packed=True, place=place, bytes=content.size)
            self._options.fault("content stored")
        bound = await self._options.bound_of(making.tenant, making.key_id)
        if not await self.records.change_use(snapshot.tenant, snapshot.charged_bytes, bound):
            assert bound is not None
            raise await self._over_quota(making, bound)
        making.charged = snapshot.charged_bytes
        self._options.fault("charged")
        # Set before the store answers: if its answer gets lost, the record may be there all the same.
        making.is_saved = True
        snapshot = await self.records.add(snapshot)
        self._options.fault("record stored")
        if snapshot.packed:
            await run_shielded(self._keep_ready(snapshot))
        self._report_created(snapshot)
        return snapshot

    async def _to_store(self, snapshot: Snapshot) -> AsyncGenerator[bytes, None]:
        source: AsyncGenerator[bytes, None] = self.disks(snapshot.provider).pack(snapshot.id)
        if self._options.sealing is not None:
            source = self._options.sealing.seal(source, _purpose(snapshot))
        async with contextlib.aclosing(source):
            async for part in source:
                yield part

    async def _discard(self, making: Making) -> None:
        """Removes what was made; what cannot be removed now has no record, and a sweep removes it."""
        try:
            if making.charged:
                await self.records.give_back(making.tenant, making.charged)
            if making.is_stored and self.store is not None:
                await self.store.delete(making.tenant, making.id)
            if making.provider:
                await self.disks(making.provider).delete(making.id)
        except WarrenError as exc:
            _log.warning("snapshot_not_discarded", snapshot=making.id, action="delete_later", error=exc)

    # -- using

    def disk_of(self, session: Session) -> DiskNames:
        """The name of the saved disk that the session's sandbox begins from; "" for none."""
        return self._present_of(session) if session.saved or session.snapshot else contextlib.nullcontext("")

    @contextlib.asynccontextmanager
    async def _present_of(self, session: Session) -> AsyncIterator[str]:
        snapshot = await self.records.get_usable(session.tenant, session.saved or session.snapshot)
        async with self.present(snapshot) as disk:
            yield disk

    @contextlib.asynccontextmanager
    async def present(self, snapshot: Snapshot) -> AsyncIterator[str]:
        """Sees to it that the content is among the saved disks here, and stays as long as the block takes. Raises
        NotFound if the snapshot was deleted."""
        disks = self.disks(snapshot.provider)
        self._in_use[snapshot.id] += 1
        try:
            if not await self.records.exists(snapshot.tenant, snapshot.id):
                raise _gone(snapshot)
            await self._fetch(snapshot, disks)
            yield snapshot.id
        finally:
            self._in_use[snapshot.id] -= 1
            if not self._in_use[snapshot.id]:
                del self._in_use[snapshot.id]
                await run_shielded(self._end_use(snapshot, disks))

    async def _fetch(self, snapshot: Snapshot, disks: SavedDisks) -> None:
        async with self._fetching.setdefault(snapshot.id, asyncio.Lock()):
            self._check_place(snapshot)
            if await disks.find(snapshot.id) is not None:
                return
            if not snapshot.packed:
                _log.error("snapshot_content_missing", snapshot=snapshot.id, tenant=snapshot.tenant)
                raise _gone(snapshot)
            source = self.packed(snapshot)
            async with contextlib.aclosing(source):
                disk = await disks.unpack(snapshot.id, source)
            if disk.sha256 != snapshot.sha256:
                _log.error("snapshot_content_damaged", snapshot=snapshot.id, tenant=snapshot.tenant)
                await run_shielded(disks.delete(snapshot.id))
                raise Unavailable(f"the content of the snapshot {snapshot.id} is damaged", remedy="delete it")

    def _check_place(self, snapshot: Snapshot) -> None:
        if snapshot.place not in ("", self.place):
            raise Unavailable(
                f"the worker {snapshot.place!r}, which keeps the snapshot, is not here",
                remedy="try again when it is back",
                retry_after_s=5,
            )

    async def packed(self, snapshot: Snapshot) -> AsyncGenerator[bytes, None]:
        """Yields the content as `SavedDisks.unpack` takes it."""
        self._check_place(snapshot)
        if not snapshot.packed:
            source = self.disks(snapshot.provider).pack(snapshot.id)
        elif self.store is None:
            raise Unavailable("this process has no store of snapshots", remedy="set snapshot_store")
        else:
            source = self.store.read(snapshot.tenant, snapshot.id, 0, snapshot.bytes)
            if self._options.sealing is not None:
                source = self._options.sealing.unseal(source, _purpose(snapshot))
        async with contextlib.aclosing(source):
            async for part in source:
                yield part

    async def _end_use(self, snapshot: Snapshot, disks: SavedDisks) -> None:
        try:
            if snapshot.id in self._doomed:
                self._doomed.discard(snapshot.id)
                await disks.delete(snapshot.id)
            elif snapshot.packed:
                await self._keep_ready(snapshot)
        except WarrenError as exc:
            _log.warning("saved_disk_not_deleted", snapshot=snapshot.id, action="delete_later", error=exc)

    async def _keep_ready(self, snapshot: Snapshot) -> None:
        """Keeps the disk of a snapshot that is in the store, for the next session that starts from it."""
        if snapshot.provider in self.providers:
            if (found := await self.disks(snapshot.provider).find(snapshot.id)) is not None:
                self.note_unpacked(snapshot.provider, found)
            await self.trim_unpacked()

    def note_unpacked(self, provider: str, disk: SavedDisk) -> None:
        self._unpacked[disk.name] = provider, disk.bytes
        self._unpacked.move_to_end(disk.name)

    async def trim_unpacked(self) -> None:
        """Removes the disks that nobody has used for longest, until the others are few enough."""
        most = 0 if self.is_encrypted else self._options.rules.cache_bytes
        total = sum(size for _, size in self._unpacked.values())
        for name, (provider, size) in list(self._unpacked.items()):
            if total > most and name not in self._in_use and self._unpacked.pop(name, ("", 0))[0]:
                await self.disks(provider).delete(name)
                total -= size

    def is_in_use(self, snapshot_id: str) -> bool:
        return snapshot_id in self._in_use or snapshot_id in self.making

    # -- deleting

    async def delete(self, tenant: str, which: str) -> None:
        """Deletes the record, then the content. Content that is kept elsewhere is removed within the hour by whoever
        keeps it. Sessions that began from it have copies."""
        await self.remove(await self.records.get(tenant, which), "deleted")

    async def remove_saved(self, session: Session) -> None:
        """Removes the disk of a session that needs it no longer. Raises nothing: else a sweep does it."""
        try:
            await self.delete(session.tenant, session.saved)
        except NotFound:
            pass
        except WarrenError as exc:
            _log.warning("saved_disk_not_removed", session=session.id, action="delete_later", error=exc)

    async def remove(self, snapshot: Snapshot, reason: str) -> None:
        if not await self.records.remove(snapshot):
            return
        await run_shielded(self.records.give_back(snapshot.tenant, snapshot.charged_bytes))
        self._report_deleted(snapshot, reason)
        try:
            if snapshot.packed and self.store is not None and snapshot.place in ("", self.place):
                await self.store.delete(snapshot.tenant, snapshot.id)
            if snapshot.provider in self.providers:
                self._unpacked.pop(snapshot.id, None)
                if snapshot.id in self._in_use:
                    self._doomed.add(snapshot.id)
                else:
                    await self.disks(snapshot.provider).delete(snapshot.id)
        except WarrenError as exc:
            _log.warning("snapshot_content_not_deleted", snapshot=snapshot.id, action="delete_later", error=exc)

    # -- reporting

    def _report_created(self, snapshot: Snapshot) -> None:
        _log.info("snapshot_created", snapshot=snapshot.id, session=snapshot.session_id, bytes=snapshot.bytes)
        if not snapshot.is_hidden:
            data = SnapshotCreatedData(snapshot.id, snapshot.name, snapshot.bytes, snapshot.sha256)
            self._publish(EventKind.SNAPSHOT_CREATED, snapshot, data)

    def _report_deleted(self, snapshot: Snapshot, reason: str) -> None:
        _log.info("snapshot_deleted", snapshot=snapshot.id, reason=reason)
        if not snapshot.is_hidden:
            data = SnapshotDeletedData(snapshot.id, snapshot.name, snapshot.bytes, reason)
            self._publish(EventKind.SNAPSHOT_DELETED, snapshot, data)

    def _publish(self, kind: EventKind, snapshot: Snapshot, data: SnapshotCreatedData | SnapshotDeletedData) -> None:
        self._events.publish(Event(kind, snapshot.tenant, self._clock.wall(), data, snapshot.session_id))


def _purpose(snapshot: Snapshot) -> str:
    return f"{snapshot.tenant}/{snapshot.id}"


def _gone(snapshot: Snapshot) -> NotFound:
    return NotFound(f"the snapshot {snapshot.id} is gone", remedy="GET /api/snapshots lists those there are")
