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
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Generic, TypedDict, TypeVar, Unpack

from warren.interfaces.disks import NoSavedDisks, SavedDisk, SavedDisks
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability, lacks
from warren.model.errors import (
    Conflict,
    InvalidRequest,
    NoSpace,
    ProviderUnavailable,
    SandboxLost,
    SandboxNotFound,
)
from warren.model.spec import Isolation, Layer, SandboxSpec, check_disk_name
from warren.model.volume import VolumeMount
from warren.sandboxes.agent.link import AgentLink, Waking
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.disks.disk_stream import DiskLayout
from warren.sandboxes.disks.packed_volumes import PackedVolumes
from warren.sandboxes.disks.saved_images import SavedImages
from warren.sandboxes.disks.saving import LiveDisk, save_disk
from warren.sandboxes.host import isolation
from warren.sandboxes.host.cgroups import Hierarchies, SandboxCgroup
from warren.sandboxes.host.disk_room import ENDED
from warren.sandboxes.host.disks import Disks
from warren.sandboxes.host.file_locks import FileLockWatch
from warren.sandboxes.host.kernel_queues import NetlinkWatch, TcpWatch
from warren.sandboxes.host.metrics import MetricsReader, MetricsSource
from warren.sandboxes.host.processes import boot_id, is_exiting
from warren.sandboxes.host.reclaim import Reclaims
from warren.sandboxes.host.record import SandboxRecord, find_abandoned
from warren.sandboxes.host.storage import DISKS
from warren.sandboxes.host.uids import UidRanges
from warren.sandboxes.host.volumes import VOLUMES
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
from warren.sandboxes.providers.host_disks import SandboxDisks
from warren.sandboxes.providers.host_limits import HostLimits, HostRoom
from warren.sandboxes.providers.host_records import SandboxRecords, is_sandbox_id

_log = get_log(__name__)
_SAVING: Final = frozenset({Capability.SNAPSHOTS})
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)

Fault = Callable[[str], None]


def require_root(provider: str) -> None:
    if os.geteuid() != 0:
        raise ProviderUnavailable(
            f"the {provider} provider needs root: it makes namespaces, mounts and cgroups, and gives every sandbox "
            f"uids and a disk of its own; this is uid {os.geteuid()}",
            remedy='run it with sudo: sudo "$(command -v warren)" …',
        )


INSTALL_PROGRAMS: Final = (
    "in a checkout run `make build`, else install Warren again: pip install --force-reinstall --no-deps warren-sandbox"
)


@dataclass(frozen=True, slots=True)
class HostPrograms:
    """The launcher and the agent, which are in one directory."""

    state: Path
    launcher: Path
    agent: Path

    @classmethod
    def of(cls, state: Path, bin_dir: Path) -> "HostPrograms":
        directory = bin_dir.absolute()
        return cls(state, directory / "warren-launch", directory / "warren-agent")

    def check(self) -> None:
        """Raises ProviderUnavailable if one is missing."""
        for program in (self.launcher, self.agent):
            if not os.access(program, os.X_OK):
                raise ProviderUnavailable(f"the program {program.name} is missing", remedy=INSTALL_PROGRAMS)

    def without_paths(self, text: str) -> str:
        """Takes the paths of this host out of what a program wrote, for callers of the server."""
        for path, name in ((self.state, "the state directory"), (self.launcher.parent, "Warren's programs")):
            text = text.replace(str(path), f"({name})")
        return text


