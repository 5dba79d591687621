"""Sandboxes by an OCI runtime, without a daemon.

A sandbox is a directory `<state>/sandboxes/<id>`, made first and removed last:

    record.json   what it is to be; later the pid of its first process
    agent.sock    where its agent listens: made here, handed down as a descriptor
    bundle/       what the runtime reads; the launcher mounts into it, in a namespace of its own
    disk.img      for a moment, until the launcher has attached and unlinked it

The launcher, then the runtime, run for some milliseconds; after that nothing of ours on the host
belongs to the sandbox but its own processes. All that is left to undo is: kill the first process
(the kernel kills the rest), remove the cgroups and the directories. Hence the runtime's own
`delete` is not needed, and a sandbox can be destroyed even when its runtime is no longer installed.
"""

import asyncio
import os
import re
import secrets
import shutil
import signal
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from warren.interfaces.images import Images, RootFs
from warren.model.errors import NoSpace, ProviderUnavailable, SandboxLost, SandboxNotFound
from warren.model.spec import Isolation, SandboxSpec
from warren.worker import isolation
from warren.worker.agent_link import AgentLink
from warren.worker.agent_sandbox import AgentSandbox
from warren.worker.boot import boot_id
from warren.worker.cgroups import Hierarchies, SandboxCgroup, parent_in_use
from warren.worker.disks import STOCK, Disks
from warren.worker.finishing import to_its_end
from warren.worker.providers import oci_bundle, oci_launch
from warren.worker.providers.hardening import AGENT_CAPABILITIES
from warren.worker.providers.oci_record import Record, abandoned
from warren.worker.providers.oci_runtime import Runtime, RuntimeReport, Runtimes
from warren.worker.spawning import Finished, readable, run
from warren.worker.uids import RANGE, UidRanges, uid_base

STEPS: Final = (
    *("directory", "uids", "record", "bundle", "disk", "socket", "launch", "launched", "started", "dialled", "checked"),
)
_DESTROYS_AT_ONCE: Final = 16
_STRAY_ROUNDS: Final = 5000
_QUIET_LOOKS: Final = 4
_ID: Final = re.compile(r"[0-9a-f]{32}")

Fault = Callable[[str], None]


