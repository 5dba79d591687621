"""What both transports need: addresses, errors as exceptions, which request may be repeated, events from a stream."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from warren.model.errors import InvalidRequest, ServerUnreachable, Unavailable, WarrenError

RETRIES: Final = 3
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0  # beyond what the request itself may take
CHUNK: Final = 256 * 1024
_SAFE: Final = frozenset({"GET", "PUT", "DELETE", "HEAD"})


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


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. A `key` makes it safe to repeat, or it is `repeatable` anyway; `takes_s`: the server may be at it."""

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    values: Any = None
    key: str = ""
    accept: str = ""
    takes_s: float = 0.0
    repeatable: bool = False

    @property
    def safe(self) -> bool:
        return self.repeatable or bool(self.key) or self.method in _SAFE

    @property
    def target(self) -> str:
        given = {name: _text(value) for name, value in (self.query or {}).items() if value not in (None, "")}
        asked = urlencode(given, errors="surrogateescape")
        return f"{quote(self.path)}?{asked}" if asked else quote(self.path)

    def headers(self, api_key: str) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if self.values is not None:
            headers["Content-Type"] = "application/json"
        if self.key:
            headers["Idempotency-Key"] = self.key
        if self.accept:
            headers["Accept"] = self.accept
        return headers

    @property
    def body(self) -> bytes | None:
        return None if self.values is None else json.dumps(self.values).encode()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def raised(status: int, body: bytes, retry_after: str | None = None) -> WarrenError:
    """The server's error as the exception it was there."""
    try:
        problem = json.loads(body)
        code, detail, remedy = problem["code"], problem["detail"], problem.get("remedy", "")
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace").strip()
        return Unavailable(f"the server answered {status}, and not as Warren does: {text or 'nothing'}")
    kind = WarrenError.by_code.get(code, WarrenError)
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return kind(detail, remedy=remedy, retry_after_s=seconds)


def from_event(values: Mapping[str, Any]) -> WarrenError:
    """An error that came in a stream."""
    kind = WarrenError.by_code.get(values.get("code", ""), WarrenError)
    return kind(values.get("detail", "the stream ended with an error"), remedy=values.get("remedy", ""))


def unreachable(address: Address, exc: BaseException) -> ServerUnreachable:
    why = str(exc) or type(exc).__name__
    return ServerUnreachable(
        f"the server at {address.url} cannot be reached: {why}", remedy="is it running? Start one with `warren serve`"
    )


def cut_off(address: Address, ask: Ask, exc: BaseException) -> ServerUnreachable:
    why = str(exc) or type(exc).__name__
    return ServerUnreachable(
        f"the connection to {address.url} broke during {ask.method} {ask.path}: {why}",
        remedy="it may or may not have been done" + ("" if ask.safe else "; exactly_once=True makes it safe to repeat"),
    )


def pause_before(attempt: int, error: WarrenError | None) -> float | None:
    """How long to wait before the next attempt; None: there is none."""
    if attempt >= RETRIES or (error is not None and not error.retryable):
        return None
    asked = error.retry_after_s if error is not None else None
    return min(asked if asked is not None else FIRST_PAUSE_S * 4**attempt, LONGEST_PAUSE_S)


class Events:
    """Server-sent events from the bytes they came in: pairs of name and values."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        for block in whole:
            name, values = "", ""
            for line in block.decode().splitlines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    values = line[6:]
            if name:
                yield name, json.loads(values)
