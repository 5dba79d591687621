"""WebSockets of previews: frames are passed on as they come, over one server or two, and nothing fills the memory."""

import asyncio
import base64
import gc
import hashlib
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from guarded_app import guarded
from machine.proxy_world import PATIENCE_S, World, _with_lifespan, until
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.typing import Subprotocol

from warren.http.client.headers import Passes
from warren.http.forwarding.websockets import forward_websocket
from warren.http.server.connections import RAW
from warren.http.server.frame_borders import FrameBorders
from warren.kernel.answer_memory import AnswerMemory, AnswerRoom, set_answer_room

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
Handler = Callable[[ServerConnection], Awaitable[None]]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class Previews(World):
    """Servers that pass previews on, with the memory that they count them by."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = AnswerMemory(8 * MIB)
        self._inside: list[Any] = []

    async def start_inside(self, handler: Handler) -> str:
        """The address of a server as programs in sandboxes have it."""

        async def handle(connection: ServerConnection) -> None:
            with suppress(ConnectionClosed):
                await handler(connection)

        server = await serve(handle, "127.0.0.1", 0, max_size=None, compression=None, ping_interval=None)
        self._inside.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def pass_on(self, address: str, hops: int = 1) -> int:
        """The port of the first of so many servers that pass on to this address."""
        port = 0
        for _ in range(hops):
            port = await self.serve(guarded(_with_lifespan(self._app(address)), takes_stream=lambda scope: True))
            address = f"127.0.0.1:{port}"
        return port

    def _app(self, address: str) -> Any:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            room = AnswerRoom(self.memory, "acme")
            set_answer_room(room)
            try:
                await forward_websocket(address, scope, receive, send, passes=Passes.PREVIEW)
            finally:
                room.release()

        return app

    async def close(self) -> None:
        for server in self._inside:
            server.close()
        await super().close()


@pytest.fixture
async def world() -> AsyncIterator[Previews]:
    world = Previews()
    yield world
    await world.close()
    gc.collect()


def client(port: int, **options: Any) -> connect:
    options = {"max_size": None, "proxy": None, "compression": None, "ping_interval": None, **options}
    return connect(f"ws://127.0.0.1:{port}/", **options)


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def end_of(link: ClientConnection) -> Close | None:
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                await link.recv()
        except ConnectionClosed as exc:
            return exc.rcvd


async def raw_socket(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket whose frames the test writes itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


def head(length: int, first: int = 0x82) -> bytes:
    """Of a masked frame."""
    return bytes((first, 0xFF)) + length.to_bytes(8, "big") + b"\0\0\0\0"


@pytest.mark.parametrize("hops", [1, 2])
async def test_messages_of_every_size_pass_both_ways(world: Previews, hops: int) -> None:
    port = await world.pass_on(await world.start_inside(echo), hops)
    async with client(port) as link:
        for size in (0, 1, 125, 126, 65_535, 65_536, 20 * MIB):
            data = os.urandom(min(size, 1000)) * (size // 1000 + 1)
            await link.send(data[:size])
            assert await link.recv() == data[:size]
        await link.send(["a ", "fragmented ", "text"])
        assert await link.recv() == "a fragmented text"
        for number in range(2000):
            await link.send(f"{number}")
        assert [await link.recv() for _ in range(2000)] == [f"{number}" for number in range(2000)]
        await (await link.ping(b"end to end"))


@pytest.mark.parametrize("hops", [1, 2])
async def test_both_sides_close_with_their_code_and_reason(world: Previews, hops: int) -> None:
    seen: asyncio.Queue[tuple[int | None, str | None]] = asyncio.Queue()

    async def handler(connection: ServerConnection) -> None:
        if await connection.recv() == "close":
            await connection.send("last words")
            await connection.close(4321, "that is all")
        await connection.wait_closed()
        seen.put_nowait((connection.close_code, connection.close_reason))

    port = await world.pass_on(await world.start_inside(handler), hops)
    async with client(port) as link:
        await link.send("close")
        assert await link.recv() == "last words"
        assert await end_of(link) == Close(4321, "that is all")
    await seen.get()
    async with client(port) as link:
        await link.send("stay")
        await link.close(4000, "bye")
        assert link.close_code == 4000
    assert await seen.get() == (4000, "bye")
    link = await client(port)
    await link.send("stay")
    link.transport.abort()
    assert (await seen.get())[0] == 1006


@pytest.mark.parametrize("hops", [1, 2])
async def test_a_server_that_dies_between_two_messages_closes_the_client_with_1011(world: Previews, hops: int) -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.send("hello")
        await connection.recv()
        connection.transport.abort()

    port = await world.pass_on(await world.start_inside(handler), hops)
    async with client(port) as link:
        assert await link.recv() == "hello"
        await link.send("die")
        assert (await end_of(link) or Close(0, "")).code == 1011


async def test_subprotocols_and_refusals_pass(world: Previews) -> None:
    async def refuse(connection: ServerConnection, request: Any) -> Any:
        return connection.respond(418, "teapot\n") if request.path == "/no" else None

    inside = await serve(echo, "127.0.0.1", 0, subprotocols=[Subprotocol("two")], process_request=refuse)
    world._inside.append(inside)
    port = await world.pass_on(f"127.0.0.1:{inside.sockets[0].getsockname()[1]}", 2)
    async with client(port, subprotocols=[Subprotocol("one"), Subprotocol("two")]) as link:
        assert link.subprotocol == "two"
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://127.0.0.1:{port}/no", proxy=None)
    assert refused.value.response.status_code == 418
    assert b"teapot" in bytes(refused.value.response.body or b"")


async def test_messages_that_never_end_reach_the_server_and_are_not_held(world: Previews) -> None:
    taken = 0

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await shake_hands(reader, writer)
        while data := await reader.read(65536):
            taken += len(data)

    port = await world.pass_on(await world.start_scripted_worker(inside))
    links = [await raw_socket(port) for _ in range(20)]
    part = bytes(15 * MIB)
    tracemalloc.start()
    try:
        for _, writer in links:
            writer.write(head(16 * MIB))
            writer.write(part)
            await writer.drain()
        await until(lambda: taken >= 20 * len(part))
        assert tracemalloc.get_traced_memory()[0] < 10 * MIB
    finally:
        tracemalloc.stop()
    for _, writer in links:
        writer.transport.abort()


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    key = request.lower().split(b"sec-websocket-key: ")[1]
    key = request[request.lower().index(key) :].split(b"\r\n")[0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


@pytest.mark.parametrize("to_client", [False, True])
async def test_a_side_that_reads_nothing_stops_the_other(world: Previews, to_client: bool) -> None:
    sent = 0
    stop = asyncio.Event()

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await shake_hands(reader, writer)
        if not to_client:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await stop.wait()
            return
        writer.write(b"\x82\x7f" + (1 << 40).to_bytes(8, "big"))
        while not stop.is_set():
            writer.write(bytes(MIB))
            await writer.drain()
            sent += MIB

    port = await world.pass_on(await world.start_scripted_worker(inside))
    reader, writer = await raw_socket(port)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    try:
        if not to_client:
            writer.write(head(1 << 40))

            async def push() -> None:
                nonlocal sent
                while True:
                    writer.write(bytes(MIB))
                    await writer.drain()
                    sent += MIB

            pushing = asyncio.create_task(push())
        last = -1
        while sent != last or not sent or not world.memory._held.in_all:
            last = sent
            await asyncio.sleep(0.5)
        assert sent < 64 * MIB  # what the kernel's buffers take
        assert 0 < world.memory._held.in_all <= 512 * 1024
        if not to_client:
            pushing.cancel()
    finally:
        stop.set()
        writer.transport.abort()
    await until(lambda: world.memory._held.in_all == 0)


async def test_a_websocket_for_which_there_is_no_room_is_closed_and_gives_its_room_back(world: Previews) -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.send("hello")
        await connection.wait_closed()

    port = await world.pass_on(await world.start_inside(handler))
    world.memory.count("acme", 8 * MIB)
    link = await client(port)
    assert (await end_of(link) or Close(0, "")).code == 4503
    world.memory.give_back("acme", 8 * MIB)
    async with client(port) as link:
        assert await link.recv() == "hello"
    await until(lambda: world.memory._held.in_all == 0)


async def test_nothing_is_sent_after_the_close_of_a_server_that_stops(world: Previews) -> None:
    raised: list[BaseException | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept", RAW: True})
        for connection in world._servers[0]._state.connections:
            asyncio.get_running_loop().call_soon(connection.shutdown)
        try:
            await send({"type": "websocket.send", "bytes": b"\x82\x00" * 5000})  # in several turns
        except Exception as exc:
            raised.append(exc)

    reader, writer = await raw_socket(await world.serve(app))
    async with asyncio.timeout(PATIENCE_S):
        data = await reader.read()
    writer.transport.abort()
    assert data.endswith(b"\x82\x00\x88\x02\x03\xf4")
    assert isinstance(raised[0], ClientDisconnected)


class TestBorders:
    @pytest.mark.parametrize("size", [1, 2, 7, 1000, 1 << 20])
    def test_they_are_found_however_the_bytes_are_cut(self, size: int) -> None:
        lengths = (0, 1, 125, 126, 65_535, 65_536, 3)
        frames = [bytes((0x82, *(_length(length)))) + bytes(length) for length in lengths]
        data, borders = b"".join(frames), FrameBorders()
        ends = {sum(map(len, frames[:count])) for count in range(1, len(frames) + 1)}
        for at in range(0, len(data), size):
            part = data[at : at + size]
            assert borders.follow(part, 0) == len(part)
            assert borders.is_between_frames == (min(at + size, len(data)) in ends)
        assert not borders.is_closed
        borders.follow(b"\x88\x00", 0)
        assert borders.is_closed

    def test_many_tiny_frames_are_followed_in_turns(self) -> None:
        data, borders = b"\x82\x00" * 5000, FrameBorders()
        stops = [borders.follow(data, 0)]
        while stops[-1] < len(data):
            stops.append(borders.follow(data, stops[-1]))
        assert len(stops) == 5


def _length(length: int) -> bytes:
    if length < 126:
        return bytes((length,))
    return b"\x7e" + length.to_bytes(2, "big") if length < 65536 else b"\x7f" + length.to_bytes(8, "big")
