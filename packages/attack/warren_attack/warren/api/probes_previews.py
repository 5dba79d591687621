"""Previews of servers inside sandboxes: links, cookies, hosts, paths, and what reaches the sandbox."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, undecided
from warren_attack.warren.api.arena import ApiArena, upgrade_headers
from warren_attack.warren.api.raw_http import Answer

_G: Final = Group.API_PREVIEWS
_PORT: Final = 38080
_ECHO: Final = f"""
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps(["echo", self.path, self.headers.items()]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "own=1; Domain=example.com")
        self.send_header("Set-Cookie", "warren-preview=stolen")
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", {_PORT}), Echo).serve_forever()
"""


class _Preview:
    """The preview of a server in the attacker's own sandbox, and a link to it."""

    def __init__(self, arena: ApiArena, token: str) -> None:
        self._arena, self.token = arena, token
        self.host = host_of(arena.own.session)
        self.key = next(iter(arena.own.headers.values()), "")

    async def ask(self, target: str = "/", host: str = "", method: str = "GET", **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._arena.http.request(method, target, sent, host=host or self.host)


def host_of(session: str, port: int | str = _PORT) -> str:
    return f"{port}-{session.removeprefix('ses_')}.localhost"


async def _open(arena: ApiArena, **link: Any) -> _Preview:
    at = f"/api/sessions/{arena.own.session}"
    found = await arena.call("GET", f"{at}/ports")
    if not any(each["port"] == _PORT for each in found.values["ports"]):
        await arena.call("PUT", f"{at}/files/content", _ECHO.encode(), query={"path": "attack-echo.py"})
        await arena.call("POST", f"{at}/processes", {"command": "python3 attack-echo.py"})
        await arena.call("GET", f"{at}/ports", query={"wait_for": _PORT, "timeout_s": 60})
    made = await arena.call("POST", f"{at}/links", {"port": _PORT, **link})
    return _Preview(arena, made.values["token"])


def _echoed(answer: Answer) -> list[Any] | None:
    values = answer.values
    return values if answer.status == 200 and isinstance(values, list) and values[:1] == ["echo"] else None


def _refused(answers: Iterable[Answer], statuses: tuple[int, ...]) -> ProbeResult:
    found = list(answers)
    through = [str(answer) for answer in found if answer.status not in statuses or _echoed(answer)]
    return judged(not through, f"{len(found)} tried, through: {through[:3] or 'none'}")


async def _opens(preview: _Preview) -> bool:
    """Whether the link works at all: a refusal means nothing otherwise."""
    return _echoed(await preview.ask(X_Warren_Preview_Token=preview.token)) is not None


async def _private(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    if not await _opens(preview):
        return undecided("a link to the attacker's own server does not open it")
    path = f"/api/sessions/{arena.own.session}/ports/{_PORT}/"
    answers = [
        await preview.ask(),
        await preview.ask(path, host="localhost"),
        await preview.ask(Cookie="warren-preview=x"),
    ]
    return _refused(answers, (401,))


async def _other_tenant(arena: ApiArena) -> ProbeResult:
    if not arena.has_two_tenants:
        return contained("one tenant alone")
    preview = await _open(arena)
    path = f"/api/sessions/{arena.other.session}/ports/{_PORT}/"
    answers = [await preview.ask(path, host="localhost", X_API_Key=preview.key)]
    answers += [await preview.ask(host=host_of(arena.other.session), X_API_Key=preview.key)]
    answers += [await preview.ask(host=host_of(arena.other.session), X_Warren_Preview_Token=preview.token)]
    answers += [await preview.ask(host=host_of(arena.other.session), Cookie=f"warren-preview={preview.token}")]
    answers += [await preview.ask(f"{path}?warren_token={preview.token}", host="localhost")]
    return _refused(answers, (401, 404))


async def _other_port(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    other = host_of(arena.own.session, 38081)
    answers = [await preview.ask(host=other, X_Warren_Preview_Token=preview.token)]
    answers += [await preview.ask(host=other, Cookie=f"warren-preview={preview.token}")]
    answers += [await preview.ask(f"/?warren_token={preview.token}", host=other, Accept="text/html")]
    return _refused(answers, (401,))


async def _forged(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    payload, _, mac = preview.token.partition(".")
    forged = [
        f"{payload}.{mac[:-3]}AAA",
        f"{payload[:-3]}AAA.{mac}",
        f"{payload}.",
        f".{mac}",
        payload,
        f"{mac}.{payload}",
        f"{payload}.{mac}=",
        f"{payload}.{'A' * len(mac)}",
        f"{payload}%2e{mac}",
        "." * 500,
        "A" * 4000,
    ]
    return _refused([await preview.ask(X_Warren_Preview_Token=text) for text in forged], (401,))


async def _expired(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena, expires_s=0.01)
    for _ in range(100):
        if not await _opens(preview):
            return contained("the link opens nothing after its time")
        await asyncio.sleep(0.1)
    return got_through("a link of 10 ms still opens after 10 s")


async def _revoked(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    await arena.call("DELETE", f"/api/sessions/{arena.own.session}/links")
    answers = [await preview.ask(X_Warren_Preview_Token=preview.token)]
    answers += [await preview.ask(Cookie=f"warren-preview={preview.token}")]
    return _refused(answers, (401, 403))


async def _cross_site(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    cookie = f"warren-preview={preview.token}"
    answers = [
        await preview.ask(Cookie=cookie, Sec_Fetch_Site=site, Sec_Fetch_Mode="cors")
        for site in ("cross-site", "same-site")
    ]
    answers += [await preview.ask(method="POST", Cookie=cookie, Origin="http://evil.example")]
    for origin in ("http://evil.example", "null", f"http://{host_of(arena.other.session or 'ses_0')}"):
        answers += [await preview.ask(Cookie=cookie, Origin=origin, **upgrade_headers())]
    return _refused(answers, (403,))


async def _spelling(arena: ApiArena) -> ProbeResult:
    preview, session = await _open(arena), arena.own.session
    paths = [
        f"/api/sessions/{session}/ports/{port}/"
        for port in (
            f"0{_PORT}",
            f"+{_PORT}",
            f"{_PORT}.0",
            f"%33{str(_PORT)[1:]}",
            f"{_PORT}%20",
            f"{_PORT + 65536}",
            "-1",
            "0",
            f"0x{_PORT:x}",
        )
    ]
    answers = [await preview.ask(path, host="localhost", X_API_Key=preview.key) for path in paths]
    hosts = (
        f"0{_PORT}-{session[4:]}.localhost",
        f"{_PORT}-{session}.localhost",
        f"{_PORT + 65536}-{session[4:]}.localhost",
    )
    answers += [await preview.ask(host=host, X_API_Key=preview.key) for host in hosts]
    return _refused(answers, (307, 400, 404, 421, 422))


async def _hosts(arena: ApiArena) -> ProbeResult:
    """The host of a preview must never show the API, whose origin a page there would have."""
    preview = await _open(arena)
    shown = []
    for target in ("/health", "/docs", "/api/whoami", f"/api/sessions/{arena.own.session}"):
        answer = await preview.ask(target, X_API_Key=preview.key)
        if (found := _echoed(answer)) is None or found[1] != target:
            shown.append(f"{target}: {answer}")
    return judged(not shown, f"four paths of the API reach the sandbox; others: {shown or 'none'}")


async def _traversal(arena: ApiArena) -> ProbeResult:
    preview, prefix = await _open(arena), f"/api/sessions/{arena.own.session}/ports/{_PORT}"
    escaped = []
    for path in (
        "/../../../../api/admin/keys",
        "/..%2f..%2f..%2f..%2fhealth",
        "/%2e%2e/%2e%2e/links",
        "/a//evil.example/",
        "/;/../../health",
    ):
        for answer in (
            await preview.ask(path, X_API_Key=preview.key),
            await preview.ask(prefix + path, host="localhost", X_API_Key=preview.key),
        ):
            if (found := _echoed(answer)) is None or found[1] != path:
                escaped.append(f"{path}: {answer}")
    return judged(not escaped, f"the sandbox gets such paths as they are; others: {escaped or 'none'}")


async def _leaks(arena: ApiArena) -> ProbeResult:
    """A sandbox must not learn what opens the API or its preview, nor set what does."""
    preview = await _open(arena)
    cookie = f"a=1; warren-preview={preview.token}; __Host-warren-preview={preview.token}"
    answers = [
        await preview.ask(X_API_Key=preview.key, Authorization=f"Bearer {preview.key}", Cookie=cookie),
        await preview.ask(f"/?a=1&warren_token={preview.token}", Cookie=cookie, X_Warren_Preview_Token=preview.token),
        await preview.ask(f"/api/sessions/{arena.own.session}/ports/{_PORT}/", host="localhost", X_API_Key=preview.key),
    ]
    if any(_echoed(answer) is None for answer in answers):
        return undecided(f"not all of them opened it: {[str(answer) for answer in answers]}")
    seen = json.dumps([_echoed(answer) for answer in answers])
    told = [word for word in (preview.key, preview.token, "x-warren") if word and word.lower() in seen.lower()]
    stolen = [
        answer for answer in answers if "stolen" in str(answer.headers) or "domain=" in str(answer.headers).lower()
    ]
    return judged(
        not told and not stolen, f"the sandbox saw {len(told)} secrets and set {len(stolen)} cookies of others"
    )


async def _smuggling(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    start = f"POST / HTTP/1.1\r\nHost: {preview.host}\r\nX-API-Key: {preview.key}\r\n"
    second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    bodies = (
        f"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd{second}",
        f"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",
        f"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n{second}",
        f"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{second}",
        f"X: a\r\n Content-Length: 9\r\n\r\n{second}",
        f"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n{second}",
    )
    answers = [await arena.http.send((start + body).encode("latin-1")) for body in bodies]
    through = [str(answer) for answer in answers if answer.status == 200 or b"smuggled" in answer.body + answer.rest]
    connect = await arena.http.send(f"CONNECT {preview.host} HTTP/1.1\r\nHost: {preview.host}\r\n\r\n".encode())
    through += [str(connect)] if connect.status == 200 else []
    return judged(not through, f"{len(answers) + 1} tried, through: {through or 'none'}")


async def _public(arena: ApiArena) -> ProbeResult:
    preview = await _open(arena)
    at = f"/api/sessions/{arena.own.session}/ports/{_PORT}"
    answer = await arena.call("PUT", at, {"public": True})
    if answer.status == 200:
        await arena.call("PUT", at, {"public": False})
        return _refused([await preview.ask()], (401,))
    return _refused([answer, await preview.ask()], (401, 403))


def _probe(name: str, tries: str, run: Callable[[ApiArena], Awaitable[ProbeResult]]) -> Probe[ApiArena]:
    return Probe(f"preview-{name}", _G, tries, run)


PROBES: Final = (
    _probe("private", "open a preview without a key or a link", _private),
    _probe("other-tenant", "open another tenant's preview with an own key, link or cookie", _other_tenant),
    _probe("other-port", "open another port with a link to this one", _other_port),
    _probe("forged", "open a preview with a token that was changed", _forged),
    _probe("expired", "open a preview after its link has expired", _expired),
    _probe("revoked", "open a preview after its links were revoked", _revoked),
    _probe("cross-site", "use a browser's cookie from pages and WebSockets of other origins", _cross_site),
    _probe("spelling", "name a port or a host in another spelling", _spelling),
    _probe("hosts", "reach the API at the host of a preview", _hosts),
    _probe("traversal", "leave a preview by its path", _traversal),
    _probe("leaks", "let a sandbox learn keys and tokens, or set cookies for others", _leaks),
    _probe("smuggling", "send one request that is two, or a tunnel", _smuggling),
    _probe("public", "make a preview public, and open it when it is not", _public),
)
