"""The processes of a cluster as they describe themselves, and as Redis knows them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from warren.stores.redis_roster_scripts import LEASE_S

__all__ = ["HEARTBEAT_S", "LEASE_S", "PROTOCOL", "RESTART_S", "Member", "Report"]

PROTOCOL: Final = 1  # coordinators and workers that speak different ones do not work together
HEARTBEAT_S: Final = 2.0
RESTART_S: Final = 60.0
"""So long a worker that was stopped in order has to come back to its sessions."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself with every heartbeat. `home` names its state directory. `ready` are the warm
    sandboxes of each environment, `tenants` how many sessions those have who have most, `pressure` is how full its
    machine is (1: full), `leaving` means that it takes nothing new. `provider` is its default provider, `providers` are
    all that it has; a worker of a version that had one provider leaves them out."""

    id: str
    address: str
    home: str
    version: str = ""
    protocol: int = PROTOCOL
    provider: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: int = 0
    claimed: int = 0
    ready: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    pressure: float = 0.0
    leaving: bool = False
    providers: tuple[str, ...] = ()

    @property
    def all_providers(self) -> tuple[str, ...]:
        return self.providers or (self.provider,)

    def encoded(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decoded(cls, text: str | bytes) -> "Report":
        """Also from a worker that knows more, or less, than this one."""
        values: dict[str, Any] = json.loads(text)
        values["providers"] = tuple(values.get("providers", ()))
        return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Member:
    """A worker. `left_s` is what is left of its lease, negative since it ran out; `draining` is an operator's wish;
    `at` where it is reached."""

    report: Report
    epoch: int
    left_s: float
    draining: bool = False
    at: str = ""

    @property
    def id(self) -> str:
        return self.report.id

    @property
    def address(self) -> str:
        return self.at or self.report.address

    @property
    def alive(self) -> bool:
        return self.left_s > 0

    @property
    def compatible(self) -> bool:
        return self.report.protocol == PROTOCOL


@dataclass(frozen=True, slots=True)
class Peer:
    """A coordinator, by its name and where workers reach it."""

    id: str
    address: str
