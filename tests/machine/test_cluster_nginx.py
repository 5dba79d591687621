"""The delivered nginx configuration for two coordinators: a real nginx, and two small servers in their place."""

import asyncio
import contextlib
import io
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import aiohttp
import pytest
from cluster_nginx import ClusterNginx
from server_process import free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from this_run import patience

from warren.http.server.serving import HttpServer

PATIENCE_S = patience(60)
LARGE_MB = 32
UPLOAD = "/api/sessions/s/files/content"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class Coordinator:
    """A small server that counts what reaches it. `go` is what its streams wait for, `began` that an upload came."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.go, self.began = asyncio.Event(), asyncio.Event()
        routes = [
            Route("/events", self.events),
            Route("/large", self.large),
            WebSocketRoute("/socket", self.socket),
            Route(UPLOAD, self.upload, methods=["PUT"]),
            Route("/{rest:path}", self.show, methods=["GET", "POST", "PATCH", "DELETE"]),
        ]
        self.server = HttpServer(Starlette(routes=routes), port=0)

    async def show(self, request: Request) -> Response:
        self.count += 1
        body = (await request.body()).decode()
        return JSONResponse({"by": self.name, "body": body, "headers": dict(request.headers)})

    async def events(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[str]:
            yield "first\n"
            await self.go.wait()
            yield "second\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def large(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(LARGE_MB):
                yield bytes(1 << 20)

        return StreamingResponse(parts())

    async def upload(self, request: Request) -> Response:
        size = 0
        async for part in request.stream():
            size += len(part)
            self.began.set()
        return JSONResponse({"size": size})

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.send_bytes(await socket.receive_bytes())
        await socket.close(4001)


class Broken:
    """Takes a request, and closes the connection without an answer."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            self.count += 1
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self.take, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await server.wait_closed()


@contextlib.asynccontextmanager
async def running(*coordinators: Coordinator) -> AsyncIterator[None]:
    try:
        for each in coordinators:
            await each.server.start()
        yield
    finally:
        for each in coordinators:
            await each.server.stop(0)


@contextlib.asynccontextmanager
async def request_context(ports: Iterable[int]) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of an nginx before the servers at `ports`."""
    with tempfile.TemporaryDirectory(prefix="warren-nginx-") as path:
        nginx = ClusterNginx(Path(path), list(ports))
        try:
            await asyncio.to_thread(nginx.start)
            limit = aiohttp.ClientTimeout(total=PATIENCE_S)
            async with aiohttp.ClientSession(nginx.url, timeout=limit) as client:
                yield client
            assert "buffered to a temporary file" not in nginx.log
        finally:
            await asyncio.to_thread(nginx.stop)


@contextlib.asynccontextmanager
async def half_down() -> AsyncIterator[tuple[aiohttp.ClientSession, Coordinator]]:
    """One coordinator runs; nobody listens where the other should be."""
    alive = Coordinator("alive")
    async with running(alive), request_context([free_port(), alive.server.port]) as client:
        yield client, alive


async def test_both_coordinators_are_asked() -> None:
    one, two = Coordinator("one"), Coordinator("two")
    async with running(one, two), request_context([one.server.port, two.server.port]) as client:
        for _ in range(20):
            async with client.get("/api/sessions") as answer:
                assert answer.status == 200
    assert one.count + two.count == 20
    assert one.count
    assert two.count


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_requests_go_on_when_one_coordinator_is_down(method: str) -> None:
    async with half_down() as (client, alive):
        for number in range(10):
            async with client.request(method, "/api/sessions", data=str(number)) as answer:
                assert (answer.status, (await answer.json())["body"]) == (200, str(number))
        assert alive.count == 10


async def test_requests_go_on_when_a_coordinator_is_stopped_in_between() -> None:
    one, two = Coordinator("one"), Coordinator("two")
    async with running(one, two), request_context([one.server.port, two.server.port]) as client:
        for number in range(20):
            if number == 10:
                await one.server.stop(0)
            async with client.get("/") as answer:
                assert answer.status == 200
        assert one.count
        assert one.count + two.count == 20


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_a_coordinator_has_taken_is_not_sent_to_the_other(method: str) -> None:
    broken, alive = Broken(), Coordinator("alive")
    async with running(alive), broken.listening() as port, request_context([port, alive.server.port]) as client:
        while not broken.count:
            before = alive.count
            async with client.request(method, "/api/sessions", data="x") as answer:
                status, text = answer.status, await answer.text()
        assert (status, answer.content_type) == (503, "application/problem+json")
        assert '"code": "unavailable"' in text
        assert (broken.count, alive.count) == (1, before)


async def test_without_any_coordinator_the_answer_is_a_problem() -> None:
    async with request_context([free_port(), free_port()]) as client, client.get("/health") as answer:
        assert (answer.status, answer.content_type) == (503, "application/problem+json")
        assert answer.headers["Cache-Control"] == "no-store"
        assert (await answer.json())["retryable"] is True


async def test_sockets_work_also_when_one_coordinator_is_down() -> None:
    async with half_down() as (client, _):
        for _ in range(4):
            async with client.ws_connect("/socket") as socket:
                await socket.send_str("text")
                assert await socket.receive_str(timeout=PATIENCE_S) == "text"
                await socket.send_bytes(b"\0bytes" * 10_000)
                assert await socket.receive_bytes(timeout=PATIENCE_S) == b"\0bytes" * 10_000
                assert (await socket.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
                assert socket.close_code == 4001


async def test_events_come_one_by_one() -> None:
    async with half_down() as (client, alive), client.get("/events") as answer:
        assert await answer.content.readline() == b"first\n"
        alive.go.set()
        assert await answer.content.read() == b"second\n"


async def test_a_large_answer_that_the_client_takes_slowly_is_kept_nowhere() -> None:
    async with half_down() as (client, _), client.get("/large") as answer:
        size = len(await answer.content.readexactly(1))
        for _ in range(50):
            await (await client.get("/")).read()
        async for part in answer.content.iter_any():
            size += len(part)
        assert size == LARGE_MB << 20  # and `asking` looks into the log of nginx


async def test_uploads_are_passed_on_while_they_come_and_have_no_limit() -> None:
    async with half_down() as (client, alive):

        async def parts() -> AsyncIterator[bytes]:
            yield b"x" * 100_000
            await asyncio.wait_for(alive.began.wait(), PATIENCE_S)
            for _ in range(8):
                yield b"x" * (1 << 20)

        # Where nobody listens nothing was sent yet: also an upload goes on to the other.
        async with client.put(UPLOAD, data=parts()) as answer:
            assert (answer.status, (await answer.json())["size"]) == (200, 100_000 + (8 << 20))


async def test_json_that_is_too_large_is_a_problem() -> None:
    async with half_down() as (client, alive), client.post("/execute", data=io.BytesIO(b"x" * (5 << 20))) as answer:
        assert (answer.status, (await answer.json())["code"]) == (413, "too_large")
        assert alive.count == 0


async def test_coordinators_are_told_who_asks_and_by_which_name() -> None:
    lies = {"X-Forwarded-For": "192.0.2.9", "Forwarded": "for=192.0.2.9", "X-Forwarded-Host": "evil.example"}
    async with half_down() as (client, _), client.get("/", headers={**lies, "Host": "warren.example:81"}) as answer:
        seen = (await answer.json())["headers"]
    assert (seen["host"], seen["x-forwarded-for"]) == ("warren.example:81", "127.0.0.1")
    assert seen["x-forwarded-proto"] == "http"
    assert not {"forwarded", "x-forwarded-host"} & set(seen)
