"""What passes between the client of a preview and the server inside a sandbox.

Nothing that a sandbox answers has an effect beyond its own origin. The proxy uses it; the client's credentials are
taken out before (http/preview_credentials.py).
"""

import re
from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

from warren.http.client.headers import HOP_BY_HOP, STATUSES_WITHOUT_BODY, Header, named_in_connection
from warren.http.preview_credentials import is_our_cookie
from warren.model.preview import LOCALHOST, Preview

_NEVER_TO_SANDBOX: Final = frozenset(
    {b"x-api-key", b"forwarded", b"x-real-ip", b"expect", b"x-forwarded-host", b"x-forwarded-proto", b"host"}
)
_NEVER_PREFIXES: Final = (b"x-warren-", b"x-forwarded-", b"proxy-")
_NEVER_TO_CLIENT: Final = frozenset({b"date", b"alt-svc", b"strict-transport-security", b"public-key-pins"})
_NEVER_BY_PATH: Final = frozenset({b"clear-site-data", b"service-worker-allowed", b"nel", b"report-to"})
_BAD: Final = re.compile(rb"[\r\n\0]")
PATH_POLICY: Final = (
    b"content-security-policy",
    b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads",
)
"""Takes the origin from a page that is read by path: it would otherwise have the API's."""


def for_sandbox(scope: Scope, preview: Preview, client_host: bytes) -> list[Header]:
    """Returns the head of the request that the server inside gets, Host first."""
    headers: list[Header] = scope["headers"]
    left_out = HOP_BY_HOP | _NEVER_TO_SANDBOX | named_in_connection(headers)
    seen_host = _seen_host(preview, client_host)
    scheme = b"https" if scope.get("scheme") in ("https", "wss") else b"http"
    sent = [(b"host", seen_host)]
    for name, value in headers:
        if name in left_out or name.startswith(_NEVER_PREFIXES):
            continue
        if name == b"origin" and seen_host != client_host and value == scheme + b"://" + client_host:
            value = b"http://" + seen_host
        sent.append((name, value))
    client = scope["client"][0] if scope.get("client") else ""
    sent += [(b"x-forwarded-for", client.encode("latin-1", "replace")), (b"x-forwarded-proto", scheme)]
    sent += [(b"x-forwarded-host", client_host), (b"connection", b"close")]
    return sent


def _seen_host(preview: Preview, client_host: bytes) -> bytes:
    """Returns what the server inside sees as the host."""
    if preview.masked_host and not preview.local_host:
        return preview.masked_host.encode()
    if preview.local_host or not preview.by_host:
        return b"%s:%d" % (LOCALHOST.encode(), preview.port)
    return client_host


def for_client(status: int, headers: Iterable[Header], preview: Preview) -> list[Header]:
    """Returns the headers of the answer that the client gets."""
    left_out = _NEVER_TO_CLIENT if preview.by_host else _NEVER_TO_CLIENT | _NEVER_BY_PATH
    if status in STATUSES_WITHOUT_BODY:
        left_out |= {b"content-length"}  # the server would wait for that many bytes
    kept = []
    for name, value in headers:
        if name in left_out or name.startswith(b"x-warren-") or _BAD.search(value):
            continue
        if name == b"set-cookie":
            if (cookie := _own_cookie(value, preview)) is None:
                continue
            value = cookie
        kept.append((name, value))
    if not preview.by_host:
        kept.append(PATH_POLICY)
    return kept


def _own_cookie(value: bytes, preview: Preview) -> bytes | None:
    """Returns a cookie of the preview's own host, or by path of its own path: never of a domain, never one of ours."""
    pair, *attributes = value.split(b";")
    if is_our_cookie(pair):
        return None
    left_out = {b"domain"} if preview.by_host else {b"domain", b"path"}
    kept = [one for one in attributes if one.partition(b"=")[0].strip().lower() not in left_out]
    if not preview.by_host:
        kept.append(b" Path=%s/" % preview.prefix)
    return b";".join([pair, *kept])
