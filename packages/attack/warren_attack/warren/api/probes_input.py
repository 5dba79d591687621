"""Requests that no honest client sends: wrong bytes in every field, and wrong HTTP."""

import asyncio
import contextlib
import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from warren.http.dispatch import HANDLERS
from warren.model.api import OPERATIONS, Operation
from warren_attack.probe import Group, Probe, ProbeResult, judged, not_applicable, undecided
from warren_attack.warren.api.arena import ApiArena, upgrade_headers
from warren_attack.warren.api.raw_http import Answer
from warren_attack.warren.api.requests import request_for

_G = Group.API_INPUT
_MIB = 1 << 20
_WRONG: tuple[Any, ...] = (None, [[]], {"a": {"b": []}}, True, -1, 1 << 70, "x" * 70_000)
_ENDS = frozenset({"delete_session", "flat_cleanup", "kill_process", "forget_process"})


# -- fields


def _fields(model: type[BaseModel] | None) -> Iterator[str]:
    if model is not None:
        yield from model.model_fields


async def _poisoned(arena: ApiArena, texts: tuple[str, ...], *, query: bool) -> ProbeResult:
    """Puts each text into each field of each operation, one at a time, in a request that is right otherwise."""
    wrong, tried = [], 0
    for row, name in _targets(query=query):
        request = request_for(row, arena.own.session, arena.own.process)
        for text in texts:
            values, body = dict(request.query), request.body
            if query:
                values[name] = text
            else:
                body = {**(body or {}), name: _shaped(row, name, text)}
            answer = await arena.call(
                request.method, request.path, body, query=values, headers=request.headers, most=1, timeout_s=20
            )
            tried += 1
            if answer.status >= 500 and not _is_honest(answer):
                wrong.append(f"{row.name}.{name}: {answer}")
    return judged(not wrong, f"{'; '.join(wrong[:5]) or 'each is refused or harmless'}, in {tried} fields")


def _targets(*, query: bool) -> Iterator[tuple[Operation, str]]:
    for row in OPERATIONS.values():
        if row.method == "WEBSOCKET" or row.name in _ENDS or row.name in ("create_session", "flat_create_session"):
            continue
        handler = HANDLERS[row.name]
        for name in _fields(handler.query if query else handler.body):
            if name != "timeout_s":
                yield row, name


def _shaped(row: Operation, name: str, text: str) -> Any:
    """The text in the shape that the field has: in a list, as a key or value of a map, or as it is."""
    handler = HANDLERS[row.name]
    assert handler.body is not None
    schema = handler.body.model_json_schema()["properties"][name]
    kinds = {schema.get("type")} | {each.get("type") for each in schema.get("anyOf", ())}
    if "object" in kinds:
        return {text: text}
    return [text] if "array" in kinds and "string" not in kinds else text


def _is_honest(answer: Answer) -> bool:
    """503 and 507 with a code say that the server cannot do it now, which is an answer."""
    return answer.status in (503, 507) and isinstance(answer.values, dict) and "code" in answer.values


async def _nul_fields(arena: ApiArena) -> ProbeResult:
    return await _poisoned(arena, ("\0", "a\0b"), query=False)


async def _nul_queries(arena: ApiArena) -> ProbeResult:
    return await _poisoned(arena, ("\0", "a\0b"), query=True)


async def _odd_texts(arena: ApiArena) -> ProbeResult:
    return await _poisoned(
        arena, ("\ud800", "\r\nX-Injected: 1", "\x1b[2J\u202e\ufeff", "../../../../etc/shadow"), query=False
    )


async def _odd_queries(arena: ApiArena) -> ProbeResult:
    texts = ("\udcff\udcfe", "\r\nX-Injected: 1", "-1", "9" * 400, "1e400", "NaN", "../" * 400 + "etc/shadow")
    return await _poisoned(arena, texts, query=True)


