"""Which addresses a webhook may be sent to: those of the public Internet, and what the operator allows.

Callers name the hosts, the server makes the connections, from where it stands: next to cloud metadata, databases
and other people's routers. So nothing is called but public unicast addresses. What is not public is listed for
IPv4; for IPv6 the public range is named and exceptions are cut out of it. Addresses that carry an IPv4 address
are judged by that one where a machine really goes there (mapped, NAT64), and refused where the way is
unused today (compatible, 6to4, Teredo, NAT64 of one's own).
"""

from collections.abc import Iterable
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

from warren.model.errors import InvalidRequest

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_REMEDY: Final = "name a host on the public Internet, or let the operator allow its network"
_REFUSED_4: Final = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address behind a carrier's NAT"),
        ("127.0.0.0/8", "a loopback address"),
        ("168.63.129.16/32", "a cloud's own service"),  # public by its number, but answered by the machine's host
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
# First those that are not in the public range, for the sake of their names.
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
_NAT64: Final = IPv6Network("64:ff9b::/96")


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The operator's list; a network whose address has bits outside of its mask is a slip, and refused."""
    return tuple(_network(text) for text in texts)


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError as exc:
        raise InvalidRequest(
            f"{text!r} is not a network: {exc}", remedy="write it like 10.20.0.0/16, 192.168.1.5 or fd00:1::/64"
        ) from exc


def read_address(host: str) -> Address | None:
    """The address that a URL's host is, or None for a name, which has to be looked up.

    Systems read far more as an address than people do: 2130706433, 0x7f.1, 0177.0.0.1 and 127.1 are all
    127.0.0.1. Whatever ends like a number and is not four plain numbers is refused.
    """
    try:
        if ":" in host:
            return IPv6Address(host)
        return IPv4Address(host) if _ends_in_a_number(host) else None
    except AddressValueError as exc:
        raise InvalidRequest(
            f"{host!r} is not how an address is written", remedy="write 93.184.216.34, [2606:4700::1111] or a name"
        ) from exc


def _ends_in_a_number(host: str) -> bool:
    labels = host.rstrip(".").lower().split(".")
    return labels[-1].isdecimal() or labels[-1].startswith("0x")


def why_refused(address: Address, allowed: Iterable[Network] = ()) -> str:
    """What the address is that it may not be called, or nothing if it may."""
    networks = tuple(allowed)
    if isinstance(address, IPv4Address):
        return "" if _within(address, networks) else _kind(address, _REFUSED_4)
    if address.scope_id is not None:
        return "an address of one network interface"
    if _within(address, networks):
        return ""
    if address.ipv4_mapped is not None:
        return why_refused(address.ipv4_mapped, networks)
    if address in _NAT64:
        return why_refused(IPv4Address(int(address) & 0xFFFFFFFF), networks)
    kind = _kind(address, _REFUSED_6)
    return kind if kind or address in _PUBLIC_6 else "a reserved address"


def _within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _kind(address: Address, refused: Iterable[tuple[Network, str]]) -> str:
    return next((kind for network, kind in refused if address in network), "")


def check_address(text: str, allowed: Iterable[Network], name: str) -> None:
    """Raises unless this address, which `name` leads to, may be called.

    The message does not say where the name leads: the caller who reads it may be asking for just that.
    """
    try:
        kind = why_refused(ip_address(text), allowed)
    except ValueError:
        kind = "no address at all"
    if kind:
        raise InvalidRequest(f"webhooks are not sent to {name}: it leads to {kind}", remedy=_REMEDY)
