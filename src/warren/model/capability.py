"""What a provider can do beyond running commands and keeping files, and how a request for more is refused."""

from collections.abc import Collection, Mapping
from enum import StrEnum

from warren.model.errors import InvalidRequest
from warren.model.network import NetworkRules


class Capability(StrEnum):
    """USER_NAMESPACE: every sandbox has a user namespace of its own. TERMINALS: a command can have a terminal.
    SNAPSHOTS: a sandbox can be saved, and others started from what was saved. PAUSE: a sandbox can be stopped and
    continued with its memory. EGRESS: a sandbox can be given rules about what it reaches outside. PORTS: a server
    inside can be reached from outside. GPU: a sandbox can be given a graphics processor. VOLUMES: a sandbox can be
    given a disk that outlives it."""

    USER_NAMESPACE = "user_namespace"
    TERMINALS = "terminals"
    SNAPSHOTS = "snapshots"
    PAUSE = "pause"
    EGRESS = "egress"
    PORTS = "ports"
    GPU = "gpu"
    VOLUMES = "volumes"


# Providers by name with what each can do; the first is the default.
Providers = Mapping[str, frozenset[Capability]]


def choose_provider(providers: Providers, name: str = "", needs: Collection[Capability] = ()) -> str:
    """Returns `name`, or the default provider. Raises InvalidRequest if there is no such provider or it lacks a
    need."""
    chosen = name or next(iter(providers))
    if chosen not in providers:
        raise InvalidRequest(
            f"this server has no provider {chosen!r}",
            remedy=f"leave provider out, or use one that it has: {', '.join(providers)}",
        )
    missing = sorted(set(needs) - providers[chosen])
    if missing:
        others = [other for other, has in providers.items() if has.issuperset(needs)]
        raise lacks(chosen, missing[0], others)
    return chosen


def network_needs(rules: NetworkRules) -> frozenset[Capability]:
    return frozenset({Capability.EGRESS}) if rules.is_open else frozenset()


def lacks(provider: str, capability: str, others: Collection[str] = ()) -> InvalidRequest:
    """Makes the error for a capability that the provider lacks; `others` are providers that have it."""
    remedy = f"use a provider that has it: {', '.join(others)}" if others else "no provider of this server has it"
    if capability == Capability.GPU and not others:
        remedy += "; the operator allows GPUs with the option gpus, see docs/gpu.md"
    return InvalidRequest(f"the provider {provider} does not have the capability {capability}", remedy=remedy)
