"""E2B's wire as a whole, on one server and in a cluster: who is let in, ports, cut and forged streams, attacks."""

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from attack_requests import ask, split_answer
from cluster_processes import Cluster, running_cluster
from e2e.conftest import NewState
from e2e.preview_suite import SERVER
from marks import first_of
from redis_server import RedisServer
from server_process import ServerProcess, running_server
from yarl import URL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

ADMIN = "wk_" + "k" * 40
PORT = 3000
SETTINGS = {"WARREN_API_KEY": ADMIN, "WARREN_E2B_TEMPLATES": "base=base", "WARREN_EGRESS": "false"}
GONE = "The sandbox was not found"
_HEAD = struct.Struct(">BI")


@pytest.fixture(scope="module", params=first_of(["alone", "cluster"]))
def servers(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[list[ServerProcess]]:
    """A server, or the two coordinators of a cluster."""
    if request.param == "alone":
        with running_server(new_state(), "--pool-size", "1", "--cpus", "2", **SETTINGS) as server:
            yield [server]
        return
    states = [new_state() for _ in range(4)]
    redis = RedisServer(states[0] / "redis")
    flags = ("--cpus", "2", "--on-stop", "destroy")
    with running_cluster(Cluster(redis, states[:2], states[2:], *flags, POOL_SIZE="1", **SETTINGS)) as cluster:
        yield cluster.coordinators


class Client:
    """Sends requests as E2B's clients do, to each of the servers in turn."""

    def __init__(self, http: aiohttp.ClientSession, servers: list[ServerProcess], key: str) -> None:
        self.http, self.servers, self.key = http, servers, key
        self._asked = 0

    async def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, json: Any = None, data: Any = None
    ) -> tuple[int, Any]:
        self._asked += 1
        url = self.servers[self._asked % len(self.servers)].url
        asked = URL(url + path, encoded=True)
        async with self.http.request(method, asked, headers=headers, json=json, data=data) as response:
            body = await response.read()
            assert response.content_type != "application/problem+json", body
            is_json = response.content_type == "application/json" and body
            return response.status, _read(body) if is_json else body

    async def api(self, method: str, path: str, json: Any = None, **headers: str) -> tuple[int, Any]:
        return await self.ask(method, path, {"X-API-Key": self.key, **headers}, json)

    @contextlib.asynccontextmanager
    async def sandbox(self, **values: Any) -> AsyncIterator["Sandbox"]:
        status, made = await self.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300, **values})
        assert status == 201, made
        try:
            yield Sandbox(self, made)
        finally:
            await self.api("DELETE", f"/sandboxes/{made['sandboxID']}")


def _read(body: bytes) -> Any:
    return json.loads(body)


class Sandbox:
    def __init__(self, client: Client, made: dict[str, Any]) -> None:
        self.client, self.made = client, made
        self.id: str = made["sandboxID"]
        self.access, self.traffic = made["envdAccessToken"], made["trafficAccessToken"]
        self.headers = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49983", "X-Access-Token": self.access}

    async def call(self, name: str, message: Any, **headers: str) -> tuple[int, Any]:
        return await self.client.ask("POST", f"/process.Process/{name}", self.headers | headers, message)

    async def run(self, line: str, **headers: str) -> tuple[int, str]:
        """The exit status and what was said; the status is -1 if the stream ends with an error, which is then said."""
        message = {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line]}, "stdin": False}
        status, body = await self.client.ask(
            "POST",
            "/process.Process/Start",
            {**self.headers, "Content-Type": "application/connect+json", **headers},
            data=framed(message),
        )
        assert status == 200, body
        said, code = b"", -1
        for message in frames(body):
            event = message.get("event", {})
            for data in event.get("data", {}).values():
                said += base64.b64decode(data)
            if "end" in event:
                code = event["end"].get("exitCode", 0)
            if "error" in message:
                said += json.dumps(message["error"]).encode()
        return code, said.decode()

    async def serve(self, port: int = PORT) -> None:
        """Starts a server inside that echoes."""
        text = SERVER.read_text()
        start = f"(setsid python3 preview_server.py {port} 127.0.0.1 >/dev/null 2>&1 &)"
        line = f"cat > preview_server.py <<'EOF'\n{text}\nEOF\n{start}"
        assert await self.run(line) == (0, "")
        for _ in range(200):
            if (await self.open(port))[0] == 200:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the server inside does not answer")

    async def open(self, port: int = PORT, path: str = "/echo", **headers: str) -> tuple[int, Any]:
        host = f"{port}-{self.id}.localhost"
        return await self.client.ask("GET", path, {"Host": host, **headers})


