"""/api/audit and /api/usage: every tenant sees its own records, the operator all of them."""

import csv
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from e2e.api_client import Api, of, until
from e2e.conftest import NewState
from server_process import running_server

from warren.governance.audit.refusals import RECORDED_REFUSALS_PER_MINUTE

pytestmark = pytest.mark.anyio

OWN = ("/api/audit", "/api/usage")
ALL = ("/api/admin/audit", "/api/admin/usage")


async def ran(api: Api, command: str) -> str:
    """Runs it in a session of its own; the session's id."""
    async with api.session() as session:
        await session.exec(command)
        return session.id


def commands_in(page: dict[str, Any]) -> list[Any]:
    return [deed["detail"]["command"] for deed in page["deeds"] if "command" in deed["detail"]]


async def recorded(api: Api, session_id: str, count: int) -> list[dict[str, Any]]:
    """The requests for a session, when there are so many: the last may be over a moment after it was answered."""

    async def found() -> list[dict[str, Any]]:
        page = await api.get("/api/audit", session_id=session_id, limit=100)
        deeds = [deed for deed in page["deeds"] if deed["status"]]
        return deeds if len(deeds) >= count else []

    deeds: list[dict[str, Any]] = await until(found)
    return deeds


# -- audit


async def test_a_deed_is_found_with_who_did_it_and_what_came_of_it(admin: Api) -> None:
    async with of(admin, "found") as api:
        session_id = await ran(api, "exit 3")
        (deed,) = (await api.get("/api/audit", action="run_command"))["deeds"]
        key_id = (await api.get("/api/whoami"))["key_id"]
    assert (deed["tenant"], deed["key_id"], deed["session_id"]) == ("found", key_id, session_id)
    assert (deed["status"], deed["result"], deed["client"]) == (200, "ok", "127.0.0.1")
    assert (deed["detail"]["command"], deed["detail"]["exit_code"]) == ("exit 3", 3)
    assert datetime.fromisoformat(deed["at"]) <= datetime.now(UTC)


async def test_another_tenants_deeds_never_show(admin: Api) -> None:
    async with of(admin, "quiet") as quiet, of(admin, "loud") as loud:
        session_id = await ran(loud, "echo of-loud")
        await ran(quiet, "echo of-quiet")
        key_id = (await loud.get("/api/whoami"))["key_id"]
        for asked in ({}, {"session_id": session_id}, {"key_id": key_id}, {"tenant": "loud"}, {"of": "loud"}):
            page = await quiet.get("/api/audit", **asked)
            assert {deed["tenant"] for deed in page["deeds"]} <= {"quiet"}
            assert "of-loud" not in json.dumps(page)
        assert commands_in(await loud.get("/api/audit")) == ["echo of-loud"]
        assert (await quiet.get("/api/audit", session_id=session_id))["deeds"] == []


async def test_the_operator_sees_all_or_one_and_what_belongs_to_none(admin: Api) -> None:
    async with of(admin, "one") as one, of(admin, "two") as two, Api(admin.url, {"X-API-Key": "wrong"}) as stranger:
        await ran(one, "echo of-one")
        await ran(two, "echo of-two")
        await stranger.refused("GET", "/api/audit", status=401, code="unauthorized")
    everything = await admin.get("/api/admin/audit", limit=1000)
    assert {"one", "two", ""} <= {deed["tenant"] for deed in everything["deeds"]}
    assert 401 in {deed["status"] for deed in everything["deeds"] if not deed["tenant"]}
    assert commands_in(await admin.get("/api/admin/audit", tenant="one")) == ["echo of-one"]


async def test_every_way_in_leaves_the_same_record(admin: Api) -> None:
    """Which session, what, and what came of it, whatever the vocabulary of the request."""
    async with of(admin, "traced") as api, api.session() as session:
        named, fails = {"session_id": session.id}, {"command": "exit 3"}
        await session.exec("exit 3")
        for _ in range(2):
            await session.exec("exit 3", headers={"Idempotency-Key": "traced"})
        await api.post("/execute", {**named, **fails})
        await api.get("/list_files", **named)
        await api.post("/api/e2b/files", {**named, "path": "a.txt", "content": "a"}, status=201)
        await session.start("exit 3", process_id="traced")
        await session.post("/processes/traced/kill", {})
        async with session.socket("/exec") as socket:
            await socket.raw.send_json(fails)
            await socket.end()
        async with session.events("POST", "/exec", fails) as events:
            assert [event.kind async for event in events][-1] == "result"
        deeds = await recorded(api, session.id, 11)
    traced = Counter((deed["action"], deed["result"], deed["detail"].get("exit_code")) for deed in deeds)
    assert traced == {
        ("create_session", "ok", None): 1,
        ("run_command", "ok", 3): 4,
        ("flat_execute", "ok", 3): 1,
        ("flat_list_files", "ok", None): 1,
        ("e2b_write_file", "ok", None): 1,
        ("start_process", "ok", None): 1,
        ("kill_process", "ok", None): 1,
        ("exec_socket", "ok", 3): 1,
    }
    processes = {deed["action"]: deed["detail"].get("process_id") for deed in deeds}
    assert processes["start_process"] == processes["kill_process"] == "traced"


