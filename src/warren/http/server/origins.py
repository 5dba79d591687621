"""Which hosts a request may name, and which web pages may send one. Pure: texts in, yes or no out."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from warren.model.addresses import is_loopback
from warren.model.errors import InvalidRequest

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Authority(NamedTuple):
    """A host and perhaps a port, in the one spelling that can be compared."""

    host: str | IPv4Address | IPv6Address
    port: int | None


def read_authority(text: str) -> Authority | None:
    """`Example.COM.:80`, `[::1]:8000`, `127.0.0.1`; nothing if it is not written properly."""
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
    """Which hosts a request may name: this machine's loopback, what we listen on, and what was allowed.

    An allowed entry is `example.com`, `example.com:8443`, `*.example.com` or `*`. A server that listens on all
    addresses is also reached by address: a name can be made to point here by anybody, an address cannot.
    """

    def __init__(self, listen_host: str, allowed: Sequence[str]) -> None:
        entries = [entry.strip().lower() for entry in allowed if entry.strip()]
        self.all = "*" in entries
        self._suffixes = tuple(entry[1:] for entry in entries if entry.startswith("*."))
        self._allowed = {_must_read(entry) for entry in entries if not entry.startswith("*")}
        bracketed = f"[{listen_host}]" if ":" in listen_host and not listen_host.startswith("[") else listen_host
        listen = read_authority(bracketed)
        self._all_addresses = listen is None or (not isinstance(listen.host, str) and listen.host.is_unspecified)
        if listen is not None and not self._all_addresses:
            self._allowed.add(Authority(listen.host, None))

    def allows(self, asked: Authority) -> bool:
        if (
            self.all
            or is_loopback(asked.host)
            or asked in self._allowed
            or Authority(asked.host, None) in self._allowed
        ):
            return True
        if isinstance(asked.host, str):
            return asked.host.endswith(self._suffixes) if self._suffixes else False
        return self._all_addresses and not asked.host.is_unspecified


def _must_read(entry: str) -> Authority:
    found = read_authority(entry) or read_authority(f"[{entry}]")
    if found is None:
        raise InvalidRequest(f"{entry!r} is not a host", remedy="write it as example.com, example.com:8443 or [::1]")
    return found


class OriginRule:
    """Which web pages may send requests: those this server itself serves, and the allowed ones (`https://a.example`)."""

    def __init__(self, allowed: Sequence[str]) -> None:
        entries = [entry.strip() for entry in allowed if entry.strip()]
        self._all = "*" in entries
        self._allowed = {_must_read_origin(entry) for entry in entries if entry != "*"}

    def allows(self, origin: str, host: Authority | None) -> bool:
        if self._all:
            return True
        request_context = _read_origin(origin)
        if request_context is None:
            return False
        scheme, page = request_context
        if request_context in self._allowed:
            return True
        # The scheme of the Host is unknown behind a proxy that ends TLS, so a Host without a port is of the page's.
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


def _must_read_origin(entry: str) -> tuple[str, Authority]:
    found = _read_origin(entry)
    if found is None:
        raise InvalidRequest(f"{entry!r} is not an origin", remedy="write it as https://example.com")
    return found
