"""What both transports need: addresses, errors as exceptions, which request may be repeated, events from a stream."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from warren.model.errors import (
    InvalidRequest,
    LimitReached,
    NoCapacity,
    NotFound,
    ProtocolError,
    ServerUnreachable,
    Unauthorized,
    Unavailable,
    WarrenError,
)

KEPT_S: Final = 60.0  # for so long a connection is used again; servers keep it longer
CHUNK: Final = 256 * 1024
_SAFE: Final = frozenset({"GET", "PUT", "DELETE", "HEAD"})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a transport waits, and how often it tries again. `answer_s` is beyond what the request itself may take.

    The pauses between attempts grow; where the server says when to come back, that counts, up to the longest pause.
    """

    retries: int = 3
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    connect_s: float = 10.0
    answer_s: float = 60.0


PATIENCE: Final = Patience()


def new_key() -> str:
    """An Idempotency-Key. As secrets.token_hex makes it, without what else that module loads."""
    return os.urandom(16).hex()


class Address(NamedTuple):
    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def read_address(server_url: str) -> Address:
    try:
        parts = urlsplit(server_url if "://" in server_url else f"http://{server_url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise InvalidRequest(f"{server_url!r} is not the URL of a server: {exc}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"{server_url!r} is not the URL of a server", remedy="such as http://localhost:8000")
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def check_key(api_key: str) -> str:
    if not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequest(
            "the API key has characters that no key has", remedy="look for line breaks and blanks in WARREN_API_KEY"
        )
    return api_key


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `path` is quoted. A `key` makes it safe to repeat, or it is `repeatable` anyway.

    `takes_s`: for so long the server may be at it. `part`: of a file, as a Range.
    """

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    values: Any = None
    key: str = ""
    accept: str = ""
    takes_s: float = 0.0
    repeatable: bool = False
    part: str = ""

    @property
    def safe(self) -> bool:
        return self.repeatable or bool(self.key) or self.method in _SAFE

    @property
    def target(self) -> str:
        given = [
            (name, _text(each))
            for name, value in (self.query or {}).items()
            if value is not None
            for each in (value if isinstance(value, list | tuple) else [value])
        ]
        asked = urlencode(given, errors="surrogateescape")
        return f"{self.path}?{asked}" if asked else self.path

    def headers(self, api_key: str) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if self.values is not None:
            headers["Content-Type"] = "application/json"
        if self.key:
            headers["Idempotency-Key"] = self.key
        if self.accept:
            headers["Accept"] = self.accept
        if self.part:
            headers["Range"] = self.part
        return headers

    @property
    def body(self) -> bytes | None:
        return None if self.values is None else json.dumps(self.values).encode()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def answered(status: int, body: bytes, retry_after: str | None = None) -> Any:
    """The values of an answer; an error is raised as the exception it was in the server."""
    if not 200 <= status < 300:
        raise raised(status, body, retry_after)
    try:
        return json.loads(body) if body else None
    except ValueError:
        raise _not_warren(status, body) from None


def raised(status: int, body: bytes, retry_after: str | None = None) -> WarrenError:
    try:
        problem = json.loads(body)
        code, detail, remedy = problem["code"], problem["detail"], problem.get("remedy", "")
    except (ValueError, KeyError, TypeError):
        return _not_warren(status, body)
    kind = WarrenError.by_code.get(code, WarrenError)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return kind(detail, remedy=remedy, retry_after_s=seconds)


def _not_warren(status: int, body: bytes) -> WarrenError:
    """From a proxy, or from another server altogether."""
    text = body[:200].decode(errors="replace").strip()
    message = f"the server answered {status}, and not as Warren does: {text or 'nothing'}"
    if status == 401:
        return Unauthorized(message, remedy="set WARREN_API_KEY, or give api_key")
    if status in (502, 503, 504):
        return Unavailable(message)
    return ProtocolError(message, remedy="check the URL of the server")


def from_event(values: Mapping[str, Any]) -> WarrenError:
    """An error that came in a stream."""
    kind = WarrenError.by_code.get(values.get("code", ""), WarrenError)
    return kind(values.get("detail", "the stream ended with an error"), remedy=values.get("remedy", ""))


def unreachable(address: Address, exc: BaseException) -> ServerUnreachable:
    why = str(exc) or type(exc).__name__
    remedy = "is it running? Start one with `warren serve`"
    if "CERTIFICATE_VERIFY_FAILED" in why:
        remedy = "if its certificate is of an authority of your own, name that one's file in SSL_CERT_FILE"
    return ServerUnreachable(f"the server at {address.url} cannot be reached: {why}", remedy=remedy)


def cut_off(address: Address, ask: Ask, exc: BaseException) -> ServerUnreachable:
    late = isinstance(exc, TimeoutError)
    why = "no answer came in time" if late else str(exc) or type(exc).__name__
    return ServerUnreachable(
        f"the connection to {address.url} broke during {ask.method} {ask.path}: {why}",
        remedy="it may or may not have been done" + ("" if ask.safe else "; exactly_once=True makes it safe to repeat"),
    )


def pause_before(attempt: int, ask: Ask, error: WarrenError, patience: Patience) -> float | None:
    """How long to wait before the next attempt; None: there is none.

    Where the server, or this client, has waited already, another attempt would only make the wait longer.
    """
    waited = isinstance(error, (NoCapacity, LimitReached)) or isinstance(error.__cause__, TimeoutError)
    if not ask.safe or attempt >= patience.retries or waited or not error.retryable:
        return None
    asked = error.retry_after_s
    return min(asked if asked is not None else patience.first_pause_s * 4**attempt, patience.longest_pause_s)


def done_before(attempt: int, ask: Ask, error: WarrenError) -> bool:
    """What is to be removed is not there when it is asked again: the attempt before has done it."""
    return attempt > 0 and ask.method == "DELETE" and isinstance(error, NotFound)


class Events:
    """Server-sent events from the bytes they came in: pairs of name and values."""

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
