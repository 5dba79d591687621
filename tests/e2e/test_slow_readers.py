"""Callers who do not read their answers cost the server a bounded memory, and others nothing."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from e2e.api_client import Api
from e2e.conftest import NewState
from measured_server import MIB, Costs, running_measured
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

KEY: Final = "correct-horse-battery-staple"
_SIZE: Final = 16 * MIB
_SESSIONS: Final = 6
_READERS: Final = 18
_MAX_MIB: Final = 64 + 2 * _READERS + 16  # a tenant's half of the memory, a window of output each, and some more
_COMMAND: Final = {"command": f"head -c {_SIZE} /dev/zero | tr '\\0' x", "keep_bytes": _SIZE + MIB, "timeout_s": 60}


@contextlib.asynccontextmanager
async def unread_exec(server: ServerProcess, key: str, session_id: str) -> AsyncIterator[asyncio.StreamReader]:
    """A connection whose answer is not read until somebody reads from it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=64 * 1024)
    body = json.dumps(_COMMAND).encode()
    head = f"POST /api/sessions/{session_id}/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nConnection: close"
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def answer_of(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The values of an answer, without its long texts but with the length of stdout."""
    head, parts = await reader.readuntil(b"\r\n\r\n"), list[bytes]()
    assert b" 200 " in head, head
    while size := int(await reader.readline(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    values: dict[str, Any] = json.loads(b"".join(parts))
    return {**values, "stdout": len(values["stdout"]), "output": len(values["output"])}


@pytest.mark.extended
async def test_callers_who_do_not_read_fill_no_memory_and_lose_nothing(new_state: NewState) -> None:
    flags = ("--pool-size", "0", "--pool-min", "0", "--environment", "host", "--memory-limit", "512m")
    options = {"WARREN_API_KEY": KEY, "WARREN_ANSWER_MEMORY_MB": "128"}
    with running_measured(new_state(), *flags, **options) as server:
        costs = Costs(server)
        async with Api(server.url, headers={"X-API-Key": KEY}) as admin, contextlib.AsyncExitStack() as stack:
            key = (await admin.post("/api/admin/keys", {"tenant": "slow", "name": "slow"}, status=201))["key"]
            slow = await stack.enter_async_context(Api(server.url, headers={"X-API-Key": key}))
            sessions = [await stack.enter_async_context(slow.session()) for _ in range(_SESSIONS)]
            other = await stack.enter_async_context(admin.session())
            costs.reset()
            last = await stack.enter_async_context(contextlib.AsyncExitStack())
            first = await stack.enter_async_context(contextlib.AsyncExitStack())
            for number in range(_READERS - 2):
                await first.enter_async_context(unread_exec(server, key, sessions[number % _SESSIONS].id))
            await asyncio.sleep(3)
            readers = [await last.enter_async_context(unread_exec(server, key, each.id)) for each in sessions[:2]]
            async with asyncio.timeout(15):
                result = await other.exec(f"head -c {4 * MIB} /dev/zero | tr '\\0' y")
            assert (len(result["stdout"]), result["truncated"]) == (4 * MIB, False)
            assert costs.memory_mib < _MAX_MIB
            await first.aclose()
            for reader in readers:
                async with asyncio.timeout(30):
                    answer = await answer_of(reader)
                assert (answer["exit_code"], answer["stdout"], answer["truncated"]) == (0, _SIZE, False)
            assert costs.memory_mib < _MAX_MIB
