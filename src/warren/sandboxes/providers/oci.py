"""Sandboxes by Warren's launcher alone (direct.py) or with an OCI runtime, without a daemon.

A sandbox is a directory `<state>/sandboxes/<id>`, in memory (memory_folder.py), made first and removed last:

    record.json   what it is to be; later the pid of its first process
    agent.sock    where its agent listens: made here, handed down as a descriptor

What the runtime reads and writes is in memory, in a mount namespace that the launcher makes for the sandbox. The
launcher and then the runtime, if there is one, run for some milliseconds; after that the sandbox consists of its own
processes alone. Destroying it means killing the first process (the kernel kills the rest) and removing the cgroups and
the directories. The runtime's own `delete` is not needed, so a sandbox can be destroyed even when its runtime is no
longer installed.
"""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Unpack

from warren.interfaces.images import Images, RootFs
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability
from warren.model.errors import ProviderUnavailable, SandboxNotFound
from warren.model.spec import AGENT_PROGRAM, Isolation, SandboxSpec
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.host import isolation
from warren.sandboxes.host.cgroups import SandboxCgroup, parent_in_use
from warren.sandboxes.host.disks import DISK_FD
from warren.sandboxes.host.memory_folder import MemoryFolder
from warren.sandboxes.host.network_settings import network_sysctls
from warren.sandboxes.host.processes import Finished, boot_id, run
from warren.sandboxes.host.seccomp_program import Unreadable, read_programs
from warren.sandboxes.host.uids import uid_base
from warren.sandboxes.providers import direct, oci_bundle, oci_launch
from warren.sandboxes.providers.hardening import MEMLOCK_BYTES
from warren.sandboxes.providers.host_provider import HostOptions, HostProvider, require_root, translate_os_error
from warren.sandboxes.providers.image_defaults import with_image_env
from warren.sandboxes.providers.oci_runtime import Runtime, RuntimeReport, Runtimes
from warren.sandboxes.providers.record import NAME, Record, kill_first_process

STEPS: Final = (
    *("directory", "uids", "record", "disk", "socket", "launch", "launched", "started", "dialled", "checked"),
)
_AT_ONCE: Final = 16
_FILES: Final = (NAME, oci_launch.PID, oci_launch.SOCKET)
_STRAY_ROUNDS: Final = 5000
_QUIET_LOOKS: Final = 4
_REMOVALS: Final = 5
_REMOVAL_PAUSE_S: Final = 0.01


