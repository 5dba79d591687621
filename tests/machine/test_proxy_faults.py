"""Workers that cannot be reached, break off, or say what is not HTTP: scripted byte by byte."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator

import pytest
from machine.proxy_world import HOST, RecordingApp, Talk, World, read_request, until, wait_for
from starlette.types import Receive, Scope, Send

from warren.http.client.client import WorkerClient
from warren.http.client.errors import Broken, Unreachable

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"Content-Length: 5\r\n\r\nhello"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()
    gc.collect()


def saying(data: bytes, *, then_waits: bool = False) -> Talk:
    """Answers every connection's first request with these bytes, and closes it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(data)
        await writer.drain()
        if then_waits:
            await reader.read()

    return talk


async def get(client: WorkerClient, address: str, method: str = "GET", body: bytes = b"") -> bytes:
    async with asyncio.timeout(30), client.request(address, method, b"/", [HOST], body) as response:
        return await response.read_all(1 << 20)


class TestUnreachable:
    async def test_a_refused_connection(self, world: World) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            with pytest.raises(Unreachable, match="it refused the connection") as raised:
                await get(world.client, address, "POST", b"x")
        assert raised.value.reason == "it refused the connection"
        reply = await world.send(await world.start_coordinator(address), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (reply.status, address in reply.body.decode()) == (503, False)

    async def test_a_name_that_nobody_has(self, world: World) -> None:
        with pytest.raises(Unreachable, match="cannot be looked up"):
            await get(world.client, f"{'x' * 70}.invalid:5000")

    async def test_a_worker_that_does_not_finish_the_tls_handshake_in_time(self, world: World) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        client = WorkerClient(tls=ssl.create_default_context(), connect_timeout_s=0.2)
        with pytest.raises(Unreachable, match="in time"):
            await get(client, await world.start_scripted_worker(silent))
        await client.close()

    async def test_the_body_is_not_touched_when_there_is_no_connection(self, world: World) -> None:
        touched = False

        async def body() -> AsyncIterator[bytes]:
            nonlocal touched
            touched = True
            yield b"x"

        with pytest.raises(Unreachable):
            async with world.client.request("127.0.0.1:1", "POST", b"/", [HOST], body()):
                pass
        assert not touched


class TestKeptConnections:
    """A worker may have closed a connection that was kept."""

    @staticmethod
    def answering_once() -> tuple[Talk, list[str]]:
        log: list[str] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            log.append("connected")
            await read_request(reader)
            writer.write(HELLO)
            await read_request(reader)
            log.append("closed")

        return talk, log

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    async def test_one_that_closes_instead_of_answering_is_replaced_for_get(self, world: World, method: str) -> None:
        talk, log = self.answering_once()
        address = await world.start_scripted_worker(talk)
        assert await get(world.client, address) == b"hello"
        assert await get(world.client, address, method) == (b"hello" if method == "GET" else b"")
        assert log == ["connected", "closed", "connected"]

    async def test_other_requests_are_not_sent_twice(self, world: World) -> None:
        talk, log = self.answering_once()
        address = await world.start_scripted_worker(talk)
        assert await get(world.client, address) == b"hello"
        with pytest.raises(Broken, match="without a response"):
            await get(world.client, address, "POST", b"x")
        assert log == ["connected", "closed"]

    async def test_it_is_replaced_only_once(self, world: World) -> None:
        log: list[str] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            log.append("connected")
            await read_request(reader)
            if len(log) == 1:
                writer.write(HELLO)
                await read_request(reader)

        address = await world.start_scripted_worker(talk)
        assert await get(world.client, address) == b"hello"
        with pytest.raises(Broken):
            await get(world.client, address)
        assert log == ["connected", "connected"]

    async def test_one_that_is_closed_while_idle_is_forgotten(self, world: World) -> None:
        address = await world.start_scripted_worker(saying(HELLO))
        for _ in range(3):
            assert await get(world.client, address, "POST", b"x") == b"hello"
            await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    async def test_what_comes_unasked_closes_it(self, world: World) -> None:
        may = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(HELLO)
            await may.wait()
            writer.write(HELLO)
            await reader.read()

        address = await world.start_scripted_worker(talk)
        assert await get(world.client, address) == b"hello"
        assert "1 idle" in repr(world.client)
        may.set()
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    @pytest.mark.parametrize("more", [b"H", b"garbage\r\n\r\n", HELLO])
    async def test_an_answer_with_more_behind_it_is_given_but_its_connection_not_used_again(
        self, world: World, more: bytes
    ) -> None:
        address = await world.start_scripted_worker(saying(HELLO + more, then_waits=True))
        assert await get(world.client, address) == b"hello"
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")
        assert await get(world.client, address, "HEAD") == b""
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")


class TestAnswersThatAreNone:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"HTTP/1.1 200 OK\r\nContent-",
            b"hello\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            b"SSH-2.0-OpenSSH\r\n",
            OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            OK + b"Content-Length: x\r\n\r\nhello",
            OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            OK + b"Transfer-Encoding: gzip\r\n\r\nhello",
            OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello",
            OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            OK + b"Content-Length: 6\r\n\r\nhello",
            OK + b" folded: x\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            OK + b"X: " + b"y" * 200_000,
            OK + b"X: y\r\n" * 20_000,
            b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
            OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 20_000,
            OK + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 200_000,
        ],
    )
    async def test_they_are_broken(self, world: World, data: bytes) -> None:
        address = await world.start_scripted_worker(saying(data))
        with pytest.raises(Broken):
            await get(world.client, address)
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    async def test_a_head_without_end_is_not_kept(self, world: World) -> None:
        refused = asyncio.Event()

        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            try:
                while True:
                    writer.write(b"X: y\r\n" * 1000)
                    await writer.drain()
            finally:
                refused.set()

        with pytest.raises(Broken, match="too large"):
            await get(world.client, await world.start_scripted_worker(endless))
        await wait_for(refused)

    async def test_one_that_does_not_come_in_time(self, world: World) -> None:
        address = await world.start_scripted_worker(saying(b"", then_waits=True))
        with pytest.raises(Broken, match=r"within 0\.1 s"):
            async with world.client.request(address, "GET", b"/", [HOST], head_timeout_s=0.1):
                pass
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")


