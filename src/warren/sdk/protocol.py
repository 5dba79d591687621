"""The HTTP protocol of the clients, without any I/O: both transports are built from these parts.

Addresses, requests, error responses as exceptions, which request may be repeated and when, events of a stream.
"""

import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.parse import quote, urlencode

from warren.model.api import OPERATIONS, Reads
from warren.model.errors import (
    ImageBuilding,
    InvalidRequest,
    LimitReached,
    NoCapacity,
    NotFound,
    ProtocolError,
    ServerUnreachable,
    SessionMismatch,
    Unauthorized,
    Unavailable,
    WarrenError,
)
from warren.model.mismatch import describe
from warren.sdk.addresses import ServerAddress
from warren.sdk.discovery import key_remedy

IDLE_CONNECTION_S: Final = 60.0  # an idle connection is reused for this long; servers keep it open longer
CHUNK_BYTES: Final = 256 * 1024
COMMAND_TIMEOUT_S: Final = 120.0  # the same as the server's, unless its operator has changed that
CREATE_S: Final = 60.0  # creating a session may have to wait for a sandbox
IMAGE_TIMEOUT_S: Final = 900.0  # how long a new session waits for an image that is being built
_ANSWER_SLACK_S: Final = 30.0
_LONGEST_S: Final = 30 * 86400.0
_SAFE_METHODS: Final = frozenset({"GET", "PUT", "DELETE", "HEAD"})
_MORE_THAN_A_KEY: Final = re.compile(r"""(?i).*\s|['"]?(x-api-key|authorization):|['"](wk|e2b)_""")


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How long a transport waits, and how often it tries again.

    `answer_timeout_s` comes on top of the time that the request itself may take. The pauses between attempts grow; a
    server that names a pause itself (Retry-After) is obeyed, up to the longest pause.
    """

    retries: int = 3
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0


DEFAULT_OPTIONS: Final = TransportOptions()


def new_key() -> str:
    """Makes an Idempotency-Key. The same as secrets.token_hex, without the modules that `secrets` loads."""
    return os.urandom(16).hex()


def work_s(limit_s: float) -> float:
    """Returns how long the server may work on a command with this time-out; 0 means none. Raises InvalidRequest."""
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float):
        raise InvalidRequest(f"timeout is {limit_s!r}, it must be a number of seconds", remedy="such as timeout=30")
    return (limit_s or _LONGEST_S) + _ANSWER_SLACK_S


def check_api_key(api_key: str) -> str:
    if not (api_key.isascii() and api_key.isprintable()) or _MORE_THAN_A_KEY.match(api_key):
        raise InvalidRequest(
            "the API key has characters that no key has",
            remedy="it is the key alone: look for line breaks, blanks, quotes and a header's name in WARREN_API_KEY",
        )
    return api_key


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request to the server. `path` is already quoted; `values` become the JSON body.

    `key` is the Idempotency-Key, which makes the request safe to repeat; `repeatable` says that it is safe without
    one. `work_s` is how long the server may work on it, `byte_range` the value of the Range header.
    """

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    values: Any = None
    key: str = ""
    accept: str = ""
    work_s: float = 0.0
    repeatable: bool = False
    byte_range: str = ""

    @property
    def is_safe_to_repeat(self) -> bool:
        return self.repeatable or bool(self.key) or self.method in _SAFE_METHODS

    @property
    def target(self) -> str:
        """The path with its query string; parameters that are None are left out."""
        parameters = [
            (name, _query_text(each))
            for name, value in (self.query or {}).items()
            if value is not None
            for each in (value if isinstance(value, list | tuple) else [value])
        ]
        encoded = urlencode(parameters, errors="surrogateescape")
        return f"{self.path}?{encoded}" if encoded else self.path

    def headers(self, api_key: str) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if self.values is not None:
            headers["Content-Type"] = "application/json"
        if self.key:
            headers["Idempotency-Key"] = self.key
        if self.accept:
            headers["Accept"] = self.accept
        if self.byte_range:
            headers["Range"] = self.byte_range
        return headers | _trace_headers()

    @property
    def body(self) -> bytes | None:
        return None if self.values is None else json.dumps(self.values).encode()


