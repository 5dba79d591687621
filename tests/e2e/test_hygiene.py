"""Good manners towards browsers and proxies: what every answer carries, and what no request gets through with."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from e2e.alone_or_cluster import KINDS, Place, running
from e2e.api_client import Api, SessionApi
from e2e.bad_input_routes import GOOD, Request
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio
LONGEST_S = 60.0
CAUTION = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
UPGRADE = (
    "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[Place]:
    with running(request.param, new_state) as place:
        yield place


@pytest.fixture(scope="module")
def server(served: Place) -> ServerProcess:
    return served.server


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]


async def raw(server: ServerProcess, method: str, place: str, *headers: str, host: str = "localhost") -> Answer:
    """The answer to exactly these bytes; the connection is used for nothing else."""
    lines = [f"{method} {place} HTTP/1.1", *([f"Host: {host}"] if host else []), *headers]
    if not any(header.startswith("Connection:") for header in headers):
        lines.append("Connection: close")
    return await told(server, "\r\n".join([*lines, "", ""]).encode("latin-1"))


async def told(server: ServerProcess, data: bytes) -> Answer:
    async with asyncio.timeout(LONGEST_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip()
        first, *lines = head.split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        goes_on = first.split()[1] == "101" or "event-stream" in dict(headers).get("content-type", "")
        body = b"" if goes_on and not data.startswith(b"HEAD") else await reader.read()
        writer.close()
    return Answer(int(first.split()[1]), headers, body)


async def test_every_answer_carries_the_headers_of_caution_once(server: ServerProcess, session: SessionApi) -> None:
    mine = f"/api/sessions/{session.id}"
    await session.write("f", b"<script>alert(1)</script>")
    for status, answer in (
        (200, await raw(server, "GET", "/health")),
        (200, await raw(server, "GET", "/openapi.json")),
        (200, await raw(server, "GET", f"{mine}/files/content?path=f")),
        (200, await raw(server, "GET", f"{mine}/files/watch")),
        (400, await raw(server, "GET", "/health", "X: a\0b")),
        (403, await raw(server, "GET", "/health", "Origin: null")),
        (403, await raw(server, "GET", f"{mine}/terminal", "Origin: null", *UPGRADE)),
        (404, await raw(server, "GET", "/nowhere")),
        (404, await raw(server, "GET", "/nowhere", *UPGRADE)),
        (405, await raw(server, "POST", "/health")),
        (413, await raw(server, "POST", "/execute", "Content-Length: 99999999")),
        (421, await raw(server, "GET", "/health", host="evil.example")),
        (422, await raw(server, "GET", f"{mine}/files?depth=x")),
        (431, await raw(server, "GET", "/health", f"X: {'x' * 70_000}")),
    ):
        assert answer.status == status, answer
        for name, value in CAUTION.items():
            assert answer.all(name) == [value], (status, name, answer)
        names = {name for name, _ in answer.headers}
        assert not names & {"server", "x-powered-by", "strict-transport-security"}
        assert not any(name.startswith("access-control-") for name in names)
        assert status in (400, 431) or len(answer.all("x-request-id")) == 1


async def test_files_are_never_shown_as_pages(session: SessionApi) -> None:
    await session.write("page.html", b"<script>alert(1)</script>")
    async with session.ask("GET", "/files/content", path="page.html") as answer:
        assert answer.headers["Content-Type"] == "application/octet-stream"


async def test_the_page_with_the_reference_has_a_policy_it_fits(server: ServerProcess) -> None:
    answer = await raw(server, "GET", "/docs")
    [policy] = answer.all("content-security-policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'", "style-src": "'unsafe-inline'", "frame-ancestors": "'none'", "base-uri": "'none'",
        "form-action": "'none'", "connect-src": "'self'", "script-src": f"'sha256-{_hash_of_script(answer.body)}'",
    }  # fmt: skip
    page = answer.body.decode()
    assert "<style>" in page
    assert not re.search(r"<(img|link|iframe|form|base|object|embed)\b|\son[a-z]+\s*=|url\(|@import", page)
    assert page.count("<script") == 1
    assert "object with memory_mb, cpus" in page  # what the type of `limits` is, not its name
    assert re.search(r" request method=GET route=/docs status=200 ", server.log)


def _hash_of_script(page: bytes) -> str:
    script = page.split(b"<script>")[1].split(b"</script>")[0]
    return base64.b64encode(hashlib.sha256(script).digest()).decode()


async def test_the_first_page_says_what_this_is_where_there_is_no_dashboard(new_state: NewState) -> None:
    with running_server(new_state(), "--no-dashboard", provider="fake") as server:
        answer = await raw(server, "GET", "/", "Accept: text/html,*/*;q=0.8")
        about = await raw(server, "GET", "/")
        assert (await raw(server, "GET", "/ui/sessions", "Accept: text/html")).status == 404
        assert (await raw(server, "GET", "/api/ui/session")).status == 404
    page = answer.body.decode()
    assert answer.status == 200
    told = ("isolated Linux sandboxes", 'href="/docs"', "The key", "export WARREN_URL=http://localhost\n")
    assert all(text in page for text in told), page
    assert not re.search(r"<(script|img|link|iframe|form|base|object|embed)\b|\son[a-z]+\s*=|url\(|@import", page)
    assert json.loads(about.body)["docs"] == "/docs"
    assert about.all("vary") == answer.all("vary") == ["Accept"]


async def test_no_page_from_elsewhere_is_told_that_it_may(server: ServerProcess) -> None:
    asks = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")
    foreign = await raw(server, "OPTIONS", "/execute", "Origin: https://evil.example", *asks)
    assert (foreign.status, json.loads(foreign.body)["code"]) == (403, "origin_not_allowed")
    own = await raw(server, "OPTIONS", "/execute", "Origin: http://localhost", *asks)
    assert (own.status, json.loads(own.body)["code"], own.all("allow")) == (405, "method_not_allowed", ["POST"])
    for answer in (foreign, own, await raw(server, "GET", "/health", "Origin: http://localhost")):
        assert not [name for name, _ in answer.headers if name.startswith("access-control-") or name == "vary"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 101),
        ("http://LOCALHOST:80", 101),
        ("https://localhost", 101),
        ("", 403),
        ("null", 403),
        ("http://localhost:81", 403),
        ("http://127.0.0.1", 403),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost@evil.example", 403),
        ("http://localhost, https://evil.example", 403),
        ("file://", 403),
        ("chrome-extension://abc", 403),
    ],
)
@pytest.mark.parametrize("place", ["exec", "terminal"])
async def test_a_socket_is_for_our_own_pages_only(
    server: ServerProcess, session: SessionApi, origin: str, status: int, place: str
) -> None:
    answer = await raw(server, "GET", f"/api/sessions/{session.id}/{place}", f"Origin: {origin}", *UPGRADE)
    assert answer.status == status
    assert not answer.all("server")
    assert status == 101 or json.loads(answer.body)["code"] == "origin_not_allowed"


@pytest.mark.parametrize("given", ["a", "my-id.1:2/3+4=5@6_7", "x" * 128])
async def test_a_proper_request_id_comes_back(server: ServerProcess, given: str) -> None:
    assert (await raw(server, "GET", "/nowhere", f"X-Request-ID: {given}")).all("x-request-id") == [given]


@pytest.mark.parametrize("junk", ["", "a b", "x" * 129, "<script>", 'a"b', "a,b", "a;b", "%0d%0aX-Evil:1", "\xff\xfe"])
async def test_junk_for_a_request_id_does_not_come_back(server: ServerProcess, junk: str) -> None:
    answer = await raw(server, "GET", "/nowhere", f"X-Request-ID: {junk}")
    [chosen] = answer.all("x-request-id")
    assert re.fullmatch("[0-9a-f]{16}", chosen)
    assert not junk or junk.encode("latin-1") not in answer.body


async def provided(api: Api, session: SessionApi, path: str) -> str:
    """With the tenant, the secret, the webhook or the entry of the registry that it is about."""
    if path.startswith("/api/secrets"):
        secret = {"value": "something to keep", "hosts": ["api.example.com"], "header": "Authorization"}
        await api.call("PUT", "/api/secrets/kept", secret)
    elif "{name}" in path:
        await api.call("PUT", "/api/admin/tenants/kept", {"quota": {"sessions": 1000}})
    if "{artifact_id}" in path:
        found = await session.post("/artifacts", {"paths": ["kept.txt"]}, status=201)
        path = path.replace("{artifact_id}", found["artifacts"][0]["artifact_id"])
    if "{volume}" in path:
        async with api.ask("POST", "/api/volumes", {"name": "kept", "size_mb": 16}) as answer:
            assert answer.status in (201, 409)
    if "{snapshot}" in path:
        path = path.replace("{snapshot}", (await session.post("/snapshots", status=201))["snapshot_id"])
    if "{webhook_id}" in path:
        body = {"url": "https://hooks.example.com/nobody", "events": ["quota.reached"]}
        path = path.replace("{webhook_id}", (await api.call("POST", "/api/webhooks", body, status=201))["id"])
    return (
        path.replace("{name}", "kept")
        .replace("{kind}", "prompts")
        .replace("{entry}", "coding")
        .replace("{volume}", "kept")
    )


@pytest.mark.parametrize("good", [good for good in GOOD if good.method == "GET"], ids=str)
async def test_head_is_get_without_a_body(served: Place, api: Api, session: SessionApi, good: Request) -> None:
    await session.write("kept.txt", b"something to keep")
    process = await session.start("sleep 1000") if "{process_id}" in good.path else ""
    path = good.path.replace("{session_id}", session.id).replace("{process_id}", process)
    path = await provided(api, session, path)
    query: dict[str, Any] = {name: value.replace("{session_id}", session.id) for name, value in good.query.items()}
    async with api.ask("HEAD", path, **query) as head:
        assert (head.status, await head.read()) == (good.status_in(served.redis is not None), b"")
    async with api.ask("GET", path, **query) as get:
        told = ("Content-Type", "X-File-Size", "Accept-Ranges", "Cache-Control", "Content-Security-Policy")
        assert [head.headers.get(name) for name in told] == [get.headers.get(name) for name in told]
        assert ("Content-Length" in head.headers) == ("Content-Length" in get.headers)


async def test_head_of_what_cannot_be_got(api: Api) -> None:
    for place, status in (("/nowhere", 404), ("/execute", 405), ("/api/sessions/x", 404)):
        async with api.ask("HEAD", place) as answer:
            assert (answer.status, await answer.read()) == (status, b"")
    async with api.ask("DELETE", "/api/sessions") as answer:
        assert answer.headers["Allow"] == "GET, HEAD, POST"


async def test_a_connection_goes_on_after_head(server: ServerProcess, session: SessionApi) -> None:
    for place in ("/health", "/nowhere", f"/api/sessions/{session.id}/files/watch"):
        first = f"HEAD {place} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        second = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await told(server, (first + second).encode())
        assert answer.body.startswith(b"HTTP/1.1 200 OK\r\n"), place
        assert b'"warren"' in answer.body


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "MERGE", "FOO", "get", "G\xcbT"])
async def test_methods_nobody_needs_are_refused_and_nothing_is_echoed(server: ServerProcess, method: str) -> None:
    for place in ("/health", "localhost:22", "http://evil.example/"):
        answer = await raw(server, method, place, "Cookie: secret=1")
        assert answer.status in (400, 404, 405)
        assert b"secret" not in answer.body
        assert answer.all("content-type") == ["application/problem+json"]


@pytest.mark.parametrize(
    "line",
    [
        "X : y", " X: y", "X\x01: y", "X\xff: y", "X(1): y", ": y", "no colon", "X: a\rb", "X: a\nY: b\r", "X: a\0",
        "X: a\x7f", "X: a\r\n folded", "Content-Length: +5", "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 0x5", "Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
    ],
)  # fmt: skip
async def test_a_head_that_can_be_read_in_two_ways_is_refused(server: ServerProcess, line: str) -> None:
    answer = await raw(server, "POST", "/create_session", line)
    assert (answer.status, json.loads(answer.body)["code"]) == (400, "invalid_http")
    assert answer.all("connection") == ["close"]


@pytest.mark.parametrize("headers", [[f"X: {'x' * 70_000}"], ["X: y"] * 12_000, [f"{'X' * 70_000}: y"]])
async def test_a_giant_head_is_refused(server: ServerProcess, headers: list[str]) -> None:
    assert (await raw(server, "GET", "/health", *headers)).status == 431


async def test_what_a_proxy_would_say_is_not_believed_of_anybody(session: SessionApi) -> None:
    """Nobody is trusted by default, so the same page stays foreign whatever the header says."""
    lies = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "X-Forwarded-For": "127.0.0.1"}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with session.socket("/terminal", headers={**lies, "Origin": "https://evil.example"}):
            pass
    assert refused.value.status == 403
