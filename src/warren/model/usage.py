"""The usage of a tenant: numbers that can be added."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Nothing is ever negative. `cpu_s`: processor time. `memory_mb_s`: reserved, not touched memory, the limit of each
    sandbox in MB times the seconds it lived. `session_s`: the time that sessions lived. `exec_s`: the time that
    commands ran. `bytes_in`: sent to sandboxes. `bytes_out`: received from them. `egress_bytes`: sent and received by
    sandboxes over their networks."""

    sessions: int = 0
    commands: int = 0
    cpu_s: float = 0.0
    memory_mb_s: float = 0.0
    session_s: float = 0.0
    exec_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    egress_bytes: int = 0
    egress_connections: int = 0
    egress_refused: int = 0

    def __post_init__(self) -> None:
        total = self.cpu_s + self.memory_mb_s + self.session_s + self.exec_s
        least = min(self.sessions, self.commands, self.bytes_in, self.bytes_out, self.egress_bytes)
        least = min(least, self.egress_connections, self.egress_refused)
        if math.isfinite(total) and least >= 0 and min(self.cpu_s, self.memory_mb_s, self.session_s, self.exec_s) >= 0:
            return
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"the usage {each.name} is {value!r}, it must be a number, 0 or more")

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            self.sessions + other.sessions,
            self.commands + other.commands,
            self.cpu_s + other.cpu_s,
            self.memory_mb_s + other.memory_mb_s,
            self.session_s + other.session_s,
            self.exec_s + other.exec_s,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.egress_bytes + other.egress_bytes,
            self.egress_connections + other.egress_connections,
            self.egress_refused + other.egress_refused,
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Usage":
        """Missing values count as 0 and unknown ones are skipped: another version may have written them."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What a tenant used on one day (UTC)."""

    day: date
    tenant: str
    usage: Usage
