"""What a sandbox may reach outside: the rules of a session, and how a destination is judged by them.

A rule is a name (`api.example.com`), all names below one (`*.example.com`, which does not cover `example.com` itself),
or a network (`10.1.2.0/24`); each may end in a port (`db.example.com:5432`), and without one it holds for all. An
empty list allows nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any, Final

from warren.model.errors import InvalidRequest

MAX_RULES: Final = 1000
MAX_RULE: Final = 300
_SHOWN: Final = 20
PRESETS: Final = ("python-packages", "node-packages", "debian-packages", "git-hosts")

_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*{_LABEL}", re.ASCII)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_REMEDY: Final = (
    "write a name (api.example.com), all names below one (*.example.com), an address or a network (10.1.2.0/24), "
    "each with a port if only that is meant (db.example.com:5432), or a preset: " + ", ".join(PRESETS)
)

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Rule:
    """Either `name` is set, without a leading `*.`, or `network`. `port` 0 is any."""

    name: str = ""
    is_wildcard: bool = False
    network: IPv4Network | IPv6Network | None = None
    port: int = 0

    def covers_name(self, name: str) -> bool:
        if not self.name:
            return False
        return name.endswith(f".{self.name}") if self.is_wildcard else name == self.name

    def contains(self, other: "Rule") -> bool:
        """Whether everything that the other rule covers is covered by this one too."""
        if self.port not in (0, other.port):
            return False
        if self.network is not None and other.network is not None:
            wide, narrow = self.network, other.network
            return narrow.network_address in wide and narrow.prefixlen >= wide.prefixlen
        if not self.name or not other.name:
            return False
        if self.is_wildcard:
            return self.covers_name(other.name) or (other.is_wildcard and other.name == self.name)
        return not other.is_wildcard and self.name == other.name

    def covers(self, name: str, address: Address | None, port: int) -> bool:
        if self.port not in (0, port):
            return False
        if self.network is not None:
            return address is not None and address in self.network
        return self.covers_name(name)

    def __str__(self) -> str:
        if self.network is None:
            host = f"*.{self.name}" if self.is_wildcard else self.name
        else:
            single = self.network.prefixlen == self.network.max_prefixlen
            host = str(self.network.network_address if single else self.network)
            host = f"[{host}]" if self.port and self.network.version == 6 else host
        return f"{host}:{self.port}" if self.port else host


def canonical_name(text: str) -> str:
    """A name as it is compared: in lower case, international names in ASCII. Raises InvalidRequest."""
    name = text.removesuffix(".")
    try:
        name = name.lower() if name.isascii() else name.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name) or name.rpartition(".")[2].isdecimal() or name.rpartition(".")[2].startswith("0x"):
        raise InvalidRequest(f"{text[:MAX_RULE]!r} is not the name of a host", remedy=_REMEDY)
    return name


@lru_cache(4096)
def parse_rule(text: str) -> Rule:
    """Raises InvalidRequest."""
    if not text or len(text) > MAX_RULE:
        raise InvalidRequest(f"a rule has 1 to {MAX_RULE} characters", remedy=_REMEDY)
    host, port = _split_port(text)
    if host == "*":
        raise InvalidRequest("the rule '*' would allow everything", remedy="set internet to true if that is meant")
    if host.startswith("*."):
        return Rule(canonical_name(host[2:]), is_wildcard=True, port=port)
    if "/" in host or ":" in host or host.replace(".", "").isdecimal():
        try:
            return Rule(network=ip_network(host), port=port)
        except ValueError as exc:
            raise InvalidRequest(f"{text!r} is not an address or a network: {exc}", remedy=_REMEDY) from exc
    return Rule(canonical_name(host), port=port)


def _split_port(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidRequest(f"{text!r} is not a rule", remedy=_REMEDY)
        return host, _read_port(rest[1:], text) if rest else 0
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, _read_port(port, text)
    return text, 0


def _read_port(text: str, rule: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise InvalidRequest(f"{rule!r}: a port is a number from 1 to 65535", remedy=_REMEDY)
    return int(text)


@dataclass(frozen=True)
class NetworkRules:
    """`allow` wins over `deny`, and `deny` over `internet`. The operator's own limits stand above all of it.

    `allow` may name presets; they were replaced by rules before a sandbox gets them (`expanded`).
    """

    internet: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("allow", "deny"):
            if len(getattr(self, name)) > MAX_RULES:
                raise InvalidRequest(f"{name} has {len(getattr(self, name))} rules, at most {MAX_RULES} are taken")
        for text in self.deny:
            parse_rule(text)
        for text in self.allow:
            if text not in PRESETS:
                parse_rule(text)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "NetworkRules":
        """Reads rules from JSON or YAML."""
        unknown = set(values) - {"internet", "allow", "deny"}
        if unknown:
            raise InvalidRequest(
                f"network has no key {str(min(unknown, key=str))[:80]!r}", remedy="there are: internet, allow, deny"
            )
        internet = values.get("internet", False)
        if not isinstance(internet, bool):
            raise InvalidRequest("network.internet must be true or false")
        lists = {name: values.get(name) or () for name in ("allow", "deny")}
        for name, texts in lists.items():
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                raise InvalidRequest(f"network.{name} must be a list of texts", remedy=_REMEDY)
        return cls(internet, tuple(dict.fromkeys(lists["allow"])), tuple(dict.fromkeys(lists["deny"])))

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> "NetworkRules":
        """Rules that were checked before they were stored: checking long lists takes a good part of a second."""
        rules = object.__new__(cls)
        lists = {name: tuple(values.get(name, ())) for name in ("allow", "deny")}
        rules.__dict__.update(internet=bool(values.get("internet")), **lists)
        return rules

    def __str__(self) -> str:
        opened = [*(["internet"] if self.internet else []), *self.allow[:_SHOWN]]
        shown = ", ".join(opened) + (f" and {len(self.allow) - _SHOWN} more" if len(self.allow) > _SHOWN else "")
        return shown or "nothing"

    def as_mapping(self) -> dict[str, Any]:
        """The rules as JSON has them."""
        return {"internet": self.internet, "allow": list(self.allow), "deny": list(self.deny)}

    @property
    def is_open(self) -> bool:
        """Whether anything outside may be reached."""
        return self.internet or bool(self.allow)

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that `allow` names."""
        return tuple(text for text in self.allow if text in PRESETS)

    @cached_property
    def _allow(self) -> tuple[Rule, ...]:
        return tuple(parse_rule(text) for text in self.allow if text not in PRESETS)

    @cached_property
    def _deny(self) -> tuple[Rule, ...]:
        return tuple(parse_rule(text) for text in self.deny)

    def knows_name(self, name: str) -> bool:
        """Whether a look-up of the name is answered: some port of it may be allowed."""
        if any(rule.covers_name(name) for rule in self._allow):
            return True
        return self.internet and not any(rule.covers_name(name) and not rule.port for rule in self._deny)

    def allows(self, name: str, address: Address | None, port: int) -> bool:
        """`name` is empty for a destination that was given as an address; `address` is None if it is not known yet."""
        if _any_covers(self._allow, name, address, port):
            return True
        return self.internet and not _any_covers(self._deny, name, address, port)


