"""Which URLs and addresses webhooks may be sent to: those of the public Internet, and what the operator allows.

Tenants name the hosts, but the server makes the connections; `why_not_reached` says which addresses that leaves.
URLs are parsed strictly: what a URL means must not depend on who reads it.
"""

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Final

from yarl import URL

from warren.kernel.own_addresses import why_not_reached
from warren.model.addresses import Address, Network
from warren.model.errors import InvalidRequest

REMEDY: Final = "name a host on the public Internet, or let the operator allow its network"
MAX_URL: Final = 2048
# Servers that read lines and skip those they do not understand (mail, Redis, printers, memcached): the body of a
# request could hold commands for them.
DENIED_PORTS: Final = frozenset({25, 465, 587, 6379, 9100, 11211})
_INVISIBLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2000-\u200f\u2028-\u202f\u2060-\u206f\u3000\ufeff]")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.{{1,254}}\Z)(?:{_LABEL}\.)*{_LABEL}\.?")


def read_address(host: str) -> Address | None:
    """Returns the address that a URL's host is, or None for a name, which has to be looked up.

    Systems accept more as an address than people do: 2130706433, 0x7f.1, 0177.0.0.1 and 127.1 are all 127.0.0.1.
    Raises InvalidRequest for a host that ends like a number and is not four plain numbers.
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


def check_address(text: str, allowed: Iterable[Network], name: str) -> None:
    """Raises InvalidRequest unless webhooks may be sent to this address, which `name` resolves to.

    The message does not tell the address: a tenant could otherwise look up names of the internal network.
    """
    try:
        kind = why_not_reached(ip_address(text), allowed)
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
