"""Both transports against servers that misbehave: what is repeated, what is raised, which connections are kept."""

import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from unit.scripted_http import always, cut_short, hangs_up, once, read_request, refuses_the_body, scripted

from warren.model.errors import (
    InvalidRequest,
    NoCapacity,
    ProtocolError,
    ServerUnreachable,
    SessionNotFound,
    TooLarge,
    Unauthorized,
    WarrenError,
)
from warren.sdk.aio.transport import AsyncTransport
from warren.sdk.blocking.transport import Transport
from warren.sdk.protocol import DEFAULT_OPTIONS, ClientRequest, TransportOptions

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[Any]]
GET = ClientRequest("GET", "/thing")
POST = ClientRequest("POST", "/thing", values={"a": 1})
KEYED = ClientRequest("POST", "/thing", values={"a": 1}, key="k")
STOPPING = (b'{"code": "stopping", "detail": "later"}', "503 Service Unavailable", "Retry-After: 0")


@pytest.fixture(params=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest) -> Call:
    """Asks once, with a transport of its own, in either way."""

    async def blocking(
        url: str, *requests: ClientRequest, data: Any = None, key: str = "", options: TransportOptions = DEFAULT_OPTIONS
    ) -> Any:
        transport = Transport(url, key, options)
        try:
            if data is not None:
                return transport.upload(requests[0], data)
            return [transport.call(each) for each in requests][-1]
        finally:
            transport.close()

    async def native(
        url: str, *requests: ClientRequest, data: Any = None, key: str = "", options: TransportOptions = DEFAULT_OPTIONS
    ) -> Any:
        transport = AsyncTransport(url, key, options)
        try:
            if data is not None:
                return await transport.upload(requests[0], data if isinstance(data, bytes) else _async(data))
            return [await transport.call(each) for each in requests][-1]
        finally:
            await transport.close()

    return blocking if request.param == "blocking" else native


