"""What the proxy makes of bytes that attackers send: questions, hellos, requests. Nothing of it may raise anything else
than a refusal, and what is passed on is what was judged."""

import contextlib
import itertools
import ssl
import struct
import time
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from this_run import patience

from warren.model.network import EgressPolicy, EndedConnection, NetworkRules, NetworkUse, Refusal
from warren.sandboxes.egress import dns
from warren.sandboxes.egress.hello import read_server_name
from warren.sandboxes.egress.http_syntax import Malformed
from warren.sandboxes.egress.inspector import Inspector
from warren.sandboxes.egress.judge import Destination, DestinationRefused, Judge
from warren.sandboxes.egress.messages import BrokenMessage, MessageReader, pack, pack_use, unpack_use
from warren.sandboxes.egress.names import MAX_NAMES, NETWORK, NameTable
from warren.sandboxes.egress.rate import Bucket, FairBucket
from warren.sandboxes.egress.requests import FirstLine, RequestGuard, Spoken

ADDRESS = IPv4Address("198.18.0.9")


def hello(name: str | None, *, pieces: int = 0) -> bytes:
    """What a real client sends first; in several records if it is to."""
    out = ssl.MemoryBIO()
    client = ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    data = out.read()
    if not pieces:
        return data
    body = data[5:]
    parts = [body[at : at + pieces] for at in range(0, len(body), pieces)]
    return b"".join(data[:3] + len(part).to_bytes(2, "big") + part for part in parts)


def question(name: bytes, kind: int = 1, *, flags: int = 0x100, count: int = 1, family: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b".") if part)
    return struct.pack(">HHHHHH", 77, flags, count, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, family)


class TestDns:
    def test_a_known_name_has_its_address_and_keeps_the_question(self) -> None:
        query = question(b"Api.Example")
        response = dns.answer(query, lambda name: ADDRESS if name == "api.example" else None)
        assert response is not None
        assert response[:2] == query[:2]
        assert response[12 : len(query)] == query[12:]
        assert response.endswith(ADDRESS.packed)
        assert response[3] & 15 == 0

    @pytest.mark.parametrize("kind", [28, 65, 64, 16, 15, 255, 0])
    def test_other_types_are_empty(self, kind: int) -> None:
        response = dns.answer(question(b"api.example", kind), lambda _: ADDRESS)
        assert response is not None
        assert (response[3] & 15, response[6:8]) == (0, b"\0\0")

    @pytest.mark.parametrize(
        ("query", "code"),
        [
            (question(b"other.example"), 3),
            (question(b"api.example", count=2), 1),
            (question(b"api.example", count=0), 1),
            (question(b"api.example", flags=0x2800), 4),
            (question(b"version.bind", 16, family=3), 5),
            (question(b"api\0.example"), 3),
            (question(b"127"), 3),
            (question(b"0x7f"), 3),
            (question(b""), 3),
            (question(b"api.example")[:-3], 1),
            (struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\xc0\x0c" + bytes(4), 1),  # points to itself
            (struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x3f" + b"a" * 63 * 5, 1),
        ],
    )
    def test_what_is_not_known_or_not_right_says_so(self, query: bytes, code: int) -> None:
        response = dns.answer(query, lambda name: ADDRESS if name == "api.example" else None)
        assert response is not None
        assert response[3] & 15 == code
        assert response[6:8] == b"\0\0"

    def test_an_answer_is_never_answered(self) -> None:
        assert dns.answer(question(b"api.example", flags=0x8100), lambda _: ADDRESS) is None

    @given(st.binary(max_size=1400))
    def test_no_bytes_break_it(self, query: bytes) -> None:
        response = dns.answer(query, lambda _: ADDRESS)
        assert response is None or (response[:2] == query[:2] and len(response) <= len(query) + 16)

    @given(st.binary(max_size=300))
    def test_only_names_of_hosts_are_looked_up(self, rest: bytes) -> None:
        asked: list[str] = []
        dns.answer(struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + rest, lambda name: asked.append(name))
        assert all(name == name.lower() and name.isascii() and not name.endswith(".") for name in asked)


class TestNames:
    def test_addresses_are_stable_and_used_again_last(self) -> None:
        table = NameTable()
        first = table.address_of("first.example")
        assert first in NETWORK
        assert table.address_of("first.example") == first
        for number in range(MAX_NAMES):
            table.address_of(f"n{number}.example")
        assert table.name_of(first) == ""
        assert table.address_of("first.example") != first

    def test_it_never_gives_an_address_twice_at_a_time(self) -> None:
        table = NameTable()
        for number in range(NETWORK.num_addresses + 10):
            table.address_of(f"n{number}.example")
        found = [table.address_of(f"n{NETWORK.num_addresses + 9 - number}.example") for number in range(MAX_NAMES)]
        assert len(set(found)) == MAX_NAMES


class TestHello:
    @pytest.mark.parametrize("pieces", [0, 1, 7, 100])
    def test_the_name_is_found_however_it_is_cut(self, pieces: int) -> None:
        data = hello("Api.Example", pieces=pieces)
        assert read_server_name(data) == "api.example"
        assert all(read_server_name(data[:end]) is None for end in range(1, len(data), 11))

    def test_a_hello_without_a_name_has_none(self) -> None:
        assert read_server_name(hello(None)) == ""

    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\0\0",  # an empty record
            b"\x16\x02\x01\0\x05hello",
            b"\x16\x03\x01\0\x04\x02\0\0\0",  # a server's hello
            b"\x16\x03\x01\0\x04\x01\xff\xff\xff",  # 16 MiB
            b"\x16\x03\x01\0\x06\x01\0\0\x02ab",
            b"\x80\x2e\x01\x03\x01",  # SSL 2
        ],
    )
    def test_what_is_no_hello_is_malformed(self, data: bytes) -> None:
        with pytest.raises(Malformed):
            read_server_name(data)

    @pytest.mark.parametrize(
        "replacement",
        [b"api\0example", b"api example", b"api/example", b"api.ex\xc3\xa4mp", b"api.examp\r\n"],
    )
    def test_a_name_no_host_can_have_is_malformed(self, replacement: bytes) -> None:
        data = hello("api.example")
        with pytest.raises(Malformed):
            read_server_name(data.replace(b"api.example", replacement.ljust(11, b"\n")[:11]))

    def test_a_second_name_is_malformed(self) -> None:
        data = hello("api.example")
        at = data.index(b"\0\0\0\x10\0\x0e\0\0\x0b" + b"api.example")
        one = data[at : at + 20]
        body = bytearray(data)
        body[at + 20 : at + 20] = one
        for where, size in ((3, 2), (6, 3), (_extensions_at(data), 2)):
            length = int.from_bytes(body[where : where + size], "big") + len(one)
            body[where : where + size] = length.to_bytes(size, "big")
        with pytest.raises(Malformed, match="twice"):
            read_server_name(body)

    @given(st.data())
    def test_no_change_of_a_hello_breaks_it(self, data: st.DataObject) -> None:
        body = bytearray(hello("api.example"))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        end = data.draw(st.integers(0, len(body)))
        try:
            found = read_server_name(body[:end])
        except Malformed:
            return
        assert found is None or found == "" or found.isascii()


