"""Sandboxes by a Docker engine, through its API.

A sandbox is a directory `<state>/docker/<id>`, made first and removed last, and a container
`warren-<id>` that carries the sandbox's and the state directory's names as labels:

    record.json   what it is to be; later the container's id and the pid of its first process
    disk/         where its disk is mounted until the container has it; agent and /etc are copied there
    disk.img      for a moment, until the launcher has attached and unlinked it

Its agent listens in /run/warren/docker/<id>, which is root's alone: nobody in the sandbox can enter it.
(It is not in the state directory because the sandbox's mount table tells where it is.)

The engine makes the container and starts it; from then on Warren speaks with the agent over the
socket and asks the engine for nothing until it removes the container. So commands run, and a
sandbox can be adopted, also while the engine is away. The disk's mount is taken off the host as
soon as the container stands on it; like all else it vanishes with the container's processes.
"""

import asyncio
import hashlib
import os
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.interfaces.images import Images
from warren.model.capability import Capability
from warren.model.errors import ProviderUnavailable, SandboxLost
from warren.model.spec import USER_UID, Layer, SandboxSpec
from warren.worker.agent.link import AgentLink
from warren.worker.agent.sandbox import AgentSandbox
from warren.worker.host import isolation
from warren.worker.host.boot import boot_id
from warren.worker.host.cgroups import SandboxCgroup
from warren.worker.host.disks import STOCK, tmpfs_options
from warren.worker.host.mounts import unmount
from warren.worker.host.spawning import run
from warren.worker.host.uids import uid_base
from warren.worker.providers import docker_spec, first_process
from warren.worker.providers.docker_engine import DockerEngine
from warren.worker.providers.docker_images import EngineImages
from warren.worker.providers.docker_record import DockerRecord
from warren.worker.providers.docker_spec import EngineImage, container_name
from warren.worker.providers.host_provider import Fault, HostProvider, translated

STEPS: Final = (
    *("directory", "uids", "record", "disk", "files", "container", "created", "start", "started"),
    *("detach", "dial", "dialled", "checked"),
)
# Docker has no user namespace per container. One that the engine gives all the same is reported.
PROMISED: Final = isolation.ALL_BUT_KERNEL - {Layer.USER_NAMESPACE}
_RUN: Final = Path("/run/warren/docker")
_AT_ONCE: Final = 8


