"""Who may open a preview, what passes between a browser and a sandbox, attacks on both, and real servers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from attack_requests import ask, split_answer
from cluster_processes import Cluster, running_cluster
from e2e.api_client import Api, SessionApi
from e2e.conftest import NewState
from e2e.preview_suite import MIB, PORT, Preview, http, named, start_server  # noqa: F401
from marks import first_of
from redis_server import RedisServer
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

KEY = "wk_" + "k" * 40
DOMAIN = "preview.example.com"
SETTINGS = {"WARREN_API_KEY": KEY, "WARREN_PREVIEW_DOMAIN": DOMAIN, "WARREN_PREVIEW_PUBLIC": "true"}
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module", params=first_of(["alone", "cluster"]))
def server(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[ServerProcess]:
    """A server, or one of the two coordinators of a cluster."""
    if request.param == "alone":
        with running_server(new_state(), "--pool-size", "1", "--cpus", "2", **SETTINGS) as server:
            yield server
        return
    states = [new_state() for _ in range(3)]
    redis = RedisServer(states[0] / "redis")
    flags = ("--cpus", "2", "--on-stop", "destroy")
    with running_cluster(Cluster(redis, states[:1], states[1:], *flags, POOL_SIZE="1", **SETTINGS)) as cluster:
        yield cluster.coordinators[1]


@pytest.fixture
def url(server: ServerProcess) -> str:
    return server.url


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with Api(url, {"X-API-Key": KEY}) as api:
        yield api


class Private(Preview):
    """A preview below the server's domain; `link` is a link to it."""

    link: dict[str, Any]

    def open_by(self, **headers: str) -> Any:
        return self.ask("GET", "/echo", headers=headers, allow_redirects=False)

    async def status(self, target: str = "/echo", **headers: str) -> int:
        async with self.ask("GET", target, headers=headers, allow_redirects=False) as response:
            return int(response.status)

    async def sees(self, **headers: str) -> dict[str, str]:
        return named((await self.echo(headers=headers))["headers"])


@pytest.fixture
async def private(session: SessionApi, http: aiohttp.ClientSession) -> Private:  # noqa: F811
    await start_server(session)
    preview = Private(http, session, by_host=True)
    preview.host = preview.headers["Host"] = preview.host.replace("localhost", DOMAIN)
    preview.link = await session.post("/links", {"port": PORT}, status=201)
    return preview


async def cookie_of(preview: Private, target: str = "/echo") -> str:
    token = preview.link["token"]
    async with preview.ask("GET", f"{target}?a=1&warren_token={token}", headers=HTML, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (302, f"http://{preview.host}{target}?a=1")
        cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"warren-preview={token}; Path=/; Max-Age=")
    assert "; HttpOnly; SameSite=Lax" in cookie
    assert "omain=" not in cookie
    return cookie.partition(";")[0]


async def test_a_preview_is_private_until_a_key_a_link_or_a_token_opens_it(private: Private) -> None:
    assert await private.status() == 401
    async with private.open_by(**HTML) as response:
        assert (response.status, response.content_type) == (401, "text/html")
        assert "This preview is private" in await response.text()
    assert private.link["url"] == f"http://{private.host}/?warren_token={private.link['token']}"
    cookie = await cookie_of(private)
    seen = await private.sees(**{"Cookie": f"own=1; {cookie}; other=2", "Authorization": "Bearer the-apps-own"})
    assert (seen["cookie"], seen["authorization"]) == ("own=1; other=2", "Bearer the-apps-own")
    token = private.link["token"]
    assert "x-warren-preview-token" not in await private.sees(**{"X-Warren-Preview-Token": token})
    assert (await private.echo("POST", f"/echo?b=2&warren_token={token}"))["target"] == "/echo?b=2"
    for ours in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        seen = await private.sees(**ours)
        assert not {"x-api-key", "authorization"} & seen.keys()
    assert KEY not in json.dumps(await private.echo(headers={"Cookie": cookie, "Authorization": f"Bearer {KEY}"}))
    assert await private.status(**{"X-API-Key": "wk_" + "x" * 40}) == 401


