"""All probes of a server's API, and the loop that runs them against one.

A probe that runs out of time, or breaks, is UNDECIDED. After each probe the server must still serve the attacker's own
session: an attack that ended it was not contained.
"""

import asyncio
import time
from collections.abc import Sequence

import anyio

from warren.attack import probes_api_input, probes_api_keys, probes_api_load, probes_api_previews, probes_api_tenants
from warren.attack.api_arena import ApiArena
from warren.attack.probe import ApiProbe, Finding, ProbeResult, undecided
from warren.attack.suite import Progress, with_loss
from warren.model.errors import WarrenError

PROBES: tuple[ApiProbe, ...] = (
    *probes_api_keys.PROBES,
    *probes_api_input.PROBES,
    *probes_api_tenants.PROBES,
    *probes_api_previews.PROBES,
    *probes_api_load.PROBES,
)
_PROBE_S = 120.0


async def attack_server(
    arena: ApiArena, *, probes: Sequence[ApiProbe] = PROBES, progress: Progress = lambda finding: None
) -> list[Finding]:
    """Makes a session for each tenant and attacks the server with them. Ends them in every case."""
    findings: list[Finding] = []
    try:
        await arena.open()
        for probe in probes:
            findings.append(await _run_probe(probe, arena))
            progress(findings[-1])
    finally:
        with anyio.CancelScope(shield=True):
            await arena.close()
    return findings


async def _run_probe(probe: ApiProbe, arena: ApiArena) -> Finding:
    started = time.monotonic()
    outcome = await _run(probe, arena)
    if why := await arena.usable():
        outcome = with_loss(outcome, why)
        await arena.renew()
    return Finding(probe, outcome, round(time.monotonic() - started, 3))


async def _run(probe: ApiProbe, arena: ApiArena) -> ProbeResult:
    try:
        async with asyncio.timeout(_PROBE_S):
            return await probe.attack(arena)
    except TimeoutError:
        return undecided(f"no answer within {_PROBE_S:g} s")
    except (WarrenError, OSError, ValueError, KeyError, TypeError, EOFError) as exc:
        return undecided(f"{type(exc).__name__}: {exc}")
