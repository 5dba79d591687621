"""A way to make sandboxes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from warren.interfaces.sandbox import Sandbox
from warren.model.spec import SandboxSpec


class Provider(Protocol):
    """Makes sandboxes and unmakes them.

    `create` returns only when the sandbox can run a command and every layer of isolation that is
    required was read back from the kernel; if it fails or is cancelled it leaves nothing behind.
    `destroy` is idempotent: destroying a sandbox twice, or one that never was, succeeds; when it
    returns, the sandbox's processes, cgroups, mounts and directories are gone. `list_ids` reports
    every sandbox this provider made in its state directory, also those from before a restart and
    those half-made; with `labels` only those whose spec has all of these. `adopt` connects to a live
    one after a restart, its commands still running; it raises SandboxNotFound for one that never was
    and SandboxLost for one that has died.
    `sweep` destroys what processes that are gone have left and nobody can use: sandboxes half-made and
    ephemeral ones that have ended; it says how many. `close` lets go of everything without destroying a sandbox.
    """

    @property
    def name(self) -> str: ...
    async def create(self, spec: SandboxSpec) -> Sandbox: ...
    async def adopt(self, sandbox_id: str) -> Sandbox: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def list_ids(self, labels: Mapping[str, str] | None = None) -> Sequence[str]: ...
    async def sweep(self) -> int: ...
    async def close(self) -> None: ...