class DockerProvider(HostProvider[DockerRecord, EngineImage]):
    name = "docker"
    folder = "docker"
    record_class = DockerRecord
    promised = PROMISED
    capabilities = frozenset({Capability.TERMINALS})

    def __init__(
        self,
        state_dir: Path,
        images: Images,
        bin_dir: Path,
        docker_url: str | None = None,
        *,
        disk_stock: int = STOCK,
        start_timeout_s: float = 30.0,
        fault: Fault = lambda step: None,
    ) -> None:
        super().__init__(
            *(state_dir, bin_dir),
            disk_stock=disk_stock,
            start_timeout_s=start_timeout_s,
            fault=fault,
            at_once=_AT_ONCE,
        )
        self.engine = DockerEngine(docker_url or "")
        self._images = EngineImages(images, self.engine)
        self._runtime = ""

    def __repr__(self) -> str:
        return f"<DockerProvider {self._state}, {self.engine.url}, {self._runtime or 'not tried yet'}, {self.disks!r}>"

    async def _ids(self) -> Sequence[str]:
        found = set(await super()._ids())
        # Without the engine the directories tell: every sandbox had one before it had a container.
        with suppress(ProviderUnavailable):
            containers = await self.engine.containers(f"{docker_spec.STATE_LABEL}={self._state_id}")
            found.update(container["Labels"].get(docker_spec.SANDBOX_LABEL, "") for container in containers)
        return sorted(found - {""})

    async def close(self) -> None:
        await super().close()
        await self.engine.close()

    # -- readiness, once

    async def _ready(self) -> None:
        async with self._ready_lock:
            if not self._runtime:
                self._check_host()
                runtime = await self._check_engine()
                try:
                    for path in (self._state / "docker", _RUN):
                        path.mkdir(mode=0o700, parents=True, exist_ok=True)
                        path.chmod(0o700)
                    await self.disks.probe()
                except OSError as exc:
                    raise translated("preparing the state directory", exc) from exc
                self._runtime = runtime

    def _check_host(self) -> None:
        if os.geteuid() != 0:
            raise ProviderUnavailable(
                "the docker provider needs root: it gives every sandbox uids and a disk of its own, "
                "and reads its isolation back from the kernel",
                remedy="run it with sudo",
            )
        self._check_programs()

    async def _check_engine(self) -> str:
        info = await self.engine.info()
        if any("name=rootless" in option for option in info.get("SecurityOptions") or ()):
            raise ProviderUnavailable(
                f"the Docker engine at {self.engine.url} is rootless: it cannot give sandboxes uids of their own",
                remedy="use an engine that runs as root, or the provider oci",
            )
        return f"{info.get('DefaultRuntime', 'runc')} by docker {info.get('ServerVersion', '?')}"

    # -- making

    async def _plan(self, spec: SandboxSpec) -> EngineImage:
        await self._ready()
        return await self._images.find(spec.image)

    async def _make(self, sandbox_id: str, spec: SandboxSpec, plan: EngineImage) -> AgentSandbox:
        directory = self._directory(sandbox_id)
        self._fault("directory")
        directory.mkdir(mode=0o700)
        self._fault("uids")
        index = self._uids.claim(directory)
        self._fault("record")
        record = DockerRecord(sandbox_id, boot_id(), self._runtime, index, spec)
        record.save(directory)
        self._fault("disk")
        await self._mount_disk(record, plan)
        self._fault("files")
        self._write_files(record)
        self._fault("container")
        container = await self.engine.create(container_name(sandbox_id), self._config(record, plan))
        self._fault("created")
        record = record.created(container)
        record.save(directory)
        self._fault("start")
        await self.engine.start(container)
        self._fault("started")
        record = record.started(_first_pid(await self.engine.state(container)))
        record.save(directory)
        self._fault("detach")
        unmount(directory / "disk")
        self._fault("dial")
        return await self._connect(record, creating=True)

    async def _mount_disk(self, record: DockerRecord, image: EngineImage) -> None:
        directory, limits = self._directory(record.sandbox_id), record.spec.limits
        (directory / "disk").mkdir(mode=0o700)
        if self.disks.why_not_loop:
            disk = ("--tmpfs", tmpfs_options(limits))
        else:
            disk = ("--disk", str(directory / "disk.img"))
            await self.disks.take(limits.disk_mb, directory / "disk.img")
        places = [("--dir", f"{name}:{mode:o}") for name, mode in docker_spec.directories(image).values()]
        owner = str(uid_base(record.uid_index) + USER_UID)
        argv = [str(self._launcher), "disk", *disk, "--at", str(directory / "disk"), "--owner", owner]
        outcome = await run([*argv, *(word for place in places for word in place)])
        if outcome.code != 0:
            raise ProviderUnavailable(f"docker, mounting a sandbox's disk: {outcome.last_line}")

    def _write_files(self, record: DockerRecord) -> None:
        """Onto a disk that no sandbox has seen yet: no name on it can be a link."""
        (_RUN / record.sandbox_id).mkdir(mode=0o700)
        system = self._directory(record.sandbox_id) / "disk" / docker_spec.SYSTEM
        system.mkdir()
        for name, text in docker_spec.etc_files(uid_base(record.uid_index)).items():
            (system / name).write_text(text)
            (system / name).chmod(0o644)
        shutil.copyfile(self._agent, system / "agent")
        (system / "agent").chmod(0o755)

    def _config(self, record: DockerRecord, image: EngineImage) -> docker_spec.Json:
        directory = self._directory(record.sandbox_id)
        return docker_spec.container(
            record.spec,
            image,
            docker_spec.SandboxPaths(directory / "disk", _RUN / record.sandbox_id),
            sandbox_id=record.sandbox_id,
            state_id=self._state_id,
            uid_base=uid_base(record.uid_index),
            hard_limits=_hard_limits(),
        )

    async def _dial(self, record: DockerRecord) -> AgentLink:
        """Also hears of an agent that ends before it answers."""
        dialling = asyncio.ensure_future(AgentLink.dial(_RUN / record.sandbox_id, timeout_s=self._start_timeout_s))
        dying = asyncio.ensure_future(first_process.ended(record))
        try:
            await asyncio.wait({dialling, dying}, return_when=asyncio.FIRST_COMPLETED)
            if dialling.done():
                return dialling.result()
            raise SandboxLost("the sandbox's agent ended before it answered")
        except asyncio.CancelledError:
            if dialling.done() and not dialling.exception():
                dialling.result().abort()
            raise
        finally:
            dying.cancel()
            dialling.cancel()

    # -- unmaking

    async def _unmake(self, sandbox_id: str) -> None:
        """Idempotent, and right for a sandbox at any stage: the directory goes last."""
        directory = self._directory(sandbox_id)
        record = DockerRecord.load(directory)
        cgroup = SandboxCgroup({})
        if record is not None:
            with suppress(SandboxLost):
                cgroup = self._cgroup(record)
            await first_process.end(record)
        await self.engine.remove(container_name(sandbox_id))
        # The engine has removed them too, unless it had lost the container.
        await cgroup.clear()
        shutil.rmtree(_RUN / sandbox_id, ignore_errors=True)
        if not directory.is_dir():
            return
        unmount(directory / "disk")
        self._release_uids(record, directory)
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            raise ProviderUnavailable(f"the directory {directory} cannot be removed")

    # -- small things

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


def _first_pid(state: docker_spec.Json) -> int:
    if not state["Pid"]:
        said = state.get("Error") or f"exit code {state.get('ExitCode')}"
        raise ProviderUnavailable(f"docker, starting a sandbox: its agent ended at once ({said})")
    return int(state["Pid"])


def _hard_limits() -> dict[str, int]:
    """Where even root may not raise its limits, the engine may not either."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "fsize": resource.RLIMIT_FSIZE}
    limits = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    return {name: value for name, value in limits.items() if value != resource.RLIM_INFINITY}
