"""Requests that cost the server much: its other callers must not notice.

While an attack runs, /health is asked again and again. Its longest answer is what a request of any other caller would
have had to wait, because one event loop serves all of them.
"""

import asyncio
import contextlib
import io
import json
import statistics
import tarfile
import time
from collections.abc import Awaitable, Callable

from warren_attack.probe import (
    Group,
    Probe,
    ProbeResult,
    ProbeVerdict,
    contained,
    got_through,
    not_applicable,
    undecided,
)
from warren_attack.warren.api.arena import OTHER_KEY, ApiArena, Health
from warren_attack.warren.api.raw_http import Answer
from warren_attack.warren.fair_share import Phase, Round, judge, processor_s

_G = Group.API_LOAD
_MIB = 1 << 20
_QUIET_S = 0.4
MAY_WAIT_S = 0.5
_SURE_S = 4 * MAY_WAIT_S
_QUIET_WAIT_S = 0.15
_OTHERS = 0.4
_MANY = 30
Load = Callable[[ApiArena], Awaitable[list[Answer]]]


def judge_lag(quiet: list[float], busy: list[float], others: float = 0.0) -> ProbeResult:
    """The longest waits before and during each round, and the cores that other programs used before.

    A breach is what each round shows. On a machine that is busy with other things anything may take some time: a wait
    that could be due to that decides nothing.
    """
    figures = f"/health took up to {min(busy) * 1000:.0f} ms, and {min(quiet) * 1000:.0f} ms before"
    if min(busy) <= MAY_WAIT_S:
        return contained(figures)
    is_quiet = max(quiet) <= _QUIET_WAIT_S and others <= _OTHERS
    if is_quiet or min(busy) > _SURE_S:
        return got_through(f"{figures}, in each of {len(busy)} rounds")
    return undecided(
        f"{figures} (and {max(quiet) * 1000:.0f} ms in the other round); other programs use {others:.1f} cores"
    )


def _loaded(id: str, tries: str, load: Load) -> Probe[ApiArena]:
    async def run(arena: ApiArena) -> ProbeResult:
        quiet, busy, others = list[float](), list[float](), 0.0
        while True:
            used, started = _used_s(arena), time.monotonic()
            async with arena.health() as before:
                await asyncio.sleep(_QUIET_S)
            others = max(others, (_used_s(arena) - used) / (time.monotonic() - started))
            async with arena.health() as during:
                answers = await load(arena)
            quiet.append(before.worst)
            busy.append(during.worst)
            if broken := _broken(answers, during):
                return got_through(f"{broken}; /health took up to {during.worst * 1000:.0f} ms")
            outcome = judge_lag(quiet, busy, others)
            if outcome.verdict is ProbeVerdict.CONTAINED or len(busy) == 2:
                return ProbeResult(outcome.verdict, f"{outcome.evidence}; {_counted(answers)}")

    return Probe(id, _G, tries, run)


def _used_s(arena: ApiArena) -> float:
    """Processor time of everything but this process on the machine of the server; 0 where that is another one."""
    return processor_s() if arena.http.host in ("localhost", "127.0.0.1", "::1") else 0.0


def _broken(answers: list[Answer], health: Health) -> str:
    errors = [str(answer) for answer in answers if answer.status >= 500 and answer.status not in (503, 507)]
    if errors:
        return f"{len(errors)} of {len(answers)} requests gave {errors[0]}"
    return f"/health failed {health.failures} times" if health.failures else ""


def _counted(answers: list[Answer]) -> str:
    counts: dict[int, int] = {}
    for answer in answers:
        counts[answer.status] = counts.get(answer.status, 0) + 1
    size = sum(len(answer.body) for answer in answers) // _MIB
    return ", ".join(f"{count} x {status}" for status, count in counts.items()) + f", {size} MiB came back"


def _path(arena: ApiArena, rest: str) -> str:
    return f"/api/sessions/{arena.own.session}/{rest}"


async def _exec(arena: ApiArena, body: bytes, **query: str) -> Answer:
    return await arena.call("POST", _path(arena, "exec"), body, query=query)


def _command(line: str, **values: object) -> bytes:
    return json.dumps({"command": line, "timeout_s": 20, **values}).encode()


# -- output


