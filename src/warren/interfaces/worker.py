"""The owner of the sandboxes of one host."""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from warren.interfaces.disks import SavedDisk, SavedDisks
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.volumes import VolumeImages
from warren.model.capability import Providers
from warren.model.environment import Environment
from warren.model.spec import Layer, Limits
from warren.model.volume import VolumeMount


@dataclass(frozen=True, slots=True)
class Claim:
    """A request for a sandbox of an environment. `provider` is by default that of the environment, else the worker's
    first.

    A pool can serve only a claim without an `image`, with the environment's own `limits`, and without graphics
    processors. `gpus` None means those of the environment. `disk` is the name of a saved disk of the provider, from
    which the sandbox's own begins.
    """

    environment: str
    image: str = ""
    limits: Limits | None = None
    require: frozenset[Layer] = frozenset()
    timeout_s: float = 30.0
    tenant: str = ""
    provider: str = ""
    gpus: tuple[str, ...] | None = None
    disk: str = ""


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
    """`target`: how many should be ready now; 0 while nobody claims, less than `size` while the machine is nearly full.
    `shortage`: why fewer are ready than in calm times (the reasons are in worker/pool_shortage.py), or None.
    `discarded`: sandboxes that died before a caller had them. Latencies are those of recent claims. `learned_burst`:
    the most claims that came faster than sandboxes could be made, as far as the pool remembers. `claim_rate`: claims
    per second, averaged over the last minute."""

    ready: int = 0
    creating: int = 0
    waiting: int = 0
    target: int = 0
    size: int = 0
    shortage: str | None = None
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
    """What the machine has free, and what of that must stay free. `pressure`: the machine is nearly full.
    `pool_ceiling`: the most sandboxes that its pools may hold together when they grow beyond their sizes."""

    memory_free_mb: int = 0
    memory_reserve_mb: int = 0
    disk_free_mb: int = 0
    disk_reserve_mb: int = 0
    max_sandboxes: int = 0
    pressure: bool = False
    pool_ceiling: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """`pools`: by the environment's name, for its default provider, and by `environment@provider` for others.
    `destroying`: includes sandboxes that could not be destroyed so far. `leaks`: counts those, and sandboxes of this
    worker that it has not known for minutes. `gpus`: the number of graphics processors for sandboxes. `gpus_free`: the
    ids of those that no sandbox has."""

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
        """Reads figures, also those of a worker of another version: unknown ones are ignored, missing ones are zero."""
        pools = {name: PoolStats(**_known(PoolStats, pool)) for name, pool in values.get("pools", {}).items()}
        guard = GuardStats(**_known(GuardStats, values.get("guard", {})))
        free = tuple(values.get("gpus_free", ()))
        return cls(**{**_known(cls, values), "pools": pools, "guard": guard, "gpus_free": free})


def _known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in kind.__dataclass_fields__}


class Worker(Protocol):
    """Owns the sandboxes of one host, and the pools of sandboxes made ahead.

    `providers`: its providers by name, the default first, with their capabilities.
    `prepare` is called before the claim for a new session, and returns the image that the claim is to name: another one
    than the caller has named if it is pulled for the tenant. It raises ImageBuilding while the image of such a claim is
    being built, pulled or loaded, and starts that if need be. An outdated image is rebuilt in the background. It is
    cheap.
    `image_state` returns the state of an environment's image: ready, missing, outdated or building; None if it is
    unknown.
    `claim` returns a live sandbox that nobody has used, and never the same one twice. For each provider and
    environment, waiting claims are served in their order, and tenants in turn. A claim that is not served in time
    raises NoCapacity with its position in the queue. A claim that fails or is cancelled leaves nothing behind. It
    raises InvalidRequest if the worker does not have the provider, or the provider lacks a capability that the
    environment needs; MachineFull when memory or disk of the host run out; and whatever the provider's `create` raises.
    `check` raises Unavailable, with the reason, while no sandbox of the default environment can be made.
    `sandbox` returns a claimed sandbox, also one claimed before a restart. It raises SandboxNotFound or SandboxLost,
    and SessionPaused for one that is frozen and was not connected since a restart: only `thaw` connects to that.
    `destroy` is idempotent. `recover`, called once before the first claim, takes over from an earlier worker: it
    connects to the sandboxes in `known`, destroys all others that this worker made, and returns why some could not be
    taken over. Those in `frozen`, a part of `known`, are frozen and not connected.
    `freeze` and `thaw` are the provider's, for claimed sandboxes; `thaw` first tells the sandbox how long it stood
    still. `save_disk` saves the disk of a claimed sandbox, and `saved_disks` returns what a provider has saved, by
    default the first.
    `attach` and `detach` are the provider's, for claimed sandboxes; `volume_images` are those of the first provider
    that has volumes.
    `losses` yields claimed sandboxes that died by themselves, each once; it has one reader.
    `drain` stops making sandboxes ahead and destroys those of the pools; claims then raise Unavailable. `close`
    releases everything without destroying a claimed sandbox.
    """

    @property
    def name(self) -> str: ...
    @property
    def providers(self) -> Providers: ...
    async def prepare(self, environment: str, image: str = "", provider: str = "", tenant: str = "") -> str: ...
    async def image_state(self, environment: Environment) -> str | None: ...
    async def claim(self, claim: Claim) -> Claimed: ...
    async def check(self) -> None: ...
    async def sandbox(self, sandbox_id: str) -> Sandbox: ...
    async def destroy(self, sandbox_id: str) -> None: ...
    async def freeze(self, sandbox_id: str) -> None: ...
    async def thaw(self, sandbox_id: str, paused_s: float) -> Sandbox: ...
    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk: ...
    def saved_disks(self, provider: str = "") -> SavedDisks: ...
    async def attach(self, sandbox_id: str, mount: VolumeMount) -> None: ...
    async def detach(self, sandbox_id: str, volume_id: str) -> None: ...
    @property
    def volume_images(self) -> VolumeImages: ...
    async def recover(self, known: Collection[str], frozen: Collection[str] = ()) -> dict[str, str]: ...
    def losses(self) -> AsyncIterator[Loss]: ...
    def stats(self) -> WorkerStats: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