def _extensions_at(data: bytes) -> int:
    at = 5 + 4 + 2 + 32
    at += 1 + data[at]
    at += 2 + int.from_bytes(data[at : at + 2], "big")
    return at + 1 + data[at]


GOOD = b"GET /a HTTP/1.1\r\nHost: web.example\r\nX: y\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: WEB.example:80\r\nContent-Length: 5\r\n\r\nGET /"
CHUNKED = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: web.example\r\n\r\n3;a=b\r\nGET\r\n0\r\nT: x\r\n\r\n"
UPGRADE = b"GET /ws HTTP/1.1\r\nHost: web.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def only_web(host: str, port: int) -> None:
    if host != "web.example" or port not in (0, 80):
        raise DestinationRefused(f"{host}:{port}")


def cut(data: bytes, *ends: int) -> Iterator[bytes]:
    places = [0, *sorted(end % (len(data) + 1) for end in ends), len(data)]
    return (data[start:end] for start, end in itertools.pairwise(places))


class TestRequests:
    @given(
        st.lists(st.sampled_from([GOOD, POST, CHUNKED]), min_size=1, max_size=4), st.lists(st.integers(0), max_size=5)
    )
    def test_right_requests_pass_unchanged_however_they_are_cut(self, requests: list[bytes], ends: list[int]) -> None:
        data = b"".join(requests)
        guard = RequestGuard(only_web)
        assert b"".join(guard.feed(part) for part in cut(data, *ends)) == data

    @given(st.lists(st.sampled_from([GOOD, POST, CHUNKED]), max_size=3), st.lists(st.integers(0), max_size=5))
    def test_nothing_of_a_wrong_request_passes(self, requests: list[bytes], ends: list[int]) -> None:
        right, wrong = b"".join(requests), GOOD.replace(b"web.", b"other.")
        passed: list[bytes] = []
        guard = RequestGuard(only_web)
        with pytest.raises(DestinationRefused, match="other"):
            passed.extend(guard.feed(part) for part in cut(right + wrong, *ends))
        assert right.startswith(b"".join(passed))

    @pytest.mark.parametrize(
        "data",
        [
            GOOD.replace(b"Host: web.example\r\n", b""),
            GOOD.replace(b"X: y", b"host: web.example"),
            GOOD.replace(b"X: y", b" folded"),
            GOOD.replace(b"X: y", b"X : y"),
            GOOD.replace(b"X: y", b"X: \0"),
            GOOD.replace(b"X: y", b"X: a\rb"),
            GOOD.replace(b"\r\n", b"\n"),
            GOOD.replace(b"GET /a", b"GET  /a"),
            GOOD.replace(b"/a", b"a"),
            GOOD.replace(b"HTTP/1.1", b"HTTP/2.0"),
            GOOD.replace(b"web.example", b"web.example, other.example"),
            GOOD.replace(b"web.example", b"user@web.example"),
            GOOD.replace(b"web.example", b"web.example:99999"),
            b"CONNECT web.example:443 HTTP/1.1\r\nHost: web.example\r\n\r\n",
            POST.replace(b"5\r\n", b"+5\r\n"),
            POST.replace(b"5\r\n", b"5, 5\r\n"),
            POST.replace(b"Content-Length: 5", b"Content-Length: 5\r\nContent-Length: 6"),
            CHUNKED.replace(b"chunked", b"gzip, chunked"),
            CHUNKED.replace(b"chunked", b"chunked\r\nContent-Length: 3"),
            CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"),
            CHUNKED.replace(b"3;a=b", b"0x3"),
            CHUNKED.replace(b"3;a=b", b"3\n"),
            CHUNKED.replace(b"GET\r\n", b"GETT\r\n"),
            UPGRADE.replace(b"websocket", b"h2c"),
            GOOD + UPGRADE,
            b"\0\0\0\0",
            b"x" * 70000,
            GOOD.replace(b"y", b"y" * 70000),
        ],
    )
    def test_what_could_be_read_in_two_ways_is_malformed(self, data: bytes) -> None:
        with pytest.raises(Malformed):
            RequestGuard(only_web).feed(data)

    def test_another_protocol_begins_only_when_the_server_agrees(self) -> None:
        guard = RequestGuard(only_web)
        assert guard.feed(UPGRADE + b"\x81\x05hello") == UPGRADE
        assert not guard.is_over
        assert guard.answered(b"HTTP/1.1 101 Switching Protocols\r\n") == b"\x81\x05hello"
        assert guard.is_over

    def test_a_server_that_does_not_agree_goes_on_with_requests(self) -> None:
        guard = RequestGuard(only_web)
        assert guard.feed(UPGRADE) == UPGRADE
        assert guard.answered(b"HTTP/1.1 200 OK\r\n") == b""
        with pytest.raises(DestinationRefused):
            guard.feed(GOOD.replace(b"web.", b"other."))

    def test_what_is_sent_before_the_server_agrees_is_limited(self) -> None:
        guard = RequestGuard(only_web)
        guard.feed(UPGRADE)
        with pytest.raises(Malformed):
            guard.feed(bytes(70000))

    @given(st.binary(max_size=200), st.lists(st.integers(0), max_size=4))
    def test_no_bytes_break_it(self, data: bytes, ends: list[int]) -> None:
        guard = RequestGuard(only_web)
        with contextlib.suppress(Malformed, DestinationRefused):
            assert data.startswith(b"".join(guard.feed(part) for part in cut(data, *ends)))


