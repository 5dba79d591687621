"""Sandboxes by Warren's launcher alone (direct.py) or with an OCI runtime, without a daemon.

A sandbox is a directory `<state>/sandboxes/<id>`, in memory (memory_folder.py), made first and removed last:

    record.json   what it is to be; later the pid of its first process
    agent.sock    where its agent listens: made here (empty_network.py), handed down as a descriptor

What the runtime reads and writes is in memory, in a mount namespace that the launcher makes for the sandbox. The
launcher and then the runtime, if there is one, run for some milliseconds; after that the sandbox consists of its own
processes alone. Destroying it means killing the first process (the kernel kills the rest) and removing the cgroups and
the directories. The runtime's own `delete` is not needed, so a sandbox can be destroyed even when its runtime is no
longer installed.
"""

import asyncio
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from warren.interfaces.images import Images, RootFs
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability
from warren.model.errors import InvalidRequest, ProviderUnavailable, SandboxLost, SandboxNotFound
from warren.model.spec import AGENT_PROGRAM, Isolation, SandboxSpec
from warren.sandboxes.agent.dialling import connect
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.disks.disk_stream import DiskLayout
from warren.sandboxes.disks.saved_images import check_fit
from warren.sandboxes.host import isolation, orphans
from warren.sandboxes.host.cgroups import SandboxCgroup, parent_in_use
from warren.sandboxes.host.disks import DISK_FD
from warren.sandboxes.host.memory_folder import MemoryFolder
from warren.sandboxes.host.processes import Finished, boot_id, kill_if
from warren.sandboxes.host.record import NAME, SandboxRecord, kill_first_process, recording
from warren.sandboxes.host.uids import uid_base
from warren.sandboxes.makers.messages import Made
from warren.sandboxes.makers.pool import Makers
from warren.sandboxes.providers import direct, oci_bundle, oci_launch
from warren.sandboxes.providers.host_provider import HostOptions, HostProvider, require_root, translate_os_error
from warren.sandboxes.providers.image_defaults import with_image_env
from warren.sandboxes.providers.oci_launcher import LaunchOptions, OciLauncher
from warren.sandboxes.providers.oci_runtime import Runtime, RuntimeReport, Runtimes

STEPS: Final = (
    *("directory", "uids", "record", "disk", "socket", "launch", "launched", "started", "dialled", "checked"),
)
_AT_ONCE: Final = 16
_AT_ONCE_EACH: Final = 4
_FILES: Final = (NAME, oci_launch.PID, oci_launch.SOCKET)
_STRAY_ROUNDS: Final = 5000
_QUIET_LOOKS: Final = 4
_REMOVALS: Final = 5
_REMOVAL_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Making:
    """Where sandboxes are made: in this process, or by `makers` that it starts; or here, for the `server` whose maker
    this process is (its pid and start time)."""

    makers: Makers | None = None
    server: tuple[int, int] | None = None


ALONE: Final = Making()


