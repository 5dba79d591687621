"""WebSockets through a coordinator: a real client, two real servers."""

import asyncio
import gc
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificates
from guarded_app import guarded
from machine.proxy_world import PATIENCE_S, World, settled_count, until, wait_for
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from warren.http.client.errors import Broken, Unreachable, WebSocketRefused
from warren.http.forwarding.websockets import MAX_MESSAGE, forward_websocket, sendable
from warren.http.server.tls import new_tls_context
from warren.model.errors import SessionNotFound

pytestmark = pytest.mark.anyio
Talk = Callable[[Receive, Send], Awaitable[None]]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()
    gc.collect()


class Worker:
    """A worker's app that takes every WebSocket, and then does what the test wants."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.scopes: list[Scope] = []
        self.left: Message | None = None
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        assert (await receive())["type"] == "websocket.connect"
        offered = scope["subprotocols"]
        await send({"type": "websocket.accept", "subprotocol": offered[-1] if offered else None})

        async def noted() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.left = message
            return message

        try:
            await self.talk(noted, send)
        finally:
            self.ended.set()


async def echo(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


async def wait_for_the_end(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass


def closing(code: int, reason: str = "") -> Talk:
    async def talk(receive: Receive, send: Send) -> None:
        await send({"type": "websocket.send", "text": "last words"})
        await send({"type": "websocket.close", "code": code, "reason": reason})

    return talk


def client(port: int, path: str = "/", **options: Any) -> connect:
    options = {"max_size": None, "proxy": None, "compression": None, **options}
    return connect(f"ws://127.0.0.1:{port}{path}", **options)


async def end_of(link: ClientConnection) -> Close | None:
    """How the other side closed."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                await link.recv()
        except ConnectionClosed as exc:
            return exc.rcvd


class TestMessages:
    async def test_text_and_bytes_pass_both_ways_and_stay_apart(self, world: World) -> None:
        coordinator = await world.start_coordinator(await world.start_worker(Worker(echo)))
        async with client(coordinator) as link:
            for message in ("text", b"bytes", "", b"", "é☃", bytes(range(256))):
                await link.send(message)
                assert await link.recv() == message

    @pytest.mark.parametrize("size", [65_535, 65_536, MAX_MESSAGE])
    async def test_large_messages_pass(self, world: World, size: int) -> None:
        coordinator = await world.start_coordinator(await world.start_worker(Worker(echo)))
        async with client(coordinator) as link:
            for message in ("x" * size, b"x" * size):
                await link.send(message)
                assert await link.recv() == message

    async def test_many_in_a_row_keep_their_order(self, world: World) -> None:
        coordinator = await world.start_coordinator(await world.start_worker(Worker(echo)))
        async with client(coordinator) as link:

            async def talk() -> None:
                for number in range(500):
                    await link.send(str(number))

            talking = asyncio.create_task(talk())
            assert [int(await link.recv()) for _ in range(500)] == list(range(500))
            await talking

    async def test_path_headers_and_subprotocols_reach_the_worker(self, world: World) -> None:
        worker = Worker(echo)
        coordinator = await world.start_coordinator(
            await world.start_worker(worker), [(b"x-warren-cluster", b"ours"), (b"x-request-id", b"r")]
        )
        headers = {"Authorization": "Bearer k", "X-Warren-Cluster": "theirs", "X-Mine": "1", "Cookie": "a=b"}
        offered = [Subprotocol("a"), Subprotocol("b")]
        path = "/a%2Fb/%FF;x?q=%2f&e="
        async with client(coordinator, path, additional_headers=headers, subprotocols=offered) as link:
            assert link.subprotocol == "b"
        (scope,) = worker.scopes
        assert (scope["raw_path"] + b"?" + scope["query_string"]).decode() == path
        found = scope["headers"]
        assert found[0] == (b"host", f"127.0.0.1:{coordinator}".encode())
        assert [value for name, value in found if name.startswith(b"x-")] == [b"1", b"ours", b"r"]
        assert not {b"authorization", b"cookie", b"sec-websocket-extensions"} & {name for name, _ in found}
        assert len({name for name, _ in found}) == len(found)


