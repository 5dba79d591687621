"""Logs of sessions on a server with keys, and over its end: tenants, what the operator wants, quotas, kill -9, E2B."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.api_client import Api, of, until
from e2e.conftest import NewState
from e2e.e2b_client import Envd, bash
from e2e.log_suite import ended, log_of, text_of
from server_process import ServerProcess, running_server
from turnable_server import running_turnable, turn

pytestmark = pytest.mark.anyio

_MINIMUM = "name: quiet\nimage: host\nlogs: commands\n"


async def test_a_log_is_its_tenants_alone(admin: Api) -> None:
    async with of(admin, "loggers") as api, of(admin, "others") as others, of(admin, "loggers", "exec") as runner:
        async with api.session(logs="output") as session:
            await session.exec("echo mine")
            key_id = (await api.get("/api/whoami"))["key_id"]
            assert (await log_of(api, session.id))[0]["key_id"] == key_id
            place = f"/api/sessions/{session.id}/logs"
            for method in ("GET", "DELETE"):
                await others.refused(method, place, status=404, code="session_not_found")
                await runner.refused(method, place, status=403, code="forbidden")
        async with of(admin, "loggers", "read") as reader:
            assert text_of(await log_of(reader, session.id), "stdout") == "mine\n"
            await reader.refused("DELETE", place, status=403, code="forbidden")


async def test_what_the_operator_wants_of_a_tenant_no_session_can_switch_off(admin: Api) -> None:
    tenant: dict[str, Any] = {"quota": {}, "policy": {}, "logs": "commands"}
    assert (await admin.call("PUT", "/api/admin/tenants/watched", tenant))["logs"] == "commands"
    async with of(admin, "watched") as api:
        for asked, held in (("off", "commands"), ("", "commands"), ("output", "output")):
            async with api.session(logs=asked) as session:
                assert session.found["logs"] == held
    problem = {**tenant, "logs": "all"}
    await admin.refused("PUT", "/api/admin/tenants/watched", problem, status=422, code="invalid_request")


async def test_the_quota_shows_what_logs_take_and_bounds_it(admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/bounded", {"quota": {"logs_mb": 0}})
    async with of(admin, "bounded") as api:
        async with api.session(logs="output") as session:
            await session.exec("echo one")

            async def is_over() -> bool:
                await session.exec("echo again")
                return "used up" in str((await log_of(api, session.id))[-1].get("text"))

            await until(is_over)
            count = len(await log_of(api, session.id))
            await session.exec("echo two")
            assert len(await log_of(api, session.id)) == count
        rows = (await api.get("/api/quotas"))["quotas"]
        assert [(row["bound"], row["used"]) for row in rows if row["name"] == "logs_mb"] == [(0, 1)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "environments").mkdir()
    (folder / "environments" / "quiet.yaml").write_text(_MINIMUM)
    return folder


@pytest.fixture
def server(new_state: NewState, registry: Path) -> Iterator[ServerProcess]:
    options = {"WARREN_SESSION_LOGS": "output", "WARREN_SESSION_LOG_RETENTION_S": "100"}
    flags = ("--registry-dir", str(registry), "--environment", "host", "--pool-size", "0", "--pool-min", "0")
    with running_turnable(new_state(), *flags, **options) as server:
        yield server


async def test_the_server_and_the_environment_say_what_is_kept(server: ServerProcess) -> None:
    async with Api(server.url) as api:
        for wanted, held in (
            ({}, "output"),
            ({"logs": "off"}, "off"),
            ({"environment": "quiet", "logs": "off"}, "commands"),
        ):
            async with api.session(**wanted) as session:
                assert session.found["logs"] == held


async def test_a_log_outlives_a_kill_of_the_server_and_expires(server: ServerProcess) -> None:
    async with Api(server.url) as api:
        made = await api.post("/api/sessions", {}, status=201)
        place = f"/api/sessions/{made['session_id']}"
        await api.post(f"{place}/exec", {"command": "echo before"})
        started = {"command": "for n in $(seq 40); do echo line $n; sleep 0.1; done; exit 7", "process_id": "counter"}
        await api.post(f"{place}/processes", started, status=201)

        async def has_begun() -> bool:
            return "line 3\n" in text_of(await log_of(api, made["session_id"]), "stdout", "counter")

        await until(has_begun)
        seen = await log_of(api, made["session_id"])
    server.kill()
    await asyncio.sleep(0.5)
    server.start()
    async with Api(server.url) as api:
        assert (await log_of(api, made["session_id"]))[: len(seen)] == seen
        entries = await ended(api, made["session_id"], "counter")
        assert text_of(entries, "stdout") == "".join(f"line {n}\n" for n in range(1, 41))
        assert (entries[-1]["exit_code"], entries[-1]["event"]) == (7, "ended")
        whole = await log_of(api, made["session_id"])
        assert [one["id"] for one in whole] == list(range(1, len(whole) + 1))
        await api.call("DELETE", place)

        async def expires() -> Any:
            return (await api.get(f"{place}/logs"))["expires_at"]

        await until(expires)
    assert server.stop() in (0, -signal.SIGTERM)
    server.start()
    async with Api(server.url) as api:
        page = await api.get(f"{place}/logs", limit=1000)
        assert (page["entries"], page["ended"]) == (whole, True)
        turn(server.state_dir, 200.0)

        async def is_gone() -> bool:
            return (await api.get(f"{place}/logs"))["entries"] == []

        await until(is_gone)
        assert not list((server.state_dir / "logs").rglob("*.jsonl*"))


async def test_what_e2bs_clients_run_is_logged(server: ServerProcess) -> None:
    async with Api(server.url) as api, api.session() as session:
        async with Envd(server.url, session.id) as envd:
            await envd.run(bash("echo out; echo err >&2; exit 3"))

        async def has_ended() -> list[dict[str, Any]]:
            found = await log_of(api, session.id)
            return found if found and found[-1].get("event") == "ended" else []

        begun, *outputs, end = await until(has_ended)
        assert (begun["command"], end["exit_code"]) == ("echo out; echo err >&2; exit 3", 3)
        assert (text_of(outputs, "stdout"), text_of(outputs, "stderr")) == ("out\n", "err\n")


def test_a_server_that_is_told_to_log_something_else_does_not_start(new_state: NewState) -> None:
    with (
        pytest.raises(AssertionError, match="off, commands"),
        running_server(new_state(), provider="fake", WARREN_SESSION_LOGS="everything"),
    ):
        pass