class OciProvider(HostProvider[SandboxRecord, Runtime]):
    name = "oci"
    folder = "sandboxes"
    record_class = SandboxRecord
    promised = isolation.PROMISED
    can = frozenset({Capability.USER_NAMESPACE, Capability.TERMINALS, Capability.PORTS, Capability.VOLUMES})
    mounts_gpu_libraries = True

    def __init__(
        self,
        state_dir: Path,
        images: Images,
        bin_dir: Path,
        runtime: str | None = None,
        *,
        keep_changes: bool = False,
        making: Making = ALONE,
        **options: Unpack[HostOptions],
    ) -> None:
        at_once = max(_AT_ONCE, _AT_ONCE_EACH * making.makers.count) if making.makers is not None else _AT_ONCE
        super().__init__(state_dir, bin_dir, at_once=at_once, **options)
        self._making = making
        self._images = images
        self._folder = MemoryFolder(self._home)
        self._runtimes = Runtimes(self._state, self._probe, runtime, {direct.NAME: self._programs.launcher})
        self._runtime: Runtime | None = None
        self._adopts_orphans = False
        self._launcher = OciLauncher(
            self._programs,
            self._runtimes,
            self._hierarchies,
            self.gpus,
            LaunchOptions(self._home, self._start_timeout_s, lambda: not self.disks.why_not_loop, keep_changes),
        )

    def __repr__(self) -> str:
        runtime = self._runtime.name if self._runtime else "not tried yet"
        return f"<OciProvider {self._state}, runtime {runtime}, {self.disks!r}>"

    async def image_version(self, image: str) -> str:
        return self._images.version(image)

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
            return self._launcher.changes.pop(sandbox_id)
        except KeyError:
            raise SandboxNotFound(f"the changes of sandbox {sandbox_id} were not kept") from None

    def uid_base(self, sandbox_id: str) -> int:
        """The uid on the host of the sandbox's root. Raises SandboxNotFound."""
        record = self.load_record(sandbox_id)
        if record is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        return uid_base(record.uid_index)

    async def close(self) -> None:
        if self._making.makers is not None:
            await self._making.makers.close()
        await super().close()
        self._launcher.close()
        if self._adopts_orphans:
            self._adopts_orphans = False
            orphans.disown()
        if os.geteuid() == 0 and not await self.list_ids():  # other processes have none either
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
                if self._making.makers is not None:
                    orphans.expect_from(str(self._programs.launcher), self._runtimes.program(self._runtime.name))
                    self._making.makers.start()
            return self._runtime

    async def _prepare_host(self) -> None:
        require_root(self.name)
        self._programs.check()
        if self._hierarchies.version == "none":
            raise ProviderUnavailable("no cgroups are mounted here", remedy="mount cgroup2 at /sys/fs/cgroup")
        try:
            await asyncio.to_thread(self._make_directories)
        except OSError as exc:
            raise translate_os_error("preparing the state directory", exc) from exc
        await self.disks.probe()
        if not self._adopts_orphans and self._making.server is None:
            self._adopts_orphans = True
            orphans.adopt()

    def _make_directories(self) -> None:
        # The sandbox's root user opens the bundle, so it must be able to enter these; not the state directory.
        for path in (Path(oci_bundle.BUNDLE).parent, Path(oci_bundle.BUNDLE)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)
        for name in ("", "agent"):
            (self._state / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.make()
        self._saved.sweep()
        self._launcher.make_agent_layers(self._state / "agent")

    async def _probe(self, runtime: str) -> Finished:
        """Starts and ends a sandbox without an image, whose agent only prints its version."""
        sandbox_id = secrets.token_hex(16)
        directory = self.directory(sandbox_id)
        try:
            with recording(self._home):
                await self._make_directory(directory)
                record = SandboxRecord(sandbox_id, boot_id(), runtime, self._uids.claim(directory), SandboxSpec())
                record.save(directory)
            rootfs = RootFs(directory / "image", host_usr=False)
            config = self._launcher.config(record, rootfs=rootfs, argv=[AGENT_PROGRAM, "--version"])
            oci_launch.make_mount_points(directory / "image")
            record, rootfs, disk = await self._take_disk(record, rootfs)
            with oci_launch.in_memory(config) as stdin, parent_in_use():
                self._limits.limit_all()
                return await self._launcher.launch(record, rootfs, disk, stdin, detached=False)
        finally:
            await run_shielded(self._unmake(sandbox_id))

    # -- making

    async def _plan(self, spec: SandboxSpec) -> Runtime:
        runtime = await self._ready()
        self._images.version(spec.image)
        if spec.sudo:
            _refuse_host_usr(self._images.rootfs(spec.image))
        if spec.disk:
            self._require_saving()
            host_usr = self._images.rootfs(spec.image).host_usr
            check_fit(spec, await self._saved.describe(spec.disk), host_usr=host_usr)
        await self.gpus.check_spec(spec, self.name, self.capabilities)
        return runtime

    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: Runtime) -> AgentSandbox:
        if self._making.makers is not None and not spec.ephemeral:  # such an agent ends with a connection
            made, sock = await self._making.makers.make(sandbox_id, spec)
            record, sandbox = made.record, await self._take_over(made, sock)
        else:
            record = await self._launch(sandbox_id, spec, plan)
            sandbox = await self._connect(record, creating=True)
            await self._launcher.keep_filter(record)
        self.records.made[sandbox_id] = record
        return sandbox

    async def _take_over(self, made: Made, sock: socket.socket) -> AgentSandbox:
        """Greets the agent of a sandbox that a maker has made."""
        record = made.record
        try:
            async with asyncio.timeout(self._start_timeout_s):
                link = await AgentLink.greet(sock, partial(self._loss_reason, record))
        except (SandboxLost, TimeoutError) as exc:
            raise SandboxLost(f"the new sandbox's agent did not answer: {self._loss_reason(record)}") from exc
        return self._open_sandbox(record, link, made.isolation)

    async def make_for_server(self, sandbox_id: str, spec: SandboxSpec) -> tuple[Made, socket.socket]:
        """Does what a maker does. The server greets the agent, and undoes what is left if this fails."""
        try:
            record = await self._launch(sandbox_id, spec, await self._plan(spec))
            if record.runtime != direct.NAME:  # the runtime may end before the agent runs
                dialled = await self._dialer.dial(
                    *(record, self._socket_directory(sandbox_id), self._start_timeout_s),
                    partial(self._loss_reason, record),
                )
                await dialled.close()
            in_force = await self._prove(record, creating=True)
            await self._launcher.keep_filter(record)
            return Made(record, in_force), await connect(self._socket_directory(sandbox_id))
        except OSError as exc:  # the server gets it as it would have said it itself
            raise translate_os_error("creating a sandbox", exc) from exc
        finally:
            self.sandbox_disks.close_image(sandbox_id)  # its loop device has it, and others find it by its handle

    async def _launch(self, sandbox_id: str, spec: SandboxSpec, runtime: Runtime) -> SandboxRecord:
        directory = self.directory(sandbox_id)
        self._fault("directory")
        with recording(self._home):
            await self._make_directory(directory)
            spec = self.gpus.claim_for(spec, directory)
            rootfs = self._images.hold(spec.image, directory)
            if spec.sudo:  # again: the name may point to another version since the plan was made
                _refuse_host_usr(rootfs)
            self._fault("uids")
            index = self._uids.claim(directory)
            self._fault("record")
            record = SandboxRecord(sandbox_id, boot_id(), runtime.name, index, with_image_env(spec, rootfs.config))
            record = record.made_for(*self._making.server) if self._making.server is not None else record
            record.save(directory)
        self._fault("disk")
        record, rootfs, disk = await self._take_disk(record, rootfs)
        self._fault("socket")
        config = oci_launch.in_memory(self._launcher.config(record, rootfs=rootfs))
        with await oci_launch.listening(directory) as listener, config as stdin, parent_in_use():
            self._limits.limit_all()
            self._fault("launch")
            gpu_tree = None
            if record.spec.gpus:
                in_use = partial(self.records.others_have_gpus, sandbox_id)
                gpu_tree = await self.gpus.tree(self._state, in_use)
            pass_fds = {listener.fileno(): oci_bundle.LISTEN_FD, **disk}
            outcome = await self._launcher.launch(record, rootfs, pass_fds, stdin, gpu_tree=gpu_tree)
        self._fault("launched")
        if outcome.code != 0:
            raise ProviderUnavailable(
                f"{runtime.name}, starting a sandbox: {self._programs.without_paths(outcome.last_line)}"
            )
        pid = oci_launch.read_pid(directory)
        oci_launch.raise_priority(pid)
        record = record.started(pid)
        self._fault("started")
        record.save(directory)
        return record

    async def _make_directory(self, directory: Path) -> None:
        try:
            os.mkdir(directory, 0o700)
        except FileNotFoundError:  # another process had no more sandboxes, and has removed the folder
            await asyncio.to_thread(self._folder.make, directory.name)

    def _socket_directory(self, sandbox_id: str) -> Path:
        return self._folder.directory(sandbox_id)

    async def _take_disk(self, record: SandboxRecord, rootfs: RootFs) -> tuple[SandboxRecord, RootFs, dict[int, int]]:
        """Makes a disk, if there are loop devices. Returns the record with its image, the root as it goes with the
        disk, and the descriptors for the launcher."""
        if self.disks.why_not_loop:
            return record, rootfs, {}
        spec, copied = record.spec, None
        if spec.disk:
            saved = await self._saved.describe(spec.disk)
            check_fit(spec, saved, host_usr=rootfs.host_usr)
            rootfs = replace(rootfs, seeded=saved.layout.seeded)
            copied = self._saved.copy(spec.disk, spec.limits.disk_mb)
        layout = DiskLayout(spec.writable_root, rootfs.host_usr, () if spec.writable_root else tuple(rootfs.seeded))
        record, fd = await self.sandbox_disks.new_image(replace(record, disk_layout=asdict(layout)), copied)
        return record, rootfs, {fd: DISK_FD}

    # -- unmaking

    async def _unmake(self, sandbox_id: str) -> None:
        """Destroys a sandbox at any stage of its making; idempotent. The directory goes last."""
        directory = self.directory(sandbox_id)
        self._launcher.drop_changes(sandbox_id)
        if not os.path.isdir(directory):
            self.sandbox_disks.close_image(sandbox_id)
            return
        record = self.records.known(sandbox_id)
        cgroup = self._cgroup_of(sandbox_id)
        async with self.sandbox_disks.freeing_image(sandbox_id, record):
            if record is None or not record.pid:
                await _stop_launch(sandbox_id, cgroup)
                await self._clear(record, cgroup, directory)
            elif self._making.makers is not None and await self._end_by(self._making.makers, record):
                orphans.reap(record.pid, record.start_time)
            else:
                await kill_first_process(record)
                await self._clear(record, cgroup, directory)

    async def _end_by(self, makers: Makers, record: SandboxRecord) -> bool:
        kill_if(record.pid, lambda _: record.alive())  # it dies while the maker is asked
        return await makers.end(record.sandbox_id)

    async def end_for_server(self, sandbox_id: str) -> None:
        """Does what a maker does: ends a sandbox that was made, but for the image of its disk and its entry in the
        table of processes."""
        directory, record = self.directory(sandbox_id), self.load_record(sandbox_id)
        if record is not None:
            await kill_first_process(record)
        await self._clear(record, self._cgroup_of(sandbox_id), directory)

    async def _clear(self, record: SandboxRecord | None, cgroup: SandboxCgroup, directory: Path) -> None:
        if not await asyncio.to_thread(self._clear_away, record, cgroup, directory):
            await cgroup.clear()
            await asyncio.to_thread(self._clear_away, record, cgroup, directory)

    def _clear_away(self, record: SandboxRecord | None, cgroup: SandboxCgroup, directory: Path) -> bool:
        """Removes what a dead sandbox has left. Returns False if something still runs in its cgroup."""
        if cgroup.remove_once():
            return False
        self._release_uids(record, directory)
        self._images.release(directory)
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

    def _cgroup(self, record: SandboxRecord) -> SandboxCgroup:
        return self._cgroup_of(record.sandbox_id)

    def _cgroup_of(self, sandbox_id: str) -> SandboxCgroup:
        return self._hierarchies.at(oci_bundle.cgroup_path(sandbox_id))

    async def _read_isolation(self, record: SandboxRecord, cgroup: SandboxCgroup) -> Isolation:
        """Reads the limits from the cgroups that the sandbox is in: they hold only there."""
        return await super()._read_isolation(record, cgroup.joined_by(record.pid, record.sandbox_id))

    def _loss_reason(self, record: SandboxRecord | None) -> str:
        reason = super()._loss_reason(record)
        if record is not None and reason == "its first process has ended" and self._cgroup(record).oom_kills():
            return f"{reason}, after it ran out of memory"
        return reason


def _refuse_host_usr(rootfs: RootFs) -> None:
    """The host's /usr is mounted with its ids mapped: its files belong to root inside, also those that nobody but the
    host's root may read."""
    if rootfs.host_usr:
        raise InvalidRequest(
            "an image with the machine's own /usr (`host`, or one made from it) and root inside exclude each other: "
            "root could read files of /usr that only the machine's root may read",
            remedy="use another image, `base` for instance, or an environment without `sudo: true`",
        )


async def _stop_launch(sandbox_id: str, cgroup: SandboxCgroup) -> None:
    """Kills the launchers and runtimes that may still work on a sandbox that was never finished.

    One look is not enough: a process in the middle of execve has no command line to be recognized by.
    """
    quiet = 0
    for _ in range(_STRAY_ROUNDS):
        quiet = 0 if oci_launch.kill_strays(sandbox_id) else quiet + 1
        await cgroup.kill()
        if quiet == _QUIET_LOOKS:
            orphans.reap_strays()
            return
        await asyncio.sleep(0.003)
    raise ProviderUnavailable(f"the runtime that was making sandbox {sandbox_id} does not die")
