"""The broker with a real TLS server behind it: what the server gets, what a client can make of it."""

import asyncio
import base64
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificates

from warren.model.header_rules import HeaderRule
from warren.model.secrets import BoundSecret, new_binding
from warren.sandboxes.egress.broker import Broker, BrokerSetup
from warren.sandboxes.egress.broker_streams import SocketStream
from warren.sandboxes.egress.certificates import Certificates, new_certificates, server_context, upstream_context

pytestmark = pytest.mark.anyio

HOST = "api.bound.example"
OTHER = "other.example"
VALUE = "sk-live-0123456789abcdef"


def secret(name: str = "openai", hosts: tuple[str, ...] = (HOST,), **more: Any) -> BoundSecret:
    value = more.pop("value", VALUE)
    expires_at = more.pop("expires_at", None)
    more = {"header": "Authorization", "format": "Bearer {}", **more} if "query" not in more else more
    bound = new_binding(name, hosts, **more)
    fields = {field: getattr(bound, field) for field in bound.__dataclass_fields__}
    return BoundSecret(**{**fields, "expires_at": expires_at}, value=value)


def frame(data: bytes, first: int = 0x82) -> bytes:
    """A frame of a WebSocket as servers send it; `first` has the opcode, and the bit of the last frame of a message."""
    size = bytes((len(data),)) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    return bytes((first,)) + size + data


async def read_message(reader: asyncio.StreamReader) -> tuple[int, bytes, list[bytes]]:
    """The opcode and the data of the next message, and the control frames that came in between."""
    opcode, data, controls = 0, b"", []
    while True:
        first, size = await reader.readexactly(2)
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        part = await reader.readexactly(size)
        if first & 8:
            controls.append(part)
            continue
        assert bool(opcode) != bool(first & 0x0F)
        opcode, data = opcode or first & 0x0F, data + part
        if first & 0x80:
            return opcode, data, controls


class Upstream:
    """Records what it gets, byte by byte, and answers what it was told to."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.answers: dict[bytes, bytes] = {}
        self.frames: Callable[[bytes], Iterable[bytes]] = lambda data: [frame(b"echo:" + data)]
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b""
                lower = head.lower()
                if b"transfer-encoding: chunked" in lower:
                    while not body.endswith(b"0\r\n\r\n"):
                        body += await reader.readuntil(b"\r\n")
                elif b"content-length: " in lower:
                    length = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])
                    body = await reader.readexactly(length)
                self.got.append(head + body)
                path = head.split(b" ")[1].split(b"?")[0]
                if path == b"/ws":
                    writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                    while data := await reader.read(4096):
                        for frame in self.frames(data):
                            writer.write(frame)
                            await writer.drain()
                    return
                if path == b"/echo":
                    answer = b"HTTP/1.1 200 OK\r\nX-Seen: %b\r\nContent-Length: %d\r\n\r\n%b" % (
                        head.split(b"Authorization: ")[-1].split(b"\r\n")[0], len(head), head,
                    )  # fmt: skip
                    for at in range(0, len(answer), 7):
                        writer.write(answer[at : at + 7])
                        await writer.drain()
                        await asyncio.sleep(0)
                    continue
                writer.write(self.answers.get(path, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    @property
    def heads(self) -> list[bytes]:
        return [each.split(b"\r\n\r\n")[0] for each in self.got]


class World:
    """A broker and its upstream. `dialled` are the hosts that were connected to."""

    def __init__(self, upstream: Upstream, broker: Broker, trust: ssl.SSLContext, dialled: list[str]) -> None:
        self.upstream, self.broker, self.trust, self.dialled = upstream, broker, trust, dialled
        self.refused: list[str] = []
        self.paid, self.worked = 0, 0.0

    async def plain(self, name: str, port: int = 80) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection as the proxy hands it over."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        task = asyncio.create_task(self.broker.serve(name, port, SocketStream(theirs)))
        task.add_done_callback(lambda done: done.cancelled() or done.result())
        return await asyncio.open_connection(sock=ours)

    async def tls(self, host: str = HOST, *, sni: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        asyncio.create_task(self.broker.serve(host, 443, SocketStream(theirs)))  # noqa: RUF006
        return await asyncio.open_connection(sock=ours, ssl=self.trust, server_hostname=sni or host)

    async def ask(self, raw: bytes, *, name: str = "") -> bytes:
        """All that comes back until the connection ends; over TLS unless the name is one of the broker's."""
        reader, writer = await (self.plain(name) if name else self.tls())
        try:
            writer.write(raw)
            async with asyncio.timeout(10):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


