"""Files of a sandbox, as E2B's clients move, list and watch them: what goes over the wire, and what it costs."""

import base64
import gzip
import json
import re
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from e2e.alone_or_cluster import running
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
OCTETS = {"Content-Type": "application/octet-stream"}
GZIP = {**OCTETS, "Content-Encoding": "gzip"}
NEW_FILE = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"]


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_server(new_state(), "--pool-size", "2", WARREN_AUTH="true", WARREN_MIN_FREE_MEMORY_MB="1") as server:
        yield server


class Envd:
    """The service inside of one sandbox."""

    def __init__(self, client: httpx2.AsyncClient, sandbox: dict[str, Any]) -> None:
        self.client = client
        self.headers = {"E2b-Sandbox-Id": sandbox["sandboxID"], "E2b-Sandbox-Port": "49983"}
        self.headers["X-Access-Token"] = sandbox["envdAccessToken"]

    async def call(self, name: str, user: str = "", **message: Any) -> httpx2.Response:
        basic = {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()} if user else {}
        return await self.client.post(f"/filesystem.Filesystem/{name}", json=message, headers={**self.headers, **basic})

    async def ask(self, name: str, user: str = "", **message: Any) -> Any:
        response = await self.call(name, user, **message)
        assert response.status_code == 200, response.text
        return response.json()

    async def put(self, path: str, content: Any, headers: dict[str, str] = OCTETS, **query: str) -> httpx2.Response:
        return await self.client.post(
            "/files", params={"path": path, **query}, content=content, headers={**self.headers, **headers}
        )

    async def get(self, path: str, encoding: str = "identity", **query: str) -> httpx2.Response:
        headers = {**self.headers, "Accept-Encoding": encoding}
        return await self.client.get("/files", params={"path": path, **query}, headers=headers)


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    (key,) = json.loads(server.credentials.read_text()).values()
    async with httpx2.AsyncClient(base_url=server.url, headers={"X-API-KEY": key}, timeout=60) as client:
        yield client


@pytest.fixture
async def envd(client: httpx2.AsyncClient) -> AsyncIterator[Envd]:
    made = await client.post("/v2/sandboxes", json={"templateID": "base"})
    assert made.status_code == 201, made.text
    yield Envd(client, made.json())
    assert (await client.delete(f"/sandboxes/{made.json()['sandboxID']}")).status_code == 204


async def test_a_file_goes_in_and_out_in_every_form(envd: Envd) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(1000):
            yield b"%d\n" % number

    content = b"".join([piece async for piece in pieces()])
    written = await envd.put("~/sub/a file", pieces(), {**OCTETS, "X-Metadata-Author": "me", "X-Metadata-b-c": "d"})
    assert written.json() == [
        {"path": "/home/user/sub/a file", "name": "a file", "type": "file", "metadata": {"author": "me", "b-c": "d"}}
    ]
    for path in ("~/sub/a file", "sub/a file", "/home/user/sub/a file"):
        assert (await envd.get(path)).content == content
    packed = await envd.get("sub/a file", "gzip")
    assert (packed.headers["content-encoding"], packed.content) == ("gzip", content)
    assert "content-encoding" not in (await envd.get("sub/a file", "gzip, deflate, br")).headers
    await envd.put("sub/a file", gzip.compress(b"one ") + gzip.compress(b"two"), GZIP)
    entry = (await envd.ask("Stat", path="sub/a file"))["entry"]
    assert (entry["size"], entry.get("metadata")) == (7, None)  # the metadata was replaced by none

    parts = [("file", (name, name.encode())) for name in ("/opt/new/ünï.txt", "rel/ative", "/tmp/x")]
    written = await envd.client.post("/files", files=parts, headers=envd.headers)
    paths = ["/opt/new/ünï.txt", "/home/user/rel/ative", "/tmp/x"]
    assert [entry["path"] for entry in written.json()] == paths
    for path, (_, (_, data)) in zip(paths, parts, strict=True):
        assert (await envd.get(path)).content == data
        assert (await envd.ask("Stat", path=path))["entry"]["owner"] == "user"
    one = await envd.client.post("/files?path=named", files={"file": ("other", b"1")}, headers=envd.headers)
    assert one.json() == [{"path": "/home/user/named", "name": "named", "type": "file"}]
    await envd.put("roots", b"secret", username="root")
    assert (await envd.ask("Stat", path="/root/roots"))["entry"]["owner"] == "root"
    assert b"processor" in (await envd.get("/proc/cpuinfo")).content  # it has no size


