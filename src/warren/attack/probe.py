"""Probes, of which an attack consists, and their results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warren.attack.api_arena import ApiArena
    from warren.attack.arena import Arena


class Group(StrEnum):
    ESCAPE = "escape"
    KERNEL = "kernel"
    AGENT = "agent tampering"
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


Attack = Callable[["Arena"], Awaitable[ProbeResult]]


@dataclass(frozen=True, slots=True)
class Probe:
    id: str
    group: Group
    tries: str
    attack: Attack


@dataclass(frozen=True, slots=True)
class ApiProbe:
    """A probe of a server, by its API."""

    id: str
    group: Group
    tries: str
    attack: Callable[["ApiArena"], Awaitable[ProbeResult]]


@dataclass(frozen=True, slots=True)
class Finding:
    probe: Probe | ApiProbe
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


def within(id: str, group: Group, tries: str, attack: str, **arguments: Any) -> Probe:
    """A probe that is one function of `inside/`, whose own verdict is enough."""

    async def run(arena: "Arena") -> ProbeResult:
        return await arena.inside(attack, **arguments)

    return Probe(id, group, tries, run)
