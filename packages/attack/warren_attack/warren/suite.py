"""All probes of a sandbox of this machine, and the attack that runs them beside a neighbour of it."""

from collections.abc import Sequence
from pathlib import Path

import anyio

from warren.interfaces.provider import Provider
from warren.model.errors import InvalidRequest
from warren.model.spec import SandboxSpec
from warren_attack import probes as inside
from warren_attack.probe import Finding, Probe, T
from warren_attack.runner import Progress, UnknownProbe, chosen, groups_of, run_probes
from warren_attack.warren import (
    probes_agent,
    probes_broker,
    probes_egress,
    probes_escape,
    probes_fair_share,
    probes_hostile_agent,
    probes_kernel_state,
    probes_leaks,
    probes_lifecycle,
    probes_limits,
    probes_network,
    probes_promises,
    probes_resources,
    probes_root,
    probes_state,
)
from warren_attack.warren.arena import Arena, host_environment_canary

_ALSO_AS_ROOT: tuple[Probe[Arena], ...] = (
    *probes_escape.PROBES,
    *inside.ESCAPE,
    *inside.KERNEL,
    *inside.COMMANDS,
    *probes_agent.PROBES,
    *inside.LEAKS,
    *probes_leaks.PROBES,
    *inside.NETWORK,
    *probes_network.PROBES,
    *inside.LIMITS,
    *probes_limits.PROBES,
    *probes_kernel_state.PROBES,
)
PROBES: tuple[Probe[Arena], ...] = (
    *_ALSO_AS_ROOT,
    *probes_hostile_agent.PROBES,
    *probes_egress.PROBES,
    *probes_broker.PROBES,
    *probes_resources.PROBES,
    *probes_lifecycle.PROBES,
    *probes_state.PROBES,
    *probes_promises.PROBES,
    *probes_fair_share.PROBES,
)
ROOT_PROBES = probes_root.root_probes(_ALSO_AS_ROOT)
"""For sandboxes that allow root inside, in addition."""


async def attack(
    provider: Provider,
    spec: SandboxSpec,
    *,
    secret_paths: tuple[Path, ...] = (),
    probes: Sequence[Probe[Arena]] = PROBES,
    progress: Progress = lambda finding: None,
) -> list[Finding]:
    """Makes two sandboxes and attacks the first. Destroys both in every case."""
    arena = Arena(provider, spec, secret_paths)
    host_environment_canary(arena)
    try:
        await arena.open()
        return await run_probes(probes, arena, progress)
    finally:
        with anyio.CancelScope(shield=True):
            await arena.close()


def choose(wanted: Sequence[str], *, sudo: bool = False) -> list[Probe[Arena]]:
    """Returns the probes of these ids or groups; all of them if none is named. Raises InvalidRequest."""
    return choose_from((*PROBES, *ROOT_PROBES) if sudo else PROBES, wanted)


def choose_from(probes: Sequence[Probe[T]], wanted: Sequence[str]) -> list[Probe[T]]:
    """Like `choose`, from probes of any target."""
    try:
        return chosen(probes, wanted)
    except UnknownProbe as exc:
        raise InvalidRequest(str(exc), remedy=f"groups are: {', '.join(groups_of(probes))}") from exc
