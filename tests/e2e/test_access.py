"""Every route of the app, as the app itself lists them: who is let in, and who is not.

The list of routes is not kept by hand. A route that makes no decision about access fails here.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from e2e.alone_or_cluster import DEAD, KINDS, running
from e2e.api_client import Api
from e2e.conftest import NewState
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.routing import Route

from warren.config.settings import read_settings
from warren.http.app import new_fastapi_app
from warren.http.context import tenant_of
from warren.http.identify import OPEN_PATHS
from warren.model.access import Scope

pytestmark = pytest.mark.anyio

ADMIN = "the-operator-has-this-key"
NOBODYS = f"ses_{'0' * 32}"


@dataclass(frozen=True, slots=True)
class Way:
    """A method on a path, and the scope its route asks for; None: it asks for nothing."""

    method: str
    path: str
    scope: Scope | None
    decided: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def at(self, session_id: str) -> str:
        named = self.path.replace("{session_id}", session_id).replace("{process_id}", "p_1").replace("{port}", "1")
        for name in (
            "{key_id}",
            "{name}",
            "{webhook_id}",
            "{hook_id}",
            "{delivery_id}",
            "{revocation_id}",
            "{artifact_id}",
            "{volume}",
            "{snapshot}",
            "{context_id}",
            "{execution_id}",
            "{kind}",
            "{entry}",
        ):
            named = named.replace(name, "none")
        named = named.replace("{worker_id}", DEAD)
        assert "{" not in named, f"the test does not know what to put into {self.path}"
        return named


def decision(dependant: Dependant) -> tuple[Scope | None, bool]:
    """The scope a route asks for, and whether it has made up its mind at all."""
    for part in dependant.dependencies:
        if part.call is tenant_of:
            scopes = list(part.own_oauth_scopes or [])
            assert len(scopes) <= 1
            return (Scope(scopes[0]) if scopes else None), True
    return None, False


def ways() -> Iterator[Way]:
    for route in flattened(new_fastapi_app("1").routes):
        if isinstance(route, APIRoute):
            for method in sorted(route.methods - {"HEAD"}):
                yield Way(method, route.path, *decision(route.dependant))
        elif isinstance(route, APIWebSocketRoute):
            yield Way("WEBSOCKET", route.path, *decision(route.dependant))
        else:
            assert isinstance(route, Route), f"the test does not know this kind of route: {route}"
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield Way(method, route.path, None, decided=False)


def flattened(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else flattened(included.routes)


WAYS = list(ways())
GUARDED = [way for way in WAYS if way.path not in OPEN_PATHS]
OF_SESSIONS = [way for way in GUARDED if "{session_id}" in way.path]


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[str]:
    with running(request.param, new_state, WARREN_API_KEY=ADMIN) as place:
        yield place.server.url


@pytest.fixture
async def admin(url: str) -> AsyncIterator[Api]:
    async with Api(url, {"X-API-Key": ADMIN}) as api:
        yield api


async def new_key(admin: Api, *scopes: Scope, tenant: str = "acme", **more: Any) -> dict[str, str]:
    body = {"name": "test", "tenant": tenant, "scopes": [str(scope) for scope in scopes], **more}
    made = await admin.call("POST", "/api/admin/keys", body, status=201)
    return {"X-API-Key": made["key"]}


async def answer(url: str, way: Way, headers: dict[str, str], session_id: str = NOBODYS) -> tuple[int, dict[str, Any]]:
    """The status and the problem. What a route wants in its body does not matter before it has let somebody in."""
    place = f"{url}{way.at(session_id)}"
    async with aiohttp.ClientSession() as client:
        if way.method == "WEBSOCKET":
            headers = {**headers, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
            headers["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
        method = "GET" if way.method == "WEBSOCKET" else way.method
        async with client.request(method, place, headers=headers) as response:
            kind = response.headers.get("Content-Type", "")
            problem = await response.json(content_type=None) if "json" in kind and response.status >= 400 else {}
            return response.status, problem


def test_there_are_routes_to_walk() -> None:
    assert len(WAYS) > 40
    assert {way.method for way in WAYS} >= {"GET", "POST", "PUT", "DELETE", "PATCH", "WEBSOCKET"}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_route_has_decided_who_may_use_it(way: Way) -> None:
    assert way.decided != (way.path in OPEN_PATHS), "a route takes a tenant by one of the kinds in api/context.py"


@pytest.mark.parametrize("way", GUARDED, ids=str)
async def test_without_a_right_key_nobody_is_let_in(url: str, way: Way) -> None:
    for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wk_0011223344556677_00"}):
        status, problem = await answer(url, way, headers)
        assert (status, problem["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("way", [way for way in GUARDED if way.scope], ids=str)
async def test_a_key_without_the_scope_is_refused_and_the_scope_alone_is_enough(url: str, admin: Api, way: Way) -> None:
    assert way.scope is not None
    others = await new_key(admin, *(frozenset(Scope) - {way.scope, Scope.ADMIN}))
    status, problem = await answer(url, way, others)
    if way.method == "WEBSOCKET":
        assert status == 403
    else:
        assert (status, problem["code"]) == (403, "forbidden")
        assert str(way.scope) in problem["detail"]
    status, _ = await answer(url, way, await new_key(admin, way.scope))
    assert status not in (401, 403)


@pytest.mark.parametrize("way", OF_SESSIONS, ids=str)
async def test_another_tenants_session_is_answered_like_one_that_does_not_exist(url: str, admin: Api, way: Way) -> None:
    theirs = await new_key(admin, *Scope, tenant="theirs")
    mine = await new_key(admin, *(frozenset(Scope) - {Scope.ADMIN}), tenant="mine")
    async with Api(url, theirs) as api, api.session() as session:
        at_theirs = await answer(url, way, mine, session.id)
        at_nobodys = await answer(url, way, mine, NOBODYS)
        assert _without(at_theirs, session.id) == _without(at_nobodys, NOBODYS)
        assert (await session.show())["state"] == "running"


def _without(answered: tuple[int, dict[str, Any]], session_id: str) -> str:
    return str(answered).replace(session_id, "ID")


async def test_an_admin_of_one_tenant_does_not_reach_into_anothers_sessions(url: str, admin: Api) -> None:
    theirs = await new_key(admin, Scope.SESSIONS, Scope.EXEC, tenant="theirs")
    async with Api(url, theirs) as api, api.session() as session:
        await admin.refused("GET", f"/api/sessions/{session.id}", status=404, code="session_not_found")
        assert session.id not in str(await admin.get("/api/sessions"))
        assert session.id not in str(await admin.get("/sessions"))


async def test_a_key_that_may_not_run_commands_creates_nothing_with_one(url: str, admin: Api) -> None:
    async with Api(url, await new_key(admin, Scope.SESSIONS, Scope.READ, tenant="makers-only")) as api:
        body = {"exec": {"command": "true"}}
        refused = await api.refused("POST", "/api/sessions", body, status=403, code="forbidden")
        assert "exec" in refused["detail"]
        assert (await api.get("/api/sessions"))["sessions"] == []


async def test_a_thread_id_means_another_thread_for_every_tenant(url: str, admin: Api) -> None:
    keys = [await new_key(admin, Scope.SESSIONS, Scope.EXEC, tenant=tenant) for tenant in ("a", "b")]
    ids = []
    for key in keys:
        async with Api(url, key) as api:
            ids.append((await api.call("POST", "/api/sessions", {"thread_id": "same"}, status=201))["session_id"])
    assert len(set(ids)) == 2
    for key, session_id in zip(keys, ids, strict=True):
        async with Api(url, key) as api:
            await api.call("DELETE", f"/api/sessions/{session_id}")


async def test_a_key_that_may_run_but_not_create_makes_no_session_on_the_way(url: str, admin: Api) -> None:
    runner = await new_key(admin, Scope.EXEC, tenant="runner")
    async with Api(url, runner) as api:
        body = {"thread_id": "new", "command": "true"}
        await api.refused("POST", "/execute", body, status=404, code="session_not_found")


async def test_foreign_sessions_take_no_longer_than_none(url: str, admin: Api) -> None:
    """Medians of many, taken in turns, differ by less than what a look at a sandbox takes."""
    theirs = await new_key(admin, *Scope, tenant="theirs")
    mine = await new_key(admin, *Scope, tenant="mine")
    async with Api(url, theirs) as api, api.session() as session, Api(url, mine) as request_context:
        took: dict[str, list[float]] = {session.id: [], NOBODYS: []}
        for _ in range(200):
            for session_id, times in took.items():
                began = time.perf_counter()
                await request_context.refused(
                    "GET", f"/api/sessions/{session_id}", status=404, code="session_not_found"
                )
                times.append(time.perf_counter() - began)
        first, second = (sorted(times)[100] for times in took.values())
        assert max(first, second) / min(first, second) < 2


async def test_keys_can_be_made_listed_rotated_and_revoked(url: str, admin: Api) -> None:
    made = await admin.call("POST", "/api/admin/keys", {"name": "ci", "tenant": "acme", "scopes": ["read"]}, status=201)
    async with Api(url, {"Authorization": f"Bearer {made['key']}"}) as api:
        assert (await api.get("/api/whoami"))["scopes"] == ["read"]
    listed = await admin.get("/api/admin/keys?of=acme")
    assert made["id"] in [key["id"] for key in listed["keys"]]
    assert made["key"] not in str(listed)
    rotated = await admin.call("POST", f"/api/admin/keys/{made['id']}/rotate")
    async with Api(url, {"X-API-Key": made["key"]}) as old, Api(url, {"X-API-Key": rotated["key"]}) as new:
        await old.refused("GET", "/api/whoami", status=401, code="unauthorized")
        assert (await new.get("/api/whoami"))["key_id"] == made["id"]
        await admin.call("DELETE", f"/api/admin/keys/{made['id']}", status=204)
        await new.refused("GET", "/api/whoami", status=401, code="unauthorized")
    await admin.refused("DELETE", f"/api/admin/keys/{made['id']}", status=404, code="not_found")


async def test_a_revoked_key_loses_its_open_socket(url: str, admin: Api) -> None:
    body = {"name": "ci", "tenant": "acme", "scopes": ["exec", "sessions"]}
    made = await admin.call("POST", "/api/admin/keys", body, status=201)
    async with Api(url, {"X-API-Key": made["key"]}) as api:
        session = (await api.call("POST", "/api/sessions", {"max_lifetime_s": 60}, status=201))["session_id"]
        async with api.socket(f"/api/sessions/{session}/exec") as socket:
            await socket.raw.send_json({"command": "cat"})
            await socket.expect("started")
            await admin.call("DELETE", f"/api/admin/keys/{made['id']}", status=204)
            async with asyncio.timeout(20):
                while not socket.raw.closed:
                    await socket.raw.send_bytes(b"x")
                    with contextlib.suppress(TimeoutError):
                        await socket.raw.receive(0.2)
            assert socket.raw.close_code == 4401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"name": ""}, 422),
        ({"name": "x", "scopes": []}, 422),
        ({"name": "x", "scopes": ["everything"]}, 422),
        ({"name": "x", "tenant": "../x"}, 422),
        ({"name": "x", "quota": {"sessions": -1}}, 422),
        ({"name": "x", "quota": {"beds": 1}}, 422),
        ({"name": "x", "expires_in_s": 0}, 422),
    ],
)
async def test_a_key_that_cannot_be_is_refused(admin: Api, body: dict[str, Any], status: int) -> None:
    await admin.refused("POST", "/api/admin/keys", body, status=status, code="invalid_request")


async def test_a_hundred_creates_at_once_do_not_exceed_the_quota(url: str, admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/full", {"quota": {"sessions": 5}})
    key = await new_key(admin, Scope.SESSIONS, Scope.READ, tenant="full")
    async with Api(url, key) as api:

        async def tried() -> str:
            async with api.ask("POST", "/api/sessions", None) as answered:
                made = await answered.json(content_type=None)
            return str(made["session_id"] if answered.status == 201 else made["code"])

        found = await asyncio.gather(*(tried() for _ in range(100)))
        made = [one for one in found if one.startswith("ses_")]
        assert len(made) == 5
        assert set(found) - set(made) == {"quota_exceeded"}
        for session_id in made:
            await api.call("DELETE", f"/api/sessions/{session_id}")


async def test_requests_beyond_the_limit_say_when_to_come_again(url: str, admin: Api) -> None:
    key = await new_key(admin, Scope.READ, tenant="quick", quota={"requests_per_minute": 20})
    async with aiohttp.ClientSession(headers=key) as client:

        async def asked() -> tuple[int, Any]:
            async with client.get(f"{url}/api/sessions") as response:
                return response.status, response.headers

        found = await asyncio.gather(*(asked() for _ in range(100)))
    let_in = [headers for status, headers in found if status == 200]
    refused = [headers for status, headers in found if status == 429]
    assert len(let_in) == 20
    assert len(refused) == 80
    assert {int(headers["RateLimit-Limit"]) for headers in let_in} == {20}
    assert min(int(headers["RateLimit-Remaining"]) for headers in let_in) == 0
    assert all(1 <= int(headers["Retry-After"]) <= 60 for headers in refused)


def test_the_settings_ask_for_keys_unless_told_otherwise() -> None:
    assert read_settings({}, uid=0).auth
