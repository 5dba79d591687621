"""Sandboxes in E2B's cloud, or of any server that speaks as E2B does.

A sandbox is a directory `<state>/e2b/<id>`, made first and removed last, with its record, and a sandbox of the far side
whose metadata name this state directory and the sandbox. Into it go Warren's own agent and the runners of code; from
then on all is said to the agent, through a program that the far side runs (e2b_relay.py). So commands, files, terminals
and code behave as in every other sandbox, also after a restart of this server: the agent has gone on meanwhile.

A sandbox of the far side costs money. It ends by itself after `timeout_s`, which a task here prolongs as long as this
process has it; one that is being made, after a few minutes. What a crash leaves is found by directory or metadata.

What keeps such a sandbox from the rest of the world is the far side's affair: nothing of it can be read from here.
"""

import asyncio
import io
import json
import math
import os
import platform
import re
import secrets
import shlex
import shutil
import tarfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from warren.interfaces.disks import NoSavedDisks, SavedDisk, SavedDisks
from warren.interfaces.volumes import NoVolumes, VolumeImages
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability, lacks
from warren.model.errors import (
    InvalidRequest,
    IsolationUnavailable,
    NoCapacity,
    ProviderUnavailable,
    SandboxLost,
    SandboxNotFound,
)
from warren.model.metrics import SandboxMetrics
from warren.model.spec import HOME, USER, USER_UID, WRITABLE, Isolation, Layer, Limits, SandboxSpec
from warren.model.volume import VolumeMount
from warren.sandboxes.agent.agent_errors import printable
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.host.processes import boot_id, start_time
from warren.sandboxes.host.record import SandboxRecord, find_abandoned, recording
from warren.sandboxes.providers.e2b_api import E2bApi, FarFailure, FarSandbox, FarSize, decoded, translated
from warren.sandboxes.providers.e2b_relay import OUTAGE_S, FarRelay
from warren.sandboxes.providers.host_provider import INSTALL_PROGRAMS, Fault, translate_os_error
from warren.sandboxes.providers.runners import runner_files

STEPS: Final = ("directory", "record", "create", "created", "upload", "setup", "dial", "dialled", "ready")
STATE_KEY: Final = "warren_state"
ID_KEY: Final = "warren_id"
LABELS_KEY: Final = "warren_labels"
TIMEOUT_S: Final = 900
_MAKING_S: Final = 300
_START_S: Final = 60.0
_AT_ONCE: Final = 8
_CHECKED_S: Final = 10.0
_RETRY_S: Final = 20.0
_KEPT: Final = 64 * 1024
_ID: Final = re.compile(r"[0-9a-f]{32}")
_FOLDER: Final = "/opt/warren"
_AGENT: Final = f"{_FOLDER}/agent"
_SOCKET: Final = f"{_FOLDER}/run/agent.sock"
_UPLOAD: Final = "/tmp/.warren-agent.tar.gz"
_MEASURED_S: Final = 60.0
_READY: Final = b"warren is ready"
_NOT_READ: Final = "the far side made the sandbox: nothing of this can be read from here"
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class E2bRecord(SandboxRecord):
    """`far`, `token` and `domain` say how the sandbox is reached; it is `ready` when a command can run in it."""

    far: str = ""
    token: str = ""
    domain: str = ""
    ready: bool = False

    @property
    def abandoned(self) -> bool:
        maker_lives = self.boot_id == boot_id() and start_time(self.maker) == self.maker_start_time
        return not maker_lives and (self.spec.ephemeral or not self.ready)

    @property
    def far_sandbox(self) -> FarSandbox:
        return FarSandbox(self.far, self.token, self.domain)