async def test_code_is_judged_and_recorded_as_the_caller_wrote_it(admin: Api) -> None:
    """In the environment Node, code without a language is JavaScript, which the fake does not have."""
    await admin.call("PUT", "/api/admin/tenants/coder", {"policy": {"mode": "enforce", "deny": ["curl"]}})
    async with of(admin, "coder") as api, api.session(environment="Node") as session:

        async def run(code: str, **more: str) -> Any:
            return (await api.post("/api/e2b/execute", {"session_id": session.id, "code": code, **more}))["reason"]

        assert await run("echo a; curl example.org", language="bash") == "refused"
        assert await run("echo b", language="bash") == "exited"
        body = {"session_id": session.id, "code": "console.log(6 * 7)"}
        missing = await api.refused("POST", "/api/e2b/execute", body, status=422, code="language_missing")
        assert "javascript" in missing["detail"]
        deeds = await recorded(api, session.id, 4)
    # The interpreter that could not be started stands for the last one.
    assert sorted(commands_in({"deeds": deeds})) == ["echo a; curl example.org", "echo b", "node -e ''"]


async def test_what_comes_to_nothing_is_recorded_with_the_session_that_was_named(admin: Api) -> None:
    async with of(admin, "nothing") as api:
        named = {"session_id": "ses_none"}
        await api.refused(
            "POST", "/api/sessions/ses_none/exec", {"command": "id"}, status=404, code="session_not_found"
        )
        await api.refused("POST", "/execute", {**named, "command": "id"}, status=404, code="session_not_found")
        async with api.socket("/api/sessions/ses_none/terminal") as socket:
            await socket.expect("error")
        deeds = await recorded(api, "ses_none", 3)
    assert {deed["action"] for deed in deeds} == {"run_command", "flat_execute", "terminal_socket"}
    assert {deed["result"] for deed in deeds} == {"session_not_found"}


async def test_a_flood_that_is_refused_at_the_door_does_not_fill_the_record(admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/flood", {"quota": {"requests_per_minute": 0}})
    async with of(admin, "flood") as api:
        for _ in range(2 * RECORDED_REFUSALS_PER_MINUTE + 20):
            await api.refused("GET", "/api/sessions", status=429, code="rate_limited")
    found = await admin.get("/api/admin/audit", tenant="flood", limit=1000)
    refused = [deed for deed in found["deeds"] if deed["result"] == "rate_limited"]
    # A minute may have ended in between, and then it is twice as many.
    assert RECORDED_REFUSALS_PER_MINUTE <= len(refused) <= 2 * RECORDED_REFUSALS_PER_MINUTE


async def test_strangers_are_in_nobodys_usage(new_state: NewState) -> None:
    with running_server(new_state(), provider="fake", WARREN_API_KEY="the-operator") as server:
        async with Api(server.url) as api:
            await api.refused("GET", "/api/sessions", status=401, code="unauthorized")
        async with Api(server.url, {"X-API-Key": "the-operator"}) as api:
            assert (await api.get("/api/admin/usage"))["usage"] == []


async def test_the_filters_choose(admin: Api) -> None:
    async with of(admin, "choosy") as api:
        first = await ran(api, "echo first")
        seen = (await api.get("/api/audit", limit=1))["deeds"][0]["at"]
        await ran(api, "echo second")
        assert commands_in(await api.get("/api/audit", session_id=first)) == ["echo first"]
        assert commands_in(await api.get("/api/audit")) == ["echo second", "echo first"]
        assert "echo second" in commands_in(await api.get("/api/audit", since=seen))
        assert commands_in(await api.get("/api/audit", until=seen)) == ["echo first"]
        unix = datetime.fromisoformat(seen).timestamp()
        assert commands_in(await api.get("/api/audit", until=f"{unix:.3f}")) == ["echo first"]
        assert commands_in(await api.get("/api/audit", until=seen.replace("Z", "+00:00"))) == ["echo first"]
        assert commands_in(await api.get("/api/audit", since="2100-01-01")) == []
        created = await api.get("/api/audit", action="create_session")
        assert [deed["status"] for deed in created["deeds"]] == [201, 201]


async def test_pages_follow_each_other_without_gap_or_repetition(admin: Api) -> None:
    async with of(admin, "paged") as api:
        for number in range(5):
            await ran(api, f"echo {number}")
        found: list[Any] = []
        after: str | None = ""
        while after is not None:
            page = await api.get("/api/audit", action="run_command", limit=2, **({"after": after} if after else {}))
            assert len(page["deeds"]) <= 2
            found += commands_in(page)
            after = page["next"]
    assert found == [f"echo {number}" for number in (4, 3, 2, 1, 0)]


async def test_who_made_or_revoked_a_key_is_written_down_and_the_key_is_not(admin: Api) -> None:
    made = await admin.post("/api/admin/keys", {"name": "noted", "tenant": "noted"}, status=201)
    await admin.call("DELETE", f"/api/admin/keys/{made['id']}", status=204)
    page = await admin.get("/api/audit", limit=1000)
    done = [deed["action"] for deed in page["deeds"] if deed["detail"].get("about") == made["id"]]
    assert done == ["revoke_key", "create_key"]
    assert made["key"] not in json.dumps(page)


async def test_what_was_set_for_a_tenant_and_which_webhook_was_made_is_written_down(admin: Api) -> None:
    wanted = {"quota": {"sessions": 7}, "policy": {"mode": "audit", "deny": ["curl"]}}
    await admin.call("PUT", "/api/admin/tenants/bounded", wanted)
    hook = await admin.post("/api/webhooks", {"url": "https://hooks.example.com/x"}, status=201)
    await admin.call("DELETE", f"/api/webhooks/{hook['id']}", status=204)
    page = await admin.get("/api/audit", limit=1000)
    done = {(deed["action"], deed["detail"].get("about")): deed["detail"] for deed in page["deeds"]}
    set_for = done["put_tenant", "bounded"]
    assert (set_for["quota"], set_for["policy"]) == ({"sessions": 7}, "audit")
    assert {("create_webhook", hook["id"]), ("delete_webhook", hook["id"])} <= done.keys()
    assert hook["secret"] not in json.dumps(page)


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "yesterday"},
        {"since": "nan"},
        {"until": "2026-02-30"},
        {"until": "1e9"},
        {"until": "-1"},
        {"limit": "0"},
        {"limit": "1001"},
        {"after": "nowhere"},
    ],
)
async def test_what_cannot_be_asked_is_said(admin: Api, asked: dict[str, str]) -> None:
    for place in ("/api/audit", "/api/admin/audit"):
        await admin.refused("GET", place, status=422, code="invalid_request", **asked)