def request_for(operation: str, session_id: str, arguments: Mapping[str, Any], **more: Any) -> ClientRequest:
    """Makes the request of an operation from its row of the table; arguments that are None are left out."""
    row = OPERATIONS[operation]
    given = {name: value for name, value in arguments.items() if value is not None}
    named = {"session_id": session_id, **{name: given.pop(name) for name in row.names_in_path if name in given}}
    path = row.path.format(**{name: quote(value, safe="") for name, value in named.items()})
    method = "GET" if row.method == "WEBSOCKET" else row.method
    if row.reads not in (Reads.JSON, Reads.OPTIONAL_JSON):
        return ClientRequest(method, path, given, repeatable=row.repeatable, **more)
    query = {name: given.pop(name) for name in row.in_query if name in given}
    return ClientRequest(method, path, query, values=given, repeatable=row.repeatable, **more)


def byte_range(offset: int, length: int | None) -> str:
    """Returns the value of the Range header; empty for the whole file."""
    if not offset and length is None:
        return ""
    return f"bytes={offset}-{'' if length is None else offset + length - 1}"


def _trace_headers() -> dict[str, str]:
    """Returns headers that make the server's work part of the caller's trace, if the program uses OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    context = api.get_current_span().get_span_context() if api is not None else None
    if context is None or not context.is_valid:
        return {}
    headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    return headers | ({"tracestate": state} if (state := context.trace_state.to_header()) else {})


def _query_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- responses and errors


def parse_response(status: int, body: bytes, api_key: str = "", retry_after: str | None = None) -> Any:
    """Returns the JSON of a response; raises an error response as the exception that the server raised."""
    if not 200 <= status < 300:
        raise error_from_response(status, body, api_key, retry_after)
    try:
        return json.loads(body) if body else None
    except ValueError:
        raise _foreign_response(status, body) from None


def error_from_response(status: int, body: bytes, api_key: str = "", retry_after: str | None = None) -> WarrenError:
    """Returns the exception that the server raised. `api_key` is the one that was sent."""
    try:
        problem = json.loads(body)
        code, detail, remedy = problem["code"], problem["detail"], problem.get("remedy", "")
    except (ValueError, KeyError, TypeError):
        return _foreign_response(status, body)
    kind = WarrenError.by_code.get(code, WarrenError)
    if issubclass(kind, Unauthorized):
        remedy = key_remedy(api_key) or remedy
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    error = kind(detail, remedy=remedy, retry_after_s=seconds)
    if isinstance(error, ImageBuilding):
        error.step, error.fraction = problem.get("step") or "", problem.get("fraction")
        error.about, error.remaining_s = problem.get("about") or "", problem.get("remaining_s")
    if isinstance(error, SessionMismatch):
        error.mismatch = problem.get("mismatch") or {}
    return error


def _foreign_response(status: int, body: bytes) -> WarrenError:
    """Returns the error for a response of a proxy, or of a server that is not Warren."""
    text = body[:200].decode(errors="replace").strip()
    message = f"the server answered {status}, and not as Warren does: {text or 'nothing'}"
    if status == 401:
        return Unauthorized(message, remedy="set WARREN_API_KEY, or give api_key")
    if status in (502, 503, 504):
        return Unavailable(message)
    return ProtocolError(message, remedy="check the URL of the server")


def is_problem(name: str, values: Mapping[str, Any]) -> bool:
    """Returns whether the event reports a failed operation; an `error` without a code is the user's own."""
    return name == "error" and "code" in values


def error_from_event(values: Mapping[str, Any]) -> WarrenError:
    """Returns the exception for an `error` event of a stream or a socket."""
    kind = WarrenError.by_code.get(values.get("code", ""), WarrenError)
    return kind(values.get("detail", "the stream ended with an error"), remedy=values.get("remedy", ""))


