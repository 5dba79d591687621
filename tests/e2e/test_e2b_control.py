"""The control plane as E2B's clients use it: status codes, shapes, and what becomes of wrong requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from e2e.alone_or_cluster import KINDS, running
from e2e.api_client import Api, of, until
from e2e.conftest import NewState
from server_process import ServerProcess

from warren.http.e2b.control import logs, metrics, pauses, sandboxes, snapshots, unsupported
from warren.model.api import E2B_OPERATIONS

pytestmark = pytest.mark.anyio

ADMIN = "the-operator-has-this-key"
NOBODYS = "0" * 32
LISTED = {
    *("templateID", "alias", "sandboxID", "clientID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB"),
    *("metadata", "state", "envdVersion", "volumeMounts"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str, new_state: NewState) -> Iterator[ServerProcess]:
    options = {
        "WARREN_API_KEY": ADMIN,
        "WARREN_MIN_FREE_MEMORY_MB": "1",
        "WARREN_E2B_TEMPLATES": "base=base,other=host",
    }
    with running(kind, new_state, "--pool-size", "0", **options) as place:
        yield place.server


@pytest.fixture
async def admin(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": ADMIN}) as api:
        yield api


@contextlib.asynccontextmanager
async def limited(admin: Api, tenant: str, **quota: Any) -> AsyncIterator[Api]:
    await admin.call("PUT", f"/api/admin/tenants/{tenant}", {"quota": quota})
    async with of(admin, tenant) as api:
        yield api


async def create(api: Api, /, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = await api.post("/v2/sandboxes", {"templateID": "base", **body}, status=201)
    return found


async def refused(api: Api, method: str, place: str, /, body: Any = None, *, status: int, **rest: Any) -> str:
    """The message of an error in E2B's form."""
    async with api.ask(method, place, body, **rest) as answer:
        content = await answer.read()
        assert answer.status == status, f"{method} {place} {answer.status}: {content[:500]!r}"
        values = json.loads(content)
    assert set(values) == {"code", "message"}, values
    assert values["code"] == status
    assert values["message"]
    return str(values["message"])


def seconds_left(shown: dict[str, Any]) -> float:
    assert shown["endAt"].endswith("Z")
    return (datetime.fromisoformat(shown["endAt"]) - datetime.now(UTC)).total_seconds()


async def test_a_sandbox_from_its_creation_to_its_end(admin: Api) -> None:
    async with of(admin, "life") as api:
        made = await create(api, timeout=100, metadata={"user": "u 7"}, envVars={"A": "1"}, secure=True, whatever=[1])
        assert set(made) == {
            *("templateID", "sandboxID", "clientID", "envdVersion", "domain", "alias"),
            *("envdAccessToken", "trafficAccessToken"),
        }
        assert made["templateID"] == "base"
        assert made["domain"].startswith("localhost:")
        place = f"/sandboxes/{made['sandboxID']}"
        shown = await api.get(place)
        assert set(shown) == LISTED | {"domain", "envdAccessToken", "allowInternetAccess", "network", "lifecycle"}
        assert (shown["metadata"], shown["state"]) == ({"user": "u 7"}, "running")
        assert shown["envdAccessToken"] == made["envdAccessToken"]
        assert 95 < seconds_left(shown) <= 101

        await api.post(f"{place}/timeout", {"timeout": 500}, status=204)
        assert 495 < seconds_left(await api.get(place)) <= 500
        await api.post(f"/v2{place}/connect", {"timeout": 50})
        assert 490 < seconds_left(await api.get(place)) <= 500, "connecting only prolongs"
        assert (await api.post(f"{place}/connect", {"timeout": 900})) == made
        assert 895 < seconds_left(await api.get(place)) <= 900
        await api.post(f"{place}/refreshes", {"duration": 1000}, status=204)
        assert 995 < seconds_left(await api.get(place)) <= 1000
        await api.post(f"{place}/timeout", {"timeout": 30}, status=204)
        assert 25 < seconds_left(await api.get(place)) <= 30
        native = await api.get(f"/api/sessions/ses_{made['sandboxID']}")
        assert native["idle_timeout_s"] > 86400, "being idle does not end it"

        assert await api.call("DELETE", place, status=204) == b""
        for method, below, body in [
            ("DELETE", "", None),
            ("GET", "", None),
            ("POST", "/timeout", {"timeout": 9}),
            ("POST", "/connect", {}),
            ("GET", "/metrics", None),
            ("POST", "/pause", {}),
        ]:
            await refused(api, method, place + below, body, status=404)


