"""Webhooks are posted over real connections, and nobody is reached who must not be."""

import asyncio
import gzip
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from busiest_turn import MAX_S, busiest_turn
from machine.webhook_receiver import PRIVATE, PUBLIC, Names, Receiver, receiving, result, saying, two_receivers
from this_run import patience

from warren.governance.webhooks.sender import ReceiverResponse, WebhookSender
from warren.model.addresses import read_networks
from warren.model.errors import InvalidRequest, Unavailable

pytestmark = pytest.mark.anyio
PATIENCE_S = patience(60.0)
HEADERS = {"webhook-id": "msg_1"}


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def posting(
    resolver: AbstractResolver | None = None,
    allowed: Sequence[str] = (f"{PUBLIC}/32",),
    timeout_s: float = PATIENCE_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(
        read_networks(allowed), timeout_s=timeout_s, connect_timeout_s=timeout_s, resolver=resolver, tls=tls
    )
    try:
        yield sender
    finally:
        await sender.close()


# -- what is sent and what comes back


async def test_a_webhook_arrives_as_it_was_given() -> None:
    async with receiving(saying(b"thank you", "202 Accepted", "Retry-After: 7")) as receiver, posting() as sender:
        answer = await sender.send(receiver.url("/hook?a=b#c"), b'{"a": 1}', HEADERS)
    assert answer == ReceiverResponse(202, "thank you", "7")
    head, _, body = receiver.requests[0].partition(b"\r\n\r\n")
    assert body == b'{"a": 1}'
    assert head.startswith(b"POST /hook?a=b HTTP/1.1\r\n")
    lines = {line.lower() for line in head.split(b"\r\n")}
    assert {b"webhook-id: msg_1", b"content-type: application/json", b"accept-encoding: identity"} <= lines


async def test_a_name_is_looked_up_for_every_post_and_is_in_the_request() -> None:
    names = Names([PUBLIC])
    async with receiving(saying(b"")) as receiver, posting(names) as sender:
        for _ in range(3):
            assert (await sender.send(f"http://hooks.test:{receiver.port}/", b"{}", {})).status == 200
    assert names.asked == ["hooks.test"] * 3
    assert receiver.connections == 3
    assert all(f"Host: hooks.test:{receiver.port}\r\n".encode() in request for request in receiver.requests)


@pytest.mark.parametrize("status", ["400 Bad Request", "410 Gone", "500 Oh", "503 Busy"])
async def test_a_refusal_is_an_answer(status: str) -> None:
    async with receiving(saying(b"no", status)) as receiver, posting() as sender:
        assert await sender.send(receiver.url(), b"{}", {}) == ReceiverResponse(int(status[:3]), "no")


async def test_countless_interim_responses_hold_up_nobody() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async with receiving(talk) as receiver, posting() as sender, busiest_turn() as busiest:
        assert await sender.send(receiver.url(), b"{}", {}) == ReceiverResponse(200, "ok")
    assert busiest.seconds < MAX_S


async def test_of_an_answer_without_end_the_beginning_is_kept() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"a" * 65536)
            await writer.drain()

    async with receiving(talk) as receiver, posting() as sender:
        assert await sender.send(receiver.url(), b"{}", {}) == ReceiverResponse(200, "a" * 1024)


async def test_an_answer_is_not_unpacked_and_shows_nothing_unprintable() -> None:
    packed = gzip.compress(b"a" * 10_000_000)
    async with receiving(saying(packed, "200 OK", "Content-Encoding: gzip")) as receiver, posting() as sender:
        answer = await sender.send(receiver.url(), b"{}", {})
    assert 0 < len(answer.excerpt) <= 1024
    assert "aaaa" not in answer.excerpt
    assert all(char.isprintable() or char in "\n\t" for char in answer.excerpt)


async def test_a_body_that_breaks_off_leaves_the_status() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with receiving(talk) as receiver, posting() as sender:
        assert await sender.send(receiver.url(), b"{}", {}) == ReceiverResponse(200, "half")


async def test_a_body_that_does_not_end_in_time_leaves_the_status() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await reader.read()

    async with receiving(talk) as receiver, posting(timeout_s=4.0) as sender:
        assert await sender.send(receiver.url(), b"{}", {}) == ReceiverResponse(200, "half")


