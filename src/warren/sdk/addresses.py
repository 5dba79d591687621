"""The address of a server, as clients are given it."""

from typing import NamedTuple
from urllib.parse import urlsplit

from warren.model.errors import InvalidRequest


class ServerAddress(NamedTuple):
    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_address(server_url: str) -> ServerAddress:
    try:
        parts = urlsplit(server_url if "://" in server_url else f"http://{server_url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise InvalidRequest(f"{server_url!r} is not the URL of a server: {exc}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"{server_url!r} is not the URL of a server", remedy="such as http://localhost:8000")
    return ServerAddress(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))