async def test_a_server_without_a_record_says_so(new_state: NewState) -> None:
    with running_server(new_state(), "--no-audit", provider="fake") as server:
        async with Api(server.url) as api:
            for place in ("/api/audit", "/api/admin/audit"):
                refused = await api.refused("GET", place, status=404, code="not_found")
                assert "--audit" in refused["remedy"]


# -- usage


async def test_usage_is_the_tenants_own(admin: Api) -> None:
    async with of(admin, "busy") as busy, of(admin, "idle") as idle:
        for _ in range(3):
            await ran(busy, "echo used")
        found = await busy.get("/api/usage")
        (row,) = found["usage"]
        assert (row["tenant"], row["sessions"], row["commands"]) == ("busy", 3, 3)
        assert found["total"] == {name: value for name, value in row.items() if name not in ("day", "tenant")}
        for asked in ({}, {"tenant": "busy"}, {"of": "busy"}):
            assert {each["tenant"] for each in (await idle.get("/api/usage", **asked))["usage"]} <= {"idle"}


async def test_usage_tells_what_artifacts_take_now(admin: Api) -> None:
    async with of(admin, "keeps") as keeps, of(admin, "idle") as idle:
        async with keeps.session() as session:
            await session.write("artifacts/data.bin", bytes(4321))
        assert (await keeps.get("/api/usage"))["artifact_bytes"] == 4321
        assert (await idle.get("/api/usage"))["artifact_bytes"] == 0
        assert (await admin.get("/api/admin/usage", tenant="keeps"))["artifact_bytes"] == 4321
        assert (await admin.get("/api/admin/usage"))["artifact_bytes"] >= 4321


async def test_the_operator_sees_the_usage_of_all_or_one(admin: Api) -> None:
    async with of(admin, "left") as left, of(admin, "right") as right:
        await ran(left, "true")
        await ran(right, "true")
    assert {"left", "right"} <= {row["tenant"] for row in (await admin.get("/api/admin/usage"))["usage"]}
    assert {row["tenant"] for row in (await admin.get("/api/admin/usage", tenant="left"))["usage"]} == {"left"}


async def test_usage_as_a_table(admin: Api) -> None:
    async with of(admin, "tabled") as api:
        await ran(api, "true")
        for how in ({"format": "csv"}, {"headers": {"Accept": "text/csv"}}):
            async with api.ask("GET", "/api/usage", **how) as answer:
                assert (answer.status, answer.content_type) == (200, "text/csv")
                (row,) = csv.DictReader((await answer.text()).splitlines())
            assert (row["tenant"], row["sessions"], row["commands"]) == ("tabled", "1", "1")
        await api.get("/api/usage", format="json", headers={"Accept": "text/csv"})


