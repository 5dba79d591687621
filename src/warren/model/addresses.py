"""Classifies addresses: which are loopback, and which belong to the public Internet.

Tenants name hosts that Warren connects to, and Warren runs next to cloud metadata services, databases and routers. So
it connects only to public unicast addresses and to networks that the operator allows. For IPv4 a table lists the ranges
that are not public; for IPv6 it lists the public range and its exceptions. An IPv6 address that contains an IPv4
address is judged as that address if packets are routed there (mapped, NAT64). Forms that are out of use (compatible,
6to4, Teredo, local NAT64) are refused.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from warren.model.errors import InvalidRequest

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_REFUSED_4: Final = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address behind a carrier's NAT"),
        ("127.0.0.0/8", "a loopback address"),
        ("168.63.129.16/32", "a cloud's own service"),  # a public number, but the hypervisor answers it
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.88.99.0/24", "a reserved address"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "an address for benchmarks"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255/32", "the broadcast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)
_PUBLIC_6: Final = IPv6Network("2000::/3")
# The first lines lie outside of the public range anyway; they are listed for the name in the error.
_REFUSED_6: Final = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::/96", "an IPv4-compatible address"),
        ("64:ff9b:1::/48", "an address behind a local NAT64"),
        ("fc00::/7", "a unique local address"),
        ("fe80::/10", "a link-local address"),
        ("ff00::/8", "a multicast address"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "a reserved address"),
        ("2001:db8::/32", "an address for documentation"),
        ("2002::/16", "a 6to4 address"),
        ("3fff::/20", "an address for documentation"),
    )
)
_ORIGIN: Final = re.compile(
    r"(https?)://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?/?", re.ASCII
)
_ORIGIN_PORTS: Final = {"http": 80, "https": 443}
_MAX_ORIGIN: Final = 300
_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_loopback(host: str | IPv4Address | IPv6Address) -> bool:
    """Returns whether the host is `localhost`, a name below it, or a loopback address (IPv6 with or without
    brackets)."""
    if isinstance(host, str):
        name = host.lower().removesuffix(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            host = ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return (mapped or host).is_loopback


def canonical_origin(text: str) -> str | None:
    """Returns the canonical spelling of a web origin (`https://app.example.com:8443`), which is safe in a header, or
    None if the text is not an origin."""
    match = _ORIGIN.fullmatch(text.lower())
    if match is None or len(text) > _MAX_ORIGIN or int(match[3] or 0) > 65535:
        return None
    scheme, host, port = match.groups()
    if host.startswith("["):
        try:
            host = f"[{IPv6Address(host[1:-1])}]"
        except ValueError:
            return None
    default = port is None or int(port) == _ORIGIN_PORTS[scheme]
    return f"{scheme}://{host}" + ("" if default else f":{int(port)}")


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Reads networks that the operator lists. Raises InvalidRequest for one whose address has bits outside of its
    mask."""
    return tuple(_network(text) for text in texts)


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError as exc:
        raise InvalidRequest(
            f"{text!r} is not a network: {exc}", remedy="write it like 10.20.0.0/16, 192.168.1.5 or fd00:1::/64"
        ) from exc


def why_refused(address: Address, allowed: Iterable[Network] = ()) -> str:
    """Returns why Warren does not connect to this address for a tenant; empty if it does."""
    networks = tuple(allowed)
    if isinstance(address, IPv4Address):
        return "" if _is_within(address, networks) else _kind(address, _REFUSED_4)
    if address.scope_id is not None:
        return "an address of one network interface"
    if _is_within(address, networks):
        return ""
    if (contained := contained_ipv4(address)) is not None:
        return why_refused(contained, networks)
    kind = _kind(address, _REFUSED_6)
    return kind if kind or address in _PUBLIC_6 else "a reserved address"


def contained_ipv4(address: Address) -> IPv4Address | None:
    """Returns the IPv4 address to which packets for this IPv6 address are routed (mapped, NAT64); None if there is
    none."""
    if isinstance(address, IPv4Address):
        return None
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped


def _is_within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _kind(address: Address, refused: Iterable[tuple[Network, str]]) -> str:
    return next((kind for network, kind in refused if address in network), "")