async def _wrong_types(arena: ApiArena) -> ProbeResult:
    wrong, tried = [], 0
    for row, name in _targets(query=False):
        session = arena.own.session
        if row.name == "pause_session":  # one of the values is right for `to_disk`, which ends all processes
            session = str(((await arena.new_session()).values or {}).get("session_id", ""))
        request = request_for(row, session, arena.own.process)
        for value in _WRONG:
            answer = await arena.call(request.method, request.path, {**(request.body or {}), name: value}, most=1)
            tried += 1
            if answer.status >= 500 and not _is_honest(answer):
                wrong.append(f"{row.name}.{name}={value!r:.20}: {answer}")
    return judged(not wrong, f"{'; '.join(wrong[:5]) or 'each is refused or harmless'}, in {tried} tries")


# -- JSON


async def _exec_raw(arena: ApiArena, body: bytes) -> Answer:
    return await arena.call("POST", f"/api/sessions/{arena.own.session}/exec", body, timeout_s=30)


async def _json(arena: ApiArena, bodies: dict[str, bytes], statuses: tuple[int, ...] = (400, 413, 422)) -> ProbeResult:
    answers = {name: await _exec_raw(arena, body) for name, body in bodies.items()}
    wrong = [f"{name}: {answer}" for name, answer in answers.items() if answer.status not in statuses]
    slow = [f"{name}: {answer.seconds:.1f} s" for name, answer in answers.items() if answer.seconds > 5]
    shown = ", ".join(f"{name} {answer}" for name, answer in answers.items())
    return judged(not wrong, f"{'; '.join(wrong) or shown}{'; slow: ' + ', '.join(slow) if slow else ''}"[:600])


async def _huge_json(arena: ApiArena) -> ProbeResult:
    return await _json(
        arena,
        {
            "64 MiB": b'{"command": "' + b"x" * (64 * _MIB) + b'"}',
            "100,000 fields": json.dumps({f"f{index}": index for index in range(100_000)}).encode(),
            "100,000 variables": json.dumps(
                {"command": "true", "env": {f"v{i}": "x" for i in range(100_000)}}
            ).encode(),
            "a million of elements": b'{"command": [' + b'"a",' * 900_000 + b'"a"]}',
            "a number of a million digits": b'{"command": "true", "keep_bytes": ' + b"9" * 1_000_000 + b"}",
        },
        (400, 413, 422, 200),
    )


async def _deep_json(arena: ApiArena) -> ProbeResult:
    deep = 200_000
    return await _json(
        arena,
        {
            "lists": b"[" * deep + b"]" * deep,
            "objects": b'{"a":' * deep + b"1" + b"}" * deep,
            "in a field": b'{"command": ' + b"[" * deep + b"]" * deep + b"}",
            "never closed": b'{"a":[' * deep,
        },
    )


async def _odd_json(arena: ApiArena) -> ProbeResult:
    return await _json(
        arena,
        {
            "NaN": b'{"command": "true", "timeout_s": NaN}',
            "Infinity": b'{"command": "true", "timeout_s": 1e999}',
            "not UTF-8": b'{"command": "\xff\xfe"}',
            "UTF-16": '{"command": "true"}'.encode("utf-16"),
            "a comment": b'{"command": "true" /* x */}',
            "two documents": b'{"command": "true"}{"command": "id"}',
            "nothing": b"",
            "an unknown field": b'{"command": "true", "privileged": true}',
            "a prototype": b'{"command": "true", "__proto__": {"user": "root"}}',
        },
    )


async def _big_command(arena: ApiArena) -> ProbeResult:
    """A command of 1 MiB runs whole or is refused with a reason; it is never cut."""
    size = _MIB - 64
    answer = await arena.run(f"x={'a' * size}; echo ${{#x}}")
    whole = answer.status == 200 and answer.values["stdout"] == f"{size}\n"
    longer = await arena.run("#" * (3 * _MIB) + "\necho cut")
    held = (whole or answer.status in (413, 422)) and longer.status in (200, 413, 422)
    held = held and not (longer.status == 200 and longer.values["stdout"] != "cut\n")
    return judged(held, f"1 MiB: {answer}{' whole' if whole else ''}; 3 MiB: {longer}")


# -- HTTP


async def _raw(arena: ApiArena, head: str, body: bytes = b"") -> Answer:
    key = "".join(f"{name}: {value}\r\n" for name, value in arena.own.headers.items())
    data = head.replace("{host}", arena.http.authority).replace("{key}", key).encode("latin-1") + body
    return await arena.http.send(data, timeout_s=25, most=_MIB)


