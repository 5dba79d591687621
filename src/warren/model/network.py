"""The network rules of a session, and how they judge a destination.

A rule is a name (`api.example.com`), all names below one (`*.example.com`, which does not cover `example.com` itself),
or a network (`10.1.2.0/24`). Each may end in a port (`db.example.com:5432`); without one it covers all ports. An empty
list allows nothing.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TYPE_CHECKING, Any, Final

from warren.model.errors import InvalidRequest

if TYPE_CHECKING:
    from warren.model.header_rules import HeaderRule

MAX_RULES: Final = 1000
MAX_RULE: Final = 300
FEW_RULES: Final = 20
"""So many are checked at once. More are checked in a thread: one that is an international name takes a millisecond."""
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
class NetworkRule:
    """Either `name` (without a leading `*.`) or `network` is set. `port` 0 covers all ports."""

    name: str = ""
    is_wildcard: bool = False
    network: IPv4Network | IPv6Network | None = None
    port: int = 0

    def covers_name(self, name: str) -> bool:
        if not self.name:
            return False
        return name.endswith(f".{self.name}") if self.is_wildcard else name == self.name

    def contains(self, other: "NetworkRule") -> bool:
        """Returns whether this rule covers everything that the other rule covers."""
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

    def __str__(self) -> str:
        if self.network is None:
            host = f"*.{self.name}" if self.is_wildcard else self.name
        else:
            single = self.network.prefixlen == self.network.max_prefixlen
            host = str(self.network.network_address if single else self.network)
            host = f"[{host}]" if self.port and self.network.version == 6 else host
        return f"{host}:{self.port}" if self.port else host


def canonical_name(text: str) -> str:
    """Returns the spelling of a name that is compared: in lower case, international names in ASCII. Raises
    InvalidRequest."""
    name = text.removesuffix(".")
    try:
        name = name.lower() if name.isascii() else name.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name) or name.rpartition(".")[2].isdecimal() or name.rpartition(".")[2].startswith("0x"):
        raise InvalidRequest(f"{text[:MAX_RULE]!r} is not the name of a host", remedy=_REMEDY)
    return name


@lru_cache(4096)
def parse_rule(text: str) -> NetworkRule:
    """Reads a rule. Raises InvalidRequest."""
    if not text or len(text) > MAX_RULE:
        raise InvalidRequest(f"a rule has 1 to {MAX_RULE} characters", remedy=_REMEDY)
    if "://" in text:
        host = text.partition("://")[2].partition("/")[0].rpartition("@")[2]  # not the password, if there is one
        raise InvalidRequest(f"a rule has neither a scheme nor a path: write {host!r} for that URL", remedy=_REMEDY)
    host, port = _split_port(text)
    if host == "*":
        raise InvalidRequest("the rule '*' would allow everything", remedy="set internet to true if that is meant")
    if host.startswith("*."):
        return NetworkRule(canonical_name(host[2:]), is_wildcard=True, port=port)
    if "/" in host or ":" in host or host.replace(".", "").isdecimal():
        try:
            return NetworkRule(network=ip_network(host), port=port)
        except ValueError as exc:
            raise InvalidRequest(f"{text!r} is not an address or a network: {exc}", remedy=_REMEDY) from exc
    return NetworkRule(canonical_name(host), port=port)


def _in_ascii(text: str) -> str:
    """Checks a rule. Returns it as it is written, or in ASCII if it has an international name. Raises
    InvalidRequest."""
    rule = parse_rule(text)
    return text if text.isascii() else str(rule)


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


Ports = tuple[int, ...]
"""The ports that rules for one name or network cover. 0 stands for all. A tuple of numbers, and mostly the same one,
costs the garbage collector nothing: it would look at a million sets each time if all sandboxes had long lists."""
_ALL_PORTS: Final = (0,)


class RuleIndex:
    """Rules in which a destination is found without comparing it with each: a name by its labels, an address by the
    lengths of prefixes that occur. With 1,000 rules a name takes 1 microsecond, where comparing took 500."""

    __slots__ = ("_below", "_names", "_networks")

    def __init__(self, rules: Iterable[NetworkRule] = ()) -> None:
        self._names: dict[str, Ports] = {}
        self._below: dict[str, Ports] = {}  # all names below these
        self._networks: dict[tuple[int, int], dict[int, Ports]] = {}  # by version and bits of the host, then by prefix
        for rule in rules:
            if rule.network is None:
                _add_port(self._below if rule.is_wildcard else self._names, rule.name, rule.port)
            else:
                bits = rule.network.max_prefixlen - rule.network.prefixlen
                prefixes = self._networks.setdefault((rule.network.version, bits), {})
                _add_port(prefixes, int(rule.network.network_address) >> bits, rule.port)

    @classmethod
    def from_lists(cls, lists: Sequence[Any]) -> "RuleIndex":
        """Reads what `as_lists` has returned, and checks nothing."""
        names, below, networks = lists
        index = cls()
        index._names, index._below = _read_ports(names), _read_ports(below)
        index._networks = {(version, bits): _read_ports(prefixes) for version, bits, prefixes in networks}
        return index

    def as_lists(self) -> Sequence[Any]:
        """Returns the index as JSON has it."""
        networks = [(*key, list(prefixes.items())) for key, prefixes in self._networks.items()]
        return list(self._names.items()), list(self._below.items()), networks

    @property
    def has_networks(self) -> bool:
        return bool(self._networks)

    def covers_name(self, name: str, port: int | None = None) -> bool:
        """Returns whether a rule covers the port of the name; without a port, whether one covers any port of it; with
        port 0, whether one covers all ports."""
        if _has_port(self._names.get(name), port):
            return True
        dot = name.find(".") if self._below else -1
        while dot >= 0:
            if _has_port(self._below.get(name[dot + 1 :]), port):
                return True
            dot = name.find(".", dot + 1)
        return False

    def covers(self, name: str, address: Address | None, port: int) -> bool:
        if self.covers_name(name, port):
            return True
        if address is None:
            return False
        number, version = int(address), address.version
        return any(
            version == each and _has_port(prefixes.get(number >> bits), port)
            for (each, bits), prefixes in self._networks.items()
        )


def _has_port(ports: Ports | None, port: int | None) -> bool:
    return ports is not None and (port is None or 0 in ports or port in ports)


def _add_port(ports_of: dict[Any, Ports], key: Any, port: int) -> None:
    known = ports_of.get(key, ())
    ports_of[key] = _ALL_PORTS if not port or known is _ALL_PORTS else (*known, port)


def _read_ports(pairs: Iterable[tuple[Any, Iterable[int]]]) -> dict[Any, Ports]:
    return {key: _ALL_PORTS if ports == [0] else tuple(ports) for key, ports in pairs}


@dataclass(frozen=True, slots=True)
class IndexedRules:
    """The rules of a session as its connections and look-ups are judged by."""

    internet: bool
    allow: RuleIndex
    deny: RuleIndex

    def knows_name(self, name: str) -> bool:
        """Returns whether a look-up of the name is answered, which is so if the rules may allow some port of it."""
        return self.allow.covers_name(name) or (self.internet and not self.deny.covers_name(name, 0))

    def allows(self, name: str, address: Address | None, port: int) -> bool:
        """Returns whether the destination is allowed. `name` is empty if it was given as an address; `address` is None
        if the name was not looked up yet."""
        return self.allow.covers(name, address, port) or (self.internet and not self.deny.covers(name, address, port))


@dataclass(frozen=True)
class NetworkRules:
    """`allow` wins over `deny`, and `deny` over `internet`. The operator's own limits (EgressPolicy) win over all of
    them.

    `allow` may name presets, which are replaced by their rules before a sandbox gets them (`Presets.expanded`).
    International names are kept in ASCII, whatever they were written in. `headers` are set in requests for hosts that
    the rest allows; `as_mapping` leaves them out, because their values may be secrets.
    """

    internet: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = field(default=())
    headers: "tuple[HeaderRule, ...]" = ()

    def __post_init__(self) -> None:
        for name in ("allow", "deny"):
            if len(getattr(self, name)) > MAX_RULES:
                raise InvalidRequest(f"{name} has {len(getattr(self, name))} rules, at most {MAX_RULES} are taken")
        # Once and for all: whoever reads the rules later does not have to convert international names, which is slow.
        allow = (text if text in PRESETS else _in_ascii(text) for text in self.allow)
        self.__dict__.update(deny=tuple(map(_in_ascii, self.deny)), allow=tuple(allow))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "NetworkRules":
        """Reads rules from JSON or YAML. Raises InvalidRequest."""
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
    def stored(cls, values: Mapping[str, Any], headers: "tuple[HeaderRule, ...]" = ()) -> "NetworkRules":
        """Reads rules from a store without checking them again: checking long lists takes a good part of a second."""
        rules = object.__new__(cls)
        lists = {name: tuple(values.get(name, ())) for name in ("allow", "deny")}
        rules.__dict__.update(internet=bool(values.get("internet")), **lists, headers=headers)
        return rules

    def with_headers(self, headers: "tuple[HeaderRule, ...]") -> "NetworkRules":
        """Returns the same rules with these headers in place of their own."""
        return self if headers == self.headers else self.stored(self.as_mapping(), headers)

    def __str__(self) -> str:
        opened = [*(["internet"] if self.internet else []), *self.allow[:_SHOWN]]
        shown = ", ".join(opened) + (f" and {len(self.allow) - _SHOWN} more" if len(self.allow) > _SHOWN else "")
        return shown or "nothing"

    def as_mapping(self) -> dict[str, Any]:
        """Returns the rules as JSON has them."""
        return {"internet": self.internet, "allow": list(self.allow), "deny": list(self.deny)}

    @property
    def is_open(self) -> bool:
        """Whether anything outside may be reached."""
        return self.internet or bool(self.allow)

    def headers_in_force(self, granted: Collection[str] = ()) -> "tuple[HeaderRule, ...]":
        """Returns the headers that a broker has to set: while the rules open nothing, those for hosts that secrets have
        `granted`."""
        return self.headers if self.is_open else tuple(each for each in self.headers if each.host in granted)

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that `allow` names."""
        return tuple(text for text in self.allow if text in PRESETS)

    @cached_property
    def indexed(self) -> IndexedRules:
        """The rules, indexed. For many, this takes tens of milliseconds: index them in a thread."""
        allow = RuleIndex(parse_rule(text) for text in self.allow if text not in PRESETS)
        return IndexedRules(self.internet, allow, RuleIndex(map(parse_rule, self.deny)))