def signed(path: str, token: str, operation: str, expires_at: int | None = None) -> str:
    text = f"{path}:{operation}::{token}" + ("" if expires_at is None else f":{expires_at}")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    values = {"path": path, "signature": f"v1_{digest}"} | (
        {} if expires_at is None else {"signature_expiration": str(expires_at)}
    )
    return "/files?" + urlencode(values)


def framed(message: Any, flags: int = 0) -> bytes:
    body = json.dumps(message).encode()
    return _HEAD.pack(flags, len(body)) + body


def frames(data: bytes) -> Iterator[Any]:
    while data:
        _, length = _HEAD.unpack_from(data)
        yield json.loads(data[5 : 5 + length])
        data = data[5 + length :]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as http:
        yield http


async def new_key(
    http: aiohttp.ClientSession, server: ServerProcess, tenant: str, *scopes: str, quota: Mapping[str, int] = {}
) -> str:
    """As E2B's clients spell it."""
    body = {"name": "test", "tenant": tenant, "quota": dict(quota), **({"scopes": scopes} if scopes else {})}
    async with http.post(f"{server.url}/api/admin/keys", json=body, headers={"X-API-Key": ADMIN}) as response:
        _, key_id, secret = (await response.json())["key"].split("_")
        return f"e2b_{key_id}{secret}"


@pytest.fixture
async def client(http: aiohttp.ClientSession, servers: list[ServerProcess]) -> Client:
    return Client(http, servers, await new_key(http, servers[0], "acme"))


@pytest.fixture
async def sandbox(client: Client) -> AsyncIterator[Sandbox]:
    async with client.sandbox() as sandbox:
        yield sandbox


async def test_a_sandbox_is_used_through_any_server_with_its_token_alone(client: Client, sandbox: Sandbox) -> None:
    for _ in client.servers:
        assert await sandbox.run("echo hello; exit 3") == (3, "hello\n")
        assert (await sandbox.call("List", {}))[0] == 200
        assert (await client.ask("GET", "/health", {"E2b-Sandbox-Id": sandbox.id}))[0] == 204
        assert (await client.ask("GET", "/health", {"Host": f"49983-{sandbox.id}.localhost"}))[0] == 204
        assert (await client.ask("POST", "/process.Process/List", {"X-Access-Token": sandbox.access}, {}))[0] == 200
        status, listed = await client.api("GET", "/v2/sandboxes")
        assert (status, sandbox.id in {one["sandboxID"] for one in listed}) == (200, True)
        assert (await client.api("POST", f"/sandboxes/{sandbox.id}/timeout", {"timeout": 200}))[0] == 204
        assert (await client.api("GET", f"/e2b/sandboxes/{sandbox.id}"))[1]["sandboxID"] == sandbox.id
    async with client.http.get(
        f"{client.servers[0].url}/api/sessions/ses_{sandbox.id}", headers={"X-API-Key": client.key}
    ) as response:
        assert (await response.json())["session_id"] == f"ses_{sandbox.id}"


async def test_the_user_that_is_asked_for_reaches_the_worker(sandbox: Sandbox) -> None:
    status, answer = await sandbox.call("List", {}, Authorization="Basic bm9ib2R5LWhlcmU6")
    assert status in (200, 401), answer
    code, said = await sandbox.run("true", Authorization="Basic bm9ib2R5LWhlcmU6")  # nobody-here
    assert code == -1
    assert "unauthenticated" in said


