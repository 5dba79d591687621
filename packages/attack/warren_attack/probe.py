"""Probes, of which an attack consists, and their results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar


class Group(StrEnum):
    ESCAPE = "escape"
    KERNEL = "kernel"
    AGENT = "agent tampering"
    HOSTILE_AGENT = "hostile agent"
    LEAKS = "leaks"
    NETWORK = "network"
    EGRESS = "egress"
    LIMITS = "limits"
    LIFECYCLE = "lifecycle"
    FAIRNESS = "fairness"
    ROOT = "root inside"
    API_KEYS = "api keys and ids"
    API_INPUT = "api input"
    API_LOAD = "api load"
    API_TENANTS = "api tenants"
    API_PREVIEWS = "api previews"


class ProbeVerdict(StrEnum):
    """UNDECIDED is a failure: only what was seen to hold counts as contained."""

    CONTAINED = "contained"
    GOT_THROUGH = "GOT THROUGH"
    NOT_APPLICABLE = "not applicable"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    verdict: ProbeVerdict
    evidence: str


class Target(Protocol):
    """What is attacked: a sandbox, or a server."""

    async def usable(self) -> str:
        """Returns why it is of no use any more; nothing if it can be used."""

    async def renew(self) -> None:
        """Replaces what is of no use any more, where that can be done."""


class Inside(Target, Protocol):
    """A sandbox in which attacks of `inside/` can be run."""

    async def inside(self, attack: str, **arguments: Any) -> ProbeResult:
        """Runs an attack, `module:function`, and returns its own verdict; UNDECIDED if it gave none."""


T = TypeVar("T", bound=Target)
T_contra = TypeVar("T_contra", bound=Target, contravariant=True)


@dataclass(frozen=True, slots=True)
class Probe(Generic[T_contra]):
    """One thing to try. `attack` tries it on a target and returns what came of it."""

    id: str
    group: Group
    tries: str
    attack: Callable[[T_contra], Awaitable[ProbeResult]]


@dataclass(frozen=True, slots=True)
class Finding:
    probe: Probe[Any]
    outcome: ProbeResult
    seconds: float

    @property
    def failed(self) -> bool:
        return self.outcome.verdict in (ProbeVerdict.GOT_THROUGH, ProbeVerdict.UNDECIDED)


def contained(evidence: str) -> ProbeResult:
    return ProbeResult(ProbeVerdict.CONTAINED, evidence)


def got_through(evidence: str) -> ProbeResult:
    return ProbeResult(ProbeVerdict.GOT_THROUGH, evidence)


def not_applicable(reason: str) -> ProbeResult:
    return ProbeResult(ProbeVerdict.NOT_APPLICABLE, reason)


def undecided(evidence: str) -> ProbeResult:
    return ProbeResult(ProbeVerdict.UNDECIDED, evidence)


def judged(holds: bool, evidence: str) -> ProbeResult:
    return contained(evidence) if holds else got_through(evidence)


def within(id: str, group: Group, tries: str, attack: str, **arguments: Any) -> Probe[Inside]:
    """A probe that is one function of `inside/`, whose own verdict is enough."""

    async def run(target: Inside) -> ProbeResult:
        return await target.inside(attack, **arguments)

    return Probe(id, group, tries, run)
