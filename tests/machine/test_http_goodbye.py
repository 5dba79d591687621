"""The end of connections: of a server that stops, which still answers who has connected before, and of clients."""

import asyncio
import socket

import pytest
from starlette.types import Receive, Scope, Send

from warren.http.request import request_in
from warren.http.server.serving import HttpServer, new_event_loop

_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"hi"})


@pytest.mark.parametrize("taken_in", [True, False], ids=["taken-in", "waiting-to-be-taken-in"])
def test_a_request_of_somebody_who_had_connected_before_is_answered(taken_in: bool) -> None:
    async def stop_under_clients() -> list[bytes]:
        server = HttpServer(app, port=0)
        await server.start()
        connected = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        if taken_in:
            await asyncio.sleep(0.1)  # else the server has not had the time
        stopping = asyncio.ensure_future(server.stop(30))
        clients = [await asyncio.open_connection(sock=one) for one in connected]
        for _, writer in clients:
            writer.write(_REQUEST)
        answers = [await reader.read() for reader, _ in clients]  # to the end: the server closes
        for _, writer in clients:
            writer.close()
        await stopping
        return answers

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        answers = runner.run(stop_under_clients())
    assert [answer[-2:] for answer in answers] == [b"hi"] * 5


def test_who_has_connected_and_says_nothing_is_not_waited_for() -> None:
    async def stop_under_a_silent_client() -> bytes:
        server = HttpServer(app, port=0)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await server.stop(30)
        said = await reader.read()
        writer.close()
        return said

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(stop_under_a_silent_client()) == b""


@pytest.mark.parametrize("leaves", [True, False])
def test_who_has_left_is_known_before_the_event_loop_sees_it(leaves: bool) -> None:
    async def ask() -> list[bool]:
        told: list[bool] = []

        async def app_that_holds_the_loop(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                told.append(request_in(scope).has_left())
                if leaves:
                    client.close()
                told.append(request_in(scope).has_left())
                await app(scope, receive, send)

        server = HttpServer(app_that_holds_the_loop, port=0)
        await server.start()
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(_REQUEST)
        async with asyncio.timeout(30):
            while len(told) < 2:
                await asyncio.sleep(0.01)
        client.close()
        await server.stop(30)
        return told

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(ask()) == [False, leaves]