R = TypeVar("R", bound=SandboxRecord)
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
    saved_folder: ClassVar[str] = "saved"
    """Where saved disks are, among the other disks. No two providers have the same folder, because each removes what it
    does not know of. All are below `saved`, which is moved as a whole (host/storage.py)."""

    def __init__(self, state_dir: Path, bin_dir: Path, *, at_once: int, **options: Unpack[HostOptions]) -> None:
        room, egress = options.get("room") or HostRoom(), options.get("egress")
        self.egress = egress
        self._egress = egress if egress is not None and not egress.why_not else None
        self._state = state_dir.absolute()
        self._home = self._state / self.folder
        self._programs = HostPrograms.of(self._state, bin_dir)
        self.records: SandboxRecords[R] = SandboxRecords(self._home, self.record_class)
        self.load_record, self.directory = self.records.load, self.records.directory
        self.gpus = options.get("gpus") or GpuAccess(())
        self.gpus.judge_owners_by(self.records.is_over)
        self._hierarchies = Hierarchies.here()
        self._can = self.can | ({Capability.EGRESS} if self._egress is not None else frozenset())
        self._can |= {Capability.GPU} if self.gpus.is_usable else frozenset()
        self._can_freeze = self._hierarchies.can_freeze
        self._can |= {Capability.PAUSE} if self._can_freeze else frozenset()
        self._reclaims = Reclaims(self._programs.launcher)
        self._dialer = options.get("dialer") or SocketDialer()
        self._isolation_reader = options.get("isolation_reader") or ProcIsolationReader(volumes=self._state / VOLUMES)
        self._start_timeout_s = options.get("start_timeout_s", 30.0)
        self._fault: Fault = options.get("fault", lambda step: None)
        self._limits = HostLimits(self._hierarchies, room)
        self._uids = UidRanges()
        self.disks = Disks(self._state / DISKS, self._programs.launcher)
        self.volume_images = PackedVolumes(
            self._state / VOLUMES, self._programs.launcher, room.min_free_disk_mb, self._programs.without_paths
        )
        self.sandbox_disks = SandboxDisks(
            self.records, self.disks, self.volume_images, self._state, room.min_free_disk_mb, room.disk_overcommit
        )
        self._saved = SavedImages(self.disks.directory / self.saved_folder, self.sandbox_disks.spare, self._fault)
        self._metrics = MetricsReader()
        watched = partial(self.records.watched, self._cgroup)
        self._kernel_watches = Watches(
            FileLockWatch(), NetlinkWatch(watched, lambda: len(self.records.made)), TcpWatch(watched)
        )
        self._ready_lock = asyncio.Lock()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._create_slots = asyncio.Semaphore(at_once)
        self._destroy_slots = asyncio.Semaphore(at_once)
        self._open: weakref.WeakSet[AgentSandbox] = weakref.WeakSet()
        self.half_made: set[str] = set()

    async def create(self, spec: SandboxSpec) -> AgentSandbox:
        plan = await self._plan(spec)
        sandbox_id = secrets.token_hex(16)
        async with self._create_slots:
            await self.sandbox_disks.promise(sandbox_id, spec.limits.disk_mb)
            try:
                sandbox = await self._make(sandbox_id, spec, plan)
                self.sandbox_disks.promises.keep(sandbox_id)
                # A task cancelled since its last await drops what it returns: be cancelled here instead.
                await asyncio.sleep(0)
                return sandbox
            except BaseException as exc:
                # All of it is shielded: a second cancellation must not cost the promise of disk.
                await run_shielded(self._undo(sandbox_id))
                if isinstance(exc, OSError):
                    raise translate_os_error("creating a sandbox", exc) from exc
                raise

    async def load_image(self, image: str) -> None:
        """Its sandboxes use the files of an image where they are."""

    async def check(self, spec: SandboxSpec) -> None:
        await self._plan(spec)
        self._programs.check()  # they may have gone since the first plan looked at them

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._can if self.why_not_saved else self._can | _SAVING

    @property
    def why_not_saved(self) -> str:
        """What keeps the disks of sandboxes from being saved on this machine; empty if nothing does."""
        if not self._can_freeze:
            return "its cgroups have no freezer"
        if not self.disks.has_loop:
            return f"it has no loop devices ({self.disks.why_not_loop or 'they cannot be opened'})"
        return ""

    @property
    def saved_disks(self) -> SavedDisks:
        return NoSavedDisks(self._saves_none) if self.why_not_saved else self._saved

    def _saves_none(self) -> InvalidRequest:
        return InvalidRequest(
            f"the provider {self.name} does not have the capability snapshots on this machine: {self.why_not_saved}",
            remedy="allow what is missing, or use a provider that has the capability",
        )

    def _require_saving(self) -> None:
        if self.why_not_saved:
            raise self._saves_none()

    async def freeze(self, sandbox_id: str) -> None:
        async with self._alone(sandbox_id):
            cgroup = self._freezable(sandbox_id)
            try:
                await run_shielded(freeze(cgroup))
            except ProviderUnavailable:
                self._live_record(sandbox_id)
                raise
            except OSError as exc:
                self._live_record(sandbox_id)
                raise translate_os_error(f"freezing sandbox {sandbox_id}", exc) from exc
            self._reclaims.begin(sandbox_id, cgroup)

    async def thaw(self, sandbox_id: str) -> None:
        async with self._alone(sandbox_id):
            cgroup = self._freezable(sandbox_id)
            await asyncio.sleep(0)  # what the caller has written to the agent goes ahead
            self._wake(sandbox_id, cgroup)

    def _freezable(self, sandbox_id: str) -> SandboxCgroup:
        if Capability.PAUSE not in self.capabilities:
            raise lacks(self.name, Capability.PAUSE)
        return self._cgroup(self._live_record(sandbox_id))

    def _wake(self, sandbox_id: str, cgroup: SandboxCgroup) -> None:
        self._reclaims.stop(sandbox_id)
        if cgroup.is_frozen():
            cgroup.allow_swap(False)
        cgroup.thaw()

    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk:
        check_disk_name(name)
        await self._ready()
        self._require_saving()
        record = self._live_record(sandbox_id)
        if record.disk_layout is None:
            raise Conflict(
                "this sandbox was made by an older version, and its disk fits no other sandbox",
                remedy="copy its files to a new sandbox, and save the disk of that",
            )
        try:
            disk = await asyncio.to_thread(self.sandbox_disks.find, record)
            layout, alone = DiskLayout.of(record.disk_layout), partial(self._alone, sandbox_id)
            live = LiveDisk(disk, layout, self._cgroup(record), alone)
            return await save_disk(self._saved, name, live, hashed=hashed)
        except OSError as exc:
            self._live_record(sandbox_id)  # it may have died
            raise translate_os_error("saving a disk", exc) from exc

    async def attach(self, sandbox_id: str, mount: VolumeMount) -> None:
        self._check_volumes()
        await self.volume_images.attach(self._live_record(sandbox_id), mount, self._volume_base(sandbox_id))

    async def detach(self, sandbox_id: str, volume_id: str) -> None:
        await self.volume_images.detach(self._live_record(sandbox_id), volume_id)

    def _check_volumes(self) -> None:
        if self.disks.why_not_loop:
            raise ProviderUnavailable(
                f"volumes need loop devices, which cannot be used here: {self.disks.why_not_loop}",
                remedy="load the kernel module loop, and let the server use /dev/loop-control",
            )

    def _volume_base(self, sandbox_id: str) -> int:
        """Where the ids of a sandbox begin on the host that has no user namespace to say so."""
        return 0

    async def adopt(self, sandbox_id: str, *, paused_s: float | None = None) -> AgentSandbox:
        record = self._live_record(sandbox_id)
        await self.sandbox_disks.begin_watching()
        sandbox = await self._connect(record, waking=Waking(partial(self._wake_record, record), paused_s))
        self.records.made[sandbox_id] = record
        return sandbox

    def _wake_record(self, record: R) -> None:
        with suppress(SandboxLost):
            self._wake(record.sandbox_id, self._cgroup(record))

    def _live_record(self, sandbox_id: str) -> R:
        """Raises SandboxNotFound, SandboxLost."""
        if not self.directory(sandbox_id).is_dir():
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        record = self.load_record(sandbox_id)
        if record is None or not record.alive():
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self._loss_reason(record)}")
        return record

    def _alone(self, sandbox_id: str) -> asyncio.Lock:
        """Held by whoever ends a sandbox, or relies on it to stay as it is."""
        return self._locks.setdefault(sandbox_id, asyncio.Lock())

    async def destroy(self, sandbox_id: str) -> None:
        if not is_sandbox_id(sandbox_id):
            return
        # The second of two that destroy the same sandbox waits, and then finds nothing left.
        async with self._alone(sandbox_id), self._destroy_slots:
            try:
                if self._egress is not None:
                    await self._egress.forget(sandbox_id)
                await self._remove_sandbox(sandbox_id)
            except OSError as exc:
                raise translate_os_error(f"destroying sandbox {sandbox_id}", exc) from exc

    async def _undo(self, sandbox_id: str) -> None:
        """Removes a sandbox whose making failed. Does not raise: the reason why it failed must reach the caller."""
        try:
            await self._remove_sandbox(sandbox_id)
        except Exception as exc:
            self.half_made.add(sandbox_id)
            _log.warning("sandbox_left", sandbox=sandbox_id, error=exc)

    async def _remove_sandbox(self, sandbox_id: str) -> None:
        self.sandbox_disks.lift_io_limit(sandbox_id, self._limits)
        await self._reclaims.end(sandbox_id)
        await self._unmake(sandbox_id)
        self.records.made.pop(sandbox_id, None)
        self.sandbox_disks.promises.remove(sandbox_id)
        self.half_made.discard(sandbox_id)

    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]:
        sandbox_ids = await self._list_all()
        return await asyncio.to_thread(self.records.with_labels, sandbox_ids, labels) if labels else sandbox_ids

    async def _list_all(self) -> Sequence[str]:
        return sorted(self.records.names())

    async def sweep(self) -> int:
        left = await find_abandoned(self._home, await self.list_ids(), self.record_class)
        for sandbox_id in left:
            await self.destroy(sandbox_id)
        return len(left)

    async def close(self) -> None:
        await self._kernel_watches.close()
        await self._reclaims.close()
        await self.sandbox_disks.close()
        if self._egress is not None:
            await self._egress.close()
        for sandbox in list(self._open):
            await sandbox.close()

    def list_gpus(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.gpus.known(), self.gpus.free()

    async def read_isolation(self, sandbox_id: str) -> Isolation:
        """The isolation in force now. Raises SandboxNotFound, SandboxLost."""
        record = self.load_record(sandbox_id)
        if record is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        return await self._read_isolation(record, self._cgroup(record))

    # -- what a subclass says

    @abstractmethod
    async def _ready(self) -> object:
        """Ensures, once, that this host can make sandboxes."""

    @abstractmethod
    async def _plan(self, spec: SandboxSpec) -> Plan:
        """Ensures that this host can make sandboxes, and returns what this one is made of."""

    @abstractmethod
    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: Plan) -> AgentSandbox: ...

    @abstractmethod
    async def _unmake(self, sandbox_id: str) -> None:
        """Destroys a sandbox at any stage of its making; idempotent. The directory goes last."""

    @abstractmethod
    def _socket_directory(self, sandbox_id: str) -> Path:
        """Where its agent listens."""

    @abstractmethod
    def _cgroup(self, record: R) -> SandboxCgroup: ...

    # -- what subclasses use

    async def _connect(self, record: R, *, creating: bool = False, waking: Waking | None = None) -> AgentSandbox:
        step = self._fault if creating else lambda _: None
        try:
            directory = self._socket_directory(record.sandbox_id)
            why_lost = partial(self._loss_reason, record)
            link = await self._dialer.dial(record, directory, self._start_timeout_s, why_lost, waking)
        except SandboxLost as exc:
            raise SandboxLost(f"{exc.message}: {self._loss_reason(record)}") from exc
        try:
            step("dialled")
            in_force = await self._prove(record, creating=creating)
            step("checked")
        except BaseException:
            await run_shielded(link.close())
            raise
        return self._open_sandbox(record, link, in_force)

    async def _prove(self, record: R, *, creating: bool) -> Isolation:
        """Sets the limits that need a running sandbox, and returns the isolation in force. Raises IsolationUnavailable
        if a layer is missing that must not be."""
        cgroup = self._cgroup(record)
        self._limits.limit_sockets(cgroup, record, is_new=creating)
        if creating and record.spec.io:
            self._limits.limit_io(cgroup, record, self.directory(record.sandbox_id))
        in_force = await self._read_isolation(record, cgroup)
        # An adopted sandbox passed these when it was made: a newer version may want more now, and its network may
        # have been opened.
        passed_before = frozenset() if creating else isolation.GROWING
        promised = self.promised - ({Layer.READ_ONLY_ROOT} if record.spec.writable_root else set())
        isolation.check(in_force, record.spec.require - passed_before, promised - passed_before)
        return in_force

    def _open_sandbox(self, record: R, link: AgentLink, in_force: Isolation) -> AgentSandbox:
        cgroup = self._cgroup(record)
        sandbox = AgentSandbox(
            *(record.sandbox_id, link, in_force),
            env={
                "OMP_NUM_THREADS": str(math.ceil(record.spec.limits.cpus)),
                **record.spec.env,
                **(variables(record.spec) if self.mounts_gpu_libraries else {}),
            },
            oom_kills=cgroup.oom_counter(),
            metrics=partial(self._metrics.read, MetricsSource(cgroup, record.pid, record.alive)),
            network=self._egress.network_of(record) if self._egress is not None else None,
            ports=SandboxPorts(record),
            frozen=cgroup.is_frozen,
        )
        self._open.add(sandbox)
        self._kernel_watches.start()
        return sandbox

    async def _read_isolation(self, record: R, cgroup: SandboxCgroup) -> Isolation:
        found = await self._isolation_reader.read(self.name, record, cgroup.limits())
        if not record.spec.gpus:
            return found
        await self.gpus.found()
        grant = self.gpus.granted(record.spec.gpus)
        return replace(found, gpus=read_back(record.pid, cgroup, grant, record.spec.gpus))

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


async def freeze(cgroup: SandboxCgroup) -> None:
    """No thread waits for processes that do not stop for seconds: everybody shares the threads."""
    steps = cgroup.freezing()
    while (pause_s := await asyncio.to_thread(next, steps, None)) is not None:  # noqa: ASYNC110
        await asyncio.sleep(pause_s)


def translate_os_error(doing: str, exc: OSError) -> ProviderUnavailable | NoSpace:
    """Returns an error for callers of the server, which names no path of this host; the log does."""
    _log.warning("host_error", doing=doing, path=exc.filename, error=exc.strerror)
    if exc.errno in _NO_SPACE:
        return NoSpace(f"{doing}: {exc.strerror}", remedy="free some space in the state directory")
    return ProviderUnavailable(f"{doing}: {exc.strerror}")
