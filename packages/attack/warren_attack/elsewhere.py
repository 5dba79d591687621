"""The probes that take an installation of Warren: elsewhere they are not applicable, and never count as passed.

needs_warren.tsv has their group, id and what each tries; scripts/list_probes.py writes it.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

from warren_attack.probe import Group, Probe, ProbeResult, Target, not_applicable

LIST: Final = "needs_warren.tsv"
_COMMAND: Final = "warren doctor --attack"
_WHY: Final = {
    Group.AGENT: "it attacks the agent that Warren has in each sandbox",
    Group.HOSTILE_AGENT: "it attacks Warren's worker from an agent's place",
    Group.EGRESS: "it takes rules for a network that Warren sets, and an Internet made for the attack",
    Group.LIFECYCLE: "it takes Warren's own operations on a sandbox, and a look at the host",
    Group.FAIRNESS: "it measures a neighbour, which Warren makes",
    Group.ROOT: "it takes a sandbox of Warren's that allows root inside",
}
_WHY_HOST: Final = "it is judged from the host or beside a neighbour, by limits that Warren has set"
_WHY_API: Final = "it attacks the API of a Warren server"


def needs_warren() -> list[Probe[Target]]:
    rows = [line.split("\t") for line in files("warren_attack").joinpath(LIST).read_text().splitlines()]
    return [Probe(id, Group(group), tries, _says_why(Group(group))) for group, id, tries in rows]


def why_not_here(group: Group) -> str:
    if group.startswith("api "):
        return f"{_WHY_API}: `{_COMMAND} --url URL`"
    return f"{_WHY.get(group, _WHY_HOST)}: `{_COMMAND}`"


def _says_why(group: Group) -> Callable[[Target], Awaitable[ProbeResult]]:
    async def attack(target: Target) -> ProbeResult:
        return not_applicable(why_not_here(group))

    return attack
