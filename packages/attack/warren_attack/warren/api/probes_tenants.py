"""One tenant against another, by every operation there is, and by everything that has a name."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import wraps

from warren.model.api import OPERATIONS, Answers, Makes, Operation, SessionIn
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, not_applicable, undecided
from warren_attack.warren.api.arena import MOUNTED_AT, OTHER_KEY, VOLUME, ApiArena, Tenant
from warren_attack.warren.api.raw_http import Answer
from warren_attack.warren.api.requests import ApiRequest, request_for

_G = Group.API_TENANTS
_NOBODYS = f"ses_{'0' * 32}"
Run = Callable[[ApiArena], Awaitable[ProbeResult]]


def _two_tenants(run: Run) -> Run:
    @wraps(run)
    async def checked(arena: ApiArena) -> ProbeResult:
        if not arena.has_two_tenants:
            return not_applicable(f"needs a second tenant: set {OTHER_KEY}")
        return await run(arena)

    return checked


def _across(row: Operation) -> Probe[ApiArena]:
    """The request is right: it works on the attacker's own session, and not on the other tenant's.

    What comes back is what a session that never was gives, or else it would tell that this one exists.
    """

    @_two_tenants
    async def run(arena: ApiArena) -> ProbeResult:
        other = await _send(arena, row, request_for(row, arena.other.session, arena.other.process))
        nobody = await _send(arena, row, request_for(row, _NOBODYS, "p_1"))
        if arena.other.marker.encode() in other.body:
            return got_through(f"the other tenant's data came back: {other}")
        if row.name == "flat_cleanup":  # it succeeds for what never was, too
            return judged((other.status, nobody.status) == (200, 200), f"the other's {other}, nobody's {nobody}")
        if other.status != 404 or (other.status, other.values["code"]) != (nobody.status, nobody.values["code"]):
            return got_through(f"the other tenant's session gives {other}, one that never was {nobody}")
        session, process = await _own(arena, row)
        own = await _send(arena, row, request_for(row, session, process))
        if own.status not in (101, 200, 201, 202, 204):
            return undecided(f"the same request is wrong for an own session, too: {own}")
        if "process_id" in row.names_in_path:
            mixed = await _send(arena, row, request_for(row, arena.own.session, arena.other.process))
            if mixed.status != 404:
                return got_through(f"the other's process id in an own session gives {mixed}")
        return contained(f"own {own.status}, the other's {other}, like one that never was")

    return Probe(f"across-{row.name.replace('_', '-')}", _G, f"{row.summary}: the other tenant's", run)


async def _own(arena: ApiArena, row: Operation) -> tuple[str, str]:
    """The attacker's own session and process; those that the operation ends are made for it."""
    if row.name in ("delete_session", "flat_cleanup"):
        answer = await arena.new_session()
        return str((answer.values or {}).get("session_id", "")), ""
    await arena.run("cd /workspace && rm -rf attack-* && touch attack-file attack-file-2")
    if row.name == "forward_socket":
        at, command = f"/api/sessions/{arena.own.session}", "python3 -m http.server 3000"
        await arena.call("POST", f"{at}/processes", {"command": command})
        await arena.call("GET", f"{at}/ports", query={"wait_for": 3000, "timeout_s": 60})
    if "contexts" in row.path or row.name == "get_execution":
        at = f"/api/sessions/{arena.own.session}"
        await arena.call("POST", f"{at}/code", {"code": "true", "language": "bash"})
        if row.name == "get_execution":  # what it would be for a cell that runs
            cell = {"command": ["/.warren/agent", "cell", "--pid", "1", "ctx_bash"]}
            started = await arena.call("POST", f"{at}/processes", cell)
            return arena.own.session, str((started.values or {}).get("process_id", ""))
    if row.name in ("attach_volume", "detach_volume"):
        at = f"/api/sessions/{arena.own.session}/volumes"
        await arena.call("DELETE", at, query={"path": MOUNTED_AT})
        await arena.call("POST", "/api/volumes", {"name": VOLUME, "size_mb": 16})
        if row.name == "detach_volume":
            await arena.call("POST", at, {"name": VOLUME, "path": MOUNTED_AT})
    process = await arena.start() if row.name in ("kill_process", "forget_process") else arena.own.process
    return arena.own.session, process


async def _send(arena: ApiArena, row: Operation, request: ApiRequest) -> Answer:
    if request.method == "WEBSOCKET":
        return await arena.socket(request.path, request.body)
    most = 1 if row.answers is Answers.EVENTS else 1 << 20
    return await arena.call(
        request.method, request.path, request.body, query=request.query, headers=request.headers, most=most
    )


