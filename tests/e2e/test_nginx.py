"""The delivered nginx configuration: a real nginx in front of a real server, talked to as from outside."""

import asyncio
import contextlib
import hashlib
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from certificates import Certificates, make_certificates
from e2e.api_client import Api, Connector, SessionApi, until
from e2e.conftest import NewState
from guarded_app import guarded
from nginx_process import NginxProcess, running_nginx
from server_process import running_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from warren.http.server.serving import HttpServer

KEY = "correct-horse-battery-staple"
PIECE = bytes(range(256)) * 4096
PIECES = 50

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def prefix() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="warren-nginx-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def certificates(prefix: Path) -> Certificates:
    return make_certificates(prefix)


@pytest.fixture(scope="module")
def nginx(new_state: NewState, prefix: Path, certificates: Certificates) -> Iterator[NginxProcess]:
    flags = ("--allowed-hosts", "sandboxes.example", "--trusted-proxies", "127.0.0.1", "--pool-size", "1")
    with (
        running_server(new_state(), *flags, WARREN_API_KEY=KEY) as server,
        running_nginx(prefix, certificates, server.port) as nginx,
    ):
        yield nginx


@pytest.fixture
async def api(nginx: NginxProcess, certificates: Certificates) -> AsyncIterator[Api]:
    async with Api(nginx.url, {"X-API-Key": KEY}, to_loopback(certificates)) as api:
        yield api


