"""Writes the bytes before a request's body, and decides which headers pass between client and worker.

`client` writes request heads with it, `forwarding.http_requests` filters headers; `forwarding.websockets` does both.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from starlette.types import Scope

from warren.http.server.http_guard import SECURITY_HEADERS
from warren.kernel.tracing import TRACEPARENT, TRACESTATE
from warren.model.errors import InvalidRequest
from warren.model.numbers import read_digits

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"http2-settings"}
)
"""Headers that concern one connection only, as does every header that begins with `proxy-`."""
STATUSES_WITHOUT_BODY: Final = frozenset({204, 304})
_CLIENT_ONLY: Final = frozenset({b"authorization", b"x-api-key", b"cookie", b"origin", b"expect"})
_NOT_FORWARDED_PREFIXES: Final = (b"proxy-", b"x-warren-")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_ALWAYS_FORWARDED: Final = frozenset({b"content-length", b"host"})
_SET_BY_COORDINATOR: Final = frozenset(
    {b"date", b"x-request-id", b"strict-transport-security", *(name for name, _ in SECURITY_HEADERS)}
)
_DATE: Final = frozenset({b"date"})
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


def request_head(method: str, target: bytes, headers: Iterable[Header], framing: Header | None) -> bytes:
    """Returns everything before the body. `framing` replaces whatever the headers say about the body's length.

    Raises `InvalidRequest` if a line break or a space would turn it into another request, or into several.
    """
    lines = [b"%s %s HTTP/1.1" % (method.encode("ascii"), target)]
    lines += [b"%s: %s" % header for header in headers if header[0] not in _FRAMING]
    if framing is not None:
        lines.append(b"%s: %s" % framing)
    head = b"\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head or lines[0].count(b" ") != 2:
        raise InvalidRequest("a header or the path of the request has a line break or a space where none may be")
    return head + b"\r\n\r\n"


def framing_of(method: str, body: bytes) -> Header | None:
    """Returns the header that frames a complete body; None for an empty body where none is expected."""
    if not body and method not in _METHODS_WITH_BODY:
        return None
    return b"content-length", b"%d" % len(body)


def content_length(headers: Iterable[Header]) -> int | None:
    """Returns the content-length among the headers; None means that the body is sent in chunks. Raises
    `InvalidRequest`."""
    for name, value in headers:
        if name == b"content-length":
            length = read_digits(value)
            if length is None:
                raise InvalidRequest("the content-length of the request is not a number")
            return length
    return None


class Passes(Enum):
    """What of a client's headers a worker may see: for itself no credentials; of a preview all that is left, which is
    the sandbox's; with the token of a sandbox `authorization`, which says who is to act there."""

    USUAL = frozenset({*HOP_BY_HOP, *_CLIENT_ONLY})
    PREVIEW = frozenset({*HOP_BY_HOP, b"expect"})
    SANDBOX_TOKEN = frozenset({*HOP_BY_HOP, *_CLIENT_ONLY}) - {b"authorization"}


def headers_for_worker(
    scope: Scope,
    added: Sequence[Header],
    *,
    without: frozenset[bytes] = frozenset(),
    passes: Passes = Passes.USUAL,
) -> list[Header]:
    """Returns the client's headers that a worker may see, Host first, then `added`, which replace the client's."""
    left_out = passes.value | without | {name for name, _ in added}
    if TRACEPARENT in left_out:
        left_out |= {TRACESTATE}  # tracestate belongs to the traceparent that is replaced
    headers: list[Header] = scope["headers"]
    left_out |= named_in_connection(headers)
    kept = [
        (name, value)
        for name, value in headers
        if name not in left_out and not name.startswith(_NOT_FORWARDED_PREFIXES)
    ]
    kept.sort(key=lambda header: header[0] != b"host")
    return [*kept, *added]


def headers_for_client(status: int, headers: Iterable[Header], *, of_sandbox: bool = False) -> list[Header]:
    """Returns the worker's headers without x-warren-* and without those that the coordinator's server adds itself. The
    server adds only a date to a sandbox's response."""
    left_out = _DATE if of_sandbox else _SET_BY_COORDINATOR
    if status in STATUSES_WITHOUT_BODY:
        left_out |= {b"content-length"}  # the server would wait for that many bytes
    return [header for header in headers if header[0] not in left_out and not header[0].startswith(b"x-warren-")]


def request_target(scope: Scope) -> bytes:
    """Returns path and query of the request, byte for byte as the client sent them."""
    path: bytes = scope["raw_path"] or b"/"
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def named_in_connection(headers: Iterable[Header]) -> set[bytes]:
    """Returns the headers that the client's Connection header limits to this connection."""
    values = [value for name, value in headers if name == b"connection"]
    return {token.strip().lower() for value in values for token in value.split(b",")} - _ALWAYS_FORWARDED
