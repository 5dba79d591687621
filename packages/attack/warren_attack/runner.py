"""The one loop that runs probes.

A probe that runs out of time, or breaks, is UNDECIDED. After each probe its target must still be usable: a probe that
killed it was not contained, whatever its verdict was.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from warren_attack.probe import Finding, Probe, ProbeResult, ProbeVerdict, T, got_through, undecided

PROBE_S = 180.0  # two rounds of the longest take half of it on a quiet machine

Progress = Callable[[Finding], None]


class UnknownProbe(ValueError):
    """There is no probe, and no group of them, of that name."""


def chosen(probes: Sequence[Probe[T]], wanted: Sequence[str]) -> list[Probe[T]]:
    """Returns the probes of these ids or groups; all of them if none is named. Raises UnknownProbe."""
    known = {*groups_of(probes), *(probe.id for probe in probes)}
    for name in wanted:
        if name not in known:
            raise UnknownProbe(f"there is no probe {name!r}")
    return [probe for probe in probes if not wanted or probe.id in wanted or probe.group in wanted]


def groups_of(probes: Sequence[Probe[Any]]) -> list[str]:
    return list(dict.fromkeys(str(probe.group) for probe in probes))


async def run_probes(
    probes: Sequence[Probe[T]], target: T, progress: Progress = lambda finding: None, longest_s: float = PROBE_S
) -> list[Finding]:
    findings = []
    for probe in probes:
        findings.append(await _run(probe, target, longest_s))
        progress(findings[-1])
    return findings


async def _run(probe: Probe[T], target: T, longest_s: float) -> Finding:
    started = time.monotonic()
    outcome = await _outcome(probe.attack(target), longest_s)
    if why := await target.usable():
        outcome = _with_loss(outcome, why)
        await target.renew()
    return Finding(probe, outcome, round(time.monotonic() - started, 3))


async def _outcome(attack: Awaitable[ProbeResult], longest_s: float) -> ProbeResult:
    try:
        async with asyncio.timeout(longest_s):
            return await attack
    except TimeoutError:
        return undecided(f"no answer within {longest_s:g} s")
    except Exception as exc:  # whatever an attack makes of the answers it gets decides nothing
        return undecided(f"{type(exc).__name__}: {exc}")


def _with_loss(outcome: ProbeResult, why: str) -> ProbeResult:
    if outcome.verdict is ProbeVerdict.GOT_THROUGH:
        return replace(outcome, evidence=f"{outcome.evidence}; and the sandbox is of no use afterwards: {why}")
    return got_through(f"the sandbox is of no use afterwards: {why} (the probe said: {outcome.evidence})")