Open = Callable[..., Any]


@pytest.fixture
def open_world(tmp_path: Path) -> Open:
    made = make_certificates(tmp_path, HOST, OTHER)

    @asynccontextmanager
    async def open_it(
        *secrets: BoundSecret, trusted: bool = True, to: str = "", headers: tuple[HeaderRule, ...] = ()
    ) -> AsyncIterator[World]:
        upstream, dialled = Upstream(), []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.cert, made.key)
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]

        async def dial(host: str, wanted: int) -> socket.socket:
            assert wanted == 443
            dialled.append(host)
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            return sock

        bound = secrets or (() if headers else (secret(),))
        hosts = {*(host for each in bound for host in each.hosts), *(each.host for each in headers)}
        certificates = new_certificates(sorted(hosts))
        trust = ssl.create_default_context(cadata=certificates.authority)
        trust.set_alpn_protocols(["h2", "http/1.1"])
        refused: list[str] = []

        async def pay() -> None:
            world.paid += 1

        async def work(seconds: float) -> None:
            world.worked += seconds

        setup = BrokerSetup(bound, certificates, headers)
        broker = Broker(
            BrokerSetup.from_mapping(json.loads(json.dumps(setup.as_mapping()))),
            upstream_context(made.ca.read_text() if trusted else ""),
            dial,
            refused=lambda name, port, reason: refused.append(reason),
            pay=pay,
            work=work,
        )
        world = World(upstream, broker, trust, dialled)
        world.refused = refused
        try:
            yield world
        finally:
            broker.close()
            server.close()

    return open_it


def get(path: str = "/", host: str = HOST, *headers: str, method: str = "GET", close: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, *(["Connection: close"] if close else []), "", ""]
    return "\r\n".join(lines).encode()


async def test_a_request_to_the_bound_host_gets_the_secret_and_loses_its_own(open_world: Open) -> None:
    async with open_world() as world:
        answer = await world.ask(get("/a?b=c", HOST, "authorization: Bearer fake", "AUTHORIZATION: x", "X-Kept: 1"))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"ok")
        head = world.upstream.heads[0]
        assert head.startswith(b"GET /a?b=c HTTP/1.1\r\nHost: " + HOST.encode())
        assert head.lower().count(b"authorization") == 1
        assert f"Authorization: Bearer {VALUE}".encode() in head
        assert b"X-Kept: 1" in head
        assert b"fake" not in head
        assert world.dialled == [HOST]


async def test_each_request_of_a_connection_is_paid_for(open_world: Open) -> None:
    async with open_world() as world:
        await world.ask(get("/a", close=False) + get("/b", close=False) + get("/c"))
        assert world.paid == len(world.upstream.heads) == 3


async def test_a_header_rule_sets_its_header_in_place_of_the_clients(open_world: Open) -> None:
    key, flag = HeaderRule(HOST, "X-Key", f"Bearer {VALUE}"), HeaderRule(HOST, "X-Flag", "on")
    async with open_world(headers=(key, flag)) as world:
        assert world.broker.takes(HOST, 443)
        assert not world.broker.takes(HOST, 80)  # nothing in the clear
        assert not world.broker.knows_name(HOST)  # it opens nothing
        answer = await world.ask(get("/echo", HOST, "X-Key: mine", "x_flag: off", "X-Kept: 1", "Range: bytes=0-9"))
        head = world.upstream.heads[0]
        assert head.count(b"X-Key") == head.lower().count(b"flag") == 1
        for line in (f"X-Key: Bearer {VALUE}", "X-Flag: on", "X-Kept: 1"):
            assert f"\r\n{line}".encode() in head
        assert b"Range" not in head
        assert VALUE.encode() not in answer
        assert b"X-Flag: on" in answer  # too short to be looked for
        assert world.worked > 0


