"""Addresses of previews: how a request names a port of a session's sandbox.

By path: `/api/sessions/{id}/ports/{port}/…`. By host: `{port}-{label}.{domain}`, where the label is the session's id
without its prefix, because host names cannot contain `_`. `localhost` is always such a domain. A port has only one
spelling, without leading zeros, so that comparing numbers later is safe.
"""

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Final

from warren.model.errors import InvalidRequest, NotFound
from warren.model.network import canonical_name

SESSION_PREFIX: Final = "ses_"
LOCALHOST: Final = "localhost"
TOKEN_HEADER: Final = b"x-warren-preview-token"
HOST_HEADER: Final = b"x-warren-host-header"
TOKEN_PARAMETER: Final = b"warren_token"
CHECKED_HEADER: Final = b"x-warren-preview"
"""A coordinator tells a worker in this header what it has checked."""
SANDBOX_HEADER: Final = b"x-warren-sandbox"
"""A worker tells a coordinator in this header that the answer came from a sandbox."""
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})", re.ASCII)
_ATTEMPT: Final = re.compile(r"[0-9]+-.*", re.ASCII)
_IPV4: Final = re.compile(r"[0-9]+(?:\.[0-9]+){3}", re.ASCII)
_MAX_MASK: Final = 300
PORT_IN_MASK: Final = "${PORT}"
_PATH: Final = re.compile(rb"/api/sessions/(ses_[0-9a-f]{32})/ports/([1-9][0-9]{0,4})(/.*)", re.ASCII | re.DOTALL)


def read_port(text: str) -> int:
    """Reads a port. Raises InvalidRequest for anything but the usual spelling of a number from 1 to 65535."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise InvalidRequest(f"{text[:20]!r} is not a port", remedy="give a number from 1 to 65535")
    return int(text)


def check_port(port: int) -> int:
    if not 1 <= port <= 65535:
        raise InvalidRequest(f"{port} is not a port", remedy="give a number from 1 to 65535")
    return port


class Way(StrEnum):
    """What admits a request: an API key, a link, a public port, or the sandbox's traffic token, which E2B's clients
    send."""

    KEY = "key"
    LINK = "link"
    PUBLIC = "public"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Preview:
    """The port that a request asks for. `by_host`: the host names it, so the page has an origin of its own.

    `generation`: the one in which the link was made. `local_host`: the server in the sandbox sees `localhost` as the
    host. `masked_host`: it sees this one, if `local_host` is not set; empty for no such wish.
    """

    session_id: str
    port: int
    by_host: bool = False
    way: Way = Way.KEY
    generation: int = 0
    local_host: bool = False
    masked_host: str = ""

    @property
    def prefix(self) -> bytes:
        """The prefix of the path form. The rest of the path, from its slash on, goes to the server in the sandbox."""
        return f"/api/sessions/{self.session_id}/ports/{self.port}".encode()

    def let_in(self, way: Way, generation: int = 0, *, local_host: bool = False) -> "Preview":
        return replace(self, way=way, generation=generation, local_host=local_host or self.local_host)

    def encode(self) -> bytes:
        """Returns the value of the header in which a coordinator tells a worker what it has checked."""
        return json.dumps([self.by_host, self.way, self.generation, self.local_host]).encode()

    def with_checked(self, text: bytes) -> "Preview":
        by_host, way, generation, local_host = json.loads(text)
        return replace(self, by_host=by_host, way=Way(way), generation=generation, local_host=local_host)


def preview_of_path(raw_path: bytes) -> Preview | None:
    """Returns the preview that a path names, or None. Reads the path as it was sent, so no percent-encoding can change
    which session and port are meant."""
    match = _PATH.fullmatch(raw_path)
    if match is None or int(match[2]) > 65535:
        return None
    return Preview(match[1].decode(), int(match[2]))


def preview_of_host(host: str, domain: str) -> Preview | None:
    """Returns the preview that a host names, or None if it is not a preview's host. Raises NotFound for a malformed one
    below the domain."""
    label, _, parent = host.partition(".")
    is_below_domain = bool(domain) and host.endswith(f".{domain}")
    if not is_below_domain and not (parent == LOCALHOST and _ATTEMPT.fullmatch(label)):
        return None
    match = _LABEL.fullmatch(label)
    if match is None or parent not in (domain, LOCALHOST) or int(match[1]) > 65535:
        raise NotFound("this is not the address of a preview", remedy="it is PORT-ID, then a dot and the domain")
    return Preview(SESSION_PREFIX + match[2], int(match[1]), by_host=True)


def preview_host(session_id: str, port: int, domain: str) -> str:
    return f"{port}-{session_id.removeprefix(SESSION_PREFIX)}.{domain}"


@dataclass(frozen=True, slots=True)
class PreviewRules:
    """The rules of one session. `generation`: links of an older one are revoked. `public`: ports that need no link.
    `local_host`: ports whose servers see `localhost` as the host of every request.

    Sessions that E2B's clients make set one of `everything` and `by_token`: with the first all ports are public, with
    the second the sandbox's traffic token opens them. `host_mask`: what servers see as the host of every request
    (`check_host_mask`); empty for the real one.
    """

    generation: int = 0
    public: tuple[int, ...] = ()
    local_host: tuple[int, ...] = ()
    everything: bool = False
    by_token: bool = False
    host_mask: str = ""

    @property
    def of_e2b(self) -> bool:
        return self.everything or self.by_token

    def is_public(self, port: int) -> bool:
        return self.everything or port in self.public

    def masked_host(self, port: int) -> str:
        return self.host_mask.replace(PORT_IN_MASK, str(port))


def check_host_mask(text: str) -> str:
    """Returns the mask if it is a host, perhaps with a port, in which `${PORT}` may stand for the port of the sandbox.
    Raises InvalidRequest."""
    host, colon, port = text.replace(PORT_IN_MASK, "65535").partition(":")
    try:
        if not text.isascii() or len(text) > _MAX_MASK:
            raise InvalidRequest("it is too long, or not ASCII")
        if colon:
            read_port(port)
        if _IPV4.fullmatch(host):
            IPv4Address(host)
        else:
            canonical_name(host)
    except (InvalidRequest, ValueError):
        raise InvalidRequest(
            f"{text[:80]!a} is not a host", remedy="write one such as ${PORT}-app.example.com or localhost:${PORT}"
        ) from None
    return text


NO_PREVIEW_RULES: Final = PreviewRules()
MAX_PORTS: Final = 64