@_two_tenants
async def _lists(arena: ApiArena) -> ProbeResult:
    seen = []
    other = arena.other
    queries = ({"tenant": other.name}, {"all": "true"}, {"thread_id": other.thread}, {"session_ids": other.session})
    for path in ("/api/sessions", "/sessions", "/api/metrics", "/api/audit", "/api/usage", "/api/webhooks"):
        for query in ({}, *queries):
            answer = await arena.call("GET", path, query=query)
            # The record of what this tenant did has the other's ids: it has just asked for them.
            words = (f'"tenant":"{arena.other.name}"', *(() if "audit" in path else (arena.other.session,)))
            if any(word in answer.body.decode(errors="replace").replace(": ", ":") for word in words):
                seen.append(f"{path} {query}")
    return judged(not seen, f"the other tenant shows in: {', '.join(seen) or 'no list'}")


@_two_tenants
async def _threads(arena: ApiArena) -> ProbeResult:
    """The same thread id is another thread with another tenant."""
    made = await arena.new_session(thread_id=arena.other.thread)
    if made.status not in (200, 201):
        return undecided(f"no further session can be had here: {made}")
    answer = await arena.call("POST", "/execute", {"thread_id": arena.other.thread, "command": "cat /workspace/secret"})
    await arena.call("DELETE", f"/api/sessions/{made.values['session_id']}")
    if made.values["session_id"] == arena.other.session or arena.other.marker.encode() in answer.body:
        return got_through("the other tenant's session came back for its thread id")
    return contained(f"a session of our own came back, and its command gave {answer}")


@_two_tenants
async def _idempotent_commands(arena: ApiArena) -> ProbeResult:
    """The answer that is kept for one tenant's Idempotency-Key is not given to another tenant."""
    key = {"Idempotency-Key": f"attack-{secrets.token_hex(8)}"}
    body = {"command": "cat /workspace/secret; date +%N"}
    first = await _keyed(arena, arena.other, body, key)
    second = await _keyed(arena, arena.own, body, key)
    again = await _keyed(arena, arena.other, body, key)
    if arena.other.marker.encode() in second.body or arena.own.marker.encode() in again.body:
        return got_through("a tenant was given the answer that was kept for the other")
    if arena.own.marker.encode() not in second.body or first.body != again.body:
        return got_through(f"the other's key is felt: {first}, {second}, {again}")
    return contained("each tenant has its own answer for the same Idempotency-Key")


async def _keyed(arena: ApiArena, tenant: Tenant, body: dict[str, str], key: dict[str, str]) -> Answer:
    return await arena.call("POST", f"/api/sessions/{tenant.session}/exec", body, tenant=tenant, headers=key)


@_two_tenants
async def _idempotent_creates(arena: ApiArena) -> ProbeResult:
    key = {"Idempotency-Key": f"attack-{secrets.token_hex(8)}"}
    answers = [
        await arena.call("POST", "/api/sessions", {"max_lifetime_s": 60}, tenant=tenant, headers=key, timeout_s=120)
        for tenant in (arena.other, arena.own)
    ]
    ids = [str((answer.values or {}).get("session_id", "")) for answer in answers]
    for tenant, session in zip((arena.other, arena.own), ids, strict=True):
        if session:
            await arena.call("DELETE", f"/api/sessions/{session}", tenant=tenant)
    if not all(ids):
        return undecided(f"no further session can be had here: {', '.join(map(str, answers))}")
    return judged(ids[0] != ids[1], f"the same key made {len(set(ids))} sessions for two tenants")


@_two_tenants
async def _webhooks(arena: ApiArena) -> ProbeResult:
    made = await arena.call("POST", "/api/webhooks", {"url": "https://example.com/hook"}, tenant=arena.other)
    if made.status != 201:
        return not_applicable(f"webhooks cannot be made here: {made}")
    path = f"/api/webhooks/{made.values['id']}"
    try:
        answers = [
            await arena.call(method, target)
            for method, target in (
                ("GET", path),
                ("POST", f"{path}/test"),
                ("GET", f"{path}/deliveries"),
                ("DELETE", path),
            )
        ]
        there = await arena.call("GET", path, tenant=arena.other)
    finally:
        await arena.call("DELETE", path, tenant=arena.other)
    held = {answer.status for answer in answers} == {404} and there.status == 200
    return judged(held, f"the other tenant's webhook gives {', '.join(map(str, answers))}")


