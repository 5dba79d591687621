"""All probes, and the one loop that runs them.

A probe that runs out of time, or breaks, is UNDECIDED. After each probe the sandbox must still be usable: a probe
that killed it was not contained, whatever its verdict was.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio

from warren.attack import (
    probes_agent,
    probes_broker,
    probes_egress,
    probes_escape,
    probes_fair_share,
    probes_kernel_state,
    probes_leaks,
    probes_lifecycle,
    probes_limits,
    probes_network,
    probes_promises,
    probes_resources,
    probes_root,
)
from warren.attack.arena import Arena, host_environment_canary
from warren.attack.probe import ApiProbe, Finding, Probe, ProbeResult, ProbeVerdict, got_through, undecided
from warren.interfaces.provider import Provider
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.spec import SandboxSpec

if TYPE_CHECKING:
    from warren.attack.api_arena import ApiArena

PROBES: tuple[Probe, ...] = (
    *probes_escape.PROBES,
    *probes_agent.PROBES,
    *probes_leaks.PROBES,
    *probes_network.PROBES,
    *probes_egress.PROBES,
    *probes_broker.PROBES,
    *probes_limits.PROBES,
    *probes_kernel_state.PROBES,
    *probes_resources.PROBES,
    *probes_lifecycle.PROBES,
    *probes_promises.PROBES,
    *probes_fair_share.PROBES,
)
ROOT_PROBES = probes_root.root_probes(
    (
        *(*probes_escape.PROBES, *probes_agent.PROBES, *probes_leaks.PROBES, *probes_network.PROBES),
        *(*probes_limits.PROBES, *probes_kernel_state.PROBES),
    )
)
"""For sandboxes that allow root inside, in addition."""
_PROBE_S = 180.0  # two rounds of the longest take half of it on a quiet machine

Progress = Callable[[Finding], None]
P = TypeVar("P", Probe, ApiProbe)


async def attack(
    provider: Provider,
    spec: SandboxSpec,
    *,
    secret_paths: tuple[Path, ...] = (),
    probes: Sequence[Probe] = PROBES,
    progress: Progress = lambda finding: None,
) -> list[Finding]:
    """Makes two sandboxes and attacks the first. Destroys both in every case."""
    arena, findings = Arena(provider, spec, secret_paths), list[Finding]()
    host_environment_canary(arena)
    try:
        await arena.open()
        for probe in probes:
            findings.append(await run_probe(probe, probe.attack(arena), arena))
            progress(findings[-1])
    finally:
        with anyio.CancelScope(shield=True):
            await arena.close()
    return findings


def choose(wanted: Sequence[str], *, sudo: bool = False) -> Sequence[Probe]:
    """The probes of these ids or groups; all of them if none is named."""
    return chosen((*PROBES, *ROOT_PROBES) if sudo else PROBES, wanted)


def chosen(probes: Sequence[P], wanted: Sequence[str]) -> Sequence[P]:
    groups: list[str] = list(dict.fromkeys(str(probe.group) for probe in probes))
    known = {*groups, *(probe.id for probe in probes)}
    for name in wanted:
        if name not in known:
            raise InvalidRequest(f"there is no probe {name!r}", remedy=f"groups are: {', '.join(groups)}")
    return [probe for probe in probes if not wanted or probe.id in wanted or probe.group in wanted]


async def run_probe(
    probe: Probe | ApiProbe, attack: Awaitable[ProbeResult], arena: "Arena | ApiArena", longest_s: float = _PROBE_S
) -> Finding:
    """Waits for the `attack` of a probe, and looks whether what was attacked is still usable."""
    started = time.monotonic()
    outcome = await _outcome(attack, longest_s)
    if why := await arena.usable():
        outcome = _with_loss(outcome, why)
        await arena.renew()
    return Finding(probe, outcome, round(time.monotonic() - started, 3))


async def _outcome(attack: Awaitable[ProbeResult], longest_s: float) -> ProbeResult:
    try:
        async with asyncio.timeout(longest_s):
            return await attack
    except TimeoutError:
        return undecided(f"no answer within {longest_s:g} s")
    except (WarrenError, OSError, ValueError, KeyError, TypeError, EOFError) as exc:
        return undecided(f"{type(exc).__name__}: {exc}")


def _with_loss(outcome: ProbeResult, why: str) -> ProbeResult:
    if outcome.verdict is ProbeVerdict.GOT_THROUGH:
        return replace(outcome, evidence=f"{outcome.evidence}; and the sandbox is of no use afterwards: {why}")
    return got_through(f"the sandbox is of no use afterwards: {why} (the probe said: {outcome.evidence})")
