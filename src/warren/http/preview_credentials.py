"""Finds the credentials of previews in a request, and takes them out of it before a sandbox sees it.

`Admission` takes them out when it has identified the caller: nothing that opens the API or a preview reaches a sandbox.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from warren.model.e2b import ACCESS_HEADER, TOKEN_PREFIXES, TRAFFIC_HEADER
from warren.model.preview import TOKEN_PARAMETER, Preview, Way

Header = tuple[bytes, bytes]

COOKIE: Final = b"warren-preview"
SECURE_COOKIE: Final = b"__Host-warren-preview"
_OURS: Final = re.compile(rb"(__Host-|__Secure-)?warren", re.IGNORECASE)


def is_our_cookie(pair: bytes) -> bool:
    """Whether the name of a cookie is one that sandboxes neither see nor set. A browser sends `=NAME=VALUE`, which has
    no name, as if it had one."""
    return _OURS.match(pair.lstrip(b"= \t")) is not None


def clean_request(headers: Iterable[Header], preview: Preview, is_credential: Callable[[str], bool]) -> list[Header]:
    """Returns the client's headers without its credentials of the API, which `is_credential` knows, and of previews."""
    cleaned = []
    is_ours = not preview.by_host or preview.way is Way.KEY
    for name, value in headers:
        if name == b"authorization" and (is_ours or is_credential(_secret_of(value))):
            continue
        if name in (b"x-api-key", TRAFFIC_HEADER) or name.startswith(b"x-warren-"):
            continue
        if name == ACCESS_HEADER and value.startswith(TOKEN_PREFIXES):
            continue
        if name == b"cookie":
            kept = [pair for pair in value.split(b";") if not is_our_cookie(pair)]
            if not (value := b";".join(kept).strip()):
                continue
        cleaned.append((name, value))
    return cleaned


def _secret_of(authorization: bytes) -> str:
    return authorization.partition(b" ")[2].strip().decode("latin-1")


def clean_query(query: bytes) -> bytes:
    """Returns the query without the token of a link."""
    if TOKEN_PARAMETER not in query:
        return query
    pairs = query.split(b"&")
    return b"&".join(pair for pair in pairs if pair.partition(b"=")[0] != TOKEN_PARAMETER)


def token_in_query(query: bytes) -> bytes:
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == TOKEN_PARAMETER:
            return value
    return b""
