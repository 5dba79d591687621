"""The server's edge against clients that misbehave: real sockets, short limits."""

import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from busiest_turn import MAX_S, busiest_turn
from fastapi import FastAPI, Request, WebSocket
from guarded_app import guarded
from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from warren.http import problems
from warren.http.server.http_guard import HttpLimits, StreamedAnswer, request_id
from warren.http.server.serving import HttpServer
from warren.model.errors import NoCapacity, SessionNotFound, Unavailable

pytestmark = pytest.mark.anyio
SHORT = HttpLimits(header_timeout_s=0.3, body_timeout_s=0.3, send_timeout_s=0.5, keep_alive_s=1)
GET = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@dataclass
class Site:
    """A small app, and what happened inside it."""

    app: FastAPI = field(default_factory=FastAPI)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    taken: int = 0


class Wish(BaseModel):
    timeout: float
    names: list[str] = []


def new_site() -> Site:
    site = Site()
    app = site.app
    problems.register(app)
    _add_plain_routes(app, site)
    _add_streams(app, site)
    return site


def _add_plain_routes(app: FastAPI, site: Site) -> None:
    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"hello": request_id.get()}

    @app.get("/slow")
    async def slow() -> dict[str, str]:
        site.begun.set()
        try:
            await asyncio.sleep(0.4)
        finally:
            site.ended.set()
        return {"slow": "done"}

    @app.post("/wish")
    async def wish(body: Wish) -> Wish:
        return body

    @app.post("/anything")
    async def anything(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("the secret")

    @app.get("/full")
    async def full() -> None:
        raise NoCapacity("nothing is free", remedy="wait", retry_after_s=2.3)

    @app.get("/sessions/{session_id}")
    async def session(session_id: str) -> None:
        raise SessionNotFound(f"there is no session {session_id}")


def _add_streams(app: FastAPI, site: Site) -> None:
    @app.post("/upload")
    async def upload(request: Request) -> dict[str, int]:
        try:
            async for chunk in request.stream():
                site.taken += len(chunk)
                site.begun.set()
        finally:
            site.ended.set()
        return {"taken": site.taken}

    @app.get("/endless")
    async def endless() -> StreamedAnswer:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
                    site.begun.set()
            finally:
                site.ended.set()

        return StreamedAnswer(chunks())

    @app.get("/quiet")
    async def quiet() -> StreamedAnswer:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                site.begun.set()
                await asyncio.sleep(60)
            finally:
                site.ended.set()

        return StreamedAnswer(chunks())

    @app.get("/breaks")
    async def breaks() -> StreamedAnswer:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            raise NoCapacity("half way")

        return StreamedAnswer(chunks())

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        finally:
            site.ended.set()

    app.mount("/deaf", deaf)

    @app.websocket("/ws")
    async def socket(ws: WebSocket) -> None:
        await ws.accept()
        site.begun.set()
        try:
            while True:
                await ws.send_text(await ws.receive_text())
        finally:
            site.ended.set()

    @app.websocket("/ws-boom/{when}")
    async def boom(ws: WebSocket, when: str) -> None:
        if when == "open":
            await ws.accept()
        raise RuntimeError("the secret")

    @app.websocket("/ws-flood")
    async def flood(ws: WebSocket) -> None:
        await ws.accept()
        try:
            while True:
                await ws.send_bytes(b"x" * 65536)
        finally:
            site.ended.set()


@dataclass
class Served:
    site: Site
    server: HttpServer
    port: int


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    running: list[HttpServer] = []

    async def start(limits: HttpLimits = SHORT, **edge: Any) -> Served:
        site = new_site()
        edge.setdefault("takes_stream", lambda scope: scope["path"] == "/upload")
        server = HttpServer(guarded(site.app, **edge), port=0, limits=limits)
        await server.start()
        running.append(server)
        return Served(site, server, server.port)

    yield start
    for writer in _dialled:
        writer.close()
        writer.transport.abort()
    for server in running:
        await server.stop(0)
    await asyncio.sleep(0.02)
    _dialled.clear()


async def dial(port: int, limit: int = 65536) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    _dialled.append(writer)
    return reader, writer


def stop_reading(writer: asyncio.StreamWriter) -> None:
    cast(asyncio.Transport, writer.transport).pause_reading()


_dialled: list[asyncio.StreamWriter] = []


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(int(first.split()[1]), headers, body)


async def ask(port: int, data: bytes) -> Answer:
    async with asyncio.timeout(10):
        reader, writer = await dial(port)
        writer.write(data)
        answer = await read_answer(reader)
        writer.close()
        return answer


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


class TestSlowClients:
    async def test_a_head_that_never_ends_is_answered_408_and_closed(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        begun = time.monotonic()
        writer.write(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n")
        answer = await read_answer(reader)
        assert (answer.status, answer.json["code"]) == (408, "request_timed_out")
        assert 0.2 < time.monotonic() - begun < 2
        assert await reader.read() == b""
        writer.close()

    async def test_dripping_bytes_does_not_prolong_the_head(self, serve: Any) -> None:
        served = await serve()
        for drip in (b"X", b"\r\n"):
            reader, writer = await dial(served.port)
            writer.write(GET)
            assert (await read_answer(reader)).status == 200
            begun = time.monotonic()
            while time.monotonic() - begun < 3 and not reader.at_eof():
                writer.write(drip)
                await asyncio.sleep(0.05)
                if await _poll(reader):
                    break
            assert time.monotonic() - begun < 2
            writer.close()

    async def test_a_connection_that_says_nothing_is_closed(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()

    async def test_an_idle_connection_is_kept_for_the_next_request(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        for _ in range(2):
            writer.write(GET)
            assert (await read_answer(reader)).status == 200
            await asyncio.sleep(0.6)
        async with asyncio.timeout(2):
            assert await reader.read() == b""  # keep_alive_s is over
        writer.close()

    async def test_a_body_that_stops_coming_is_answered_408(self, serve: Any) -> None:
        served = await serve()
        for path in ("/upload", "/wish"):
            answer = await ask(served.port, post(path, b"x" * 1000)[:-900])
            assert (answer.status, answer.json["code"], answer.json["retryable"]) == (408, "request_timed_out", True)
        await soon(served.site.ended)

    async def test_a_body_that_keeps_coming_slowly_is_taken(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        request = post("/upload", b"x" * 10)
        writer.write(request[:-10])
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b"x")
        assert (await read_answer(reader)).json == {"taken": 10}
        writer.close()

    @pytest.mark.parametrize("path", ["/endless", "/deaf/"])
    async def test_a_client_that_does_not_read_is_dropped(self, serve: Any, path: str) -> None:
        served = await serve()
        _, writer = await dial(served.port, limit=1024)
        stop_reading(writer)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await soon(served.site.ended)
        writer.transport.abort()

    async def test_a_websocket_that_does_not_read_is_dropped(self, serve: Any) -> None:
        served = await serve()
        _, writer = await dial(served.port, limit=1024)
        writer.write(upgrade("/ws-flood"))
        stop_reading(writer)
        await soon(served.site.ended)
        writer.transport.abort()

    @pytest.mark.parametrize("path", ["/endless", "/quiet", "/deaf/"])
    async def test_a_stream_ends_when_the_client_goes(self, serve: Any, path: str) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await soon(served.site.ended)

    async def test_an_upload_ends_when_the_client_goes(self, serve: Any) -> None:
        served = await serve()
        _, writer = await dial(served.port)
        writer.write(post("/upload", b"x" * 1000)[:-1])
        await soon(served.site.begun)
        writer.transport.abort()
        await soon(served.site.ended)


async def _poll(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(0.01):
            return await reader.read(100)
    except TimeoutError:
        return b""
    except ConnectionError:
        return b"reset"


def upgrade(path: str, *headers: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    ]
    if not any(header.lower().startswith("host:") for header in headers):
        lines.append("Host: localhost")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class TestSizes:
    async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(self, serve: Any) -> None:
        served = await serve(max_body=1000)
        answer = await ask(served.port, post("/wish", b"x" * 1001)[:-1001])
        assert (answer.status, answer.json["code"]) == (413, "too_large")

    async def test_the_refusal_is_read_also_by_a_client_that_sends_everything_first(self, serve: Any) -> None:
        served = await serve(max_body=1000)
        for connection in ("keep-alive", "close"):
            data = post("/wish", b"x" * 20_000_000).replace(b"\r\n", f"\r\nConnection: {connection}\r\n".encode(), 1)
            answer = await ask(served.port, data)
            assert (answer.status, answer.json["code"]) == (413, "too_large")

    async def test_a_chunked_body_is_counted_while_it_comes(self, serve: Any) -> None:
        served = await serve(max_body=1000)
        head = b"POST /wish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunk = b"1f4\r\n" + b" " * 500 + b"\r\n"
        answer = await ask(served.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
        assert (answer.status, answer.json["code"]) == (413, "too_large")

    async def test_an_upload_may_be_larger(self, serve: Any) -> None:
        served = await serve(max_body=1000)
        assert (await ask(served.port, post("/upload", b"x" * 3_000_000))).json == {"taken": 3_000_000}

    async def test_an_endless_body_nobody_reads_does_not_keep_the_connection(self, serve: Any) -> None:
        served = await serve(takes_stream=lambda scope: True)
        reader, writer = await dial(served.port)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n\r\n")
        assert (await read_answer(reader)).status == 404
        begun = time.monotonic()
        with contextlib.suppress(
            ConnectionError, RuntimeError
        ):  # uvloop says it so when the transport is closed already
            while time.monotonic() - begun < 15:
                writer.write(b"x" * 100_000)
                await writer.drain()
                await asyncio.sleep(0.02)
        assert time.monotonic() - begun < 8

    @pytest.mark.parametrize(
        "data",
        [
            GET[:-2] + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n",
            GET[:-2] + b"X: y\r\n" * 20_000 + b"\r\n",
            b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n",
            b"GET /hello HTTP/1.1\r\nX-Endless: " + b"x" * 500_000,
        ],
    )
    async def test_a_head_that_is_too_large_is_answered_431(self, serve: Any, data: bytes) -> None:
        served = await serve()
        answer = await ask(served.port, data)
        assert (answer.status, answer.json["code"]) == (431, "header_too_large")

    async def test_trailers_reach_nobody(self) -> None:
        seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                while (await receive()).get("more_body"):
                    pass
                seen.extend(scope["headers"])
                await JSONResponse({})(scope, receive, send)

        server = HttpServer(app, port=0)
        await server.start()
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await ask(server.port, head + b"1\r\nx\r\n0\r\nX-Api-Key: late\r\n\r\n")
        await server.stop(0)
        assert answer.status == 200
        assert [name for name, _ in seen] == [b"host", b"transfer-encoding"]

    async def test_trailers_without_end_are_refused(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        writer.write(b"POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        for _ in range(60):
            writer.write(b"X-Trailer: " + b"x" * 10_000 + b"\r\n")
        assert (await read_answer(reader)).status == 431
        await soon(served.site.ended)

    async def test_a_stream_that_is_not_read_costs_little_memory(self) -> None:
        script = [sys.executable, "-c", MEMORY_SCRIPT]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = await asyncio.to_thread(subprocess.run, script, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["ended"]
        assert report["grown_kib"] < 20 * 1024


MEMORY_SCRIPT = """
import asyncio, json, re, pathlib
from starlette.applications import Starlette
from starlette.routing import Route
from guarded_app import guarded
from warren.http.server.http_guard import HttpLimits, StreamedAnswer
from warren.http.server.serving import HttpServer, new_event_loop

ended = asyncio.Event()
def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

async def big(request):
    async def chunks():
        try:
            for _ in range(3200):
                yield bytes(65536)
        finally:
            ended.set()
    return StreamedAnswer(chunks())

async def main():
    app = Starlette(routes=[Route("/", big)])
    server = HttpServer(guarded(app), port=0, limits=HttpLimits(send_timeout_s=1.5))
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    before, most = rss(), 0
    writer.transport.pause_reading()
    writer.write(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    while not ended.is_set():
        await asyncio.sleep(0.05)
        most = max(most, rss())
    writer.transport.abort()
    await server.stop(1)
    print(json.dumps({"ended": ended.is_set(), "grown_kib": most - before}))

asyncio.Runner(loop_factory=new_event_loop).run(main())
"""


class TestManyConnections:
    @pytest.mark.serial
    async def test_two_thousand_idle_connections_do_not_hurt_another_client(self, serve: Any) -> None:
        served = await serve(HttpLimits())
        idle = []
        for _ in range(20):
            idle += await asyncio.gather(*(dial(served.port) for _ in range(100)))
        begun = time.monotonic()
        for _ in range(20):
            assert (await ask(served.port, GET)).status == 200
        assert time.monotonic() - begun < 2
        for _, writer in idle:
            writer.transport.abort()

    async def test_more_connections_than_allowed_are_answered_503(self, serve: Any) -> None:
        served = await serve(replace(SHORT, header_timeout_s=5, max_connections=5))
        busy = [await dial(served.port) for _ in range(5)]
        for reader, writer in busy:
            writer.write(b"GET /quiet HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        answer = await ask(served.port, GET)
        assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "no_capacity", "1")
        for _, writer in busy:
            writer.close()
        await asyncio.sleep(0.1)
        assert (await ask(served.port, GET)).status == 200

    async def test_a_new_connection_takes_the_place_of_one_that_is_unused_for_longest(self, serve: Any) -> None:
        served = await serve(replace(SHORT, header_timeout_s=30, max_connections=5))
        unused = []
        for _ in range(5):
            unused.append(await dial(served.port))
            await asyncio.sleep(0.05)  # or some of them would be as old as others
        assert (await ask(served.port, GET)).status == 200
        assert await unused[0][0].read() == b""
        for _, writer in unused[1:]:
            writer.write(GET)
        for reader, writer in unused[1:]:
            assert (await read_answer(reader)).status == 200
            writer.close()


class TestTinyPieces:
    """A read holds some hundred KiB: tens of thousands of chunks or frames."""

    async def test_a_body_in_chunks_of_a_byte_holds_up_nobody(self, serve: Any) -> None:
        served = await serve(HttpLimits())
        reader, writer = await dial(served.port)
        async with asyncio.timeout(60), busiest_turn() as busiest:
            writer.write(b"POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(20):
                writer.write(b"1\r\nx\r\n" * 50_000)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            assert (await read_answer(reader)).json == {"taken": 1_000_000}
        assert busiest.seconds < MAX_S

    @pytest.mark.parametrize("frame", [b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0", b"\x81\x80\0\0\0\0"])
    async def test_empty_frames_hold_up_nobody(self, serve: Any, frame: bytes) -> None:
        served = await serve(HttpLimits())
        reader, writer = await dial(served.port, limit=1 << 20)
        writer.write(upgrade("/ws"))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(60), busiest_turn() as busiest:
            writer.write(frame * 60_000 + b"\x81\x84\0\0\0\0last")
            while not (await reader.read(1 << 20)).endswith(b"last"):
                pass
        assert busiest.seconds < MAX_S
        writer.close()


class TestPipelining:
    async def test_requests_sent_ahead_are_answered_in_their_order(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        slow = GET.replace(b"/hello", b"/slow")
        writer.write(slow + GET + GET)
        assert [b"slow" in (await read_answer(reader)).body for _ in range(3)] == [True, False, False]
        writer.write(GET)
        assert (await read_answer(reader)).status == 200
        writer.close()

    async def test_too_many_sent_ahead_are_answered_in_part_and_then_closed(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        writer.write(GET.replace(b"/hello", b"/slow") + GET * 5000)
        statuses = []
        async with asyncio.timeout(10):
            while not reader.at_eof():
                try:
                    statuses.append((await read_answer(reader)).status)
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
        assert statuses == [200] * 9
        writer.close()

    async def test_a_broken_request_sent_ahead_does_not_spoil_the_answer_before_it(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        writer.write(GET.replace(b"/hello", b"/slow") + b"\x00\x01nonsense\r\n\r\n")
        assert (await read_answer(reader)).json == {"slow": "done"}
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()

    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize(
        "framing", [b"Content-Length: %d\r\n\r\n%s", b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"]
    )
    async def test_the_body_of_a_request_for_another_protocol_is_no_request(
        self, serve: Any, framing: bytes, together: bool
    ) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        head = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        begin, end = (head + framing % (len(GET), GET)).split(b"\r\n\r\n", 1)
        if together:
            writer.write(begin + b"\r\n\r\n" + end)
        else:
            writer.write(begin + b"\r\n\r\n")
            await asyncio.sleep(0.1)
            writer.write(end)
        async with asyncio.timeout(5):
            assert (await read_answer(reader)).json == {"taken": len(GET)}
            writer.write(GET.replace(b"/hello", b"/full"))
            assert (await read_answer(reader)).status == 503
        writer.close()

    async def test_a_stream_ends_when_the_client_goes_though_more_was_sent_ahead(self, serve: Any) -> None:
        served = await serve()
        _, writer = await dial(served.port)
        writer.write(GET.replace(b"/hello", b"/quiet") + GET)
        await soon(served.site.begun)
        writer.transport.abort()
        await soon(served.site.ended)


HOSTS = [
    ("localhost", 200),
    ("LocalHost.:8000", 200),
    ("api.localhost", 200),
    ("127.0.0.1:1", 200),
    ("127.8.9.1", 200),
    ("[::1]:8000", 200),
    ("[::ffff:127.0.0.1]", 200),
    ("warren.example", 200),
    ("WARREN.example.:443", 200),
    ("a.b.wild.example", 200),
    ("port.example:8443", 200),
    ("port.example:8444", 421),
    ("wild.example", 421),
    ("evil.example", 421),
    ("localhost.evil.example", 421),
    ("notlocalhost", 421),
    ("0.0.0.0", 421),
    ("192.168.0.7", 421),
    ("[::2]", 421),
    ("localhost:99999", 421),
    ("evil.example@localhost", 421),
    ("localhost evil", 421),
    ("::1", 421),
    ("l\xf6calhost", 421),
    ("", 421),
]


class TestHostAndOrigin:
    @pytest.mark.parametrize(("host", "status"), HOSTS)
    async def test_only_known_hosts_are_answered(self, serve: Any, host: str, status: int) -> None:
        served = await serve(allowed_hosts=["warren.example", "*.wild.example", "port.example:8443"])
        answer = await ask(served.port, f"GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
        assert answer.status == status
        if status == 421:
            assert answer.json["code"] == "host_not_allowed"
            assert "WARREN_ALLOWED_HOSTS" in answer.json["remedy"]
            assert not re.search(r"[a-z]:[0-9]", answer.json["remedy"])  # the option takes no ports

    async def test_the_host_can_be_anything_if_so_configured(self, serve: Any) -> None:
        served = await serve(allowed_hosts=["*"])
        assert (await ask(served.port, GET.replace(b"localhost", b"evil.example"))).status == 200

    async def test_a_server_on_all_addresses_is_reached_by_address_but_not_by_any_name(self, serve: Any) -> None:
        served = await serve(listen_host="0.0.0.0")
        assert (await ask(served.port, GET.replace(b"localhost", b"192.168.0.7"))).status == 200
        assert (await ask(served.port, GET.replace(b"localhost", b"evil.example"))).status == 421
        assert (await ask(served.port, GET.replace(b"localhost", b"0.0.0.0"))).status == 421

    async def test_no_host_or_two_hosts_are_refused(self, serve: Any) -> None:
        served = await serve()
        assert (await ask(served.port, b"GET /hello HTTP/1.1\r\n\r\n")).status == 422
        assert (await ask(served.port, GET[:-2] + b"Host: evil.example\r\n\r\n")).status == 422
        assert (await ask(served.port, b"GET /hello HTTP/1.0\r\n\r\n")).status == 200

    @pytest.mark.parametrize(
        ("origin", "host", "allowed"),
        [
            ("http://localhost:8000", "localhost:8000", True),
            ("http://LOCALHOST:8000", "localhost.:8000", True),
            ("http://localhost", "localhost", True),
            ("http://localhost:80", "localhost", True),
            ("https://localhost", "localhost", True),
            ("http://[::1]:8000", "[0:0::1]:8000", True),
            ("https://app.example", "localhost", True),
            ("https://app.example:443", "localhost", True),
            ("http://app.example", "localhost", False),
            ("http://localhost:8001", "localhost:8000", False),
            ("http://127.0.0.1:8000", "localhost:8000", False),
            ("http://evil.example", "localhost", False),
            ("http://localhost.evil.example", "localhost", False),
            ("http://localhost@evil.example", "localhost", False),
            ("null", "localhost", False),
            ("", "localhost", False),
            ("file://", "localhost", False),
            ("http://[", "localhost", False),
        ],
    )
    async def test_only_our_own_pages_and_allowed_ones_may_ask(
        self, serve: Any, origin: str, host: str, allowed: bool
    ) -> None:
        served = await serve(allowed_origins=["https://app.example"])
        answer = await ask(served.port, f"GET /hello HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\r\n".encode())
        assert answer.status == (200 if allowed else 403)
        if not allowed:
            assert answer.json["code"] == "origin_not_allowed"

    async def test_a_websocket_of_a_foreign_page_is_refused_before_it_opens(
        self, serve: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = await serve()
        url = f"ws://127.0.0.1:{served.port}/ws"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, origin="http://evil.example")  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body or b"")["code"] == "origin_not_allowed"
        answer = await ask(served.port, upgrade("/ws", "Host: evil.example"))
        assert answer.status == 421
        async with connect(url, origin=f"http://127.0.0.1:{served.port}") as ws:  # type: ignore[arg-type]
            await ws.send("hello")
            assert await ws.recv() == "hello"
        assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def problem_of(answer: Answer, status: int, code: str) -> dict[str, Any]:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == status
    assert answer.json["code"] == code
    return answer.json


class TestErrorBodies:
    async def test_known_errors_say_what_and_what_to_do(self, serve: Any) -> None:
        served = await serve()
        answer = await ask(served.port, GET.replace(b"/hello", b"/full"))
        body = problem_of(answer, 503, "no_capacity")
        assert (body["detail"], body["remedy"], body["retryable"]) == ("nothing is free", "wait", True)
        assert answer.headers["retry-after"] == "3"
        problem_of(await ask(served.port, GET.replace(b"/hello", b"/nowhere")), 404, "not_found")
        problem_of(await ask(served.port, GET.replace(b"/hello", b"/sessions/a")), 404, "session_not_found")
        wrong = await ask(served.port, GET.replace(b"GET", b"DELETE"))
        problem_of(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "GET, HEAD"

    async def test_an_unforeseen_error_tells_its_id_and_nothing_else(
        self, serve: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = await serve()
        with caplog.at_level(logging.ERROR):
            answer = await ask(served.port, GET.replace(b"/hello", b"/boom"))
        body = problem_of(answer, 500, "internal")
        assert b"secret" not in answer.body
        assert [record.fields for record in caplog.records] == [{"error_id": body["error_id"]}]  # type: ignore[attr-defined]
        assert "the secret" in caplog.text

    async def test_an_invalid_field_is_named(self, serve: Any) -> None:
        served = await serve()
        answer = await ask(served.port, post("/wish", b'{"timeout": "abc", "names": [1]}'))
        body = problem_of(answer, 422, "invalid_request")
        assert "`timeout` must be a number, got 'abc'" in body["detail"]
        assert [error["field"] for error in body["errors"]] == ["timeout", "names[0]"]

    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            (b'{"a": \n ]', "line 2, column 2"),
            (b'{"a": NaN}', "NaN"),
            (b'{"a": -Infinity}', "Infinity"),
            (b'{"a": 1e999}', "1e999"),
            (b'{"a": "\xff"}', "UTF-8"),
            (b'{"a": "\\ud800"}', "surrogate"),
            (b'{"\\udc00": 1}', "surrogate"),
            (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
            (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
            (b'{"a": ' + b"9" * 5000 + b"}", "too long"),
            (b"\x00", "line 1"),
        ],
    )
    async def test_broken_json_is_answered_400(self, serve: Any, sent: bytes, said: str) -> None:
        served = await serve()
        assert said in problem_of(await ask(served.port, post("/anything", sent)), 400, "invalid_json")["detail"]

    async def test_unusual_but_valid_json_is_taken(self, serve: Any) -> None:
        served = await serve()
        sent = {"a": "\U0001f600 \x00 " + "[{" * 500, "b": [[]] * 500}
        assert (await ask(served.port, post("/anything", json.dumps(sent).encode()))).json == sent

    @pytest.mark.parametrize(
        ("data", "statuses"),
        [
            (GET.replace(b"/hello", b"/h\xff\xfe"), {400}),
            (GET.replace(b"/hello", b"/sessions/%ff%00%ed%a0%80"), {404}),
            (GET.replace(b"/hello", b"/hello?x=%ff&\\ud800"), {200}),
            (GET[:-2] + b"X-Odd: \xff\xfe\x80\r\n\r\n", {200}),
            (GET[:-2] + b"X-Odd: a\x00b\r\n\r\n", {400}),
            (GET[:-2] + b"X-Request-ID: \xff\xfe\r\n\r\n", {200}),
            (GET[:-2] + b"Bad Name: x\r\n\r\n", {400}),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
            (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404, 405}),
            (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404, 405}),
            (GET[:-2] + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
            (GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", {200}),
            (upgrade("/ws", "X-Odd: " + "x" * 20_000), {400, 431}),
            (upgrade("/w\xff"), {400}),
        ],
    )
    async def test_odd_bytes_get_a_proper_answer(
        self, serve: Any, data: bytes, statuses: set[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        served = await serve()
        answer = await ask(served.port, data)
        assert answer.status in statuses
        assert "Traceback" not in caplog.text
        assert (await ask(served.port, GET)).status == 200

    async def test_a_stream_that_fails_half_way_is_cut_and_logged(
        self, serve: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        writer.write(GET.replace(b"/hello", b"/breaks"))
        got = await reader.read()
        assert got.endswith(b"5\r\nfirst\r\n")
        assert len(caplog.records) == 1
        writer.close()

    async def test_every_answer_carries_an_id_and_the_headers_of_caution(self, serve: Any) -> None:
        served = await serve()
        answer = await ask(served.port, GET[:-2] + b"X-Request-ID: my-id.1\r\n\r\n")
        assert answer.headers["x-request-id"] == answer.json["hello"] == "my-id.1"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "date" in answer.headers
        assert "server" not in answer.headers
        for bad in ("a b", "x" * 129, "a\tb", "<script>"):
            answer = await ask(served.port, GET[:-2] + f"X-Request-ID: {bad}\r\n\r\n".encode())
            assert answer.headers["x-request-id"] == answer.json["hello"] != bad


class TestWebSockets:
    async def test_a_flood_of_pings_is_not_kept(self, serve: Any) -> None:
        served = await serve(HttpLimits(send_timeout_s=0.5))
        reader, writer = await dial(served.port, limit=1024)
        writer.write(upgrade("/ws"))
        await reader.readuntil(b"\r\n\r\n")
        stop_reading(writer)
        ping = b"\x89\xfd\0\0\0\0" + b"p" * 125
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(8):
                while time.monotonic() - begun < 8:
                    writer.write(ping * 1000)
                    await writer.drain()
                    await asyncio.sleep(0.001)
        await soon(served.site.ended)
        writer.transport.abort()

    async def test_a_message_in_countless_fragments_is_refused(self, serve: Any) -> None:
        served = await serve()
        reader, writer = await dial(served.port)
        writer.write(upgrade("/ws"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 2000)
        async with asyncio.timeout(5):
            assert (await reader.readexactly(4))[2:] == (1009).to_bytes(2, "big")
        await soon(served.site.ended)
        writer.close()

    async def test_a_message_over_a_mebibyte_is_refused(self, serve: Any) -> None:
        served = await serve()
        async with connect(f"ws://127.0.0.1:{served.port}/ws", max_size=None) as ws:
            await ws.send("x" * 1_000_000)
            assert len(await ws.recv()) == 1_000_000
            await ws.send("x" * 1_100_000)
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009

    async def test_an_unforeseen_error_closes_it_and_is_logged_once(
        self, serve: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = await serve()
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{served.port}/ws-boom/early")
        assert refused.value.response.status_code == 500
        async with connect(f"ws://127.0.0.1:{served.port}/ws-boom/open") as ws:
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
        assert [record.name for record in caplog.records] == ["warren.http.problems"] * 2


class TestStop:
    async def test_a_request_in_flight_is_finished(self, serve: Any) -> None:
        served = await serve()
        answer = asyncio.create_task(ask(served.port, GET.replace(b"/hello", b"/slow")))
        await soon(served.site.begun)
        idle = await dial(served.port)
        begun = time.monotonic()
        await served.server.stop(5)
        assert time.monotonic() - begun < 2
        assert (await answer).json == {"slow": "done"}
        assert await idle[0].read() == b""
        idle[1].close()
        with pytest.raises(ConnectionError):
            await ask(served.port, GET)
        await served.server.stop(5)

    async def test_a_request_that_takes_too_long_is_told_so(self, serve: Any) -> None:
        served = await serve()
        answer = asyncio.create_task(ask(served.port, GET.replace(b"/hello", b"/slow")))
        await soon(served.site.begun)
        await served.server.stop(0.05)
        assert served.site.ended.is_set()
        problem_of(await answer, 503, "stopping")

    @pytest.mark.parametrize("path", ["/endless", "/quiet", "/deaf/"])
    async def test_an_endless_stream_is_cut_after_the_grace(self, serve: Any, path: str) -> None:
        served = await serve(HttpLimits())
        reader, writer = await dial(served.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        begun = time.monotonic()
        await served.server.stop(0.3)
        assert 0.2 < time.monotonic() - begun < 2
        await soon(served.site.ended)
        writer.transport.abort()

    async def test_websockets_are_closed_with_the_code_for_a_restart(self, serve: Any) -> None:
        served = await serve()
        async with connect(f"ws://127.0.0.1:{served.port}/ws") as ws:
            await served.server.stop(1)
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


class TestListening:
    async def test_what_is_in_the_way_is_said(self, serve: Any) -> None:
        served = await serve()
        for host, port, said in (
            ("127.0.0.1", served.port, f"port {served.port} is taken"),
            ("192.0.2.1", 0, "not an address of this machine"),
            ("no.such.host.invalid", 0, "not an address to listen on"),
            ("a\0b", 0, "not an address to listen on"),
            ("127.0.0.1", 99999, "99999"),
        ):
            with pytest.raises(Unavailable, match=said) as refused:
                await HttpServer(served.site.app, host=host, port=port).start()
            assert refused.value.remedy

    async def test_an_app_that_does_not_start_is_reported(self) -> None:
        async def broken(app: Any) -> AsyncIterator[None]:
            raise RuntimeError("no database")
            yield

        with pytest.raises(Unavailable, match="could not start"):
            await HttpServer(FastAPI(lifespan=contextlib.asynccontextmanager(broken)), port=0).start()
