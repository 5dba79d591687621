"""Who asks, when a proxy stands in between: X-Forwarded-For and X-Forwarded-Proto, believed of known proxies only.

Anybody can send these headers. They say something only if the connection comes from a proxy that is trusted, and
then only as far back as trusted proxies have written them: the list is read from its end, and the first address
that is none of theirs is the client. What stands before it may be invented.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.types import Scope

from warren.model.errors import InvalidRequest

_FOR = b"x-forwarded-for"
_PROTO = b"x-forwarded-proto"
_SECURE = {"http": {b"http": "http", b"https": "https"}, "websocket": {b"http": "ws", b"https": "wss"}}
_MOST_HOPS = 32


class TrustedProxies:
    """`entries` are addresses and networks, such as 127.0.0.1 or 10.0.0.0/8."""

    def __init__(self, entries: Sequence[str]) -> None:
        try:
            self._networks = [ip_network(entry, strict=False) for entry in entries]
        except ValueError as exc:
            raise InvalidRequest(f"{exc}", remedy="write a proxy as 127.0.0.1 or 10.0.0.0/8") from exc

    def __bool__(self) -> bool:
        return bool(self._networks)

    def apply(self, scope: Scope) -> None:
        """Puts the client and the scheme that a trusted proxy tells of in the place of the proxy's own."""
        peer = _read(scope["client"][0]) if scope.get("client") else None
        if peer is None or not self._trusts(peer):
            return
        headers = scope["headers"]
        client = self.client_of(peer, [value for name, value in headers if name == _FOR])
        if client != peer:
            scope["client"] = (str(client), 0)
        told = b",".join(value for name, value in headers if name == _PROTO).rpartition(b",")[2].strip().lower()
        scope["scheme"] = _SECURE[scope["type"]].get(told, scope["scheme"])

    def client_of(self, peer: IPv4Address | IPv6Address, forwarded_for: Sequence[bytes]) -> IPv4Address | IPv6Address:
        """The first address, from the end, that is no trusted proxy. What is no address ends the search."""
        hops = b",".join(forwarded_for).decode("latin-1").rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
        for address in _addresses(reversed(hops)):
            peer = address
            if not self._trusts(address):
                break
        return peer

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _addresses(texts: Iterable[str]) -> Iterable[IPv4Address | IPv6Address]:
    for text in texts:
        address = _read(text.strip())
        if address is None:
            return
        yield address


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """`192.0.2.1`, `2001:db8::1`, and with a port `192.0.2.1:80`, `[2001:db8::1]:80`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
