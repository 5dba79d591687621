"""Bad input of every kind on every route: refused in words, nothing created, nothing lost.

Each class of bad input is a table; every test goes through its whole table and reports all it found.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e.alone_or_cluster import KINDS, Place, running
from e2e.bad_input_cases import TABLES
from e2e.bad_input_checks import KEPT, Target, wrong_with, wrong_with_words
from e2e.bad_input_routes import (
    FORM,
    FORM_TYPE,
    GOOD,
    UNKNOWN_ID,
    Request,
    http_routes,
    socket_paths,
    with_bad_ids,
    with_broken_json,
    with_huge_bodies,
    with_wrong_methods,
    with_wrong_parameters,
    with_wrong_values,
)
from e2e.bad_input_sockets import ADDRESSES, FIRST, LATER, OPENED
from e2e.conftest import NewState
from marks import extended
from server_process import running_server

from warren.model.spec import USER_UID

pytestmark = pytest.mark.anyio

_ATTACH = "/api/sessions/{session_id}/processes/{process_id}/attach"
KEY = "a-key-nobody-knows-0123456789"
_EXEC = "/api/sessions/{session_id}/exec"


@pytest.fixture(scope="module", params=[*KINDS, extended("oci")])
def place(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[Place]:
    flags = ("--pool-size", "1", "--pool-min", "1", "--pool-max", "2", "--environment", "host")
    networks = {"WARREN_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    if request.param == "oci":
        with running_server(new_state(), *flags, **networks) as server:
            yield Place(server)
    else:
        with running(request.param, new_state, *flags, **networks) as place:
            yield place


@pytest.fixture
async def target(place: Place) -> AsyncIterator[Target]:
    """Whatever a test sends: afterwards there is nothing more than before, and nothing less."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:
        target = Target(place, http, await a_session(place.server.url, http))
        await target.provide()
        before, memory_mib = await target.sessions(), target.memory_mib()
        yield target
        await target.unharmed()
        assert await target.sessions() == before
        assert target.memory_mib() - memory_mib < 50
        async with http.delete(target.url("/api/sessions/{session_id}")) as answer:
            assert answer.status == 200


@pytest.fixture
async def document(target: Target) -> dict[str, Any]:
    async with target.http.get(f"{target.server.url}/openapi.json") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def a_session(url: str, http: aiohttp.ClientSession) -> str:
    """A session with a file in it, and a process that runs in a terminal."""
    async with http.post(f"{url}/create_session") as answer:
        session_id = str((await answer.json())["session_id"])
    place = f"{url}/api/sessions/{session_id}"
    async with http.put(f"{place}/files/content?path=kept.txt", data=KEPT) as answer:
        assert answer.status == 201
    body = {"command": "sleep 1000", "process_id": "kept", "terminal": {}}
    async with http.post(f"{place}/processes", json=body) as answer:
        assert answer.status == 201
    async with http.post(f"{place}/code", json={"code": "true", "language": "bash"}) as answer:
        assert answer.status == 200
    return session_id


async def refused(target: Target, requests: Iterable[Request], **expected: Any) -> None:
    for request in requests:
        await target.refuses(request, **expected)
    target.complain()


def test_every_route_is_in_the_table() -> None:
    assert {(good.method, good.path) for good in GOOD} == http_routes()
    assert len(GOOD) == len(http_routes())
    assert len(socket_paths()) == 5


@pytest.mark.parametrize("good", GOOD, ids=str)
async def test_the_good_request_works(place: Place, good: Request) -> None:
    async with aiohttp.ClientSession() as http:
        target = Target(place, http, await a_session(place.server.url, http))
        await target.provide()
        status, _, body = await target.send(good)
        assert status == good.status_in(place.redis is not None), body
        async with http.delete(target.url("/api/sessions/{session_id}")):
            pass


OPEN = ("/health", "/ready", "/version", "/api/ui/session", "/api/ui/sign-out")  # whoever asks, with or without a key


