"""Where a webhook is sent, read strictly: what a URL means must not depend on who reads it."""

import re
from collections.abc import Iterable
from typing import Final

from yarl import URL

from warren.model.errors import InvalidRequest
from warren.tenancy.webhooks.addresses import Network, check_address, read_address

MAX_URL: Final = 2048
# Servers that read lines and skip those they do not understand (or print them all): what is in the body of a
# post would be commands to them. Mail, Redis, printers, memcached.
DENIED_PORTS: Final = frozenset({25, 465, 587, 6379, 9100, 11211})
_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2000-\u200f\u2028-\u202f\u2060-\u206f\u3000\ufeff]")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.{{1,254}}\Z)(?:{_LABEL}\.)*{_LABEL}\.?")


def read_url(text: str, allowed: Iterable[Network] = ()) -> URL:
    """The URL if webhooks may be sent there, as far as that can be said without looking up its name.

    An address in it is checked here; a name is checked each time it is looked up.
    """
    url = _parsed(text)
    if url.scheme not in ("http", "https"):
        raise InvalidRequest("the URL of a webhook begins with https:// or http://")
    if url.raw_user is not None or url.raw_password is not None:
        raise InvalidRequest(
            "the URL of a webhook holds no user and no password", remedy="check the signature of what arrives instead"
        )
    _check_port(url)
    _check_host(url.raw_host or "", allowed)
    return url.with_fragment(None)


def _parsed(text: str) -> URL:
    if len(text) > MAX_URL:
        raise InvalidRequest(f"the URL of a webhook has at most {MAX_URL} characters, this has {len(text)}")
    if _UNSEEN.search(text):
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
