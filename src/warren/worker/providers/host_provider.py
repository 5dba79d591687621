"""What oci and docker share: sandboxes on this host, each with a directory, a record, uids, a disk and an agent.

A sandbox's directory is made first and removed last, and the record in it is written before anything
else is made: whatever a crash leaves can be found, judged and undone. A provider says how a sandbox
is made (`_make`), unmade (`_unmake`) and reached (`_dial`, `_cgroup`); the rest is here.
"""

import asyncio
import os
import re
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from warren.model.capability import Capability
from warren.model.errors import NoSpace, ProviderUnavailable, SandboxLost, SandboxNotFound
from warren.model.spec import Isolation, Layer, SandboxSpec
from warren.shielding import run_shielded
from warren.worker.agent.link import AgentLink
from warren.worker.agent.sandbox import AgentSandbox
from warren.worker.host import isolation
from warren.worker.host.boot import boot_id
from warren.worker.host.cgroups import Hierarchies, SandboxCgroup
from warren.worker.host.disks import Disks
from warren.worker.host.uids import RANGE, UidRanges, uid_base
from warren.worker.providers.hardening import AGENT_CAPABILITIES
from warren.worker.providers.record import Record, abandoned

_ID: Final = re.compile(r"[0-9a-f]{32}")
_NO_SPACE: Final = (28, 122)
_PF_EXITING: Final = 0x4

Fault = Callable[[str], None]
R = TypeVar("R", bound=Record)
Plan = TypeVar("Plan")