# -- no answer


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def rude(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH\r\n")


async def hangs_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    return


async def long_headed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nA: ")
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


async def dripping(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says a little again and again, so that no single wait is long."""
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("talk", [rude, hangs_up, long_headed])
async def test_who_gives_no_answer_is_unavailable(talk: Any) -> None:
    async with receiving(talk) as receiver, posting() as sender:
        with pytest.raises(Unavailable, match=PUBLIC):
            await sender.send(receiver.url(), b"{}", {})


@pytest.mark.parametrize("talk", [silent, dripping])
async def test_who_takes_too_long_is_unavailable(talk: Any) -> None:
    async with receiving(talk) as receiver, posting(timeout_s=0.5) as sender:
        with pytest.raises(Unavailable, match="did not answer in time"):
            await sender.send(receiver.url(), b"{}", {})


async def test_who_is_not_there_is_unavailable() -> None:
    with socket.create_server((PUBLIC, 0)) as listener:
        port = listener.getsockname()[1]
    async with posting() as sender:
        with pytest.raises(Unavailable, match="cannot be reached: Connection refused"):
            await sender.send(f"http://{PUBLIC}:{port}/", b"{}", {})


async def test_a_name_that_is_not_known_is_unavailable() -> None:
    async with posting(Names([])) as sender:
        with pytest.raises(Unavailable, match=r"no public address is known for the name hooks\.test"):
            await sender.send("http://hooks.test/", b"{}", {})


# -- who must not be reached


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "127.0.0.1.",
        "0.0.0.0",
        "0",
        "１２７.0.0.1",
        "127。0。0。1",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[::]",
        "[::1]",
        "localhost",
        "LOCALHOST",
        "ⓛocalhost",
        "user@127.0.0.1",
    ],
)
async def test_no_spelling_leads_to_this_machine(host: str) -> None:
    """Names are looked up by the system here, as they are in a server."""
    async with receiving(saying(b"secret"), PRIVATE) as receiver, posting() as sender:
        with pytest.raises((InvalidRequest, Unavailable)):
            await sender.send(f"http://{host}:{receiver.port}/", b"{}", {})
        assert await receiver.strangers() == 0


@pytest.mark.parametrize("name", ["localhost.", "LOCALHOST.", "hooks.test", "127.0.0.1.hooks.test", "bücher.test"])
async def test_no_name_leads_to_this_machine(name: str) -> None:
    names = Names([PRIVATE])
    async with receiving(saying(b"secret"), PRIVATE) as receiver, posting(names) as sender:
        with pytest.raises(Unavailable, match="no public address"):
            await sender.send(f"http://{name}:{receiver.port}/", b"{}", {})
        assert len(names.asked) == 1
        assert await receiver.strangers() == 0


async def test_with_its_network_allowed_the_same_machine_is_reached_by_name() -> None:
    """Else the test above could not fail."""
    async with receiving(saying(b"yes"), PRIVATE) as receiver, posting(allowed=["127.0.0.0/8", "::1"]) as sender:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            assert await sender.send(f"http://{host}:{receiver.port}/", b"{}", {}) == ReceiverResponse(200, "yes")


async def test_a_name_that_moves_to_a_private_address_is_not_followed_there() -> None:
    names = Names([PUBLIC], [PRIVATE])
    async with two_receivers(saying(b"")) as (public, private), posting(names) as sender:
        url = f"http://hooks.test:{public.port}/"
        assert (await sender.send(url, b"{}", {})).status == 200
        assert names.asked == ["hooks.test"], "a second look-up is a chance to answer otherwise"
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"no public address is known for the name hooks\.test"):
                await sender.send(url, b"{}", {})
        assert await private.strangers() == 0
        assert await public.strangers() == 1


async def test_one_private_address_among_the_addresses_of_a_name_is_enough() -> None:
    for answer in ([PUBLIC, PRIVATE], [PRIVATE, PUBLIC], [PUBLIC, "::1"], [PUBLIC, "::ffff:127.0.0.1"]):
        async with two_receivers(saying(b"")) as (public, private), posting(Names(answer)) as sender:
            with pytest.raises(Unavailable):
                await sender.send(f"http://hooks.test:{public.port}/", b"{}", {})
            assert (await public.strangers(), await private.strangers()) == (0, 0)


async def test_whether_an_internal_name_exists_is_not_told() -> None:
    """Neither by words nor by the kind of error, nor by how long it takes."""
    told, took = set(), []
    for answer in ([PRIVATE], ["10.0.0.1"], ["169.254.169.254"], []):
        async with posting(Names(answer)) as sender:
            began = time.monotonic()
            with pytest.raises(Unavailable) as caught:
                await sender.send("http://db.internal/", b"{}", {})
            took.append(time.monotonic() - began)
            told.add((str(caught.value), caught.value.remedy, caught.value.retryable))
    assert len(told) == 1
    assert min(took) > 0.4


class Turning(dict[str, Any]):
    """Says one address to who reads it first, and another one to everybody after."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key == "host":
            self["host"] = PRIVATE
        return value


class TurningNames(Names):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [cast(ResolveResult, Turning(result(host, PUBLIC, port)))]


async def test_an_address_that_changes_after_the_check_gets_no_socket() -> None:
    async with two_receivers(saying(b"")) as (public, private), posting(TurningNames()) as sender:
        with pytest.raises(Unavailable, match="Permission denied"):
            await sender.send(f"http://hooks.test:{public.port}/", b"{}", {})
        assert (await public.strangers(), await private.strangers()) == (0, 0)


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
async def test_a_redirect_is_an_answer_and_not_a_request(status: str) -> None:
    """Neither to what may not be called nor to what may."""
    async with receiving(saying(b"secret"), PRIVATE) as private, receiving(saying(b"")) as other:
        for target in (private, other):
            talk = saying(b"", status, f"Location: {target.url()}")
            async with receiving(talk) as receiver, posting() as sender:
                assert (await sender.send(receiver.url(), b"{}", {})).status == int(status[:3])
                assert await target.strangers() == 0
            target.connections = 0


async def test_cookies_are_not_kept() -> None:
    async with receiving(saying(b"", "200 OK", "Set-Cookie: a=b; Path=/")) as receiver, posting() as sender:
        for _ in range(2):
            await sender.send(f"http://{PUBLIC}:{receiver.port}/", b"{}", {})
    assert [b"ookie" in request for request in receiver.requests] == [False, False]


@pytest.fixture
def tempting_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    (tmp_path / "netrc").write_text(f"machine {PUBLIC} login somebody password something\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return monkeypatch


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    tempting_environment: pytest.MonkeyPatch,
) -> None:
    async with receiving(saying(b"")) as proxy, receiving(saying(b"")) as receiver, posting() as sender:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            tempting_environment.setenv(name, proxy.url(""))
        assert (await sender.send(receiver.url(), b"{}", {})).status == 200
        assert await proxy.strangers() == 0
    assert b"uthorization" not in receiver.requests[0]


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For hooks.test only."""
    folder = tmp_path_factory.mktemp("certificate")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test"]
    argv += ["-addext", "subjectAltName=DNS:hooks.test"]
    subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def asked_names() -> Iterator[list[str | None]]:
    yield []


@asynccontextmanager
async def receiving_tls(folder: Path, asked: list[str | None]) -> AsyncIterator[Receiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.sni_callback = lambda _, name, __: asked.append(name)
    async with receiving(saying(b"over tls"), tls=context) as receiver:
        yield receiver


async def test_tls_is_made_with_the_name_and_its_certificate(certificate: Path, asked_names: list[str | None]) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    async with receiving_tls(certificate, asked_names) as receiver, posting(Names([PUBLIC]), tls=trusting) as sender:
        for name in ("hooks.test", "hooks.test."):
            answer = await sender.send(f"https://{name}:{receiver.port}/", b"{}", {})
            assert answer == ReceiverResponse(200, "over tls")
    assert asked_names == ["hooks.test"] * 2


@pytest.mark.parametrize(("name", "trusted"), [("hooks.test", False), ("other.test", True), (PUBLIC, True)])
async def test_without_the_right_certificate_nothing_is_sent(
    certificate: Path, asked_names: list[str | None], name: str, trusted: bool
) -> None:
    tls = ssl.create_default_context(cafile=str(certificate / "cert.pem")) if trusted else None
    async with receiving_tls(certificate, asked_names) as receiver, posting(Names([PUBLIC]), tls=tls) as sender:
        with pytest.raises(Unavailable, match="no trusted TLS connection"):
            await sender.send(f"https://{name}:{receiver.port}/", b"{}", {})
    assert receiver.requests == []


async def test_the_poster_says_what_is_allowed() -> None:
    async with posting(allowed=["10.0.0.0/8", "fd00::/8"]) as sender:
        assert repr(sender) == "<WebhookSender allowed beside the public Internet: 10.0.0.0/8, fd00::/8>"