async def _smuggling(arena: ApiArena) -> ProbeResult:
    """Two lengths for one body: a proxy may believe the other one. Each must be refused, and nothing after it read."""
    hidden = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n\r\n"
    start = f"POST /api/sessions/{arena.own.session}/keep-alive HTTP/1.1\r\nHost: {{host}}\r\n{{key}}"
    heads = {
        "length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        "chunks and length": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
        "two lengths": "Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
        "a list of lengths": "Content-Length: 0, 40\r\n\r\n",
        "a signed length": "Content-Length: +0\r\n\r\n",
        "a negative length": "Content-Length: -1\r\n\r\n",
        "a hexadecimal length": "Content-Length: 0x0\r\n\r\n",
        "a length with a blank": "Content-Length: 1 0\r\n\r\n",
        "an unknown coding": "Transfer-Encoding: xchunked\r\n\r\n",
        "a coding after chunked": "Transfer-Encoding: chunked, identity\r\n\r\n",
        "chunked twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "a tab in the coding": "Transfer-Encoding:\x0bchunked\r\n\r\n",
        "a blank before the colon": "Content-Length : 40\r\n\r\n",
        "a folded line": "X: a\r\n Content-Length: 40\r\n\r\n",
        "a bare line feed": "X: a\nTransfer-Encoding: chunked\r\n\r\n",
        "a bare return": "X: a\rTransfer-Encoding: chunked\r\n\r\n",
        "a NUL": "X: a\0b\r\n\r\n",
        "no name": ": a\r\n\r\n",
    }
    wrong = []
    for name, rest in heads.items():
        answer = await _raw(arena, start + rest, b"0\r\n\r\n" + hidden)
        if answer.status in (200, 204) and b"tenant" in answer.rest + answer.body:
            wrong.append(f"{name}: the hidden request was answered")
        elif answer.status >= 500 or (name in _MUST_BE_REFUSED and answer.status not in _REFUSALS):
            wrong.append(f"{name}: {answer}")
    return judged(not wrong, f"{'; '.join(wrong) or 'nothing hidden was answered'} ({len(heads)} ways)")


_REFUSALS = (0, 400, 401, 408, 411, 413, 501)
_MUST_BE_REFUSED = frozenset(
    {
        *("length and chunks", "chunks and length", "a list of lengths", "a signed length", "a negative length"),
        *("a hexadecimal length", "an unknown coding", "a NUL", "no name"),
    }
)


async def _chunks(arena: ApiArena) -> ProbeResult:
    start = f"PUT /api/sessions/{arena.own.session}/files/content?path=chunked HTTP/1.1\r\nHost: {{host}}\r\n{{key}}"
    start += "Transfer-Encoding: chunked\r\n\r\n"
    bodies = {
        "a negative size": b"-1\r\nx\r\n0\r\n\r\n",
        "a huge size": b"ffffffffffffffffff\r\nx",
        "no digits": b"zz\r\nx\r\n0\r\n\r\n",
        "0x": b"0x1\r\nx\r\n0\r\n\r\n",
        "a long extension": b"1;" + b"e" * 200_000 + b"\r\nx\r\n0\r\n\r\n",
        "no end of a chunk": b"1\r\nxx\r\n0\r\n\r\n",
        "100,000 trailers": b"1\r\nx\r\n0\r\n" + b"T: x\r\n" * 100_000 + b"\r\n",
    }
    answers = {name: await _raw(arena, start, body) for name, body in bodies.items()}
    wrong = [f"{name}: {answer}" for name, answer in answers.items() if answer.status >= 500]
    stored = [name for name in ("a negative size", "a huge size", "no digits") if answers[name].status in (200, 201)]
    return judged(not wrong + stored, f"{'; '.join(wrong + stored) or ', '.join(map(str, answers.values()))}")