async def test_without_the_key_every_route_is_closed(new_state: NewState) -> None:
    flags = ("--pool-size", "0", "--pool-min", "0")
    with running_server(new_state(), *flags, provider="fake", WARREN_API_KEY=KEY) as server:
        async with aiohttp.ClientSession() as http:
            target = Target(Place(server), http, UNKNOWN_ID)
            for key in ("", "wrong", KEY[:-1], f"{KEY}x"):
                for good in GOOD:
                    if good.path not in OPEN:
                        request = replace(good, headers={**good.headers, "X-API-Key": key})
                        await target.refuses(request, statuses=frozenset({401}), code="unauthorized")
            target.complain()
            for path in socket_paths():
                with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                    await http.ws_connect(target.url(path))
                assert refusal.value.status == 401
            assert "Traceback" not in server.log


async def test_ids_that_are_none(target: Target) -> None:
    await refused(target, with_bad_ids(), statuses=frozenset({404, 405, 422}))


async def test_wrong_methods(target: Target) -> None:
    await refused(target, with_wrong_methods(), statuses=frozenset({405}), code="method_not_allowed")


async def test_bodies_that_are_not_json(target: Target, document: dict[str, Any]) -> None:
    await refused(target, with_broken_json(document), statuses=frozenset({400}), code="invalid_json")


async def test_huge_bodies(target: Target, document: dict[str, Any]) -> None:
    await refused(target, with_huge_bodies(document), statuses=frozenset({413}), code="too_large")


async def test_wrong_values(target: Target, document: dict[str, Any]) -> None:
    await refused(target, with_wrong_values(document), statuses=frozenset({422}))


async def test_wrong_parameters(target: Target, document: dict[str, Any]) -> None:
    await refused(target, with_wrong_parameters(document), statuses=frozenset({422}))


@pytest.mark.parametrize("table", TABLES)
async def test_what_only_one_route_can_refuse(target: Target, table: str) -> None:
    for request, code in TABLES[table]():
        await target.refuses(request, code=code)
    target.complain()


async def test_paths_that_only_look_like_routes(target: Target) -> None:
    """Slashes in other places and spellings reach the same route or none, never another session or a file."""
    place = "/api/sessions/{session_id}"
    paths = [
        "//api/sessions", "/api//sessions", "/api/sessions//exec", f"{place}//files", f"{place}/files//stat?path=x",
        "/api/sessions/..", "/api/../openapi.json", "/../../etc/passwd", "/api/sessions/%2e%2e/%2e%2e/etc",
        f"{place}/%2e%2e/{UNKNOWN_ID}", f"{place}%2F..", f"{place}/nothing", "/api", "/API/SESSIONS", "/health%00",
        "/static/../../etc/passwd", f"{place};x", "/%", "/%zz", "/api/sessions/%", "/" + "x" * 10_000,
    ]  # fmt: skip
    await refused(target, (Request("GET", path) for path in paths), statuses=frozenset({400, 404}))
    await refused(target, [Request("DELETE", "/api/sessions/%2e")], statuses=frozenset({404}))


async def test_a_slash_at_the_end_leads_to_the_route_without_it(target: Target) -> None:
    for path in ("/api/sessions/", "/health/", "/api/sessions/{session_id}/"):
        status, _, body = await target.send(Request("GET", path))
        assert (status, body) == (307, b"")


async def test_nothing_is_written_outside_of_the_sandbox(target: Target) -> None:
    """Names that lead away are cut to their last part, or refused; the file is in the workspace, the user's own."""
    outside = Path("/etc/warren-evil"), Path("/tmp/warren-evil")
    for name in (b"../../../../etc/warren-evil", b"/tmp/warren-evil", b"..\\..\\warren-evil", b"a/b/warren-evil"):
        raw = FORM.replace(b"up.txt", name)
        status, _, body = await target.send(
            Request("POST", "/upload_file", raw=raw, headers={"Content-Type": FORM_TYPE})
        )
        assert (status, json.loads(body)["path"]) == (200, "/workspace/warren-evil")
    status, _, body = await target.send(
        Request("GET", "/api/sessions/{session_id}/files/stat", query={"path": "warren-evil"})
    )
    assert (status, json.loads(body)["uid"]) == (200, USER_UID)
    assert not any(path.exists() for path in outside)