async def test_what_is_wrong_with_a_transfer_is_told_in_its_status(envd: Envd) -> None:
    await envd.put("file", b"x")
    twice = [("file", ("/tmp/x", b"1")), ("file", ("/tmp/x", b"2"))]
    post, headers = envd.client.post, envd.headers
    for wanted, response in (
        (404, await envd.get("nothing")),
        (400, await envd.get("/home/user")),
        (400, await envd.get("~other/file")),
        (400, await envd.get("a\0b")),
        (401, await envd.get("file", username="nobody-at-all")),
        (400, await envd.put("/home/user", bytes(4 * MIB))),
        (400, await envd.put("file/below", b"x")),
        (400, await envd.put("x", gzip.compress(b"x" * 1000)[:-9], GZIP)),
        (400, await envd.put("x", b"no gzip", GZIP)),
        (400, await envd.put("x", b"", GZIP)),
        (400, await envd.put("x", b"", {**OCTETS, "Content-Encoding": "br"})),
        (400, await envd.put("x", b"", {**OCTETS, "X-Metadata-large": "x" * 5000})),
        (400, await envd.put("x", b"{}", {"Content-Type": "application/json"})),
        (400, await post("/files", content=b"x", headers={**headers, **OCTETS})),
        (400, await post("/files", files=twice, headers=headers)),
        (401, await envd.client.get("/files?path=file", headers={**headers, "X-Access-Token": "wet_no"})),
    ):
        assert (response.status_code, response.json()["code"]) == (wanted, wanted), response.text
        assert set(response.json()) == {"code", "message"}


async def test_entries_tell_all_that_clients_show(envd: Envd) -> None:
    await envd.put("folder/file", b"12345")
    made = (await envd.ask("MakeDir", path="folder/sub/deep"))["entry"]
    assert (made["path"], made["type"]) == ("/home/user/folder/sub/deep", "FILE_TYPE_DIRECTORY")
    links = ("file", "link"), ("sub", "way"), ("nowhere", "broken")
    command = "cd folder; " + "; ".join(f"ln -s {target} {name}" for target, name in links)
    await _run(envd, f"{command}; chmod 640 file; chmod 1777 sub")
    listed = (await envd.ask("ListDir", path="folder", depth=2))["entries"]
    names = ["broken", "file", "link", "sub", "sub/deep", "way"]
    assert [entry["path"] for entry in listed] == [f"/home/user/folder/{name}" for name in names]
    broken, file, link, sub, _, way = listed
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", file.pop("modifiedTime"))
    assert file == {
        "name": "file", "type": "FILE_TYPE_FILE", "path": "/home/user/folder/file", "size": 5, "mode": 0o640,
        "permissions": "-rw-r-----", "owner": "user", "group": "user",
    }  # fmt: skip
    told = [(entry["type"], entry["permissions"], entry["mode"]) for entry in (broken, link, sub, way)]
    assert told == [
        ("FILE_TYPE_SYMLINK", "Lrwxrwxrwx", 0o777),
        ("FILE_TYPE_FILE", "Lrwxrwxrwx", 0o640),
        ("FILE_TYPE_DIRECTORY", "dtrwxrwxrwx", 0o777),
        ("FILE_TYPE_DIRECTORY", "Lrwxrwxrwx", 0o777),
    ]
    assert (link["isSymlink"], link["symlinkTarget"]) == (True, "/home/user/folder/file")
    assert (broken["isSymlink"], "symlinkTarget" in broken) == (True, False)
    assert (await envd.ask("ListDir", path="folder/way"))["entries"][0]["path"] == "/home/user/folder/way/deep"

    await envd.put("meta", b"x", {**OCTETS, "X-Metadata-a": "b"})
    moved = (await envd.ask("Move", source="meta", destination="new/place/meta"))["entry"]
    assert (moved["path"], moved["metadata"]) == ("/home/user/new/place/meta", {"a": "b"})
    deeds: list[Any] = []
    with anyio.fail_after(20):
        while not deeds:
            query = {"action": "e2b_move_entry", "session_id": f"ses_{envd.headers['E2b-Sandbox-Id']}"}
            deeds = (await envd.client.get("/api/audit", params=query)).json()["deeds"]
    assert (deeds[0]["detail"]["path"], deeds[0]["detail"]["target"]) == ("/home/user/meta", moved["path"])
    for path in ("new", "new", "nothing", "new/place/meta/below"):
        assert await envd.ask("Remove", path=path) == {}
    for code, response in (
        ("not_found", await envd.call("Stat", path="meta")),
        ("not_found", await envd.call("Stat", path="folder/file/below")),
        ("not_found", await envd.call("ListDir", path="nothing")),
        ("invalid_argument", await envd.call("ListDir", path="folder/file")),
        ("invalid_argument", await envd.call("ListDir", path="folder", depth=-1)),
        ("invalid_argument", await envd.call("Stat", path=7)),
        ("already_exists", await envd.call("MakeDir", path="folder/way")),
        ("invalid_argument", await envd.call("MakeDir", path="folder/file")),
        ("not_found", await envd.call("Move", source="nothing", destination="x")),
        ("unauthenticated", await envd.call("Stat", "nobody-at-all", path="folder")),
    ):
        assert response.json()["code"] == code, response.text


