"""Getting in without a key, with a forged one, or by an id that can be guessed."""

import base64
import json
import re
import secrets
from typing import Any

from warren.model.api import OPERATIONS
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, not_applicable
from warren_attack.warren.api.arena import ApiArena, segment
from warren_attack.warren.api.raw_http import Answer
from warren_attack.warren.api.requests import GUARDED_ROUTES, target_of

_G = Group.API_KEYS
_ADMIN = (
    ("GET", "/api/admin/keys"),
    ("POST", "/api/admin/keys"),
    ("GET", "/api/admin/tenants"),
    ("PUT", "/api/admin/tenants/attack"),
    ("GET", "/api/admin/audit"),
    ("GET", "/api/admin/usage"),
    ("GET", "/api/stats"),
    ("GET", "/metrics"),
    ("GET", "/api/cluster"),
)
_CLAIMS = {
    "X-Tenant": "default",
    "X-Warren-Tenant": "default",
    "X-Forwarded-User": "admin",
    "X-Remote-User": "admin",
    "X-Original-URL": "/api/admin/keys",
    "X-Rewrite-URL": "/api/admin/keys",
    "X-HTTP-Method-Override": "DELETE",
    "Forwarded": "for=127.0.0.1;by=127.0.0.1",
    "X-Forwarded-For": "127.0.0.1",
}
_TRAVERSALS = (
    "../admin/keys",
    "..%2fadmin%2fkeys",
    "%2e%2e/admin/keys",
    "%2e%2e%2fadmin%2fkeys",
    "..%5cadmin%5ckeys",
    "..;/admin/keys",
    "%00",
    "ses_%00",
    "*",
    "%2a",
    "%25",
    ".",
    "%c0%ae%c0%ae/",
    "%ff%fe",
    "a" * 8000,
    "' OR '1'='1",
    '{"$ne":null}',
    "ses_\r\nX-Injected: 1",
)


async def _nobody(arena: ApiArena) -> ProbeResult:
    if not arena.own.key:
        return not_applicable("this server asks for no key")
    let_in = []
    for method, path in GUARDED_ROUTES:
        answer = await arena.http.request(method, target_of(path, arena.own), {})
        if answer.status != 401:
            let_in.append(f"{method} {path}: {answer}")
    return _all_refused(let_in, len(GUARDED_ROUTES))


async def _forged_keys(arena: ApiArena) -> ProbeResult:
    if not arena.own.key:
        return not_applicable("this server asks for no key")
    key = arena.own.key
    half = key.rpartition("_")[0]
    forged = [
        *("", " ", "null", "undefined", "*", "admin", "wk_", "a" * 5000, key[:-1], key + "0", key.swapcase()),
        *(key[:-1] + ("0" if key[-1] != "0" else "1"), f"{half}_", f"{half}_{'0' * 32}", f"{half}_{half}", f"{key},x"),
        *(f"{key}%00", f"x,{key}", f'"{key}"', half, key[::-1]),
    ]
    let_in = [
        f"X-API-Key {value[:12]}… ({index})"
        for index, value in enumerate(forged)
        if (await _whoami(arena, {"X-API-Key": value})).status not in (400, 401, 431)
    ]
    let_in += [
        f"{name}: {value[:20]}"
        for name, value in (
            *(("Authorization", f"Bearer {value}") for value in forged[:12] if value.strip() != key),
            ("Authorization", f"Basic {base64.b64encode(key.encode()).decode()}"),
            ("Authorization", f"Digest {key}"),
            ("Cookie", f"api_key={key}; X-API-Key={key}"),
            ("X-Api-Token", key),
        )
        if (await _whoami(arena, {name: value})).status not in (400, 401, 431)
    ]
    for name in ("api_key", "key", "token", "access_token", "X-API-Key"):
        answer = await arena.http.request("GET", f"/api/whoami?{name}={segment(key)}", {})
        if answer.status != 401:
            let_in.append(f"?{name}= {answer}")
    return _all_refused(let_in, len(forged) + 21)


async def _tokens(arena: ApiArena) -> ProbeResult:
    """Tokens that nobody signed, or that were signed with what everybody knows."""
    if not arena.own.key:
        return not_applicable("this server asks for no key")
    claims = {"iss": "attack", "aud": "warren", "sub": "a", "tenant": arena.own.name, "scope": "admin", "exp": 1 << 40}
    let_in = []
    for head in (
        {"alg": "none"},
        {"alg": "None", "typ": "JWT"},
        {"alg": "HS256", "kid": "1"},
        {"alg": "RS256", "kid": "../../../../dev/null"},
        {"alg": "RS256", "jwk": {"kty": "oct", "k": "AAAA"}},
        {"alg": "ES256", "kid": "' UNION SELECT 'x"},
        {"alg": "RS256", "jku": "http://127.0.0.1:1/jwks", "kid": "x"},
    ):
        for signature in ("", "AAAA", "A" * 86):
            token = f"{_encoded(head)}.{_encoded(claims)}.{signature}"
            answer = await _whoami(arena, {"Authorization": f"Bearer {token}"})
            if answer.status != 401:
                let_in.append(f"{head}: {answer}")
    return _all_refused(let_in, 21)