NO_NETWORK: Final = NetworkRules()


NO_HOST: Final = "it is an address of no host"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A destination that a sandbox could not reach.

    `at`: the time of the last attempt, by the clock. `count`: the number of attempts in a row. `name`: empty if the
    destination was given as an address. `address`: empty, and `port` 0, if the name was only looked up. `rule`: would
    allow the destination; empty if no rule of a session can.
    """

    at: float
    name: str
    address: str
    port: int
    reason: str
    rule: str = ""
    count: int = 1

    @property
    def is_special(self) -> bool:
        return is_special_refusal(self.reason, self.rule)


def is_special_refusal(reason: str, rule: str) -> bool:
    """Tells whether a destination was refused because its address is not public: only the operator's egress_networks,
    beside a rule, can open it."""
    return not rule and reason.startswith("it is ") and reason != NO_HOST


@dataclass(frozen=True, slots=True)
class EndedConnection:
    """A connection of a sandbox that was allowed and ended at the time `at`. Its destination is either in `name` or, if
    the program gave an address, in `address`."""

    at: float
    name: str
    address: str
    port: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """What a sandbox did with its network since it was given one. `refusals`: the last ones, oldest first. `ended`: the
    last connections that have ended."""

    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    open_connections: int = 0
    refused: int = 0
    refusals: tuple[Refusal, ...] = ()
    ended: tuple[EndedConnection, ...] = ()


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What the operator sets for all sandboxes; no rules of a session can change it.

    `networks`: may be reached although they are not public. `denied`: may not be reached by anybody. `allowed`: if not
    empty, nothing else may be reached. `connections`: the most that one sandbox may have open. `mbps`: megabits a
    second that one sandbox may send and receive; 0 means no limit. `authorities`: certificates in PEM that are trusted,
    beside those of the system, for the hosts of secrets.
    """

    networks: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    connections: int = 1000
    mbps: int = 0
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class EgressBound:
    """What all sandboxes of one `owner` (a tenant or a key) may have together on a worker: open connections, and
    megabits a second sent and received. None means no bound. Of several bounds of a sandbox, the last is its tenant's,
    also if it bounds nothing: what all tenants share is shared by these owners."""

    owner: str
    connections: int | None = None
    mbps: int | None = None


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP port on which a server in a sandbox listens. `address`: the address it is bound to; 0.0.0.0 or :: for
    all."""

    port: int
    address: str