class E2bProvider:
    """`templates` are the far side's templates by the names of images; any other image is a template of that name.
    `runtime` and `guest_kernel` are the operator's word for what the far side is. The provider owns `api`."""

    name = "e2b"
    local_images = False
    capabilities = frozenset({Capability.TERMINALS})

    def __init__(
        self,
        state_dir: Path,
        bin_dir: Path,
        api: E2bApi,
        *,
        templates: Mapping[str, str] | None = None,
        runtime: str = "",
        guest_kernel: bool = False,
        timeout_s: int = TIMEOUT_S,
        outage_s: float = OUTAGE_S,
        fault: Fault = lambda step: None,
    ) -> None:
        self.api = api
        self._home = state_dir.absolute() / "e2b"
        self._agent = bin_dir.absolute() / "warren-agent"
        self._runtime, self._guest_kernel = runtime or "unknown", guest_kernel
        self._timeout_s, self._outage_s = timeout_s, outage_s
        self._fault = fault
        self._template_of = dict(templates or {})
        self._archive: bytes | None = None
        self._create_slots = asyncio.Semaphore(_AT_ONCE)
        self._destroy_slots = asyncio.Semaphore(_AT_ONCE)
        self._open: weakref.WeakKeyDictionary[AgentSandbox, FarRelay] = weakref.WeakKeyDictionary()
        self.half_made: set[str] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._templates: dict[str, tuple[float, str]] = {}

    def __repr__(self) -> str:
        return f"<E2bProvider {self._home}, {self.api!r}>"

    async def create(self, spec: SandboxSpec) -> AgentSandbox:
        self._refuse(spec)
        sandbox_id = secrets.token_hex(16)
        async with self._create_slots:
            try:
                sandbox = await self._make(sandbox_id, spec)
                # A task cancelled since its last await drops what it returns: be cancelled here instead.
                await asyncio.sleep(0)
                return sandbox
            except BaseException as exc:
                await run_shielded(self._undo(sandbox_id))
                if isinstance(exc, OSError):
                    raise translate_os_error("creating a sandbox", exc) from exc
                raise

    async def image_version(self, image: str) -> str:
        """Remembers the answer for a few seconds: asking for it goes over the network."""
        now = asyncio.get_running_loop().time()
        known = self._templates.get(image)
        if known is None or known[0] < now:
            if len(self._templates) > 1000:
                self._templates.clear()
            known = self._templates[image] = now + _CHECKED_S, await self.api.template(self._template(image))
        return known[1]

    async def load_image(self, image: str) -> None:
        """Its images are on the far side."""

    async def check(self, spec: SandboxSpec) -> None:
        self._refuse(spec)
        if not os.access(self._agent, os.R_OK):
            raise ProviderUnavailable(f"the program {self._agent.name} is missing", remedy=INSTALL_PROGRAMS)
        await self.image_version(spec.image)

    @property
    def saved_disks(self) -> SavedDisks:
        return NoSavedDisks(partial(lacks, self.name, Capability.SNAPSHOTS))

    async def freeze(self, sandbox_id: str) -> None:
        raise lacks(self.name, Capability.PAUSE)

    async def thaw(self, sandbox_id: str) -> None:
        raise lacks(self.name, Capability.PAUSE)

    @property
    def volume_images(self) -> VolumeImages:
        return NoVolumes(partial(lacks, self.name, Capability.VOLUMES))

    async def attach(self, sandbox_id: str, mount: VolumeMount) -> None:
        raise lacks(self.name, Capability.VOLUMES)

    async def detach(self, sandbox_id: str, volume_id: str) -> None:
        raise lacks(self.name, Capability.VOLUMES)

    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk:
        raise lacks(self.name, Capability.SNAPSHOTS)

    async def adopt(self, sandbox_id: str, *, paused_s: float | None = None) -> AgentSandbox:
        record = self._load(sandbox_id)
        if record is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}")
        if not record.ready:
            raise SandboxLost(f"sandbox {sandbox_id} is lost: it was never finished")
        size = await self.api.size(record.far)
        if size is None or not await self.api.prolong(record.far, self._timeout_s):
            raise SandboxLost(f"sandbox {sandbox_id} is lost: the far side does not have it any more")
        return await self._connect(record, size)

    async def destroy(self, sandbox_id: str) -> None:
        if _ID.fullmatch(sandbox_id):
            async with self._destroy_slots:
                try:
                    await self._unmake(sandbox_id)
                except OSError as exc:
                    raise translate_os_error(f"destroying sandbox {sandbox_id}", exc) from exc

    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]:
        wanted = (labels or {}).items()
        found = {name for name in self._names() if not wanted or self._has_labels(name, labels or {})}
        # Without the far side the directories suffice: every sandbox had one before it was made there.
        with suppress(ProviderUnavailable, NoCapacity):
            for _, metadata in await self._list_far():
                name = metadata.get(ID_KEY, "")
                if _ID.fullmatch(name) and not self._directory(name).is_dir() and wanted <= _labels(metadata).items():
                    found.add(name)
        return sorted(found)

    async def sweep(self) -> int:
        left = set(await find_abandoned(self._home, self._names(), E2bRecord))
        with suppress(ProviderUnavailable, NoCapacity):
            names = {metadata.get(ID_KEY, "") for _, metadata in await self._list_far()}
            # Made by a server with this state directory that has lost its record: nobody else would end what costs
            # money.
            left |= {name for name in names if _ID.fullmatch(name) and not self._directory(name).is_dir()}
        for sandbox_id in left:
            await self.destroy(sandbox_id)
        return len(left)

    def list_gpus(self) -> tuple[Sequence[str], Sequence[str]]:
        return (), ()

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
            self._keeping = None
        for sandbox, relay in list(self._open.items()):
            await sandbox.close()
            await relay.close()
        await self.api.close()

    # -- what is refused

    def _template(self, image: str) -> str:
        return self._template_of.get(image, image)

    def _refuse(self, spec: SandboxSpec) -> None:
        if spec.gpus:
            raise lacks(self.name, Capability.GPU)
        if spec.disk:
            raise lacks(self.name, Capability.SNAPSHOTS)
        if spec.sudo:
            raise InvalidRequest(
                "with the provider e2b no command may be root: the agent inside is",
                remedy="use the provider oci for environments with `sudo: true`",
            )
        if spec.io:
            raise InvalidRequest(
                "with the provider e2b the disk throughput of a sandbox cannot be limited",
                remedy="leave io_mbps, io_iops and `io` out, or use the provider oci",
            )
        absent = {layer: why for layer, why in self._isolation(None).missing.items() if layer in spec.require}
        if absent:
            reasons = "; ".join(f"{layer}: {absent[layer]}" for layer in sorted(absent))
            raise IsolationUnavailable(
                f"{self.name} with {self._runtime} cannot give the isolation that is required ({reasons})",
                remedy="use the provider oci, or do not require it",
            )

    def _isolation(self, size: FarSize | None) -> Isolation:
        word = {Layer.GUEST_KERNEL: "by the operator's word (e2b_guest_kernel)"} if self._guest_kernel else {}
        missing = {layer: _NOT_READ for layer in Layer if layer not in word}
        missing[Layer.NO_NETWORK] = "the far side was told to close it; whether it did cannot be read from here"
        if size is not None:
            missing[Layer.MEMORY_LIMIT] = f"the template has {size.memory_mb} MiB, whatever was asked for"
            missing[Layer.CPU_LIMIT] = f"the template has {size.cpus:g} CPUs, whatever was asked for"
            missing[Layer.DISK_LIMIT] = f"the template has {size.disk_mb} MiB, whatever was asked for"
        return Isolation(self.name, self._runtime, word, missing)

    # -- making

    async def _make(self, sandbox_id: str, spec: SandboxSpec) -> AgentSandbox:
        directory = self._directory(sandbox_id)
        self._fault("directory")
        state_id = self._state_id()
        with recording(self._home):
            directory.mkdir(mode=0o700)
            self._fault("record")
            record = E2bRecord(sandbox_id, boot_id(), self._runtime, 0, spec)
            record.save(directory)
        archive = await self._load_archive()
        self._fault("create")
        metadata = {STATE_KEY: state_id, ID_KEY: sandbox_id, LABELS_KEY: json.dumps(spec.labels, sort_keys=True)}
        # The far side goes on with a request whose caller has gone, and the clean-up would miss what it makes then.
        far = await run_shielded(self.api.create(self._template(spec.image), _MAKING_S, metadata))
        self._fault("created")
        record = replace(record, far=far.id, token=far.token, domain=far.domain)
        record.save(directory)
        self._fault("upload")
        size, _ = await asyncio.gather(self.api.size(far.id), self.api.upload(far, _UPLOAD, archive))
        if size is None:
            raise SandboxLost("the far side lost the sandbox while it was made")
        _check_size(spec, size)
        self._fault("setup")
        await self._set_up(far, spec)
        self._fault("dial")
        sandbox = await self._connect(record, size)
        try:
            self._fault("dialled")
            if not await self.api.prolong(far.id, self._timeout_s):
                raise SandboxLost("the far side lost the sandbox while it was made")
            replace(record, ready=True).save(directory)
            self._fault("ready")
        except BaseException:
            await run_shielded(sandbox.close())
            raise
        return sandbox

    async def _load_archive(self) -> bytes:
        if self._archive is None:
            try:
                self._archive = await asyncio.to_thread(_archive, self._agent)
            except OSError as exc:
                raise ProviderUnavailable(
                    f"the program {self._agent.name} is missing", remedy=INSTALL_PROGRAMS
                ) from exc
        return self._archive

    async def _set_up(self, far: FarSandbox, spec: SandboxSpec) -> None:
        """Returns when the agent is being started; it runs on when nobody follows it."""
        said = b""
        try:
            async with (
                asyncio.timeout(_START_S),
                self.api.start(far, ("/bin/sh", "-c", _script(spec))) as events,
            ):
                async for event in events:
                    output = event.get("data") or {}
                    said += b"".join(decoded(output.get(stream)) for stream in ("stdout", "stderr"))
                    said = said[-_KEPT:]
                    if _READY in said:
                        return
        except FarFailure as exc:
            raise translated(exc, "preparing a sandbox") from exc
        except TimeoutError as exc:
            raise ProviderUnavailable("E2B, preparing a sandbox: no answer in time") from exc
        except (aiohttp.ClientError, asyncio.IncompleteReadError) as exc:
            raise ProviderUnavailable(f"E2B, preparing a sandbox: {printable(str(exc), 300)}") from exc
        reason = printable(said.decode(errors="replace").strip(), 400)
        raise ProviderUnavailable(
            f"E2B, preparing a sandbox: {reason}",
            remedy="the template needs sh and tar, and a root that can write",
        )

    async def _connect(self, record: E2bRecord, size: FarSize) -> AgentSandbox:
        argv = (_AGENT, "relay", _SOCKET)
        relay = FarRelay(self.api, record.far_sandbox, argv, name=record.sandbox_id, outage_s=self._outage_s)
        try:
            async with asyncio.timeout(_START_S):
                why_lost = partial(self._loss_reason, record.sandbox_id, relay)
                link = await AgentLink.greet(relay.open(), why_lost)
        except TimeoutError:
            await run_shielded(relay.close())
            raise SandboxLost(f"the agent did not answer within {_START_S:g} s") from None
        except BaseException as exc:
            await run_shielded(relay.close())
            if isinstance(exc, SandboxLost) and relay.why:
                raise SandboxLost(f"sandbox {record.sandbox_id} is lost: {relay.why}") from exc
            raise
        sandbox = AgentSandbox(
            *(record.sandbox_id, link, self._isolation(size)),
            env={"OMP_NUM_THREADS": str(max(1, math.ceil(size.cpus))), **record.spec.env},
            oom_kills=lambda: 0,
            metrics=FarMetricsReader(self.api, record.far).read,
        )
        self._open[sandbox] = relay
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_alive(), name="e2b-keep-alive")
        return sandbox

    def _loss_reason(self, sandbox_id: str, relay: FarRelay) -> str:
        return relay.why if self._directory(sandbox_id).is_dir() else "it was destroyed"

    async def _keep_alive(self) -> None:
        """Prolongs what this process has."""
        while True:
            pause = self._timeout_s / 3
            for sandbox_id in [sandbox.id for sandbox, relay in self._open.items() if not relay.why]:
                try:
                    await self._prolong(sandbox_id)
                except Exception as exc:
                    _log.warning("e2b_not_kept", sandbox=sandbox_id, error=exc)
                    pause = min(pause, _RETRY_S)
            await asyncio.sleep(pause)

    async def _prolong(self, sandbox_id: str) -> None:
        record = self._load(sandbox_id)
        if record is not None and record.ready:
            await self.api.prolong(record.far, self._timeout_s)

    # -- unmaking

    async def _undo(self, sandbox_id: str) -> None:
        try:
            await self._unmake(sandbox_id)
        except Exception as exc:
            self.half_made.add(sandbox_id)
            _log.warning("e2b_sandbox_left", sandbox=sandbox_id, error=exc)

    async def _unmake(self, sandbox_id: str) -> None:
        """Destroys a sandbox at any stage of its making; idempotent. The directory goes last."""
        directory = self._directory(sandbox_id)
        record = self._load(sandbox_id)
        if record is not None and record.far:
            await self.api.kill(record.far)
        elif directory.is_dir() or self._home.is_dir():
            for far, _ in await self._list_far({ID_KEY: sandbox_id}):
                await self.api.kill(far)
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            raise ProviderUnavailable(f"the directory of sandbox {sandbox_id} cannot be removed")
        self.half_made.discard(sandbox_id)
        for sandbox, relay in list(self._open.items()):
            if sandbox.id == sandbox_id:
                await relay.close()

    # -- names

    def _names(self) -> Sequence[str]:
        try:
            return [name for name in os.listdir(self._home) if _ID.fullmatch(name)]
        except FileNotFoundError:
            return []

    def _directory(self, sandbox_id: str) -> Path:
        return self._home / sandbox_id

    def _load(self, sandbox_id: str) -> E2bRecord | None:
        return E2bRecord.load(self._directory(sandbox_id)) if _ID.fullmatch(sandbox_id) else None

    def _has_labels(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        record = self._load(sandbox_id)
        return record is not None and labels.items() <= record.spec.labels.items()

    async def list_far_ids(self) -> Sequence[str]:
        """Returns the ids of the sandboxes that the far side has now. Unlike `list_ids` it raises ProviderUnavailable,
        NoCapacity."""
        return [metadata.get(ID_KEY, "") for _, metadata in await self.api.list({STATE_KEY: self._state_id()})]

    async def _list_far(self, more: Mapping[str, str] | None = None) -> Sequence[tuple[str, Mapping[str, str]]]:
        if not self._home.is_dir():  # then nothing was ever made from here
            return []
        return await self.api.list({STATE_KEY: self._state_id(), **(more or {})})

    def _state_id(self) -> str:
        """Returns a random id that was made once: servers on other machines may have the same account, and a state
        directory of the same name."""
        path = self._home / "state-id"
        with suppress(FileNotFoundError):
            return path.read_text()
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = self._home / f".state-id-{secrets.token_hex(8)}"
        try:
            mine.write_text(secrets.token_hex(16))
            with suppress(FileExistsError):
                os.link(mine, path)
        finally:
            mine.unlink(missing_ok=True)
        return path.read_text()


class FarMetricsReader:
    """Reads what a sandbox uses, as the far side says. It tells how busy the processors are and no total, so the total
    is added up here from one reading to the next; it does not tell how many processes there are."""

    def __init__(self, api: E2bApi, far: str) -> None:
        self._api, self._far = api, far
        self._cpu_s = 0.0
        self._read_at = 0.0

    async def read(self) -> SandboxMetrics:
        found = await self._api.metrics(self._far, time.time() - _MEASURED_S)
        if found is None:
            raise ProviderUnavailable("E2B has measured nothing of this sandbox yet", retry_after_s=_MEASURED_S / 10)
        now = time.monotonic()
        self._cpu_s += found.cpus * (now - self._read_at) if self._read_at else 0.0
        self._read_at = now
        return SandboxMetrics(
            cpu_s=self._cpu_s,
            memory_bytes=found.memory_bytes,
            cache_bytes=found.cache_bytes,
            disk_bytes=found.disk_bytes,
        )


def _check_size(spec: SandboxSpec, size: FarSize) -> None:
    """Raises InvalidRequest if the template has less than is wanted. One that has more will do; `isolation` says what
    it has."""
    asked: Limits = spec.limits
    for name, wanted, has in (
        ("memory_mb", asked.memory_mb, size.memory_mb),
        ("cpus", asked.cpus, size.cpus),
        ("disk_mb", asked.disk_mb, size.disk_mb),
    ):
        if 0 < has < wanted:
            raise InvalidRequest(
                f"the template {spec.image} has {name} {has:.15g}, less than the {wanted:.15g} that are asked for",
                remedy="ask for less, or use a template that has more: the limits are those of the template",
            )


def _labels(metadata: Mapping[str, str]) -> dict[str, str]:
    try:
        found = json.loads(metadata.get(LABELS_KEY, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _archive(agent: Path) -> bytes:
    """Packs the agent, which nobody may read (agent/keeper.c), and the runners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:

        def add(name: str, content: bytes, mode: int) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))

        add("agent", agent.read_bytes(), 0o711)
        for name, content in runner_files().items():
            add(f"runners/{name}", content, 0o644)
    return buffer.getvalue()


def _script(spec: SandboxSpec) -> str:
    """Returns a script that makes the user and the directories, and becomes the agent. The user's line comes first:
    others may have the same number. A far side that is a Warren has its own /.warren."""
    places = " ".join(path for path in WRITABLE if not path.endswith("/tmp"))
    here = platform.machine()
    return f"""
set -e
umask 022
test "$(uname -m)" = {here} || {{ echo "the sandbox is $(uname -m), this server is {here}" >&2; exit 1; }}
mkdir -p {_FOLDER}/run
tar -xzf {_UPLOAD} -C {_FOLDER}
rm -f {_UPLOAD}
chown -R 0:0 {_FOLDER}
find {_FOLDER}/runners -type d -exec chmod 755 {{}} +
chmod 700 {_FOLDER}/run
test -e /.warren || ln -s {_FOLDER} /.warren
first() {{ {{ echo "$2"; grep -v '^{USER}:' "$1" || true; }} > {_FOLDER}/names; cat {_FOLDER}/names > "$1"; }}
first /etc/group '{USER}:x:{USER_UID}:'
first /etc/passwd '{USER}:x:{USER_UID}:{USER_UID}::{HOME}:/bin/bash'
rm {_FOLDER}/names
mkdir -p {places}
chown {USER_UID}:{USER_UID} {places}
chmod 755 {places}
chmod 1777 /tmp /var/tmp
ulimit -n {spec.limits.open_files}
ulimit -c 0
echo {shlex.quote(_READY.decode())}
exec {_AGENT} --guest --socket {_SOCKET} --nproc {spec.limits.pids} </dev/null
"""