class OciProvider:
    """`fault` is called with the name of each of create's STEPS before it is taken, for tests of what remains."""

    def __init__(
        self,
        state_dir: Path,
        images: Images,
        bin_dir: Path,
        runtime: str | None = None,
        *,
        disk_stock: int = STOCK,
        start_timeout_s: float = 30.0,
        fault: Fault = lambda step: None,
    ) -> None:
        self._state = state_dir.absolute()
        self._images = images
        self._launcher = bin_dir.absolute() / "warren-launch"
        self._agent = bin_dir.absolute() / "warren-agent"
        self._agent_layer = Path()
        self._start_timeout_s = start_timeout_s
        self._fault = fault
        self._hierarchies = Hierarchies.here()
        self._uids = UidRanges()
        self.disks = Disks(self._state / "disks", self._launcher, stock=disk_stock)
        self._runtimes = Runtimes(self._state, self._probe, runtime)
        self._ready_lock = asyncio.Lock()
        self._runtime: Runtime | None = None
        self._destroying: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._destroy_slots = asyncio.Semaphore(_DESTROYS_AT_ONCE)
        self._open: weakref.WeakSet[AgentSandbox] = weakref.WeakSet()

    def __repr__(self) -> str:
        runtime = self._runtime.name if self._runtime else "not tried yet"
        return f"<OciProvider {self._state}, runtime {runtime}, {self.disks!r}>"

    @property
    def name(self) -> str:
        return "oci"

    async def create(self, spec: SandboxSpec) -> AgentSandbox:
        runtime = await self._ready()
        rootfs = self._images.rootfs(spec.image)
        sandbox_id = secrets.token_hex(16)
        try:
            sandbox = await self._make(sandbox_id, spec, rootfs, runtime)
            # A task cancelled since its last await drops what it returns: be cancelled here instead.
            await asyncio.sleep(0)
            return sandbox
        except BaseException as exc:
            await to_its_end(self._unmake(sandbox_id))
            if isinstance(exc, OSError):
                raise _translated("creating a sandbox", exc) from exc
            raise

    async def adopt(self, sandbox_id: str) -> AgentSandbox:
        directory = self._directory(sandbox_id)
        if not directory.is_dir():
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        record = Record.load(directory)
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
                raise _translated(f"destroying sandbox {sandbox_id}", exc) from exc

    async def list_ids(self) -> Sequence[str]:
        try:
            return sorted(name for name in os.listdir(self._state / "sandboxes") if _ID.fullmatch(name))
        except FileNotFoundError:
            return []

    async def sweep(self) -> int:
        left = [found for found in await self.list_ids() if abandoned(self._directory(found))]
        for sandbox_id in left:
            await self.destroy(sandbox_id)
        return len(left)

    async def close(self) -> None:
        await self.disks.close()
        for sandbox in list(self._open):
            await sandbox.close()
        if not await self.list_ids():
            self._hierarchies.remove_parent(oci_bundle.cgroup_path(""))

    async def runtime_report(self) -> RuntimeReport:
        await self._prepare_host()
        return await self._runtimes.report()

    # -- readiness, once

    async def _ready(self) -> Runtime:
        async with self._ready_lock:
            if self._runtime is None:
                await self._prepare_host()
                self._runtime = await self._runtimes.choose()
            return self._runtime

    async def _prepare_host(self) -> None:
        if os.geteuid() != 0:
            raise ProviderUnavailable(
                "the oci provider needs root: it makes namespaces, mounts and cgroups",
                remedy="run it with sudo, or use the docker provider",
            )
        for program in (self._launcher, self._agent):
            if not os.access(program, os.X_OK):
                raise ProviderUnavailable(f"{program} is missing", remedy="build it with `make build`")
        if self._hierarchies.version == "none":
            raise ProviderUnavailable("no cgroups are mounted here", remedy="mount cgroup2 at /sys/fs/cgroup")
        try:
            self._make_directories()
        except OSError as exc:
            raise _translated("preparing the state directory", exc) from exc
        await self.disks.probe()

    def _make_directories(self) -> None:
        # The sandbox's root walks to the bundle, so these must let it pass; the state directory need not.
        for path in (Path(oci_bundle.BUNDLE).parent, Path(oci_bundle.BUNDLE)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)
        for name in ("", "sandboxes", "runtime", "agent"):
            (self._state / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._agent_layer = oci_launch.agent_layer(self._agent, self._state / "agent")

    async def _probe(self, runtime: str) -> Finished:
        """Starts and ends a sandbox without an image: its agent only says its version."""
        sandbox_id = secrets.token_hex(16)
        directory = self._directory(sandbox_id)
        try:
            directory.mkdir(mode=0o700)
            record = Record(sandbox_id, boot_id(), runtime, self._uids.claim(directory), SandboxSpec())
            record.save(directory)
            config = self._config(record)
            config["process"]["args"] = [oci_bundle.AGENT, "--version"]
            oci_launch.write_bundle(directory / "bundle", config)
            oci_launch.make_mount_points(directory / "image")
            await self._take_disk(record.spec, directory)
            argv = self._launch_argv(record, RootFs(directory / "image", host_usr=False), detached=False)
            with parent_in_use():
                return await run(argv, timeout_s=self._start_timeout_s)
        finally:
            await to_its_end(self._unmake(sandbox_id))

    # -- making

    async def _make(self, sandbox_id: str, spec: SandboxSpec, rootfs: RootFs, runtime: Runtime) -> AgentSandbox:
        directory = self._directory(sandbox_id)
        self._fault("directory")
        directory.mkdir(mode=0o700)
        self._fault("uids")
        index = self._uids.claim(directory)
        self._fault("record")
        record = Record(sandbox_id, boot_id(), runtime.name, index, spec)
        record.save(directory)
        self._fault("bundle")
        oci_launch.write_bundle(directory / "bundle", self._config(record))
        self._fault("disk")
        await self._take_disk(spec, directory)
        self._fault("socket")
        with oci_launch.listening(directory) as listener, parent_in_use():
            self._fault("launch")
            argv = self._launch_argv(record, rootfs)
            outcome = await run(
                argv, pass_fd=(listener.fileno(), oci_bundle.LISTEN_FD), timeout_s=self._start_timeout_s
            )
        self._fault("launched")
        if outcome.code != 0:
            raise ProviderUnavailable(f"{runtime.name}, starting a sandbox: {outcome.last_line}")
        record = record.started(int((directory / oci_launch.PID).read_text()))
        self._fault("started")
        record.save(directory)
        return await self._connect(record, creating=True)

    async def _connect(self, record: Record, *, creating: bool = False) -> AgentSandbox:
        step = self._fault if creating else lambda _: None
        try:
            link = await AgentLink.dial(self._directory(record.sandbox_id), timeout_s=self._start_timeout_s)
        except SandboxLost as exc:
            raise SandboxLost(f"{exc.message}: {self._why_lost(record)}") from exc
        try:
            step("dialled")
            found = self._read_isolation(record)
            isolation.check(found, record.spec.require | isolation.ALL_BUT_KERNEL)
            step("checked")
        except BaseException:
            await to_its_end(link.close())
            raise
        cgroup = self._cgroup(record.sandbox_id)
        sandbox = AgentSandbox(
            *(record.sandbox_id, link, found),
            env=record.spec.env,
            oom_kills=cgroup.oom_kills,
            why_lost=lambda: self._why_lost(record),
        )
        self._open.add(sandbox)
        return sandbox

    def _read_isolation(self, record: Record) -> Isolation:
        base = uid_base(record.uid_index)
        facts = isolation.gather(record.pid, self._cgroup(record.sandbox_id).limits())
        found = isolation.judge(facts, uids=range(base, base + RANGE), capabilities=AGENT_CAPABILITIES)
        return isolation.report(self.name, record.runtime, found)

    def _config(self, record: Record) -> dict[str, Any]:
        return oci_bundle.config(
            record.spec,
            sandbox_id=record.sandbox_id,
            uid_base=uid_base(record.uid_index),
            swap_limit=self._hierarchies.limits_swap,
        )

    async def _take_disk(self, spec: SandboxSpec, directory: Path) -> None:
        if not self.disks.why_not_loop:
            await self.disks.take(spec.limits.disk_mb, directory / oci_launch.DISK)

    def _launch_argv(self, record: Record, rootfs: RootFs, *, detached: bool = True) -> list[str]:
        return oci_launch.argv(
            record,
            oci_launch.Programs(self._launcher, self._agent_layer, self._runtimes.path(record.runtime)),
            rootfs=rootfs,
            directory=self._directory(record.sandbox_id),
            runtime_state=self._state / "runtime" / record.runtime,
            loop_disk=not self.disks.why_not_loop,
            hide=self._hierarchies.hybrid,
            detached=detached,
        )

    # -- unmaking

    async def _unmake(self, sandbox_id: str) -> None:
        """Idempotent, and right for a sandbox at any stage: the directory goes last."""
        directory = self._directory(sandbox_id)
        if not directory.is_dir():
            return
        record = Record.load(directory)
        cgroup = self._cgroup(sandbox_id)
        if record is not None and record.pid:
            await _kill(record)
        else:
            await _stop_launch(sandbox_id, cgroup)
        await cgroup.clear()
        if record is not None:
            self._uids.release(record.uid_index, directory)
        else:
            self._uids.release_all(directory)
        await asyncio.to_thread(_remove, [*(self._state / "runtime").glob(f"*/{sandbox_id}"), directory])

    # -- small things

    def _directory(self, sandbox_id: str) -> Path:
        if not _ID.fullmatch(sandbox_id):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}")
        return self._state / "sandboxes" / sandbox_id

    def _cgroup(self, sandbox_id: str) -> SandboxCgroup:
        return self._hierarchies.at(oci_bundle.cgroup_path(sandbox_id))

    def _why_lost(self, record: Record | None) -> str:
        if record is None or not record.pid:
            return "it was never finished"
        if record.boot_id != boot_id():
            return "the machine was restarted"
        if record.alive():
            return "its agent does not answer"
        if not self._directory(record.sandbox_id).is_dir():
            return "it was destroyed"
        if self._cgroup(record.sandbox_id).oom_kills():
            return "its first process has ended, after it ran out of memory"
        return "its first process has ended"


