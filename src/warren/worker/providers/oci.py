"""Sandboxes by an OCI runtime, without a daemon.

A sandbox is a directory `<state>/sandboxes/<id>`, made first and removed last:

    record.json   what it is to be; later the pid of its first process
    agent.sock    where its agent listens: made here, handed down as a descriptor
    bundle/       what the runtime reads; the launcher mounts into it, in a namespace of its own
    disk.img      for a moment, until the launcher has attached and unlinked it

The launcher and then the runtime run for some milliseconds; after that the sandbox consists of its own processes
alone. Destroying it means killing the first process (the kernel kills the rest) and removing the cgroups and the
directories. The runtime's own `delete` is not needed, so a sandbox can be destroyed even when its runtime is no longer
installed.
"""

import asyncio
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warren.interfaces.images import Images, RootFs
from warren.model.capability import Capability
from warren.model.errors import ProviderUnavailable
from warren.model.spec import SandboxSpec
from warren.shielding import run_shielded
from warren.worker.agent.sandbox import AgentSandbox
from warren.worker.host import isolation
from warren.worker.host.cgroups import SandboxCgroup, parent_in_use
from warren.worker.host.disks import STOCK
from warren.worker.host.processes import Finished, boot_id, run
from warren.worker.host.uids import uid_base
from warren.worker.providers import oci_bundle, oci_launch
from warren.worker.providers.connection import AgentDialer, IsolationReader
from warren.worker.providers.host_provider import Fault, HostProvider, HostRoom, require_root, translate_os_error
from warren.worker.providers.oci_runtime import Runtime, RuntimeReport, Runtimes
from warren.worker.providers.record import Record, kill_first_process

STEPS: Final = (
    *("directory", "uids", "record", "bundle", "disk", "socket", "launch", "launched", "started", "dialled", "checked"),
)
_AT_ONCE: Final = 16
_STRAY_ROUNDS: Final = 5000
_QUIET_LOOKS: Final = 4


class OciProvider(HostProvider[Record, "Plan"]):
    name = "oci"
    folder = "sandboxes"
    record_class = Record
    promised = isolation.PROMISED
    capabilities = frozenset({Capability.USER_NAMESPACE, Capability.TERMINALS})

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
        dialer: AgentDialer | None = None,
        isolation_reader: IsolationReader | None = None,
        room: HostRoom | None = None,
    ) -> None:
        super().__init__(
            *(state_dir, bin_dir),
            disk_stock=disk_stock,
            start_timeout_s=start_timeout_s,
            fault=fault,
            at_once=_AT_ONCE,
            dialer=dialer,
            isolation_reader=isolation_reader,
            room=room,
        )
        self._images = images
        self._agent_layer = Path()
        self._runtimes = Runtimes(self._state, self._probe, runtime)
        self._runtime: Runtime | None = None

    def __repr__(self) -> str:
        runtime = self._runtime.name if self._runtime else "not tried yet"
        return f"<OciProvider {self._state}, runtime {runtime}, {self.disks!r}>"

    async def close(self) -> None:
        await super().close()
        if os.geteuid() == 0 and not await self.list_ids():  # others have made none
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
        require_root(self.name)
        self._check_programs()
        if self._hierarchies.version == "none":
            raise ProviderUnavailable("no cgroups are mounted here", remedy="mount cgroup2 at /sys/fs/cgroup")
        try:
            self._make_directories()
        except OSError as exc:
            raise translate_os_error("preparing the state directory", exc) from exc
        await self.disks.probe()

    def _make_directories(self) -> None:
        # The sandbox's root user opens the bundle, so it must be able to enter these; not the state directory.
        for path in (Path(oci_bundle.BUNDLE).parent, Path(oci_bundle.BUNDLE)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)
        for name in ("", "sandboxes", "runtime", "agent"):
            (self._state / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._agent_layer = oci_launch.agent_layer(self._agent, self._state / "agent")

    async def _probe(self, runtime: str) -> Finished:
        """Starts and ends a sandbox without an image, whose agent only prints its version."""
        sandbox_id = secrets.token_hex(16)
        directory = self.directory(sandbox_id)
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
                self._limit_all()
                return await run(argv, timeout_s=self._start_timeout_s)
        finally:
            await run_shielded(self._unmake(sandbox_id))

    # -- making

    async def _plan(self, spec: SandboxSpec) -> "Plan":
        return Plan(await self._ready(), self._images.rootfs(spec.image))

    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: "Plan") -> AgentSandbox:
        runtime, rootfs = plan.runtime, plan.rootfs
        directory = self.directory(sandbox_id)
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
            self._limit_all()
            self._fault("launch")
            argv = self._launch_argv(record, rootfs)
            outcome = await run(
                argv, pass_fd=(listener.fileno(), oci_bundle.LISTEN_FD), timeout_s=self._start_timeout_s
            )
        self._fault("launched")
        if outcome.code != 0:
            raise ProviderUnavailable(f"{runtime.name}, starting a sandbox: {outcome.last_line}")
        pid = int((directory / oci_launch.PID).read_text())
        oci_launch.raise_priority(pid)
        record = record.started(pid)
        self._fault("started")
        record.save(directory)
        return await self._connect(record, creating=True)

    def _socket_directory(self, sandbox_id: str) -> Path:
        return self.directory(sandbox_id)

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
            directory=self.directory(record.sandbox_id),
            runtime_state=self._state / "runtime" / record.runtime,
            loop_disk=not self.disks.why_not_loop,
            hide=self._hierarchies.hybrid,
            detached=detached,
        )

    # -- unmaking

    async def _unmake(self, sandbox_id: str) -> None:
        """Idempotent, and right for a sandbox at any stage: the directory goes last."""
        directory = self.directory(sandbox_id)
        if not directory.is_dir():
            return
        record = Record.load(directory)
        cgroup = self._cgroup_of(sandbox_id)
        if record is not None and record.pid:
            await kill_first_process(record)
        else:
            await _stop_launch(sandbox_id, cgroup)
        await cgroup.clear()
        self._release_uids(record, directory)
        await asyncio.to_thread(_remove, [*(self._state / "runtime").glob(f"*/{sandbox_id}"), directory])

    # -- cgroups

    def _cgroup(self, record: Record) -> SandboxCgroup:
        return self._cgroup_of(record.sandbox_id)

    def _cgroup_of(self, sandbox_id: str) -> SandboxCgroup:
        return self._hierarchies.at(oci_bundle.cgroup_path(sandbox_id))

    def _loss_reason(self, record: Record | None) -> str:
        reason = super()._loss_reason(record)
        if record is not None and reason == "its first process has ended" and self._cgroup(record).oom_kills():
            return f"{reason}, after it ran out of memory"
        return reason


@dataclass(frozen=True, slots=True)
class Plan:
    runtime: Runtime
    rootfs: RootFs


async def _stop_launch(sandbox_id: str, cgroup: SandboxCgroup) -> None:
    """Kills the launchers and runtimes that may still work on a sandbox that was never finished.

    One look is not enough: a process in the middle of execve has no command line to be recognized by.
    """
    quiet = 0
    for _ in range(_STRAY_ROUNDS):
        quiet = 0 if oci_launch.kill_strays(sandbox_id) else quiet + 1
        await cgroup.kill()
        if quiet == _QUIET_LOOKS:
            return
        await asyncio.sleep(0.003)
    raise ProviderUnavailable(f"the runtime that was making sandbox {sandbox_id} does not die")


def _remove(directories: Sequence[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            raise ProviderUnavailable(f"the directory {directory} cannot be removed")
