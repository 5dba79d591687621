"""What owns the sandboxes of one host."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from warren.interfaces.sandbox import Sandbox
from warren.model.spec import Layer, Limits


@dataclass(frozen=True, slots=True)
class Claim:
    """A sandbox that is wanted: one of an environment, perhaps with another image or other limits.

    Only a claim without `image` and `limits` of its own can be met from the pool.
    """

    environment: str
    image: str = ""
    limits: Limits | None = None
    require: frozenset[Layer] = frozenset()
    timeout_s: float = 30.0
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    sandbox: Sandbox
    pooled: bool


@dataclass(frozen=True, slots=True)
class Loss:
    sandbox_id: str
    why: str


class Worker(Protocol):
    """Owns the sandboxes of one host, and the pools of those made ahead.

    `claim` gives a live sandbox that nobody has used, and never the same one twice. Claims that have to
    wait are served first come, first served, per environment, and tenants in turn; one that is not served in
    time raises NoCapacity with its place in the queue. A claim that fails or is cancelled leaves nothing behind.
    It raises MachineFull when memory or disk of the host run out, and what the provider's `create` raises.
    `sandbox` gives a sandbox that was claimed, also before a restart of the worker: SandboxNotFound, SandboxLost.
    `destroy` is idempotent. `recover`, called once before anything is claimed, takes over from an
    earlier worker: it connects to the sandboxes in `known` and destroys every other one that this worker made; for
    those that cannot be had any more it says why.
    `losses` reports claimed sandboxes that have died by themselves, each once; one reader.
    `stats` are figures for people and machines: sandboxes, and per environment the pool's counts.
    `drain` stops making sandboxes ahead and destroys those of the pools; claims then raise Unavailable. `close` lets go
    of everything without destroying a claimed sandbox.
    """

    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    async def claim(self, claim: Claim) -> Claimed: ...
    async def sandbox(self, sandbox_id: str) -> Sandbox: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def recover(self, known: Collection[str]) -> dict[str, str]: ...
    def losses(self) -> AsyncIterator[Loss]: ...
    def stats(self) -> dict[str, Any]: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