async def _stop_launch(sandbox_id: str, cgroup: SandboxCgroup) -> None:
    """Of a sandbox that was never finished: whoever may still be at work on it.

    One look is not enough: a process in the middle of execve has no command line to be known by.
    """
    quiet = 0
    for _ in range(_STRAY_ROUNDS):
        quiet = 0 if oci_launch.kill_strays(sandbox_id) else quiet + 1
        await cgroup.kill()
        if quiet == _QUIET_LOOKS:
            return
        await asyncio.sleep(0.003)
    raise ProviderUnavailable(f"the runtime that was making sandbox {sandbox_id} does not die")


async def _kill(record: Record) -> None:
    """Ends the first process, and with it, by the kernel, every other one of the sandbox."""
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return
    try:
        if record.alive():  # asked after the descriptor was opened: it is this process and no other
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await asyncio.wait_for(readable(pidfd), 20)
    except ProcessLookupError:
        return
    except TimeoutError:
        raise ProviderUnavailable(f"process {record.pid} of a sandbox does not die") from None
    finally:
        os.close(pidfd)


def _remove(directories: Sequence[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            raise ProviderUnavailable(f"the directory {directory} cannot be removed")


def _translated(doing: str, exc: OSError) -> ProviderUnavailable | NoSpace:
    if exc.errno in (28, 122):
        return NoSpace(f"{doing}: {exc.strerror} ({exc.filename})", remedy="free some space in the state directory")
    return ProviderUnavailable(f"{doing}: {exc.strerror} ({exc.filename})")
