"""Previews of servers inside sandboxes, by path and by host, and connections that are forwarded."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e.api_client import Api, SessionApi
from yarl import URL

SERVER = Path(__file__).parents[1] / "preview_server.py"
PORT = 3000
MIB = 1 << 20


async def start_server(session: SessionApi, port: int = PORT, host: str = "127.0.0.1") -> None:
    await session.write("preview_server.py", SERVER.read_bytes())
    await session.start(f"python3 preview_server.py {port} {host}")
    await session.get("/ports", wait_for=port)


class Preview:
    """A client of one preview, by path or by host."""

    def __init__(self, http: aiohttp.ClientSession, session: SessionApi, by_host: bool, port: int = PORT) -> None:
        self.http = http
        base = URL(session.url.partition("/api/")[0])
        if by_host:
            self.host = f"{port}-{session.id.removeprefix('ses_')}.localhost:{base.port}"
            self.prefix = str(base.origin())
        else:
            self.host = f"{base.host}:{base.port}"
            self.prefix = f"{base.origin()}/api/sessions/{session.id}/ports/{port}"
        self.headers = {"Host": self.host}

    def ask(self, method: str, target: str, **rest: Any) -> Any:
        headers = {**self.headers, **rest.pop("headers", {})}
        return self.http.request(method, URL(self.prefix + target, encoded=True), headers=headers, **rest)

    async def echo(self, method: str = "GET", target: str = "/echo", **rest: Any) -> dict[str, Any]:
        async with self.ask(method, target, **rest) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json(content_type=None))

    def socket(self, target: str = "/ws", **rest: Any) -> Any:
        headers = {**self.headers, **rest.pop("headers", {})}
        return self.http.ws_connect(URL(self.prefix + target, encoded=True), headers=headers, max_msg_size=0, **rest)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90), auto_decompress=False) as http:
        yield http


@pytest.fixture(params=["path", "host"])
async def preview(request: pytest.FixtureRequest, session: SessionApi, http: aiohttp.ClientSession) -> Preview:
    await start_server(session)
    return Preview(http, session, request.param == "host")


def named(headers: list[list[str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


@pytest.mark.anyio
class PreviewSuite:
    async def test_what_listens_is_listed_and_can_be_waited_for(self, session: SessionApi) -> None:
        assert (await session.get("/ports"))["ports"] == []
        waiting = asyncio.create_task(session.get("/ports", wait_for=PORT))
        await start_server(session)
        expected = {"ports": [{"port": PORT, "address": "127.0.0.1", "public": False}]}
        assert await waiting == expected == await session.get("/ports")
        await session.refused("GET", "/ports", status=502, code="port_closed", wait_for=3999, timeout_s=0.1)

    async def test_a_request_reaches_the_server_as_it_was_sent(self, preview: Preview) -> None:
        target = "/echo/a%2Fb/../c?x=1&y=%20&warren=2"
        sent = {"X-Own": "1", "Connection": "keep-alive, X-Hop", "X-Hop": "2", "X-Forwarded-For": "9.9.9.9"}
        seen = await preview.echo("PATCH", target, data=b"12345", headers=sent)
        assert (seen["method"], seen["target"], seen["size"]) == ("PATCH", target, 5)
        headers = named(seen["headers"])
        by_host = preview.host.startswith(str(PORT))
        assert headers["host"] == (preview.host if by_host else f"localhost:{PORT}")
        assert headers["x-own"] == "1"
        assert "x-hop" not in headers
        assert headers["x-forwarded-for"] == "127.0.0.1"
        assert (headers["x-forwarded-host"], headers["x-forwarded-proto"]) == (preview.host, "http")

    async def test_bodies_of_any_size_pass_in_both_directions(self, preview: Preview) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(16):
                yield bytes(range(256)) * 4096

        async with preview.ask("POST", "/sum", data=pieces()) as response:
            whole = hashlib.sha256(bytes(range(256)) * 4096 * 16).hexdigest()
            assert await response.json(content_type=None) == [16 * MIB, whole]
        async with preview.ask("GET", f"/bytes?{32 * MIB}") as response:
            assert response.headers["content-length"] == str(32 * MIB)
            assert len(await response.read()) == 32 * MIB
        async with preview.ask("HEAD", f"/bytes?{32 * MIB}") as response:
            assert (response.status, response.headers["content-length"]) == (200, str(32 * MIB))
        async with preview.ask("POST", "/sum", data=b"x", expect100=True) as response:
            assert (await response.json(content_type=None))[0] == 1

    async def test_events_come_as_they_happen(self, preview: Preview) -> None:
        async with preview.ask("GET", "/events?3") as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert await response.content.readuntil(b"\n\n") == b"data: 0\n\n"
            assert await response.read() == b"data: 1\n\ndata: 2\n\n"

    async def test_websockets_carry_messages_of_many_sizes(self, preview: Preview) -> None:
        async with preview.socket(protocols=("one", "two")) as socket:
            assert socket.protocol == "one"
            for size in (0, 1, 200, 70_000, 3 * MIB):
                await socket.send_bytes(b"x" * size)
                assert await socket.receive_bytes() == b"x" * size
            await socket.send_str("text")
            assert await socket.receive_str() == "text"
            await socket.close(code=4321)
            assert socket.close_code == 4321
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await preview.socket("/elsewhere")
        assert refused.value.status == 404

    async def test_a_closed_port_and_a_silent_server_are_told(self, preview: Preview, session: SessionApi) -> None:
        by_host = preview.host.startswith(str(PORT))
        closed = Preview(preview.http, session, by_host, 3998)
        async with closed.ask("GET", "/", headers={"Accept": "application/json"}) as response:
            assert (response.status, (await response.json(content_type=None))["code"]) == (502, "port_closed")
        async with preview.ask("GET", "/silent") as response:
            assert (response.status, (await response.json(content_type=None))["code"]) == (502, "port_failed")
        if by_host:
            async with closed.ask("GET", "/", headers={"Accept": "text/html"}) as response:
                assert response.status == 502
                assert "Nothing listens on port 3998" in await response.text()

    async def test_a_server_on_ipv6_alone_is_reached(self, session: SessionApi, http: aiohttp.ClientSession) -> None:
        await start_server(session, 3001, "::1")
        assert (await Preview(http, session, True, 3001).echo())["target"] == "/echo"
        assert (await session.get("/ports"))["ports"][0]["address"] == "::1"

    async def test_any_bytes_are_forwarded_and_each_direction_ends_by_itself(self, session: SessionApi) -> None:
        program = (
            "import socket; s = socket.create_server(('127.0.0.1', 3002)); c = s.accept()[0]; f = c.makefile('rb')"
        )
        await session.start(["python3", "-c", f"{program}; d = f.read(); c.sendall(d[::-1]); c.close()"])
        await session.get("/ports", wait_for=3002)
        async with session.socket("/forward/3002") as socket:
            for piece in (b"abc", b"\x00\xff"):
                await socket.raw.send_bytes(piece)
            await socket.raw.send_str("eof")
            assert await socket.raw.receive_bytes() == b"\xff\x00cba"
            assert await socket.raw.receive_str() == "eof"
            assert await socket.closed() == 1000
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with session.socket("/forward/3002"):
                pass
        assert refused.value.status == 502

    async def test_an_ended_session_and_one_that_was_never_there_are_told(
        self, api: Api, http: aiohttp.ClientSession
    ) -> None:
        async with api.session() as session:
            await start_server(session)
            preview = Preview(http, session, True)
            await preview.echo()
        async with preview.ask("GET", "/", headers={"Accept": "text/html"}) as response:
            assert response.status == 410
            assert "This session has ended" in await response.text()
        preview.headers["Host"] = f"{PORT}-{'0' * 32}.localhost"
        async with preview.ask("GET", "/") as response:
            assert (response.status, json.loads(await response.read())["code"]) == (404, "session_not_found")
