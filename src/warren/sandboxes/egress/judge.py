"""Decides whether a sandbox may reach a destination: by its session's rules, then by the operator's policy."""

from dataclasses import dataclass
from typing import Final

from warren.kernel.own_addresses import why_not_reached
from warren.model.addresses import Address, read_networks
from warren.model.network import EgressPolicy, IndexedRules, RuleIndex, parse_rule

_NO_RULE: Final = "no rule allows it"


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination. `name` is empty if it was given as an address; `address` is None until the name is resolved."""

    name: str
    address: Address | None
    port: int

    @property
    def rule(self) -> str:
        """The rule that would allow exactly this destination."""
        host = self.name or str(self.address)
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self.port}" if self.port else host


class DestinationRefused(Exception):
    """The destination may not be reached. `rule` would allow it; it is empty if the operator refuses."""

    def __init__(self, reason: str, rule: str = "") -> None:
        super().__init__(reason)
        self.reason, self.rule = reason, rule


class Judge:
    def __init__(self, policy: EgressPolicy) -> None:
        self._networks = read_networks(policy.networks)
        self._denied = RuleIndex(map(parse_rule, policy.denied))
        self._allowed = RuleIndex(map(parse_rule, policy.allowed)) if policy.allowed else None

    def knows_name(self, rules: IndexedRules, name: str) -> bool:
        """Returns whether the sandbox may look the name up."""
        if not rules.knows_name(name) or self._denied.covers_name(name, 0):
            return False
        return self._allowed is None or self._allowed.has_networks or self._allowed.covers_name(name)

    def check(self, rules: IndexedRules, to: Destination) -> None:
        """Raises DestinationRefused if the destination may not be reached; for a name, if no address could be."""
        if self._denied.covers(to.name, to.address, to.port):
            raise DestinationRefused("the operator denies it")
        if not rules.allows(to.name, to.address, to.port):
            raise DestinationRefused(_NO_RULE, to.rule)
        if self._allowed is not None and not self._allowed.covers(to.name, to.address, to.port):
            is_unknown = to.address is None and self._allowed.has_networks
            if not is_unknown:
                raise DestinationRefused("the operator allows other destinations only")
        if to.address is not None:
            self._check_address(rules, to, to.address)

    def check_visible_name(self, rules: IndexedRules, name: str, to: Destination) -> None:
        """Checks a name that a client sends to an address for which it looked up no name. Raises DestinationRefused."""
        if self._denied.covers(name, to.address, to.port):
            raise DestinationRefused("the operator denies it")
        if not rules.allows(name, to.address, to.port):
            raise DestinationRefused(_NO_RULE, Destination(name, to.address, to.port).rule)

    def _check_address(self, rules: IndexedRules, to: Destination, address: Address) -> None:
        if kind := why_not_reached(address, self._networks):
            raise DestinationRefused(f"it is {kind}")
        # `internet` is what is public. The operator's networks are for sessions that name them.
        if self._networks and not rules.allow.covers(to.name, address, to.port) and (kind := why_not_reached(address)):
            raise DestinationRefused(f"it is {kind}, which `internet` does not open", to.rule)
