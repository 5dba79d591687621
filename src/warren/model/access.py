"""Callers, their scopes and their quotas.

A key belongs to a tenant, as do sessions, processes and files. A caller is the verified identity of one request: its
tenant, its key (or token), and the scopes of that key. A quota bounds a tenant, or one key of a tenant; None means no
bound.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from warren.model.egress import Ceiling
from warren.model.errors import InvalidRequest
from warren.model.session import DEFAULT_TENANT, LONGEST_S
from warren.model.spec import Limits
from warren.model.suggestions import suggest

ANY_TENANT: Final = "*"  # the record of this name applies to every tenant without a record
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIMITS: Final = frozenset(each.name for each in fields(Limits))


class Scope(StrEnum):
    """READ: look at sessions, processes and figures. EXEC: run commands, terminals. FILES: read and write files.
    SESSIONS: create, change and end sessions, and the webhooks that tell of them. AUDIT: read the audit record and the
    usage of all tenants, and nothing else. METRICS: read /metrics, which counts all tenants together, and nothing else.
    ADMIN: the keys, tenants, audit and usage of all; it contains the others."""

    READ = "read"
    EXEC = "exec"
    FILES = "files"
    SESSIONS = "sessions"
    AUDIT = "audit"
    METRICS = "metrics"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(Scope)
OPERATORS_SCOPES: Final = frozenset(
    {Scope.ADMIN, Scope.AUDIT, Scope.METRICS}
)  # these reach beyond the tenant of the key
USUAL_SCOPES: Final = ALL_SCOPES - OPERATORS_SCOPES


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant, or one key, may have at once or within a period.

    `environments`: the names that sessions may use; empty allows all. `limits`: the most that one session may ask for,
    by the names of Limits. `egress`: the most network access that one session may ask for, see Ceiling. `gpus`:
    graphics processors of all sessions together. `artifacts_mb`: the size of all artifacts of the tenant; for a key, of
    those that its sessions saved. `snapshots_mb`: the same of snapshots. `sessions` are those that are not paused,
    `paused_sessions` those that are. `logs_mb`: what the logs of all sessions of the tenant take, for a key
    too. `volumes`, `volumes_mb`: the number of the tenant's volumes, and the sum of their sizes.
    """

    sessions: int | None = None
    disk_mb: int | None = None
    creates_per_minute: int | None = None
    requests_per_minute: int | None = None
    exec_seconds_per_day: int | None = None
    bytes_out_per_day: int | None = None
    egress_bytes_per_day: int | None = None
    egress_connections: int | None = None
    egress_mbps: int | None = None
    max_lifetime_s: float | None = None
    environments: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    egress: tuple[str, ...] = ()
    gpus: int | None = None
    artifacts_mb: int | None = None
    paused_sessions: int | None = None
    snapshots_mb: int | None = None
    logs_mb: int | None = None
    volumes: int | None = None
    volumes_mb: int | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53
            ):
                raise InvalidRequest(f"the quota {name} is {value!r}, it must be a whole number, 0 or more")
        if self.max_lifetime_s is not None and not (
            _is_number(self.max_lifetime_s) and 1 <= self.max_lifetime_s <= LONGEST_S
        ):
            raise InvalidRequest(f"the quota max_lifetime_s must be a number between 1 and {LONGEST_S:.0f}")
        if not all(isinstance(name, str) and name for name in self.environments):
            raise InvalidRequest("the quota environments must be a list of names")
        Ceiling.read(self.egress)
        if not isinstance(self.limits, Mapping):
            raise InvalidRequest("the quota limits must say how much of what", remedy='such as {"memory_mb": 1024}')
        for name, most in self.limits.items():
            if name not in _LIMITS:
                known = sorted(_LIMITS)
                raise InvalidRequest(
                    f"there is no limit {name!r} for the quota limits.{name}",
                    remedy=f"{suggest(name, known)}there are: {', '.join(known)}",
                )
            if not _is_number(most) or most <= 0:
                raise InvalidRequest(f"the quota limits.{name} is {most!r}, it must be a number above 0")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Quota":
        unknown = set(values) - {each.name for each in fields(cls)}
        if unknown:
            raise InvalidRequest(
                f"there is no quota {min(unknown)!r}", remedy=f"there are: {', '.join(e.name for e in fields(cls))}"
            )
        environments = values.get("environments", ())
        if not isinstance(environments, list | tuple):
            raise InvalidRequest("the quota environments must be a list of names")
        egress = Ceiling.read(values.get("egress", ())).texts
        return cls(**{**values, "environments": tuple(environments), "egress": egress})

    def as_mapping(self) -> dict[str, Any]:
        """Returns only the bounds that are set."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), {})}


_COUNTS: Final = (
    "sessions",
    "disk_mb",
    "creates_per_minute",
    "requests_per_minute",
    "exec_seconds_per_day",
    "bytes_out_per_day",
    "egress_bytes_per_day",
    "egress_connections",
    "egress_mbps",
    "gpus",
    "artifacts_mb",
    "paused_sessions",
    "snapshots_mb",
    "logs_mb",
    "volumes",
    "volumes_mb",
)
NO_QUOTA: Final = Quota()


@dataclass(frozen=True)
class Caller:
    """A verified identity. `key_id` names its key or token. `quota` is the quota of the tenant, `key_quota` that of the
    key."""

    tenant: str = DEFAULT_TENANT
    key_id: str = ""
    scopes: frozenset[Scope] = ALL_SCOPES
    quota: Quota = NO_QUOTA
    key_quota: Quota = NO_QUOTA

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def with_quota(self, quota: Quota) -> "Caller":
        return replace(self, quota=quota)

    @cached_property
    def quota_levels(self) -> tuple[tuple[str, Quota], ...]:
        """Returns the quotas that apply, each with its owner. The key comes first: a request that the key's quota
        refuses does not count for the tenant and its other keys."""
        return (f"key:{self.key_id}", self.key_quota), (f"tenant:{self.tenant}", self.quota)

    @cached_property
    def bounds(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """Returns the bounds of each count by its name, as pairs of owner and maximum."""
        levels = self.quota_levels
        return {
            name: tuple((whose, most) for whose, quota in levels if (most := getattr(quota, name)) is not None)
            for name in _COUNTS
        }

    @cached_property
    def as_json(self) -> bytes:
        """The caller as the processes of a cluster tell each other, made once: the same caller asks again and again."""
        values: dict[str, Any] = {"tenant": self.tenant, "key_id": self.key_id, "scopes": sorted(self.scopes)}
        for name, quota in (("quota", self.quota), ("key_quota", self.key_quota)):
            if mapping := quota.as_mapping():
                values[name] = mapping
        return json.dumps(values, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class OldSecret:
    """The secret that a key had before it was rotated; it opens as well until that wall-clock time."""

    salt: str
    hashed: str
    until: float


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is stored, with a salted hash of its secret. Times are wall-clock times."""

    id: str
    name: str
    tenant: str
    scopes: frozenset[Scope]
    salt: str
    hashed: str
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None
    quota: Quota = NO_QUOTA
    old: OldSecret | None = None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_tenant(name: str) -> str:
    if not _TENANT.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot be a tenant's name", remedy="1 to 64 letters, digits, dots, dashes or underscores"
        )
    return name


def read_scopes(names: Any) -> frozenset[Scope]:
    """Reads names of scopes from a list, or from text separated by spaces or commas. Raises InvalidRequest."""
    given = re.split(r"[\s,]+", names.strip()) if isinstance(names, str) else list(names)
    try:
        return frozenset(Scope(name) for name in given if name)
    except ValueError:
        raise InvalidRequest(
            f"unknown scope in {', '.join(map(str, given))[:200]!r}", remedy=f"there are: {', '.join(Scope)}"
        ) from None