async def _endless(arena: ApiArena) -> list[Answer]:
    """An endless output that is waited for, and one whose stream is not read."""
    body = _command("yes", timeout_s=2)
    events = {"Accept": "text/event-stream"}
    streams = [
        arena.call("POST", _path(arena, "exec"), body, headers=events, most=4 * _MIB),
        arena.call("POST", _path(arena, "exec"), body, headers=events, most=1),
    ]
    return list(await asyncio.gather(_exec(arena, body), *streams))


async def _binary(arena: ApiArena) -> list[Answer]:
    """The most that can be asked for: bytes that need six characters each as text."""
    body = _command("head -c 40000000 /dev/zero", keep_bytes=32 * _MIB)
    answer = await _exec(arena, body)
    if answer.status == 422:
        answer = await _exec(arena, _command("head -c 40000000 /dev/zero", keep_bytes=4 * _MIB))
    return [answer]


async def _binary_at_once(arena: ApiArena) -> list[Answer]:
    body = _command("head -c 9000000 /dev/urandom", keep_bytes=4 * _MIB)
    return list(await asyncio.gather(*(_exec(arena, body) for _ in range(8)), _exec(arena, body, encoding="base64")))


async def _kept_output(arena: ApiArena) -> list[Answer]:
    started = await arena.call("POST", _path(arena, "processes"), _command("head -c 20000000 /dev/urandom"))
    if started.status != 201:
        return [started]
    path = _path(arena, f"processes/{started.values['process_id']}")
    await arena.call("GET", f"{path}/wait", query={"timeout_s": 20})
    query = {"limit": str(8 * _MIB), "encoding": "text"}
    answers = await asyncio.gather(*(arena.call("GET", f"{path}/output", query=query) for _ in range(6)))
    await arena.call("DELETE", path)
    return list(answers)


async def _unread_streams(arena: ApiArena) -> list[Answer]:
    head = {**arena.own.headers, "Accept": "text/event-stream", "Content-Type": "application/json"}
    body = _command("yes", timeout_s=3)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(_MANY):
            _, writer = await stack.enter_async_context(arena.http.connection())
            data = arena.http.head("POST", _path(arena, "exec"), {**head, "Content-Length": str(len(body))}) + body
            writer.write(data)
        await asyncio.sleep(2)
    return []


# -- many, and big


async def _commands_at_once(arena: ApiArena) -> list[Answer]:
    body = _command(f": {'a' * (_MIB - 1024)}")
    return list(await asyncio.gather(*(_exec(arena, body) for _ in range(_MANY))))


async def _variables_at_once(arena: ApiArena) -> list[Answer]:
    """Each is written to the audit record, and looked through for secrets."""
    variables = {f"secret_{index}": f"value-{index}" for index in range(40_000)}
    body = _command("true", env=variables)
    return list(await asyncio.gather(*(_exec(arena, body) for _ in range(6))))


async def _json_at_once(arena: ApiArena) -> list[Answer]:
    deep, wide = b"[" * 1_500_000, json.dumps({f"f{index}": [] for index in range(200_000)}).encode()
    return list(await asyncio.gather(*(_exec(arena, body) for body in (deep, wide) * 6)))


async def _rules_at_once(arena: ApiArena) -> list[Answer]:
    """The most rules that there can be, all of names that have to be converted."""
    names = [f"{number}.{'ä' * 30}.{'漢' * 10}.example" for number in range(1000)]
    body = {"allow": [f"b{name}" for name in names], "deny": [f"c{name}" for name in names]}
    answers = await asyncio.gather(*(arena.call("PUT", _path(arena, "network"), body) for _ in range(6)))
    await arena.call("PUT", _path(arena, "network"), {"allow": []})
    return list(answers)


async def _processes_at_once(arena: ApiArena) -> list[Answer]:
    path = _path(arena, "processes")
    answers = list(await asyncio.gather(*(arena.call("POST", path, _command("sleep 60")) for _ in range(100))))
    made = [answer.values["process_id"] for answer in answers if answer.status == 201]
    answers += await asyncio.gather(*(arena.call("GET", path) for _ in range(10)))
    for at in range(0, len(made), 20):
        await asyncio.gather(*(arena.call("DELETE", f"{path}/{name}") for name in made[at : at + 20]))
    return answers


