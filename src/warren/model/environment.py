"""A named recipe for sandboxes, as the registry has it."""

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
from warren.model.session import check_seconds
from warren.model.spec import IoLimits, Limits, check_env, check_image_name

MOST_POOLED = 5000
NO_POLICY = Policy()
USER_HOMES: Final = {"user": "/home/user"}
"""The names that an environment may give its user, with their homes."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many sandboxes are made ahead: `size` in quiet times, up to `max` where bursts of callers have come.

    Below `min` the pool is refilled at full speed also while callers are busy, and it never shrinks below
    it when memory is short.
    """

    size: int = 5
    min: int = 2
    max: int = 100

    def __post_init__(self) -> None:
        values = (self.min, self.size, self.max)
        if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
            raise InvalidRequest("the pool's size, min and max must be whole numbers")
        if not 0 <= self.min <= self.size <= self.max <= MOST_POOLED:
            raise InvalidRequest(
                f"the pool has min {self.min}, size {self.size}, max {self.max}",
                remedy=f"they must rise in this order, from 0 to {MOST_POOLED}",
            )


@dataclass(frozen=True, slots=True)
class Environment:
    """`pool`, `idle_timeout_s` and `max_lifetime_s` of an environment win over the server's settings. `policy` says
    which commands its sessions may run. `provider` is the one that makes its sandboxes unless the session names
    another; empty: the server's default. `io` says how fast its sandboxes may use their disks. `needs` are the
    capabilities that the provider must have. `network` is what its sessions may reach unless they ask for something
    else. `writable_root` and `sudo` are those of SandboxSpec; no request can ask for them. `gpus` are the graphics
    processors that each of its sandboxes has for itself: ids, or `any`. `contexts` are the languages whose default
    code context is started in a sandbox that is made ahead, before anybody gets it. `user` is another name for the
    sandbox user; empty: none. `recipe` is how its image is made, if its file says that. `alerts` are
    the shares of its limits from which on an event is published."""

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

    def __post_init__(self) -> None:
        check_image_name(self.image)
        check_names(self.secrets)
        check_gpus(self.gpus)
        if self.user and self.user not in USER_HOMES:
            raise InvalidRequest(f"user is {self.user[:80]!r}, it can be: {', '.join(USER_HOMES)}")
        if self.user and not (self.writable_root and self.sudo):
            raise InvalidRequest("the key user needs a writable root and sudo", remedy="set root: writable, sudo: true")
        for language in self.contexts:
            find_language(language)
        for name, value in self.env.items():
            check_env(name, value)
        for name in ("idle_timeout_s", "max_lifetime_s"):
            if (seconds := getattr(self, name)) is not None:
                check_seconds(name, seconds)

    @property
    def home(self) -> str:
        """The home of the user that it names; empty if it names none."""
        return USER_HOMES.get(self.user, "")

    @property
    def user_env(self) -> dict[str, str]:
        """The variables that tell a command which user that is."""
        return {"HOME": self.home, "USER": self.user, "LOGNAME": self.user} if self.user else {}