def unreachable(address: ServerAddress, exc: BaseException) -> ServerUnreachable:
    reason = str(exc) or type(exc).__name__
    remedy = "is it running? Start one with `warren serve`"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        remedy = "if an authority of your own signed its certificate, name that authority's file in SSL_CERT_FILE"
    elif "[SSL" in reason:
        remedy = f"does it speak HTTPS? If not, its address is {address.url.replace('https://', 'http://')}"
    elif isinstance(getattr(exc, "os_error", exc), socket.gaierror):
        remedy = "check the name in its address"
    return ServerUnreachable(f"the server at {address.url} cannot be reached: {reason}", remedy=remedy)


def connection_lost(
    address: ServerAddress, request: ClientRequest, exc: BaseException, *, was_known: bool = True
) -> ServerUnreachable:
    """Returns the error for a connection that broke during a request. `was_known`: something at this address has
    answered in HTTP before; a server that speaks HTTPS hangs up instead."""
    timed_out = isinstance(exc, TimeoutError)
    reason = "no answer came in time" if timed_out else str(exc) or type(exc).__name__
    hint = "" if request.is_safe_to_repeat else "; exactly_once=True makes it safe to repeat"
    if address.scheme == "http" and not (was_known or timed_out):
        hint += f". Is it HTTPS? Then its address is {address._replace(scheme='https').url}"
    return ServerUnreachable(
        f"the connection to {address.url} broke during {request.method} {request.path}: {reason}",
        remedy=f"the server may or may not have done it{hint}",
    )


def fresh_sandbox_notice(created: Mapping[str, Any]) -> str | None:
    """Returns what the caller should know about a session that took the place of an earlier one of its thread, or that
    is kept although it differs from what was asked for."""
    if created.get("mismatch"):
        return f"This is the session that the thread has, with {describe(created['mismatch'])}."
    previous = created.get("previous")
    if not created.get("created") or previous is None:
        return None
    return (
        f"This is a fresh sandbox: the thread's earlier session ended ({previous['reason']}), and its files are gone."
    )


# -- repetition


def pause_before_retry(
    attempt: int, request: ClientRequest, error: WarrenError, options: TransportOptions
) -> float | None:
    """Returns how long to wait before the next attempt; None if there must not be one.

    Errors that follow a long wait, in the server or here, are not repeated: that would only make the wait longer.
    """
    has_waited = isinstance(error, (NoCapacity, LimitReached, ImageBuilding)) or isinstance(
        error.__cause__, TimeoutError
    )
    if not request.is_safe_to_repeat or attempt >= options.retries or has_waited or not error.retryable:
        return None
    pause_s = error.retry_after_s if error.retry_after_s is not None else options.first_pause_s * 4**attempt
    return min(pause_s, options.longest_pause_s)


def is_already_deleted(attempt: int, request: ClientRequest, error: WarrenError) -> bool:
    """Returns whether a repeated DELETE finds nothing because the attempt before it succeeded."""
    return attempt > 0 and request.method == "DELETE" and isinstance(error, NotFound)


# -- streams


class EventParser:
    """Turns the bytes of server-sent events into pairs of name and values, however the bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        for block in whole:
            name, values = "", ""
            for line in block.decode().split("\n"):
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    values = line[6:]
            if name:
                yield name, json.loads(values)


def read_chunks(source: Iterable[bytes] | IO[bytes]) -> Iterator[bytes]:
    """Yields the bytes of an open file in chunks of CHUNK_BYTES, or those of an iterable as they come."""
    read = getattr(source, "read", None)
    if read is None and not isinstance(source, Iterable):
        raise InvalidRequest(
            f"the data is {type(source).__name__}", remedy="give a text, bytes, an open file, or an iterable of bytes"
        )
    chunks: Iterable[Any] = iter(lambda: read(CHUNK_BYTES), b"") if read is not None else source
    for chunk in chunks:
        yield check_bytes(chunk)


def check_bytes(chunk: Any) -> bytes:
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return bytes(chunk)
    raise InvalidRequest(
        f"a piece of the data is {type(chunk).__name__}, not bytes", remedy="open files in binary mode, encode texts"
    )