NO_NETWORK: Final = NetworkRules()


def _any_covers(rules: Iterable[Rule], name: str, address: Address | None, port: int) -> bool:
    return any(rule.covers(name, address, port) for rule in rules)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that a sandbox wanted to reach and could not.

    `at` is a time of the clock in seconds. `name` is empty for a destination that was given as an address, `address`
    for a name that was only looked up, whose `port` is 0. `rule` would allow it; empty if none of a session can.
    `count`: it came so often in a row, the last time at `at`.
    """

    at: float
    name: str
    address: str
    port: int
    reason: str
    rule: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a sandbox that was allowed and has ended, at the time `at`. `name` is empty for a destination
    that was given as an address, and `address` otherwise."""

    at: float
    name: str
    address: str
    port: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """What a sandbox did with its network since it was given one. `refusals` are the last ones, oldest first, and
    `ended` the last connections that have ended."""

    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    open_connections: int = 0
    refused: int = 0
    refusals: tuple[Refusal, ...] = ()
    ended: tuple[Connection, ...] = ()


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What the operator says about all sandboxes; no rules of a session can change it.

    `networks` may be reached although they are not public. `denied` may be reached by nobody. If there are `allowed`,
    nothing else may be reached. `connections` are open at the same time for one sandbox at most, and `mbps` is how
    many megabits a second one sandbox may send and receive; 0 is no limit. `authorities`, in PEM, vouch for hosts of
    secrets beside those of the system.
    """

    networks: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    connections: int = 1000
    mbps: int = 0
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class EgressBound:
    """What all sandboxes of one `owner`, a tenant or a key, may have together on a worker: open connections, and
    megabits a second that they send and receive. None is no bound."""

    owner: str
    connections: int | None = None
    mbps: int | None = None


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP port on which a server inside a sandbox listens. `address` is what it is bound to; 0.0.0.0 or :: is all."""

    port: int
    address: str
