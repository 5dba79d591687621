"""Makes, changes and deletes volumes, and mounts them in the sandboxes of sessions.

A row is written before the image of its volume exists, and removed after the image is gone; until an image is complete,
and from the moment it is to go, the row is hidden. So a crash leaves no image that no row names, and `recover` removes
what half of a step has left. A volume is in use while a session that holds a sandbox names it. Whoever wants to use one
stores that first and then looks whether the volume is ready; whoever wants to delete one marks it first and then looks
who uses it: one of the two always sees the other. If both fail, the lock on the image still holds (host/volumes.py).

In a cluster a volume lives on the disk of one worker, its `place`; sessions that name it go there. One that nobody uses
moves to where it is wanted (moving.py).
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import Page
from warren.interfaces.volumes import VolumeImages
from warren.interfaces.worker import Worker
from warren.kernel.logs import get_log
from warren.kernel.owned_tasks import OwnedTasks
from warren.kernel.shielding import run_shielded
from warren.model.access import Caller
from warren.model.errors import (
    Conflict,
    FileExists,
    InvalidRequest,
    Misdirected,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
    WarrenError,
)
from warren.model.events import Event, EventKind, VolumeAttachedData, VolumeData
from warren.model.session import MAX_LABELS, Session, SessionState, check_metadata, size_of_metadata
from warren.model.volume import (
    Volume,
    VolumeMount,
    VolumeState,
    VolumeWish,
    check_mounts,
    check_size,
    check_volume_name,
    in_order,
    new_volume_id,
)
from warren.sessions.basis import SessionBasis
from warren.sessions.event_hub import EventHub
from warren.sessions.request_context import current_caller
from warren.sessions.tenant_use import PAGE_LABELS
from warren.sessions.volumes.contents import VolumeContents
from warren.sessions.volumes.moving import FetchVolume, VolumeMoves
from warren.sessions.volumes.records import SHOWN, Use, VolumeRecords, VolumeRow

_USING: Final = frozenset(state for state in SessionState if state.is_counted)
_MADE_S: Final = 20.0
_LOOK_S: Final = 0.05
_MAX_TOLD: Final = 3
_log = get_log(__name__)

FindUsable = Callable[[str, str], Awaitable[Session]]


@dataclass(frozen=True, slots=True)
class VolumeRules:
    """`place`: what other processes know this one's volumes by; empty on a single machine. `size_mb`: of a volume that
    is made without a size. `report_limit` is called when a caller has reached a quota. `fetch` gets volumes from other
    workers."""

    place: str = ""
    size_mb: int = 1024
    report_limit: Callable[[Caller, str], None] = lambda caller, quota: None
    fault: Callable[[str], None] = lambda step: None
    fetch: FetchVolume | None = None


class Volumes:
    def __init__(self, basis: SessionBasis, rules: VolumeRules, events: EventHub) -> None:
        self._basis, self._rules, self._events = basis, rules, events
        self.records = VolumeRecords(basis.store.records, basis.clock.wall)
        self.contents = VolumeContents(basis, self.records, rules.place)
        self.tasks = OwnedTasks()
        self.moves = VolumeMoves(
            *(rules.place, rules.fetch, self.records, lambda: self._images, self._check_unused, basis.clock),
            *(rules.fault, self.tasks),
        )
        self._changing: set[str] = set()  # ids of volumes that are made larger, changed or deleted here

    def __repr__(self) -> str:
        return f"<Volumes of {self._rules.place or 'this machine'}>"

    # -- volumes

    async def create(
        self, tenant: str, name: str, size_mb: int | None = None, metadata: dict[str, str] | None = None
    ) -> Volume:
        """Raises InvalidRequest, Conflict, QuotaExceeded, NoSpace and what making an image raises."""
        new = self._new(tenant, name, check_size(size_mb or self._rules.size_mb), metadata)
        made = await self._make(new, self._make_image)
        if made is None:
            raise Conflict(f"there is a volume {name!r} already", remedy="give another name, or use that one")
        return made

    async def copy(self, tenant: str, source: str, name: str) -> Volume:
        """Copies a volume that nobody uses."""
        row = await self._here(tenant, source)
        await self._check_unused(row.volume)
        new = self._new(tenant, name, row.volume.size_mb, row.volume.metadata)
        made = await self._make(new, lambda volume: self._images.copy(row.volume.id, volume.id))
        if made is None:
            raise Conflict(f"there is a volume {name!r} already", remedy="give another name")
        return made

    def _new(self, tenant: str, name: str, size_mb: int, metadata: dict[str, str] | None) -> Volume:
        now, place = self._basis.clock.wall(), self._rules.place
        kept = check_metadata(dict(metadata or {}), MAX_LABELS)
        return Volume(new_volume_id(), tenant, check_volume_name(name), size_mb, now, place, metadata=kept)

    async def _make(self, volume: Volume, fill: Callable[[Volume], Awaitable[None]]) -> Volume | None:
        """Returns None if there is one of that name."""
        if await self.records.find(volume.tenant, volume.name) is not None:
            return None
        charge = Use(volume.size_mb, 1)
        await self._charge(volume.tenant, charge)
        row: VolumeRow | None = None
        try:
            self._rules.fault("charged")
            if (row := await self.records.add(volume)) is None:
                await run_shielded(self._give_back(volume.tenant, charge))
                return None
            self._rules.fault("row stored")
            await fill(volume)
            self._rules.fault("image made")
            ready = await self.records.change(row, replace(volume, state=VolumeState.READY))
            if ready is None:
                raise Conflict(f"the volume {volume.name!r} was deleted while it was made")
        except BaseException:
            await run_shielded(self._undo(volume, charge, stored=row is not None))
            raise
        self._publish(EventKind.VOLUME_CREATED, ready.volume)
        return ready.volume

    async def _make_image(self, volume: Volume) -> None:
        await self._images.make(volume.id, volume.size_mb)

    async def _undo(self, volume: Volume, charge: Use, *, stored: bool) -> None:
        """Raises nothing: why it failed must reach the caller, and the next start removes what is left."""
        try:
            if stored:
                await self._images.delete(volume.id)
                await self.records.remove(volume)
            await self._give_back(volume.tenant, charge)
        except WarrenError as exc:
            _log.warning("volume_left", volume=volume.id, action="remove_at_next_start", error=exc)

    async def get(self, tenant: str, name: str) -> Volume:
        """Finds a volume by its name or id. Raises NotFound."""
        return (await self.records.shown(tenant, name)).volume

    async def list(self, tenant: str, after: str = "", limit: int = 100) -> tuple[Sequence[Volume], str | None]:
        """Returns volumes in the order of their names, and the name after which the next page begins. A page may have
        fewer than `limit`."""
        found: list[Volume] = []
        labels = 0
        async for row in self.records.rows(tenant, after):
            if len(found) == limit or labels > PAGE_LABELS:
                return found, found[-1].name
            if row.volume.state in SHOWN:
                found.append(row.volume)
                labels += size_of_metadata(row.volume.metadata)
        return found, None

    async def used_bytes(self, volume: Volume) -> int | None:
        """Returns what the volume occupies on its machine's disk; None if that is another machine."""
        if volume.place != self._rules.place or self._basis.worker is None:
            return None
        image = await self._images.find(volume.id)
        return None if image is None else image.used

    async def users(self, volume: Volume) -> Sequence[str]:
        """Returns the ids of the sessions that have the volume."""
        found: list[str] = []
        page = Page(states=_USING, limit=250)
        while some := await self._basis.store.list(volume.tenant, page):
            found += [each.id for each in some if any(one.volume == volume.id for one in each.volumes)]
            page = replace(page, after=some[-1].id)
        return found

    async def _check_unused(self, volume: Volume) -> None:
        if users := await self.users(volume):
            named = ", ".join(users[:_MAX_TOLD]) + (" and others" if len(users) > _MAX_TOLD else "")
            raise Conflict(
                f"the volume {volume.name!r} is used by {named}", remedy="end these sessions, or detach the volume"
            )
        await self.contents.leave(volume.id)

    async def change(
        self, tenant: str, name: str, *, size_mb: int | None = None, metadata: dict[str, str | None] | None = None
    ) -> Volume:
        """Makes a volume larger that nobody uses, and merges metadata: None removes an entry."""
        with self._alone(await self._here(tenant, name)):
            return await self._change(await self._here(tenant, name), size_mb, metadata)

    @contextmanager
    def _alone(self, row: VolumeRow) -> Iterator[None]:
        """Two that make a volume larger would pay for two sizes, and only one of them is in its row."""
        volume = row.volume
        if volume.id in self._changing:
            raise Conflict(f"the volume {volume.name!r} is being changed", remedy="try again soon")
        self._changing.add(volume.id)
        try:
            yield
        finally:
            self._changing.discard(volume.id)

    async def _change(self, row: VolumeRow, size_mb: int | None, metadata: dict[str, str | None] | None) -> Volume:
        volume, tenant = row.volume, row.volume.tenant
        if metadata is not None:
            merged = {**volume.metadata, **metadata}
            labels = {key: value for key, value in merged.items() if value is not None}
            kept = check_metadata(labels, MAX_LABELS)
            volume = replace(volume, metadata=kept)
        more = 0 if size_mb is None else check_size(size_mb) - volume.size_mb
        if more < 0:
            raise InvalidRequest(
                f"the volume has {volume.size_mb} MiB and cannot be made smaller",
                remedy="copy what is in it to a smaller one",
            )
        if not more:
            return await self._changed(row, volume)
        await self._check_unused(volume)
        await self._charge(tenant, Use(more, 0))
        try:
            await self._images.grow(volume.id, volume.size_mb + more)
            self._rules.fault("grown")
        except BaseException:
            await run_shielded(self._give_back(tenant, Use(more, 0)))
            raise
        return await self._changed(row, replace(volume, size_mb=volume.size_mb + more))

    async def _changed(self, row: VolumeRow, volume: Volume) -> Volume:
        if await self.records.change(row, volume) is None:
            raise Conflict(f"the volume {volume.name!r} was changed meanwhile", remedy="try again")
        return volume

    async def delete(self, tenant: str, name: str) -> None:
        """Raises NotFound, and Conflict for one that is in use. One whose worker is away goes when that comes back."""
        row = await self.records.ready(tenant, name)
        with self._alone(row):
            await self._delete(row)

    async def _delete(self, row: VolumeRow) -> None:
        name = row.volume.name
        marked = await self.records.change(row, replace(row.volume, state=VolumeState.DELETING))
        if marked is None:
            raise Conflict(f"the volume {name!r} was changed meanwhile", remedy="try again")
        self._rules.fault("marked")
        try:
            await self._check_unused(row.volume)
            if row.volume.place != self._rules.place:
                return
            await self._images.delete(row.volume.id)
        except BaseException:
            await run_shielded(self.records.change(marked, row.volume))
            raise
        self._rules.fault("image deleted")
        await run_shielded(self._forget(marked.volume))
        self._publish(EventKind.VOLUME_DELETED, row.volume)

    async def _forget(self, volume: Volume) -> None:
        if await self.records.remove(volume):
            await self._give_back(volume.tenant, Use(volume.size_mb, 1))

    async def _here(self, tenant: str, name: str) -> VolumeRow:
        row = await self.records.ready(tenant, name)
        if row.volume.place != self._rules.place:
            raise Unavailable(
                f"the worker {row.volume.place!r}, which has the volume, is not here",
                remedy="try again when it is back",
                retry_after_s=5,
            )
        return row

    @property
    def _worker(self) -> Worker:
        if self._basis.worker is None:
            raise Unavailable("no worker is here to keep volumes", retry_after_s=5)
        return self._basis.worker

    @property
    def _images(self) -> VolumeImages:
        return self._worker.volume_images

    # -- quotas

    async def _charge(self, tenant: str, more: Use) -> None:
        caller = current_caller()
        bounds = {name: min(most for _, most in caller.bounds[name]) for name in Use._fields if caller.bounds[name]}
        if reached := await self.records.charge(tenant, more, bounds):
            self._rules.report_limit(caller, reached)
            what = "MiB in all" if reached == "volumes_mb" else "volumes"
            raise QuotaExceeded(
                f"the tenant may have {bounds[reached]} {what}",
                remedy="delete volumes that are not needed, or ask the operator for more",
            )

    async def _give_back(self, tenant: str, use: Use) -> None:
        try:
            await self.records.charge(tenant, Use(-use.volumes_mb, -use.volumes), {})
        except WarrenError as exc:
            _log.warning("volume_use_not_saved", tenant=tenant, action="count_at_next_start", error=exc)

    # -- sessions

    async def choose(self, tenant: str, wishes: Sequence[VolumeWish]) -> tuple[VolumeMount, ...]:
        """Finds the volumes of a new session, makes those that say how large they are, and moves those here that are
        elsewhere. Raises Misdirected if they are used on another worker, Conflict if on several, NotFound."""
        check_mounts(wishes)
        found = [(wish, await self._find_or_make(tenant, wish)) for wish in wishes]
        if any(volume.place != self._rules.place for _, volume in found):
            await self._check_places([volume for _, volume in found])
            found = [(wish, await self.moves.bring(tenant, volume.id)) for wish, volume in found]
        return tuple(VolumeMount(volume.id, volume.name, wish.path, wish.read_only) for wish, volume in found)

    async def _check_places(self, volumes: Sequence[Volume]) -> None:
        """Raises if they cannot all be moved here."""
        places = {each.place: each.name for each in volumes if self._rules.fetch is None or await self.users(each)}
        if len(places) > 1:
            (one, on_one), (other, on_other) = sorted(places.items())[:2]
            raise Conflict(
                f"the volume {on_one!r} is in use on the worker {one!r}, and {on_other!r} on {other!r}",
                remedy="end the sessions that have one of them",
            )
        for place, name in places.items():
            if place != self._rules.place:
                raise Misdirected(f"the volume {name!r} is on another worker", worker=place)

    async def _find_or_make(self, tenant: str, wish: VolumeWish) -> Volume:
        until = self._basis.clock.now() + _MADE_S
        while True:
            row = await self.records.find(tenant, wish.name)
            if row is not None and row.volume.state is VolumeState.READY:
                return row.volume
            if row is None and wish.size_mb is None:
                raise NotFound(
                    f"there is no volume {wish.name[:140]!r}",
                    remedy=f"make it: warren volume create {wish.name[:140]}; or say its size_mb, and it is made",
                )
            if row is None:
                new = self._new(tenant, wish.name, check_size(wish.size_mb or self._rules.size_mb), None)
                if (made := await self._make(new, self._make_image)) is not None:
                    return made
            if self._basis.clock.now() > until:
                raise Unavailable(f"the volume {wish.name!r} is being made or deleted", retry_after_s=5)
            await self._basis.clock.sleep(_LOOK_S)

    async def attach_all(self, session: Session, sandbox: Sandbox) -> None:
        """Mounts the volumes of a session in its sandbox."""
        for mount in in_order(session.volumes):
            await self._mount(session, sandbox, mount)
            self._report_attached(session, mount)

    async def _mount(self, session: Session, sandbox: Sandbox, mount: VolumeMount) -> None:
        # Looked at now that the session is stored: it may have been deleted before that.
        await self.records.ready(session.tenant, mount.volume, self._rules.place)
        await _make_directory(sandbox, mount.path)
        await self._worker.attach(sandbox.id, mount)

    async def attach(self, tenant: str, session_id: str, wish: VolumeWish, usable: FindUsable) -> Session:
        """Mounts a volume in a running session. `usable` finds a session that can be used."""
        session = await usable(tenant, session_id)
        worker = self._basis.worker_of(session)
        try:
            (mount,) = await self.choose(tenant, [wish])
        except Misdirected as exc:
            raise Conflict(
                f"the volume {wish.name!r} is on the worker {exc.worker!r}, and the session on {worker.name!r}",
                remedy="end the sessions that have it, or create a session with it: that is made where the volume is",
            ) from exc
        while True:
            check_mounts([*session.volumes, mount])
            changed = session.changed(volumes=(*session.volumes, mount))
            if await self._basis.store.swap(changed):
                break
            session = await usable(tenant, session_id)
        self._rules.fault("mount stored")
        try:
            await self._mount(changed, await worker.sandbox(changed.sandbox_id), mount)
        except BaseException:
            await run_shielded(self._unmount(changed, mount, usable))
            raise
        self._report_attached(changed, mount)
        return changed

    async def detach(self, tenant: str, session_id: str, path: str, usable: FindUsable) -> Session:
        """Takes a volume away from a running session. What its programs have open stays open for them."""
        session = await usable(tenant, session_id)
        self._basis.worker_of(session)
        mount = next((one for one in session.volumes if one.path == path), None)
        if mount is None:
            raise NotFound(f"the session has no volume at {path[:200]!r}", remedy="GET the session to see its volumes")
        await self._worker.detach(session.sandbox_id, mount.volume)
        self._rules.fault("taken away")
        return await self._drop(session, mount, usable)

    async def _unmount(self, session: Session, mount: VolumeMount, usable: FindUsable) -> None:
        """Undoes an attach that failed. Raises nothing: why it failed must reach the caller."""
        try:
            await self._worker.detach(session.sandbox_id, mount.volume)
            await self._drop(session, mount, usable)
        except WarrenError as exc:
            _log.warning("volume_not_detached", session=session.id, volume=mount.volume, error=exc)

    async def _drop(self, session: Session, mount: VolumeMount, usable: FindUsable) -> Session:
        while True:
            rest = tuple(one for one in session.volumes if one != mount)
            changed = session.changed(volumes=rest)
            if rest == session.volumes or await self._basis.store.swap(changed):
                return changed
            session = await usable(session.tenant, session.id)

    # -- after a start

    async def recover(self) -> None:
        """Removes what a crash has left of volumes of this machine, and counts anew what tenants have. An image that no
        row names is kept if it may hold something: then the store has lost its rows."""
        if self._basis.worker is None:
            return
        known = set[str]()
        async for row in self.records.rows():
            volume = await self.moves.recovered(row)
            if volume.place != self._rules.place:
                continue
            known.add(volume.id)
            if volume.state not in SHOWN:
                _log.info("volume_left_over", volume=volume.id, state=volume.state, action="deleted")
                await self._images.delete(volume.id)
                await self.records.remove(volume)
            elif (image := await self._images.find(volume.id)) is None:
                _log.error("volume_missing", volume=volume.id, tenant=volume.tenant, action="kept_the_row")
            elif image.size_mb != volume.size_mb:  # it was growing
                await self.records.change(row, replace(volume, size_mb=image.size_mb))
        for image in await self._images.list():
            if image.volume_id not in known and image.was_mounted:
                _log.warning("volume_unknown", volume=image.volume_id, action="kept", size_mb=image.size_mb)
            elif image.volume_id not in known:
                await self._images.delete(image.volume_id)
        await self.records.count_anew()

    async def close(self) -> None:
        await self.tasks.cancel()
        await self.contents.close()

    # -- events

    def _publish(self, kind: EventKind, volume: Volume) -> None:
        _log.info(str(kind).replace(".", "_"), volume=volume.id, tenant=volume.tenant, size_mb=volume.size_mb)
        data = VolumeData(volume.id, volume.name, volume.size_mb)
        self._events.publish(Event(kind, volume.tenant, self._basis.clock.wall(), data))

    def _report_attached(self, session: Session, mount: VolumeMount) -> None:
        data = VolumeAttachedData(mount.volume, mount.name, mount.path, mount.read_only, session.thread_id or None)
        kind, now = EventKind.VOLUME_ATTACHED, self._basis.clock.wall()
        self._events.publish(Event(kind, session.tenant, now, data, session.id))


async def _make_directory(sandbox: Sandbox, path: str) -> None:
    """Makes the directory as the sandbox user, or where commands may be root as root."""
    try:
        await sandbox.mkdir(path)
    except FileExists:
        return
    except PermissionDenied as exc:
        try:
            await sandbox.mkdir(path, user="root")
        except FileExists:
            return
        except WarrenError:
            raise PermissionDenied(
                f"{path} is not there, and cannot be made: {exc.message}",
                remedy="choose a path below /workspace, /home/sandboxuser or /mnt/data, or an environment whose root "
                "can be written to",
            ) from exc
