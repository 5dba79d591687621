"""Keys and secrets are planted, the server is used in every way that could spill them, then everything is searched."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from e2e.api_client import Api
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

ADMIN = "planted-admin-key-4f1c9a7d2b"
VALUE = "planted-secret-value-77aa31c0"
PASSWORD = "planted-password-5d8e20b6"


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_server(new_state(), WARREN_API_KEY=ADMIN, WARREN_LOG_LEVEL="debug") as server:
        yield server


@pytest.fixture
async def admin(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": ADMIN}) as api:
        yield api


async def used(server: ServerProcess, admin: Api) -> tuple[list[str], list[bytes]]:
    """Everything planted, and everything the server has said to anybody meanwhile."""
    said: list[bytes] = []
    made = await admin.call("POST", "/api/admin/keys", {"name": "planted", "scopes": ["exec", "sessions"]}, status=201)
    rotated = await admin.call("POST", f"/api/admin/keys/{made['id']}/rotate")
    planted = [ADMIN, made["key"], rotated["key"], VALUE, PASSWORD]
    async with Api(server.url, {"Authorization": f"Bearer {rotated['key']}"}) as api:
        body = {"thread_id": "t", "env": {"API_TOKEN": VALUE}}
        session = await api.call("POST", "/api/sessions", body, status=201)
        said.append(json.dumps(session).encode())
        place = f"/api/sessions/{session['session_id']}"
        result = await api.post(f"{place}/exec", {"command": 'test "$API_TOKEN" = "$OTHER"', "env": {"OTHER": VALUE}})
        assert result["exit_code"] == 0, "the variable is there for commands"
        for command in (f"echo {VALUE} > /dev/null", f"curl -u me:{PASSWORD} x", f"PASSWORD={PASSWORD} true"):
            await api.post(f"{place}/exec", {"command": command})
        process = await api.call("POST", f"{place}/processes", {"command": f"sleep 1000 # {VALUE}"}, status=201)
        await api.call("DELETE", f"{place}/processes/{process['process_id']}", status=204)
        for headers in ({}, {"X-API-Key": made["key"]}, {"X-API-Key": ADMIN[:-1]}, {"Authorization": f"Basic {ADMIN}"}):
            said.append(await spoken(server, "GET", place, headers))
        said.append(await spoken(server, "GET", f"{place}?key={VALUE}", {"X-API-Key": rotated["key"]}))
        said.append(await spoken(server, "POST", f"{place}/exec", {"X-API-Key": rotated["key"]}, b"{" + VALUE.encode()))
        said.append(await spoken(server, "GET", place, {"X-API-Key": rotated["key"] * 2000}))
    records = ("/api/admin/keys", "/api/admin/audit", "/api/admin/usage")
    for path in (*records, "/api/stats", "/metrics", "/health", "/api/sessions"):
        said.append(await spoken(server, "GET", path, {"X-API-Key": ADMIN}))
    return planted, said


async def spoken(server: ServerProcess, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    asked = (method, f"{server.url}{path}")
    async with aiohttp.ClientSession() as client, client.request(*asked, headers=headers, data=body or None) as answer:
        return str(answer.headers).encode() + await answer.read()


async def test_what_was_planted_is_found_nowhere(server: ServerProcess, admin: Api) -> None:
    planted, said = await used(server, admin)
    await asyncio.sleep(2)  # for what is written in the background: the audit record, the database's log
    places = {"an answer": b"\n".join(said), "the process list": process_list(), **files(server.state_dir)}
    for place, content in places.items():
        for text in planted:
            assert text.encode() not in content, f"{text[:15]}… in {place}"
    record = b"".join(content for name, content in places.items() if "/audit/" in name)
    assert b"run_command" in record, "the record was searched, and has something in it"
    database = b"".join(content for name, content in places.items() if "sessions.db" in name)
    assert b"ses_" in database
    await inside(admin, planted)


def files(directory: Path) -> dict[str, bytes]:
    """Every file of the server: its database, its log, its audit record, what it keeps of sandboxes."""
    found = {}
    for root, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in ("images", "disk")]
        for name in names:
            path = Path(root) / name
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size < 64 * 1024 * 1024:
                    found[str(path)] = path.read_bytes()
    return found


def process_list() -> bytes:
    """The arguments of every process of the machine but ours, as everybody can see them."""
    return subprocess.run(["ps", "-eo", "args", "ww"], capture_output=True, check=True).stdout


async def inside(admin: Api, planted: list[str]) -> None:
    """A sandbox that was given none of it looks everywhere it can."""
    search = "cat /proc/*/environ /proc/*/cmdline /proc/*/mountinfo 2>/dev/null; env; grep -rs planted / --include='*' "
    search += "--exclude-dir=proc --exclude-dir=sys -l 2>/dev/null | head; cat /etc/* 2>/dev/null; true"
    async with admin.session() as session:
        said = await session.output(search, timeout_s=60)
    for text in planted:
        assert text not in said