async def test_a_signed_url_needs_no_header_at_all(client: Client, sandbox: Sandbox) -> None:
    async with client.sandbox(), client.sandbox():
        writing = signed("/tmp/a b.txt", sandbox.access, "write")
        status, answer = await client.ask("POST", writing, {"Content-Type": "application/octet-stream"}, data=b"hello")
        assert (status, answer[0]["path"]) == (200, "/tmp/a b.txt")
        for _ in client.servers:
            assert await client.ask("GET", signed("/tmp/a b.txt", sandbox.access, "read")) == (200, b"hello")
        host = {"Host": f"49983-{sandbox.id}.localhost"}
        assert await client.ask("GET", signed("/tmp/a b.txt", sandbox.access, "read"), host) == (200, b"hello")
    now = int(time.time())
    assert (await client.ask("GET", signed("/tmp/a b.txt", sandbox.access, "read", now + 60)))[0] == 200
    status, expired = await client.ask("GET", signed("/tmp/a b.txt", sandbox.access, "read", now - 60))
    assert (status, expired) == (401, {"code": 401, "message": "signature is already expired"})
    for wrong in (writing, signed("/tmp/a b.txt", sandbox.access[:-1], "read"), signed("/x", sandbox.traffic, "read")):
        assert (await client.ask("GET", wrong))[0] == 401


async def test_large_files_pass_as_streams(client: Client, sandbox: Sandbox) -> None:
    piece, count = bytes(range(256)) * 1024, 256  # 64 MiB
    before = [_most_memory_kb(server) for server in client.servers]

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    headers = {**sandbox.headers, "Content-Type": "application/octet-stream"}
    status, answer = await client.ask("POST", "/files?path=/tmp/large", headers, data=pieces())
    assert status == 200, answer
    wanted = hashlib.sha256(piece * count).hexdigest()
    assert (await sandbox.run("sha256sum < /tmp/large"))[1].split()[0] == wanted
    for server in client.servers:
        digest = hashlib.sha256()
        async with client.http.get(f"{server.url}/files?path=/tmp/large", headers=sandbox.headers) as response:
            async for received in response.content.iter_any():
                digest.update(received)
        assert digest.hexdigest() == wanted
    after = [_most_memory_kb(server) for server in client.servers]
    assert max(new - old for new, old in zip(after, before, strict=True)) < 32 * 1024


