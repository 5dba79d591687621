"""All probes of a server's API, and the attack that runs them against one.

After each probe the server must still serve the attacker's own session: an attack that ended it was not contained.
"""

from collections.abc import Sequence

import anyio

from warren_attack.probe import Finding, Probe
from warren_attack.runner import Progress, run_probes
from warren_attack.warren.api import (
    probes_e2b,
    probes_input,
    probes_keys,
    probes_load,
    probes_previews,
    probes_tenants,
)
from warren_attack.warren.api.arena import ApiArena

PROBES: tuple[Probe[ApiArena], ...] = (
    *probes_keys.PROBES,
    *probes_input.PROBES,
    *probes_e2b.PROBES,
    *probes_tenants.PROBES,
    *probes_previews.PROBES,
    *probes_load.PROBES,
)
_PROBE_S = 120.0


async def attack_server(
    arena: ApiArena, *, probes: Sequence[Probe[ApiArena]] = PROBES, progress: Progress = lambda finding: None
) -> list[Finding]:
    """Makes a session for each tenant and attacks the server with them. Ends them in every case."""
    try:
        await arena.open()
        return await run_probes(probes, arena, progress, _PROBE_S)
    finally:
        with anyio.CancelScope(shield=True):
            await arena.close()