async def test_a_watcher_has_every_event_when_it_is_asked(envd: Envd) -> None:
    """An upload makes three, and none of them is late."""
    await envd.ask("MakeDir", path="seen")
    watcher = await envd.ask("CreateWatcher", path="seen", recursive=True, includeEntry=True)
    for number in range(10):
        await envd.put(f"seen/{number}", b"content")
        events = (await envd.ask("GetWatcherEvents", **watcher))["events"]
        assert [(event["name"], event["type"]) for event in events] == [(str(number), step) for step in NEW_FILE]
        assert events[-1]["entry"]["size"] == 7
    await envd.ask("Move", source="seen/0", destination="seen/moved")
    await envd.ask("Remove", path="seen/moved")
    events = (await envd.ask("GetWatcherEvents", **watcher))["events"]
    assert [(event["name"], event["type"].removeprefix("EVENT_TYPE_")) for event in events] == [
        ("0", "RENAME"), ("moved", "CREATE"), ("moved", "REMOVE"),
    ]  # fmt: skip
    others = [await envd.ask("CreateWatcher", path="seen") for _ in range(31)]
    assert (await envd.call("CreateWatcher", path="seen")).json()["code"] == "resource_exhausted"
    for one in (watcher, *others):
        await envd.ask("RemoveWatcher", **one)
    for name in ("GetWatcherEvents", "RemoveWatcher"):
        assert (await envd.call(name, **watcher)).json()["code"] == "not_found"
    assert (await envd.call("CreateWatcher", path="nothing")).json()["code"] == "not_found"
    assert (await envd.call("CreateWatcher", path="seen/1")).json()["code"] == "invalid_argument"


@pytest.mark.extended
async def test_too_many_events_are_an_error_and_the_watcher_goes_on(envd: Envd) -> None:
    await envd.ask("MakeDir", path="seen")
    watcher = await envd.ask("CreateWatcher", path="seen", recursive=True, includeEntry=True)
    await _run(envd, "for n in $(seq 3000); do : > seen/many-$n; done")
    assert len((await envd.ask("GetWatcherEvents", **watcher))["events"]) < 3000
    assert (await envd.call("GetWatcherEvents", **watcher)).json()["code"] == "internal"
    # On a busy machine some are on their way still, and may be too many again.
    answers = [(await envd.call("GetWatcherEvents", **watcher)).json() for _ in range(20)]
    assert answers[-1] == {"events": []}, answers
    await envd.ask("RemoveWatcher", **watcher)


async def test_a_stream_of_events_keeps_alive_and_ends_in_time(envd: Envd) -> None:
    await envd.ask("MakeDir", path="seen")
    body = json.dumps({"path": "seen"}).encode()
    headers = {"Content-Type": "application/connect+json", "Connect-Timeout-Ms": "2500", "Keepalive-Ping-Interval": "1"}
    frames: list[tuple[int, Any]] = []
    data = b""
    with anyio.fail_after(30):
        async with envd.client.stream(
            "POST",
            "/filesystem.Filesystem/WatchDir",
            content=struct.pack(">BI", 0, len(body)) + body,
            headers={**envd.headers, **headers},
        ) as response:
            async for piece in response.aiter_bytes():
                data += piece
                while len(data) >= 5 and len(data) >= 5 + (length := struct.unpack(">I", data[1:5])[0]):
                    frames.append((data[0], json.loads(data[5 : 5 + length])))
                    data = data[5 + length :]
                    if len(frames) == 1:
                        await envd.put("seen/file", b"x")
    assert frames[0] == (0, {"start": {}})
    assert [frame["filesystem"] for _, frame in frames[1:4]] == [{"name": "file", "type": step} for step in NEW_FILE]
    assert (0, {"keepalive": {}}) in frames[4:-1]
    assert (frames[-1][0], frames[-1][1]["error"]["code"]) == (2, "deadline_exceeded")


