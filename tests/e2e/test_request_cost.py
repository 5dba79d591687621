"""No request holds the event loop for longer than 50 ms, or costs the server more than 64 MiB, however large it is.

Every route is asked for as much as it gives, and is sent as much as it takes; a route without a case fails the test.
"""

import asyncio
import base64
import contextlib
import json
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import pytest
from e2e.api_client import Api
from e2e.bad_input_routes import FORM_TYPE, GOOD, http_routes, socket_paths
from e2e.conftest import NewState
from measured_server import MIB, Costs, running_measured
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

MAX_HELD_MS: Final = 50.0
MAX_MEMORY_MIB: Final = 64.0
_LARGEST_BODY: Final = 4 * MIB - 4096
_NOISE: Final = f"head -c {40 * MIB} /dev/urandom"
_MAX_KEPT: Final = 32 * MIB
_LINKS: Final = 5000
_PREPARE: Final = rf"""
import os
os.chdir("/workspace")
deep = b"links/" + b"/".join([b"\xfe" * 200] * 18)
os.makedirs(deep)
for number in range({_LINKS}):
    os.symlink(b"\xff" * 4000, deep + b"/%d" % number)
os.makedirs("many")
for number in range(20000):
    os.close(os.open("many/%d" % number, os.O_CREAT))
with open("lines", "wb") as file:
    for number in range(20000):
        file.write(b"find \x01\x02\x03\xff\n")
with open("long lines", "wb") as file:
    for number in range(2000):
        file.write(b"find " + b"\x01" * 4000 + b"\n")
with open("large", "wb") as file:
    file.truncate({256 * MIB})
"""
_TINY: Final = r"""
import os
for number in range(30000):
    os.write(1 + number % 2, b"\xff")
"""


_CELLS: Final = {
    "results of a few MiB": """
class Large:
    def _repr_html_(self): return "<b>" * 2_000_000
    def _repr_png_(self): return bytes(3_000_000)
Large()
""",
    "a result of many values": """
class Many:
    def _repr_json_(self): return list(range(90_000))
Many()
""",
    "many results": """
for number in range(5000):
    display({"number": number})
""",
    "much text": "print('x' * 30_000_000)",
    "results that are none": """
import os
for kind in b"rx":
    for body in (b"[" * 1_000_000, b'{"a":' * 90_000, b"1" * 5_000_000, b'{"type": "result", "json": NaN}'):
        try:
            os.write(3, bytes([kind]) + len(body).to_bytes(4, "big") + body)
        except OSError as exc:
            print(exc)
""",
}


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    flags = ("--pool-size", "0", "--pool-min", "0", "--environment", "host", "--cpus", "2", "--memory-limit", "1g")
    with running_measured(new_state(), *flags, WARREN_AUDIT="true") as server:
        yield server


@dataclass(frozen=True)
class Target:
    """A server, and a session in it whose sandbox is full of what is long."""

    api: Api
    session_id: str

    async def ask(self, method: str, path: str, /, **rest: Any) -> int:
        """The status. The answer is read to its end and not kept."""
        async with self.api.ask(method, self.at(path), **rest) as answer:
            async for _ in answer.content.iter_any():
                pass
            return int(answer.status)

    def at(self, path: str) -> str:
        names = {
            "session_id": self.session_id,
            "process_id": "noise",
            "context_id": "ctx_bash",
            "execution_id": "cell_1",
            "port": "3000",
            "kind": "prompts",
            "entry": "coding",
        }
        for name in ("webhook_id", "key_id", "name", "worker_id", "artifact_id", "snapshot", "volume"):
            names.setdefault(name, "unknown")
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        return path