async def test_a_secret_wins_over_a_header_rule(open_world: Open) -> None:
    rules = HeaderRule(HOST, "authorization", "Bearer of-the-rule"), HeaderRule(HOST, "X-More", "of-the-rule")
    async with open_world(secret(), headers=rules) as world:
        await world.ask(get("/"))
        head = world.upstream.heads[0]
        assert head.lower().count(b"authorization") == 1
        assert f"Authorization: Bearer {VALUE}".encode() in head
        assert b"X-More: of-the-rule" in head
        assert world.broker.knows_name(HOST)


async def test_the_brokers_own_name_leads_to_the_bound_host(open_world: Open) -> None:
    async with open_world() as world:
        name = "openai.broker.internal"
        assert world.broker.knows_name(name)
        assert world.broker.takes(name, 80)
        answer = await world.ask(get("/v1/models", name), name=name)
        assert answer.endswith(b"ok")
        assert world.upstream.heads[0].startswith(f"GET /v1/models HTTP/1.1\r\nHost: {HOST}\r\n".encode())
        assert VALUE.encode() in world.upstream.heads[0]


async def test_only_bound_names_and_their_ports_are_the_brokers(open_world: Open) -> None:
    async with open_world() as world:
        broker = world.broker
        for name, port in (
            ("unbound.broker.internal", 80), ("openai.broker.internal", 443), (HOST, 80), (f"x.{HOST}", 443),
            (OTHER, 443), ("broker.internal", 80), (HOST, 8443), (f"{HOST}.", 443),
        ):  # fmt: skip
            assert not broker.takes(name, port), (name, port)
        assert not broker.knows_name("unbound.broker.internal")
        assert not broker.knows_name(OTHER)


async def test_a_query_parameter_carries_a_secret_and_replaces_the_clients(open_world: Open) -> None:
    async with open_world(secret(query="key", value="a b&c=d+e/f%g")) as world:
        await world.ask(get("/x?key=mine&k%65y=mine&y=1&key"))
        assert world.upstream.got[0].startswith(b"GET /x?y=1&key=a%20b%26c%3Dd%2Be%2Ff%25g HTTP/1.1\r\n")
        await world.ask(get("/x"))
        assert world.upstream.got[1].startswith(b"GET /x?key=a%20b")


async def test_base64_and_several_secrets_for_one_host(open_world: Open) -> None:
    first = secret("a", header="Authorization", format="Basic {base64}", value="user:pass-word")
    second = secret("b", header="X-Application-Key", format="{}", value="another-secret")
    async with open_world(first, second) as world:
        await world.ask(get("/", HOST, "x_application_key: mine"))
        head = world.upstream.heads[0]
        assert b"Authorization: Basic " + base64.b64encode(b"user:pass-word") in head
        assert b"X-Application-Key: another-secret" in head
        assert b"mine" not in head


async def test_each_request_of_a_connection_is_checked(open_world: Open) -> None:
    async with open_world() as world:
        raw = get("/1", close=False) + get("/2", close=False) + get("/3", OTHER)
        answer = await world.ask(raw)
        assert [head.split(b" ")[1] for head in world.upstream.heads] == [b"/1", b"/2"]
        assert world.upstream.connections == 1
        assert answer.count(b"HTTP/1.1 200") == 2
        assert b"HTTP/1.1 421" in answer
        assert all(VALUE.encode() in head for head in world.upstream.heads)


