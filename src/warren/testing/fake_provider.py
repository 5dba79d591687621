"""A provider whose sandboxes are objects in memory. It isolates nothing and never touches the host.

Tests control it. `images` and `capabilities` are what it has, and its sandboxes may have the graphics processors
`gpus`. The next `fail_next` creates fail, each create takes `delay_s`, and `lose` kills a sandbox. Its sandboxes are in
`machines`: a second provider with the same machines behaves like one after a restart.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from warren.interfaces.disks import SavedDisk
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability, lacks
from warren.model.errors import (
    Conflict,
    ImageNotFound,
    InvalidRequest,
    IsolationUnavailable,
    NoCapacity,
    ProviderUnavailable,
    SandboxNotFound,
)
from warren.model.gpus import ANY
from warren.model.network import NO_NETWORK
from warren.model.spec import WRITABLE, Isolation, Layer, SandboxSpec
from warren.model.volume import VolumeMount
from warren.testing.fake_disks import FakeSavedDisks
from warren.testing.fake_sandbox import FakeMachine, FakeSandbox
from warren.testing.fake_volumes import FakeVolumes


class FakeProvider:
    local_images = True

    def __init__(
        self,
        machines: dict[str, FakeMachine] | None = None,
        *,
        layers: frozenset[Layer] = frozenset(Layer) - {Layer.GUEST_KERNEL},
        images: frozenset[str] = frozenset({"base", "host", "python", "node"}),
        name: str = "fake",
        capabilities: frozenset[Capability] = frozenset({Capability.TERMINALS}),
        fail_next: int = 0,
        delay_s: float = 0.0,
        gpus: Sequence[str] = (),
        saved_disks: FakeSavedDisks | None = None,
        volumes: FakeVolumes | None = None,
    ) -> None:
        self.name, self.capabilities = name, capabilities | ({Capability.GPU} if gpus else frozenset())
        self.gpus = tuple(gpus)
        self.machines = {} if machines is None else machines
        self.layers = layers
        self.images = dict.fromkeys(images, "1")
        self.fail_next = fail_next
        self.delay_s = delay_s
        self.created = 0
        self.half_made: set[str] = set()
        self.creating = 0
        self.saved_disks = saved_disks or FakeSavedDisks()
        self.volume_images = volumes or FakeVolumes()

    def __repr__(self) -> str:
        return f"<FakeProvider {len(self.machines)} sandboxes, {self.creating} creating>"

    async def create(self, spec: SandboxSpec) -> Sandbox:
        missing = spec.require - self.layers
        if missing:
            names = ", ".join(sorted(missing))
            raise IsolationUnavailable(f"the fake has no {names}", remedy="do not require it, or use another provider")
        await self.check(spec)
        self.creating += 1
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.creating -= 1
        if self.fail_next > 0:
            self.fail_next -= 1
            raise ProviderUnavailable("the fake was told to fail")
        isolation = replace(self._isolation(), gpus=dict.fromkeys(self._lease(spec.gpus), "pretended"))
        machine = FakeMachine(f"sb_{secrets.token_hex(8)}", spec, isolation, self.capabilities)
        if spec.disk:
            machine.files.replace_tree(self.saved_disks.tree(spec.disk))
        self.machines[machine.id] = machine
        self.created += 1
        return FakeSandbox(machine)

    async def image_version(self, image: str) -> str:
        if image not in self.images:
            known = ", ".join(sorted(self.images))
            raise ImageNotFound(f"the fake has no image {image!r}", remedy=f"use one it has: {known}")
        return self.images[image]

    async def load_image(self, image: str) -> None:
        pass

    async def check(self, spec: SandboxSpec) -> None:
        await self.image_version(spec.image)
        if spec.disk and Capability.SNAPSHOTS not in self.capabilities:
            raise lacks(self.name, Capability.SNAPSHOTS)
        if spec.disk:
            self.saved_disks.check_fit(spec)

    def list_gpus(self) -> tuple[Sequence[str], Sequence[str]]:
        taken = {name for machine in self.machines.values() for name in machine.isolation.gpus}
        return self.gpus, [name for name in self.gpus if name not in taken]

    def _lease(self, wanted: Sequence[str]) -> Sequence[str]:
        free = list(self.list_gpus()[1])
        named = [name for name in wanted if name != ANY]
        rest = [name for name in free if name not in named]
        if not set(named) <= set(free) or len(rest) < len(wanted) - len(named):
            raise NoCapacity(f"no free GPU: {len(wanted)} asked for, {len(free)} of {len(self.gpus)} are free")
        return [*named, *rest[: len(wanted) - len(named)]]

    def _isolation(self) -> Isolation:
        missing = {layer: "not here" for layer in Layer if layer not in self.layers}
        return Isolation(self.name, "memory", dict.fromkeys(sorted(self.layers), "pretended"), missing)

    async def adopt(self, sandbox_id: str, *, paused_s: float | None = None) -> Sandbox:
        machine = self._find(sandbox_id)
        machine.paused_s += paused_s or 0.0
        machine.frozen = False
        machine.network = NO_NETWORK
        return FakeSandbox(machine)

    def _find(self, sandbox_id: str) -> FakeMachine:
        machine = self.machines.get(sandbox_id)
        if machine is None:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        if (loss := machine.loss()) is not None:
            raise loss
        return machine

    async def freeze(self, sandbox_id: str) -> None:
        self._find_able(sandbox_id, Capability.PAUSE).frozen = True

    async def thaw(self, sandbox_id: str) -> None:
        self._find_able(sandbox_id, Capability.PAUSE).frozen = False

    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk:
        machine = self._find_able(sandbox_id, Capability.SNAPSHOTS)
        return self.saved_disks.keep(name, machine.files.copy_tree(), machine.spec)

    async def attach(self, sandbox_id: str, mount: VolumeMount) -> None:
        machine, volume = self._find_able(sandbox_id, Capability.VOLUMES), self.volume_images.get(mount.volume)
        there = machine.volumes.get(mount.volume)
        if there == mount.path:
            return
        if there is not None or mount.path in machine.files.mounts:
            raise Conflict(f"there is a volume at {there or mount.path} already")
        if hidden := [path for path in (*WRITABLE, *machine.files.mounts) if path.startswith(f"{mount.path}/")]:
            raise InvalidRequest(f"a volume cannot be at {mount.path}: it would hide {hidden[0]}")
        machine.files.mount(mount.path, volume.root, read_only=mount.read_only)
        machine.volumes[mount.volume] = mount.path
        volume.users.add(sandbox_id)
        volume.was_mounted = True

    async def detach(self, sandbox_id: str, volume_id: str) -> None:
        machine = self._find_able(sandbox_id, Capability.VOLUMES)
        if (path := machine.volumes.get(volume_id)) is None:
            return
        if below := [other for other in machine.files.mounts if other.startswith(f"{path}/")]:
            raise Conflict(f"{below[0]} is mounted in the volume", remedy="detach that one first")
        machine.files.unmount(path)
        self._forget_volume(machine, volume_id)

    def _forget_volume(self, machine: FakeMachine, volume_id: str) -> None:
        del machine.volumes[volume_id]
        self.volume_images.get(volume_id).users.discard(machine.id)

    def _find_able(self, sandbox_id: str, capability: Capability) -> FakeMachine:
        if capability not in self.capabilities:
            raise lacks(self.name, capability)
        return self._find(sandbox_id)

    async def destroy(self, sandbox_id: str) -> None:
        self.half_made.discard(sandbox_id)
        machine = self.machines.pop(sandbox_id, None)
        if machine is not None:
            machine.die("it was destroyed")
            for volume_id in [*machine.volumes]:
                self._forget_volume(machine, volume_id)

    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]:
        wanted = (labels or {}).items()
        return [name for name, machine in self.machines.items() if wanted <= machine.spec.labels.items()]

    async def sweep(self) -> int:
        return 0

    async def close(self) -> None:
        return None

    def lose(self, sandbox_id: str, why: str = "the fake was told to lose it") -> None:
        self.machines[sandbox_id].die(why)