class OciProvider(HostProvider[Record, Runtime]):
    name = "oci"
    folder = "sandboxes"
    record_class = Record
    promised = isolation.PROMISED
    can = frozenset({Capability.USER_NAMESPACE, Capability.TERMINALS, Capability.PORTS})
    mounts_gpu_libraries = True

    def __init__(
        self,
        state_dir: Path,
        images: Images,
        bin_dir: Path,
        runtime: str | None = None,
        *,
        keep_changes: bool = False,
        **options: Unpack[HostOptions],
    ) -> None:
        super().__init__(state_dir, bin_dir, at_once=_AT_ONCE, **options)
        self._images = images
        self._folder = MemoryFolder(self._home)
        self._old_runtime = self._state / "runtime"  # where an older version had the runtime's state
        self._agent_layers: dict[bool, Path] = {}  # by whether `sudo` is in it
        self._runtimes = Runtimes(self._state, self._probe, runtime, {direct.NAME: self._launcher})
        self._runtime: Runtime | None = None
        self._gpu_tree: Path | None = None
        self._programs: dict[bool, bytes] = {}  # by whether tracing is allowed
        self._keep_changes = keep_changes
        self._changes: dict[str, int] = {}  # by sandbox, what was written to its root

    def __repr__(self) -> str:
        runtime = self._runtime.name if self._runtime else "not tried yet"
        return f"<OciProvider {self._state}, runtime {runtime}, {self.disks!r}>"

    async def image_version(self, image: str) -> str:
        return self._images.version(image)

    async def adopt(self, sandbox_id: str) -> AgentSandbox:
        sandbox = await super().adopt(sandbox_id)
        if (record := self.load_record(sandbox_id)) is not None:
            await asyncio.to_thread(self._images.keep, record.spec.image, self.directory(sandbox_id))
        return sandbox

    async def sweep(self) -> int:
        left = await super().sweep()
        await asyncio.to_thread(self._images.prune)
        return left

    def changes(self, sandbox_id: str) -> int:
        """A descriptor of the directory with all that was written to the sandbox's root, in the form of overlayfs; ids
        are shifted by `uid_base`, and of the extended attributes `trusted.overlay.*` only `opaque` means something
        elsewhere. The caller closes it; until then it stays good, also after the sandbox was destroyed, and keeps the
        sandbox's disk. Can be had once, from a provider made with `keep_changes` and before `destroy`, for a sandbox
        with a writable root."""
        try:
            return self._changes.pop(sandbox_id)
        except KeyError:
            raise SandboxNotFound(f"the changes of sandbox {sandbox_id} were not kept") from None

    def uid_base(self, sandbox_id: str) -> int:
        """The uid on the host of the sandbox's root. Raises SandboxNotFound."""
        record = self.load_record(sandbox_id)
        if record is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        return uid_base(record.uid_index)

    async def close(self) -> None:
        await super().close()
        for sandbox_id in [*self._changes]:
            self._drop_changes(sandbox_id)
        if os.geteuid() == 0 and not await self.list_ids():  # others have made none
            self._hierarchies.remove_parent(oci_bundle.cgroup_path(""))
            await asyncio.to_thread(self._folder.remove)

    async def runtime_report(self) -> RuntimeReport:
        await self._prepare_host()
        return await self._runtimes.report()

    # -- readiness, once

    async def _ready(self) -> Runtime:
        async with self._ready_lock:
            if self._runtime is None:
                await self._prepare_host()
                if Capability.GPU in self.capabilities:
                    await self.gpus.found()
                self._runtime = await self._runtimes.choose()
            return self._runtime

    async def _prepare_host(self) -> None:
        require_root(self.name)
        self._check_programs()
        if self._hierarchies.version == "none":
            raise ProviderUnavailable("no cgroups are mounted here", remedy="mount cgroup2 at /sys/fs/cgroup")
        try:
            await asyncio.to_thread(self._make_directories)
        except OSError as exc:
            raise translate_os_error("preparing the state directory", exc) from exc
        await self.disks.probe()

    def _make_directories(self) -> None:
        # The sandbox's root user opens the bundle, so it must be able to enter these; not the state directory.
        for path in (Path(oci_bundle.BUNDLE).parent, Path(oci_bundle.BUNDLE)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)
        for name in ("", "agent"):
            (self._state / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.make()
        for sudo in (False, True):
            self._agent_layers[sudo] = oci_launch.agent_layer(self._agent, self._state / "agent", sudo=sudo)

    async def _probe(self, runtime: str) -> Finished:
        """Starts and ends a sandbox without an image, whose agent only prints its version."""
        sandbox_id = secrets.token_hex(16)
        directory = self.directory(sandbox_id)
        try:
            await self._make_directory(directory)
            record = Record(sandbox_id, boot_id(), runtime, self._uids.claim(directory), SandboxSpec())
            record.save(directory)
            rootfs = RootFs(directory / "image", host_usr=False)
            config = self._config(record, rootfs=rootfs, argv=[AGENT_PROGRAM, "--version"])
            oci_launch.make_mount_points(directory / "image")
            record, disk = await self._take_disk(record)
            argv = self._launch_argv(record, rootfs, detached=False)
            with oci_launch.in_memory(config) as stdin, parent_in_use():
                self._limit_all()
                pass_fds = {**disk, **self._filter_fds(record)}
                return await run(argv, stdin=stdin, pass_fds=pass_fds, timeout_s=self._start_timeout_s)
        finally:
            await run_shielded(self._unmake(sandbox_id))

    # -- making

    async def _plan(self, spec: SandboxSpec) -> Runtime:
        runtime = await self._ready()
        self._images.version(spec.image)
        await self._check_gpus(spec)
        return runtime

    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: Runtime) -> AgentSandbox:
        runtime, directory = plan, self.directory(sandbox_id)
        self._fault("directory")
        await self._make_directory(directory)
        spec = self._claim_gpus(spec, directory)
        rootfs = self._images.hold(spec.image, directory)
        self._fault("uids")
        index = self._uids.claim(directory)
        self._fault("record")
        record = Record(sandbox_id, boot_id(), runtime.name, index, with_image_env(spec, rootfs.config))
        record.save(directory)
        self._fault("disk")
        record, disk = await self._take_disk(record)
        self._fault("socket")
        config = oci_launch.in_memory(self._config(record, rootfs=rootfs))
        with oci_launch.listening(directory) as listener, config as stdin, parent_in_use():
            self._limit_all()
            self._fault("launch")
            outcome = await self._launch(record, rootfs, {listener.fileno(): oci_bundle.LISTEN_FD, **disk}, stdin)
        self._fault("launched")
        if outcome.code != 0:
            raise ProviderUnavailable(f"{runtime.name}, starting a sandbox: {self._without_paths(outcome.last_line)}")
        pid = oci_launch.read_pid(directory)
        oci_launch.raise_priority(pid)
        record = record.started(pid)
        self._fault("started")
        record.save(directory)
        sandbox = await self._connect(record, creating=True)
        self._records[sandbox_id] = record
        await self._keep_program(record)
        return sandbox

    async def _make_directory(self, directory: Path) -> None:
        try:
            os.mkdir(directory, 0o700)
        except FileNotFoundError:  # another process had no more sandboxes, and has removed the folder
            await asyncio.to_thread(self._folder.make, directory.name)

    async def _launch(self, record: Record, rootfs: RootFs, pass_fds: dict[int, int], stdin: int) -> Finished:
        if record.spec.gpus:
            self._gpu_tree = await self.gpus.tree(self._state, lambda: self._has_gpu_sandboxes(but=record.sandbox_id))
        argv, timeout_s = self._launch_argv(record, rootfs), self._start_timeout_s
        filter_fds = self._filter_fds(record)
        if not self._sends_changes(record):
            pass_fds = {**pass_fds, **filter_fds}
            return await run(argv, stdin=stdin, pass_fds=pass_fds, timeout_s=timeout_s)
        with oci_launch.changes_socket() as (ours, theirs):
            pass_fds = {**pass_fds, theirs: oci_launch.CHANGES_FD, **filter_fds}
            outcome = await run(argv, stdin=stdin, pass_fds=pass_fds, timeout_s=timeout_s)
            if outcome.code == 0:
                self._changes[record.sandbox_id] = oci_launch.received_descriptor(ours)
        return outcome

    def _sends_changes(self, record: Record) -> bool:
        return self._keep_changes and record.spec.writable_root

    def _drop_changes(self, sandbox_id: str) -> None:
        if (fd := self._changes.pop(sandbox_id, -1)) >= 0:
            os.close(fd)

    async def _keep_program(self, record: Record) -> None:
        """Keeps what the runtime has compiled the rules for system calls to, from a sandbox that was found good:
        compiling them is a good part of its work. What the next sandboxes load is read back and judged all the same."""
        if record.runtime == "crun" and record.spec.ptrace not in self._programs:
            self._programs[record.spec.ptrace] = b""
            with suppress(Unreadable, ProcessLookupError):
                programs = await read_programs(record.pid)
                self._programs[record.spec.ptrace] = programs[0] if len(programs) == 1 else b""

    def _socket_directory(self, sandbox_id: str) -> Path:
        return self._folder.directory(sandbox_id)

    def _filter_fds(self, record: Record) -> dict[int, int]:
        if record.runtime != direct.NAME:
            return {}
        return {direct.compiled_filter(record.spec.ptrace).fd: direct.FILTER_FD}

    def _config(self, record: Record, *, rootfs: RootFs, argv: Sequence[str] = ()) -> str:
        """What the runtime reads. With `argv` the sandbox runs that instead of its agent."""
        if record.runtime == direct.NAME:
            plan = direct.plan(
                self._oci_config(record, oci_bundle.ANY_ID, rootfs),
                self._hierarchies,
                sandbox_id=record.sandbox_id,
                digest=direct.compiled_filter(record.spec.ptrace).digest,
                limits_io=bool(record.spec.io),
            )
            return direct.with_command(plan, argv) if argv else plan
        config = self._oci_config(record, record.sandbox_id, rootfs)
        return oci_bundle.with_command(config, argv) if argv else config

    def _oci_config(self, record: Record, sandbox_id: str, rootfs: RootFs) -> str:
        grant = self.gpus.granted(record.spec.gpus)
        return oci_bundle.config_json(
            record.spec,
            sandbox_id=sandbox_id,
            uid_base=0 if record.runtime == direct.NAME else uid_base(record.uid_index),  # direct gets it elsewhere
            swap_limit=self._hierarchies.limits_swap,
            program=self._programs.get(record.spec.ptrace, b""),
            network_sysctls=network_sysctls(),
            seeded=bool(rootfs.seeded),
            image=rootfs.config,
            memlock=MEMLOCK_BYTES if oci_launch.leaves_memlock(record.runtime) else 0,
            devices=tuple((node.major, node.minor) for node in grant.nodes) if grant else (),
        )

    async def _take_disk(self, record: Record) -> tuple[Record, dict[int, int]]:
        """The record with the disk's image, and what the launcher is given of it."""
        if self.disks.why_not_loop:
            return record, {}
        record, fd = await self._new_disk(record)
        return record, {fd: DISK_FD}

    def _launch_argv(self, record: Record, rootfs: RootFs, *, detached: bool = True) -> list[str]:
        grant = self.gpus.granted(record.spec.gpus)
        agent = self._agent_layers[record.spec.sudo and oci_launch.has_room_for_sudo(rootfs)]
        return oci_launch.argv(
            record,
            oci_launch.Programs(self._launcher, agent, self._runtimes.program(record.runtime)),
            rootfs=rootfs,
            devices=[f"{node.path}:{node.name}" for node in grant.nodes] if grant else (),
            gpu_tree=self._gpu_tree if grant else None,
            directory=self.directory(record.sandbox_id),
            loop_disk=not self.disks.why_not_loop,
            hide=self._hierarchies.hybrid,
            move=self._hierarchies.processes_file(oci_bundle.PARENT),
            detached=detached,
            send_changes=detached and self._sends_changes(record),
        )

    # -- unmaking

    async def _unmake(self, sandbox_id: str) -> None:
        """Idempotent, and right for a sandbox at any stage: the directory goes last."""
        directory = self.directory(sandbox_id)
        self._drop_changes(sandbox_id)
        if not os.path.isdir(directory):
            self._close_image(sandbox_id)
            return
        record = self._known_record(sandbox_id)
        cgroup = self._cgroup_of(sandbox_id)
        async with self._freeing_image(sandbox_id, record):
            if record is not None and record.pid:
                await kill_first_process(record)
            else:
                await _stop_launch(sandbox_id, cgroup)
            if not await asyncio.to_thread(self._clear_away, record, cgroup, directory):
                await cgroup.clear()
                await asyncio.to_thread(self._clear_away, record, cgroup, directory)

    def _clear_away(self, record: Record | None, cgroup: SandboxCgroup, directory: Path) -> bool:
        """Removes what a dead sandbox has left. Returns False if something still runs in its cgroup."""
        if cgroup.remove_once():
            return False
        self._release_uids(record, directory)
        self._images.release(directory)
        if os.path.isdir(self._old_runtime):
            for state in self._old_runtime.glob(f"*/{directory.name}"):
                shutil.rmtree(state, ignore_errors=True)
        self._remove(directory)
        return True

    def _remove(self, directory: Path) -> None:
        """Called in a thread. What a dying process has put there meanwhile is removed with the next attempt."""
        for _ in range(_REMOVALS):
            if self._folder.remove_directory(directory.name, _FILES):
                return
            time.sleep(_REMOVAL_PAUSE_S)
        raise ProviderUnavailable(f"the directory of sandbox {directory.name} cannot be removed")

    # -- cgroups

    def _cgroup(self, record: Record) -> SandboxCgroup:
        return self._cgroup_of(record.sandbox_id)

    def _cgroup_of(self, sandbox_id: str) -> SandboxCgroup:
        return self._hierarchies.at(oci_bundle.cgroup_path(sandbox_id))

    async def _read_isolation(self, record: Record, cgroup: SandboxCgroup) -> Isolation:
        """Limits hold only where the sandbox is: they are read from the cgroups that it is in."""
        return await super()._read_isolation(record, cgroup.joined_by(record.pid, record.sandbox_id))

    def _loss_reason(self, record: Record | None) -> str:
        reason = super()._loss_reason(record)
        if record is not None and reason == "its first process has ended" and self._cgroup(record).oom_kills():
            return f"{reason}, after it ran out of memory"
        return reason


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
