"""What owns the sandboxes of one host."""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Providers
from warren.model.environment import Environment
from warren.model.spec import Layer, Limits


@dataclass(frozen=True, slots=True)
class Claim:
    """A request for a sandbox of an environment, by default made by the environment's provider or the worker's first.

    Only a claim without an `image`, without other `limits` than the environment's and without graphics processors can
    be met from a pool. `gpus` None: what the environment says.
    """

    environment: str
    image: str = ""
    limits: Limits | None = None
    require: frozenset[Layer] = frozenset()
    timeout_s: float = 30.0
    tenant: str = ""
    provider: str = ""
    gpus: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    sandbox: Sandbox
    pooled: bool
    provider: str


@dataclass(frozen=True, slots=True)
class Loss:
    sandbox_id: str
    why: str


@dataclass(frozen=True, slots=True)
class PoolStats:
    """`discarded` counts sandboxes that died before a caller had them. Latencies are those of recent claims.
    `learned_burst` is how many claims came faster than sandboxes could be made, at the worst, as far as the pool
    remembers it; `claim_rate` is how many came per second in the last minute, on average."""

    ready: int = 0
    creating: int = 0
    waiting: int = 0
    target: int = 0
    learned_burst: int = 0
    claim_rate: float = 0.0
    claims: int = 0
    hits: int = 0
    misses: int = 0
    timeouts: int = 0
    creations: int = 0
    failures: int = 0
    discarded: int = 0
    latency_count: int = 0
    hit_rate: float | None = None
    latency_sum_s: float = 0.0
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    last_failure: str | None = None


@dataclass(frozen=True, slots=True)
class GuardStats:
    """What the machine has free, and what of it must stay free. `pressure`: it is close to full.
    `pool_ceiling`: how many sandboxes its pools may hold together when they grow beyond their sizes."""

    memory_free_mb: int = 0
    memory_reserve_mb: int = 0
    disk_free_mb: int = 0
    disk_reserve_mb: int = 0
    max_sandboxes: int = 0
    pressure: bool = False
    pool_ceiling: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """`pools` has the name of the environment for the provider that it gets by default, and
    `environment@provider` for any other. `destroying` includes sandboxes whose destruction failed so far. `leaks`
    counts those, and sandboxes of this worker that it does not know although they have been there for minutes. `gpus`
    counts the graphics processors that sandboxes may have; `gpus_free` are the ids of those that no sandbox has."""

    sandboxes: int = 0
    claimed: int = 0
    destroying: int = 0
    pools: Mapping[str, PoolStats] = field(default_factory=dict)
    guard: GuardStats = field(default_factory=GuardStats)
    gpus: int = 0
    gpus_free: tuple[str, ...] = ()
    leaks: int = 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "WorkerStats":
        """Also what a worker of another version wrote: unknown figures are ignored, missing ones are zero."""
        pools = {name: PoolStats(**_known(PoolStats, pool)) for name, pool in values.get("pools", {}).items()}
        guard = GuardStats(**_known(GuardStats, values.get("guard", {})))
        free = tuple(values.get("gpus_free", ()))
        return cls(**{**_known(cls, values), "pools": pools, "guard": guard, "gpus_free": free})


def _known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in kind.__dataclass_fields__}


class Worker(Protocol):
    """Owns the sandboxes of one host, and the pools of those made ahead.

    `providers` are its providers by name, the default first, with their capabilities.
    `prepare` comes before a claim for a new session. It raises ImageBuilding while the image of such a claim is missing
    and being built, which it starts if need be; an outdated image is made anew behind it. It costs hardly anything.
    `image_state` says of an environment's image: ready, missing, outdated or building; None if nobody can tell.
    `claim` returns a live sandbox that nobody has used, and never the same one twice. Waiting claims are served first
    come, first served, per provider and environment, and tenants in turn; a claim that is not served in time raises
    NoCapacity with its position in the queue. A claim that fails or is cancelled leaves nothing behind.
    It raises InvalidRequest for a provider that the worker does not have or that lacks a capability which the
    environment needs, MachineFull when memory or disk of the host run out, and what the provider's `create` raises.
    `check` raises Unavailable while no sandbox of the default environment can be made, with the reason.
    `sandbox` returns a claimed sandbox, also one claimed before a restart: SandboxNotFound, SandboxLost.
    `destroy` is idempotent. `recover`, called once before the first claim, takes over from an earlier worker: it
    connects to the sandboxes in `known` and destroys every other one that this worker made; for those that cannot be
    taken over it returns the reasons.
    `losses` reports claimed sandboxes that have died by themselves, each once; it has one reader.
    `drain` stops making sandboxes ahead and destroys those of the pools; claims then raise Unavailable. `close`
    releases everything without destroying a claimed sandbox.
    """

    @property
    def name(self) -> str: ...
    @property
    def providers(self) -> Providers: ...
    async def prepare(self, environment: str, image: str = "", provider: str = "") -> None: ...
    async def image_state(self, environment: Environment) -> str | None: ...
    async def claim(self, claim: Claim) -> Claimed: ...
    async def check(self) -> None: ...
    async def sandbox(self, sandbox_id: str) -> Sandbox: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def recover(self, known: Collection[str]) -> dict[str, str]: ...
    def losses(self) -> AsyncIterator[Loss]: ...
    def stats(self) -> WorkerStats: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