async def _creates_at_once(arena: ApiArena) -> list[Answer]:
    made = await asyncio.gather(*(arena.new_session(max_lifetime_s=60) for _ in range(12)))
    ids = [answer.values["session_id"] for answer in made if answer.status == 201]
    await asyncio.gather(*(arena.call("DELETE", f"/api/sessions/{name}") for name in ids))
    return list(made)


async def _keys_at_once(arena: ApiArena) -> list[Answer]:
    """Answers that are kept for repeated requests."""
    body = _command("head -c 300000 /dev/urandom", keep_bytes=300_000)
    headers = [{"Idempotency-Key": f"load-{arena.own.marker}-{time.monotonic_ns()}-{index}"} for index in range(_MANY)]
    return list(
        await asyncio.gather(*(arena.call("POST", _path(arena, "exec"), body, headers=each) for each in headers))
    )


# -- files


async def _links(arena: ApiArena) -> list[Answer]:
    """Made by an archive, so that the image need have no program for it."""
    tar = await asyncio.to_thread(_tar_of_links)
    made = await arena.call("PUT", _path(arena, "files/archive"), tar, query={"path": "/workspace/links"})
    listed = await arena.call("GET", _path(arena, "files"), query={"path": "/workspace/links"}, most=256 * _MIB)
    await _exec(arena, _command("rm -rf /workspace/links"))
    return [made, listed]


def _tar_of_links() -> bytes:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for index in range(5000):
            info = tarfile.TarInfo(f"{index:0200}")
            info.type, info.linkname = tarfile.SYMTYPE, "x" * 1000
            tar.addfile(info)
    return room.getvalue()


async def _searches(arena: ApiArena) -> list[Answer]:
    """Expressions that take very long on the right text."""
    await _exec(arena, _command("head -c 200000 /dev/zero | tr '\\0' a > /workspace/long-line"))
    queries = [
        {"pattern": "(a*)*b", "timeout_s": "2"},
        {"pattern": "(a|a|a|a)*(a|aa)*c", "timeout_s": "2"},
        {"pattern": "(((a{1,100}){1,100}){1,100})", "timeout_s": "2"},
        {"glob": "{a,b}" * 60, "timeout_s": "2"},
        {"glob": "**/" * 300 + "*", "timeout_s": "2"},
    ]
    answers = await asyncio.gather(*(arena.call("GET", _path(arena, "files/search"), query=each) for each in queries))
    await _exec(arena, _command("rm -f /workspace/long-line"))
    return list(answers)


async def _headers_in_archives(arena: ApiArena) -> list[Answer]:
    """Global headers of a tar hold for all members that follow: they must not pile up."""
    tar = await asyncio.to_thread(_tar_of_headers)
    query = {"path": "/workspace/headers"}
    answers = [await arena.call("PUT", _path(arena, "files/archive"), tar, query=query, timeout_s=80)]
    await _exec(arena, _command("rm -rf /workspace/headers"))
    return answers


def _tar_of_headers() -> bytes:
    room = io.BytesIO()
    for index in range(60):
        values = {f"key{index}-{name}": "v" * 1000 for name in range(100)}
        room.write(tarfile.TarInfo.create_pax_global_header(values))
    for index in range(2000):
        room.write(tarfile.TarInfo(f"member-{index}").tobuf(tarfile.PAX_FORMAT))
    room.write(bytes(1024))
    return room.getvalue()


# -- connections


async def _slow_clients(arena: ApiArena) -> list[Answer]:
    """Heads that never end, and bodies that come a byte at a time."""
    head = arena.http.head("POST", _path(arena, "exec"), {**arena.own.headers, "Content-Length": "1000"})
    async with contextlib.AsyncExitStack() as stack:
        writers = []
        for index in range(200):
            _, writer = await stack.enter_async_context(arena.http.connection())
            writer.write(head if index % 2 else head[:40])
            writers.append(writer)
        for _ in range(10):
            for writer in writers:
                if not writer.is_closing():
                    writer.write(b"x")
            await asyncio.sleep(0.1)
    return []


