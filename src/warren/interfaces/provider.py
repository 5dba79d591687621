"""A way to make sandboxes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from warren.interfaces.disks import SavedDisk, SavedDisks
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.volumes import VolumeImages
from warren.model.capability import Capability
from warren.model.spec import SandboxSpec
from warren.model.volume import VolumeMount


class Provider(Protocol):
    """Makes sandboxes and destroys them.

    `capabilities`: what its sandboxes can do beyond running commands and keeping files. There may be fewer as soon as
    the provider has looked closely at its machine. A request for anything else is
    refused with an InvalidRequest that names the provider and the capability.
    `create` returns only when the sandbox can run a command and every required layer of isolation was read back from
    the kernel. If it fails or is cancelled, it leaves nothing behind, except what it could not remove because something
    it needs for that is away, such as an engine.
    `half_made`: the ids of what a failed `create` has left in this way, until a `destroy` has removed it. The caller of
    `create` is to destroy them, again and again until that succeeds.
    `image_version` identifies what `create` would use for an image now: the text changes when the image does. It is
    cheap. It raises ImageNotFound as `create` does, and Unavailable when the version cannot be determined now.
    `load_image` sees to it that `create` finds the image at once, if copying it takes long: it starts that, and raises
    ImageBuilding until it is done. It is cheap otherwise, and does nothing about a missing image.
    `local_images`: whether its images are on this machine and can be built here.
    `check` raises whatever keeps all sandboxes of this spec from being made: a missing program, runtime or image. It
    makes no sandbox, and is cheap once everything is there.
    `destroy` is idempotent: destroying a sandbox twice, or one that never existed, succeeds. When it returns, the
    sandbox's processes, cgroups, mounts and directories are gone.
    `list_ids` returns every sandbox that this provider made in its state directory, including those from before a
    restart and half-made ones; with `labels`, only those whose spec has all of them.
    `adopt` connects to a live sandbox after a restart; its commands keep running. It raises SandboxNotFound for one
    that never existed and SandboxLost for one that has died. It thaws a frozen one; with `paused_s` the sandbox is told
    how long it stood still, as `Sandbox.note_pause` does, before anything in it runs on.
    `freeze` stops everything that runs in a sandbox, its agent too, and `thaw` lets it run on, each at once and without
    asking the agent. Both are idempotent, raise SandboxNotFound and SandboxLost as `adopt` does, and need the
    capability PAUSE. Some time after `freeze` the memory that the kernel can take from the sandbox is free. A frozen
    sandbox can be destroyed, and stays frozen when this process ends.
    `save_disk` saves the disk of a live sandbox, frozen or not, under a new name in `saved_disks`, as it was at one
    moment of the call: the sandbox stands still only while it is copied. A failed or cancelled call keeps nothing, and
    leaves the sandbox frozen or running, as it was. It raises Conflict for a name that is taken, and NoSpace. Without
    `hashed` it takes no hash of the content, for a disk that never leaves the machine. Needs the capability SNAPSHOTS.
    `create` with `spec.disk` makes a sandbox whose disk begins as a copy of a saved one. It
    raises NotFound if that is not here, and InvalidRequest if the spec asks for a smaller disk, or for a writable root
    and the saved disk is of a sandbox without one, or the other way round.
    `attach` mounts a volume of `volume_images` in a live sandbox, at a directory that is there; it follows no link.
    Everything in the volume belongs to the users of the same numbers inside, and what several sandboxes have mounted,
    each sees at once. A volume is at one path of a sandbox at most, and hides no other mount. Attaching it again at the
    same path changes nothing. `detach` takes a volume away; what programs have open stays open for them. It is
    idempotent. Both need the capability VOLUMES, and raise SandboxNotFound and SandboxLost as `adopt` does, Conflict,
    and `attach` NotFound for a volume that is not here, FileNotFound and InvalidPath for a path that does not lead to a
    directory, and NoSpace when the machine's disk is nearly full. A sandbox that ends leaves its volumes.
    `sweep` destroys what dead processes have left and nobody can use: half-made sandboxes, and ephemeral ones that have
    ended. It returns how many. `close` releases everything without destroying a sandbox.
    `list_gpus` returns the ids of all graphics processors that its sandboxes may have, and of those that are free now.
    It is cheap. A create that asks for more than are free raises NoCapacity at once.
    """

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def local_images(self) -> bool: ...
    @property
    def half_made(self) -> Collection[str]: ...
    async def create(self, spec: SandboxSpec) -> Sandbox: ...
    async def image_version(self, image: str) -> str: ...
    async def load_image(self, image: str) -> None: ...
    async def check(self, spec: SandboxSpec) -> None: ...
    @property
    def saved_disks(self) -> SavedDisks: ...
    async def adopt(self, sandbox_id: str, *, paused_s: float | None = None) -> Sandbox: ...
    async def freeze(self, sandbox_id: str) -> None: ...
    async def thaw(self, sandbox_id: str) -> None: ...
    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk: ...
    @property
    def volume_images(self) -> VolumeImages: ...
    async def attach(self, sandbox_id: str, mount: VolumeMount) -> None: ...
    async def detach(self, sandbox_id: str, volume_id: str) -> None: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]: ...
    async def sweep(self) -> int: ...
    def list_gpus(self) -> tuple[Sequence[str], Sequence[str]]: ...
    async def close(self) -> None: ...