class TestBackPressure:
    async def test_a_worker_stops_while_the_client_does_not_read(self, world: World) -> None:
        sent = 0

        async def flood(receive: Receive, send: Send) -> None:
            nonlocal sent
            while sent < 1000:
                await send({"type": "websocket.send", "bytes": b"x" * 65_536})
                sent += 1
            await send({"type": "websocket.close", "code": 1000})

        coordinator = await world.start_coordinator(await world.start_worker(Worker(flood)))
        async with client(coordinator, max_queue=1) as link:
            assert await settled_count(lambda: sent) < 700
            taken = 0
            async for message in link:
                taken += len(message)
            assert taken == 1000 * 65_536

    async def test_a_client_stops_while_the_worker_does_not_read(self, world: World) -> None:
        sent, taken = 0, 0
        may_read = asyncio.Event()

        async def lazy(receive: Receive, send: Send) -> None:
            nonlocal taken
            await may_read.wait()
            while (message := await receive())["type"] == "websocket.receive":
                taken += len(message["bytes"])
                if taken == 1000 * 65_536:
                    await send({"type": "websocket.close", "code": 1000})

        coordinator = await world.start_coordinator(await world.start_worker(Worker(lazy)))
        async with client(coordinator) as link:

            async def flood() -> None:
                nonlocal sent
                for _ in range(1000):
                    await link.send(b"x" * 65_536)
                    sent += 1

            flooding = asyncio.create_task(flood())
            assert await settled_count(lambda: sent) < 700
            may_read.set()
            await flooding
            assert await end_of(link) == Close(1000, "")