async def test_a_sandbox_ends_when_its_time_is_over(admin: Api) -> None:
    async with of(admin, "end") as api:
        place = f"/sandboxes/{(await create(api, timeout=1))['sandboxID']}"

        async def gone() -> bool:
            async with api.ask("GET", place) as answer:
                return bool(answer.status == 404)

        await until(gone, 10)
        place = f"/sandboxes/{(await create(api))['sandboxID']}"
        assert 290 < seconds_left(await api.get(place)) <= 301
        await api.post(f"{place}/timeout", {"timeout": 0}, status=204)
        await until(gone, 10)


async def test_sessions_that_others_made_are_sandboxes_too(admin: Api) -> None:
    async with of(admin, "native") as api, api.session(metadata={"made": "here"}) as session:
        (shown,) = await api.get("/v2/sandboxes")
        assert set(shown) == LISTED
        assert (f"ses_{shown['sandboxID']}", shown["metadata"]) == (session.id, {"made": "here"})
        made = await api.post(f"/v2/sandboxes/{shown['sandboxID']}/connect", {"timeout": 7200})
        assert made["envdAccessToken"]
        assert seconds_left(await api.get(f"/sandboxes/{shown['sandboxID']}")) > 7000


async def test_metrics_have_a_series_of_one_and_the_last_point_of_several(admin: Api) -> None:
    async with of(admin, "metrics") as api:
        one, two = [(await create(api, timeout=60))["sandboxID"] for _ in range(2)]
        (point, *_) = await api.get(f"/sandboxes/{one}/metrics")
        assert set(point) == {
            *("timestamp", "timestampUnix", "cpuCount", "cpuUsedPct", "memUsed", "memTotal", "memCache"),
            *("diskUsed", "diskTotal"),
        }
        now = int(point["timestampUnix"])

        async def shown() -> list[Any]:
            found = await api.get(f"/sandboxes/{one}/metrics", start=str(now - 60), end=str(now + 60))
            return list(found) if len(found) >= 2 else []

        found = await until(shown, 20)  # the first of the series, and the one that was asked for
        assert [each["timestamp"] for each in found] == sorted(each["timestamp"] for each in found)
        assert await api.get(f"/sandboxes/{one}/metrics", start=str(now - 60), end=str(now - 30)) == []
        await refused(api, "GET", f"/sandboxes/{one}/metrics?start=9&end=8", status=400)

        async def both() -> dict[str, Any]:
            found = (await api.get("/sandboxes/metrics", sandbox_ids=f"{one},{two},{NOBODYS}"))["sandboxes"]
            return dict(found) if len(found) == 2 else {}

        assert set(await until(both, 20)) == {one, two}
        for name in (one, two):
            await api.call("DELETE", f"/sandboxes/{name}", status=204)


async def test_an_idempotency_key_gives_the_same_sandbox(admin: Api) -> None:
    async with of(admin, "once") as api:
        body, headers = {"templateID": "base", "timeout": 60}, {"Idempotency-Key": "first-1"}
        made = [await api.post("/v2/sandboxes", body, status=201, headers=headers) for _ in range(2)]
        assert made[0] == made[1]
        await refused(api, "POST", "/v2/sandboxes", {"templateID": "other"}, status=400, headers=headers)
        await api.call("DELETE", f"/sandboxes/{made[0]['sandboxID']}", status=204)
        await refused(api, "POST", "/v2/sandboxes", body, status=409, headers=headers)