Work = Callable[[Target], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """One large request to a route."""

    method: str
    path: str
    what: str
    work: Work

    def __str__(self) -> str:
        return f"{self.method} {self.path}, {self.what}"


_S: Final = "/api/sessions/{session_id}"
_P: Final = f"{_S}/processes/{{process_id}}"
_EVENTS: Final = {"Accept": "text/event-stream"}


def asked(method: str, path: str, what: str, /, **rest: Any) -> Case:
    return Case(method, path, what, lambda target: target.ask(method, path, **rest))


def long_answers() -> Iterator[Case]:
    kept = {"keep_bytes": _MAX_KEPT}
    emoji = f"printf '\\U1f600'; head -c {40 * MIB} /dev/zero | tr '\\0' x"
    both = f"head -c {20 * MIB} /dev/urandom & head -c {20 * MIB} /dev/urandom >&2; wait"
    tiny = ["python3", "-c", _TINY]
    for what, command in {"noise": _NOISE, "one emoji": emoji, "both streams": both, "tiny writes": tiny}.items():
        yield asked("POST", f"{_S}/exec", what, body={"command": command, **kept})
    for what, command in {"noise": _NOISE, "tiny writes": tiny}.items():
        body = {"command": command}
        yield asked("POST", f"{_S}/exec", f"{what}, events", body=body, headers=_EVENTS)
        yield asked("POST", f"{_S}/exec", f"{what}, base64", body=body, headers=_EVENTS, encoding="base64")
        yield Case("POST", "/execute", what, _flat(command))
        yield Case("WEBSOCKET", f"{_S}/exec", what, _exec_socket(command))
    yield asked("POST", f"{_S}/exec", "32 MiB with a key", body={"command": _NOISE, **kept}, headers=_key("noise"))
    for what in ("first", "again"):
        body = {"command": "head -c 300000 /dev/urandom", **kept}
        yield asked("POST", f"{_S}/exec", f"with a key, {what}", body=body, headers=_key("some"))
    for what, code in {"noise": _NOISE, "tiny writes": f"python3 -c '{_TINY}'"}.items():
        body = {"code": code, "language": "bash"}
        yield asked("POST", f"{_S}/code", what, body=body)
        yield asked("POST", f"{_S}/code", f"{what}, events", body=body, headers=_EVENTS)
    for what, code in _CELLS.items():
        yield asked("POST", f"{_S}/code", what, body={"code": code})
        yield asked("POST", f"{_S}/code", f"{what}, events", body={"code": code}, headers=_EVENTS)
        yield Case("WEBSOCKET", f"{_S}/code", what, _code_socket(code))
    yield asked("GET", f"{_S}/contexts", "with cells that have run")
    yield Case("POST", "/api/e2b/execute", "noise", _e2b(_NOISE))
    yield Case("POST", "/api/e2b/execute", "new files", _e2b("touch many/*"))
    for process in ("noise", "tiny"):
        path = _P.replace("{process_id}", process)
        for limit in ("8388608", "1"):
            yield Case("GET", f"{_P}/output", f"{process}, {limit}", _ask("GET", f"{path}/output", limit=limit))
        yield Case(
            "GET",
            f"{_P}/output",
            f"{process}, base64",
            _ask("GET", f"{path}/output", encoding="base64", limit="8388608"),
        )
        yield Case("GET", f"{_P}/output", f"{process}, events", _ask("GET", f"{path}/output", headers=_EVENTS))
        yield Case("GET", f"{_P}/wait", process, _ask("GET", f"{path}/wait"))
        yield Case("POST", f"{_P}/kill", process, _ask("POST", f"{path}/kill"))
        yield Case("GET", _P, process, _ask("GET", path))
        yield Case("WEBSOCKET", f"{_P}/attach", process, _attach(process))
    yield Case("WEBSOCKET", f"{_S}/terminal", "noise", _terminal())
    yield Case("WEBSOCKET", f"{_S}/forward/{{port}}", "many bytes", _forward())
    yield asked("GET", f"{_S}/processes", "many with long commands")
    for path in ("links", "many"):
        yield asked("GET", f"{_S}/files", path, path=path, depth="100")
        yield Case("GET", "/list_files", path, _ask_of_session("GET", "/list_files", path=path))
        yield asked("GET", f"{_S}/files/archive", path, path=path)
    yield asked("GET", "/api/e2b/files/{session_id}", "list")
    yield asked("GET", "/api/e2b/files/{session_id}", "a large file", path="large")
    yield Case("GET", "/api/e2b/files", "list", _ask_of_session("GET", "/api/e2b/files"))
    yield Case("GET", "/api/e2b/files", "a large file", _ask_of_session("GET", "/api/e2b/files", path="large"))
    yield Case("GET", "/download_file", "a large file", _ask_of_session("GET", "/download_file", path="large"))
    yield asked("GET", f"{_S}/files/content", "a large file", path="large")
    for what in ("lines", "long lines", "links", "many"):
        query = {"pattern": "find"} if "lines" in what else {"glob": "*"}
        yield asked("GET", f"{_S}/files/search", what, path=what, max_matches="100000", **query)
        yield asked(
            "GET", f"{_S}/files/search", f"{what}, events", path=what, max_matches="100000", headers=_EVENTS, **query
        )
    braces = "{" + ",".join("a" * 60 for _ in range(64)) + "}"
    yield asked("GET", f"{_S}/files/search", "many globs", glob=braces)
    yield asked("GET", f"{_S}/files/search", "nested braces", glob="{a,b}" * 700)
    yield Case("GET", f"{_S}/files/watch", "many changes", _watch())
    yield asked("GET", f"{_S}/files/stat", "a long path", path=b"\xff" * 4090)
    yield asked("GET", f"{_S}/files/realpath", "a long way", path="many/../" * 500)
    yield asked("DELETE", f"{_S}/files", "many files", path="removed", recursive="true")
    yield asked("POST", f"{_S}/artifacts", "a large file", body={"paths": ["large"]})
    yield Case("GET", "/api/artifacts/{artifact_id}/content", "a large one", _read_artifact())
    yield asked("POST", f"{_S}/artifacts", "links", body={"paths": ["links"]})
    yield asked("POST", f"{_S}/artifacts", "many files", body={"paths": ["many"]})
    yield asked("GET", "/api/artifacts", "many", limit="1000")
    yield asked("POST", f"{_S}/snapshots", "a large disk", body={"name": "costly"})
    yield asked("GET", "/api/snapshots", "some", limit="1000")
    yield Case("GET", "/api/snapshots/{snapshot}/content", "a large one", _read_snapshot())
    yield asked("POST", f"{_S}/fork", "two", body={"count": 2})
    yield asked("GET", f"{_S}/logs", "what the others have left", limit="1000")
    yield asked("GET", f"{_S}/logs", "the newest", last="1000")
    yield asked("GET", f"{_S}/logs", "few of many", limit="1000", kinds="note")
    yield asked("GET", "/api/metrics", "many sessions", session_ids=",".join(f"ses_{at:032x}" for at in range(100)))
    yield asked("GET", "/api/metrics", "commas", session_ids="," * 16000)
    yield asked("GET", "/api/sessions", "long sessions", state="ended", limit="1000")


def long_requests() -> Iterator[Case]:
    """Bodies that are large in one way each, for every route that takes JSON; and the routes that take streams."""
    most = _LARGEST_BODY
    bodies = {
        "one long text": b'"command": "#' + b"x" * most + b'"',
        "many values": b'"command": [' + b"1," * (most // 2) + b"1]",
        "many short texts": b'"command": [' + b'"",' * 49_000 + b'""]',
        "many names": b'"env": {' + b",".join(b'"A%d": "%060d"' % (at, at) for at in range(49_000)) + b"}",
        "many wrong values": b'"env": {' + b",".join(b'"A%d": 1' % at for at in range(49_000)) + b"}",
        "many metadata": b'"metadata": {' + b",".join(b'"A%d": ""' % at for at in range(49_000)) + b"}",
        "many unknown fields": b",".join(b'"A%d": 1' % at for at in range(49_000)),
        "escapes": b'"command": "#' + b"\\u0001" * (most // 6) + b'"',
        "brackets in a text": b'"command": "#' + b"[{" * (most // 2) + b'"',
        "quotes in a text": b'"command": "#' + b'\\"' * (most // 2) + b'"',
        "surrogate pairs": b'"command": "#' + b"\\ud83d\\ude00" * (most // 12) + b'"',
        "base64": b'"stdin_base64": "' + b"////" * (most // 4) + b'"',
        "data as base64": b'"data_base64": "' + b"////" * (most // 4) + b'"',
        "content as base64": b'"content_base64": "' + b"////" * (most // 4) + b'"',
        "empty lists": b'"command": [' + b"[]," * (most // 3) + b"[]]",
        "nested": b'"command": ' + b"[" * (most // 2) + b"]" * (most // 2),
        "a long number": b'"command": ' + b"9" * most,
        "blanks": b'"command": ' + b" " * most + b'""',
        "not UTF-8": b'"command": "#' + b"\xff" * most + b'"',
    }
    for good in GOOD:
        if good.json is not None and "/cluster/" not in good.path:
            for what, field in bodies.items():
                yield Case(good.method, good.path, what, _send_json(good.method, good.path, good.json, field))
    rules = [f"{'a' * 60}.{'b' * 60}.{number}.example.com:443" for number in range(1000)]
    yield asked("PUT", f"{_S}/network", "many rules", body={"allow": rules, "deny": rules})
    yield asked("PUT", f"{_S}/network", "none", body={})
    yield Case("PUT", f"{_S}/files/archive", "headers for all members", _send(f"{_S}/files/archive", _pax_headers))
    yield Case("PUT", f"{_S}/files/archive", "many members", _send(f"{_S}/files/archive", _many_members))
    yield Case("PUT", f"{_S}/files/archive", "deep links", _send(f"{_S}/files/archive", _deep_links))
    yield Case("PUT", f"{_S}/files/content", "a large file", _send(f"{_S}/files/content", _zeros))
    yield Case("POST", "/upload_file", "a large file", _upload(_zeros))
    yield Case("POST", "/upload_file", "boundaries that are none", _upload(_near_boundaries))
    yield Case("POST", "/upload_file", "many parts", _upload(_many_parts))
    yield Case("POST", "/upload_file", "a file before its session", _upload(_early_file))
    for what in ("stdin", "nothing"):
        for path in (f"{_S}/exec", f"{_P}/attach", f"{_S}/terminal"):
            yield Case("WEBSOCKET", path, f"long messages, {what}", _long_messages(path, what))


def small_answers() -> Iterator[Case]:
    """Every other route, with a query as long as the head of a request may be."""
    for good in GOOD:
        query = {**good.query, "x": ["y"] * 15_000}
        yield asked(good.method, good.path, "a long query", **query)


def _key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


def _ask(method: str, path: str, /, **rest: Any) -> Work:
    return lambda target: target.ask(method, path, **rest)


def _flat(command: str | list[str]) -> Work:
    line = command if isinstance(command, str) else "python3 -c '" + command[-1].replace("'", '"') + "'"
    return lambda target: target.ask("POST", "/execute", body={"session_id": target.session_id, "command": line})


def _e2b(code: str) -> Work:
    body = {"code": code, "language": "bash"}
    return lambda target: target.ask("POST", "/api/e2b/execute", body={**body, "session_id": target.session_id})


def _ask_of_session(method: str, path: str, /, **query: Any) -> Work:
    return lambda target: target.ask(method, path, session_id=target.session_id, **query)


def _read_artifact() -> Work:
    async def work(target: Target) -> None:
        saved = await target.api.get("/api/artifacts", name="large")
        await target.ask("GET", f"/api/artifacts/{saved['artifacts'][0]['artifact_id']}/content")

    return work


def _read_snapshot() -> Work:
    async def work(target: Target) -> None:
        await target.ask("GET", "/api/snapshots/costly/content")

    return work


def _exec_socket(command: str | list[str]) -> Work:
    async def work(target: Target) -> None:
        async with target.api.socket(target.at(f"{_S}/exec")) as socket:
            await socket.raw.send_json({"command": command})
            await _until_closed(socket)

    return work


def _code_socket(code: str) -> Work:
    async def work(target: Target) -> None:
        async with target.api.socket(target.at(f"{_S}/code")) as socket:
            await socket.raw.send_json({"code": code})
            await _until_closed(socket)

    return work


async def _until_closed(socket: Any) -> None:
    async for _ in socket.raw:
        pass


def _attach(process: str) -> Work:
    async def work(target: Target) -> None:
        async with target.api.socket(target.at(_P.replace("{process_id}", process)) + "/attach") as socket:
            await _until_closed(socket)

    return work


def _terminal() -> Work:
    async def work(target: Target) -> None:
        async with target.api.socket(target.at(f"{_S}/terminal"), command=_NOISE) as socket:
            await _until_closed(socket)

    return work


def _forward() -> Work:
    program = "import socket; s = socket.create_server(('127.0.0.1', 3000)); s.accept()[0].sendall(bytes(1 << 25))"

    async def work(target: Target) -> None:
        await target.api.post(target.at(f"{_S}/processes"), {"command": ["python3", "-c", program]}, status=201)
        await target.api.get(target.at(f"{_S}/ports"), wait_for="3000")
        async with target.api.socket(target.at(f"{_S}/forward/{{port}}")) as socket:
            while (await socket.raw.receive()).type is aiohttp.WSMsgType.BINARY:
                pass

    return work


def _long_messages(path: str, what: str) -> Work:
    async def work(target: Target) -> None:
        place = target.at(path.replace("{process_id}", "reader"))
        params = {"command": "cat > /dev/null"} if path.endswith("terminal") else {}
        async with target.api.socket(place, **params) as socket:
            if path.endswith("/exec"):
                await socket.raw.send_json({"command": "cat > /dev/null"})
            encoded = base64.b64encode(bytes(700_000)).decode()
            for _ in range(5):
                if what == "stdin":
                    await socket.send("stdin", data_base64=encoded)
                    await socket.send("stdin", data="\x01" * 170_000)
                    await socket.raw.send_bytes(bytes(MIB - 100))
            with contextlib.suppress(ConnectionError):
                await socket.raw.send_str("[" * (MIB - 100))
                await _until_closed(socket)

    return work


def _watch() -> Work:
    async def work(target: Target) -> None:
        async with target.api.ask("GET", target.at(f"{_S}/files/watch"), path="many", recursive="true") as answer:
            await answer.content.readline()
            touching = asyncio.create_task(target.ask("POST", f"{_S}/exec", body={"command": "touch many/*"}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    async for _ in answer.content.iter_any():
                        pass
            await touching

    return work


def _send_json(method: str, path: str, good: dict[str, Any], field: bytes) -> Work:
    async def work(target: Target) -> None:
        name = field.partition(b'"')[2].partition(b'"')[0].decode()
        values = {key: value for key, value in good.items() if key != name}
        if "session_id" in values:
            values["session_id"] = target.session_id
        head = json.dumps(values)[:-1].encode()
        body = head + (b", " if values else b"") + field + b"}"
        await target.ask(method, path.replace("{process_id}", "reader"), data=body)

    return work


def _send(path: str, source: Callable[[], AsyncIterator[bytes]]) -> Work:
    return lambda target: target.ask("PUT", path, data=source(), path="uploaded")


def _upload(source: Callable[[], AsyncIterator[bytes]]) -> Work:
    async def work(target: Target) -> None:
        async def form() -> AsyncIterator[bytes]:
            head = b'--cut\r\nContent-Disposition: form-data; name="session_id"\r\n\r\n' + target.session_id.encode()
            if source is not _early_file:
                yield head + b"\r\n"
            yield b'--cut\r\nContent-Disposition: form-data; name="file"; filename="uploaded"\r\n\r\n'
            async for piece in source():
                yield piece
            yield b"\r\n" + (head if source is _early_file else b"--cut--") + b"\r\n--cut--\r\n"

        await target.ask("POST", "/upload_file", data=form(), headers={"Content-Type": FORM_TYPE})

    return work


async def _zeros() -> AsyncIterator[bytes]:
    for _ in range(64):
        yield bytes(MIB)


async def _near_boundaries() -> AsyncIterator[bytes]:
    for _ in range(16):
        yield b"\r\n--cu" * (MIB // 6)


async def _many_parts() -> AsyncIterator[bytes]:
    for _ in range(2):
        yield b'\r\n--cut\r\nContent-Disposition: form-data; name="a"\r\n\r\n' * 10_000


async def _early_file() -> AsyncIterator[bytes]:
    for _ in range(7):
        yield b"\r" * MIB


def _pax(records: dict[str, str], kind: bytes) -> bytes:
    header: bytes = tarfile.TarInfo._create_pax_generic_header(records, kind, "utf-8")  # type: ignore[attr-defined]
    return header


async def _pax_headers() -> AsyncIterator[bytes]:
    for number in range(60):
        yield _pax({f"{number}.{key}": "x" * 900 for key in range(1000)}, tarfile.XGLTYPE)
        yield tarfile.TarInfo(f"pax-{number}").tobuf(tarfile.USTAR_FORMAT)
    for number in range(2000):
        yield tarfile.TarInfo(f"pax/{number}").tobuf(tarfile.USTAR_FORMAT)
    yield bytes(1024)


async def _many_members() -> AsyncIterator[bytes]:
    for number in range(0, 20_000, 1000):
        yield b"".join(
            tarfile.TarInfo(f"members/{at}").tobuf(tarfile.USTAR_FORMAT) for at in range(number, number + 1000)
        )
    yield bytes(1024)


async def _deep_links() -> AsyncIterator[bytes]:
    for number in range(300):
        info = tarfile.TarInfo("/".join(["d"] * 400) + f"/{number}")
        info.type, info.linkname = tarfile.SYMTYPE, "x" * 4000
        yield info.tobuf(tarfile.GNU_FORMAT)
    yield bytes(1024)


CASES: Final = [
    *long_answers(),
    *long_requests(),
    *small_answers(),
    asked("POST", f"{_S}/kill-all", "everything that is left"),
]


def test_every_route_has_a_case() -> None:
    cases = {(case.method, case.path) for case in CASES}
    assert http_routes() - cases == set()
    assert {("WEBSOCKET", path) for path in socket_paths()} - cases == set()


@pytest.mark.timeout(900)
@pytest.mark.extended
@pytest.mark.serial
async def test_no_request_holds_the_loop_or_costs_much_memory(server: ServerProcess) -> None:
    async with Api(server.url) as api, api.session(logs="output") as session:  # a log must cost no request more
        await prepare(api, session.id)
        target, costs = Target(api, session.id), Costs(server)
        dear = [said for case in CASES if (said := await too_dear(case, target, costs))]
        assert not dear, "\n" + "\n".join(dear)


async def too_dear(case: Case, target: Target, costs: Costs) -> str:
    """What it costs, if that is too much each time: a machine may stall once."""
    for _ in range(3):
        costs.reset()
        await case.work(target)
        await asyncio.sleep(0.01)  # for the tick after it
        held_ms, memory_mib = costs.held_ms, costs.memory_mib
        print(f"{held_ms:8.1f} ms {memory_mib:8.1f} MiB  {case}", flush=True)
        if held_ms <= MAX_HELD_MS and memory_mib <= MAX_MEMORY_MIB:
            return ""
    return f"{case}: held the loop for {held_ms:.0f} ms, took {memory_mib:.0f} MiB"


async def prepare(api: Api, session_id: str) -> None:
    long = {
        "metadata": {f"{at:0128}": "\x01" * 4096 for at in range(64)},
        "env": {f"A{at}": "x" * 99_000 for at in range(8)},
    }
    for _ in range(20):
        async with api.session(**long):
            pass
    mine = f"/api/sessions/{session_id}"
    made = await api.post(f"{mine}/exec", {"command": ["python3", "-c", _PREPARE], "timeout_s": 80})
    assert made["exit_code"] == 0, made
    for number in range(40):
        body = {"command": f"true {number} " + "\x01" * 60_000, "process_id": f"long-{number}"}
        await api.post(f"{mine}/processes", body, status=201)
    for name, command in (("noise", _NOISE), ("tiny", ["python3", "-c", _TINY]), ("reader", "cat > /dev/null")):
        body = {"command": command, "process_id": name, "keep_bytes": _MAX_KEPT}
        await api.post(f"{mine}/processes", body, status=201)