WRONG = GOOD.replace(b"web.", b"other.")


class TestFirstLine:
    @pytest.mark.parametrize(
        "data",
        [
            GOOD,
            GOOD.replace(b"\r\n", b"\n"),
            GOOD.replace(b"\r\n", b"\r"),
            b"\r\n\r\n" + GOOD,
            b" \t" + GOOD,
            GOOD.replace(b"GET", b"get"),
            GOOD.replace(b"GET", b"PROPFIND"),
            GOOD.replace(b"GET", b"x" * 5000),
            GOOD.replace(b"/a", b"/" + b"x" * 100_000),
            GOOD.replace(b"GET /a HTTP", b"GET\t/a\x1fHTTP"),
            GOOD.replace(b"HTTP/1.1\r", b"HTTP/1.1" + b" " * 500 + b"\r"),
            GOOD.replace(b"HTTP/1.1\r", b"HTTP/1.1 and more\r"),
            GOOD.replace(b"HTTP/1.1\r", b"HTTP/1." + b"0" * 500 + b"1\r"),
        ],
    )
    @pytest.mark.parametrize("size", [1, 7, 1 << 20])
    def test_requests_are_known_however_they_begin_and_are_cut(self, data: bytes, size: int) -> None:
        line = FirstLine()
        found = [line.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert next(spoken for spoken in found if spoken is not Spoken.UNKNOWN) is Spoken.HTTP1

    @pytest.mark.parametrize(
        "data",
        [
            b"HELO x\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"GET key\r\n",
            b"OPTIONS rtsp://a/ RTSP/1.0\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"PING\r\n",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"AMQP\0\0\x09\x01",
            b"<34>1 - GET / HTTP/1.1\n",
            b'82 <34>1 - "GET / HTTP/1.1" 200\n',
        ],
    )
    def test_other_protocols_are_none_of_them(self, data: bytes) -> None:
        assert FirstLine().feed(data) is Spoken.OTHER

    @pytest.mark.parametrize("part", [b"x" * 16384, b"x " * 8192, b" " * 16384])
    def test_a_line_without_an_end_is_not_kept_and_given_up(self, part: bytes) -> None:
        line = FirstLine()
        assert {line.feed(part) for _ in range(200)} == {Spoken.UNKNOWN}
        assert len(line._word) + len(line._tail) < 1000
        assert Spoken.OTHER in {line.feed(part) for _ in range(200)}

    def test_http2_is_known_by_its_preface(self) -> None:
        assert FirstLine().feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") is Spoken.HTTP2
        assert FirstLine().feed(GOOD.replace(b"1.1", b"2.0")) is Spoken.HTTP1


class TestInspector:
    def _inspector(self, port: int, *, strict: bool = True) -> Inspector:
        def tls(name: str) -> None:
            if name != "web.example":
                raise DestinationRefused(name)

        return Inspector(port, tls, only_web, strict=strict)

    @given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0), max_size=4))
    def test_on_other_ports_all_else_passes(self, data: bytes, ends: list[int]) -> None:
        if data[:1] == b"\x16":
            data = b"\0" + data
        inspector = self._inspector(5432)
        assert b"".join(inspector.feed(part) for part in cut(data, *ends) if part) == data

    @given(st.sampled_from([GOOD, POST, CHUNKED]), st.lists(st.integers(0), max_size=5))
    def test_right_requests_pass_unchanged_on_other_ports(self, data: bytes, ends: list[int]) -> None:
        inspector = self._inspector(8080)
        assert b"".join(inspector.feed(part) for part in cut(data + GOOD, *ends)) == data + GOOD
        with pytest.raises(DestinationRefused):
            inspector.feed(WRONG)

    @pytest.mark.parametrize(
        "data",
        [
            WRONG,
            b"\r\n" + WRONG,
            b"\n" + WRONG,
            WRONG.replace(b"GET", b"get"),
            WRONG.replace(b"GET", b"PROPFIND"),
            WRONG.replace(b"GET", b"X" * 40),
            WRONG.replace(b"GET", b"X_Y"),
            WRONG.replace(b"/a", b"/" + b"x" * 200_000),
            WRONG.replace(b"GET /a HTTP", b"GET\t/a\tHTTP"),
            WRONG.replace(b"HTTP/1.1\r", b"HTTP/1.1 x\r"),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ],
    )
    @pytest.mark.parametrize("size", [1, 1 << 20])
    def test_on_every_port_no_other_host_is_asked_by_http(self, data: bytes, size: int) -> None:
        inspector, passed = self._inspector(8080), []
        with pytest.raises((Malformed, DestinationRefused)):
            passed.extend(inspector.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert not b"".join(passed).lstrip().count(b"\n")  # a server does nothing before the line has ended

    def test_what_looks_like_tls_in_the_middle_of_a_long_line_passes(self) -> None:
        inspector = self._inspector(5432)
        for part in (*[b"x" * 16384] * 5, b"\x16\x03\x01\0\x05", b"y" * 100):
            assert inspector.feed(part) == part

    def test_http2_to_an_address_hides_no_name_that_was_looked_up(self) -> None:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        assert self._inspector(8080, strict=False).feed(preface) == preface

    @pytest.mark.parametrize("size", [1, 3, 4096])
    @pytest.mark.parametrize("port", [22, 80, 443, 8443])
    def test_tls_is_looked_at_on_every_port(self, port: int, size: int) -> None:
        data = hello("web.example")
        size = max(size, len(data) // 60)
        inspector = self._inspector(port)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(map(inspector.feed, parts)) == data
        with pytest.raises(DestinationRefused, match="other"):
            self._inspector(port).feed(hello("other.example"))

    def test_a_hello_in_a_thousand_pieces_is_malformed(self) -> None:
        inspector, parts = self._inspector(443), [bytes([byte]) for byte in hello("web.example")]
        with pytest.raises(Malformed, match="pieces"):
            list(map(inspector.feed, parts))

    def test_port_443_is_for_tls_and_port_80_for_requests(self) -> None:
        for port, data in ((443, GOOD), (443, b"\0"), (80, b"\0"), (80, b"SSH-2.0-x\r\n")):
            with pytest.raises(Malformed):
                self._inspector(port).feed(data)
        assert self._inspector(80, strict=False).feed(b"\0x") == b"\0x"


class TestJudge:
    @pytest.mark.parametrize(
        ("rules", "to", "reason"),
        [
            (NetworkRules(), ("a.example", "93.184.216.34", 80), "no rule"),
            (NetworkRules(allow=("a.example",)), ("a.example", "93.184.216.34", 80), ""),
            (NetworkRules(allow=("a.example",)), ("a.example", "10.0.0.1", 80), "a private address"),
            (NetworkRules(allow=("a.example",)), ("a.example", "::ffff:169.254.169.254", 80), "link-local"),
            (NetworkRules(allow=("a.example",)), ("a.example", "64:ff9b::a00:1", 80), "a private address"),
            (NetworkRules(allow=("a.example",)), ("a.example", "::1", 80), "loopback"),
            (NetworkRules(allow=("10.0.0.0/8",)), ("", "10.0.0.1", 80), "a private address"),
            (NetworkRules(allow=("10.9.0.0/16",)), ("", "10.9.0.1", 80), ""),
            (NetworkRules(allow=("b.example",)), ("b.example", "93.184.216.34", 80), "the operator denies it"),
            (NetworkRules(internet=True), ("", "93.184.216.34", 25), "the operator denies it"),
            (NetworkRules(internet=True), ("", "10.9.0.1", 80), "a private address, which `internet` does not open"),
            (NetworkRules(internet=True), ("a.example", "10.9.0.1", 80), "`internet` does not open"),
            (NetworkRules(internet=True), ("a.example", "::ffff:10.9.0.1", 80), "a private address"),
            (NetworkRules(internet=True), ("a.example", "93.184.216.34", 80), ""),
            (NetworkRules(internet=True, allow=("a.example:80",)), ("a.example", "10.9.0.1", 80), ""),
            (NetworkRules(internet=True, allow=("a.example:80",)), ("a.example", "10.9.0.1", 81), "not open"),
            (NetworkRules(internet=True, allow=("10.9.0.0/24",)), ("a.example", "10.9.0.1", 80), ""),
            (NetworkRules(internet=True, deny=("93.184.216.0/24",)), ("x.example", "93.184.216.34", 80), "no rule"),
        ],
    )
    def test_rules_and_the_operator(self, rules: NetworkRules, to: tuple[str, str, int], reason: str) -> None:
        judge = Judge(EgressPolicy(networks=("10.9.0.0/16",), denied=("b.example", "0.0.0.0/0:25")))
        name, address, port = to
        if reason:
            with pytest.raises(DestinationRefused, match=reason):
                judge.check(rules.indexed, Destination(name, ip_address(address), port))
        else:
            judge.check(rules.indexed, Destination(name, ip_address(address), port))

    def test_a_ceiling_of_names_and_networks(self) -> None:
        judge, rules = Judge(EgressPolicy(allowed=("*.good.example", "93.184.216.0/24"))), NetworkRules(internet=True)
        judge.check(rules.indexed, Destination("a.good.example", ip_address("8.8.8.8"), 1))
        judge.check(rules.indexed, Destination("x.example", ip_address("93.184.216.9"), 1))
        with pytest.raises(DestinationRefused, match="allows other"):
            judge.check(rules.indexed, Destination("x.example", ip_address("8.8.8.8"), 1))
        assert judge.knows_name(rules.indexed, "x.example")  # only its address can tell
        assert not Judge(EgressPolicy(allowed=("*.good.example",))).knows_name(rules.indexed, "x.example")


class TestMessages:
    def test_uses_survive_the_way(self) -> None:
        refusal = Refusal(1.5, "a.example", "", 80, "no rule allows it", "a.example:80", 3)
        use = NetworkUse(1, 2, 3, 4, 5, (refusal,), (EndedConnection(2.5, "", "8.8.8.8", 53, 6, 7),))
        (message,) = MessageReader(1 << 16).feed(b"".join(pack(pack_use(use))))
        assert unpack_use(message) == use

    @pytest.mark.parametrize(
        "change",
        [
            {"bytes_sent": -1},
            {"bytes_sent": True},
            {"refused": "1"},
            {"refusals": [[1, "a", "b", 1, "c"]]},
            {"refusals": [[1, "a\x1b[2J", "b", 1, "c", "d", 1]]},
            {"refusals": [[1, "a", "b", 1, "c" * 500, "d", 1]]},
            {"refusals": [[1, "a", "b", 1, "c", "d", -1]]},
            {"refusals": {"a": 1}},
            {"ended": None},
        ],
    )
    def test_nonsense_of_a_proxy_that_was_taken_over_is_refused(self, change: dict[str, object]) -> None:
        with pytest.raises(BrokenMessage):
            unpack_use({**pack_use(NetworkUse()), **change})

    @pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x01{"])
    def test_messages_that_cannot_be_are_refused(self, data: bytes) -> None:
        with pytest.raises(BrokenMessage):
            list(MessageReader(1 << 16).feed(data))


def test_what_is_in_a_chunk_is_not_read_as_lines() -> None:
    guard = RequestGuard(lambda host, port: None)
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"6\r\na\nb\n\r\n\r\n" + b"0\r\n\r\n"
    assert guard.feed(head + body) == head + body
    assert guard.feed(head) + guard.feed(body) == head + body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a.example\r\nX: a" + b" " * 60_000 + b"b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000,
        b"GET / HTTP/1.1\r\nHost: a.example\r\n" + b"a:\r\n" * 15_000 + b"\r\n",
    ],
    ids=["spaces", "chunks", "lines"],
)
def test_no_request_takes_long_to_read(data: bytes) -> None:
    guard, begun = RequestGuard(lambda host, port: None), time.process_time()
    assert guard.feed(data) == data
    assert time.process_time() - begun < patience(1.0)  # minutes, if it grew with the square of the length


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a.example\r\n" + b"a:\r\n" * 15_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\n" + b"upgrade:\r\n" * 6_000 + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000,
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n" * 1000,
    ],
    ids=["lines", "upgrades", "chunks", "requests"],
)
def test_no_read_of_a_request_holds_the_loop(data: bytes) -> None:
    def longest() -> float:
        guard, longest, at = RequestGuard(lambda host, port: None), 0.0, 0
        while at < len(data):
            part = data[at : at + guard.most]
            begun, at = time.thread_time(), at + len(part)
            with contextlib.suppress(Malformed):
                guard.feed(part)
            longest = max(longest, time.thread_time() - begun)
        return longest

    assert min(longest() for _ in range(3)) < patience(0.05)


def test_a_bucket_gives_its_rate() -> None:
    now = 0.0
    bucket = Bucket(100.0, 50.0, lambda: now)
    assert bucket.take(50) == 0
    assert bucket.take(100) == 1.0
    now = 1.0
    assert bucket.take(0) == 0
    assert bucket.take(1) == pytest.approx(0.01)


def test_a_fair_bucket_gives_each_member_its_part_and_the_rest_to_who_wants_it() -> None:
    now = 0.0
    bucket = FairBucket(100.0, 50.0, lambda: now)
    assert bucket.take("one", 50) == 0
    assert [bucket.take("one", 10) for _ in range(10)][-1] == pytest.approx(1.0)
    # Another one does not wait for all of that: it gets half of the rate.
    assert bucket.take("two", 20) == pytest.approx(0.4)
    now = 0.4
    assert bucket.take("two", 1) == pytest.approx(0.02)
    assert bucket.take("three", 100) == pytest.approx(1.81)  # 80 of one, 1 of two, 100 of its own
    now = 0.5
    assert bucket.take("one", 0.001) == pytest.approx(1.51, abs=0.01)
    now = 10.0
    assert bucket.take("three", 50) == 0
    assert bucket.take("two", 100) == pytest.approx(1.0)