async def test_a_thousand_sandboxes_are_listed_in_pages(admin: Api, kind: str) -> None:
    count = 1000 if kind == "alone" else 200
    async with of(admin, "many") as api:
        slots = asyncio.Semaphore(16)

        async def make(number: int) -> str:
            async with slots:
                odd = {"kind": "a&b=c %", "n": str(number)} if number % 100 == 1 else {}
                made = await create(api, metadata=odd, templateID="other" if number % 10 == 0 else "base")
                return str(made["sandboxID"])

        made = set(await asyncio.gather(*map(make, range(count))))

        async def pages(**query: Any) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            token = None
            while True:
                more = {"nextToken": token} if token else {}
                async with api.ask("GET", "/v2/sandboxes", **query, **more) as answer:
                    assert answer.status == 200
                    page = await answer.json()
                    token = answer.headers.get("x-next-token")
                assert len(page) <= query.get("limit", 100)
                found += page
                if not token:
                    return found

        newest = await pages(limit=150)
        ids = [one["sandboxID"] for one in newest]
        assert (len(ids), set(ids)) == (count, made)
        assert [one["startedAt"] for one in newest] == sorted((one["startedAt"] for one in newest), reverse=True)
        assert [one["sandboxID"] for one in await pages(order="asc")] == ids[::-1]
        assert len(await api.get("/sandboxes")) == count

        encoded = urlencode({quote("kind"): quote("a&b=c %")})
        odd = await pages(metadata=encoded, limit=3, state=["running", "paused"])
        assert len(odd) == count / 100
        assert all(one["metadata"]["kind"] == "a&b=c %" for one in odd)
        assert len(await pages(template="other", state="running,paused")) == count / 10
        assert await pages(state="paused") == []
        assert await pages(template="nothing") == []
        async with api.ask("GET", "/v2/sandboxes", order="asc", limit=3) as answer:
            token = answer.headers["x-next-token"]
        await api.call("DELETE", f"/sandboxes/{token}", status=204)
        async with api.ask("GET", "/v2/sandboxes", order="asc", limit=3, nextToken=token) as answer:
            assert [one["sandboxID"] for one in await answer.json()] == ids[-4:-7:-1]
        made.discard(token)
        middle = newest[count // 2]["startedAt"]
        later = [one for one in newest if one["startedAt"] > middle]
        found = {one["sandboxID"] for one in await pages(startedAfter=middle, order="asc")}
        assert {one["sandboxID"] for one in later} <= found <= set(ids[: count // 2 + 10])
        slots = asyncio.Semaphore(16)

        async def end(sandbox_id: str) -> None:
            async with slots:
                await api.call("DELETE", f"/sandboxes/{sandbox_id}", status=204)

        await asyncio.gather(*map(end, made))
        assert await api.get("/v2/sandboxes") == []


async def test_tenants_do_not_see_each_other_and_scopes_hold(admin: Api, kind: str) -> None:
    async with of(admin, "mine") as mine, of(admin, "theirs") as theirs, of(admin, "mine", "read") as reader:
        place = f"/sandboxes/{(await create(mine))['sandboxID']}"
        assert await theirs.get("/v2/sandboxes") == []
        for method, below, body in [
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/connect", {}),
            ("POST", "/timeout", {"timeout": 1}),
            ("POST", "/refreshes", {}),
            ("PUT", "/network", {}),
            ("GET", "/metrics", None),
        ]:
            message = await refused(theirs, method, place + below, body, status=404)
            assert message == await refused(theirs, method, f"/sandboxes/{NOBODYS}{below}", body, status=404)
        asked = await theirs.get("/sandboxes/metrics", sandbox_ids=place.rpartition("/")[2])
        assert asked == {"sandboxes": {}}

        assert "envdAccessToken" not in await reader.get(place), "it would let the reader run commands"
        await refused(reader, "POST", "/v2/sandboxes", {"templateID": "base"}, status=403)
        await refused(reader, "DELETE", place, status=403)
        async with Api(admin.url, {"X-API-Key": "e2b_" + "0" * 80}) as nobody:
            await refused(nobody, "GET", "/v2/sandboxes", status=401)
        await mine.call("DELETE", place, status=204)


async def test_quotas_bound_sandboxes(admin: Api) -> None:
    async with limited(admin, "few", sessions=1, max_lifetime_s=120) as api:
        made = await create(api)
        place = f"/sandboxes/{made['sandboxID']}"
        assert seconds_left(await api.get(place)) <= 121, "the default is no longer than it may live"
        await refused(api, "POST", "/v2/sandboxes", {"templateID": "base"}, status=429)
        assert "120" in await refused(api, "POST", "/v2/sandboxes", {"templateID": "base", "timeout": 121}, status=400)
        assert "120" in await refused(api, "POST", f"{place}/timeout", {"timeout": 121}, status=400)
        await api.post(f"{place}/timeout", {"timeout": 120}, status=204)
        assert seconds_left(await api.get(place)) <= 120
        await api.call("DELETE", place, status=204)
        await api.call("DELETE", f"/sandboxes/{(await create(api))['sandboxID']}", status=204)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "templateID"),
        ({"templateID": 7}, 400, "templateID"),
        ({"templateID": "nothing"}, 404, "nothing"),
        ({"templateID": "../../etc/passwd"}, 404, "template"),
        ({"templateID": "t" * 100_000}, 404, "template"),
        ({"templateID": "\ud800"}, 400, ""),
        *(({"timeout": value}, 400, "timeout") for value in (0, -1, 1.5, True, "9", 10**30, [], 2592001)),
        *(
            ({"metadata": value}, 400, "metadata")
            for value in (7, [], {"a": 1}, {"a": None}, {"": "x"}, {"a": "v" * 5000})
        ),
        ({"metadata": {str(number): "" for number in range(65)}}, 400, "metadata"),
        *(({"envVars": value}, 400, "") for value in (7, {"a": 1}, {"A=B": "x"}, {"A": "a\0b"}, {"A": "x" * 200_000})),
        ({"allow_internet_access": "no"}, 400, "allow_internet_access"),
        *(
            ({"network": value}, 400, "")
            for value in (7, [], {"allowOut": "x"}, {"denyOut": [7]}, {"denyOut": ["a.com"]})
        ),
        ({"network": {"allowOut": ["example.com"]}}, 400, "denyOut"),
        ({"network": {"allowOut": ["not a name"], "denyOut": ["0.0.0.0/0"]}}, 400, "not a name"),
        ({"network": {"allowPublicTraffic": 7}}, 400, "allowPublicTraffic"),
        ({"network": {"allowOut": ["1.2.3.4"], "denyOut": ["0.0.0.0/0"]}}, 400, "egress"),
        *(({"network": {name: ["x"]}}, 501, name) for name in ("egressProxy", "dnsServers", "httpsPorts")),
        *(
            ({"network": {"rules": value}}, 400, "rules")
            for value in (7, ["x"], {"a.example": {}}, {"a b": [{"transform": {"headers": {"X": "1"}}}]})
        ),
        ({"network": {"rules": {"*.example": []}}}, 501, "wildcards"),
        *(
            ({"network": {"maskRequestHost": value}}, 400, "")
            for value in (
                7,
                ["x"],
                "a b",
                "x\r\nHost: y",
                "a:0",
                "a:${PORT}0",
                "a:b:c",
                "${port}",
                "é",
                "a" * 400,
                ":80",
                "[::1]",
            )
        ),
        ({"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}}, 400, "autoPauseMemory"),
        ({"autoPauseMemory": 7}, 400, "autoPauseMemory"),
        ({"autoPause": "yes"}, 400, "autoPause"),
        ({"autoResume": True}, 400, "autoResume"),
        *(({name: {"x": {}}}, 501, name) for name in ("mcp", "iam")),
        *(({"volumeMounts": value}, 400, "") for value in ({"x": {}}, ["x"], [{"name": "x"}], [{"path": "/x"}])),
    ],
)
async def test_what_is_wrong_with_a_new_sandbox_is_said(admin: Api, body: Any, status: int, says: str) -> None:
    named = body if "templateID" in body or not body else {"templateID": "base", **body}
    message = await refused(admin, "POST", "/v2/sandboxes", named, status=status)
    assert says in message
    assert len(message) < 1000


async def test_no_route_fails_over_a_wrong_request(admin: Api) -> None:
    """Every route of the control plane here, with paths, queries and bodies that nobody expects."""
    bodies: list[Any] = [None, [], 7, "x", {"timeout": "x"}, {"timeout": -1}, {"timeout": 1e400}, {"duration": {}}]
    bodies += [{"allowOut": [[]]}, {"denyOut": 1}, {"allow_internet_access": 1}, {"memory": 2}, {"templateID": {}}]
    raw = [b"{", b"\xff\xfe", b"[" * 10_000, b'{"timeout": 1' + b"0" * 5000 + b"}"]
    names = ("limit", "nextToken", "order", "state", "startedAfter", "metadata", "start", "end", "sandbox_ids")
    texts = ("", "x", "-1", "9" * 40, "\0", "%ff", "é", "a=b&c", "=" * 300, "2026-01-01T00:00:00 99")
    async with of(admin, "walk") as api:
        made = await create(api, timeout=600)
        seen = set[int]()

        async def send(method: str, place: str, **rest: Any) -> None:
            async with api.ask(method, place, **rest) as answer:
                content = await answer.read()
                seen.add(answer.status)
                assert answer.status in (200, 201, 204, 400, 403, 404, 409, 413, 429, 501), (
                    f"{method} {place}: {content[:500]!r}"
                )
                if answer.status >= 400:
                    assert set(json.loads(content)) == {"code", "message"}, content[:500]
                    assert b"/tmp/" not in content
                    assert b"src/warren" not in content

        served = sandboxes, pauses, snapshots, logs, metrics, unsupported
        for name in (name for each in served for name in each.HANDLERS):
            route = E2B_OPERATIONS[name]
            if "e2b_kill_sandbox" in name or "e2b_create_sandbox" in name:
                continue
            for sandbox_id in (made["sandboxID"], NOBODYS, "x", "%00", "F" * 32, "a" * 3000):
                place = route.path.removeprefix("/e2b/api").replace("{sandbox_id}", sandbox_id)
                place = place.replace("{volume_id}", sandbox_id).replace("{secret_id}", sandbox_id)
                if "{" not in route.path and sandbox_id != NOBODYS:
                    continue
                if route.method in ("POST", "PUT", "PATCH"):
                    for body in bodies if sandbox_id == made["sandboxID"] else bodies[-2:]:
                        await send(route.method, place, body=body)
                    for data in raw if sandbox_id == made["sandboxID"] else ():
                        await send(route.method, place, data=data)
                else:
                    await send(route.method, place)
            if route.method == "GET":
                for name in names[-3:] if "metrics" in route.path else names:
                    for text in texts[1:] if "metrics" in route.path else texts:
                        await send("GET", route.path.replace("{sandbox_id}", made["sandboxID"]), **{name: text})
        assert {200, 400, 404, 501} <= seen
        await refused(api, "PATCH", f"/sandboxes/{made['sandboxID']}", status=405)
        for nothing in ("/v2/nothing", "/teams", "/api-keys/1"):
            await refused(api, "GET", nothing, status=404)
        for place in ("/events/sandboxes", f"/events/sandboxes/{NOBODYS}", "/events/webhooks"):
            assert "warren webhooks" in await refused(api, "GET", place, status=501)
        await api.call("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)
