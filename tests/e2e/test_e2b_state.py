"""State that lasts, as E2B's clients ask for it: pauses, snapshots, forks and logs; by itself, and in a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from e2e.alone_or_cluster import KINDS, running
from e2e.api_client import Api, of, until
from e2e.conftest import NewState
from e2e.e2b_client import Envd
from e2e.test_e2b_control import create, limited, refused, seconds_left
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

ADMIN = "the-operator-has-this-key"
NOBODYS = "0" * 32


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[ServerProcess]:
    options = {"WARREN_API_KEY": ADMIN, "WARREN_E2B_TEMPLATES": "base=base", "WARREN_SESSION_LOGS": "output"}
    with running(request.param, new_state, "--pool-size", "0", **options) as place:
        yield place.server


@pytest.fixture
async def admin(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": ADMIN}) as api:
        yield api


def envd(api: Api, made: dict[str, Any]) -> Envd:
    return Envd(str(api.url), made["sandboxID"], made["envdAccessToken"])


async def states(api: Api, **query: Any) -> dict[str, str]:
    return {one["sandboxID"]: one["state"] for one in await api.get("/v2/sandboxes", **query)}


async def has(api: Api, place: str, **values: str) -> dict[str, Any]:
    async def shown() -> dict[str, Any] | None:
        found: dict[str, Any] = await api.get(place)
        return found if all(found.get(name) == value for name, value in values.items()) else None

    found: dict[str, Any] = await until(shown)
    return found


async def write(api: Api, made: dict[str, Any], path: str, text: str) -> None:
    async with envd(api, made) as inside:
        out = await inside.run(f"echo {text} > {path}")
        assert out[2]["exitCode"] == 0


async def read(api: Api, made: dict[str, Any], path: str) -> str:
    async with envd(api, made) as inside:
        out, _, _ = await inside.run(f"cat {path}")
        return out.decode().strip()


# -- pauses


async def test_a_paused_sandbox_is_gone_for_its_users_until_somebody_connects(admin: Api) -> None:
    async with of(admin, "pause") as api:
        made, other = await create(api, timeout=40), await create(api)
        place = f"/sandboxes/{made['sandboxID']}"
        async with envd(api, made) as inside, inside.started("cat", stdin=True) as stream:
            pid = await stream.start()
            await api.post(f"{place}/pause", {"memory": True, "requireHealthyGuest": True}, status=204)
            assert "already" in await refused(api, "POST", f"{place}/pause", {}, status=409)
            shown = await api.get(place)
            assert (shown["state"], shown["pauseMode"]) == ("paused", "full")
            assert shown["lifecycle"] == {"onTimeout": "kill", "autoResume": False}
            assert seconds_left(shown) > 29 * 86400
            assert await states(api) == {made["sandboxID"]: "paused", other["sandboxID"]: "running"}
            assert await states(api, state="paused") == {made["sandboxID"]: "paused"}
            assert await states(api, state="running") == {other["sandboxID"]: "running"}
            assert [one["sandboxID"] for one in await api.get("/sandboxes")] == [other["sandboxID"]]
            assert isinstance(await api.get(f"{place}/metrics"), list)
            for way in (
                inside.http.get("/health"),
                inside.http.post("/process.Process/List", json={}),
                inside.http.get("/files", params={"path": "note"}),
                inside.http.get("/health", headers={"E2b-Sandbox-Port": "49999"}),
                inside.http.get("/", headers={"E2b-Sandbox-Port": "3000"}),
            ):
                answer = await way
                assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")
            for below in ("/timeout", "/refreshes"):
                await refused(api, "POST", place + below, {"timeout": 60}, status=404)
            assert (await api.get(place))["state"] == "paused"
            again = await api.post(f"/v2{place}/connect", {"timeout": 20}, status=201)
            assert again == made
            assert 15 < seconds_left(await api.get(place)) <= 20, "its time begins anew, also a shorter one"
            sent = await inside.call("SendInput", {"process": {"pid": pid}, "input": {"stdin": "Mgo="}})
            assert sent == (200, {})
            await inside.done("CloseStdin", {"process": {"pid": pid}})
            assert (await stream.end())["exitCode"] == 0
            assert stream.output["stdout"] == b"2\n"
        assert await api.post(f"/v2{place}/connect", {}) == made
        await refused(api, "POST", f"{place}/resume", {}, status=409)
        await api.post(f"{place}/pause", status=204)
        assert await api.post(f"{place}/resume", {"timeout": 77}, status=201) == made
        assert 70 < seconds_left(await api.get(place)) <= 77
        await asyncio.gather(*(api.post(f"{place}/pause", status=204) for _ in range(3)), return_exceptions=True)
        await api.call("DELETE", place, status=204)
        for below in ("/pause", "/resume", "/connect", "/fork", "/snapshots"):
            await refused(api, "POST", place + below, {}, status=404)
        await api.call("DELETE", f"/sandboxes/{other['sandboxID']}", status=204)


async def test_a_sandbox_that_is_paused_at_its_timeout_wakes_for_its_users_if_it_may(admin: Api) -> None:
    async with of(admin, "auto") as api:
        wish = {"autoPause": True, "autoResume": {"enabled": True}, "timeout": 2}
        made, still = await create(api, **wish), await create(api, autoPause=True, timeout=2)
        place, other = f"/sandboxes/{made['sandboxID']}", f"/sandboxes/{still['sandboxID']}"
        await write(api, made, "note", "kept")
        assert (await has(api, place, state="paused"))["lifecycle"] == {"onTimeout": "pause", "autoResume": True}
        assert (await has(api, other, state="paused"))["lifecycle"] == {"onTimeout": "pause", "autoResume": False}
        async with envd(api, made) as inside:
            assert (await inside.http.get("/health")).status_code == 502
        assert await states(api, state="running") == {}, "looking does not wake it"
        assert await read(api, made, "note") == "kept"
        assert 290 < seconds_left(await has(api, place, state="running")) <= 300
        await api.post(f"{place}/timeout", {"timeout": 0}, status=204)
        await has(api, place, state="paused")
        assert await read(api, made, "note") == "kept"
        async with envd(api, still) as inside:
            assert (await inside.http.post("/process.Process/List", json={})).status_code == 502
        await api.post(f"/v2{other}/connect", {"timeout": 1}, status=201)
        await has(api, other, state="paused")
        for each in (place, other):
            await api.call("DELETE", each, status=204)


async def test_quotas_bound_who_pauses_and_who_goes_on(admin: Api) -> None:
    async with limited(admin, "bounded", sessions=1, paused_sessions=1, max_lifetime_s=120) as api:
        first = f"/sandboxes/{(await create(api, timeout=100))['sandboxID']}"
        await api.post(f"{first}/pause", status=204)
        second = f"/sandboxes/{(await create(api))['sandboxID']}"
        assert "paused" in await refused(api, "POST", f"{second}/pause", {}, status=429)
        await refused(api, "POST", f"{first}/connect", {}, status=429)
        assert (await api.get(first))["state"] == "paused"
        await api.call("DELETE", second, status=204)
        assert "120" in await refused(api, "POST", f"{first}/connect", {"timeout": 121}, status=400)
        await api.post(f"{first}/connect", {"timeout": 120}, status=201)
        assert 115 < seconds_left(await api.get(first)) <= 120, "a pause begins its life anew"
        await api.call("DELETE", first, status=204)


async def test_files_alone_are_kept_where_that_is_asked_for(admin: Api) -> None:
    async with of(admin, "memory") as api:
        made = await create(api, timeout=50)
        place = f"/sandboxes/{made['sandboxID']}"
        await write(api, made, "note", "kept")

        async def is_fresh() -> bool:
            async with envd(api, made) as inside:
                listed = await inside.processes()
            return not listed

        for step in ("pause", "connect", "timeout"):
            async with envd(api, made) as inside, inside.started("sleep 1000") as stream:
                await stream.start()
            assert not await is_fresh()
            if step == "connect":
                await api.post(f"/v2{place}/connect", {"memory": False})  # nothing to a sandbox that runs
                assert not await is_fresh()
                await api.post(f"{place}/pause", status=204)
                assert (await api.get(place))["pauseMode"] == "full"
            elif step == "pause":
                await api.post(f"{place}/pause", {"memory": False}, status=204)
                assert (await api.get(place))["pauseMode"] == "filesystem"
                assert await states(api, state="paused") == {made["sandboxID"]: "paused"}
                await refused(api, "POST", f"{place}/pause", {"memory": False}, status=409)
                async with envd(api, made) as inside:
                    assert (await inside.http.get("/health")).status_code == 502
            else:
                await api.call("DELETE", place, status=204)
                made = await create(api, autoPause=True, autoPauseMemory=False, timeout=2)
                place = f"/sandboxes/{made['sandboxID']}"
                await write(api, made, "note", "kept")
                await has(api, place, pauseMode="filesystem")
            body = {"timeout": 90, "memory": False} if step == "connect" else {"timeout": 90}
            assert await api.post(f"/v2{place}/connect", body, status=201) == made
            assert 80 < seconds_left(await api.get(place)) <= 90
            assert await is_fresh()
            assert await read(api, made, "note") == "kept"
        assert "memory" in await refused(api, "POST", f"{place}/snapshots", {"memory": True}, status=501)
        await api.call("DELETE", place, status=204)
        assert await api.get("/snapshots") == []


# -- snapshots and forks


async def test_snapshots_are_templates(admin: Api) -> None:
    async with of(admin, "snaps") as api:
        made = await create(api)
        place = f"/sandboxes/{made['sandboxID']}"
        await write(api, made, "note", "one")
        plain = await api.post(f"{place}/snapshots", {}, status=201)
        assert set(plain) == {"snapshotID", "names"}
        assert plain["names"] == []
        first = await api.post(f"{place}/snapshots", {"name": "ready", "memory": False}, status=201)
        await write(api, made, "note", "two")
        tagged = await api.post(f"{place}/snapshots", {"name": "ready:v2"}, status=201)
        assert (first["names"], tagged["names"]) == (["ready:default"], ["ready:v2"])
        for template, text in [
            (plain["snapshotID"], "one"),
            (f"{plain['snapshotID']}:default", "one"),
            ("ready", "one"),
            ("ready:default", "one"),
            ("ready:v2", "two"),
        ]:
            other = await create(api, templateID=template)
            assert await read(api, other, "note") == text
            assert other["templateID"].startswith("snap_")
            await api.call("DELETE", f"/sandboxes/{other['sandboxID']}", status=204)

        async def pages(**query: Any) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            token = ""
            while True:
                async with api.ask("GET", "/snapshots", **query, **({"nextToken": token} if token else {})) as answer:
                    assert answer.status == 200
                    found += await answer.json()
                    if not (token := answer.headers.get("x-next-token", "")):
                        return found

        assert await pages() == await pages(limit=1) == [tagged, first, plain]
        assert await pages(name="ready") == [tagged, first]
        assert await pages(name="ready:v2") == [tagged]
        assert await pages(name=first["snapshotID"]) == [first]
        assert await pages(name="another") == await pages(sandboxID=NOBODYS) == await pages(sandboxID="x") == []
        assert await pages(sandboxID=made["sandboxID"], limit=2) == [tagged, first, plain]

        async with of(admin, "others") as theirs:
            assert await theirs.get("/snapshots") == []
            for which in ("ready", plain["snapshotID"]):
                await refused(theirs, "DELETE", f"/templates/{which}", status=404)
                await refused(theirs, "POST", "/v2/sandboxes", {"templateID": which}, status=404)
            for below in ("/pause", "/fork", "/snapshots"):
                await refused(theirs, "POST", place + below, {}, status=404)
        async with of(admin, "snaps", "read") as reader:
            await refused(reader, "DELETE", f"/templates/{plain['snapshotID']}", status=403)
            await refused(reader, "POST", f"{place}/snapshots", {}, status=403)
            assert len(await reader.get("/snapshots")) == 3

        for name in ("base", "base:v1", "a b", "snap_x", "x" * 65, "ü", ":v1", "a:b:c"):
            await refused(api, "POST", f"{place}/snapshots", {"name": name}, status=400)
        await api.post(f"{place}/pause", status=204)
        last = await api.post(f"{place}/snapshots", {}, status=201)
        assert (await api.get(place))["state"] == "paused"
        await api.call("DELETE", place, status=204)
        for which in (plain["snapshotID"], "ready:default", "ready:v2", last["snapshotID"]):
            await api.call("DELETE", f"/templates/{which}", status=204)
            await refused(api, "DELETE", f"/templates/{which}", status=404)
        assert await api.get("/snapshots") == []


async def test_forks_have_the_files_and_a_time_of_their_own(admin: Api) -> None:
    async with limited(admin, "forks", sessions=3) as api:
        wish = {"autoPause": True, "autoResume": {"enabled": True}, "metadata": {"a": "1"}, "envVars": {"B": "2"}}
        made = await create(api, timeout=100, network={"allowPublicTraffic": False}, **wish)
        place = f"/sandboxes/{made['sandboxID']}"
        await write(api, made, "note", "before")
        results = await api.post(f"{place}/fork", {"timeout": 60, "count": 3}, status=201)
        results.sort(key=lambda one: "error" in one)
        assert [set(one) for one in results] == [{"sandbox"}, {"sandbox"}, {"error"}]
        assert results[2]["error"]["code"] == 429
        ids = {one["sandbox"]["sandboxID"] for one in results[:2]}
        assert len(ids) == 2
        for fork in (one["sandbox"] for one in results[:2]):
            shown = await api.get(f"/sandboxes/{fork['sandboxID']}")
            assert (shown["templateID"], shown["metadata"]) == ("base", {"a": "1"})
            assert shown["lifecycle"] == {"onTimeout": "pause", "autoResume": True}
            assert shown["network"]["allowPublicTraffic"] is False
            assert 50 < seconds_left(shown) <= 60
            assert await read(api, fork, "note") == "before"
            await write(api, fork, "note", "after")
        assert await read(api, made, "note") == "before"
        assert 50 < seconds_left(await api.get(place)) <= 100
        assert await api.get("/snapshots") == [], "what a fork begins from is gone"
        for fork in ids:
            await api.call("DELETE", f"/sandboxes/{fork}", status=204)
        await api.post(f"{place}/pause", status=204)
        (one,) = await api.post(f"{place}/fork", status=201)
        assert 5 < seconds_left(await api.get(f"/sandboxes/{one['sandbox']['sandboxID']}")) <= 15
        assert (await api.get(place))["state"] == "paused"
        for body in ({"count": 0}, {"count": 21}, {"count": "x"}, {"timeout": 0}):
            await refused(api, "POST", f"{place}/fork", body, status=400)
        for each in (place, f"/sandboxes/{one['sandbox']['sandboxID']}"):
            await api.call("DELETE", each, status=204)


# -- logs


async def test_logs_are_read_while_it_runs_and_afterwards(admin: Api) -> None:
    async with of(admin, "logs") as api, of(admin, "others") as theirs:
        made = await create(api)
        place = f"/sandboxes/{made['sandboxID']}"
        async with envd(api, made) as inside:
            await inside.run("echo hello")
            await inside.run("exit 3")

        async def logged() -> dict[str, Any] | None:
            found: dict[str, Any] = await api.get(f"{place}/logs")
            return found if any(one["level"] == "warn" for one in found["logEntries"]) else None

        found = await until(logged)
        assert set(found) == {"logs", "logEntries"}
        assert [set(one) for one in found["logEntries"][:1]] == [{"timestamp", "message", "level", "fields"}]
        assert "hello\n" in [one["message"] for one in found["logEntries"]]
        assert all(isinstance(value, str) for one in found["logEntries"] for value in one["fields"].values())
        lines = [json.loads(one["line"]) for one in found["logs"]]
        assert {line["level"] for line in lines} == {"info", "warn"}
        assert {line["logger"] for line in lines} == {"process"}
        newest = (await api.get(f"/v2{place}/logs", direction="backward", limit=1))["logs"]
        assert newest == found["logEntries"][-1:]
        assert (await api.get(f"/v2{place}/logs", level="warn"))["logs"] == newest
        assert (await api.get(f"/v2{place}/logs", search="hello\n", limit=9))["logs"][0]["message"] == "hello\n"
        assert (await api.get(f"{place}/logs", start=str(1 << 45)))["logs"] == []
        assert (await api.get(f"{place}/logs", limit=1, start="1"))["logEntries"] == found["logEntries"][:1]
        for query in ("level=x", "direction=x", "limit=x", "cursor=-1"):
            await refused(api, "GET", f"/v2{place}/logs?{query}", status=400)
        await refused(theirs, "GET", f"{place}/logs", status=404)
        await api.call("DELETE", place, status=204)
        assert (await api.get(f"{place}/logs"))["logEntries"][: len(found["logEntries"])] == found["logEntries"]
        assert await api.get(f"/v2{place}/logs", limit=0)
        await refused(api, "GET", f"/sandboxes/{NOBODYS}/logs", status=404)
