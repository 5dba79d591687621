"""Requests that a coordinator passes on to a worker: both are real servers, on loopback."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from machine.proxy_world import HOST, RecordingApp, World, read_reply, until
from starlette.types import Message, Receive, Scope, Send

from warren.http.client.client import WorkerClient
from warren.http.client.errors import Broken, Unreachable
from warren.http.forwarding.http_requests import MAX_REWIND, RequestBody, forward_request, forward_response
from warren.model.errors import InvalidRequest

pytestmark = pytest.mark.anyio
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()
    gc.collect()  # what was forgotten warns now, and warnings are errors


class TestRequests:
    async def test_method_path_query_and_body_arrive_byte_by_byte(self, world: World) -> None:
        worker = RecordingApp()
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        target = b"/api/sessions/a%2Fb/files/%FF%00//x;y=1/../z?path=%2Fa%20b&empty=&q=%ff"
        body = bytes(range(256)) * 10
        head = b"PUT " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await world.send(coordinator, head + body)).status == 200
        (seen,) = worker.seen
        assert seen.method == "PUT"
        assert seen.path + b"?" + seen.query == target
        assert seen.body == body
        assert seen.header(b"content-length") == [b"%d" % len(body)]

    async def test_headers_pass_but_for_those_that_tell_who_the_client_is(self, world: World) -> None:
        worker = RecordingApp()
        added = [(b"x-warren-cluster", b"ours"), (b"x-request-id", b"chosen"), (b"accept", b"ours")]
        coordinator = await world.start_coordinator(await world.start_worker(worker), added)
        await world.send(
            coordinator,
            b"GET / HTTP/1.1\r\nAccept: theirs\r\nX-Many: 1\r\nX-Many: 2\r\nHost: localhost\r\n"
            b"Authorization: Bearer k\r\n"
            b"X-Api-Key: k\r\nCookie: a=b\r\nOrigin: http://localhost\r\nX-Warren-Cluster: theirs\r\n"
            b"X-Warren-Caller: {}\r\nTE: trailers\r\nProxy-Authorization: k\r\nKeep-Alive: 3\r\nX-Once: 1\r\n"
            b"Connection: keep-alive, X-Once, Host\r\nX-Request-Id: theirs\r\nX-Latin: caf\xe9\r\n\r\n",
        )
        assert worker.seen[0].headers == [
            HOST,
            (b"x-many", b"1"),
            (b"x-many", b"2"),
            (b"x-latin", b"caf\xe9"),
            *added,
        ]

    @pytest.mark.parametrize("pieces", [[b"abc"], [b"a" * 70_000, b"b"], []])
    async def test_a_body_in_chunks_arrives_whole(self, world: World, pieces: list[bytes]) -> None:
        worker = RecordingApp()
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await world.send(coordinator, head + chunks)).status == 200
        assert worker.seen[0].body == b"".join(pieces)

    async def test_a_body_that_comes_slowly_arrives_whole(self, world: World) -> None:
        worker = RecordingApp()
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        reader, writer = await world.dial(coordinator)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nabc")
        await until(lambda: "1 open" in repr(world.client))
        writer.write(b"def")
        assert (await read_reply(reader)).status == 200
        assert worker.seen[0].body == b"abcdef"
        assert worker.seen[0].header(b"content-length") == [b"6"]

    async def test_a_post_without_a_body_says_so(self, world: World) -> None:
        worker = RecordingApp()
        address = await world.start_worker(worker)
        async with world.client.request(address, "POST", b"/", [HOST]) as response:
            assert response.status == 200
        async with world.client.request(address, "GET", b"/", [HOST]) as response:
            assert response.status == 200
        assert [seen.header(b"content-length") for seen in worker.seen] == [[b"0"], []]

    @pytest.mark.parametrize(
        ("target", "header"),
        [
            (b"/", (b"x-a", b"1\r\nx-b: 2")),
            (b"/", (b"x-a", b"1\nx-b: 2")),
            (b"/", (b"x-a\r\nx-b", b"2")),
            (b"/ HTTP/1.1\r\nx-b: 2\r\n\r\n", HOST),
            (b"/a b", HOST),
        ],
    )
    async def test_nothing_can_smuggle_a_line_into_the_head(
        self, world: World, target: bytes, header: tuple[bytes, bytes]
    ) -> None:
        worker = RecordingApp()
        address = await world.start_worker(worker)
        with pytest.raises(InvalidRequest):
            async with world.client.request(address, "GET", target, [header]):
                pass
        assert worker.seen == []


class TestAnswers:
    async def test_status_headers_and_body_come_back_as_they_were(self, world: World) -> None:
        given = [(b"x-many", b"1"), (b"x-many", b"2"), (b"content-type", b"a/b"), (b"x-latin", b"caf\xe9")]
        worker = RecordingApp(418, [*given, (b"x-warren-worker", b"w1"), (b"x-request-id", b"w")], bytes(range(256)))
        coordinator = await world.start_coordinator(await world.start_worker(worker))
        reply = await world.send(coordinator, GET)
        assert (reply.status, reply.body) == (418, bytes(range(256)))
        assert reply.header("x-many") == ["1", "2"]
        assert reply.header("x-latin") == ["caf\xe9"]
        assert reply.header("x-warren-worker") == []
        for once in ("content-type", "content-length", "date", "x-request-id", "x-frame-options", "cache-control"):
            assert len(reply.header(once)) == 1, once

    async def test_an_answer_to_head_has_no_body_and_leaves_the_connection_usable(self, world: World) -> None:
        worker = RecordingApp(body=b"12345")
        address = await world.start_worker(worker)
        for _ in range(2):
            async with world.client.request(address, "HEAD", b"/", [HOST]) as response:
                assert (response.status, response.header(b"content-length")) == (200, b"5")
                assert await response.read_all(100) == b""
            async with world.client.request(address, "GET", b"/", [HOST]) as response:
                assert await response.read_all(100) == b"12345"
        assert repr(world.client) == f"<WorkerClient {address}: 1 open, 1 idle>"
        reply = await world.send(await world.start_coordinator(address), b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (reply.status, reply.header("content-length")) == (200, ["5"])

    @pytest.mark.parametrize("status", [204, 304])
    async def test_answers_without_a_body(self, world: World, status: int) -> None:
        address = await world.start_worker(RecordingApp(status, [(b"etag", b'"x"')], b""))
        coordinator = await world.start_coordinator(address)
        for _ in range(2):
            reply = await world.send(coordinator, GET)
            assert (reply.status, reply.header("etag"), reply.body) == (status, ['"x"'], b"")
        assert repr(world.client) == f"<WorkerClient {address}: 1 open, 1 idle>"

    async def test_all_stops_at_its_limit(self, world: World) -> None:
        address = await world.start_worker(RecordingApp(body=b"x" * 1000))
        async with world.client.request(address, "GET", b"/", [HOST]) as response:
            with pytest.raises(Broken, match="longer than 999 bytes"):
                await response.read_all(999)
        await until(lambda: repr(world.client) == "<WorkerClient no connections>" or "1 idle" in repr(world.client))

    async def test_an_answer_cannot_be_read_after_its_exchange(self, world: World) -> None:
        async with world.client.request(await world.start_worker(RecordingApp()), "GET", b"/", [HOST]) as response:
            pass
        with pytest.raises(RuntimeError):
            await response.read()


class TestAnotherWorker:
    """Whoever forwards sees the response before the client does."""

    async def test_a_refused_request_is_asked_of_another_with_its_whole_body(self, world: World) -> None:
        wrong, right = RecordingApp(421, [(b"x-warren-worker", b"w2")]), RecordingApp(body=b"mine")
        addresses = [await world.start_worker(wrong), await world.start_worker(right)]

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            body = RequestBody(receive)
            for address in addresses:
                async with await forward_request(world.client, address, scope, body) as response:
                    if response.status == 421 and response.header(b"x-warren-worker") == b"w2" and body.rewind():
                        continue
                    await forward_response(response, send)

        coordinator = await world.serve(app)
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000\r\n\r\n"
        reply = await world.send(coordinator, head + b"x" * 30_000)
        assert (reply.status, reply.body) == (200, b"mine")
        assert wrong.seen[0].body == right.seen[0].body == b"x" * 30_000

    async def test_a_body_of_which_much_was_read_cannot_be_read_again(self) -> None:
        messages = [{"type": "http.request", "body": b"x" * 40_000, "more_body": left} for left in (True, True, False)]

        async def receive() -> Message:
            return messages.pop(0)

        body = RequestBody(receive)
        assert await anext(body) == b"x" * 40_000
        assert body.rewind()
        assert 40_000 <= MAX_REWIND < 80_000
        assert sum([len(piece) async for piece in body]) == 120_000
        assert not body.rewind()

    async def test_what_was_read_before_is_sent_first(self, world: World) -> None:
        worker = RecordingApp()
        address = await world.start_worker(worker)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            body = RequestBody(receive)
            await body.fetch()
            async with await forward_request(world.client, address, scope, body) as response:
                await forward_response(response, send)

        coordinator = await world.serve(app)
        await world.send(coordinator, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
        reader, writer = await world.dial(coordinator)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na")
        await until(lambda: "1 open, 0 idle" in repr(world.client))
        writer.write(b"bc")
        assert (await read_reply(reader)).status == 200
        assert [seen.body for seen in worker.seen] == [b"abc", b"abc"]


class TestThePool:
    async def test_a_connection_is_used_again(self, world: World) -> None:
        address = await world.start_worker(RecordingApp())
        for _ in range(5):
            async with world.client.request(address, "GET", b"/", [HOST]) as response:
                assert await response.read_all(100) == b"hello"
                assert repr(world.client) == f"<WorkerClient {address}: 1 open, 0 idle>"
        assert repr(world.client) == f"<WorkerClient {address}: 1 open, 1 idle>"

    async def test_two_hundred_at_once(self, world: World) -> None:
        address = await world.start_worker(RecordingApp(body=b"x" * 300))
        client = WorkerClient(max_idle=10)

        async def ask(number: int) -> bytes:
            async with client.request(address, "POST", b"/", [HOST], b"%d" % number) as response:
                return await response.read_all(1000)

        assert set(await asyncio.gather(*map(ask, range(200)))) == {b"x" * 300}
        await until(lambda: repr(client) == f"<WorkerClient {address}: 10 open, 10 idle>")
        assert set(await asyncio.gather(*map(ask, range(200)))) == {b"x" * 300}
        await client.close()
        assert repr(client) == "<WorkerClient no connections>"

    async def test_a_connection_idle_for_too_long_is_not_used_again(self, world: World) -> None:
        address = await world.start_worker(RecordingApp())
        client = WorkerClient(idle_s=-1)
        for _ in range(3):
            async with client.request(address, "GET", b"/", [HOST]) as response:
                assert await response.read_all(100) == b"hello"
        await until(lambda: repr(client) == f"<WorkerClient {address}: 1 open, 1 idle>")
        await client.close()

    async def test_closing_ends_what_is_on_its_way(self, world: World) -> None:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()

        address = await world.start_scripted_worker(silent)
        client = WorkerClient()

        async def ask() -> None:
            async with client.request(address, "GET", b"/", [HOST]):
                pass

        pending = asyncio.create_task(ask())
        await asked.wait()
        await client.close()
        with pytest.raises(Broken):
            await pending
        with pytest.raises(Unreachable):
            await ask()

    @pytest.mark.parametrize(
        "address", ["", "host", "host:", ":1", "host:0", "host:65536", "a/b:1", "u@h:1", "ftp://h:1", "::1:1", "h:1/x"]
    )
    async def test_what_is_no_address_is_unreachable(self, world: World, address: str) -> None:
        with pytest.raises(Unreachable, match="not a host and a port"):
            async with world.client.request(address, "GET", b"/", [HOST]):
                pass

    async def test_an_address_may_name_its_scheme(self, world: World) -> None:
        address = await world.start_worker(RecordingApp())
        async with world.client.request(f"http://{address}", "GET", b"/", [HOST]) as response:
            assert response.status == 200
        with pytest.raises(Unreachable, match="asks for TLS"):
            async with world.client.request(f"https://{address}", "GET", b"/", [HOST]):
                pass
