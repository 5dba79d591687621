"""Bad input of every kind on every route: refused in words, nothing created, nothing lost.

Each class of bad input is a table; every test goes through its whole table and reports all it found.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import aiohttp
import pytest
from e2e.bad_input_cases import TABLES
from e2e.bad_input_checks import KEPT, Target
from e2e.bad_input_routes import (
    GOOD,
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
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["fake"])
def server(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[ServerProcess]:
    flags = ("--pool-size", "1", "--pool-min", "1", "--pool-max", "2", "--environment", "host")
    with running_server(new_state(), *flags, provider=request.param) as server:
        yield server


@pytest.fixture
async def target(server: ServerProcess) -> AsyncIterator[Target]:
    """Whatever a test sends: afterwards there is nothing more than before, and nothing less."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:
        target = Target(server, http, await a_session(server.url, http))
        before, memory_mib = await target.sessions(), target.memory_mib()
        yield target
        await target.unharmed()
        assert await target.sessions() == before
        assert target.memory_mib() - memory_mib < 50
        async with http.delete(target.url("/api/sessions/{session_id}")) as answer:
            assert answer.status == 200


@pytest.fixture
async def document(server: ServerProcess, target: Target) -> dict[str, Any]:
    async with target.http.get(f"{server.url}/openapi.json") as answer:
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
    return session_id


async def refused(target: Target, requests: Iterable[Request], **expected: Any) -> None:
    for request in requests:
        await target.refuses(request, **expected)
    target.complain()


def test_every_route_is_in_the_table() -> None:
    assert {(good.method, good.path) for good in GOOD} == http_routes()
    assert len(GOOD) == len(http_routes())
    assert len(socket_paths()) == 3


@pytest.mark.parametrize("good", GOOD, ids=str)
async def test_the_good_request_works(server: ServerProcess, good: Request) -> None:
    async with aiohttp.ClientSession() as http:
        target = Target(server, http, await a_session(server.url, http))
        status, _, body = await target.send(good)
        assert status == good.status, body
        async with http.delete(target.url("/api/sessions/{session_id}")):
            pass


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
