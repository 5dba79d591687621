"""Coordinators and workers on loopback, for the tests of forwarding: real servers, small apps, scripted bytes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from guarded_app import guarded
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from this_run import patience

from warren.http.client.client import WorkerClient
from warren.http.client.errors import Broken, Unreachable
from warren.http.client.headers import Header
from warren.http.forwarding.http_requests import RequestBody, forward_request, forward_response
from warren.http.forwarding.websockets import forward_websocket
from warren.http.server.serving import HttpServer
from warren.model.errors import ProtocolError, Unavailable

PATIENCE_S = patience(20.0)
HOST: Header = (b"host", b"localhost")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ReceivedRequest:
    """A request as the worker's app saw it."""

    method: str
    path: bytes
    query: bytes
    headers: list[Header]
    body: bytes

    def header(self, name: bytes) -> list[bytes]:
        return [value for found, value in self.headers if found == name]


@dataclass
class RecordingApp:
    """A worker's app: keeps what it was asked, and answers what it is told to."""

    status: int = 200
    headers: list[Header] = field(default_factory=list)
    body: bytes = b"hello"
    seen: list[ReceivedRequest] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.seen.append(
            ReceivedRequest(scope["method"], scope["raw_path"], scope["query_string"], list(scope["headers"]), body)
        )
        length = [] if self.status in (204, 304) else [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers, *length]})
        await send({"type": "http.response.body", "body": self.body})


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name]


class World:
    def __init__(self) -> None:
        self.client = WorkerClient()
        self._servers: list[HttpServer] = []
        self._raw: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._before = asyncio.all_tasks()

    async def start_worker(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> str:
        return f"127.0.0.1:{await self.serve(app, tls)}"

    async def serve(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> int:
        server = HttpServer(_with_lifespan(app), port=0, tls=tls)
        await server.start()
        self._servers.append(server)
        return server.port

    async def start_coordinator(self, address: str, added: Sequence[Header] = ()) -> int:
        """The port of a coordinator that forwards everything to this address."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                await _websocket(address, scope, receive, send, added)
            else:
                await self._http(address, scope, receive, send, added)

        return await self.serve(guarded(_with_lifespan(app), takes_stream=lambda scope: True))

    async def start_scripted_worker(self, talk: Talk) -> str:
        """The address of a worker that says what the test wants, byte by byte."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            try:
                await talk(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        self._raw.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        return reader, writer

    async def send(self, port: int, data: bytes) -> Reply:
        """Asks a coordinator, over a connection that is closed afterwards."""
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await self.dial(port)
            writer.write(data)
            reply = await read_reply(reader, bodiless=data.startswith(b"HEAD"))
            writer.close()
            return reply

    async def close(self) -> None:
        """Ends everything; nothing may be left of it."""
        await self.client.close()
        assert repr(self.client) == "<WorkerClient no connections>"
        for writer in self._writers:
            writer.transport.abort()
        for listener in self._raw:
            listener.close()
        for server in self._servers:
            await server.stop(0)
        with suppress(TimeoutError):
            await until(lambda: not self._left())
        assert not self._left(), self._left()

    def _left(self) -> set[Any]:
        """Tasks of ours: not those in which pytest runs tests and fixtures."""
        made = asyncio.all_tasks() - self._before
        return {task for task in made if "TestRunner" not in repr(task.get_coro())}

    async def _http(self, address: str, scope: Scope, receive: Receive, send: Send, added: Sequence[Header]) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with await forward_request(
                self.client, address, scope, RequestBody(receive), headers=added
            ) as response:
                await forward_response(response, noted)
        except Unreachable as exc:
            raise Unavailable(exc.reason) from exc
        except Broken as exc:
            if started:
                raise
            raise ProtocolError(exc.reason) from exc


async def _websocket(address: str, scope: Scope, receive: Receive, send: Send, added: Sequence[Header]) -> None:
    try:
        await forward_websocket(address, scope, receive, send, headers=added)
    except Unreachable as exc:
        raise Unavailable(exc.reason) from exc
    except Broken as exc:
        raise ProtocolError(exc.reason) from exc


def _with_lifespan(app: ASGIApp) -> ASGIApp:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    return served


async def read_reply(reader: asyncio.StreamReader, *, bodiless: bool = False) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    reply = Reply(int(first.split()[1]), headers, b"")
    if bodiless or reply.status in (204, 304):
        return reply
    if reply.header("transfer-encoding"):
        while chunk := await read_chunk(reader):
            reply.body += chunk
    else:
        reply.body = await reader.readexactly(int(reply.header("content-length")[0]))
    return reply


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    return (await reader.readexactly(size + 2))[:-2]


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request with a content-length, or without a body."""
    head = await reader.readuntil(b"\r\n\r\n")
    _, found, rest = head.lower().partition(b"content-length: ")
    return head, await reader.readexactly(int(rest.split(b"\r\n")[0]) if found else 0)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def settled_count(count: Callable[[], int]) -> int:
    """What the count is when it has stopped to grow."""
    before, still = -1, 0
    async with asyncio.timeout(PATIENCE_S):
        while still < 20:
            now = count()
            still = still + 1 if now == before and now > 0 else 0
            before = now
            await asyncio.sleep(0.02)
    return before
