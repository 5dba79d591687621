"""A small client for the tests: each call says what answer it expects, and shows the answer when it is another."""

import asyncio
import contextlib
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from this_run import patience
from yarl import URL

EVENT_STREAM = "text/event-stream"
COMMENT = "comment"
_LONGEST_S = 90.0  # well below what pytest gives a test: one that it breaks off takes the event loop with it
_LONGEST_LINE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event; a comment has the kind COMMENT."""

    kind: str
    data: dict[str, Any]
    id: str = ""


class Socket:
    """A WebSocket whose texts are JSON objects with a `type`."""

    def __init__(self, raw: aiohttp.ClientWebSocketResponse) -> None:
        self.raw = raw
        self.binary = b""
        self._deadline = asyncio.get_running_loop().time() + _LONGEST_S

    async def send(self, kind: str, **values: Any) -> None:
        await self.raw.send_json({"type": kind, **values})

    async def next(self) -> dict[str, Any]:
        """The next text that is no sign of life; bytes that come before it are added to `binary`."""
        while True:
            message = await self._receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                self.binary += message.data
            elif message.type is aiohttp.WSMsgType.TEXT:
                if (values := json.loads(message.data))["type"] != "keepalive":
                    return dict(values)
            else:
                raise AssertionError(f"the socket was closed: {message}")

    async def expect(self, kind: str) -> dict[str, Any]:
        values = await self.next()
        assert values["type"] == kind, values
        return values

    async def end(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All that comes before the result, and the result."""
        *before, result = await self.until("result")
        return before, result

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All that comes up to the first of this kind."""
        came = [await self.next()]
        while came[-1]["type"] != kind:
            came.append(await self.next())
        return came

    async def said(self, text: bytes, *, besides: str = "keepalive") -> None:
        """Until the terminal has said this. `besides`: a kind of text that may come before, as signs of life may."""
        while text not in self.binary:
            message = await self._receive()
            is_other = any(f'"{kind}"' in str(message.data) for kind in ("keepalive", besides))
            assert message.type is aiohttp.WSMsgType.BINARY or is_other, message
            if message.type is aiohttp.WSMsgType.BINARY:
                self.binary += message.data

    async def closed(self) -> int:
        message = await self._receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
        return self.raw.close_code or 0

    async def _receive(self) -> aiohttp.WSMessage:
        """Signs of life do not prolong the wait for something else."""
        async with asyncio.timeout_at(self._deadline):
            return await self.raw.receive()


class Connector(aiohttp.TCPConnector):
    """`close` returns when every socket is closed. aiohttp does not wait for TLS connections that it has begun to close
    before, as after an answer with `Connection: close`; they stay open until the server has said goodbye."""

    def __init__(self, **options: Any) -> None:
        super().__init__(limit=0, socket_factory=self._new_socket, **options)
        self._sockets: list[socket.socket] = []

    def _new_socket(self, info: Any) -> socket.socket:
        family, kind, protocol, _, _ = info
        self._sockets = [*self._open_sockets(), socket.socket(family, kind, protocol)]
        return self._sockets[-1]

    def _open_sockets(self) -> list[socket.socket]:
        return [one for one in self._sockets if one.fileno() != -1]

    async def close(self, *, abort_ssl: bool = False) -> None:
        await super().close(abort_ssl=abort_ssl)

        async def is_closed() -> bool:
            return not self._open_sockets()

        await until(is_closed)


class Api:
    """A server, or with `under` a part of it. Parameters of the query are given by name; bytes need not be UTF-8."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, connector: Connector | None = None) -> None:
        self.url = url
        self.headers = dict(headers or {})
        self._connector = connector
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers=self.headers,
            connector=self._connector or Connector(),
            timeout=aiohttp.ClientTimeout(total=_LONGEST_S),
            read_bufsize=_LONGEST_LINE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None
        await self._http.close()

    def ask(
        self, method: str, place: str, /, body: Any = None, *, headers: Mapping[str, str] | None = None,
        data: Any = None, **params: Any,
    ) -> Any:  # fmt: skip
        """The raw answer, as a context."""
        assert self._http is not None
        sent = dict(headers or {})
        if body is not None:
            data, sent = json.dumps(body).encode(), {"Content-Type": "application/json", **sent}
        if isinstance(data, bytes):
            data = io.BytesIO(data)
        return self._http.request(method, self._at(place, params), headers=sent, data=data)

    def _at(self, place: str, params: Mapping[str, Any]) -> URL:
        given = [f"{name}={_quoted(one)}" for name, value in params.items() for one in _listed(value)]
        return URL(f"{self.url}{place}" + (f"?{'&'.join(given)}" if given else ""), encoded=True)

    async def call(self, method: str, place: str, /, body: Any = None, *, status: int = 200, **rest: Any) -> Any:
        async with self.ask(method, place, body, **rest) as answer:
            content = await answer.read()
            assert answer.status == status, f"{answer.status}: {content[:2000]!r}"
            return json.loads(content) if answer.content_type == "application/json" else content

    async def get(self, place: str, /, **rest: Any) -> Any:
        return await self.call("GET", place, **rest)

    async def post(self, place: str, /, body: Any = None, **rest: Any) -> Any:
        return await self.call("POST", place, body, **rest)

    async def refused(
        self, method: str, place: str, /, body: Any = None, *, status: int, code: str, **rest: Any
    ) -> dict[str, Any]:
        """The problem that this is answered with."""
        async with self.ask(method, place, body, **rest) as answer:
            content = await answer.read()
            assert answer.status == status, f"{answer.status}: {content[:2000]!r}"
            assert answer.content_type == "application/problem+json"
        values: dict[str, Any] = json.loads(content)
        assert (values["code"], values["status"]) == (code, status), values
        assert values["detail"]
        return values

    @contextlib.asynccontextmanager
    async def events(
        self, method: str, place: str, /, body: Any = None, *, headers: Mapping[str, str] | None = None, **rest: Any
    ) -> AsyncIterator[AsyncIterator[Event]]:
        accept = {"Accept": EVENT_STREAM, **(headers or {})}
        async with self.ask(method, place, body, headers=accept, **rest) as answer:
            assert (answer.status, answer.content_type) == (200, EVENT_STREAM), await answer.read()
            yield _events(answer.content)

    @contextlib.asynccontextmanager
    async def socket(
        self, place: str, /, *, headers: Mapping[str, str] | None = None, **params: Any
    ) -> AsyncIterator[Socket]:
        assert self._http is not None
        async with self._http.ws_connect(self._at(place, params), max_msg_size=0, headers=headers) as raw:
            yield Socket(raw)

    @contextlib.asynccontextmanager
    async def session(self, **wanted: Any) -> AsyncIterator["SessionApi"]:
        """A session of the test's own, deleted at the end."""
        found = await self.post("/api/sessions", wanted, status=201)
        try:
            yield SessionApi(self, found)
        finally:
            await self.call("DELETE", f"/api/sessions/{found['session_id']}")