def _most_memory_kb(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


async def test_one_idempotency_key_makes_one_sandbox(client: Client) -> None:
    body = {"templateID": "base", "timeout": 60}
    made = [await client.api("POST", "/v2/sandboxes", body, **{"Idempotency-Key": "once"}) for _ in range(4)]
    assert {status for status, _ in made} == {201}
    assert len({answer["sandboxID"] for _, answer in made}) == 1
    assert (await client.api("DELETE", f"/sandboxes/{made[0][1]['sandboxID']}"))[0] == 204


async def test_a_network_is_needed_only_if_it_was_asked_for(client: Client) -> None:
    """These servers have no way out of sandboxes."""
    async with client.sandbox(templateID="e2b") as sandbox:
        assert (await client.api("GET", f"/sandboxes/{sandbox.id}"))[1]["allowInternetAccess"] is False
    rules = {"allowOut": ["192.0.2.0/24"], "denyOut": ["0.0.0.0/0"]}
    status, answer = await client.api("POST", "/v2/sandboxes", {"templateID": "e2b", "network": rules})
    assert (status in (400, 403), answer["code"] == status, "egress" in answer["message"]) == (True, True, True)


async def test_ports_are_public_unless_the_client_wants_them_private(client: Client, sandbox: Sandbox) -> None:
    await sandbox.serve()
    assert (await sandbox.open(path="/sandboxes?x=1"))[0] in (200, 404)
    status, closed = await sandbox.open(PORT + 1)
    assert (status, closed) == (
        502,
        {"sandboxId": sandbox.id, "message": "The sandbox is running but port is not open", "port": 3001, "code": 502},
    )
    native = f"{client.servers[0].url}/api/sessions/ses_{sandbox.id}/ports"
    async with client.http.get(native, headers={"X-API-Key": client.key}) as response:
        assert [one["public"] for one in (await response.json())["ports"] if one["port"] == PORT] == [True]
    async with client.http.put(
        f"{native}/{PORT}", json={"public": False}, headers={"X-API-Key": client.key}
    ) as response:
        assert (response.status, (await response.json())["code"]) == (409, "conflict")
    page = await sandbox.open(PORT + 1, Accept="text/html")
    assert (page[0], b"Nothing listens here yet" in page[1]) == (502, True)
    headers = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": str(PORT)}
    status, seen = await client.ask("GET", "/echo", {**headers, "X-Access-Token": sandbox.access})
    assert status == 200
    assert sandbox.access.encode() not in (seen if isinstance(seen, bytes) else json.dumps(seen).encode())
    async with client.sandbox(network={"allowPublicTraffic": False}) as private:
        await _run_private(client, sandbox, private)


async def _run_private(client: Client, other: Sandbox, private: Sandbox) -> None:
    assert (await private.run("true"))[0] == 0
    token = {"E2B-Traffic-Access-Token": private.traffic}
    status, refusal = await private.open()
    assert (status, refusal["code"], refusal["sandboxId"]) == (403, 403, private.id)
    assert (await private.open(**{"E2B-Traffic-Access-Token": other.traffic}))[0] == 403
    assert (await private.open(**{"E2B-Traffic-Access-Token": private.access}))[0] == 403
    assert (await private.open(**{"X-Access-Token": private.access}))[0] == 403
    status, closed = await private.open(**token)
    assert (status, closed["message"]) == (502, "The sandbox is running but port is not open")
    text = SERVER.read_text()
    await private.run(f"cat > s.py <<'EOF'\n{text}\nEOF\n(setsid python3 s.py {PORT} 127.0.0.1 >/dev/null 2>&1 &)")
    for _ in range(100):
        status, seen = await private.open(**token)
        if status == 200:
            break
        await asyncio.sleep(0.1)
    assert status == 200
    assert private.traffic.encode() not in (seen if isinstance(seen, bytes) else json.dumps(seen).encode())
    assert (await private.open(**{"X-API-Key": client.key}))[0] == 200
    host = f"{PORT}-{private.id}.localhost"
    url = client.servers[0].url + "/ws"
    async with client.http.ws_connect(url, headers={"Host": host, **token}) as connection:
        await connection.send_str("hello")
        assert await connection.receive_str() == "hello"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await client.http.ws_connect(url, headers={"Host": host})
    assert refused.value.status == 403


async def test_a_sandbox_of_another_tenant_or_an_ended_one_cannot_be_reached(
    client: Client, sandbox: Sandbox, http: aiohttp.ClientSession, servers: list[ServerProcess]
) -> None:
    stranger = Client(http, servers, await new_key(http, servers[0], "umbrella"))
    for method, path in (
        ("GET", f"/sandboxes/{sandbox.id}"),
        ("DELETE", f"/sandboxes/{sandbox.id}"),
        ("POST", f"/v2/sandboxes/{sandbox.id}/connect"),
        ("POST", f"/sandboxes/{sandbox.id}/timeout"),
    ):
        status, answer = await stranger.api(method, path, {"timeout": 1} if method == "POST" else None)
        assert (status, answer["code"]) == (404, 404)
    assert sandbox.id not in str((await stranger.api("GET", "/v2/sandboxes"))[1])
    async with stranger.sandbox() as other:
        for token in (other.access, other.traffic, stranger.key):
            status, answer = await sandbox.call("List", {}, **{"X-Access-Token": token, "X-API-Key": stranger.key})
            assert (status, answer["code"]) == (401, "unauthenticated")
        assert (await other.call("List", {}))[0] == 200
    for path in ("/files?path=/etc/passwd", "/execute", "/contexts"):
        assert (await client.ask("POST", path, {"E2b-Sandbox-Id": sandbox.id}, {}))[0] == 401
    assert (await client.api("DELETE", f"/sandboxes/{sandbox.id}"))[0] == 204
    gone = {"sandboxId": sandbox.id, "message": GONE, "code": 502}
    for _ in client.servers:
        assert await client.ask("GET", "/health", {"E2b-Sandbox-Id": sandbox.id}) == (502, gone)
        assert await sandbox.call("List", {}) == (502, gone)
        assert await sandbox.open() == (502, gone)
        assert (await client.api("GET", f"/sandboxes/{sandbox.id}"))[0] == 404


async def test_keys_need_the_scopes_of_what_they_do(
    client: Client, sandbox: Sandbox, http: aiohttp.ClientSession
) -> None:
    for scopes, allowed in ((("read",), {"GET"}), (("files",), set()), (("sessions",), {"POST"})):
        weak = Client(http, client.servers, await new_key(http, client.servers[0], "acme", *scopes))
        for method, path, body in (
            ("GET", "/v2/sandboxes", None),
            ("POST", f"/v2/sandboxes/{sandbox.id}/connect", {"timeout": 1}),
        ):
            status, answer = await weak.api(method, path, body)
            assert (status == 403) is (method not in allowed), (scopes, method, answer)
            assert "envdAccessToken" not in str(answer)
            assert "trafficAccessToken" not in str(answer)
    for key in ("", "e2b_" + "0" * 80, "x"):
        status, answer = await client.ask("GET", "/v2/sandboxes", {"X-API-Key": key} if key else {})
        assert (status, answer["code"]) == (401, 401)


async def test_requests_that_no_client_sends(client: Client, sandbox: Sandbox) -> None:
    for server in client.servers:
        for head, wanted in (
            (f"GET /e2b/envd/ses_{sandbox.id}/health HTTP/1.1\r\nHost: localhost", (401, 404)),
            (f"GET /e2b%2Fenvd%2Fses_{sandbox.id}%2Fhealth HTTP/1.1\r\nHost: localhost", (401, 404)),
            (f"GET //e2b/envd/ses_{sandbox.id}/health HTTP/1.1\r\nHost: localhost", (401, 404)),
            (f"GET /E2B/envd/ses_{sandbox.id}/health HTTP/1.1\r\nHost: localhost", (401, 404)),
            (f"GET /x/../e2b/envd/ses_{sandbox.id}/health HTTP/1.1\r\nHost: localhost", (400, 401, 404)),
            (
                f"GET /health HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {sandbox.id}\r\nE2b-Sandbox-Id: x",
                (400, 502),
            ),
            (f"GET /health HTTP/1.1\r\nHost: 49983-{sandbox.id}.localhost\r\nHost: localhost", (400, 422)),
            (f"GET /health HTTP/1.1\r\nHost: 49983-{sandbox.id}.localhost\r\nE2b-Sandbox-Id: {'0' * 32}", (400,)),
            (f"GET /health HTTP/1.1\r\nHost: evil.example\r\nE2b-Sandbox-Id: {sandbox.id}", (400, 421)),
            (f"OPTIONS /health HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {sandbox.id}", (405,)),
            (f"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {sandbox.id}", (400, 401, 404, 405)),
            (
                f"POST /files HTTP/1.1\r\nHost: localhost\r\nX-Access-Token: {sandbox.access}\r\n"
                f"Content-Length: 5\r\nTransfer-Encoding: chunked",
                (400,),
            ),
        ):
            answer = ask(server.port, head.encode() + b"\r\nConnection: close\r\n\r\n")
            status, body = split_answer(answer)
            assert status in wanted, (head, answer)
            assert b"ses_" not in body
    assert (await sandbox.call("List", {}))[0] == 200


async def test_streams_that_are_cut_or_not_framed_properly_end_in_an_error(client: Client, sandbox: Sandbox) -> None:
    whole = framed({"process": {"cmd": "/bin/true"}, "stdin": False})
    headers = {**sandbox.headers, "Content-Type": "application/connect+json"}
    broken = [whole[:length] for length in range(len(whole))]
    broken += [
        whole + whole,
        framed({"process": {}}, 1),
        _HEAD.pack(0, 0xFFFFFFFF),
        _HEAD.pack(0, 5 * 1024 * 1024) + b"x",
        _HEAD.pack(0xFF, 2) + b"{}",
        framed([]),
        framed("x"),
        _HEAD.pack(0, 2) + b"{{",
        _HEAD.pack(0, 3) + b"\xff\xfe\x00",
        framed({"process": {"cmd": 1}}),
        framed({"process": {"cmd": "/bin/true", "args": [{}]}}),
        _HEAD.pack(0, 40_000) + b"[" * 20_000 + b"]" * 20_000,
    ]
    for data in broken:
        status, body = await client.ask("POST", "/process.Process/Start", headers, data=data)
        assert status in (200, 400), (data, status, body)
        if status == 200:
            (last,) = frames(body)
            assert last["error"]["code"] in ("invalid_argument", "not_found"), (data, last)
        else:
            assert body["code"] in ("invalid_argument", "not_found"), (data, body)
    too_much = await client.ask("POST", "/process.Process/List", headers, data=io.BytesIO(b"[" * (9 * 1024 * 1024)))
    assert too_much[0] in (400, 413)
    assert await sandbox.run("echo fine") == (0, "fine\n")


async def test_a_client_that_leaves_or_reads_slowly_costs_nobody_anything(client: Client, sandbox: Sandbox) -> None:
    server = client.servers[-1]
    message = framed({"process": {"cmd": "/bin/bash", "args": ["-c", "cat /dev/zero | head -c 60000000"]}})
    head = (
        f"POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\nX-Access-Token: {sandbox.access}\r\n"
        f"Content-Type: application/connect+json\r\nContent-Length: {len(message)}\r\n\r\n"
    ).encode()
    readers = []
    for _ in range(3):
        reader = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(head + message)
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        readers.append(reader)
    assert await sandbox.run("echo fine") == (0, "fine\n")
    for reader in readers:
        reader.close()
    for cut in range(1, len(head) + len(message), 37):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall((head + message)[:cut])
    assert await sandbox.run("echo fine") == (0, "fine\n")


async def test_requests_are_recorded_and_counted(client: Client, sandbox: Sandbox, http: aiohttp.ClientSession) -> None:
    assert await sandbox.run("true") == (0, "")
    await sandbox.client.ask("GET", "/contexts", {"E2B-Traffic-Access-Token": sandbox.traffic})
    assert (await sandbox.call("List", {}, **{"X-Access-Token": sandbox.traffic}))[0] == 401
    wanted = {"e2b_create_sandbox", "e2b_start_process", "e2b_list_contexts"}
    found: dict[str, Any] = {}
    for _ in range(50):
        async with http.get(
            f"{client.servers[0].url}/api/admin/audit",
            params={"session_id": f"ses_{sandbox.id}"},
            headers={"X-API-Key": ADMIN},
        ) as response:
            entries = (await response.json())["deeds"]
        found = {entry["action"]: entry for entry in entries}
        if wanted | {"e2b_list_processes"} <= found.keys():
            break
        await asyncio.sleep(0.1)
    refused = found["e2b_list_processes"]
    assert (refused["tenant"], refused["key_id"], refused["result"]) == ("", "", "unauthorized")
    for action in wanted:
        entry = found[action]
        assert (entry["tenant"], entry["session_id"]) == ("acme", f"ses_{sandbox.id}")
        assert entry["key_id"].startswith("key_")
        assert entry["key_id"] == found["e2b_create_sandbox"]["key_id"]
    limited = await new_key(http, client.servers[0], "narrow", quota={"requests_per_minute": 6})
    narrow = Client(http, client.servers[:1], limited)
    status, made = await narrow.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 30})
    assert status == 201
    small = Sandbox(narrow, made)
    statuses = [(await small.call("List", {})) for _ in range(12)]
    limited_answers = [answer for status, answer in statuses if status == 429]
    assert limited_answers
    assert limited_answers[0]["code"] == "resource_exhausted"
    assert "unknown" not in [
        line.partition("route=")[2].split()[0] for line in client.servers[0].log.splitlines() if "route=/e2b" in line
    ]
    assert "/e2b/envd/{session_id}/process.Process/Start" in "".join(server.log for server in client.servers)
    async with http.delete(
        f"{client.servers[0].url}/api/sessions/ses_{made['sandboxID']}", headers={"X-API-Key": ADMIN}
    ):
        pass