class Loopback(AbstractResolver):
    """Every name is this machine."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[ResolveResult]:
        found = ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)
        return [found]

    async def close(self) -> None:
        pass


def to_loopback(certificates: Certificates, **rest: Any) -> Connector:
    return Connector(resolver=Loopback(), ssl=certificates.client, **rest)


async def test_commands_run_and_files_are_read(session: SessionApi) -> None:
    assert await session.output("echo hi > f; cat f") == "hi\n"
    assert await session.read("f") == b"hi\n"
    async with session.ask("HEAD", "/files/content", path="f") as answer:
        assert (answer.status, answer.headers["X-File-Size"], await answer.read()) == (200, "3", b"")


async def test_without_the_key_nothing_is_done(api: Api) -> None:
    await api.refused("GET", "/api/sessions", headers={"X-API-Key": "x"}, status=401, code="unauthorized")


async def test_events_come_while_the_command_runs(session: SessionApi) -> None:
    waiting = "echo first; until [ -e go ]; do sleep 0.05; done; echo second"
    async with session.events("POST", "/exec", {"command": waiting, "timeout_s": 80}) as events:
        assert [(await anext(events)).kind for _ in range(2)] == ["started", "output"]
        await session.write("go")
        rest = [event async for event in events]
    assert rest[-1].kind == "result"
    assert rest[-1].data["exit_code"] == 0


async def test_a_command_takes_input_over_a_socket(session: SessionApi) -> None:
    async with session.socket("/exec") as socket:
        await socket.raw.send_json({"command": "read word; echo got $word"})
        await socket.expect("started")
        await socket.send("stdin", data="this\n")
        before, result = await socket.end()
        assert "".join(event["data"] for event in before if event["type"] == "output") == "got this\n"
        assert result["exit_code"] == 0


async def test_a_terminal_works(session: SessionApi) -> None:
    async with session.socket("/terminal") as socket:
        await socket.expect("started")
        await socket.raw.send_bytes(b"echo $((6 * 7))\n")
        await socket.said(b"42\r\n")


async def test_large_files_pass_both_ways_and_are_kept_nowhere(session: SessionApi, nginx: NginxProcess) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES):
            yield PIECE

    written = await session.write("large", pieces())
    assert written["size"] == PIECES * len(PIECE)
    digest, size = hashlib.sha256(), 0
    async with session.ask("GET", "/files/content", path="large") as answer:
        async for part in answer.content.iter_any():
            digest.update(part)
            size += len(part)
    assert size == PIECES * len(PIECE)
    assert digest.digest() == hashlib.sha256(PIECE * PIECES).digest()
    assert "buffered to a temporary file" not in nginx.log


async def test_json_that_is_too_large_is_a_problem(session: SessionApi) -> None:
    body = {"command": "cat", "stdin": "x" * (5 << 20)}
    await session.refused("POST", "/exec", body, status=413, code="too_large")


async def test_plain_http_is_sent_to_https(nginx: NginxProcess, api: Api) -> None:
    async with aiohttp.ClientSession(connector=Connector(resolver=Loopback())) as plain:
        place = f"http://{nginx.name}:{nginx.http}/api/sessions?a=b"
        async with plain.post(place, json={}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (308, f"https://{nginx.name}/api/sessions?a=b")
        with pytest.raises(aiohttp.ClientError):
            await plain.get(f"http://evil.example:{nginx.http}/health")


async def test_another_name_gets_no_certificate(nginx: NginxProcess, api: Api, certificates: Certificates) -> None:
    async with aiohttp.ClientSession(connector=to_loopback(certificates)) as other:
        with pytest.raises(aiohttp.ClientConnectorError, match=r"(?i)ssl|unrecognized"):
            await other.get(f"https://localhost:{nginx.https}/health")
    async with api.ask("GET", "/health", headers={"Host": "evil.example"}) as answer:
        assert (answer.status, answer.headers["Server"]) == (421, "nginx")


@pytest.mark.parametrize(("place", "status"), [("/health", 200), ("/nowhere", 404), ("/" + "x" * 20_000, 414)])
async def test_every_answer_carries_the_headers_of_caution_once(api: Api, place: str, status: int) -> None:
    async with api.ask("GET", place) as answer:
        assert answer.status == status
        for name, value in {
            "Strict-Transport-Security": "max-age=31536000",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
            "Cache-Control": "no-store",
            "Server": "nginx",
        }.items():
            assert answer.headers.getall(name) == [value], name


async def test_only_pages_of_the_same_name_and_port_may_ask(api: Api, nginx: NginxProcess) -> None:
    await api.get("/health", headers={"Origin": nginx.url})
    for origin in ("https://evil.example", "null", f"https://{nginx.name}", f"http://{nginx.name}:{nginx.http}"):
        await api.refused("GET", "/health", headers={"Origin": origin}, status=403, code="origin_not_allowed")


async def test_the_log_names_the_request_by_its_id(api: Api, nginx: NginxProcess) -> None:
    await api.get("/health", headers={"X-Request-ID": "find-me"})

    async def logged() -> bool:
        return "GET /health 200" in nginx.access_log and "find-me" in nginx.access_log

    await until(logged)
    assert KEY not in nginx.access_log


@contextlib.asynccontextmanager
async def echo(certificates: Certificates) -> AsyncIterator[tuple[NginxProcess, HttpServer]]:
    """A server that says who asks, behind an nginx of its own."""

    async def show(request: Request) -> JSONResponse:
        assert request.client is not None
        return JSONResponse({"client": request.client.host, "scheme": request.url.scheme})

    edge = guarded(Starlette(routes=[Route("/", show)]), allowed_hosts=["*"], trusted_proxies=["127.0.0.1"])
    server = HttpServer(edge, port=0)
    await server.start()
    with tempfile.TemporaryDirectory(prefix="warren-nginx-") as path:
        nginx = NginxProcess(Path(path), certificates, server.port)
        try:
            await asyncio.to_thread(nginx.start)
            yield nginx, server
        finally:
            await asyncio.to_thread(nginx.stop)
            await server.stop(0)


async def test_the_server_knows_who_asks_and_cannot_be_lied_to(certificates: Certificates) -> None:
    async with (
        echo(certificates) as (nginx, server),
        Api(nginx.url, {}, to_loopback(certificates, local_addr=("127.0.0.2", 0))) as api,
    ):
        assert await api.get("/") == {"client": "127.0.0.2", "scheme": "https"}
        lies = {"X-Forwarded-For": "192.0.2.9", "X-Forwarded-Proto": "http", "Forwarded": "for=192.0.2.9"}
        assert await api.get("/", headers=lies) == {"client": "127.0.0.2", "scheme": "https"}
        await server.stop(0)
        await api.refused("GET", "/", status=503, code="unavailable")


async def test_too_many_requests_from_one_address_are_refused(certificates: Certificates) -> None:
    async with echo(certificates) as (nginx, _), Api(nginx.url, {}, to_loopback(certificates)) as api:

        async def is_refused() -> bool:
            async with api.ask("GET", "/") as answer:
                if answer.status == 200:
                    return False
                assert (answer.status, answer.content_type) == (429, "application/problem+json")
                assert answer.headers.getall("Retry-After") == ["1"]
                assert '"code": "rate_limited"' in await answer.text()
                return True

        async def one_of_many_is() -> bool:
            return any(await asyncio.gather(*(is_refused() for _ in range(150))))

        async def none_is() -> bool:
            return not await is_refused()

        await until(one_of_many_is)
        await until(none_is)


# -- previews


async def test_a_link_to_a_preview_becomes_a_cookie_that_a_client_keeps_over_tls(
    new_state: NewState, tmp_path: Path
) -> None:
    """curl refuses a cookie of the prefix __Host- that is not secure, or for more than its host."""
    made = make_certificates(tmp_path, "*.previews.example")
    flags = ("--allowed-hosts", "sandboxes.example", "--trusted-proxies", "127.0.0.1", "--pool-size", "0")
    options = {"WARREN_API_KEY": KEY, "WARREN_PREVIEW_DOMAIN": "previews.example", "WARREN_ON_STOP": "destroy"}
    with (
        running_server(new_state(), *flags, provider="oci", **options) as server,
        running_nginx(tmp_path, made, server.port, previews=True) as nginx,
    ):
        async with Api(nginx.url, {"X-API-Key": KEY}, to_loopback(made)) as api, api.session(environment="host") as box:
            await box.write("index.html", b"<h1>shown</h1>")
            await box.post("/processes", {"command": "python3 -m http.server 3000"}, status=201)
            await box.get("/ports?wait_for=3000&timeout_s=20")
            link = (await box.post("/links", {"port": 3000}, status=201))["url"]
            page, _, token = link.partition("?")
            assert page == f"https://3000-{box.id.removeprefix('ses_')}.previews.example:{nginx.https}/"
            jar = tmp_path / "cookies"
            assert "401" in await curl(made, page, "-c", str(jar), "-b", str(jar))
            told = await curl(made, link, "-c", str(jar), "-b", str(jar), "-L")
            assert "<h1>shown</h1>" in told
            kept = [line.split("\t") for line in jar.read_text().splitlines() if "warren-preview" in line]
            assert [(line[1], line[2], line[3], line[5]) for line in kept] == [
                ("FALSE", "/", "TRUE", "__Host-warren-preview")
            ]
            assert "<h1>shown</h1>" in await curl(made, page, "-c", str(jar), "-b", str(jar))
            assert "401" in await curl(made, page, "-b", "warren-preview=" + kept[0][6])
        assert token.partition("=")[2] not in (tmp_path / "previews.log").read_text()


async def curl(made: Certificates, url: str, *options: str) -> str:
    """As a browser would open a page; every name is this machine. Gives the status and the page."""
    shown = ("-sS", "-w", " %{http_code}", "-H", "Accept: text/html", "--cacert", str(made.ca))
    argv = ("curl", *shown, "--connect-to", f"::127.0.0.1:{url.split(':')[2].partition('/')[0]}", *options, url)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()