@_two_tenants
async def _secrets(arena: ApiArena) -> ProbeResult:
    value, path = secrets.token_hex(16), f"/api/secrets/attack-{secrets.token_hex(4)}"
    body = {"value": value, "hosts": ["api.example.com"], "header": "Authorization"}
    made = await arena.call("PUT", path, body, tenant=arena.other)
    if made.status != 200:
        return not_applicable(f"secrets cannot be set here: {made}")
    name = path.rpartition("/")[2]
    try:
        answers = [
            await arena.call("GET", path),
            await arena.call("DELETE", path),
            await arena.call("POST", "/api/sessions", {"secrets": [name], "max_lifetime_s": 60}),
            await arena.call("GET", "/api/secrets"),
        ]
        own = [await arena.call("GET", where, tenant=arena.other) for where in (path, "/api/secrets")]
    finally:
        await arena.call("DELETE", path, tenant=arena.other)
    shown = [str(answer.values) for answer in (made, *answers, *own)]
    held = (
        [answer.status for answer in answers[:3]] == [404, 404, 422] and name not in shown[4] and own[0].status == 200
    )
    return judged(
        held and not any(value in text for text in shown),
        f"the other tenant's secret gives {', '.join(map(str, answers[:3]))}, and no answer holds a value",
    )


@_two_tenants
async def _race(arena: ApiArena) -> ProbeResult:
    """Requests of both tenants on one connection, mixed, and the other's key with one's own session."""
    wrong = []
    for _ in range(10):
        mine, theirs = await asyncio.gather(
            arena.run("cat /workspace/secret"), arena.run("cat /workspace/secret", tenant=arena.other)
        )
        if arena.other.marker.encode() in mine.body or arena.own.marker.encode() in theirs.body:
            wrong.append("an answer went to the wrong tenant")
    target = f"/api/sessions/{arena.other.session}/files/content?path=secret"
    theirs_head = arena.http.head("GET", target, arena.other.headers)
    mine_head = arena.http.head("GET", target, {**arena.own.headers, "Connection": "close"})
    answer = await arena.http.send(theirs_head + mine_head)
    if answer.status != 200 or arena.other.marker.encode() not in answer.body:
        return undecided(f"the other's own request gives {answer}")
    async with arena.http.connection() as (reader, writer):
        writer.write(theirs_head + mine_head)
        async with asyncio.timeout(20):
            text = await reader.read()
    if text.count(arena.other.marker.encode()) != 1:
        wrong.append("a second request on the other's connection was taken for theirs")
    return judged(not wrong, f"{'; '.join(sorted(set(wrong))) or 'every answer went to its own tenant'}")


@_two_tenants
async def _untouched(arena: ApiArena) -> ProbeResult:
    """After all of the above: the other tenant's session is as it was."""
    other = arena.other
    session = await arena.call("GET", f"/api/sessions/{other.session}", tenant=other)
    process = await arena.call("GET", f"/api/sessions/{other.session}/processes/{other.process}", tenant=other)
    files = await arena.run("ls -A /workspace; cat /workspace/secret", tenant=other)
    held = session.status == process.status == 200 and process.values["running"]
    held = held and not session.values["metadata"] and files.values["stdout"] == f"secret\n{other.marker}"
    return judged(held, f"session {session}, process {process}, files {(files.values or {}).get('stdout', '')!r:.120}")


def _is_across(row: Operation) -> bool:
    return (
        row.session_in not in (SessionIn.HEADER, SessionIn.HOST)
        and row.makes is not Makes.SESSION
        and (row.session_in is not SessionIn.NOWHERE or "session_id" in row.names_in_path)
    )


PROBES: tuple[Probe[ApiArena], ...] = (
    *(_across(row) for row in OPERATIONS.values() if _is_across(row)),
    Probe("across-lists", _G, "find the other tenant in lists and records", _lists),
    Probe("across-threads", _G, "get the other tenant's session by its thread id", _threads),
    Probe("across-command-keys", _G, "get the other's answer by its Idempotency-Key", _idempotent_commands),
    Probe("across-create-keys", _G, "get the other's session by its Idempotency-Key", _idempotent_creates),
    Probe("across-webhooks", _G, "see, use or delete the other tenant's webhook", _webhooks),
    Probe("across-secrets", _G, "see, use, replace or delete the other tenant's secret", _secrets),
    Probe("across-connections", _G, "get the other's answers by racing it, or on its connection", _race),
    Probe("across-untouched", _G, "have changed anything of the other tenant's by all this", _untouched),
)
