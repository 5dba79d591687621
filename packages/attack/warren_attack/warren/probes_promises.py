"""What Warren says of a sandbox, looked at again: after all the other attacks it still has to be true."""

from warren.model.errors import SandboxNotFound
from warren.model.spec import WRITABLE, Layer
from warren.sandboxes.host.isolation import UNREADABLE
from warren.sandboxes.providers.host_provider import HostProvider
from warren_attack.probe import Group, Probe, ProbeResult, judged, not_applicable, undecided
from warren_attack.warren.arena import Arena

_PLACES = [*WRITABLE, "/dev/shm"]


async def _write_everywhere(arena: Arena) -> ProbeResult:
    return await arena.inside("promises:write_everywhere", allowed=[*_PLACES, "/dev/mqueue"], timeout_s=60)


async def _suid_and_devices(arena: Arena) -> ProbeResult:
    return await arena.inside("promises:suid_and_devices", allowed=_PLACES)


async def _layers(arena: Arena) -> ProbeResult:
    """The isolation of the attacked sandbox, read back anew, against what it had when it was made."""
    if not isinstance(arena.provider, HostProvider):
        return not_applicable("its isolation is not this host's")
    try:
        now = await arena.provider.read_isolation(arena.sandbox.id)
    except SandboxNotFound as exc:
        return undecided(exc.message)
    lost = {layer: now.missing.get(layer, "") for layer in arena.sandbox.isolation.layers if layer not in now}
    why = "; ".join(f"{layer}: {reason}" for layer, reason in lost.items())
    return judged(not lost, why or f"all {len(now.layers)} layers are still in force")


async def _filter(arena: Arena) -> ProbeResult:
    shown = arena.sandbox.isolation
    if shown.missing.get(Layer.SYSTEM_CALLS, "").startswith(UNREADABLE):
        return not_applicable(shown.missing[Layer.SYSTEM_CALLS])
    evidence = shown.layers.get(Layer.SYSTEM_CALLS) or shown.missing.get(Layer.SYSTEM_CALLS, "not known")
    return judged(Layer.SYSTEM_CALLS in shown, evidence)


PROBES: tuple[Probe[Arena], ...] = (
    Probe("write-everywhere", Group.LIMITS, "write where no limit counts", _write_everywhere),
    Probe("suid-and-devices", Group.ESCAPE, "have suid programs and devices on a writable mount", _suid_and_devices),
    Probe("loaded-filter", Group.KERNEL, "have a filter that allows more than the list", _filter),
    Probe("layers-afterwards", Group.LIFECYCLE, "weaken a layer by any of the attacks before", _layers),
)
