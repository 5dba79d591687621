"""Which URLs and addresses webhooks may be sent to: those of the public Internet, and what the operator allows.

Tenants name the hosts, but the server makes the connections, from a place next to cloud metadata, databases and other
people's routers. So it connects to public unicast addresses only. For IPv4 a table lists what is not public; for IPv6
it names the public range and its exceptions. An address that carries an IPv4 address counts as that one if machines
route it there (mapped, NAT64), and is refused if that way is unused today (compatible, 6to4, Teredo, local NAT64).
URLs are parsed strictly: what a URL means must not depend on who reads it.
"""

import re
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

from yarl import URL

from warren.model.errors import InvalidRequest

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

REMEDY: Final = "name a host on the public Internet, or let the operator allow its network"
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

MAX_URL: Final = 2048
# Servers that read lines and skip those they do not understand (mail, Redis, printers, memcached): the body of a
# request could hold commands for them.
DENIED_PORTS: Final = frozenset({25, 465, 587, 6379, 9100, 11211})
_INVISIBLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2000-\u200f\u2028-\u202f\u2060-\u206f\u3000\ufeff]")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.{{1,254}}\Z)(?:{_LABEL}\.)*{_LABEL}\.?")


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Reads the operator's list. Raises InvalidRequest for a network whose address has bits outside of its mask."""
    return tuple(_network(text) for text in texts)


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError as exc:
        raise InvalidRequest(
            f"{text!r} is not a network: {exc}", remedy="write it like 10.20.0.0/16, 192.168.1.5 or fd00:1::/64"
        ) from exc


def read_address(host: str) -> Address | None:
    """Gives the address that a URL's host is, or None for a name, which has to be looked up.

    Systems accept more as an address than people do: 2130706433, 0x7f.1, 0177.0.0.1 and 127.1 are all 127.0.0.1.
    A host that ends like a number and is not four plain numbers is refused.
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
    """Says why no webhook may be sent to the address; empty if one may."""
    networks = tuple(allowed)
    if isinstance(address, IPv4Address):
        return "" if _is_within(address, networks) else _kind(address, _REFUSED_4)
    if address.scope_id is not None:
        return "an address of one network interface"
    if _is_within(address, networks):
        return ""
    if address.ipv4_mapped is not None:
        return why_refused(address.ipv4_mapped, networks)
    if address in _NAT64:
        return why_refused(IPv4Address(int(address) & 0xFFFFFFFF), networks)
    kind = _kind(address, _REFUSED_6)
    return kind if kind or address in _PUBLIC_6 else "a reserved address"


def _is_within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _kind(address: Address, refused: Iterable[tuple[Network, str]]) -> str:
    return next((kind for network, kind in refused if address in network), "")


def check_address(text: str, allowed: Iterable[Network], name: str) -> None:
    """Raises InvalidRequest unless webhooks may be sent to this address, which `name` resolves to.

    The message does not tell the address: a tenant could otherwise look up names of the internal network.
    """
    try:
        kind = why_refused(ip_address(text), allowed)
    except ValueError:
        kind = "no address at all"
    if kind:
        raise InvalidRequest(f"webhooks are not sent to {name}: it leads to {kind}", remedy=REMEDY)


def read_url(text: str, allowed: Iterable[Network] = ()) -> URL:
    """Parses a URL. Raises InvalidRequest if webhooks may not be sent there.

    An address in it is checked here; a name is checked each time it is resolved.
    """
    url = _parse_url(text)
    if url.scheme not in ("http", "https"):
        raise InvalidRequest("the URL of a webhook begins with https:// or http://")
    if url.raw_user is not None or url.raw_password is not None:
        raise InvalidRequest(
            "the URL of a webhook holds no user and no password", remedy="check the signature of what arrives instead"
        )
    _check_port(url)
    _check_host(url.raw_host or "", allowed)
    return url.with_fragment(None)


def _parse_url(text: str) -> URL:
    if len(text) > MAX_URL:
        raise InvalidRequest(f"the URL of a webhook has at most {MAX_URL} characters, this has {len(text)}")
    if _INVISIBLE.search(text):
        raise InvalidRequest(
            "the URL of a webhook holds no spaces, no control characters and no backslashes",
            remedy="encode them, as %20 and so on",
        )
    try:
        return URL(text)
    except ValueError as exc:
        raise InvalidRequest(f"this is not a URL: {exc}") from exc


def _check_port(url: URL) -> None:
    port = url.port
    if not port or port in DENIED_PORTS:
        raise InvalidRequest(f"webhooks are not sent to port {port}", remedy="use the port of a web server")


def _check_host(host: str, allowed: Iterable[Network]) -> None:
    address = read_address(host)
    if address is not None:
        check_address(str(address), allowed, host)
    elif not _NAME.fullmatch(host):
        raise InvalidRequest(f"{host!r} is not the name of a host")