async def _headers(arena: ApiArena) -> ProbeResult:
    start = "GET /api/whoami HTTP/1.1\r\nHost: {host}\r\n{key}"
    heads = {
        "one of 1 MiB": f"X: {'a' * _MIB}\r\n\r\n",
        "20,000 of them": "X: a\r\n" * 20_000 + "\r\n",
        "a long name": f"{'X' * 100_000}: a\r\n\r\n",
        "a long target": "",
    }
    answers = {}
    for name, rest in heads.items():
        head = start + rest
        if not rest:
            head = f"GET /api/whoami?{'a' * _MIB} HTTP/1.1\r\nHost: {{host}}\r\n\r\n"
        answers[name] = await _raw(arena, head)
    wrong = [f"{name}: {answer}" for name, answer in answers.items() if answer.status not in (0, 400, 414, 431)]
    return judged(not wrong, f"{'; '.join(wrong) or ', '.join(f'{name} {answer}' for name, answer in answers.items())}")


async def _methods(arena: ApiArena) -> ProbeResult:
    wrong = []
    for method in ("TRACE", "CONNECT", "OPTIONS", "PROPFIND", "get", "GET\tX", "DEBUG", "G" * 5000, "PRI"):
        answer = await _raw(
            arena, f"{method} /api/whoami HTTP/1.1\r\nHost: {{host}}\r\nConnection: close\r\n{{key}}\r\n"
        )
        if answer.status in (200, 201) or (answer.status >= 500 and answer.status != 501):
            wrong.append(f"{method[:10]}: {answer}")
        if "access-control-allow-origin" in answer.headers:
            wrong.append(f"{method[:10]}: it allows other origins")
    for version in ("HTTP/0.9", "HTTP/1.2", "HTTP/9.9", "HTTP/2.0", "FTP/1.1"):
        answer = await _raw(arena, f"GET /api/whoami {version}\r\nHost: {{host}}\r\nConnection: close\r\n{{key}}\r\n")
        if answer.status >= 500 and answer.status != 505:
            wrong.append(f"{version}: {answer}")
    return judged(not wrong, f"{'; '.join(wrong) or 'refused, or answered as usual'}")


async def _hosts(arena: ApiArena) -> ProbeResult:
    """A page that makes its own name resolve to this machine must not be served, nor one from elsewhere."""
    names = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80@localhost", "")
    served = []
    for name in names:
        answer = await arena.http.request("GET", "/api/whoami", arena.own.headers, host=name)
        if answer.status == 200:
            served.append(f"Host {name!r}")
    if served and arena.http.host not in ("localhost", "127.0.0.1", "::1"):
        return not_applicable(f"this server listens for everybody and has no list of names: {', '.join(served)}")
    return judged(not served, f"served: {', '.join(served) or 'none'} of {len(names)} foreign names")


async def _origins(arena: ApiArena) -> ProbeResult:
    served = []
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://"):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        answer = await arena.call(
            "POST", f"/api/sessions/{arena.own.session}/exec", {"command": "true"}, headers=headers
        )
        socket = await arena.call(
            "GET", f"/api/sessions/{arena.own.session}/terminal", headers={**headers, **upgrade_headers()}
        )
        served += [f"{origin}: {each}" for each in (answer, socket) if each.status in (101, 200)]
    return judged(not served, f"served: {', '.join(served) or 'none'} of 4 foreign origins")


async def _injection(arena: ApiArena) -> ProbeResult:
    """Names that come back in a header must not become a header."""
    found, shown = [], []
    for name in ("a\r\nX-Injected: 1", 'a"; filename="b', "a\u2028b", "\x1b[2J"):
        path = f"/api/sessions/{arena.own.session}/files/content"
        made = await arena.call("PUT", path, b"x", query={"path": name})
        answer = await arena.call("GET", "/download_file", query={"session_id": arena.own.session, "path": name})
        shown.append(f"{made.status}/{answer.status}")
        if "x-injected" in answer.headers or answer.status >= 500:
            found.append(f"{name!r}: {answer}")
    answer = await arena.call("GET", "/api/whoami", headers={"X-Request-Id": "a\x1b[31m<script>"})
    if "<script>" in answer.headers.get("x-request-id", ""):
        found.append("X-Request-Id comes back as it was")
    return judged(not found, f"{'; '.join(found) or 'no header was added'} ({', '.join(shown)})")


