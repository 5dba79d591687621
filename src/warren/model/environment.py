"""An environment in the registry: a named recipe for sandboxes."""

from dataclasses import dataclass, field
from typing import Final

from warren.model.capability import Capability
from warren.model.code import find_language
from warren.model.errors import InvalidRequest
from warren.model.gpus import check_gpus
from warren.model.image import Recipe
from warren.model.metrics import DEFAULT_ALERTS, AlertThresholds
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.policy import Policy
from warren.model.secrets import check_names
from warren.model.session import OnIdle, check_seconds
from warren.model.session_log import read_level
from warren.model.snapshot import check_snapshot_name
from warren.model.spec import IoLimits, Limits, check_env, check_image_name
from warren.model.volume import VolumeWish, check_mounts

MAX_POOLED = 5000
NO_POLICY = Policy()
USER_HOMES: Final = {"user": "/home/user"}
"""The names that an environment may give its user, with their homes."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many sandboxes are made ahead: `size` in quiet times, up to `max` after bursts of callers.

    Below `min` the pool is refilled at full speed even while callers are busy, and it does not shrink below `min` when
    memory is short.
    """

    size: int = 5
    min: int = 2
    max: int = 100

    def __post_init__(self) -> None:
        values = (self.min, self.size, self.max)
        if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
            raise InvalidRequest("the pool's size, min and max must be whole numbers")
        if not 0 <= self.min <= self.size <= self.max <= MAX_POOLED:
            raise InvalidRequest(
                f"the pool has min {self.min}, size {self.size}, max {self.max}",
                remedy=f"they must rise in this order, from 0 to {MAX_POOLED}",
            )


@dataclass(frozen=True, slots=True)
class Environment:
    """A recipe. Requests cannot ask for `writable_root` and `sudo`, which are explained at SandboxSpec.

    `pool`, `idle_timeout_s`, `max_lifetime_s`, `on_idle`, `max_paused_s`: override the server's settings.
    `policy`: the commands that its sessions may run.
    `provider`: the default provider of its sessions; empty for the server's default. `needs`: what it must be capable
    of.
    `io`: how fast its sandboxes may use their disks.
    `network`: what its sessions may reach, unless they ask for something else.
    `gpus`: the graphics processors that each of its sandboxes gets for itself: ids, or `any`.
    `contexts`: the languages whose default code context is started ahead of time, in sandboxes of the pool.
    `user`: another name for the sandbox user; empty for none.
    `recipe`: how its image is made, if its file says so.
    `snapshot`: the name of the snapshot that its sessions start from: the session's tenant's, else a public one.
    `volumes`: the named volumes that each session gets; their names may have placeholders (model/volume.py).
    `alerts`: the percentages of its limits at which an event is published.
    `logs`: how much is kept, at least, of what its sessions do; empty for what the server says.
    """

    name: str
    image: str
    description: str = ""
    limits: Limits = Limits()
    env: dict[str, str] = field(default_factory=dict)
    pool: PoolSize | None = None
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    policy: Policy = NO_POLICY
    provider: str = ""
    io: IoLimits = field(default_factory=IoLimits)
    needs: frozenset[Capability] = frozenset()
    network: NetworkRules = NO_NETWORK
    secrets: tuple[str, ...] = ()
    writable_root: bool = False
    sudo: bool = False
    gpus: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    user: str = ""
    recipe: Recipe | None = None
    alerts: AlertThresholds = DEFAULT_ALERTS
    on_idle: OnIdle | None = None
    max_paused_s: float | None = None
    snapshot: str = ""
    logs: str = ""
    volumes: tuple[VolumeWish, ...] = ()

    def __post_init__(self) -> None:
        check_image_name(self.image)
        check_names(self.secrets)
        check_gpus(self.gpus)
        read_level(self.logs)
        if self.user and self.user not in USER_HOMES:
            raise InvalidRequest(f"user is {self.user[:80]!r}, it can be: {', '.join(USER_HOMES)}")
        if self.user and not (self.writable_root and self.sudo):
            raise InvalidRequest("the key user needs a writable root and sudo", remedy="set root: writable, sudo: true")
        if self.snapshot:
            check_snapshot_name(self.snapshot)
        check_mounts(self.volumes)
        for language in self.contexts:
            find_language(language)
        for name, value in self.env.items():
            check_env(name, value)
        for name in ("idle_timeout_s", "max_lifetime_s", "max_paused_s"):
            if (seconds := getattr(self, name)) is not None:
                check_seconds(name, seconds)

    @property
    def home(self) -> str:
        """The home directory of `user`; empty if there is none."""
        return USER_HOMES.get(self.user, "")

    @property
    def user_env(self) -> dict[str, str]:
        """The variables that tell a command which user it runs as."""
        return {"HOME": self.home, "USER": self.user, "LOGNAME": self.user} if self.user else {}