class SessionApi(Api):
    """One session: places are below /api/sessions/ID."""

    def __init__(self, api: Api, found: dict[str, Any]) -> None:
        super().__init__(f"{api.url}/api/sessions/{found['session_id']}")
        self._http = api._http
        self.id: str = found["session_id"]
        self.found = found

    async def exec(self, command: str | list[str], **rest: Any) -> dict[str, Any]:
        headers = rest.pop("headers", None)
        result: dict[str, Any] = await self.post("/exec", {"command": command, **rest}, headers=headers)
        return result

    async def output(self, command: str | list[str], **rest: Any) -> str:
        result = await self.exec(command, **rest)
        assert result["exit_code"] == 0, result
        return str(result["output"])

    async def show(self) -> dict[str, Any]:
        values: dict[str, Any] = await self.get("")
        return values

    async def write(self, path: str | bytes, data: Any = b"", **rest: Any) -> dict[str, Any]:
        values: dict[str, Any] = await self.call("PUT", "/files/content", data=data, path=path, status=201, **rest)
        return values

    async def read(self, path: str | bytes, **rest: Any) -> bytes:
        content: bytes = await self.get("/files/content", path=path, **rest)
        return content

    async def start(self, command: str | list[str], **rest: Any) -> str:
        """The id of a process in the background."""
        found = await self.post("/processes", {"command": command, **rest}, status=201)
        return str(found["process_id"])


@contextlib.asynccontextmanager
async def of(admin: Api, tenant: str, *scopes: str) -> AsyncIterator[Api]:
    """A client with a key of this tenant."""
    wanted = {"name": "test", "tenant": tenant, **({"scopes": list(scopes)} if scopes else {})}
    made = await admin.post("/api/admin/keys", wanted, status=201)
    async with Api(admin.url, {"X-API-Key": made["key"]}) as api:
        yield api


async def until(check: Callable[[], Awaitable[Any]], within_s: float = 60.0) -> Any:
    """What the check gives, once it gives something."""
    within_s = patience(within_s)
    deadline = time.monotonic() + within_s
    while not (found := await check()):
        assert time.monotonic() < deadline, f"it did not come true in {within_s} s"
        await asyncio.sleep(0.05)
    return found


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    while line := (await content.readline()).decode():
        if line == "\n":
            if "data" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
            fields = {}
        elif line.startswith(":"):
            yield Event(COMMENT, {})
        else:
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value


def _quoted(value: Any) -> str:
    return quote(value if isinstance(value, bytes) else str(value), safe="")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
