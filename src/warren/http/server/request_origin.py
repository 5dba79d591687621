"""Checks where a request comes from: the host it names, the web page that sent it, the client behind a proxy.

Anybody can send X-Forwarded-For and X-Forwarded-Proto. They count only if the connection comes from a trusted proxy,
and only as far back as trusted proxies have written them: the list is read from its end, and the first address that is
not a trusted proxy is the client. Whatever comes before it in the list may be the client's invention.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import Scope

from warren.model.addresses import is_loopback
from warren.model.errors import InvalidRequest

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_FOR = b"x-forwarded-for"
_PROTO = b"x-forwarded-proto"
_SCHEMES = {"http": {b"http": "http", b"https": "https"}, "websocket": {b"http": "ws", b"https": "wss"}}
_MAX_HOPS = 32


class Authority(NamedTuple):
    """A host and perhaps a port, normalized so that they can be compared."""

    host: str | IPv4Address | IPv6Address
    port: int | None


def read_authority(text: str) -> Authority | None:
    """Parses `Example.COM.:80`, `[::1]:8000` or `127.0.0.1`; returns None for anything else."""
    host, colon, port = text.strip().lower().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip().lower(), ""
    elif not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        return None
    canonical = _canonical(host)
    return None if canonical is None else Authority(canonical, int(port) if port else None)


def _canonical(host: str) -> str | IPv4Address | IPv6Address | None:
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1]) if host.endswith("]") and "%" not in host else None
            return address.ipv4_mapped or address if address is not None else None
        return ip_address(host)
    except ValueError:
        name = host.removesuffix(".")
        return name if _NAME.fullmatch(name) else None


class HostRule:
    """Which hosts a request may name: this machine's loopback, the address we listen on, and the allowed ones.

    An allowed entry is `example.com`, `example.com:8443`, `*.example.com` or `*`. If the server listens on all
    addresses, a request may also name any address: anybody can make a name point here, but not an address.
    """

    def __init__(self, listen_host: str, allowed: Sequence[str]) -> None:
        entries = [entry.strip().lower() for entry in allowed if entry.strip()]
        self.all = "*" in entries
        self._suffixes = tuple(entry[1:] for entry in entries if entry.startswith("*."))
        self._allowed = {_parse_host(entry) for entry in entries if not entry.startswith("*")}
        bracketed = f"[{listen_host}]" if ":" in listen_host and not listen_host.startswith("[") else listen_host
        listen = read_authority(bracketed)
        self._all_addresses = listen is None or (not isinstance(listen.host, str) and listen.host.is_unspecified)
        if listen is not None and not self._all_addresses:
            self._allowed.add(Authority(listen.host, None))

    def allows(self, authority: Authority) -> bool:
        if (
            self.all
            or is_loopback(authority.host)
            or authority in self._allowed
            or Authority(authority.host, None) in self._allowed
        ):
            return True
        if isinstance(authority.host, str):
            return authority.host.endswith(self._suffixes) if self._suffixes else False
        return self._all_addresses and not authority.host.is_unspecified


def _parse_host(entry: str) -> Authority:
    found = read_authority(entry) or read_authority(f"[{entry}]")
    if found is None:
        raise InvalidRequest(f"{entry!r} is not a host", remedy="write it as example.com, example.com:8443 or [::1]")
    return found


class OriginRule:
    """Which web pages may send requests: those of this server itself, and the allowed ones (`https://a.example`)."""

    def __init__(self, allowed: Sequence[str]) -> None:
        entries = [entry.strip() for entry in allowed if entry.strip()]
        self._all = "*" in entries
        self._allowed = {_parse_origin(entry) for entry in entries if entry != "*"}

    def allows(self, origin: str, host: Authority | None) -> bool:
        if self._all:
            return True
        given = _read_origin(origin)
        if given is None:
            return False
        scheme, page = given
        if given in self._allowed:
            return True
        # Behind a proxy that ends TLS, the scheme of the Host is unknown: without a port it is taken to be the page's.
        return host is not None and page == Authority(host.host, host.port or _DEFAULT_PORTS[scheme])


def _read_origin(text: str) -> tuple[str, Authority] | None:
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or parts.path not in ("", "/") or parts.query or parts.fragment:
        return None
    found = read_authority(parts.netloc)
    return None if found is None else (parts.scheme, Authority(found.host, found.port or _DEFAULT_PORTS[parts.scheme]))


def _parse_origin(entry: str) -> tuple[str, Authority]:
    found = _read_origin(entry)
    if found is None:
        raise InvalidRequest(f"{entry!r} is not an origin", remedy="write it as https://example.com")
    return found


def is_secure_for_browser(scope: Scope) -> bool:
    """Returns whether a browser keeps a Secure cookie of this response: over HTTPS, or from its own machine.

    Behind a proxy that ends TLS and is not trusted, the page's own origin shows that it was loaded over HTTPS. A client
    gains nothing by lying: the browser decides.
    """
    headers = dict(scope["headers"])
    if scope["scheme"] == "https" or headers.get(b"origin", b"").startswith(b"https://"):
        return True
    authority = read_authority(headers.get(b"host", b"").decode("latin-1"))
    return authority is not None and is_loopback(authority.host)


class TrustedProxies:
    """The proxies whose headers count. `entries` are addresses and networks, such as 127.0.0.1 or 10.0.0.0/8."""

    def __init__(self, entries: Sequence[str]) -> None:
        try:
            self._networks = [ip_network(entry, strict=False) for entry in entries]
        except ValueError as exc:
            raise InvalidRequest(f"{exc}", remedy="write a proxy as 127.0.0.1 or 10.0.0.0/8") from exc

    def __bool__(self) -> bool:
        return bool(self._networks)

    def apply(self, scope: Scope) -> None:
        """Replaces the client and the scheme in the scope by those that a trusted proxy reports."""
        peer = _read_address(scope["client"][0]) if scope.get("client") else None
        if peer is None or not self._trusts(peer):
            return
        headers = scope["headers"]
        client = self.client_of(peer, [value for name, value in headers if name == _FOR])
        if client != peer:
            scope["client"] = (str(client), 0)
        proto = b",".join(value for name, value in headers if name == _PROTO).rpartition(b",")[2].strip().lower()
        scope["scheme"] = _SCHEMES[scope["type"]].get(proto, scope["scheme"])

    def client_of(self, peer: IPv4Address | IPv6Address, forwarded_for: Sequence[bytes]) -> IPv4Address | IPv6Address:
        """Returns the last address that is not a trusted proxy. Stops at a text that is not an address."""
        hops = b",".join(forwarded_for).decode("latin-1").rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]
        for address in _read_addresses(reversed(hops)):
            peer = address
            if not self._trusts(address):
                break
        return peer

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _read_addresses(texts: Iterable[str]) -> Iterable[IPv4Address | IPv6Address]:
    for text in texts:
        address = _read_address(text.strip())
        if address is None:
            return
        yield address


def _read_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parses `192.0.2.1` or `2001:db8::1`, also with a port: `192.0.2.1:80`, `[2001:db8::1]:80`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