HOSTILE = {
    "another host": get("/", OTHER),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": get("/", HOST, f"Host: {HOST}"),
    "a host with userinfo": get("/", f"{HOST}@{OTHER}"),
    "another port": get("/", f"{HOST}:8443"),
    "absolute form": get(f"http://{OTHER}/"),
    "absolute form of the host itself": get(f"https://{HOST}/"),
    "connect": get(f"{OTHER}:443", method="CONNECT"),
    "connect to itself": get(f"{HOST}:443", method="CONNECT"),
    "a method in small letters": get("/", method="get"),
    "length beside chunks": get("/", HOST, "Content-Length: 5", "Transfer-Encoding: chunked", method="POST") + b"0\r\n",
    "two lengths": get("/", HOST, "Content-Length: 5", "Content-Length: 6", method="POST") + b"123456",
    "the same length twice": get("/", HOST, "Content-Length: 5", "Content-Length: 5", method="POST") + b"12345",
    "a list of lengths": get("/", HOST, "Content-Length: 5, 5", method="POST") + b"12345",
    "a length with a sign": get("/", HOST, "Content-Length: +5", method="POST") + b"12345",
    "another coding": get("/", HOST, "Transfer-Encoding: gzip, chunked", method="POST") + b"0\r\n\r\n",
    "a coding that looks like chunked": get("/", HOST, "Transfer-Encoding: xchunked", method="POST") + b"0\r\n\r\n",
    "chunked twice": get("/", HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", method="POST"),
    "a space before the colon": get("/", HOST, "Transfer-Encoding : chunked", method="POST"),
    "a folded line": get("/", HOST, "X-A: 1\r\n  Transfer-Encoding: chunked"),
    "a bare line feed": get("/", HOST, "X-A: 1\nX-Injected: 2"),
    "a bare carriage return": get("/", HOST, "X-A: 1\rX-Injected: 2"),
    "a NUL": get("/", HOST, "X-A: 1\0"),
    "a space in the path": get("/a HTTP/1.1\r\nX-Injected: 1\r\n\r\nGET /b"),
    "a carriage return in the path": get("/a\rX-Injected:1"),
    "a tab in the path": get("/a\tb"),
    "a fragment": get("/a#b"),
    "http 1.0": get("/").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no request at all": b"\x16\x03\x01" + b"x" * 100 + b"\r\n\r\n",
    "a head that never ends": b"GET / HTTP/1.1\r\n" + b"X-A: " + b"a" * 70_000,
    "too many headers": get("/", HOST, *(f"X-{at}: 1" for at in range(300))),
    "an empty header name": get("/", HOST, ": 1"),
}  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
async def test_what_is_not_exactly_a_request_for_the_host_reaches_nobody(open_world: Open, raw: bytes) -> None:
    async with open_world() as world:
        answer = await world.ask(raw)
        leaked = [each for each in world.upstream.got if b"/b" in each or b"Injected" in each or OTHER.encode() in each]
        assert not leaked
        assert b"200 OK" not in answer or raw == HOSTILE["a space in the path"]
        assert VALUE.encode() not in answer
        assert world.refused or b"HTTP/1.1 4" in answer or not answer
    names = (OTHER.encode(), b"Injected")
    assert not any(name in each for name in names for each in world.upstream.got)


async def test_bad_chunks_end_the_request_before_it_is_whole(open_world: Open) -> None:
    head = get("/", HOST, "Transfer-Encoding: chunked", method="POST")
    async with open_world() as world:
        for body in (
            b"zz\r\n",
            b"-1\r\nx",
            b"5\r\nhello!\r\n0\r\n\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
        ):
            assert b"200 OK" not in await world.ask(head + body)
        assert not world.upstream.got


async def test_bodies_are_streamed_in_either_framing(open_world: Open) -> None:
    async with open_world() as world:
        body = b"5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
        answer = await world.ask(get("/", HOST, "Transfer-Encoding: chunked", method="POST") + body)
        assert answer.endswith(b"ok")
        assert b"hello" in world.upstream.got[0]
        assert b" world" in world.upstream.got[0]
        assert b"Trailer" not in world.upstream.got[0]
        large = b"x" * 3_000_000
        assert (await world.ask(get("/", HOST, f"Content-Length: {len(large)}", method="PUT") + large)).endswith(b"ok")
        assert world.upstream.got[1].endswith(large)


async def test_an_answer_in_chunks_without_length_or_without_body_comes_through(open_world: Open) -> None:
    async with open_world() as world:
        answers = world.upstream.answers
        answers[b"/chunks"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        answers[b"/none"] = b"HTTP/1.1 204 No Content\r\n\r\n"
        answers[b"/early"] = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!"
        answers[b"/head"] = b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n"
        assert b"Transfer-Encoding: chunked\r\n" in (chunks := await world.ask(get("/chunks")))
        assert chunks.endswith(b"0\r\n\r\n")
        assert (await world.ask(get("/none"))).startswith(b"HTTP/1.1 204")
        early = await world.ask(get("/early"))
        assert early.startswith(b"HTTP/1.1 103")
        assert early.endswith(b"!")
        assert b"Content-Length: 12345" in await world.ask(get("/head", method="HEAD"))


async def test_a_redirect_is_passed_back_and_not_followed(open_world: Open) -> None:
    async with open_world() as world:
        world.upstream.answers[b"/go"] = (
            f"HTTP/1.1 302 Found\r\nLocation: https://{OTHER}/steal\r\nContent-Length: 0\r\n\r\n".encode()
        )
        answer = await world.ask(get("/go"))
        assert f"Location: https://{OTHER}/steal".encode() in answer
        assert world.dialled == [HOST]
        assert len(world.upstream.got) == 1
        assert VALUE.encode() not in answer


@pytest.mark.parametrize("query", [False, True])
async def test_a_host_that_echoes_the_secret_does_not_give_it_away(open_world: Open, query: bool) -> None:
    bound = secret(query="key") if query else secret(format="Basic {base64}")
    async with open_world(bound) as world:
        answer = await world.ask(get("/echo"))
        for trace in bound.traces:
            assert trace not in answer
        assert b"*" * len(VALUE) in answer
        length = int(answer.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        assert len(answer.split(b"\r\n\r\n", 1)[1]) == length
        assert b"Accept-Encoding: identity" in world.upstream.heads[0]


async def test_a_compressed_answer_is_not_passed_on_unless_scrubbing_is_off(open_world: Open) -> None:
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nzzzz"
    async with open_world() as world:
        world.upstream.answers[b"/"] = packed
        assert (await world.ask(get("/"))).startswith(b"HTTP/1.1 502")
    for bound, says in (
        ((), b"leave out the rules for this host\n"),
        ((secret(),), b"without scrub, and leave out the"),
    ):
        async with open_world(*bound, headers=(HeaderRule(HOST, "X-Key", VALUE),)) as world:
            world.upstream.answers[b"/"] = packed
            answer = await world.ask(get("/"))
            assert says in answer
            assert (b"scrub" in answer) == bool(bound)
    async with open_world(secret(scrub=False)) as world:
        world.upstream.answers[b"/"] = packed
        assert (await world.ask(get("/", HOST, "Accept-Encoding: gzip"))).endswith(b"zzzz")
        assert b"Accept-Encoding: gzip" in world.upstream.heads[0]


async def test_a_websocket_is_opened_with_the_secret(open_world: Open) -> None:
    async with open_world() as world:
        reader, writer = await world.tls()
        writer.write(get("/ws", HOST, "Connection: Upgrade", "Upgrade: websocket", close=False))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.write(b"frame")
        assert await reader.readexactly(12) == frame(b"echo:frame")
        assert VALUE.encode() in world.upstream.heads[0]
        writer.write(VALUE.encode())
        assert await reader.readexactly(7 + len(VALUE)) == frame(b"echo:" + b"*" * len(VALUE))
        writer.close()


@pytest.mark.parametrize("size", [1, 5, 23])
async def test_a_websocket_that_sends_the_secret_in_fragments_does_not_give_it_away(
    open_world: Open, size: int
) -> None:
    def fragments(data: bytes) -> Iterable[bytes]:
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        for number, part in enumerate(parts):
            yield frame(part, (0x01 if not number else 0) | (0x80 if number == len(parts) - 1 else 0))
            yield frame(b"%d" % number, 0x89)

    async with open_world() as world:
        world.upstream.frames = fragments
        reader, writer = await world.tls()
        writer.write(get("/ws", HOST, "Connection: Upgrade", "Upgrade: websocket", close=False))
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(2):
            writer.write(b"before " + VALUE.encode() + b" after sk-li")
            opcode, data, controls = await read_message(reader)
            assert (opcode, data) == (1, b"before " + b"*" * len(VALUE) + b" after sk-li")
            assert len(controls) >= len(data) // size - 1
            await reader.readexactly(2 + len(b"%d" % len(controls)))  # the last control frame
        writer.close()


async def test_a_long_message_of_a_websocket_stays_one_frame(open_world: Open) -> None:
    async with open_world() as world:
        world.upstream.frames = lambda data: [
            b"\x82\x7f" + (200_000).to_bytes(8, "big"),
            *(VALUE.encode() + b"x" * (20_000 - len(VALUE)) for _ in range(10)),
        ]
        reader, writer = await world.tls()
        writer.write(get("/ws", HOST, "Connection: Upgrade", "Upgrade: websocket", close=False))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"go")
        got = await reader.readexactly(200_010)
        assert got[:10] == b"\x82\x7f" + (200_000).to_bytes(8, "big")
        assert got[10:] == (b"*" * len(VALUE) + b"x" * (20_000 - len(VALUE))) * 10
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"packed", 0xC2),
        b"\x82\x86" + bytes(10),
        b"\x82\x7f" + b"\xff" * 8,
        b"\x89\x7e\x01\x00" + bytes(256),
        frame(b"half", 0x09),
    ],
)
async def test_frames_that_cannot_be_checked_end_a_websocket(open_world: Open, sent: bytes) -> None:
    async with open_world() as world:
        world.upstream.frames = lambda data: [sent]
        reader, writer = await world.tls()
        writer.write(get("/ws", HOST, "Connection: Upgrade", "Upgrade: websocket", close=False))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"go")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_a_control_frame_with_a_long_head_gets_a_short_one(open_world: Open) -> None:
    async with open_world() as world:
        world.upstream.frames = lambda data: [b"\x89\x7e\x00\x05hello", frame(b"next")]
        reader, writer = await world.tls()
        writer.write(get("/ws", HOST, "Connection: Upgrade", "Upgrade: websocket", close=False))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"go")
        assert await reader.readexactly(13) == frame(b"hello", 0x89) + frame(b"next")
        writer.close()


