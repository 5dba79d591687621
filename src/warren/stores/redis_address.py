"""Parses the URL of a Redis. `str` and `repr` of an address never contain a password.

    redis://user:password@host:port/db              one server; rediss:// for TLS
    unix://user:password@/path/of/the.sock?db=0     one server, through its socket
    redis+sentinel://…@host:port,host:port/service/db    whichever server the Sentinels call the primary
    redis+cluster://…@host:port,host:port           a cluster, by some of its nodes

Sentinel and Cluster speak TLS as rediss+sentinel:// and rediss+cluster://. Special characters in a user name, a
password or a path are written as %XX. After a question mark there may be: `db`; for TLS `ssl_ca_certs`, `ssl_certfile`,
`ssl_keyfile` (paths) and `ssl_cert_reqs` (required or none); `sentinel_username` and `sentinel_password`, for what the
Sentinels themselves ask for.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, unquote

from warren.model.errors import InvalidRequest
from warren.model.numbers import read_digits

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_REMEDY: Final = "write it as redis://user:password@host:6379/0; %23 for #, %2F for /, %3A for :, %3F for ?, %40 for @"
_TLS_OPTIONS: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"})
_SENTINEL_OPTIONS: Final = frozenset({"sentinel_username", "sentinel_password"})


class RedisKind(StrEnum):
    SERVER = "server"
    SOCKET = "socket"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES: Final = {
    "redis": (RedisKind.SERVER, False),
    "rediss": (RedisKind.SERVER, True),
    "unix": (RedisKind.SOCKET, False),
    "redis+sentinel": (RedisKind.SENTINEL, False),
    "rediss+sentinel": (RedisKind.SENTINEL, True),
    "redis+cluster": (RedisKind.CLUSTER, False),
    "rediss+cluster": (RedisKind.CLUSTER, True),
}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The address of a Redis. `hosts` is empty for a socket, which has a `path`; `service` is its name among the
    Sentinels."""

    kind: RedisKind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        if self.kind is RedisKind.SOCKET:
            return self.path
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{hosts} (Sentinel, {self.service})" if self.kind is RedisKind.SENTINEL else hosts


def read_address(url: str) -> RedisAddress:
    """Parses a URL. Raises InvalidRequest, with a message that quotes nothing of the URL: it could be part of the
    password."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _SCHEMES:
        raise _wrong(f"it must begin with one of {', '.join(f'{name}://' for name in _SCHEMES)}")
    kind, tls = _SCHEMES[scheme]
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    db = options.pop("db", "")
    _check_options(kind, tls, options)
    if kind is RedisKind.SOCKET:
        user, path = _socket(place)
        name, password = _login(user)
        return RedisAddress(kind, (), path, "", _db(db), name, password, tls, options)
    user, _, place = place.rpartition("@")
    names, _, path = place.partition("/")
    service, path = _service(kind, path)
    port = SENTINEL_PORT if kind is RedisKind.SENTINEL else PORT
    hosts = tuple(_host(name, port) for name in names.split(","))
    if len(hosts) > 1 and kind is RedisKind.SERVER:
        raise _wrong("it names several hosts, which only Sentinel and Cluster have")
    number = _db(path or db)
    if number and kind is RedisKind.CLUSTER:
        raise _wrong("a cluster has only the database 0")
    name, password = _login(user)
    return RedisAddress(kind, hosts, "", service, number, name, password, tls, options)


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"the URL of Redis is not right: {why}", remedy=_REMEDY)


def _check_options(kind: RedisKind, tls: bool, options: dict[str, str]) -> None:
    known = (_TLS_OPTIONS if tls else frozenset()) | (_SENTINEL_OPTIONS if kind is RedisKind.SENTINEL else frozenset())
    if not options.keys() <= known:
        raise _wrong(f"after the question mark it may have {', '.join(sorted({'db', *known}))} and nothing else")
    if options.get("ssl_cert_reqs", "none") not in ("none", "required"):
        raise _wrong("ssl_cert_reqs is required or none")


def _socket(place: str) -> tuple[str, str]:
    user, path = ("", place) if place.startswith("/") else place.split("@/", 1) if "@/" in place else ("", "")
    if not path:
        raise _wrong("the path of the socket must begin with a slash")
    return user, unquote(path if path.startswith("/") else f"/{path}")


def _login(user: str) -> tuple[str, str]:
    name, _, password = user.partition(":")
    return unquote(name), unquote(password)


def _service(kind: RedisKind, path: str) -> tuple[str, str]:
    """Returns the service to ask the Sentinels for, and the rest of the path."""
    if kind is not RedisKind.SENTINEL:
        return "", path
    service, _, rest = path.partition("/")
    if not service:
        raise _wrong("after the Sentinels it must name the service: redis+sentinel://host:26379/service")
    return unquote(service), rest


def _db(text: str) -> int:
    number = read_digits(text or "0")
    if number is None:
        raise _wrong("the database is a number")
    return number


def _host(text: str, default: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    number = read_digits(port, 65535) if port else default
    if not number:
        raise _wrong("the port is a number from 1 to 65535")
    return unquote(host) or "localhost", number
