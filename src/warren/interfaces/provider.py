"""A way to make sandboxes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.spec import SandboxSpec


class Provider(Protocol):
    """Makes sandboxes and destroys them.

    `capabilities` says what its sandboxes can do beyond running commands and keeping files; a request for anything
    else is refused with InvalidRequest, which names the provider and the capability.
    `create` returns only when the sandbox can run a command and every required layer of isolation was read
    back from the kernel; if it fails or is cancelled it leaves nothing behind.
    `image_version` identifies what `create` makes of an image now; when the image was changed, it returns another text.
    It costs little, and raises ImageNotFound as `create` does, and Unavailable when it cannot be told now.
    `local_images` says whether its images are those of this machine, which can be built here.
    `check` raises what keeps every sandbox of this spec from being made: a missing program, runtime or image. It makes
    none, and costs little once all is there.
    `destroy` is idempotent: destroying a sandbox twice, or one that never existed, succeeds; when it
    returns, the sandbox's processes, cgroups, mounts and directories are gone.
    `list_ids` reports every sandbox this provider made in its state directory, including those from before a
    restart and those half-made; with `labels`, only those whose spec has all of them.
    `adopt` connects to a live sandbox after a restart, its commands still running; it raises SandboxNotFound for one
    that never existed and SandboxLost for one that has died.
    `sweep` destroys what dead processes have left and nobody can use: half-made sandboxes, and ephemeral ones that
    have ended; it returns how many. `close` releases everything without destroying a sandbox.
    `list_gpus` gives the ids of all graphics processors that its sandboxes may have, and of those that are free now. It
    costs little. A create that asks for more than are free raises NoCapacity at once.
    """

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def local_images(self) -> bool: ...
    async def create(self, spec: SandboxSpec) -> Sandbox: ...
    async def image_version(self, image: str) -> str: ...
    async def check(self, spec: SandboxSpec) -> None: ...
    async def adopt(self, sandbox_id: str) -> Sandbox: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]: ...
    async def sweep(self) -> int: ...
    def list_gpus(self) -> tuple[Sequence[str], Sequence[str]]: ...
    async def close(self) -> None: ...
