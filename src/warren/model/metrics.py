"""Metrics: what a session uses now, and the alerts that they cause."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final

from warren.model.errors import InvalidRequest
from warren.model.spec import MIB, Limits


@dataclass(frozen=True, slots=True)
class SandboxMetrics:
    """One measurement, at the wall-clock time `at`.

    `cpu_s`: processor time used so far. `cpus`: the cores used on average since the previous measurement (0 in the
    first). `memory_bytes`: without the cache of files (`cache_bytes`), which the kernel takes back when memory is
    short. `processes`: includes threads. Network bytes are counted where the sandbox's rules are applied; 0 if it has
    no network.
    """

    at: float = 0.0
    cpu_s: float = 0.0
    cpus: float = 0.0
    memory_bytes: int = 0
    cache_bytes: int = 0
    disk_bytes: int = 0
    processes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "SandboxMetrics":
        """Reads metrics, also those of a worker of another version: unknown ones are ignored, missing ones are zero."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})


@dataclass(frozen=True, slots=True)
class MetricLimits:
    """The most that a session may use, in the units of its metrics."""

    cpus: float
    memory_bytes: int
    disk_bytes: int
    processes: int

    @classmethod
    def of(cls, limits: Limits | None) -> "MetricLimits":
        limits = limits or Limits()
        return cls(limits.cpus, limits.memory_mb * MIB, limits.disk_mb * MIB, limits.pids)


@dataclass(frozen=True, slots=True)
class LatestMetrics:
    """The limits of a session and its latest metrics."""

    limits: MetricLimits
    now: SandboxMetrics

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LatestMetrics":
        limits = {each.name: values["limits"].get(each.name, 0) for each in fields(MetricLimits)}
        return cls(MetricLimits(**limits), SandboxMetrics.from_mapping(values["now"]))


class Resource(StrEnum):
    """The subject of an alert."""

    MEMORY = "memory"
    DISK = "disk"
    PROCESSES = "processes"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class AlertThresholds:
    """The percentages of the limits at which an event `resource.high` is published; 0 means never."""

    memory: float = 90
    disk: float = 90
    processes: float = 90
    cpu: float = 0

    def __post_init__(self) -> None:
        for each in Resource:
            value = getattr(self, each)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
                raise InvalidRequest(
                    f"alerts.{each} is {value!r}", remedy="it is a percentage of the limit from 1 to 100, or off"
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "AlertThresholds":
        """Reads thresholds. `off` means never; YAML reads it as false."""
        return cls(**{name: 0 if value is False or value == "off" else value for name, value in values.items()})


DEFAULT_ALERTS: Final = AlertThresholds()


def used_and_limit(metrics: SandboxMetrics, limits: MetricLimits, resource: Resource) -> tuple[float, float]:
    match resource:
        case Resource.MEMORY:
            return metrics.memory_bytes, limits.memory_bytes
        case Resource.DISK:
            return metrics.disk_bytes, limits.disk_bytes
        case Resource.PROCESSES:
            return metrics.processes, limits.processes
        case Resource.CPU:
            return metrics.cpus, limits.cpus