async def _encodings(arena: ApiArena) -> ProbeResult:
    """A body that says it is compressed is not unpacked."""
    body = gzip.compress(b'{"command": "echo unpacked' + b" " * (2 * _MIB) + b'"}')
    answer = await arena.call(
        "POST", f"/api/sessions/{arena.own.session}/exec", body, headers={"Content-Encoding": "gzip"}
    )
    return judged(answer.status in (400, 413, 415, 422), f"a compressed body gives {answer}")


async def _ranges(arena: ApiArena) -> ProbeResult:
    path, wrong = f"/api/sessions/{arena.own.session}/files/content", []
    many = ",".join(f"{index}-{index}" for index in range(5000))
    for value in (
        f"bytes={many}",
        "bytes=0-99999999999999999999",
        "bytes=-0",
        "bytes=9-1",
        "bytes=-",
        "x=1",
        "bytes=\u0661-",
    ):
        answer = await arena.call("GET", path, query={"path": "secret"}, headers={"Range": value})
        if answer.status not in (200, 206, 400, 416, 422, 431) or len(answer.body) > 4096:
            wrong.append(f"{value[:20]}: {answer}")
    return judged(not wrong, f"{'; '.join(wrong) or 'each is refused, ignored, or within the file'}")


async def _forms(arena: ApiArena) -> ProbeResult:
    part = b'--b\r\nContent-Disposition: form-data; name="x%d"\r\n\r\n1\r\n'
    bodies = {
        "50,000 parts": b"".join(part % index for index in range(50_000)) + b"--b--\r\n",
        "a part without an end": b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        + b"x" * _MIB,
        "headers of 1 MiB": b"--b\r\n" + b"X: " + b"a" * _MIB + b"\r\n\r\n1\r\n--b--\r\n",
        "no boundary in it": b"x" * _MIB,
        "a field of 8 MiB": b'--b\r\nContent-Disposition: form-data; name="session_id"\r\n\r\n'
        + b"x" * (8 * _MIB)
        + b"\r\n--b--\r\n",
    }
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answers = {name: await arena.call("POST", "/upload_file", body, headers=headers) for name, body in bodies.items()}
    wrong = [f"{name}: {answer}" for name, answer in answers.items() if answer.status not in (0, 400, 404, 413, 422)]
    return judged(not wrong, f"{'; '.join(wrong) or ', '.join(f'{name} {each}' for name, each in answers.items())}")


async def _idempotency_keys(arena: ApiArena) -> ProbeResult:
    """A key is of a bounded length, and belongs to one request."""
    path = f"/api/sessions/{arena.own.session}/exec"
    long = await arena.call("POST", path, {"command": "true"}, headers={"Idempotency-Key": "k" * 20_000})
    key = {"Idempotency-Key": f"attack-{arena.own.marker}"}
    first = await arena.call("POST", path, {"command": "date +%N"}, headers=key)
    same = await arena.call("POST", path, {"command": "date +%N"}, headers=key)
    other = await arena.call("POST", path, {"command": "id"}, headers=key)
    held = long.status in (400, 422, 431) and first.body == same.body and other.status in (409, 422)
    return judged(held, f"a long one {long}, again {same}, for another command {other}")


# -- files and sockets


async def _files(arena: ApiArena) -> ProbeResult:
    """The file API has the rights of the sandbox's user, whatever a path says."""
    got = []
    base = f"/api/sessions/{arena.own.session}/files"
    for path in ("/etc/shadow", "../../../../etc/shadow", "/proc/1/environ", "/proc/1/root/etc/shadow", "/proc/1/mem"):
        answer = await arena.call("GET", f"{base}/content", query={"path": path}, most=4096)
        if answer.status == 200 and answer.body:
            got.append(f"read {path}")
    for path in (
        "/etc/passwd",
        "/usr/bin/x",
        "/proc/sys/kernel/core_pattern",
        "/.warren/agent",
        "/proc/1/oom_score_adj",
    ):
        answer = await arena.call("PUT", f"{base}/content", b"x", query={"path": path})
        if answer.status in (200, 201):
            got.append(f"wrote {path}")
    for user in ("root", "0", "nobody", "1000:0", "-1"):
        answer = await arena.call("GET", f"{base}/content", query={"path": "/etc/shadow", "user": user}, most=4096)
        if answer.status == 200 and answer.body:
            got.append(f"read /etc/shadow as {user}")
    return judged(not got, f"{', '.join(got) or 'none of 15 forbidden files'}")