class HostProvider(ABC, Generic[R, Plan]):
    """`fault` is called with the name of each step of create before it is taken, for tests of what remains."""

    name: ClassVar[str]
    folder: ClassVar[str]
    record_class: type[R]
    promised: ClassVar[frozenset[Layer]]
    capabilities: ClassVar[frozenset[Capability]]

    def __init__(
        self, state_dir: Path, bin_dir: Path, *, disk_stock: int, start_timeout_s: float, fault: Fault, at_once: int
    ) -> None:
        self._state = state_dir.absolute()
        self._launcher = bin_dir.absolute() / "warren-launch"
        self._agent = bin_dir.absolute() / "warren-agent"
        self._start_timeout_s = start_timeout_s
        self._fault = fault
        self._hierarchies = Hierarchies.here()
        self._uids = UidRanges()
        self.disks = Disks(self._state / "disks", self._launcher, stock=disk_stock)
        self._ready_lock = asyncio.Lock()
        self._destroying: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._create_slots = asyncio.Semaphore(at_once)
        self._destroy_slots = asyncio.Semaphore(at_once)
        self._open: weakref.WeakSet[AgentSandbox] = weakref.WeakSet()

    async def create(self, spec: SandboxSpec) -> AgentSandbox:
        plan = await self._plan(spec)
        sandbox_id = secrets.token_hex(16)
        async with self._create_slots:
            try:
                sandbox = await self._make(sandbox_id, spec, plan)
                # A task cancelled since its last await drops what it returns: be cancelled here instead.
                await asyncio.sleep(0)
                return sandbox
            except BaseException as exc:
                await run_shielded(self._unmake(sandbox_id))
                if isinstance(exc, OSError):
                    raise translated("creating a sandbox", exc) from exc
                raise

    async def adopt(self, sandbox_id: str) -> AgentSandbox:
        directory = self._directory(sandbox_id)
        if not directory.is_dir():
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        record = self.record_class.load(directory)
        if record is None or not record.alive():
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self._why_lost(record)}")
        return await self._connect(record)

    async def destroy(self, sandbox_id: str) -> None:
        if not _ID.fullmatch(sandbox_id):
            return
        lock = self._destroying.setdefault(sandbox_id, asyncio.Lock())
        async with lock, self._destroy_slots:
            try:
                await self._unmake(sandbox_id)
            except OSError as exc:
                raise translated(f"destroying sandbox {sandbox_id}", exc) from exc

    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]:
        found = await self._ids()
        return await asyncio.to_thread(self._labelled, found, labels) if labels else found

    async def _ids(self) -> Sequence[str]:
        try:
            return sorted(name for name in os.listdir(self._state / self.folder) if _ID.fullmatch(name))
        except FileNotFoundError:
            return []

    def _labelled(self, sandbox_ids: Sequence[str], labels: Mapping[str, str]) -> Sequence[str]:
        records = {name: self.record_class.load(self._directory(name)) for name in sandbox_ids}
        return [name for name, record in records.items() if record and labels.items() <= record.spec.labels.items()]

    async def sweep(self) -> int:
        left = [name for name in await self.list_ids() if abandoned(self._directory(name), self.record_class)]
        for sandbox_id in left:
            await self.destroy(sandbox_id)
        return len(left)

    async def close(self) -> None:
        await self.disks.close()
        for sandbox in list(self._open):
            await sandbox.close()

    # -- what a provider says

    @abstractmethod
    async def _plan(self, spec: SandboxSpec) -> Plan:
        """Makes sure that this host can make sandboxes, and finds what this one is made of."""

    @abstractmethod
    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: Plan) -> AgentSandbox: ...

    @abstractmethod
    async def _unmake(self, sandbox_id: str) -> None:
        """Idempotent, and right for a sandbox at any stage: the directory goes last."""

    @abstractmethod
    async def _dial(self, record: R) -> AgentLink: ...

    @abstractmethod
    def _cgroup(self, record: R) -> SandboxCgroup: ...

    # -- what they share

    def _check_programs(self) -> None:
        for program in (self._launcher, self._agent):
            if not os.access(program, os.X_OK):
                raise ProviderUnavailable(f"{program} is missing", remedy="build it with `make build`")

    async def _connect(self, record: R, *, creating: bool = False) -> AgentSandbox:
        step = self._fault if creating else lambda _: None
        try:
            link = await self._dial(record)
        except SandboxLost as exc:
            raise SandboxLost(f"{exc.message}: {self._why_lost(record)}") from exc
        try:
            step("dialled")
            cgroup = self._cgroup(record)
            found = self._read_isolation(record, cgroup)
            isolation.check(found, record.spec.require | self.promised)
            step("checked")
        except BaseException:
            await run_shielded(link.close())
            raise
        sandbox = AgentSandbox(
            *(record.sandbox_id, link, found),
            env=record.spec.env,
            oom_kills=cgroup.oom_counter(),
            why_lost=lambda: self._why_lost(record),
        )
        self._open.add(sandbox)
        return sandbox

    def _read_isolation(self, record: R, cgroup: SandboxCgroup) -> Isolation:
        base = uid_base(record.uid_index)
        facts = isolation.gather(record.pid, cgroup.limits())
        found = isolation.judge(facts, uids=range(base, base + RANGE), capabilities=AGENT_CAPABILITIES)
        return isolation.report(self.name, record.runtime, found)

    def _release_uids(self, record: R | None, directory: Path) -> None:
        if record is not None:
            self._uids.release(record.uid_index, directory)
        else:
            self._uids.release_all(directory)

    def _directory(self, sandbox_id: str) -> Path:
        if not _ID.fullmatch(sandbox_id):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}")
        return self._state / self.folder / sandbox_id

    def _why_lost(self, record: R | None) -> str:
        if record is None or not record.pid:
            return "it was never finished"
        if record.boot_id != boot_id():
            return "the machine was restarted"
        if record.alive() and not _is_ending(record.pid):
            return "its agent does not answer"
        if not self._directory(record.sandbox_id).is_dir():
            return "it was destroyed"
        return "its first process has ended"


def _is_ending(pid: int) -> bool:
    """A process closes its sockets some time before it is seen to be dead: the kernel has marked it by then."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return bool(int(stat.rpartition(")")[2].split()[6]) & _PF_EXITING)


def translated(doing: str, exc: OSError) -> ProviderUnavailable | NoSpace:
    if exc.errno in _NO_SPACE:
        return NoSpace(f"{doing}: {exc.strerror} ({exc.filename})", remedy="free some space in the state directory")
    return ProviderUnavailable(f"{doing}: {exc.strerror} ({exc.filename})")