class TestClosing:
    @pytest.mark.parametrize(
        ("code", "reason"), [(1000, ""), (1000, "done"), (1001, "bye"), (3000, "é"), (4404, "session_not_found")]
    )
    async def test_the_worker_closes_with_a_code_after_its_last_words(
        self, world: World, code: int, reason: str
    ) -> None:
        coordinator = await world.start_coordinator(await world.start_worker(Worker(closing(code, reason))))
        async with client(coordinator) as link:
            assert await link.recv() == "last words"
            assert await end_of(link) == Close(code, reason)

    @pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "bye"), (3000, "é"), (4999, "x")])
    async def test_the_client_closes_with_a_code(self, world: World, code: int, reason: str) -> None:
        worker = Worker(wait_for_the_end)
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        async with client(coordinator) as link:
            await link.send("x")
            await link.close(code, reason)
        await wait_for(worker.ended)
        assert worker.left == {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def test_the_client_closes_while_the_worker_talks(self, world: World) -> None:
        async def talk(receive: Receive, send: Send) -> None:
            async def say() -> None:
                with suppress(ClientDisconnected):
                    while True:
                        await send({"type": "websocket.send", "bytes": b"x" * 65_536})

            saying = asyncio.create_task(say())
            await wait_for_the_end(receive, send)
            saying.cancel()
            await asyncio.wait([saying])

        worker = Worker(talk)
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        async with client(coordinator) as link:
            await link.recv()
            await link.close(4000, "enough")
        await wait_for(worker.ended)
        assert worker.left is not None
        assert worker.left["code"] == 4000

    async def test_a_client_that_closes_without_a_code(self, world: World) -> None:
        worker = Worker(wait_for_the_end)
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        async with client(coordinator) as link:
            link.protocol.send_close()
            link.send_data()
            await wait_for(worker.ended)
        assert worker.left is not None
        assert worker.left["code"] == 1005

    async def test_a_client_that_vanishes(self, world: World) -> None:
        worker = Worker(wait_for_the_end)
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        link = await client(coordinator)
        link.transport.abort()
        await wait_for(worker.ended)
        assert worker.left is not None
        assert worker.left["code"] in (1005, 1006)

    async def test_a_worker_that_vanishes(self, world: World) -> None:
        async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            protocol = ServerProtocol()
            protocol.receive_data(await reader.readuntil(b"\r\n\r\n"))
            (request,) = protocol.events_received()
            protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
            protocol.send_text(b"hello")
            writer.write(b"".join(protocol.data_to_send()))
            await writer.drain()

        coordinator = await world.start_coordinator(await world.start_scripted_worker(vanish))
        async with client(coordinator) as link:
            assert await link.recv() == "hello"
            assert await end_of(link) == Close(1011, "the worker was lost")

    @pytest.mark.parametrize(
        ("close", "sent"),
        [
            (Close(1000, "x"), (1000, "x")),
            (Close(4404, "x"), (4404, "x")),
            (Close(1005, ""), (1000, "")),
            (Close(1006, ""), (1000, "")),
            (Close(1015, "x"), (1000, "")),
            (Close(99, "x"), (1000, "")),
        ],
    )
    async def test_only_codes_that_may_stand_in_a_frame_are_sent(self, close: Close, sent: tuple[int, str]) -> None:
        assert sendable(close) == sent

    async def test_a_coordinator_that_stops_lets_go_of_the_worker(self, world: World) -> None:
        worker = Worker(wait_for_the_end)
        address = await world.start_worker(worker)
        scope = {"type": "websocket", "headers": [(b"host", b"localhost")], "raw_path": b"/", "query_string": b""}
        accepted = asyncio.Event()

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            accepted.set()

        forwarding = asyncio.create_task(forward_websocket(address, scope, receive, send))
        await wait_for(accepted)
        forwarding.cancel()
        await asyncio.wait([forwarding])
        assert forwarding.cancelled()
        await wait_for(worker.ended)


class TestRefusals:
    async def test_a_refusal_of_the_worker_reaches_the_client_as_it_is(self, world: World) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                raise SessionNotFound("there is no session x", remedy="make one")

        coordinator = await world.start_coordinator(await world.start_worker(guarded(app)))
        with pytest.raises(InvalidStatus) as raised:
            await client(coordinator)
        response = raised.value.response
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"
        problem = json.loads(response.body or b"")
        assert (problem["code"], problem["remedy"]) == ("session_not_found", "make one")
        for name in ("content-length", "date", "x-request-id", "x-frame-options", "cache-control", "connection"):
            assert len(response.headers.get_all(name)) == 1, name

    async def test_a_refusal_may_be_heard_by_the_forwarder_instead(self, world: World) -> None:
        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(b"x-warren-worker", b"w2")]
            await send({"type": "websocket.http.response.start", "status": 421, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": b"elsewhere"})

        wrong, right = await world.start_worker(refuse), await world.start_worker(Worker(echo))
        heard: list[WebSocketRefused] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await forward_websocket(wrong, scope, receive, send, raise_on={421})
            except WebSocketRefused as exc:
                heard.append(exc)
                await forward_websocket(right, scope, receive, send, raise_on={421})

        async with client(await world.serve(app)) as link:
            await link.send("x")
            assert await link.recv() == "x"
        assert (heard[0].status, dict(heard[0].headers)[b"x-warren-worker"]) == (421, b"w2")

    async def test_a_worker_that_cannot_be_reached(self, world: World) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            coordinator = await world.start_coordinator(f"127.0.0.1:{unused.getsockname()[1]}")
            with pytest.raises(InvalidStatus) as raised:
                await client(coordinator)
        assert raised.value.response.status_code == 503

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"garbage\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        ],
    )
    async def test_a_worker_that_does_not_speak_websocket(self, world: World, data: bytes) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()

        address = await world.start_scripted_worker(talk)
        with pytest.raises(InvalidStatus) as raised:
            await client(await world.start_coordinator(address))
        assert raised.value.response.status_code == 502


class TestTls:
    async def test_over_tls_with_a_certificate_on_both_sides(self, world: World, tmp_path: Path) -> None:
        certificates = make_certificates(tmp_path)
        context = new_tls_context(certificates.cert, certificates.key)
        assert context is not None
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        tls = certificates.client
        tls.load_cert_chain(certificates.cert, certificates.key)
        address = await world.start_worker(Worker(echo), context)
        failures: list[Exception] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await forward_websocket(address, scope, receive, send, tls=certificates.client)
            except (Unreachable, Broken) as exc:
                failures.append(exc)
            await forward_websocket(address, scope, receive, send, tls=tls)

        async with client(await world.serve(app)) as link:
            await link.send(b"x" * MAX_MESSAGE)
            assert await link.recv() == b"x" * MAX_MESSAGE
        assert len(failures) == 1
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")
