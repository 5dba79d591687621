"""One tenant or one address cannot take all connections of a server from the others."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from e2e.api_client import Api
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

KEY = "correct-horse-battery-staple"
MAX_CONNECTIONS = 60
SHARE = MAX_CONNECTIONS * 4 // 5


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    options = {"WARREN_API_KEY": KEY, "WARREN_MAX_CONNECTIONS": str(MAX_CONNECTIONS)}
    with running_server(new_state(), provider="fake", **options) as server:
        yield server


@contextlib.asynccontextmanager
async def connections(server: ServerProcess, count: int, request: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            writer.write(request)
            readers.append(reader)
        yield readers


def request_of(key: str, method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def check_that_another_is_served(server: ServerProcess) -> None:
    began = time.monotonic()
    async with Api(server.url, {"X-API-Key": KEY}) as other:
        await other.get("/api/sessions")
    assert time.monotonic() - began < 1


async def test_connections_that_say_nothing_make_place(server: ServerProcess) -> None:
    async with connections(server, MAX_CONNECTIONS, b"GET /api"):
        await asyncio.sleep(0.2)
        await check_that_another_is_served(server)


async def test_connections_that_were_used_once_make_place(server: ServerProcess, greedy: str) -> None:
    async with connections(server, MAX_CONNECTIONS, request_of(greedy, "GET", "/api/sessions")) as readers:
        for reader in readers:
            assert b" 200 " in await reader.readline()
        await check_that_another_is_served(server)


async def test_a_tenant_cannot_use_all_connections_at_once(server: ServerProcess, greedy: str) -> None:
    async with Api(server.url, {"X-API-Key": greedy}) as api, api.session() as session:
        body = json.dumps({"command": "sleep 30"}).encode()
        stream = request_of(greedy, "POST", f"/api/sessions/{session.id}/exec", body, "Accept: text/event-stream\r\n")
        async with connections(server, MAX_CONNECTIONS, stream) as readers:
            statuses = [(await reader.readline()).split()[1] for reader in readers]
            assert (statuses.count(b"200"), statuses.count(b"429")) == (SHARE, MAX_CONNECTIONS - SHARE)
            refused = readers[statuses.index(b"429")]
            assert b'"rate_limited"' in await refused.readuntil(b"}")
            await check_that_another_is_served(server)
        await asyncio.sleep(0.5)
        assert await session.output("echo again") == "again\n"


@pytest.fixture
async def greedy(server: ServerProcess) -> str:
    async with Api(server.url, {"X-API-Key": KEY}) as admin:
        made = await admin.post("/api/admin/keys", {"tenant": "greedy", "name": "greedy"}, status=201)
        return str(made["key"])