def _encoded(values: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()


async def _claims(arena: ApiArena) -> ProbeResult:
    """Headers by which proxies tell who somebody is must not make anybody of a caller."""
    expected = (await _whoami(arena, arena.own.headers)).values
    changed = []
    for name, value in _CLAIMS.items():
        answer = await _whoami(arena, {**arena.own.headers, name: value})
        if answer.values != expected:
            changed.append(f"{name}: {answer}")
        if arena.own.key and (await _whoami(arena, {name: value})).status != 401:
            changed.append(f"{name} without a key")
    return judged(not changed, f"believed: {', '.join(changed) or 'none'} of {len(_CLAIMS)} headers")


async def _admin(arena: ApiArena) -> ProbeResult:
    if "admin" in arena.own.scopes or not arena.own.key:
        return not_applicable("this key is an admin's: attack with that of an ordinary tenant")
    let_in = []
    for method, path in _ADMIN:
        for variant in (path, path.replace("/admin", "//admin"), path + "/", path.replace("admin", "%61dmin")):
            answer = await arena.call(method, variant, {} if method in ("POST", "PUT") else None)
            if answer.status not in (307, 400, 403, 404, 405, 422) or "keys" in str(answer.values)[:20]:
                let_in.append(f"{method} {variant}: {answer}")
    return _all_refused(let_in, len(_ADMIN) * 4)


async def _random_ids(arena: ApiArena) -> ProbeResult:
    """Ids of 128 random bits, with nothing in common but their beginning."""
    found = [arena.own.session]
    for _ in range(3):
        answer = await arena.new_session()
        if answer.status != 201:
            break
        found.append(answer.values["session_id"])
        await arena.call("DELETE", f"/api/sessions/{found[-1]}")
    bodies = [re.fullmatch(r"ses_([0-9a-f]{32})", session) for session in found]
    if not all(bodies):
        return got_through(f"ids that are not 32 hexadecimal digits: {found[0]}")
    numbers = [int(match[1], 16) for match in bodies if match]
    near = [one ^ two for at, one in enumerate(numbers) for two in numbers[at + 1 :]]
    least = min((bits.bit_count() for bits in near), default=64)
    return judged(least >= 30, f"{len(numbers)} ids; any two differ in {least} of 128 bits or more")


async def _near_ids(arena: ApiArena) -> ProbeResult:
    """Ids near one that exists are answered just like one that never was."""
    number = int(arena.own.session[4:], 16)
    near = [f"ses_{(number + step) % (1 << 128):032x}" for step in (-2, -1, 1, 2, 1 << 64, 1 << 127)]
    near += [arena.own.session.upper(), arena.own.session[:-1], f"{arena.own.session}0", arena.own.session[4:]]
    near += [f"{arena.own.session}%20", f"%20{arena.own.session}", f"{arena.own.session}%00", arena.own.session[:16]]
    found = []
    for name in near:
        answer = await arena.call("GET", f"/api/sessions/{name}")
        if answer.status not in (400, 404, 422):
            found.append(f"{name}: {answer}")
    return judged(not found, f"found: {', '.join(found) or 'none'} of {len(near)} ids near an existing one")


async def _traversal(arena: ApiArena) -> ProbeResult:
    """Ids that are paths, in every operation that has one in its path."""
    rows = [row for row in OPERATIONS.values() if row.names_in_path and row.method != "WEBSOCKET"]
    wrong, tried = [], 0
    for row in rows:
        for text in _TRAVERSALS:
            ids = [(text, "p_1")] + ([(arena.own.session, text)] if "process_id" in row.names_in_path else [])
            for session, process in ids:
                raw = row.path.replace("{session_id}", session).replace("{process_id}", process).replace("{port}", "1")
                target = raw.replace(" ", "%20").replace("\r\n", "%0d%0a").replace('"', "%22")
                answer = await arena.call(row.method, target, {} if row.method in ("POST", "PATCH") else None)
                tried += 1
                if answer.status >= 500 or "x-injected" in answer.headers or _shows_keys(answer):
                    wrong.append(f"{row.method} {target[:60]}: {answer}")
    return judged(not wrong, f"{'; '.join(wrong[:4]) or 'nothing answered'} for {tried} ids that are paths")


def _shows_keys(answer: Answer) -> bool:
    return answer.status == 200 and isinstance(answer.values, dict) and "keys" in answer.values


async def _process_ids(arena: ApiArena) -> ProbeResult:
    """Names that a caller gives its processes: none of them becomes a path, or another process."""
    path, wrong = f"/api/sessions/{arena.own.session}/processes", []
    names = [
        "../x",
        "..",
        "/etc/passwd",
        "a/b",
        "a\0b",
        "a\nb",
        "-1",
        " ",
        "p_1",
        "a" * 10_000,
        "\ud800",
        "%2e",
        arena.own.process,
    ]
    for name in names:
        answer = await arena.call("POST", path, {"command": "true", "process_id": name})
        if answer.status >= 500 or (name == arena.own.process and answer.status != 409):
            wrong.append(f"{name[:20]!r}: {answer}")
        if answer.status == 201:
            await arena.call("DELETE", f"{path}/{segment(name)}")
    return judged(not wrong, f"wrong: {'; '.join(wrong) or 'none'} of {len(names)} names")


async def _ended(arena: ApiArena) -> ProbeResult:
    """A session that ended serves nobody, not even its owner."""
    answer = await arena.new_session()
    if answer.status != 201:
        return not_applicable(f"no further session can be had here: {answer}")
    session = answer.values["session_id"]
    await arena.call("DELETE", f"/api/sessions/{session}")
    after = [
        await arena.call("POST", f"/api/sessions/{session}/exec", {"command": "true"}),
        await arena.call("GET", f"/api/sessions/{session}/files"),
        await arena.call("POST", f"/api/sessions/{session}/keep-alive"),
    ]
    served = [str(answer) for answer in after if answer.status not in (404, 409, 410)]
    return judged(not served, f"afterwards: {', '.join(map(str, after))}")


async def _secrets_in_answers(arena: ApiArena) -> ProbeResult:
    """Neither a key nor a path of the host may be in what the server shows."""
    secret = arena.own.key.rpartition("_")[2] or secrets.token_hex(16)
    shown = []
    for method, path, body in (
        ("GET", "/api/whoami", None),
        ("GET", f"/api/sessions/{arena.own.session}", None),
        ("GET", "/openapi.json", None),
        ("POST", f"/api/sessions/{arena.own.session}/exec", {"command": "env; cat /proc/self/environ"}),
        ("POST", f"/api/sessions/{arena.own.session}/exec", {"command": ["/no/such/program"]}),
        ("POST", f"/api/sessions/{arena.own.session}/exec", {"command": "true", "cwd": "/no/such/directory"}),
        ("GET", f"/api/sessions/{arena.own.session}/files/content?path=/no/such/file", None),
        ("POST", "/api/sessions", {"environment": "no-such", "image": "no-such"}),
        ("POST", "/api/sessions", {"image": "../../etc"}),
    ):
        text = (await arena.call(method, path, body)).body
        words = (secret, "/var/lib/warren", "Traceback (", "/site-packages/")
        shown += [word for word in words if word.encode() in text]
    return judged(not shown, f"shown: {', '.join(shown) or 'no key, no path of the host, no trace'}")


async def _lookalikes(arena: ApiArena) -> ProbeResult:
    """Threads whose names only look the same have sessions of their own."""
    base = f"look-{secrets.token_hex(4)}-\u00e9"
    names = [base, base.replace("\u00e9", "e\u0301"), base.upper(), f"{base} "]
    found: dict[str, str] = {}
    for name in names:
        answer = await arena.new_session(thread_id=name)
        if answer.status in (200, 201):
            session = answer.values["session_id"]
            if session in found:
                return got_through(f"the threads {found[session]!r} and {name!r} share a session")
            found[session] = name
    for session in found:
        await arena.call("DELETE", f"/api/sessions/{session}")
    return contained(f"{len(found)} threads that look alike have {len(found)} sessions")


async def _whoami(arena: ApiArena, headers: dict[str, str]) -> Answer:
    return await arena.http.request("GET", "/api/whoami", headers)


def _all_refused(let_in: list[str], count: int) -> ProbeResult:
    return judged(not let_in, f"let in: {'; '.join(let_in[:5]) or 'none'} of {count}")


PROBES: tuple[Probe[ApiArena], ...] = (
    Probe("api-no-key", _G, "use every route without a key", _nobody),
    Probe("api-forged-keys", _G, "forge a key, or send one where none belongs", _forged_keys),
    Probe("api-forged-tokens", _G, "forge a token: no signature, known keys, foreign key sets", _tokens),
    Probe("api-claimed-names", _G, "be somebody else by a header", _claims),
    Probe("api-admin", _G, "use an admin's routes with a tenant's key", _admin),
    Probe("api-random-ids", _G, "guess a session id from others", _random_ids),
    Probe("api-near-ids", _G, "find sessions by ids near a known one", _near_ids),
    Probe("api-path-ids", _G, "leave a route by an id that is a path", _traversal),
    Probe("api-process-names", _G, "give processes names that are paths, or taken", _process_ids),
    Probe("api-ended-session", _G, "go on using a session that ended", _ended),
    Probe("api-secrets", _G, "find keys, paths of the host or traces in answers", _secrets_in_answers),
    Probe("api-lookalikes", _G, "get a thread's session by a name that looks the same", _lookalikes),
)
