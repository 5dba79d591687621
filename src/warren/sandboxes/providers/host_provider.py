"""What oci and docker share: sandboxes on this host, each with a directory, a record, uids, a disk and an agent.

A sandbox's directory is made first and removed last, and the record in it is written before anything else is made, so
that whatever a crash leaves can be found, judged and undone. A subclass says how a sandbox is made (`_make`) and
unmade (`_unmake`), and where its socket and its cgroup are; the rest is here. How its agent is dialled and how its
isolation is read are parts that the provider is given (connection.py).
"""

import asyncio
import errno
import math
import os
import re
import secrets
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Generic, TypedDict, TypeVar

from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability, lacks
from warren.model.errors import NoSpace, ProviderUnavailable, SandboxLost, SandboxNotFound
from warren.model.spec import MIB, IoLimits, Isolation, Layer, SandboxSpec
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.host import isolation
from warren.sandboxes.host.cgroups import CgroupLimits, Hierarchies, SandboxCgroup
from warren.sandboxes.host.disk_images import OLD_NAME, DiskImage, FreedImages, handle_of
from warren.sandboxes.host.disk_room import ENDED, OVERCOMMIT, DiskWatch, Promises, WatchedDisk, find_disk
from warren.sandboxes.host.disks import Disks
from warren.sandboxes.host.figures import FigureReader, FigureSource
from warren.sandboxes.host.file_locks import FileLockWatch
from warren.sandboxes.host.kernel_queues import NetlinkWatch, TcpWatch, WatchedSandbox
from warren.sandboxes.host.machine_size import default_reserve_of, memory_total_mb, most_processes
from warren.sandboxes.host.processes import boot_id, is_exiting, kill_if
from warren.sandboxes.host.uids import UidRanges
from warren.sandboxes.host.watch import Watches
from warren.sandboxes.network.ports import SandboxPorts
from warren.sandboxes.providers.connection import (
    AgentDialer,
    EgressService,
    IsolationReader,
    ProcIsolationReader,
    SocketDialer,
)
from warren.sandboxes.providers.gpu_access import GpuAccess, read_back, variables
from warren.sandboxes.providers.oci_bundle import PARENT
from warren.sandboxes.providers.record import Record, is_abandoned

SOCKETS_SHARE: Final = 8  # of the memory limit, what socket buffers may take beside it on cgroup v1
_IO_DEVICE: Final = "io-device"
_LEAST_SOCKETS: Final = 8 * MIB
_log = get_log(__name__)
_ID: Final = re.compile(r"[0-9a-f]{32}")
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)

Fault = Callable[[str], None]


