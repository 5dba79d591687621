"""Sandboxes by a Docker engine, through its API.

A sandbox is a directory `<state>/docker/<id>`, made first and removed last, and a container
`warren-<id>` that carries the sandbox's and the state directory's names as labels:

    record.json   what it is to be; later the container's id and the pid of its first process
    disk/         where its disk is mounted until the container has it; agent, /etc and figures for /proc are there
    mapped/       where the same disk is mounted with its ids mapped, just as long; the places that it may write to
    pts/          where its terminals are mounted, just as long

Its agent listens in /run/warren/docker/<id>, which only the host's root can enter.
(It is not in the state directory because the sandbox's mount table shows where it is.)

The engine makes the container and starts it; from then on Warren talks to the agent over the socket and does not need
the engine until it removes the container. So commands run, and a sandbox can be adopted, while the engine is down. The
disk is unmounted from the host as soon as the container has it; its last mount vanishes with the container's processes.
It is a disk like those of oci, so it is saved and copied in the same way; what Warren itself has put on it is written
anew for each sandbox.
"""

import asyncio
import errno
import hashlib
import math
import os
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Unpack

from warren.interfaces.images import Images
from warren.model.capability import Capability
from warren.model.errors import InvalidRequest, NoSpace, ProviderUnavailable, SandboxLost
from warren.model.spec import MIB, USER_UID, Layer, SandboxSpec
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.disks.disk_stream import DiskLayout
from warren.sandboxes.disks.saved_images import check_fit
from warren.sandboxes.host import isolation
from warren.sandboxes.host.cgroups import SandboxCgroup, parent_in_use
from warren.sandboxes.host.disks import DISK_FD, tmpfs_options, unmount
from warren.sandboxes.host.network_settings import network_sysctls
from warren.sandboxes.host.proc_top import top_of_proc
from warren.sandboxes.host.processes import boot_id, run
from warren.sandboxes.host.record import SandboxRecord, kill_first_process, recording
from warren.sandboxes.host.uids import can_map_ids, uid_base
from warren.sandboxes.host.volumes import VOLUMES
from warren.sandboxes.providers import docker_spec
from warren.sandboxes.providers.connection import ProcIsolationReader
from warren.sandboxes.providers.docker_engine import DockerEngine
from warren.sandboxes.providers.docker_images import EngineImages
from warren.sandboxes.providers.docker_spec import EngineImage, container_name
from warren.sandboxes.providers.hardening import TERMINALS
from warren.sandboxes.providers.host_provider import HostOptions, HostProvider, require_root, translate_os_error
from warren.sandboxes.providers.image_defaults import with_image_env
from warren.sandboxes.providers.oci_bundle import PARENT
from warren.sandboxes.providers.runners import write_runners

STEPS: Final = (
    *("directory", "uids", "record", "disk", "files", "container", "created", "start", "started"),
    *("seal", "detach", "dial", "dialled", "checked"),
)
# Docker has no user namespace per container. If the engine remaps users all the same, the isolation report says so.
PROMISED: Final = isolation.PROMISED - {Layer.USER_NAMESPACE}
_RUN: Final = Path("/run/warren/docker")
_AT_ONCE: Final = 8
_MOUNTS: Final = ("disk", "mapped", "pts")


@dataclass(frozen=True, slots=True)
class DockerRecord(SandboxRecord):
    """`container` is the engine's id of the container."""

    container: str = ""


