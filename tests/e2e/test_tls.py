"""A server that speaks HTTPS by itself: what works without TLS works with it, and no client can stall it."""

import asyncio
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import warm_parent
from certificates import NAME, Certificates, encrypt_key, make_certificates
from e2e.api_client import Api, Connector, SessionApi
from e2e.conftest import NewState
from guarded_app import guarded
from server_process import ServerProcess, clean_environ, free_port, running_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from warren.http.server.http_guard import HttpLimits, StreamedAnswer
from warren.http.server.serving import HttpServer
from warren.http.server.tls import new_tls_context
from warren.model.errors import ServerUnreachable
from warren.sdk.aio.transport import AsyncTransport
from warren.sdk.protocol import ClientRequest, TransportOptions

pytestmark = pytest.mark.anyio
LONGEST_S = 60.0


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="warren-tls-") as folder:
        yield make_certificates(Path(folder))


@pytest.fixture(scope="module")
def server(new_state: NewState, certificates: Certificates) -> Iterator[ServerProcess]:
    flags = ("--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key), "--allowed-hosts", NAME)
    impatient = {"WARREN_HEADER_TIMEOUT_S": "2"}
    with running_server(new_state(), *flags, provider="fake", tls=certificates.client, **impatient) as server:
        yield server


@pytest.fixture
async def api(server: ServerProcess, certificates: Certificates) -> AsyncIterator[Api]:
    async with Api(server.url, {}, Connector(ssl=certificates.client)) as api:
        yield api


async def test_commands_streams_and_sockets_work(session: SessionApi) -> None:
    assert await session.output("echo hi") == "hi\n"
    async with session.events("POST", "/exec", {"command": "echo hi"}) as events:
        assert [event.kind async for event in events] == ["started", "output", "result"]
    async with session.socket("/exec") as socket:
        await socket.raw.send_json({"command": "cat"})
        await socket.expect("started")
        await socket.send("stdin", data="hello")
        assert (await socket.expect("output"))["data"] == "hello"


async def test_large_files_pass_both_ways(session: SessionApi) -> None:
    data = bytes(range(256)) * 80_000
    assert (await session.write("large", data))["size"] == len(data)
    assert await session.read("large") == data


async def test_browsers_are_told_to_stay_with_https_but_not_for_names_of_loopback(api: Api) -> None:
    for host, told in ((NAME, ["max-age=31536000"]), ("localhost", []), ("127.0.0.1:8000", [])):
        async with api.ask("GET", "/health", headers={"Host": host}) as answer:
            assert answer.status == 200
            assert answer.headers.getall("Strict-Transport-Security", []) == told


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_http_1_1_is_what_is_spoken(
    server: ServerProcess, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    context = certificates.client
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    spoken = writer.get_extra_info("ssl_object")
    assert (spoken.version(), spoken.selected_alpn_protocol()) == (version.name.replace("_", "."), "http/1.1")
    writer.transport.abort()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_handshake_that_is_none_is_ended(server: ServerProcess, api: Api, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    async with asyncio.timeout(LONGEST_S):
        assert b"HTTP" not in await reader.read()
    writer.close()
    await api.get("/health")
    assert "Traceback" not in server.log


def test_the_time_for_the_first_request_begins_when_both_have_agreed_on_tls(
    server: ServerProcess, certificates: Certificates
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), LONGEST_S) as plain:
        time.sleep(1.5)
        with certificates.client.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            time.sleep(1.0)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"


async def test_a_client_that_speaks_plain_http_is_told_the_right_address(server: ServerProcess) -> None:
    plain, hint = f"http://127.0.0.1:{server.port}", f"Is it HTTPS? Then its address is {server.url}"
    done = warm_parent.run(
        [sys.executable, "-m", "warren.cli.main", "ps", "--url", plain],
        env=clean_environ(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, hint in done.stderr) == (125, True), done.stderr
    transport = AsyncTransport(plain, options=TransportOptions(retries=0))
    with pytest.raises(ServerUnreachable) as caught:
        await transport.call(ClientRequest("GET", "/version"))
    assert caught.value.remedy.endswith(hint)
    await transport.close()


def test_the_server_says_where_it_is(server: ServerProcess) -> None:
    assert f"Warren serves https://127.0.0.1:{server.port} " in server.log


CLIENT = """
import asyncio, sys
from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import WarrenError

async def main(url):
    async with AsyncSandboxClient(url) as sandbox:
        print((await sandbox.execute("echo async")).output, end="")
        async with sandbox.terminal("cat") as terminal:
            await terminal.write("word")
            await terminal.read_until("word")

try:
    with SandboxClient(sys.argv[1]) as sandbox:
        print(sandbox.execute("echo sync").output, end="")
        sandbox.write_file("f", "x")
        with sandbox.terminal("cat") as terminal:
            terminal.write("word")
            terminal.read_until("word")
    asyncio.run(main(sys.argv[1]))
except WarrenError as exc:
    print(type(exc).__name__, exc)
"""


async def test_the_client_takes_an_authority_from_ssl_cert_file(
    server: ServerProcess, certificates: Certificates
) -> None:
    assert await client(server.url, SSL_CERT_FILE=str(certificates.ca)) == "sync\nasync\n"
    refused = await client(server.url)
    assert refused.startswith("ServerUnreachable ")
    assert "SSL_CERT_FILE" in refused


async def client(url: str, **environ: str) -> str:
    argv = [sys.executable, "-c", CLIENT, url]
    run = await asyncio.create_subprocess_exec(*argv, env={**clean_environ(), **environ}, stdout=subprocess.PIPE)
    async with asyncio.timeout(LONGEST_S):
        said, _ = await run.communicate()
    return said.decode()


def test_a_server_does_not_start_with_files_that_do_not_fit(new_state: NewState, certificates: Certificates) -> None:
    folder = certificates.cert.parent
    encrypted, open_key, empty = folder / "encrypted.pem", folder / "open.pem", folder / "empty.pem"
    encrypt_key(certificates.key, encrypted, "secret")
    open_key.write_bytes(certificates.key.read_bytes())
    open_key.chmod(0o644)
    empty.touch(mode=0o600)
    state = new_state()
    before = sorted(state.iterdir())
    for cert, key, said in (
        (certificates.cert, None, "there is a TLS certificate, but no key"),
        (None, certificates.key, "there is a TLS key, but no certificate"),
        (folder / "none", certificates.key, "cannot be read: No such file or directory"),
        (certificates.cert, folder / "none", "cannot be read: No such file or directory"),
        (folder, certificates.key, "cannot be read: Is a directory"),
        (empty, certificates.key, "is not a certificate in PEM"),
        (certificates.key, certificates.key, "is not a certificate in PEM"),
        (certificates.cert, empty, "cannot be used with the certificate"),
        (certificates.ca, certificates.key, "is not the one of the certificate"),
        (certificates.cert, encrypted, "asks for a password"),
        (certificates.cert, open_key, "everybody can read the TLS key"),
    ):
        assert said in refused_start(state, cert, key)
        assert sorted(state.iterdir()) == before


def refused_start(state_dir: Path, cert: Path | None, key: Path | None) -> str:
    argv = [sys.executable, "-m", "warren.cli.main", "serve", "--state-dir", str(state_dir), "--provider", "fake"]
    argv += ["--port", str(free_port())]
    argv += [*(("--tls-cert", str(cert)) if cert else ()), *(("--tls-key", str(key)) if key else ())]
    ended = warm_parent.run(argv, env=clean_environ(), capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert ended.returncode not in (0, -9)
    assert "Traceback" not in ended.stderr
    return ended.stderr


class Site:
    """A small app with a stream that does not end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.app = Starlette(routes=[Route("/endless", self.endless), Route("/wish", self.wish, methods=["POST"])])

    async def endless(self, _: Request) -> StreamedAnswer:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
            finally:
                self.ended.set()

        return StreamedAnswer(chunks())

    async def wish(self, request: Request) -> StreamedAnswer:
        raise AssertionError("its body is too large to come here")


@pytest.fixture
async def small(certificates: Certificates) -> AsyncIterator[tuple[Site, int]]:
    site, limits = Site(), HttpLimits(send_timeout_s=0.5)
    tls = new_tls_context(certificates.cert, certificates.key)
    server = HttpServer(guarded(site.app, max_body=1000), port=0, limits=limits, tls=tls)
    await server.start()
    yield site, server.port
    await server.stop(0)


async def dial(port: int, certificates: Certificates, **rest: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=certificates.client, **rest)


async def test_a_client_that_does_not_read_is_dropped(small: tuple[Site, int], certificates: Certificates) -> None:
    site, port = small
    _, writer = await dial(port, certificates, limit=1024)
    cast(asyncio.Transport, writer.transport).pause_reading()
    writer.write(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(LONGEST_S):
        await site.ended.wait()
    writer.transport.abort()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /wish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 9_000_000, b"413"),
        (b"POST /wish HTTP/1.0\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 9_000_000, b"413"),
        (b"\x00\x01nonsense\r\n\r\n" + b"x" * 1_000_000, b"400"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n", b"431"),
    ],
)
async def test_a_refusal_is_read_also_by_a_client_that_sends_everything_first(
    small: tuple[Site, int], certificates: Certificates, data: bytes, status: bytes
) -> None:
    reader, writer = await dial(small[1], certificates)
    async with asyncio.timeout(LONGEST_S):
        writer.write(data)
        await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
    writer.transport.abort()


async def test_a_server_that_stops_does_not_wait_for_silent_clients(certificates: Certificates) -> None:
    tls = new_tls_context(certificates.cert, certificates.key)
    server = HttpServer(guarded(Site().app), port=0, tls=tls)
    await server.start()
    silent = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
    _, writer = await dial(server.port, certificates)
    async with asyncio.timeout(LONGEST_S):
        await server.stop(0.1)
    silent.close()
    writer.transport.abort()


def test_versions_before_1_2_are_not_spoken(certificates: Certificates) -> None:
    context = new_tls_context(certificates.cert, certificates.key)
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert new_tls_context(None, None) is None