def require_root(provider: str) -> None:
    if os.geteuid() != 0:
        raise ProviderUnavailable(
            f"the {provider} provider needs root: it makes namespaces, mounts and cgroups, and gives every sandbox "
            f"uids and a disk of its own; this is uid {os.geteuid()}",
            remedy='run it with sudo: sudo "$(command -v warren)" …',
        )


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What sandboxes may take of this machine in all. None: what suits the machine."""

    min_free_disk_mb: int | None = None
    disk_overcommit: float = OVERCOMMIT
    total_memory_mb: int | None = None
    total_cpus: float | None = None
    total_pids: int | None = None
    min_free_memory_mb: int | None = None

    @property
    def is_explicit(self) -> bool:
        return any(value is not None for value in (self.total_memory_mb, self.total_cpus, self.total_pids))

    def totals(self, memory_total_mb: int, processes: int) -> CgroupLimits:
        """The limits of all sandboxes together, on a machine with so much memory and so many possible processes."""
        reserve = default_reserve_of(memory_total_mb) if self.min_free_memory_mb is None else self.min_free_memory_mb
        memory_mb = self.total_memory_mb or max(memory_total_mb - reserve, memory_total_mb // 2)
        return CgroupLimits(
            memory=memory_mb * MIB,
            cpus=self.total_cpus,
            pids=self.total_pids or processes * 3 // 4,
            sockets=memory_mb * MIB // SOCKETS_SHARE,
        )


INSTALL_PROGRAMS: Final = (
    "in a checkout run `make build`, else install Warren again: pip install --force-reinstall --no-deps warren-sandbox"
)

R = TypeVar("R", bound=Record)
Plan = TypeVar("Plan")


class HostOptions(TypedDict, total=False):
    """What every provider of this host takes. Tests pass `fault`, which is called with the name of each step of
    `create` before it is taken."""

    start_timeout_s: float
    fault: Fault
    dialer: AgentDialer | None
    isolation_reader: IsolationReader | None
    room: HostRoom | None
    egress: EgressService | None
    gpus: GpuAccess | None


class HostProvider(ABC, Generic[R, Plan]):
    """`can`: what its sandboxes can do on every machine; `promised`: the layers without which none is handed out."""

    name: ClassVar[str]
    folder: ClassVar[str]
    record_class: type[R]
    promised: ClassVar[frozenset[Layer]]
    can: ClassVar[frozenset[Capability]]
    mounts_gpu_libraries: ClassVar[bool] = False
    local_images: ClassVar[bool] = True

    def __init__(
        self,
        state_dir: Path,
        bin_dir: Path,
        *,
        at_once: int,
        start_timeout_s: float = 30.0,
        fault: Fault = lambda step: None,
        dialer: AgentDialer | None = None,
        isolation_reader: IsolationReader | None = None,
        room: HostRoom | None = None,
        egress: EgressService | None = None,
        gpus: GpuAccess | None = None,
    ) -> None:
        self.egress = egress
        self._egress = egress if egress is not None and not egress.why_not else None
        self.gpus = gpus or GpuAccess(())
        self.gpus.judge_owners_by(self._is_over)
        self.capabilities = self.can | ({Capability.EGRESS} if self._egress is not None else frozenset())
        self.capabilities |= {Capability.GPU} if self.gpus.is_usable else frozenset()
        self._room = room or HostRoom()
        self._dialer = dialer or SocketDialer()
        self._isolation_reader = isolation_reader or ProcIsolationReader()
        self._state = state_dir.absolute()
        self._home = self._state / self.folder
        self._launcher = bin_dir.absolute() / "warren-launch"
        self._agent = bin_dir.absolute() / "warren-agent"
        self._start_timeout_s = start_timeout_s
        self._fault = fault
        self._hierarchies = Hierarchies.here()
        self._uids = UidRanges()
        self.disks = Disks(self._state / "disks", self._launcher)
        self._records: dict[str, R] = {}  # by sandbox, of those that this process has made or adopted
        self._disk_images: dict[str, DiskImage] = {}  # by sandbox, those that this process has open
        self._figures = FigureReader()
        self._freed_images = FreedImages()
        self._kernel_watches = Watches(
            FileLockWatch(), NetlinkWatch(self._known_sandboxes), TcpWatch(self._known_sandboxes)
        )
        self._promises = Promises(self._room.disk_overcommit)
        self._watched: dict[str, WatchedDisk | None] = {}  # None: no disk to watch
        self._disk_watch = DiskWatch(
            self._state,
            self._room.min_free_disk_mb,
            disks=self._list_disks,
            end=self._end_for_disk,
            coming_back=lambda: self.freeing_bytes,
        )
        self._watching: asyncio.Task[None] | None = None
        self._listing = threading.Lock()
        self._totals: CgroupLimits | None = None
        self._ready_lock = asyncio.Lock()
        self._destroying: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._create_slots = asyncio.Semaphore(at_once)
        self._destroy_slots = asyncio.Semaphore(at_once)
        self._open: weakref.WeakSet[AgentSandbox] = weakref.WeakSet()

    async def create(self, spec: SandboxSpec) -> AgentSandbox:
        plan = await self._plan(spec)
        sandbox_id = secrets.token_hex(16)
        async with self._create_slots:
            await self._promise_disk(sandbox_id, spec.limits.disk_mb)
            try:
                sandbox = await self._make(sandbox_id, spec, plan)
                self._promises.keep(sandbox_id)
                # A task cancelled since its last await drops what it returns: be cancelled here instead.
                await asyncio.sleep(0)
                return sandbox
            except BaseException as exc:
                self._lift_io_limit(sandbox_id)
                await run_shielded(self._unmake(sandbox_id))
                self._records.pop(sandbox_id, None)
                self._promises.remove(sandbox_id)
                if isinstance(exc, OSError):
                    raise translate_os_error("creating a sandbox", exc) from exc
                raise

    async def check(self, spec: SandboxSpec) -> None:
        await self._plan(spec)
        self._check_programs()  # they may have gone since the first plan looked at them

    async def adopt(self, sandbox_id: str) -> AgentSandbox:
        directory = self.directory(sandbox_id)
        if not directory.is_dir():
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        record = self.load_record(sandbox_id)
        if record is None or not record.alive():
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self._loss_reason(record)}")
        await self._watch_disks()
        sandbox = await self._connect(record)
        self._records[sandbox_id] = record
        return sandbox

    async def destroy(self, sandbox_id: str) -> None:
        if not _ID.fullmatch(sandbox_id):
            return
        lock = self._destroying.setdefault(sandbox_id, asyncio.Lock())
        async with lock, self._destroy_slots:
            try:
                self._lift_io_limit(sandbox_id)
                if self._egress is not None:
                    await self._egress.forget(sandbox_id)
                await self._unmake(sandbox_id)
                self._records.pop(sandbox_id, None)
                self._promises.remove(sandbox_id)
            except OSError as exc:
                raise translate_os_error(f"destroying sandbox {sandbox_id}", exc) from exc

    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]:
        sandbox_ids = await self._list_all()
        return await asyncio.to_thread(self._with_labels, sandbox_ids, labels) if labels else sandbox_ids

    async def _list_all(self) -> Sequence[str]:
        try:
            return sorted(name for name in os.listdir(self._state / self.folder) if _ID.fullmatch(name))
        except FileNotFoundError:
            return []

    def _with_labels(self, sandbox_ids: Sequence[str], labels: Mapping[str, str]) -> Sequence[str]:
        records = {name: self.load_record(name) for name in sandbox_ids}
        return [name for name, record in records.items() if record and labels.items() <= record.spec.labels.items()]

    async def sweep(self) -> int:
        left = [name for name in await self.list_ids() if is_abandoned(self.directory(name), self.record_class)]
        for sandbox_id in left:
            await self.destroy(sandbox_id)
        return len(left)

    async def close(self) -> None:
        await self._kernel_watches.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        await self._freed_images.close()
        for sandbox_id in [*self._disk_images]:
            self._close_image(sandbox_id)
        if self._egress is not None:
            await self._egress.close()
        for sandbox in list(self._open):
            await sandbox.close()

    @property
    def freeing_bytes(self) -> int:
        """What destroyed sandboxes still hold of the disk, for some moments."""
        return self._freed_images.waiting_bytes

    def list_gpus(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.gpus.known(), self.gpus.free()

    def load_record(self, sandbox_id: str) -> R | None:
        return self.record_class.load(self.directory(sandbox_id))

    def _known_record(self, sandbox_id: str) -> R | None:
        """A record does not change any more once its sandbox is made."""
        return self._records.get(sandbox_id) or self.load_record(sandbox_id)

    async def read_isolation(self, sandbox_id: str) -> Isolation:
        """The isolation in force now. Raises SandboxNotFound, SandboxLost."""
        record = self.load_record(sandbox_id)
        if record is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        return await self._read_isolation(record, self._cgroup(record))

    def directory(self, sandbox_id: str) -> Path:
        """Raises SandboxNotFound for what cannot be an id."""
        if not _ID.fullmatch(sandbox_id):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}")
        return self._home / sandbox_id

    # -- what a subclass says

    @abstractmethod
    async def _plan(self, spec: SandboxSpec) -> Plan:
        """Ensures that this host can make sandboxes, and finds what this one is made of."""

    @abstractmethod
    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: Plan) -> AgentSandbox: ...

    @abstractmethod
    async def _unmake(self, sandbox_id: str) -> None:
        """Idempotent, and right for a sandbox at any stage: the directory goes last."""

    @abstractmethod
    def _socket_directory(self, sandbox_id: str) -> Path:
        """Where its agent listens."""

    @abstractmethod
    def _cgroup(self, record: R) -> SandboxCgroup: ...

    # -- what subclasses use

    def _check_programs(self) -> None:
        for program in (self._launcher, self._agent):
            if not os.access(program, os.X_OK):
                raise ProviderUnavailable(f"the program {program.name} is missing", remedy=INSTALL_PROGRAMS)

    async def _connect(self, record: R, *, creating: bool = False) -> AgentSandbox:
        step = self._fault if creating else lambda _: None
        try:
            directory = self._socket_directory(record.sandbox_id)
            why_lost = partial(self._loss_reason, record)
            link = await self._dialer.dial(record, directory, self._start_timeout_s, why_lost)
        except SandboxLost as exc:
            raise SandboxLost(f"{exc.message}: {self._loss_reason(record)}") from exc
        try:
            step("dialled")
            cgroup = self._cgroup(record)
            self._limit_sockets(cgroup, record)
            if creating and record.spec.io:
                self._limit_io(cgroup, record)
            in_force = await self._read_isolation(record, cgroup)
            passed_before = frozenset() if creating else isolation.GROWING
            promised = self.promised - ({Layer.READ_ONLY_ROOT} if record.spec.writable_root else set())
            isolation.check(in_force, record.spec.require - passed_before, promised - passed_before)
            step("checked")
        except BaseException:
            await run_shielded(link.close())
            raise
        sandbox = AgentSandbox(
            *(record.sandbox_id, link, in_force),
            env={
                "OMP_NUM_THREADS": str(math.ceil(record.spec.limits.cpus)),
                **record.spec.env,
                **(variables(record.spec) if self.mounts_gpu_libraries else {}),
            },
            oom_kills=cgroup.oom_counter(),
            figures=partial(self._figures.read, FigureSource(cgroup, record.pid, record.alive)),
            network=self._egress.network_of(record) if self._egress is not None else None,
            ports=SandboxPorts(record),
        )
        self._open.add(sandbox)
        self._kernel_watches.start()
        return sandbox

    def _without_paths(self, text: str) -> str:
        """What a program of this host wrote, for callers of the server."""
        for path, name in ((self._state, "the state directory"), (self._launcher.parent, "Warren's programs")):
            text = text.replace(str(path), f"({name})")
        return text

    # -- the cgroup of a sandbox, and the one above all of them

    def _limit_sockets(self, cgroup: SandboxCgroup, record: R) -> None:
        try:
            cgroup.limit_sockets(max(_LEAST_SOCKETS, record.spec.limits.memory_mb * MIB // SOCKETS_SHARE))
        except OSError as exc:
            _log.warning("socket_buffers_not_limited", sandbox=record.sandbox_id, error=exc)

    def _limit_io(self, cgroup: SandboxCgroup, record: R) -> None:
        try:
            disk = find_disk(Path(f"/proc/{record.pid}/mountinfo").read_text())
            if disk is not None:  # what is in memory has no device
                _, device = disk
                (self.directory(record.sandbox_id) / _IO_DEVICE).write_text(str(device))
                cgroup.limit_io(device, record.spec.io)
                self._hierarchies.limit_writeback(device, record.spec.io)
        except OSError as exc:
            raise ProviderUnavailable(
                f"the disk throughput of a sandbox cannot be limited: {exc.strerror}",
                remedy="enable the cgroup controller io (blkio), or leave io_mbps, io_iops and `io` out",
            ) from exc

    def _lift_io_limit(self, sandbox_id: str) -> None:
        """Before the sandbox gives its device back, which anybody may get then."""
        if (record := self._records.get(sandbox_id)) is not None and not record.spec.io:
            return
        with suppress(OSError, ValueError):
            device = int((self.directory(sandbox_id) / _IO_DEVICE).read_text())
            others = (disk.device for name, disk in [*self._watched.items()] if disk and name != sandbox_id)
            if device not in others:
                self._hierarchies.limit_writeback(device, IoLimits())

    def _limit_all(self) -> None:
        """Limits what all sandboxes of this machine use together. Call it while `parent_in_use`."""
        if self._totals is None:
            self._totals = self._room.totals(memory_total_mb(), most_processes())
        try:
            self._hierarchies.limit_parent(PARENT, self._totals)
        except OSError as exc:
            if self._room.is_explicit:
                raise ProviderUnavailable(
                    f"the limits of all sandboxes together cannot be set: {exc.strerror}",
                    remedy="leave out total_memory_mb, total_cpus and total_pids, or raise them",
                ) from exc
            _log.warning("total_limits_not_set", error=exc)

    async def _read_isolation(self, record: R, cgroup: SandboxCgroup) -> Isolation:
        found = await self._isolation_reader.read(self.name, record, cgroup.limits())
        if not record.spec.gpus:
            return found
        await self.gpus.found()
        grant = self.gpus.granted(record.spec.gpus)
        return replace(found, gpus=read_back(record.pid, cgroup, grant, record.spec.gpus))

    # -- graphics processors

    async def _check_gpus(self, spec: SandboxSpec) -> None:
        """Raises what keeps a sandbox from having those that it asks for, whoever has them now."""
        if spec.gpus:
            if Capability.GPU not in self.capabilities:
                raise lacks(self.name, Capability.GPU)
            await self.gpus.check(spec.gpus)

    def _claim_gpus(self, spec: SandboxSpec, directory: Path) -> SandboxSpec:
        """The spec with the ids of those that the sandbox has from now on. Raises NoCapacity."""
        return replace(spec, gpus=self.gpus.claim(spec.gpus, directory)) if spec.gpus else spec

    def _is_over(self, directory: Path) -> bool:
        """Whether the sandbox of a directory has died, or will never be finished."""
        record = self.record_class.load(directory)
        return record is not None and (record.abandoned or (record.pid > 0 and not record.alive()))

    def _has_gpu_sandboxes(self, but: str) -> bool:
        names = os.listdir(self._state / self.folder)
        records = (self.load_record(name) for name in names if name != but and _ID.fullmatch(name))
        return any(record is not None and record.spec.gpus for record in records)

    def _known_sandboxes(self) -> Iterator[WatchedSandbox]:
        """Those of this state directory, also of other processes. Called in a thread."""
        try:
            names = [name for name in os.listdir(self._state / self.folder) if _ID.fullmatch(name)]
        except FileNotFoundError:
            return
        for name in names:
            record = self._known_record(name)
            if record is not None and record.pid:
                yield WatchedSandbox(record.pid, partial(self._pids, record))

    def _pids(self, record: R) -> Sequence[int]:
        try:
            return tuple(self._cgroup(record).pids()) if record.alive() else ()
        except SandboxLost:
            return ()

    # -- room on the disk

    async def _promise_disk(self, sandbox_id: str, disk_mb: int) -> None:
        await self._watch_disks()
        if not self.disks.why_not_loop:
            self._promises.add(sandbox_id, disk_mb, self._disk_watch.room_mb())

    async def _watch_disks(self) -> None:
        """Begins to watch the room, after a first look: sandboxes of earlier and other processes count too."""
        if self._watching is None and not self.disks.why_not_loop:
            if not self._disk_watch.can_restrict():
                self._promises.overcommit = min(1.0, self._promises.overcommit)
            self._watching = asyncio.create_task(self._disk_watch.run(), name="disk-watch")
            await asyncio.to_thread(self._list_disks)

    def _list_disks(self) -> dict[str, WatchedDisk]:
        """The disks of all live sandboxes of this state directory; what dead ones hold is given back."""
        with self._listing:  # two threads may want it
            return self._list_disks_alone()

    def _list_disks_alone(self) -> dict[str, WatchedDisk]:
        known = {*self._records, *self._disk_images}
        try:
            names = {name for name in os.listdir(self._state / self.folder) if _ID.fullmatch(name)}
        except FileNotFoundError:
            names = set()
        for name in self._watched.keys() - names:
            del self._watched[name]
        for name in known - names:  # another process has destroyed it
            self._records.pop(name, None)
            self._close_image(name)
        for name in names:
            disk = self._watched.get(name)
            if disk is not None and not disk.is_there:
                disk.image.give_up()
                self._watched[name] = None
            if name not in self._watched and (record := self._known_record(name)) is not None and record.pid:
                self._watched[name] = self._watched_disk(record)
        disks = {name: disk for name, disk in self._watched.items() if disk is not None}
        self._promises.replace_all({name: disk.limit // MIB for name, disk in disks.items()})
        return disks

    def _watched_disk(self, record: R) -> WatchedDisk | None:
        image = self._image_of(record)
        try:
            disk = find_disk(Path(f"/proc/{record.pid}/mountinfo").read_text()) if record.alive() else None
        except OSError:
            disk = None
        if disk is None:
            image.give_up()
            return None
        where, device = disk
        mounted = Path(f"/proc/{record.pid}/root{where}")
        return WatchedDisk(mounted, device, record.spec.limits.disk_mb * MIB, image)

    async def _new_disk(self, record: R) -> tuple[R, int]:
        """The record with the disk's image, and the descriptor of it for the launcher. Needs loop devices."""
        fd = await self.disks.copy(record.spec.limits.disk_mb)
        record = replace(record, image=handle_of(fd))
        self._disk_images[record.sandbox_id] = DiskImage(self.disks.directory, record.image, fd=fd)
        return record, fd

    def _image_of(self, record: R) -> DiskImage:
        if (image := self._disk_images.get(record.sandbox_id)) is not None:
            return image
        old_name = None if record.image else self.directory(record.sandbox_id) / OLD_NAME
        return DiskImage(self.disks.directory, record.image, old_name=old_name)

    def _close_image(self, sandbox_id: str) -> None:
        if (image := self._disk_images.pop(sandbox_id, None)) is not None:
            image.close()

    @asynccontextmanager
    async def _freeing_image(self, sandbox_id: str, record: R | None) -> AsyncIterator[None]:
        """While its sandbox is destroyed."""
        image = self._image_of(record) if record is not None else self._disk_images.get(sandbox_id)
        self._disk_images.pop(sandbox_id, None)
        async with self._freed_images.keeping(image) if image is not None else nullcontext():
            yield

    def _end_for_disk(self, sandbox_id: str, why: str) -> None:
        record = self.load_record(sandbox_id)
        if record is None or not record.alive():
            return
        directory = self.directory(sandbox_id)
        with suppress(OSError):
            (directory / ENDED).write_text(why)
        disk = self._watched.get(sandbox_id)
        if disk is not None:
            disk.abandon()
        kill_if(record.pid, lambda _: record.alive())
        self._watched[sandbox_id] = None

    def _release_uids(self, record: R | None, directory: Path) -> None:
        if record is None or record.spec.gpus or not record.pid:
            self.gpus.release(directory)
        if record is not None:
            self._uids.release(record.uid_index, directory)
        else:
            self._uids.release_all(directory)

    def _loss_reason(self, record: R | None) -> str:
        if record is None or not record.pid:
            return "it was never finished"
        if record.boot_id != boot_id():
            return "the machine was restarted"
        if record.alive() and not is_exiting(record.pid):
            return "its agent does not answer"
        if not self.directory(record.sandbox_id).is_dir():
            return "it was destroyed"
        with suppress(OSError):
            return (self.directory(record.sandbox_id) / ENDED).read_text()
        return "its first process has ended"


def translate_os_error(doing: str, exc: OSError) -> ProviderUnavailable | NoSpace:
    """Callers of the server see it: it names no path of this host, the log does."""
    _log.warning("host_error", doing=doing, path=exc.filename, error=exc.strerror)
    if exc.errno in _NO_SPACE:
        return NoSpace(f"{doing}: {exc.strerror}", remedy="free some space in the state directory")
    return ProviderUnavailable(f"{doing}: {exc.strerror}")