RANGES = ("Range: bytes=0-9", "If-Range: x", "Request-Range: bytes=0-9", "A-IM: range", "range: bytes=1-")


async def test_parts_of_an_answer_are_neither_asked_for_nor_passed_on_unless_scrubbing_is_off(open_world: Open) -> None:
    part = f"HTTP/1.1 206 Partial\r\nContent-Length: 9\r\n\r\n{VALUE[:9]}".encode()
    async with open_world() as world:
        world.upstream.answers[b"/part"] = part
        assert VALUE.encode() not in await world.ask(get("/echo", HOST, *RANGES))
        assert b"range" not in world.upstream.heads[0].lower()
        assert b"A-IM" not in world.upstream.heads[0]
        answer = await world.ask(get("/part"))
        assert answer.startswith(b"HTTP/1.1 502")
        assert VALUE[:9].encode() not in answer
    async with open_world(secret(scrub=False)) as world:
        world.upstream.answers[b"/part"] = part
        assert (await world.ask(get("/part", HOST, RANGES[0]))).startswith(b"HTTP/1.1 206")
        assert b"Range: bytes=0-9" in world.upstream.heads[0]


async def test_other_upgrades_are_not_passed_on(open_world: Open) -> None:
    async with open_world() as world:
        await world.ask(get("/", HOST, "Upgrade: h2c", "HTTP2-Settings: AAM", "TE: trailers"))
        assert b"h2c" not in world.upstream.heads[0]
        assert b"HTTP2" not in world.upstream.heads[0]