class DockerProvider(HostProvider[DockerRecord, EngineImage]):
    name = "docker"
    folder = "docker"
    record_class = DockerRecord
    promised = PROMISED
    can = frozenset({Capability.TERMINALS, Capability.PORTS, Capability.VOLUMES})
    saved_folder = "saved/docker"

    def __init__(
        self,
        state_dir: Path,
        images: Images,
        bin_dir: Path,
        docker_url: str | None = None,
        **options: Unpack[HostOptions],
    ) -> None:
        options["isolation_reader"] = options.get("isolation_reader") or ProcIsolationReader(
            closed={docker_spec.RUN}, volumes=state_dir.absolute() / VOLUMES
        )
        super().__init__(state_dir, bin_dir, at_once=_AT_ONCE, **options)
        self.engine = DockerEngine(docker_url or "")
        self._images = EngineImages(images, self.engine)
        self._runtime = ""
        self._cgroup_parent = ""
        self._has_cdi = self._has_nvidia = False
        self._maps_ids = can_map_ids()

    def __repr__(self) -> str:
        return f"<DockerProvider {self._state}, {self.engine.url}, {self._runtime or 'not tried yet'}, {self.disks!r}>"

    async def image_version(self, image: str) -> str:
        return await self._images.version(image)

    async def load_image(self, image: str) -> None:
        await self._images.load(image)

    @property
    def why_not_saved(self) -> str:
        forbidden = "it forbids user namespaces (user.max_user_namespaces is 0), by which ids on a disk are mapped"
        return super().why_not_saved or ("" if self._maps_ids else forbidden)

    async def _list_all(self) -> Sequence[str]:
        found = set(await super()._list_all())
        # Without the engine the directories suffice: every sandbox had one before it had a container.
        with suppress(ProviderUnavailable):
            containers = await self.engine.containers(f"{docker_spec.STATE_LABEL}={self._state_id}")
            found.update(container["Labels"].get(docker_spec.SANDBOX_LABEL, "") for container in containers)
        return sorted(found - {""})

    async def close(self) -> None:
        await super().close()
        if self._cgroup_parent:
            self._hierarchies.remove_parent(self._cgroup_parent)
        await self._images.close()
        await self.engine.close()

    # -- readiness, once

    async def _ready(self) -> None:
        async with self._ready_lock:
            if not self._runtime:
                require_root(self.name)
                self._programs.check()
                runtime = await self._check_engine()
                try:
                    for path in (self._state / "docker", _RUN):
                        path.mkdir(mode=0o700, parents=True, exist_ok=True)
                        path.chmod(0o700)
                    await self.disks.probe()
                    await asyncio.to_thread(self._saved.sweep)
                    if Capability.GPU in self.capabilities:
                        await self.gpus.found()
                except OSError as exc:
                    raise translate_os_error("preparing the state directory", exc) from exc
                self._runtime = runtime

    async def _check_engine(self) -> str:
        info = await self.engine.info()
        if any("name=rootless" in option for option in info.get("SecurityOptions") or ()):
            raise ProviderUnavailable(
                f"the Docker engine at {self.engine.url} is rootless: it cannot give sandboxes uids of their own",
                remedy="use an engine that runs as root, or the provider oci",
            )
        self._has_cdi = bool(info.get("CDISpecDirs"))
        self._has_nvidia = "nvidia" in (info.get("Runtimes") or {})
        # systemd has slices of its own instead, and moves what others put beside them.
        self._cgroup_parent = PARENT if info.get("CgroupDriver") == "cgroupfs" else ""
        return f"{info.get('DefaultRuntime', 'runc')} by docker {info.get('ServerVersion', '?')}"

    # -- making

    async def _plan(self, spec: SandboxSpec) -> EngineImage:
        if spec.sudo:
            raise InvalidRequest(
                "with the provider docker a sandbox has no user namespace of its own: root inside would be the "
                "machine's root, so no command may be root",
                remedy="use the provider oci for environments with `sudo: true`",
            )
        if spec.writable_root:
            raise InvalidRequest(
                "with the provider docker what is written to a sandbox's root would be on the engine's disk, where "
                "disk_mb does not limit it",
                remedy="use the provider oci for environments with `root: writable`",
            )
        await self._ready()
        if spec.disk:
            self._require_saving()
            check_fit(spec, await self._saved.describe(spec.disk), host_usr=False)
        await self.gpus.check_spec(spec, self.name, self.capabilities)
        if spec.gpus and not self._can_give_gpus:
            raise ProviderUnavailable(
                "the Docker engine can give containers no GPU: it has neither CDI nor the runtime nvidia",
                remedy="install the NVIDIA Container Toolkit, or use the provider oci",
            )
        return await self._images.find(spec.image)

    @property
    def _can_give_gpus(self) -> bool:
        return self._has_nvidia or (self._has_cdi and self.gpus.has_cdi)

    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: EngineImage) -> AgentSandbox:
        directory = self.directory(sandbox_id)
        self._fault("directory")
        with recording(self._home):
            directory.mkdir(mode=0o700)
            spec = self.gpus.claim_for(spec, directory)
            self._fault("uids")
            index = self._uids.claim(directory)
            self._fault("record")
            record = DockerRecord(sandbox_id, boot_id(), self._runtime, index, with_image_env(spec, plan.config))
            record.save(directory)
        self._fault("disk")
        record = await self._mount_disk(record, plan)
        self._fault("files")
        try:
            self._write_files(record)
        except OSError as exc:
            if record.spec.disk and exc.errno == errno.ENOSPC:
                raise _saved_disk_is_full() from None
            raise
        self._fault("container")
        container = await self.engine.create(container_name(sandbox_id), self._config(record, plan))
        self._fault("created")
        record = replace(record, container=container)
        record.save(directory)
        self._fault("start")
        with parent_in_use():
            if self._cgroup_parent:
                self._limits.limit_all()
            await self.engine.start(container)
        self._fault("started")
        record = record.started(_first_pid(await self.engine.state(container)))
        record.save(directory)
        self._fault("seal")
        await self._seal_mounts(record)
        self._fault("detach")
        self._unmount(directory)
        self._fault("dial")
        return await self._connect(record, creating=True)

    def _unmount(self, directory: Path) -> None:
        for name in _MOUNTS:
            unmount(directory / name)

    async def _mount_disk(self, record: DockerRecord, image: EngineImage) -> DockerRecord:
        directory, limits = self.directory(record.sandbox_id), record.spec.limits
        for name in _MOUNTS:
            (directory / name).mkdir(mode=0o700)
        base, owner = uid_base(record.uid_index), uid_base(record.uid_index) + USER_UID
        disk, pass_fds = ["--tmpfs", tmpfs_options(limits)], {}
        if not self.disks.why_not_loop:
            record, fd = await self._new_image(record)
            disk, pass_fds = ["--disk-fd", str(DISK_FD)], {fd: DISK_FD}
        if record.disk_layout is not None:
            disk += ["--base", str(base), "--mapped", str(directory / "mapped")]
            owner = USER_UID
        disk += ["--saved"] if record.spec.disk else []
        places = [("--dir", f"{name}:{mode:o}") for name, mode in docker_spec.directories(image).values()]
        argv = [str(self._programs.launcher), "disk", *disk, "--at", str(directory / "disk"), "--owner", str(owner)]
        argv += ["--memory", str(limits.memory_mb * MIB), "--cpus", str(math.ceil(limits.cpus))]
        argv += ["--pts", str(directory / "pts"), "--terminals", str(TERMINALS)]
        outcome = await run([*argv, *(word for place in places for word in place)], pass_fds=pass_fds)
        if outcome.code != 0:
            if record.spec.disk and os.strerror(errno.ENOSPC) in outcome.last_line:
                raise _saved_disk_is_full()
            raise ProviderUnavailable(
                f"docker, mounting a sandbox's disk: {self._programs.without_paths(outcome.last_line)}"
            )
        return record

    async def _new_image(self, record: DockerRecord) -> tuple[DockerRecord, int]:
        spec, copied = record.spec, None
        if spec.disk:
            check_fit(spec, await self._saved.describe(spec.disk), host_usr=False)
            copied = self._saved.copy(spec.disk, spec.limits.disk_mb)
        layout = asdict(DiskLayout()) if self._maps_ids else None
        return await self.sandbox_disks.new_image(replace(record, disk_layout=layout), copied)

    async def _seal_mounts(self, record: DockerRecord) -> None:
        """Makes the container's mounts nosuid and nodev, which the engine's API cannot."""
        outcome = await run([str(self._programs.launcher), "seal", "--pid", str(record.pid)])
        if outcome.code != 0:
            raise ProviderUnavailable(
                f"docker, sealing a sandbox's mounts: {self._programs.without_paths(outcome.last_line)}"
            )

    def _write_files(self, record: DockerRecord) -> None:
        """Writes to a disk that no sandbox has seen yet, so no name on it can be a link."""
        (self._socket_directory(record.sandbox_id)).mkdir(mode=0o700)
        system = self.directory(record.sandbox_id) / "disk" / docker_spec.SYSTEM
        if record.spec.disk:  # that of the sandbox whose disk was saved
            shutil.rmtree(system)
        system.mkdir()
        for name, text in docker_spec.etc_files(uid_base(record.uid_index)).items():
            (system / name).write_text(text)
            (system / name).chmod(0o644)
        shutil.copyfile(self._programs.agent, system / "agent")
        (system / "agent").chmod(0o711)  # nobody can read it, so nobody can look into what runs it (agent/keeper.c)
        write_runners(system / "runners")

    def _config(self, record: DockerRecord, image: EngineImage) -> docker_spec.Json:
        directory = self.directory(record.sandbox_id)
        disk, run = directory / "disk", self._socket_directory(record.sandbox_id)
        places = disk if record.disk_layout is None else directory / "mapped"
        config = docker_spec.container(
            record.spec,
            image,
            docker_spec.SandboxPaths(disk, places, run, directory / "pts"),
            sandbox_id=record.sandbox_id,
            state_id=self._state_id,
            uid_base=uid_base(record.uid_index),
            hard_limits=_hard_limits(),
            top_of_proc=top_of_proc(),
            cgroup_parent=self._cgroup_parent,
        )
        config["HostConfig"]["Sysctls"].update(network_sysctls())
        if (grant := self.gpus.granted(record.spec.gpus)) is not None:
            cdi = grant.cdi_names if self._has_cdi else ()
            config["HostConfig"]["DeviceRequests"] = [docker_spec.device_request(grant.ids, cdi)]
        return config

    def _socket_directory(self, sandbox_id: str) -> Path:
        return _RUN / sandbox_id

    def _volume_base(self, sandbox_id: str) -> int:
        """The uid of the sandbox's user is its own on the host: what is 1000 in the volume is that user."""
        record = self.load_record(sandbox_id)
        return uid_base(record.uid_index) if record else 0

    # -- unmaking

    async def _unmake(self, sandbox_id: str) -> None:
        """Destroys a sandbox at any stage of its making; idempotent. The directory goes last."""
        directory = self.directory(sandbox_id)
        record = DockerRecord.load(directory)
        async with self.sandbox_disks.freeing_image(sandbox_id, record):
            await self._remove_all(sandbox_id, record, directory)

    async def _remove_all(self, sandbox_id: str, record: DockerRecord | None, directory: Path) -> None:
        cgroup = SandboxCgroup({})
        if record is not None:
            with suppress(SandboxLost):
                cgroup = self._cgroup(record)
            await kill_first_process(record)
        await self.engine.remove(container_name(sandbox_id))
        # The engine has removed the cgroups too, unless it had lost the container.
        await cgroup.clear()
        shutil.rmtree(self._socket_directory(sandbox_id), ignore_errors=True)
        if not directory.is_dir():
            return
        self._unmount(directory)
        self._release_uids(record, directory)
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            raise ProviderUnavailable(f"the directory of sandbox {sandbox_id} cannot be removed")

    # -- names and cgroups

    @property
    def _state_id(self) -> str:
        return hashlib.sha256(os.fsencode(self._state)).hexdigest()[:16]

    def _cgroup(self, record: DockerRecord) -> SandboxCgroup:
        try:
            if record.alive():
                return self._hierarchies.of(record.pid, record.container)
        except (FileNotFoundError, ProcessLookupError):
            pass
        raise SandboxLost(f"sandbox {record.sandbox_id} is lost: its first process has ended")


def _saved_disk_is_full() -> NoSpace:
    return NoSpace("the saved disk has no room for what a sandbox needs on it", remedy="ask for a larger disk_mb")


def _first_pid(state: docker_spec.Json) -> int:
    if not state["Pid"]:
        why = state.get("Error") or f"exit code {state.get('ExitCode')}"
        raise ProviderUnavailable(f"docker, starting a sandbox: its agent ended at once ({why})")
    return int(state["Pid"])


def _hard_limits() -> dict[str, int]:
    """The limits that even root may not raise here; the engine may not either."""
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "memlock": resource.RLIMIT_MEMLOCK,
        "fsize": resource.RLIMIT_FSIZE,
        "sigpending": resource.RLIMIT_SIGPENDING,
        "msgqueue": resource.RLIMIT_MSGQUEUE,
    }
    limits = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    return {name: value for name, value in limits.items() if value != resource.RLIM_INFINITY}