async def test_days_are_chosen(admin: Api) -> None:
    async with of(admin, "daily") as api:
        await ran(api, "true")
        today = (await api.get("/api/usage"))["last"]
        assert (await api.get("/api/usage"))["first"] == f"{today[:8]}01"
        before = (datetime.fromisoformat(today) - timedelta(days=40)).date()
        past = await api.get("/api/usage", last=before.isoformat())
        assert (past["first"], past["last"]) == (before.replace(day=1).isoformat(), before.isoformat())
        assert past["usage"] == []
        assert (await api.get("/api/usage", first=before.isoformat()))["total"]["sessions"] == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"first": "2026-02-30"},
        {"first": "20260101"},
        {"last": "0"},
        {"last": ""},
        {"first": "2026-02-02", "last": "2026-02-01"},
        {"first": "9999-01-01"},
        {"format": "xml"},
    ],
)
async def test_days_that_cannot_be_are_said(admin: Api, asked: dict[str, str]) -> None:
    await admin.refused("GET", "/api/usage", status=422, code="invalid_request", **asked)


# -- scopes


async def test_records_are_for_those_who_may_read_and_all_of_them_for_admins(admin: Api) -> None:
    async with of(admin, "scoped", "exec", "files", "sessions") as blind, of(admin, "scoped", "read") as reader:
        for place in OWN:
            await blind.refused("GET", place, status=403, code="forbidden")
            await reader.get(place)
        for place in ALL:
            await reader.refused("GET", place, status=403, code="forbidden")
            await reader.refused("GET", place, tenant="scoped", status=403, code="forbidden")


async def test_a_key_with_the_scope_audit_reads_the_records_of_all_and_does_nothing_else(admin: Api) -> None:
    async with of(admin, "auditors", "audit") as auditor:
        for place in ALL:
            await auditor.get(place)
        for place in OWN:
            await auditor.refused("GET", place, status=403, code="forbidden")
        await auditor.refused("POST", "/api/sessions", {}, status=403, code="forbidden")
        await auditor.refused("GET", "/api/sessions", status=403, code="forbidden")
        await auditor.refused("GET", "/api/admin/keys", status=403, code="forbidden")
        await auditor.refused("POST", "/api/admin/keys", {"name": "x"}, status=403, code="forbidden")
        await auditor.refused("DELETE", "/api/admin/tenants/auditors", status=403, code="forbidden")


# -- quotas


async def test_a_caller_sees_its_quotas_and_what_it_uses_of_them(admin: Api) -> None:
    bounds = {"sessions": 5, "requests_per_minute": 1000, "exec_seconds_per_day": 100, "artifacts_mb": 3}
    await admin.call("PUT", "/api/admin/tenants/measured", {"quota": bounds})
    async with of(admin, "measured") as api, api.session() as session:
        await session.write("a.txt", b"kept")
        await session.post("/artifacts", {"paths": ["a.txt"]}, status=201)
        await session.exec("true")
        shown = await api.get("/api/quotas")
        rows = {row["name"]: row for row in shown["quotas"]}
        assert {row["of"] for row in shown["quotas"]} == {"tenant"}
        assert {name: rows[name]["bound"] for name in bounds} == bounds
        assert [rows[name]["used"] for name in ("sessions", "artifacts_mb", "gpus")] == [1, 1, 0]
        assert rows["disk_mb"]["bound"] is None
        assert rows["disk_mb"]["used"] > 0
        assert rows["requests_per_minute"]["used"] == 5
        assert (rows["creates_per_minute"]["bound"], rows["creates_per_minute"]["used"]) == (None, None)
        assert (rows["exec_seconds_per_day"]["per"], rows["sessions"]["per"]) == ("day", "now")
        seen = await admin.get("/api/admin/quotas", of="measured")
        assert {row["name"]: row["bound"] for row in seen["quotas"]} == {
            name: row["bound"] for name, row in rows.items()
        }
        assert next(row["used"] for row in seen["quotas"] if row["name"] == "sessions") == 1
        await api.refused("GET", "/api/admin/quotas", status=403, code="forbidden", of="measured")
        key = {"name": "few", "tenant": "measured", "quota": {"sessions": 2}}
        few = (await admin.post("/api/admin/keys", key, status=201))["key"]
        async with Api(admin.url, {"X-API-Key": few}) as other:
            last = (await other.get("/api/quotas"))["quotas"][-1]
            assert last == {"name": "sessions", "of": "key", "per": "now", "bound": 2, "used": 0}