async def _archives(arena: ApiArena) -> ProbeResult:
    out = []
    path = f"/api/sessions/{arena.own.session}/files/archive"
    for name, kind, target in (
        ("../evil", tarfile.REGTYPE, ""),
        ("/tmp/evil", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("a/../../evil", tarfile.REGTYPE, ""),
        ("hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("device", tarfile.CHRTYPE, ""),
        ("x" * 70_000, tarfile.REGTYPE, ""),
    ):
        answer = await arena.call("PUT", path, _tar(name, kind, target), query={"path": "/workspace/in"})
        if answer.status >= 500:
            out.append(f"{name[:20]}: {answer}")
    found = await arena.run("ls -d /tmp/evil /workspace/evil /evil 2>/dev/null; find /workspace/in -type c -o -type b")
    out += found.values["stdout"].split()
    for junk in (b"\xff" * 65536, bytes(511), b"a" * 100_000):
        answer = await arena.call("PUT", path, junk, query={"path": "/workspace/in"})
        if answer.status >= 500:
            out.append(f"junk: {answer}")
    return judged(not out, f"outside, or an error of the server: {', '.join(out) or 'none'} of 10 archives")


def _tar(name: str, kind: bytes, target: str) -> bytes:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.devmajor, info.devminor = kind, target, 1, 3
        data = b"evil" if kind == tarfile.REGTYPE else b""
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return room.getvalue()


async def _frames(arena: ApiArena) -> ProbeResult:
    """WebSocket frames that break the protocol are answered, or end the connection, and nothing else."""
    path = f"/api/sessions/{arena.own.session}/exec"
    frames = {
        "not masked": b"\x81\x02hi",
        "an unknown kind": b"\x8f\x80\0\0\0\0",
        "a length of 2 ** 62": b"\x81\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0x",
        "a long ping": b"\x89\xfe\x10\0\0\0\0\0" + b"x" * 4096,
        "reserved bits": b"\xf1\x80\0\0\0\0",
        "not UTF-8": b"\x81\x82\0\0\0\0\xff\xfe",
        "a piece of nothing": b"\x80\x80\0\0\0\0",
        "not JSON": b"\x81\x83\0\0\0\0{{{",
        "a closed text": b"\x88\x81\0\0\0\0\x03",
    }
    head = arena.http.head("GET", path, {**arena.own.headers, **upgrade_headers()})
    silent = []
    for name, frame in frames.items():
        async with arena.http.connection() as (reader, writer):
            writer.write(head)
            if b" 101 " not in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20):
                return undecided("a WebSocket could not be opened")
            writer.write(frame)
            with contextlib.suppress(OSError):
                try:
                    await asyncio.wait_for(reader.read(65536), 10)
                except TimeoutError:
                    silent.append(name)
    return judged(not silent, f"no answer to: {', '.join(silent) or 'none'} of {len(frames)} broken frames")


async def _webhook_targets(arena: ApiArena) -> ProbeResult:
    """Addresses inside: refused at once, or never called; and the errors do not tell which names exist."""
    urls = (
        *("http://127.0.0.1:1/", "http://[::1]/", "http://0.0.0.0/", "http://2130706433/", "http://0x7f.1/"),
        *(
            "http://169.254.169.254/latest/meta-data/",
            "http://10.0.0.1/",
            "http://[::ffff:127.0.0.1]/",
            "http://localhost/",
        ),
        *(
            "file:///etc/passwd",
            "gopher://127.0.0.1/",
            "http://user:pw@127.0.0.1/",
            "http://127.1/",
            "ftp://example.com/",
        ),
    )
    called = await _called(arena, (*urls, "http://no-such-name.invalid/"))
    if isinstance(called, ProbeResult):
        return called
    return judged(not called, f"called: {', '.join(called) or 'none'} of {len(urls)} addresses inside")


async def _own_webhook_targets(arena: ApiArena) -> ProbeResult:
    """The machine's own addresses, public ones among them, at which the server itself would answer."""
    own = await asyncio.to_thread(_own_addresses)
    if arena.http.host not in ("localhost", "127.0.0.1", "::1", *own):
        return not_applicable("the server is on another machine, whose addresses are not known")
    hosts = [host for each in own for host in (each, f"[::ffff:{each}]", f"[64:ff9b::{each}]")]
    called = await _called(arena, [f"http://{host}:{arena.http.port}/" for host in hosts])
    if isinstance(called, ProbeResult):
        return called
    return judged(not called, f"called: {', '.join(called) or 'none'} of {len(hosts)} spellings of {', '.join(own)}")


def _own_addresses() -> list[str]:
    """Returns the IPv4 addresses of this machine that are not loopback."""
    text = Path("/proc/net/fib_trie").read_text()
    found = dict.fromkeys(re.findall(r"-- ([\d.]+)\n\s+/32 host LOCAL", text))
    return [each for each in found if not each.startswith("127.")]


async def _called(arena: ApiArena, urls: Iterable[str]) -> list[str] | ProbeResult:
    """Makes a webhook of each URL and has it tested. Returns what was called, or what else should not be."""
    called, errors = [], set[str]()
    for url in urls:
        made = await arena.call("POST", "/api/webhooks", {"url": url})
        if made.status in (403, 404, 503):
            return not_applicable(f"webhooks cannot be made here: {made}")
        if made.status == 201:
            path = f"/api/webhooks/{made.values['id']}"
            ping = await arena.call("POST", f"{path}/test", timeout_s=40)
            await arena.call("DELETE", path)
            if (ping.values or {}).get("delivered") or (ping.values or {}).get("status"):
                called.append(url)
            if "localhost" in url or "no-such-name" in url:
                errors.add(
                    str((ping.values or {}).get("error")).replace("localhost", "N").replace("no-such-name.invalid", "N")
                )
        elif made.status >= 500:
            called.append(f"{url}: {made}")
    if len(errors) > 1:
        called.append(f"errors tell which names exist: {sorted(errors)}")
    return called


PROBES: tuple[Probe[ApiArena], ...] = (
    Probe("api-nul-fields", _G, "NUL in every field of every operation", _nul_fields),
    Probe("api-nul-queries", _G, "NUL in every parameter of every operation", _nul_queries),
    Probe("api-odd-texts", _G, "lone surrogates, line ends, control characters in every field", _odd_texts),
    Probe("api-odd-queries", _G, "wrong bytes and numbers in every parameter", _odd_queries),
    Probe("api-wrong-types", _G, "values of other types in every field", _wrong_types),
    Probe("api-huge-json", _G, "JSON of 64 MiB, of 100,000 fields, numbers of a million digits", _huge_json),
    Probe("api-deep-json", _G, "JSON 200,000 levels deep", _deep_json),
    Probe("api-odd-json", _G, "NaN, other encodings, two documents, unknown fields", _odd_json),
    Probe("api-big-command", _G, "commands of 1 and 3 MiB", _big_command),
    Probe("api-smuggling", _G, "hide a request behind a second length", _smuggling),
    Probe("api-chunks", _G, "broken chunks, extensions, trailers", _chunks),
    Probe("api-headers", _G, "headers and targets of 1 MiB, 20,000 headers", _headers),
    Probe("api-methods", _G, "unknown methods and versions", _methods),
    Probe("api-hosts", _G, "be served under a foreign name (DNS rebinding)", _hosts),
    Probe("api-origins", _G, "be served as a page from elsewhere, WebSockets too", _origins),
    Probe("api-injection", _G, "add a header by a file name", _injection),
    Probe("api-encodings", _G, "have a compressed body unpacked", _encodings),
    Probe("api-ranges", _G, "5,000 ranges, ranges beyond the file", _ranges),
    Probe("api-forms", _G, "forms of 50,000 parts, or without an end", _forms),
    Probe("api-idempotency-keys", _G, "long Idempotency-Keys, one for two commands", _idempotency_keys),
    Probe("api-files", _G, "read and write the system's files by path or user", _files),
    Probe("api-archives", _G, "leave the directory by an archive, or break the server", _archives),
    Probe("api-frames", _G, "break the WebSocket protocol", _frames),
    Probe("api-webhook-targets", _G, "have the server call addresses inside", _webhook_targets),
    Probe("api-webhook-own", _G, "have the server call the machine's own addresses", _own_webhook_targets),
)