async def test_headers_that_the_client_calls_its_connections_are_dropped_but_not_the_secret(open_world: Open) -> None:
    async with open_world() as world:
        raw = get("/", HOST, "Connection: close, Authorization, X-Mine", "X-Mine: 1", close=False)
        await world.ask(raw)
        assert f"Authorization: Bearer {VALUE}".encode() in world.upstream.heads[0]
        assert b"X-Mine" not in world.upstream.heads[0]
        assert b"Connection" not in world.upstream.heads[0]


async def test_a_host_whose_certificate_is_not_trusted_gets_nothing(open_world: Open) -> None:
    async with open_world(trusted=False) as world:
        answer = await world.ask(get("/"))
        assert answer.startswith(b"HTTP/1.1 502")
        assert b"certificate" in answer
        assert not world.upstream.got


async def test_a_host_whose_certificate_is_for_another_name_gets_nothing(open_world: Open) -> None:
    async with open_world(secret(hosts=("nobody.example",))) as world:
        reader, writer = await world.tls("nobody.example")
        writer.write(get("/", "nobody.example"))
        assert (await reader.read()).startswith(b"HTTP/1.1 502")
        assert not world.upstream.got
        writer.close()


async def test_a_hello_for_another_name_is_refused(open_world: Open) -> None:
    async with open_world() as world:
        world.trust.check_hostname = False
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await world.tls(sni=OTHER)
        assert not world.dialled


