"""The head of a request to a worker as bytes, and which headers go from one side to the other."""

from collections.abc import Iterable, Sequence
from typing import Final

from starlette.types import Scope

from warren.http.server.http_guard import CAUTION
from warren.model.errors import InvalidRequest

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"http2-settings"}
)
"""What concerns one connection only, beside everything that begins with `proxy-`."""
_OF_THE_CLIENT: Final = frozenset({b"authorization", b"x-api-key", b"cookie", b"origin", b"expect"})
_KEPT_BACK: Final = HOP_BY_HOP | _OF_THE_CLIENT
_KEPT_BACK_FAMILIES: Final = (b"proxy-", b"x-warren-")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_NEVER_OPTIONAL: Final = frozenset({b"content-length", b"host"})
BODILESS: Final = frozenset({204, 304})
_OURS: Final = frozenset({b"date", b"x-request-id", b"strict-transport-security", *(name for name, _ in CAUTION)})
_BODY_EXPECTED: Final = frozenset({"POST", "PUT", "PATCH"})


def request_head(method: str, target: bytes, headers: Iterable[Header], framing: Header | None) -> bytes:
    """Everything before the body. What frames the body is `framing`, whatever the headers say.

    Raises `InvalidRequest` if a line break or a space would make it more, or another, than one request.
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
    """How a body that is there is framed: one that is empty goes without saying, where none is expected."""
    if not body and method not in _BODY_EXPECTED:
        return None
    return b"content-length", b"%d" % len(body)


def stated_length(headers: Iterable[Header]) -> int | None:
    """The content-length among the headers; without one, the body goes in chunks."""
    for name, value in headers:
        if name == b"content-length":
            if not value.isdigit():
                raise InvalidRequest("the content-length of the request is not a number")
            return int(value)
    return None


def headers_for_worker(
    scope: Scope, added: Sequence[Header], *, without: frozenset[bytes] = frozenset()
) -> list[Header]:
    """The client's headers that a worker may see, Host first, and then those `added`, which replace the client's."""
    left_out = _KEPT_BACK | without | {name for name, _ in added}
    headers: list[Header] = scope["headers"]
    kept = [header for header in headers if header[0] not in left_out and not header[0].startswith(_KEPT_BACK_FAMILIES)]
    if named := _named_by_connection(headers):
        kept = [header for header in kept if header[0] not in named]
    kept.sort(key=_is_not_host)
    return [*kept, *added]


def headers_for_client(status: int, headers: Iterable[Header]) -> list[Header]:
    """All but what the coordinator's own server says, and what workers and coordinators say to each other."""
    # Without a body there may still be a length, which a server would wait for.
    left_out = _OURS | {b"content-length"} if status in BODILESS else _OURS
    return [header for header in headers if header[0] not in left_out and not header[0].startswith(b"x-warren-")]


def target_of(scope: Scope) -> bytes:
    """Path and query of the request, byte by byte as the client sent them."""
    path: bytes = scope["raw_path"] or b"/"
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def _named_by_connection(headers: Iterable[Header]) -> set[bytes]:
    """Which headers the client says are for this connection only."""
    values = [value for name, value in headers if name == b"connection"]
    named = {token.strip().lower() for value in values for token in value.split(b",")}
    return named - _NEVER_OPTIONAL


def _is_not_host(header: Header) -> bool:
    return header[0] != b"host"