async def _connections(arena: ApiArena) -> list[Answer]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            ends = await asyncio.gather(
                *(stack.enter_async_context(arena.http.connection()) for _ in range(50)), return_exceptions=True
            )
            if any(isinstance(end, BaseException) for end in ends):
                break
        return [await arena.call("GET", "/api/whoami")]


async def _gone_clients(arena: ApiArena) -> list[Answer]:
    """Callers that leave in the middle of everything."""
    body = _command("sleep 5; yes | head -c 1000000")
    headers = {**arena.own.headers, "Content-Type": "application/json", "Content-Length": str(len(body))}
    data = arena.http.head("POST", _path(arena, "exec"), headers) + body
    for _ in range(3):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(_MANY):
                _, writer = await stack.enter_async_context(arena.http.connection())
                writer.write(data)
            await asyncio.sleep(0.2)
    return []


# -- the other tenant


async def _beside(arena: ApiArena) -> ProbeResult:
    """What the other tenant's requests take while this one sends thirty at a time, without a pause.

    Its fair share is what it gets beside a tenant that sends them one after the other.
    """
    if not arena.has_two_tenants:
        return not_applicable(f"needs a second tenant: set {OTHER_KEY}")
    rounds: list[Round] = []
    while True:
        before, during, after = [await _other_at_work(arena, callers) for callers in (1, _MANY, 1)]
        rounds.append(Round(before, during, after))
        waits = [max(each.during.seconds.values()) for each in rounds]
        if min(waits) <= MAY_WAIT_S:
            return contained(f"the slowest of the other tenant's requests takes {min(waits) * 1000:.0f} ms")
        outcome = judge(rounds)
        if outcome.verdict is ProbeVerdict.CONTAINED or len(rounds) == 2:
            return outcome


async def _other_at_work(arena: ApiArena, callers: int) -> Phase:
    stop = asyncio.Event()
    path, commands, sessions = f"/api/sessions/{arena.other.session}", list[float](), list[float]()
    calling = [asyncio.ensure_future(_call_on(arena, stop)) for _ in range(callers)]
    try:
        await asyncio.sleep(0.2)
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            commands.append((await arena.run("true", tenant=arena.other)).seconds)
            sessions.append((await arena.call("GET", path, tenant=arena.other)).seconds)
    finally:
        stop.set()
        await asyncio.gather(*calling)
    return Phase({"command": statistics.median(commands), "session": statistics.median(sessions)})


async def _call_on(arena: ApiArena, stop: asyncio.Event) -> None:
    body = _command("true")
    while not stop.is_set():
        with contextlib.suppress(OSError, TimeoutError):
            await _exec(arena, body)


PROBES: tuple[Probe[ApiArena], ...] = (
    _loaded("api-endless-output", "endless output, waited for, streamed, not read", _endless),
    _loaded("api-binary-output", "the most binary output there can be in one answer", _binary),
    _loaded("api-binary-at-once", "nine binary outputs at once", _binary_at_once),
    _loaded("api-kept-output", "read the kept output of a process, six times at once", _kept_output),
    _loaded("api-unread-streams", "30 streams that nobody reads", _unread_streams),
    _loaded("api-commands-at-once", "30 commands of 1 MiB at once", _commands_at_once),
    _loaded("api-variables", "six commands with 40,000 variables", _variables_at_once),
    _loaded("api-json-at-once", "twelve deep and wide documents at once", _json_at_once),
    _loaded("api-rules-at-once", "2,000 network rules of international names, six times at once", _rules_at_once),
    _loaded("api-processes-at-once", "100 processes at once, and lists of them", _processes_at_once),
    _loaded("api-creates-at-once", "twelve sessions at once", _creates_at_once),
    _loaded("api-keys-at-once", "30 answers to be kept for a day", _keys_at_once),
    _loaded("api-long-list", "list a directory of 5,000 long links", _links),
    _loaded("api-searches", "search by expressions that take very long", _searches),
    _loaded("api-archive-headers", "a tar of 6,000 global headers and 2,000 members", _headers_in_archives),
    _loaded("api-slow-clients", "200 clients that send a byte at a time", _slow_clients),
    _loaded("api-connections", "400 connections that say nothing", _connections),
    _loaded("api-gone-clients", "90 callers that leave in the middle", _gone_clients),
    Probe("api-beside", _G, "keep another tenant waiting by 30 commands at a time", _beside),
)