async def test_the_authority_vouches_for_bound_hosts_alone() -> None:
    """A program inside that trusts it cannot be deceived about other hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    made = new_certificates([HOST])
    trust = ssl.create_default_context(cadata=made.authority)
    trust.set_alpn_protocols(["h2", "http/1.1"])
    client = await _handshake(trust, server_context(made, HOST), HOST)
    assert client.selected_alpn_protocol() == "http/1.1"
    authority = x509.load_pem_x509_certificate(made.authority.encode())
    constraints = authority.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    assert constraints.value.permitted_subtrees == [x509.DNSName(HOST)]
    assert [str(each.value) for each in constraints.value.excluded_subtrees or ()] == ["0.0.0.0/0", "::/0"]
    key = load_pem_private_key(made.key.encode(), None)
    assert key.public_key() != authority.public_key()  # the key of the authority is kept nowhere
    other = new_certificates([OTHER])
    with pytest.raises(ssl.SSLCertVerificationError):
        await _handshake(trust, server_context(other, OTHER), OTHER)


async def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    one.do_handshake()
    return one


async def test_an_expired_secret_is_not_sent(open_world: Open) -> None:
    async with open_world(secret(expires_at=time.time() + 1000)) as world:
        reader, writer = await world.tls()
        writer.write(get("/1", close=False))
        await reader.readuntil(b"ok")
        world.broker._wall = lambda: time.time() + 1001
        writer.write(get("/2"))
        assert b"HTTP/1.1 403" in await reader.read()
        assert len(world.upstream.got) == 1
        writer.close()


async def test_closing_the_broker_ends_connections_at_once(open_world: Open) -> None:
    async with open_world() as world:
        reader, writer = await world.tls()
        writer.write(get("/1", close=False))
        await reader.readuntil(b"ok")
        world.broker.close()
        writer.write(get("/2"))
        try:
            async with asyncio.timeout(5):
                assert await reader.read() == b""
        except (ConnectionError, ssl.SSLError):
            pass
        assert len(world.upstream.got) == 1
        writer.close()


async def test_a_host_that_cannot_be_reached_is_told_in_a_sentence(open_world: Open) -> None:
    async with open_world() as world:

        async def dial(host: str, port: int) -> socket.socket:
            raise OSError(113, "the operator denies it")

        world.broker._dial = dial
        answer = await world.ask(get("/"))
        assert answer.startswith(b"HTTP/1.1 502")
        assert f"{HOST} cannot be reached: the operator denies it".encode() in answer


async def test_no_repr_and_no_error_shows_the_value(open_world: Open) -> None:
    bound = secret()
    assert VALUE not in repr(bound)
    async with open_world(bound) as world:
        assert VALUE not in repr(world.broker)
        assert "PRIVATE" not in repr(new_certificates([HOST]))
        assert "PRIVATE" not in repr(BrokerSetup((bound,), Certificates("a", "b", "PRIVATE")))


def test_a_certificate_for_very_many_long_names_is_loaded() -> None:
    """More than a pipe holds by itself: the process that serves all tenants would wait for ever."""
    label = ".".join(["a" * 60] * 4)
    hosts = [f"h{number}.{label}"[:250] for number in range(240)]
    made = new_certificates(hosts)
    assert len(made.certificate) > 64 << 10
    assert server_context(made, hosts[0]).get_ca_certs() == []