class TestUnusualAnswers:
    async def test_one_without_a_length_ends_with_the_connection(self, world: World) -> None:
        address = await world.start_scripted_worker(saying(b"HTTP/1.1 200 OK\r\n\r\nhel" + b"lo"))
        assert await get(world.client, address) == b"hello"
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    async def test_one_without_a_length_whose_connection_is_reset_is_broken(self, world: World) -> None:
        async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
            await got.wait()
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

        got = asyncio.Event()
        async with world.client.request(await world.start_scripted_worker(resets), "GET", b"/", [HOST]) as response:
            assert await response.read() == b"hello"
            got.set()
            with pytest.raises(Broken):
                await response.read()

    async def test_chunks_are_put_together_and_trailers_left_out(self, world: World) -> None:
        chunks = b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n"
        sent = OK + b"Trailer: X-Trailer\r\nTransfer-Encoding: Chunked\r\nX-A: b\r\n\r\n" + chunks
        address = await world.start_scripted_worker(saying(sent, then_waits=True))
        async with world.client.request(address, "GET", b"/", [HOST]) as response:
            assert await response.read_all(100) == b"hello"
            assert response.headers == [(b"x-a", b"b")]
        assert "1 idle" in repr(world.client)

    async def test_an_interim_answer_is_not_the_answer(self, world: World) -> None:
        interim = b"HTTP/1.1 100 Continue\r\nX-A: b\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        address = await world.start_scripted_worker(saying(interim + HELLO, then_waits=True))
        async with world.client.request(address, "GET", b"/", [HOST]) as response:
            assert (response.status, response.headers) == (200, [(b"content-length", b"5")])
            assert await response.read_all(100) == b"hello"

    async def test_byte_by_byte(self, world: World) -> None:
        async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for number in HELLO:
                    writer.write(bytes([number]))
                    await writer.drain()
                    await asyncio.sleep(0)

        address = await world.start_scripted_worker(slowly)
        for _ in range(2):
            assert await get(world.client, address) == b"hello"

    async def test_one_that_says_close_is_not_used_again(self, world: World) -> None:
        address = await world.start_scripted_worker(
            saying(OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", then_waits=True)
        )
        async with world.client.request(address, "GET", b"/", [HOST]) as response:
            assert response.headers == [(b"content-length", b"0")]
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")


async def without_end() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 65536


class TestBodies:
    @pytest.mark.parametrize("status", [413, 503])
    async def test_a_refusal_that_comes_early_ends_the_upload_and_is_given(self, world: World, status: int) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 5\r\n\r\nsorry" % status)
            while await reader.read(65536):
                pass

        address = await world.start_scripted_worker(refuse)
        async with asyncio.timeout(30), world.client.request(address, "PUT", b"/", [HOST], without_end()) as response:
            assert (response.status, await response.read_all(100)) == (status, b"sorry")
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    async def test_a_refusal_of_a_real_worker_reaches_a_client_that_is_still_sending(self, world: World) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"5")]})
            await send({"type": "http.response.body", "body": b"sorry"})

        coordinator = await world.start_coordinator(await world.start_worker(app))
        head = b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n"
        reply = await world.send(coordinator, head + b"x" * 20_000_000)
        assert (reply.status, reply.body) == (413, b"sorry")

    @pytest.mark.parametrize(("said", "why"), [(b"4", "longer"), (b"6", "shorter")])
    async def test_one_that_is_not_as_long_as_it_says_is_never_sent_as_a_request(
        self, world: World, said: bytes, why: str
    ) -> None:
        came = asyncio.Queue[bytes]()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            came.put_nowait(await reader.read())

        async def body() -> AsyncIterator[bytes]:
            yield b"he"
            yield b"llo"

        headers = [HOST, (b"content-length", said)]
        with pytest.raises(Broken, match=why):
            async with world.client.request(await world.start_scripted_worker(talk), "POST", b"/", headers, body()):
                pass
        async with asyncio.timeout(30):
            assert len(await came.get()) < int(said) or why == "shorter"

    async def test_what_its_iterator_raises_is_raised_to_whoever_asks(self, world: World) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            raise LookupError("the source is gone")

        address = await world.start_scripted_worker(saying(b"", then_waits=True))
        with pytest.raises(LookupError):
            async with world.client.request(address, "POST", b"/", [HOST], body()):
                pass
        await until(lambda: repr(world.client) == "<WorkerClient no connections>")

    async def test_empty_pieces_do_not_end_it(self, world: World) -> None:
        async def body() -> AsyncIterator[bytes]:
            for piece in (b"", b"a", b"", b"b", b""):
                yield piece

        worker = RecordingApp()
        async with world.client.request(await world.start_worker(worker), "POST", b"/", [HOST], body()) as response:
            assert response.status == 200
        assert worker.seen[0].body == b"ab"

    async def test_a_large_one_that_is_there_is_sent_whole(self, world: World) -> None:
        worker = RecordingApp()
        data = bytes(range(256)) * 16_000
        async with world.client.request(await world.start_worker(worker), "POST", b"/", [HOST], data) as response:
            assert await response.read_all(100) == b"hello"
        assert worker.seen[0].body == data
