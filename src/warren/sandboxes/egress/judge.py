"""Decides whether a sandbox may reach a destination: by its session's rules, then by the operator's policy."""

from dataclasses import dataclass
from typing import Final

from warren.kernel.own_addresses import why_not_reached
from warren.model.addresses import Address, read_networks
from warren.model.network import EgressPolicy, NetworkRule, NetworkRules, parse_rule

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
        self._denied = tuple(parse_rule(text) for text in policy.denied)
        self._allowed = tuple(parse_rule(text) for text in policy.allowed)

    def knows_name(self, rules: NetworkRules, name: str) -> bool:
        """Returns whether the sandbox may look the name up."""
        if not rules.knows_name(name) or any(rule.covers_name(name) and not rule.port for rule in self._denied):
            return False
        return not self._allowed or any(rule.network is not None or rule.covers_name(name) for rule in self._allowed)

    def check(self, rules: NetworkRules, to: Destination) -> None:
        """Raises DestinationRefused if the destination may not be reached; for a name, if no address could be."""
        if _covers(self._denied, to):
            raise DestinationRefused("the operator denies it")
        if not rules.allows(to.name, to.address, to.port):
            raise DestinationRefused(_NO_RULE, to.rule)
        unknown = to.address is None and any(rule.network is not None for rule in self._allowed)
        if self._allowed and not unknown and not _covers(self._allowed, to):
            raise DestinationRefused("the operator allows other destinations only")
        if to.address is not None:
            self._check_address(to.address)

    def check_visible_name(self, rules: NetworkRules, name: str, to: Destination) -> None:
        """Checks a name that a client sends to an address for which it looked up no name. Raises DestinationRefused."""
        visible = Destination(name, to.address, to.port)
        if _covers(self._denied, visible):
            raise DestinationRefused("the operator denies it")
        if not rules.allows(name, to.address, to.port):
            raise DestinationRefused(_NO_RULE, visible.rule)

    def _check_address(self, address: Address) -> None:
        if kind := why_not_reached(address, self._networks):
            raise DestinationRefused(f"it is {kind}")


def _covers(rules: tuple[NetworkRule, ...], to: Destination) -> bool:
    return any(rule.covers(to.name, to.address, to.port) for rule in rules)
