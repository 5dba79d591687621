"""E2B's wire: tokens of sandboxes, signed URLs, headers and hosts that name them, and the paths inside the server."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from warren_attack.probe import Group, Probe, ProbeResult, judged, not_applicable, undecided
from warren_attack.warren.api.arena import OTHER_KEY, ApiArena
from warren_attack.warren.api.raw_http import Answer

_CALL: Final = "/process.Process/List"
_FILE: Final = "/workspace/secret"
_REFUSED: Final = (400, 401, 403, 404, 502)
_TOKENS: Final = ("envdAccessToken", "trafficAccessToken")


def _id(session: str) -> str:
    return session.removeprefix("ses_")


async def _tokens(arena: ApiArena) -> tuple[str, str] | None:
    """Those of the attacker's own sandbox, if they open it."""
    answer = await arena.call("POST", f"/sandboxes/{_id(arena.own.session)}/connect", {"timeout": 600})
    if answer.status != 200 or not all(name in answer.values for name in _TOKENS):
        return None
    access, traffic = (str(answer.values[name]) for name in _TOKENS)
    works = await _ask(arena, arena.own.session, {"X-Access-Token": access})
    return (access, traffic) if works.status == 200 else None


async def _ask(arena: ApiArena, session: str, headers: Mapping[str, str], *, host: str = "") -> Answer:
    sent = {"Content-Type": "application/json", **({} if host else {"E2b-Sandbox-Id": _id(session)}), **headers}
    return await arena.http.request("POST", _CALL, sent, b"{}", host=host or None)


def _all_refused(answers: list[Answer], secret: str = "") -> ProbeResult:
    through = [str(one) for one in answers if one.status not in _REFUSED or (secret and secret.encode() in one.body)]
    return judged(not through, f"{len(answers)} tried, through: {through[:3] or 'none'}")


def _signed(token: str, path: str) -> str:
    digest = base64.b64encode(hashlib.sha256(f"{path}:read::{token}".encode()).digest()).decode().rstrip("=")
    return "/files?" + urlencode({"path": path, "signature": f"v1_{digest}"})


async def _other_tenant(arena: ApiArena) -> ProbeResult:
    if not arena.has_two_tenants:
        return not_applicable(f"needs a second tenant: set {OTHER_KEY}")
    tokens = await _tokens(arena)
    if tokens is None:
        return undecided("the tokens of the attacker's own sandbox do not open it")
    access, traffic = tokens
    other, key = arena.other.session, arena.own.headers
    host = f"49983-{_id(other)}.localhost"
    forged = access.replace(_id(arena.own.session), _id(other))
    headers: list[dict[str, str]] = [
        {},
        dict(key),
        *({"X-Access-Token": token, **key} for token in (access, traffic, forged)),
        {"E2B-Traffic-Access-Token": traffic},
    ]
    answers = [await _ask(arena, other, each) for each in headers]
    answers += [await _ask(arena, other, each, host=host) for each in headers]
    for method, path in (("GET", ""), ("POST", "/connect"), ("POST", "/timeout"), ("GET", "/metrics")):
        body = {"timeout": 600} if method == "POST" else None
        answers.append(await arena.call(method, f"/sandboxes/{_id(other)}{path}", body))
    for token in (forged, f"wet_{_id(other)}_{'0' * 40}", ""):
        for at in ({}, {"E2b-Sandbox-Id": _id(other)}):
            answers.append(await arena.http.request("GET", _signed(token, _FILE), at))
    answers.append(await arena.http.request("GET", _signed(access, _FILE), {"E2b-Sandbox-Id": _id(other)}))
    return _all_refused(answers, arena.other.marker)


async def _forged_tokens(arena: ApiArena) -> ProbeResult:
    tokens = await _tokens(arena)
    if tokens is None:
        return undecided("the tokens of the attacker's own sandbox do not open it")
    access, traffic = tokens
    flipped = access[:-1] + ("0" if access[-1] != "0" else "1")
    tried = [traffic, flipped, access[:-1], access + "0", access.upper(), f" {access}x", "wet_", "null", "x" * 9000]
    answers = [await _ask(arena, arena.own.session, {"X-Access-Token": token}) for token in tried]
    answers.append(await _ask(arena, arena.own.session, {"E2B-Traffic-Access-Token": traffic}))
    answers.append(await _ask(arena, arena.own.session, {"Authorization": f"Bearer {access}"}))
    return _all_refused(answers)


async def _inner_paths(arena: ApiArena) -> ProbeResult:
    """The form that requests have inside the server says whose sandbox is meant, and is believed there."""
    session = arena.other.session or arena.own.session
    answers = []
    for prefix in ("/e2b", "//e2b", "/E2B", "/e2b/e2b", "/%65%32%62", "/./e2b", "/x/../e2b", "/e2b%2F..%2Fe2b"):
        for path in (f"/envd/{session}{_CALL}", f"/code/{session}/contexts", f"/envd%2F{session}{_CALL}"):
            for headers in ({}, arena.own.headers):
                answers.append(await arena.http.request("POST", prefix + path, headers, b"{}"))
    through = [str(one) for one in answers if one.status not in (*_REFUSED, 405)]
    return judged(not through, f"{len(answers)} tried, through: {through[:3] or 'none'}")


async def _two_names(arena: ApiArena) -> ProbeResult:
    """Headers and host that name different sandboxes: one is checked, and another one must not be used."""
    tokens = await _tokens(arena)
    if tokens is None:
        return undecided("the tokens of the attacker's own sandbox do not open it")
    own, other = _id(arena.own.session), _id(arena.other.session or f"ses_{'0' * 32}")
    answers = []
    for ids in ((own, other), (other, own), (own, own)):
        lines = "".join(f"E2b-Sandbox-Id: {each}\r\n" for each in ids)
        answers.append(await _send(arena, f"Host: localhost\r\n{lines}X-Access-Token: {tokens[0]}"))
    for host, each in ((f"49983-{other}.localhost", own), (f"49983-{own}.localhost", other)):
        answers.append(await _send(arena, f"Host: {host}\r\nE2b-Sandbox-Id: {each}\r\nX-Access-Token: {tokens[0]}"))
    answers.append(await _send(arena, f"Host: 49983-{other}.localhost\r\nX-Access-Token: {tokens[0]}"))
    return _all_refused(answers)


async def _send(arena: ApiArena, head: str) -> Answer:
    body = json.dumps({})
    text = f"POST {_CALL} HTTP/1.1\r\n{head}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    return await arena.http.send(text.encode())


PROBES: tuple[Probe[ApiArena], ...] = (
    Probe("e2b-forged-tokens", Group.API_KEYS, "open a sandbox with forged tokens of E2B's wire", _forged_tokens),
    Probe("e2b-inner-paths", Group.API_INPUT, "send the paths that E2B's requests have inside", _inner_paths),
    Probe("e2b-two-names", Group.API_INPUT, "name two sandboxes in one request of E2B's wire", _two_names),
    Probe("across-e2b", Group.API_TENANTS, "use the other tenant's sandbox by E2B's wire", _other_tenant),
)