@pytest.mark.extended
async def test_large_files_and_bombs_cost_the_server_no_memory(
    server: ServerProcess, client: httpx2.AsyncClient
) -> None:
    limits = {"environment": "e2b", "limits": {"disk_mb": 192}}
    made = await client.post("/api/sessions", json=limits)
    assert made.status_code == 201, made.text
    sandbox_id = made.json()["session_id"].removeprefix("ses_")
    envd = Envd(client, (await client.post(f"/v2/sandboxes/{sandbox_id}/connect", json={"timeout": 60})).json())
    await envd.put("warm", b"up")
    before = _peak_mib(server.pid)
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(300)) + packer.flush()
    assert len(bomb) < MIB
    full = await envd.put("bomb", bomb, GZIP)
    assert (full.status_code, full.json()["code"]) == (507, 507)
    await envd.ask("Remove", path="bomb")

    async def large() -> AsyncIterator[bytes]:
        for _ in range(96):
            yield bytes(MIB)

    assert (await envd.put("large", large())).status_code == 200
    size = 0
    async with client.stream("GET", "/files?path=large", headers=envd.headers) as response:
        assert response.headers["content-length"] == str(96 * MIB)
        async for piece in response.aiter_bytes():
            size += len(piece)
    assert size == 96 * MIB
    assert _peak_mib(server.pid) - before < 24
    assert (await client.delete(f"/sandboxes/{sandbox_id}")).status_code == 204
    gone = await envd.get("large")
    assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")


@pytest.mark.extended
async def test_files_and_events_pass_through_a_coordinator(new_state: NewState) -> None:
    key = "wk_" + "k" * 40

    async def large() -> AsyncIterator[bytes]:
        for number in range(64):
            yield bytes([number]) * (MIB // 8)

    with running("cluster", new_state, "--pool-size", "0", WARREN_API_KEY=key, WARREN_MIN_FREE_MEMORY_MB="1") as place:
        async with httpx2.AsyncClient(base_url=place.server.url, headers={"X-API-KEY": key}, timeout=60) as client:
            made = await client.post("/v2/sandboxes", json={"templateID": "host"})
            assert made.status_code == 201, made.text
            envd = Envd(client, made.json())
            await envd.ask("MakeDir", path="/tmp/seen")
            watcher = await envd.ask("CreateWatcher", path="/tmp/seen")
            assert (await envd.put("/tmp/seen/large", large())).status_code == 200
            events = (await envd.ask("GetWatcherEvents", **watcher))["events"]
            assert [event["type"] for event in events] == NEW_FILE
            assert (await envd.get("/tmp/seen/large")).content == b"".join([piece async for piece in large()])
            many = [("file", (f"/tmp/many/{number:03}", b"x")) for number in range(150)]
            assert len((await client.post("/files", files=many, headers=envd.headers)).json()) == 150
            entries = (await envd.ask("ListDir", path="/tmp/many"))["entries"]
            assert [entry["path"] for entry in entries] == [path for _, (path, _) in many]
            for response in (await envd.get("/tmp/none"), await envd.call("Stat", path="/tmp/none")):
                assert (response.status_code, response.json()["code"]) in ((404, 404), (404, "not_found"))


def _peak_mib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


async def _run(envd: Envd, line: str) -> None:
    """Runs a command to its end."""
    body = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-c", line], "envs": {}}, "stdin": False}).encode()
    headers = {**envd.headers, "Content-Type": "application/connect+json"}
    data = struct.pack(">BI", 0, len(body)) + body
    response = await envd.client.post("/process.Process/Start", content=data, headers=headers)
    assert b'"end"' in response.content, response.content
