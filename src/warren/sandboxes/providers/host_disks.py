"""The disks of a provider's sandboxes: the room they may take, their images, and which sandboxes end when it runs
out."""

import asyncio
import errno
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Generic, TypeVar

from warren.model.spec import MIB
from warren.sandboxes.host.disk_images import DiskImage, FreedImages, handle_of
from warren.sandboxes.host.disk_room import ENDED, DiskWatch, Promises, WatchedDisk, find_disk
from warren.sandboxes.host.disks import Disks
from warren.sandboxes.host.freezing import let_die
from warren.sandboxes.host.processes import kill_if
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.host.volumes import HostVolumes
from warren.sandboxes.providers.host_limits import HostLimits
from warren.sandboxes.providers.host_records import SandboxRecords

_LOOP_DEVICES: Final = re.compile(r" (7:\d+) ")  # in mountinfo: a disk is mounted at many places, a volume beside it

R = TypeVar("R", bound=SandboxRecord)


class SandboxDisks(Generic[R]):
    """`promises` counts what the sandboxes may write in all. Without loop devices no room is promised or watched."""

    def __init__(
        self,
        records: SandboxRecords[R],
        disks: Disks,
        volumes: HostVolumes,
        state_dir: Path,
        min_free_mb: int | None,
        overcommit: float,
    ) -> None:
        self._records = records
        self._volumes = volumes
        self._disks = disks
        self.promises = Promises(overcommit)
        self._images: dict[str, DiskImage] = {}  # by sandbox, those that this process has open
        self._freed = FreedImages()
        self._watched: dict[str, WatchedDisk | None] = {}  # None: no disk to watch
        self._watch = DiskWatch(
            state_dir,
            min_free_mb,
            disks=self.list,
            end=self._end_sandboxes,
            volumes=volumes.watched,
            coming_back=lambda: self.freeing_bytes,
        )
        self._watching: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._listing = threading.Lock()
        self._emptying = ThreadPoolExecutor(1, "emptied-disks")

    @property
    def freeing_bytes(self) -> int:
        """What destroyed sandboxes still hold of the disk, for some moments."""
        return self._freed.waiting_bytes

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        await asyncio.wrap_future(self._emptying.submit(_empty_and_kill, (), ()))  # behind those that are on their way
        await self._freed.close()
        for sandbox_id in [*self._images]:
            self.close_image(sandbox_id)

    # -- room

    async def promise(self, sandbox_id: str, disk_mb: int) -> None:
        """Promises the sandbox this much of the disk. Raises NoSpace or MachineFull if there is not as much left."""
        await self.begin_watching()
        if not self._disks.why_not_loop:
            self.promises.add(sandbox_id, disk_mb, self._watch.room_mb())

    async def begin_watching(self) -> None:
        """Begins to watch the room, after a first look: sandboxes of earlier and other processes count too."""
        if self._watching is not None or self._disks.why_not_loop:
            return
        async with self._beginning:  # nobody is promised room before the first look is done
            if self._watching is None:
                if not self._watch.can_restrict():
                    self.promises.overcommit = min(1.0, self.promises.overcommit)
                await asyncio.to_thread(self.list)
                self._watching = asyncio.create_task(self._watch.run(), name="disk-watch")

    def list(self) -> dict[str, WatchedDisk]:
        """The disks of all live sandboxes of this state directory; what dead ones hold is given back."""
        with self._listing:  # two threads may want it
            return self._list_alone()

    def _list_alone(self) -> dict[str, WatchedDisk]:
        records = self._records
        known = {*records.made, *self._images}  # read before the names: else one made meanwhile would look destroyed
        names = set(records.names())
        for name in self._watched.keys() - names:
            del self._watched[name]
        for name in known - names:  # another process has destroyed it
            records.made.pop(name, None)
            self.close_image(name)
        for name in names:
            disk = self._watched.get(name)
            if disk is not None and not disk.is_there:
                del self._watched[name]  # it has ended, or a volume covers the place
            if name not in self._watched and (record := records.known(name)) is not None and record.pid:
                self._watched[name] = self._watched_disk(record)
        disks = {name: disk for name, disk in self._watched.items() if disk is not None}
        self.promises.replace_all({name: disk.limit // MIB for name, disk in disks.items()})
        return disks

    def _watched_disk(self, record: R) -> WatchedDisk | None:
        image = self._image_of(record)
        try:
            mounts = Path(f"/proc/{record.pid}/mountinfo").read_text() if record.alive() else ""
            disk = find_disk(mounts)
        except OSError:
            disk = None
        if disk is None:
            image.close()
            return None
        if len(set(_LOOP_DEVICES.findall(mounts))) > 1:
            self._volumes.note_user(record)
        where, device = disk
        mounted = Path(f"/proc/{record.pid}/root{where}")
        return WatchedDisk(mounted, device, record.spec.limits.disk_mb * MIB, image)

    def find(self, record: R) -> WatchedDisk:
        """Returns the disk of a live sandbox. Raises FileNotFoundError if it is gone."""
        disk = self._watched.get(record.sandbox_id) or self._watched_disk(record)
        if disk is None:
            raise FileNotFoundError(errno.ENOENT, "the disk is gone")
        return disk

    def spare(self) -> int:
        """Returns how many bytes may still be written to the state directory."""
        return self._watch.spare()

    def lift_io_limit(self, sandbox_id: str, limits: HostLimits) -> None:
        """Lifts the limit of the sandbox's device. To be called before the sandbox gives the device back: whoever gets
        it then would have the limit."""
        if (record := self._records.made.get(sandbox_id)) is not None and not record.spec.io:
            return
        device = limits.limited_device(self._records.directory(sandbox_id))
        others = (disk.device for name, disk in [*self._watched.items()] if disk and name != sandbox_id)
        if device is not None and device not in others:
            limits.lift_io(device)

    def _end_sandboxes(self, sandbox_ids: Sequence[str], why: str) -> "Future[None]":
        """Stops what sandboxes write. Then ends them and frees what their disks hold, which the result waits for."""
        ending = [record for name in sandbox_ids if (record := self._records.load(name)) and record.alive()]
        shut_down = []
        # All are shut down before the first image is emptied: that can take as long as the others need to fill the
        # host. And the kernel must not write to blocks that are given back.
        for record in ending:
            with suppress(OSError):
                (self._records.directory(record.sandbox_id) / ENDED).write_text(why)
            disk = self._watched.get(record.sandbox_id)
            if disk is not None and disk.shut_down():
                shut_down.append(disk)
            self._watched[record.sandbox_id] = None
        return self._emptying.submit(_empty_and_kill, shut_down, ending)

    # -- images

    async def new_image(self, record: R, copied: Awaitable[int] | None = None) -> tuple[R, int]:
        """Makes a disk, or takes the one that is `copied`. Returns the record with the disk's image, and the image's
        descriptor for the launcher. Needs loop devices."""
        fd = await (copied or self._disks.copy(record.spec.limits.disk_mb))
        record = replace(record, image=handle_of(fd))
        self._images[record.sandbox_id] = DiskImage(self._disks.directory, record.image, fd=fd)
        return record, fd

    def _image_of(self, record: R) -> DiskImage:
        if (image := self._images.get(record.sandbox_id)) is not None:
            return image
        return DiskImage(self._disks.directory, record.image)

    def close_image(self, sandbox_id: str) -> None:
        if (image := self._images.pop(sandbox_id, None)) is not None:
            image.close()

    @asynccontextmanager
    async def freeing_image(self, sandbox_id: str, record: R | None) -> AsyncIterator[None]:
        """Frees the disk of a sandbox that is destroyed during the block."""
        image = self._image_of(record) if record is not None else self._images.get(sandbox_id)
        self._images.pop(sandbox_id, None)
        async with self._freed.keeping(image) if image is not None else nullcontext():
            yield


def _empty_and_kill(disks: Sequence[WatchedDisk], records: Sequence[SandboxRecord]) -> None:
    for disk in disks:
        with suppress(OSError):
            disk.image.empty()
    for record in records:
        _kill(record)


def _kill(record: SandboxRecord) -> None:
    kill_if(record.pid, lambda _: record.alive())
    let_die(record.pid)
