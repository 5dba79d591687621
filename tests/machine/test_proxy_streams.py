"""Streams through a coordinator: nothing piles up, nothing is held back, and whoever leaves is noticed."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest
from machine.proxy_world import HOST, PATIENCE_S, World, read_chunk, read_reply, settled_count, until, wait_for
from starlette.types import Receive, Scope, Send

from warren.http.forwarding.http_requests import RequestBody, forward_request

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
SIZE = 64 * MIB
IN_THE_KERNEL = 40 * MIB  # what the sockets of two connections may hold at most
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()
    gc.collect()


class Source:
    """An app that sends `size` bytes, in a body with or without a length, and counts what it could send."""

    def __init__(self, size: int, *, sized: bool) -> None:
        self.size, self.sized = size, sized
        self.sent = 0
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = [(b"content-length", b"%d" % self.size)] if self.sized else []
        await send({"type": "http.response.start", "status": 200, "headers": length})
        piece = b"x" * 65536
        try:
            while self.sent < self.size:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self.sent += len(piece)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.ended.set()


class Sink:
    """An app that takes a body, once it may, and says how long it was."""

    def __init__(self) -> None:
        self.may_take, self.begun, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.taken = 0
        self.left_by = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.set()
        await self.may_take.wait()
        more = True
        while more:
            message = await receive()
            self.left_by = message["type"]
            self.taken += len(message.get("body", b""))
            more = message.get("more_body", False)
        self.ended.set()
        if self.left_by != "http.disconnect":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


class TestBackPressure:
    @pytest.mark.parametrize("sized", [True, False])
    async def test_a_worker_stops_while_the_client_does_not_read(self, world: World, sized: bool) -> None:
        source = Source(SIZE, sized=sized)
        coordinator = await world.start_coordinator(await world.start_worker(source))
        reader, writer = await world.dial(coordinator)
        transport = cast(asyncio.Transport, writer.transport)
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        transport.pause_reading()
        assert await settled_count(lambda: source.sent) < IN_THE_KERNEL
        transport.resume_reading()
        if sized:
            assert b"content-length: %d" % SIZE in head.lower()
            taken = 0
            while taken < SIZE:
                taken += len(await reader.read(MIB))
            assert taken == SIZE
        else:
            taken = 0
            while chunk := await read_chunk(reader):
                taken += len(chunk)
            assert taken == SIZE
        await until(lambda: "1 open, 1 idle" in repr(world.client))

    @pytest.mark.parametrize("chunked", [False, True])
    async def test_a_client_stops_while_the_worker_does_not_read(self, world: World, chunked: bool) -> None:
        sink = Sink()
        coordinator = await world.start_coordinator(await world.start_worker(sink))
        reader, writer = await world.dial(coordinator)
        piece = b"x" * 65536
        sent = 0

        async def upload() -> None:
            nonlocal sent
            for _ in range(SIZE // len(piece)):
                writer.write(b"10000\r\n%s\r\n" % piece if chunked else piece)
                await writer.drain()
                sent += len(piece)
            if chunked:
                writer.write(b"0\r\n\r\n")

        writer.write(POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") if chunked else POST % SIZE)
        uploading = asyncio.create_task(upload())
        assert await settled_count(lambda: sent) < IN_THE_KERNEL
        sink.may_take.set()
        await uploading
        assert (await read_reply(reader)).status == 200
        assert sink.taken == SIZE

    async def test_an_exchange_holds_little_of_an_answer_that_nobody_reads(self, world: World) -> None:
        """By itself, with a worker that would send for ever."""
        source = Source(1 << 40, sized=True)
        async with world.client.request(await world.start_worker(source), "GET", b"/", [HOST]) as response:
            await settled_count(lambda: source.sent)
            assert 0 < len(await response.read()) <= 192 * 1024
        await wait_for(source.ended)


class TestNothingIsHeldBack:
    async def test_events_arrive_one_by_one(self, world: World) -> None:
        arrived = asyncio.Queue[int]()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(5):
                await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
                assert await arrived.get() == number  # the next is sent only when the client has this one
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        reader, writer = await world.dial(await world.start_coordinator(await world.start_worker(app)))
        writer.write(GET)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"\r\n\r\n")
            for number in range(5):
                assert await read_chunk(reader) == b"data: %d\n\n" % number
                arrived.put_nowait(number)
            assert await read_chunk(reader) == b""

    async def test_an_answer_may_begin_while_the_body_is_still_sent(self, world: World) -> None:
        async def echo(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            more = True
            while more:
                message = await receive()
                more = message["more_body"]
                await send({"type": "http.response.body", "body": message["body"], "more_body": more})

        reader, writer = await world.dial(await world.start_coordinator(await world.start_worker(echo)))
        writer.write(POST % 3)
        async with asyncio.timeout(PATIENCE_S):
            for letter in (b"a", b"b", b"c"):
                writer.write(letter)
                if letter == b"a":
                    await reader.readuntil(b"\r\n\r\n")
                assert await read_chunk(reader) == letter
            assert await read_chunk(reader) == b""


class TestWhoeverLeaves:
    @pytest.mark.parametrize("sized", [True, False])
    async def test_a_client_that_leaves_ends_a_stream(self, world: World, sized: bool) -> None:
        source = Source(1 << 40, sized=sized)
        reader, writer = await world.dial(await world.start_coordinator(await world.start_worker(source)))
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await wait_for(source.ended)

    async def test_an_app_that_never_waits_is_stopped_at_the_first_write_that_fails(self, world: World) -> None:
        """The event loop learns of the failure only when the app lets it run."""
        client, sent = socket.socket(), 0
        ended = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal sent
            await send({"type": "http.response.start", "status": 200, "headers": []})
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            try:
                for _ in range(1000):
                    await send({"type": "http.response.body", "body": b"x", "more_body": True})
                    sent += 1
            finally:
                ended.set()

        client.connect(("127.0.0.1", await world.serve(app)))
        client.sendall(GET)
        await wait_for(ended)
        assert sent < 10

    @pytest.mark.parametrize("body", [b"", b"x" * 10, b"x" * 200_000])
    async def test_a_client_that_leaves_before_the_answer_is_noticed_by_the_worker(
        self, world: World, body: bytes
    ) -> None:
        taken, noticed = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            while (await receive()).get("more_body"):
                pass
            taken.set()
            assert (await receive())["type"] == "http.disconnect"
            noticed.set()

        _, writer = await world.dial(await world.start_coordinator(await world.start_worker(app)))
        writer.write(POST % len(body) + body)
        await wait_for(taken)
        writer.transport.abort()
        await wait_for(noticed)
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    async def test_a_client_that_leaves_between_two_events_is_noticed_by_the_worker(self, world: World) -> None:
        noticed = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            assert (await receive())["type"] == "http.disconnect"
            noticed.set()

        reader, writer = await world.dial(await world.start_coordinator(await world.start_worker(app)))
        writer.write(GET)
        await reader.readuntil(b"data: 1\n\n")
        writer.transport.abort()
        await wait_for(noticed)

    async def test_a_client_that_leaves_in_the_middle_of_its_body_is_noticed_by_the_worker(self, world: World) -> None:
        sink = Sink()
        _, writer = await world.dial(await world.start_coordinator(await world.start_worker(sink)))
        writer.write(POST % 1000 + b"x" * 999)
        sink.may_take.set()
        await until(lambda: sink.taken == 999)
        writer.transport.abort()
        await wait_for(sink.ended)
        assert sink.left_by == "http.disconnect"

    async def test_a_forwarder_that_is_cancelled_ends_the_exchange_and_stays_cancelled(self, world: World) -> None:
        source = Source(1 << 40, sized=False)
        address = await world.start_worker(source)
        reading, kept = asyncio.Event(), asyncio.Event()

        async def read_for_ever() -> None:
            async with world.client.request(
                address, "GET", b"/", [HOST], wait_for_disconnect=cast(None, kept.wait)
            ) as response:
                reading.set()
                while await response.read():
                    pass

        task = asyncio.create_task(read_for_ever())
        await wait_for(reading)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await wait_for(source.ended)

    @pytest.mark.parametrize("sized", [True, False])
    async def test_a_worker_that_dies_in_the_middle_breaks_the_clients_answer_too(
        self, world: World, sized: bool
    ) -> None:
        async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            how = b"Content-Length: 10\r\n\r\n" if sized else b"Transfer-Encoding: chunked\r\n\r\n5\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + how + (b"hello" if sized else b"hello\r\n"))
            await writer.drain()

        reader, writer = await world.dial(await world.start_coordinator(await world.start_scripted_worker(dies)))
        writer.write(GET)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(asyncio.IncompleteReadError):
                await read_reply(reader)
        assert reader.at_eof()

    async def test_a_caller_may_leave_an_answer_unread(self, world: World) -> None:
        """As one does who asks another worker: the client's body can still be read afterwards."""
        source = Source(1 << 40, sized=True)
        address = await world.start_worker(source)
        left = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            body = RequestBody(receive)
            async with await forward_request(world.client, address, scope, body) as response:
                assert response.status == 200
            left.set()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        assert (await world.send(await world.serve(app), GET)).status == 204
        await wait_for(left)
        await wait_for(source.ended)