async def test_a_websocket_opens_with_a_cookie_or_a_link_from_its_own_origin_alone(private: Private) -> None:
    cookie, own = await cookie_of(private), f"http://{private.host}"
    for target, headers in (("/ws", {"Cookie": cookie}), (f"/ws?warren_token={private.link['token']}", {})):
        async with private.socket(target, headers={**headers, "Origin": own}) as socket:
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
        for origin in ("http://evil.example", f"https://{private.host}.evil.example", "null", f"http://{DOMAIN}"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await private.socket(target, headers={**headers, "Origin": origin})
            assert refused.value.status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await private.socket("/ws", headers={"Origin": own})
    assert refused.value.status == 401


async def test_links_open_one_port_of_one_session_until_they_expire_or_are_revoked(
    private: Private, session: SessionApi, api: Api
) -> None:
    token = {"X-Warren-Preview-Token": private.link["token"]}
    assert await private.status(**token) == 200
    async with api.session() as other:
        for sandbox, port in ((session, PORT + 1), (other, PORT)):
            elsewhere = Private(private.http, sandbox, True, port)
            elsewhere.headers["Host"] = elsewhere.host.replace("localhost", DOMAIN)
            assert await elsewhere.status(**token) == 401
            assert await elsewhere.status(f"/?warren_token={private.link['token']}", **HTML) == 401
            assert await elsewhere.status(Cookie=await cookie_of(private)) == 401
            await api.refused(
                "GET", f"/api/sessions/{sandbox.id}/ports/{port}/", headers=token, status=401, code="unauthorized"
            )
    payload, _, mac = private.link["token"].partition(".")
    for forged in (
        f"{payload}.{mac[:-2]}AA",
        f"{payload[:-1]}_.{mac}",
        f"{payload}.",
        f".{mac}",
        "x",
        f"{payload}={mac}",
    ):
        assert await private.status(**{"X-Warren-Preview-Token": forged}) == 401
    short = await session.post("/links", {"port": PORT, "expires_s": 0.01}, status=201)
    async with asyncio.timeout(20):
        while await private.status(**{"X-Warren-Preview-Token": short["token"]}) == 200:
            await asyncio.sleep(0.1)
    cookie = await cookie_of(private)
    async with private.socket("/ws", headers={"Cookie": cookie}) as socket:
        await session.call("DELETE", "/links")
        assert await private.status(**token) == 403
        assert await private.status(Cookie=cookie) == 403
        async with asyncio.timeout(20):
            while True:
                await socket.send_str("still there?")
                if (await socket.receive()).type is not aiohttp.WSMsgType.TEXT:
                    break
                await asyncio.sleep(0.2)


async def test_a_public_port_needs_nothing_and_others_stay_private(private: Private, session: SessionApi) -> None:
    changed = await session.call("PUT", f"/ports/{PORT}", {"public": True})
    assert changed == {"port": PORT, "public": True, "host_header": ""}
    assert await private.status() == 200
    assert (await private.sees(Authorization="Bearer own"))["authorization"] == "Bearer own"
    private.headers["Host"] = private.host.replace(str(PORT), "3001", 1)
    assert await private.status() == 401
    private.headers["Host"] = private.host
    await session.call("PUT", f"/ports/{PORT}", {"public": False})
    assert await private.status() == 401
    await session.refused("PUT", "/ports/03000", {"public": True}, status=422, code="invalid_request")


async def test_cookies_do_not_open_a_preview_to_pages_of_other_origins(private: Private) -> None:
    cookie = {"Cookie": await cookie_of(private)}
    for page in ("cross-site", "same-site"):
        assert await private.status(**cookie, **{"Sec-Fetch-Site": page, "Sec-Fetch-Mode": "navigate"}) == 200
        assert await private.status(**cookie, **{"Sec-Fetch-Site": page, "Sec-Fetch-Mode": "no-cors"}) == 403
    assert await private.status(**cookie, **{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}) == 200
    async with private.ask("POST", "/echo", headers={**cookie, "Origin": "http://evil.example"}) as response:
        assert response.status == 403
    tossed = {"Cookie": f"warren-preview=x; warren-preview=y; {cookie['Cookie']}"}
    assert await private.status(**tossed) == 200


async def test_what_a_sandbox_answers_has_no_effect_beyond_its_own_origin(
    private: Private, session: SessionApi
) -> None:
    cookies = [
        "a=1; Domain=example.com; Path=/",
        "warren-preview=x",
        "__Host-warren-preview=x; Secure",
        "__Host-warren=x; Secure; Path=/",
        "=__Host-warren=x; Secure; Path=/",  # without a name: browsers send it as if it had one
        "b=2; dOmAiN =x",
    ]
    lines = [*(f"Set-Cookie: {cookie}" for cookie in cookies), "Strict-Transport-Security: max-age=9", "Alt-Svc: h3"]
    lines += ["Service-Worker-Allowed: /", "NEL: {}", "Report-To: {}"]
    lines += ["X-Warren-Sandbox: 1", "Clear-Site-Data: *", "X-Own: yes", "Connection: X-Gone", "Content-Length: 2"]
    raw = "\r\n".join(["HTTP/1.1 200 OK", *lines, "", "ok"]).encode().hex()
    key = {"X-API-Key": KEY}
    async with private.ask("GET", f"/raw?{raw}", headers=key) as response:
        assert await response.read() == b"ok"
        assert response.headers.getall("set-cookie") == ["a=1; Path=/", "b=2"]
        assert "x-own" in response.headers
        assert not {
            "strict-transport-security",
            "alt-svc",
            "x-warren-sandbox",
            "content-security-policy",
            "x-frame-options",
            "access-control-allow-origin",
        } & {n.lower() for n in response.headers}
    async with session.ask("GET", f"/ports/{PORT}/raw?{raw}") as response:
        prefix = f"/api/sessions/{session.id}/ports/{PORT}/"
        assert response.headers.getall("set-cookie") == [f"a=1; Path={prefix}", f"b=2; Path={prefix}"]
        assert "sandbox allow-scripts" in response.headers["content-security-policy"]
        assert "allow-same-origin" not in response.headers["content-security-policy"]
        for name in ("clear-site-data", "service-worker-allowed", "nel", "report-to"):
            assert name not in response.headers


async def test_what_a_sandbox_answers_tells_nothing_about_the_server(session: SessionApi, url: str) -> None:
    await start_server(session)
    async with Api(url, {"X-API-Key": KEY}) as api:

        async def errors() -> tuple[int, int]:
            """How many kinds of requests the metrics know, and how many requests failed."""
            page = (await api.get("/metrics", params={"again": str(time.time())})).decode()
            rows = [line for line in page.splitlines() if line.startswith("warren_http_request_seconds_count{")]
            return len(rows), sum(float(row.rsplit(" ", 1)[1]) for row in rows if 'status="5' in row)

        kinds, failed = await errors()
        for status in (201, 299, 418, 500, 503, 599):
            raw = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode().hex()
            async with session.ask("GET", f"/ports/{PORT}/raw?{raw}") as response:
                assert response.status == status
        async with session.ask("GET", "/ports/9/") as response:
            assert response.status == 502
        await asyncio.sleep(1)  # a page of metrics is good for so long
        assert await errors() == (kinds + 1, failed)


async def test_a_sandbox_never_sees_the_sign_in_of_the_dashboard(private: Private, session: SessionApi) -> None:
    sent = {"X-API-Key": KEY, "Cookie": "own=1; __Host-warren=secret; other=2"}
    for seen in (
        await private.sees(**sent),
        named((await session.get(f"/ports/{PORT}/echo", headers=sent))["headers"]),
    ):
        assert "secret" not in str(seen)
        assert "own=1" in seen["cookie"]


async def test_the_host_that_the_server_sees_can_be_localhost(private: Private, session: SessionApi) -> None:
    key, origin = {"X-API-Key": KEY}, {"Origin": f"http://{private.host}"}
    assert (await private.sees(**key))["host"] == private.host
    seen = await private.sees(**key, **origin, **{"X-Warren-Host-Header": "localhost"})
    assert (seen["host"], seen["origin"]) == (f"localhost:{PORT}", f"http://localhost:{PORT}")
    link = await session.post("/links", {"port": PORT, "host_header": "localhost"}, status=201)
    assert (await private.sees(**{"X-Warren-Preview-Token": link["token"]}))["host"] == f"localhost:{PORT}"
    await session.call("PUT", f"/ports/{PORT}", {"host_header": "localhost"})
    assert (await private.sees(**key))["x-forwarded-host"] == private.host
    assert (await private.sees(**key))["host"] == f"localhost:{PORT}"


HOSTILE_HOSTS = (
    "03000-{id}.{domain}",
    "3000-{id}.x.{domain}",
    "x.{domain}",
    "70000-{id}.{domain}",
    "3000-{ID}x.{domain}",
    "3000-ses_{id}.{domain}",
    "+3000-{id}.{domain}",
    "03000-{id}.localhost",
    "3000--{id}.localhost",
)


@pytest.mark.parametrize("host", HOSTILE_HOSTS)
async def test_a_host_below_the_domain_is_a_preview_or_nothing(
    private: Private, session: SessionApi, host: str
) -> None:
    """Never the API: a page there would have its origin."""
    label = session.id.removeprefix("ses_")
    private.headers["Host"] = host.format(id=label, ID=label.upper(), domain=DOMAIN)
    for target in ("/", "/health", "/docs", f"/api/sessions/{session.id}"):
        async with private.ask("GET", target, headers={"X-API-Key": KEY}) as response:
            assert json.loads(await response.read())["code"] in ("not_found", "host_not_allowed")


HOSTILE_PATHS = (
    "/ports/03000/echo",
    "/ports/3000%2f/echo",
    "/ports/+3000/echo",
    "/ports/3000.0/echo",
    "/ports/65536/x",
    "/ports/0/x",
    "/ports/-1/x",
    "/ports/３０００/x",
    "/ports//x",
    "%2fports/3000/echo",
)


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_a_port_has_one_spelling(private: Private, server: ServerProcess, session: SessionApi, path: str) -> None:
    target = f"/api/sessions/{session.id}{path}".encode()
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %s\r\n\r\n" % (target, KEY.encode())
    status, _ = split_answer(ask(server.port, head))
    assert status in (400, 404, 422)


async def test_paths_and_targets_stay_inside_the_preview(
    private: Private, server: ServerProcess, session: SessionApi
) -> None:
    """What looks like a way out is the sandbox's business: it gets the bytes as they were sent."""
    prefix = f"/api/sessions/{session.id}/ports/{PORT}"
    for path in (
        "/../../../../health",
        "/..%2f..%2f..%2f..%2fhealth",
        "/%2e%2e/%2e%2e/health",
        "//evil.example/x",
        "/a;b=c",
        "/api/sessions",
        "/ws/../ws",
        "/%00%0d%0aX: y".replace(" ", ""),
    ):
        assert (await private.echo("GET", path, headers={"X-API-Key": KEY}))["target"] == path
        head = f"GET {prefix}{path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n".encode()
        status, body = split_answer(ask(server.port, head))
        assert (status, json.loads(body)["target"]) == (200, path)
    absolute = f"GET http://evil.example/echo?q HTTP/1.1\r\nHost: {private.host}\r\nX-API-Key: {KEY}\r\n\r\n".encode()
    status, body = split_answer(ask(server.port, absolute))
    assert (status, json.loads(body)["target"], named(json.loads(body)["headers"])["host"]) == (
        200,
        "/echo?q",
        private.host,
    )


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED, EMPTY = b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"
HOSTILE_HEADS = {
    "two lengths": (b"POST /echo HTTP/1.1", b"Content-Length: 3\r\nContent-Length: 40\r\n\r\nabc" + SMUGGLED),
    "length and chunks": (b"POST /echo HTTP/1.1", b"Content-Length: 3\r\n" + CHUNKED + b"\r\n" + EMPTY + SMUGGLED),
    "odd encoding": (b"POST /echo HTTP/1.1", b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    "two encodings": (b"POST /echo HTTP/1.1", CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + EMPTY + SMUGGLED),
    "bad chunk": (b"POST /echo HTTP/1.1", b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n"),
    "space before colon": (b"GET /echo HTTP/1.1", b"X-Warren-Sandbox : 1\r\n\r\n"),
    "folded header": (b"GET /echo HTTP/1.1", b"X-A: b\r\n X-API-Key: c\r\n\r\n"),
    "connect": (b"CONNECT /echo HTTP/1.1", b"\r\n"),
    "two hosts": (b"GET /echo HTTP/1.1", b"Host: localhost\r\n\r\n"),
    "another protocol": (b"PRI * HTTP/2.0", b"\r\nSM\r\n\r\n"),
    "line break in the target": (b"GET /echo\rX HTTP/1.1", b"\r\n"),
}


@pytest.mark.parametrize("name", HOSTILE_HEADS)
async def test_no_request_is_two(private: Private, server: ServerProcess, name: str) -> None:
    """It is refused, or it is one request whose end both servers see at the same place."""
    first, rest = HOSTILE_HEADS[name]
    head = b"%s\r\nHost: %s\r\nX-API-Key: %s\r\n" % (first, private.host.encode(), KEY.encode())
    answer = await asyncio.to_thread(ask, server.port, head + rest)
    assert b"smuggled" not in answer
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 421", b"HTTP/1.1 422")), answer[:300]


async def test_an_upgrade_to_anything_but_a_websocket_is_an_ordinary_request(
    private: Private, server: ServerProcess
) -> None:
    head = b"GET /echo HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    status, body = split_answer(
        ask(server.port, head % (private.host.encode(), KEY.encode()) + b"HTTP2-Settings: x\r\n\r\n")
    )
    assert status == 200
    assert not {"upgrade", "http2-settings"} & named(json.loads(body)["headers"]).keys()


HOSTILE_ANSWERS = {
    "not http": b"SSH-2.0-x\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no such status": b"HTTP/1.1 777 Other\r\nContent-Length: 0\r\n\r\n",
    "switches by itself": b"HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "head without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "header with a line break": b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
async def test_an_answer_that_is_not_http_is_not_passed_on(private: Private, session: SessionApi, name: str) -> None:
    await session.write("answer", HOSTILE_ANSWERS[name])
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 3004)); d = open('answer', 'rb').read()\n"
        "while 1: c = s.accept()[0]; c.recv(9999); c.sendall(d); c.shutdown(1); c.recv(9); c.close()"
    )
    await session.write("hostile.py", program.encode())
    await session.start("python3 hostile.py")
    await session.get("/ports", wait_for=3004)
    private.headers["Host"] = private.host.replace(str(PORT), "3004", 1)
    async with private.ask("GET", "/", headers={"X-API-Key": KEY}) as response:
        assert (response.status, json.loads(await response.read())["code"]) == (502, "port_failed")
        assert "set-cookie" not in response.headers


async def test_a_gibibyte_passes_and_the_server_stays_small(
    private: Private, server: ServerProcess, session: SessionApi
) -> None:
    before, began = memory_mb(server.pid), time.monotonic()
    async with private.ask("GET", f"/bytes?{1024 * MIB}", headers={"X-API-Key": KEY}) as response:
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
    print(f"{1024 / (time.monotonic() - began):.0f} MiB/s to a client in Python")
    assert size == 1024 * MIB
    assert memory_mb(server.pid) - before < 64


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