async def _async(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_connections_are_used_again(call: Call) -> None:
    with scripted(always(b'{"a": 1}')) as server:
        assert await call(server.url, GET, POST, GET) == {"a": 1}
        assert server.connections == 1


async def test_an_error_does_not_cost_the_connection(call: Call) -> None:
    with scripted(always(b'{"code": "session_not_found", "detail": "none"}', "404 Not Found")) as server:
        transport = Transport(server.url)
        for _ in range(3):
            with pytest.raises(SessionNotFound, match="none"):
                transport.call(GET)
        transport.close()
        assert server.connections == 1


async def test_a_kept_connection_that_the_server_closed_is_not_used_again() -> None:
    with scripted(once(b"{}"), always(b"{}")) as server:
        transport = Transport(server.url)
        transport.call(POST)
        [(_, kept)] = transport._idle
        kept.sock.recv(1, 0x02)  # waits for the end, and leaves it there
        transport.call(POST)
        transport.close()
        assert server.connections == 2


@pytest.mark.parametrize(
    "sent", [GET, KEYED, ClientRequest("PUT", "/thing"), ClientRequest("DELETE", "/thing")], ids=str
)
@pytest.mark.parametrize("broken", [hangs_up, cut_short, once(*STOPPING)], ids=["hangs up", "cut short", "stopping"])
async def test_what_is_safe_is_repeated(call: Call, sent: ClientRequest, broken: Any) -> None:
    with scripted(broken, always(b'{"done": true}')) as server:
        assert await call(server.url, sent) == {"done": True}
        assert server.connections == 2


@pytest.mark.parametrize("broken", [hangs_up, cut_short], ids=["hangs up", "cut short"])
async def test_what_is_not_safe_is_not_repeated_and_the_error_says_so(call: Call, broken: Any) -> None:
    with scripted(broken, always(b"{}")) as server:
        with pytest.raises(ServerUnreachable, match="exactly_once=True makes it safe"):
            await call(server.url, POST)
        assert server.connections == 1


async def test_a_server_that_stays_away_is_given_up(call: Call) -> None:
    with scripted(hangs_up) as server:
        with pytest.raises(ServerUnreachable, match="broke during GET /thing"):
            await call(server.url, GET, options=TransportOptions(first_pause_s=0.0))
        assert server.connections == 4


async def test_without_retries_the_http_library_does_not_repeat_a_request_either(call: Call) -> None:
    """aiohttp repeats what it takes for idempotent; the transport turns that off by a private attribute."""
    with scripted(hangs_up) as server:
        with pytest.raises(ServerUnreachable, match="broke during GET /thing"):
            await call(server.url, GET, options=TransportOptions(retries=0))
        assert server.connections == 1


async def test_a_full_server_is_not_asked_again(call: Call) -> None:
    problem = b'{"code": "no_capacity", "detail": "full"}'
    with scripted(always(problem, "503 Service Unavailable", "Retry-After: 1")) as server:
        with pytest.raises(NoCapacity) as caught:
            await call(server.url, GET)
        assert caught.value.retry_after_s == 1
        assert server.connections == 1


async def test_a_socket_that_is_refused_gives_the_servers_error() -> None:
    problem = b'{"code": "no_capacity", "detail": "full", "remedy": "come later"}'
    with scripted(always(problem, "503 Service Unavailable")) as server:
        with pytest.raises(NoCapacity, match="come later"), Transport(server.url).socket(GET):
            pass
        with pytest.raises(NoCapacity, match="come later"):
            async with AsyncTransport(server.url).socket(GET):
                pass


async def test_what_an_earlier_attempt_has_removed_is_removed(call: Call) -> None:
    gone = b'{"code": "session_not_found", "detail": "none"}'
    with scripted(hangs_up, always(gone, "404 Not Found")) as server:
        assert await call(server.url, ClientRequest("DELETE", "/thing")) is None
    with scripted(always(gone, "404 Not Found")) as server, pytest.raises(SessionNotFound):
        await call(server.url, ClientRequest("DELETE", "/thing"))


@pytest.mark.parametrize("pieces", [True, False])
async def test_a_body_that_is_refused_early_gives_the_servers_error(call: Call, pieces: bool) -> None:
    size = 64 * 1024 * 1024
    with scripted(refuses_the_body) as server:
        data: Any = (bytes(256 * 1024) for _ in range(size // (256 * 1024))) if pieces else bytes(size)
        with pytest.raises(TooLarge, match="too much") as caught:
            await call(server.url, ClientRequest("PUT", "/file"), data=data)
        assert caught.value.remedy == "send less"


async def test_pieces_are_sent_once(call: Call) -> None:
    with scripted(hangs_up) as server:
        with pytest.raises(ServerUnreachable):
            await call(server.url, ClientRequest("PUT", "/file"), data=iter([b"one", b"two"]))
        assert server.connections == 1


async def test_an_answer_that_does_not_come_is_not_waited_for_twice(call: Call) -> None:
    held = threading.Event()

    def silent(connection: Any) -> None:
        read_request(connection)
        held.wait(30)

    with scripted(silent) as server:
        try:
            with pytest.raises(ServerUnreachable, match="no answer came in time"):
                await call(server.url, GET, options=TransportOptions(answer_timeout_s=0.05))
            assert server.connections == 1
        finally:
            held.set()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("404 Not Found", ProtocolError),
        ("301 Moved Permanently", ProtocolError),
        ("200 OK", ProtocolError),
        ("401 Unauthorized", Unauthorized),
    ],
)
async def test_another_server_is_told_from_warren(call: Call, status: str, error: type[WarrenError]) -> None:
    with scripted(always(b"<html>hello</html>", status)) as server:
        with pytest.raises(error, match="not as Warren does: <html>hello") as caught:
            await call(server.url, GET)
        assert caught.value.remedy


async def test_the_key_is_sent_and_nothing_but_keys_is_taken(call: Call) -> None:
    heads: list[bytes] = []

    def answer(connection: Any) -> None:
        heads.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with scripted(answer) as server:
        await call(server.url, GET, key="secret-1")
        assert b"authorization: bearer secret-1" in heads[0].lower()
        for key in ("two\nlines", "ä"):
            with pytest.raises(InvalidRequest, match="API key"):
                await call(server.url, GET, key=key)


async def test_a_certificate_that_is_not_trusted_is_not_talked_to(call: Call, tmp_path: Path) -> None:
    with (
        scripted(always(b"{}"), context=certificate(tmp_path)) as server,
        pytest.raises(ServerUnreachable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        await call(server.url, POST)


_TRUSTING = """
import asyncio, sys
from warren.sdk.aio.transport import AsyncTransport
from warren.sdk.blocking.transport import Transport
from warren.sdk.protocol import ClientRequest

async def native():
    transport = AsyncTransport(sys.argv[1])
    print(await transport.call(ClientRequest("GET", "/")))
    await transport.close()

print(Transport(sys.argv[1]).call(ClientRequest("GET", "/")))
asyncio.run(native())
"""


def test_https_works_with_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    with scripted(always(b'{"over": "tls"}'), context=certificate(tmp_path)) as server:
        argv = [sys.executable, "-c", _TRUSTING, server.url]
        environ = {"PYTHONPATH": ":".join(sys.path), "SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        outcome = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30)
    assert outcome.stdout == "{'over': 'tls'}\n" * 2, outcome.stderr


def certificate(folder: Path) -> ssl.SSLContext:
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_many_threads_share_one_transport_and_keep_few_connections() -> None:
    with scripted(always(b'{"a": 1}')) as server:
        transport = Transport(server.url)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: transport.call(GET), range(200)))
        assert answers == [{"a": 1}] * 200
        assert server.connections <= 8
        transport.close()
        assert repr(transport) == f"<Transport {server.url}, 0 idle connections>"
