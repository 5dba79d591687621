"""Cells are commands: policies judge them, exec seconds pay for them, the audit record has them, tenants are apart."""

import asyncio
import json
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, of, until
from e2e.code_suite import cell, contexts, is_busy, said
from e2e.conftest import NewState
from server_process import running_server

pytestmark = pytest.mark.anyio


async def recorded(api: Api, action: str, count: int) -> list[dict[str, Any]]:
    async def found() -> list[dict[str, Any]]:
        deeds = (await api.get("/api/audit", action=action, limit=100))["deeds"]
        return deeds if len(deeds) >= count else []

    deeds: list[dict[str, Any]] = await until(found)
    return deeds


async def test_the_code_is_judged_and_recorded_as_the_caller_wrote_it(admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/judged", {"policy": {"mode": "enforce", "deny": ["curl"]}})
    async with of(admin, "judged") as api, api.session(env={"TOKEN": "very-secret-value"}) as session:
        refused = await cell(session, "echo a; curl example.org")
        assert (refused["reason"], refused["error"]["name"], said(refused)) == ("refused", "CommandRefused", "")
        assert "curl" in refused["error"]["value"]
        async with session.events("POST", "/code", {"code": "curl x", "language": "bash"}) as events:
            last = [event async for event in events][-1]
        assert (last.kind, last.data["reason"]) == ("end", "refused")
        assert said(await cell(session, "echo fine; echo very-secret-value")) == "fine\nvery-secret-value\n"
        await cell(session, "print(1)", language="python")
        deeds = await recorded(api, "run_code", 4)
    commands = sorted(deed["detail"]["command"] for deed in deeds)
    assert commands[0] == "curl x"
    assert commands[1] == "echo a; curl example.org"
    assert commands[2].startswith("echo fine; echo ")
    assert "very-secret-value" not in json.dumps(deeds)
    assert commands[3] == "python3 -c 'print(1)'"
    assert {deed["detail"]["reason"] for deed in deeds} == {"refused", "exited"}


async def test_a_language_that_the_policy_forbids_cannot_be_started(admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/no-bash", {"policy": {"mode": "enforce", "deny": ["bash"]}})
    async with of(admin, "no-bash") as api, api.session() as session:
        await session.refused("POST", "/contexts", {"language": "bash"}, status=403, code="command_refused")
        for headers in ({}, {"Idempotency-Key": "refused"}):
            assert (await cell(session, "echo hello", headers=headers))["reason"] == "refused"
        assert await contexts(session) == {}


async def test_exec_seconds_pay_for_cells_and_not_for_a_context_that_waits(admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/paying", {"quota": {"exec_seconds_per_day": 6}})
    async with of(admin, "paying") as api, api.session() as session:
        await cell(session, "true")  # one for the context's start, one for the cell
        await asyncio.sleep(3)
        assert said(await cell(session, "echo 3")) == "3\n"
        ended = await cell(session, "sleep 60")
        assert ended["reason"] in ("timeout", "cancelled")
        await session.refused("POST", "/code", {"code": "", "language": "bash"}, status=429, code="quota_exceeded")
        await session.refused("POST", "/contexts", {"language": "bash"}, status=429, code="quota_exceeded")


async def test_tenants_do_not_see_each_others_contexts(admin: Api) -> None:
    async with of(admin, "mine") as mine, of(admin, "theirs") as theirs, theirs.session() as session:
        made = await session.post("/contexts", {"language": "bash"}, status=201)
        slow = asyncio.create_task(cell(session, "sleep 1; echo done", context=made["id"]))
        await until(lambda: is_busy(session, made["id"]))
        place = f"/api/sessions/{session.id}"
        context = f"{place}/contexts/{made['id']}"
        for method, path, body in (
            ("GET", f"{place}/contexts", None),
            ("POST", f"{place}/contexts", {"language": "bash"}),
            ("DELETE", context, None),
            ("POST", f"{context}/restart", None),
            ("POST", f"{context}/interrupt", None),
            ("POST", f"{place}/code", {"code": "true", "context": made["id"]}),
            ("GET", f"{place}/code/cell_1", None),
        ):
            await mine.refused(method, path, body, status=404, code="session_not_found")
        async with mine.session() as own:  # the same id in a session of one's own is not that context
            body = {"code": "true", "context": made["id"]}
            await own.refused("POST", "/code", body, status=404, code="context_not_found")
            assert await contexts(own) == {}
        assert said(await slow) == "done\n"


async def test_a_cell_outlives_the_server_and_can_be_read_again(new_state: NewState) -> None:
    with running_server(new_state(), "--pool-size", "1") as server:
        async with Api(server.url) as api:
            found = await api.post("/api/sessions", {}, status=201)
            session = SessionApi(api, found)
            assert (await cell(session, "x = 1", language="python"))["reason"] == "exited"
            code = "print('one', flush=True); import time; time.sleep(6); print('two'); x + 1"
            keyed = asyncio.ensure_future(
                cell(session, "x = x + 10; x", language="python", headers={"Idempotency-Key": "after"})
            )
            await keyed
            async with session.events("POST", "/code", {"code": code}) as events:
                execution_id = (await anext(events)).data["id"]
                assert (await anext(events)).data["text"].startswith("one")
                server.kill()
        server.start()
        async with Api(server.url) as api:
            session = SessionApi(api, found)

            async def has_ended() -> dict[str, Any] | None:
                execution = await session.get(f"/code/{execution_id}")
                assert said(execution).startswith("one")
                return execution if execution["reason"] != "running" else None

            execution = await until(has_ended)
            assert (execution["reason"], said(execution)) == ("exited", "one\ntwo\n")
            assert [result["text"] for result in execution["results"]] == ["12"]
            again = await cell(session, "x = x + 10; x", language="python", headers={"Idempotency-Key": "after"})
            assert again == keyed.result()
            assert (await cell(session, "x", language="python"))["results"][0]["text"] == "11"
            assert (await contexts(session))["ctx_python"]["version"]
            await api.call("DELETE", f"/api/sessions/{session.id}")


async def test_r_runs_where_the_image_has_it(new_state: NewState) -> None:
    with running_server(new_state(), "--pool-size", "0", "--pool-min", "0", "--environment", "host") as server:
        async with Api(server.url) as api, api.session() as session:
            assert said(await cell(session, 'x <- c(2, 4); print("started")', language="r")) == '[1] "started"\n'
            mean = await cell(session, "mean(x)", language="R")
            assert (mean["context_id"], mean["results"][0]["text"]) == ("ctx_r", "[1] 3")
            assert (await cell(session, "sd(x)", language="r"))["results"][0]["text"] == "[1] 1.414214"
            failed = await cell(session, 'stop("no more")', language="r")
            assert "no more" in failed["error"]["value"]