# WebSockets: an error is told in words, then the socket is closed; what it was attached to goes on.


async def told(target: Target, what: str, socket: aiohttp.ClientWebSocketResponse, code: str) -> None:
    """The next thing that matters is an error in words; then the server closes with the status in the close code."""
    error: dict[str, object] = {}
    while (message := await socket.receive(30)).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        values = json.loads(message.data) if message.type is aiohttp.WSMsgType.TEXT else {}
        error = values if values.get("type") == "error" else error
    wrong = wrong_with_words(error.get("detail"), error.get("remedy", "none is needed"))
    if wrong or error.get("code") != code or socket.close_code != 4000 + int(str(error.get("status", 0))):
        target.complaints.append(f"{what[:200]}: {wrong or 'the code'}: {error}, closed with {socket.close_code}")


async def test_addresses_that_cannot_be(target: Target) -> None:
    for path, status, code in ADDRESSES:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await target.http.ws_connect(target.url(path))
        assert refusal.value.status == status, path
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        async with target.http.get(target.url(path), headers={**headers, **key}) as answer:
            kind, body = answer.headers.get("Content-Type", ""), await answer.read()
            assert wrong_with(answer.status, kind, body, frozenset({status}), code) == "", (path, body)


async def test_what_is_found_wrong_once_it_is_open(target: Target) -> None:
    for path, code in OPENED:
        async with target.http.ws_connect(target.url(path)) as socket:
            await told(target, path, socket, code)
    target.complain()


async def test_first_messages_that_are_no_command(target: Target) -> None:
    for message, code in FIRST:
        async with target.http.ws_connect(target.url(_EXEC)) as socket:
            await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_str(message))
            await told(target, repr(message), socket, code)
    target.complain()


async def test_messages_that_no_process_understands(target: Target) -> None:
    for message, code in LATER:
        async with target.http.ws_connect(target.url(_ATTACH)) as socket:
            await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_str(message))
            await told(target, repr(message), socket, code)
    target.complain()


async def test_messages_that_are_too_large(target: Target) -> None:
    for path in (_ATTACH, _EXEC):
        async with target.http.ws_connect(target.url(path)) as socket:
            await socket.send_bytes(b"x" * (1024 * 1024 + 1))
            while not (await socket.receive(30)).type.value & 0x100:
                pass
            assert socket.close_code == 1009


async def test_a_client_that_goes_away_in_the_middle(target: Target) -> None:
    for path in (_EXEC, _ATTACH, "/api/sessions/{session_id}/terminal?process_id={process_id}"):
        async with target.http.ws_connect(target.url(path)) as socket:
            if path == _EXEC:
                await socket.send_str('{"command": "sleep 1000"}')
            assert json.loads((await socket.receive(30)).data)["type"] == "started"
            socket._response.connection.transport.abort()  # type: ignore[union-attr]
    await until_only_the_kept_one_runs(target)


async def until_only_the_kept_one_runs(target: Target) -> None:
    async with asyncio.timeout(60):
        while True:
            async with target.http.get(target.url("/api/sessions/{session_id}/processes")) as answer:
                found = (await answer.json())["processes"]
            running = [process["process_id"] for process in found if process["running"]]
            if [each for each in running if not each.startswith("ctx_")] == ["kept"]:  # interpreters stay
                return
            await asyncio.sleep(0.05)


async def test_sockets_asked_for_as_pages(target: Target) -> None:
    for path in socket_paths() - {_EXEC}:
        async with target.http.get(target.url(path)) as answer:
            kind, body = answer.headers.get("Content-Type", ""), await answer.read()
            assert wrong_with(answer.status, kind, body, frozenset({404, 405, 426})) == "", (path, body)
