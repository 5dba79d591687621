"""Snapshots of several tenants, in a cluster, from the registry, and over a restart: with the fake provider."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import Cluster, running_cluster
from e2e.api_client import Api, SessionApi, of, until
from e2e.conftest import NewState
from e2e.snapshot_suite import SnapshotSuite, saved, tar_of
from redis_server import RedisServer
from server_process import ServerProcess, running_server

from warren.cluster.roster import LEASE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["kept by each", "shared"])
def cluster(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[Cluster]:
    states = [new_state() for _ in range(3)]
    redis = RedisServer(states[0] / "redis")
    shared = {} if request.param == "kept by each" else {"WARREN_SNAPSHOT_STORE": str(states[0] / "shared")}
    encrypted = {"WARREN_SNAPSHOT_ENCRYPTION": "true"} if shared else {}
    with running_cluster(Cluster(redis, states[:2], states[2:], provider="fake", **shared, **encrypted)) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.urls[0]


class TestInACluster(SnapshotSuite):
    async def test_each_worker_keeps_its_own_or_all_share_them(self, api: Api, cluster: Cluster) -> None:
        is_shared = "WARREN_SNAPSHOT_STORE" in cluster.coordinators[0].environ
        made: list[tuple[SessionApi, dict[str, Any]]] = []
        async with contextlib.AsyncExitStack() as stack:
            while len({session.found["worker"] for session, _ in made}) < 2:
                session = await stack.enter_async_context(api.session())
                await session.write("a", session.id.encode())
                made.append((session, await stack.enter_async_context(saved(api, session, f"of-{len(made)}"))))
            for session, one in made:
                assert one["worker"] == (None if is_shared else session.found["worker"])
                async with api.session(snapshot=one["name"]) as other:
                    assert is_shared or other.found["worker"] == session.found["worker"]
                    assert await other.read("a") == session.id.encode()
                async with api.ask("GET", f"/api/snapshots/{one['name']}/content") as answer:
                    assert (await answer.read()).startswith(b"warren-snapshot-1\n")
                for template in (one["snapshot_id"], f"{one['name']}:default"):
                    sandbox = await api.post("/v2/sandboxes", {"templateID": template}, status=201)
                    shown = await api.get(f"/api/sessions/ses_{sandbox['sandboxID']}")
                    assert is_shared or shown["worker"] == session.found["worker"]
                    assert shown["snapshot"] == one["snapshot_id"]
                    await api.call("DELETE", f"/sandboxes/{sandbox['sandboxID']}", status=204)
                await api.call("DELETE", f"/templates/{one['snapshot_id']}", status=204)
                await api.refused("GET", f"/api/snapshots/{one['snapshot_id']}", status=404, code="not_found")

    async def test_a_hibernated_session_outlives_its_worker_where_others_read_what_was_saved(
        self, api: Api, cluster: Cluster
    ) -> None:
        is_shared = "WARREN_SNAPSHOT_STORE" in cluster.coordinators[0].environ
        async with api.session() as session:
            await session.write("a", b"kept")
            home = session.found["worker"]
            assert (await session.post("/pause", {"to_disk": True}))["worker"] == home
            cluster.workers[home].kill()
            try:
                if is_shared:
                    await until(lambda: is_read(session, b"kept"))
                    assert (await session.show())["worker"] not in (home, None)
                else:
                    refused = await session.refused(
                        "POST", "/exec", {"command": "true"}, status=503, code="unavailable"
                    )
                    assert home in refused["detail"]
                    await asyncio.sleep(2 * LEASE_S)
                    assert (await session.show())["state"] == "hibernated"
            finally:
                await asyncio.to_thread(cluster.workers[home].start)


async def is_read(session: SessionApi, content: bytes) -> bool:
    try:
        return await session.read("a") == content
    except AssertionError:
        return False


async def test_another_tenants_is_answered_like_one_that_does_not_exist(admin: Api) -> None:
    async with of(admin, "mine") as mine, of(admin, "theirs") as theirs, mine.session() as session:
        one = await session.post("/snapshots", {"name": "secret"}, status=201)
        file = await mine.get("/api/snapshots/secret/content")
        assert (await theirs.get("/api/snapshots", hidden=True))["snapshots"] == []
        for which in ("secret", one["snapshot_id"]):
            place = f"/api/snapshots/{which}"
            for method, at in (("GET", place), ("GET", f"{place}/content"), ("DELETE", place)):
                await theirs.refused(method, at, status=404, code="not_found")
            await theirs.refused("POST", "/api/sessions", {"snapshot": which}, status=404, code="not_found")
        at = f"/api/sessions/{session.id}"
        await theirs.refused("POST", f"{at}/snapshots", status=404, code="session_not_found")
        await theirs.refused("POST", f"{at}/fork", status=404, code="session_not_found")
        await theirs.refused("PUT", "/api/snapshots", data=file, status=422, code="invalid_request")
        await session.refused("POST", "/snapshots", {"name": "x", "public": True}, status=403, code="forbidden")
        await mine.call("DELETE", "/api/snapshots/secret", status=204)


async def test_scopes_hold(admin: Api) -> None:
    scopes, others = ("read", "sessions"), ("files", "read")
    async with of(admin, "scoped", *scopes) as maker, of(admin, "scoped", *others) as files, maker.session() as session:
        await session.post("/snapshots", {"name": "s"}, status=201)
        await maker.refused("GET", "/api/snapshots/s/content", status=403, code="forbidden")
        await files.refused("POST", f"/api/sessions/{session.id}/snapshots", status=403, code="forbidden")
        await files.refused("POST", f"/api/sessions/{session.id}/fork", status=403, code="forbidden")
        await files.refused("DELETE", "/api/snapshots/s", status=403, code="forbidden")
        back = await files.get("/api/snapshots/s/content")
        await files.refused("PUT", "/api/snapshots", data=tar_of("a", b"x"), status=403, code="forbidden")
        await files.call("PUT", "/api/snapshots", data=back, status=201)


async def test_quotas_usage_and_the_audit_record_know_of_them(admin: Api) -> None:
    await admin.call("PUT", "/api/admin/tenants/bounded", {"quota": {"snapshots_mb": 1, "sessions": 3}})
    async with of(admin, "bounded") as api, api.session() as session:
        await session.write("a", bytes(700_000))
        one = await session.post("/snapshots", {"name": "fits"}, status=201)
        await session.refused("POST", "/snapshots", {}, status=429, code="quota_exceeded")
        (row,) = [row for row in (await api.get("/api/quotas"))["quotas"] if row["name"] == "snapshots_mb"]
        assert (row["bound"], row["used"]) == (1, 1)
        assert (await api.get("/api/usage"))["snapshot_bytes"] == one["bytes"]
        made = await session.post("/fork", {"count": 5}, status=201)  # sessions: 3, and one is there
        assert len(made["sessions"]) == 2
        assert [error["code"] for error in made["errors"]] == ["quota_exceeded"] * 3
        for fork in made["sessions"]:
            await api.call("DELETE", f"/api/sessions/{fork['session_id']}")
        (deed,) = (await api.get("/api/audit", action="create_snapshot", limit=1))["deeds"]
        assert deed["status"] == 429

        async def recorded() -> bool:
            deeds = (await api.get("/api/audit", action="fork_session"))["deeds"]
            return bool(deeds) and len(deeds[0]["detail"]["forks"]) == 2

        await until(recorded)


async def test_an_environment_starts_from_a_snapshot(new_state: NewState, tmp_path: Path) -> None:
    folder = tmp_path / "environments"
    folder.mkdir()
    (folder / "ready.yaml").write_text("name: ready\nimage: base\nsnapshot: tools\n")
    with running_server(new_state(), provider="fake", WARREN_REGISTRY_DIR=str(tmp_path), WARREN_AUTH="true") as server:
        async with as_admin(server) as admin, of(admin, "a") as a, of(admin, "b") as b:
            await a.refused("POST", "/api/sessions", {"environment": "ready"}, status=404, code="not_found")
            async with admin.session() as session:
                await session.write("tool", b"of the operator")
                await session.post("/snapshots", {"name": "tools", "public": True}, status=201)
            async with a.session(environment="ready") as session:
                assert await session.read("tool") == b"of the operator"
                await session.write("tool", b"of a")
                await session.post("/snapshots", {"name": "tools"}, status=201)
            for api, expected in ((a, b"of a"), (b, b"of the operator")):
                async with api.session(environment="ready") as session:
                    assert await session.read("tool") == expected
            await b.refused("GET", "/api/snapshots/tools", status=404, code="not_found")
            await b.refused("GET", "/api/snapshots/tools/content", status=404, code="not_found")


async def test_what_a_restart_has_lost_is_not_listed(new_state: NewState) -> None:
    """The saved disks of the fake provider end with the process: as if the disk had lost them."""
    state = new_state()
    with running_server(state, "--on-stop", "destroy", provider="fake") as server:
        async with Api(server.url) as api, api.session() as session:
            await session.post("/snapshots", {"name": "lost"}, status=201)
    with running_server(state, "--on-stop", "destroy", provider="fake") as server:
        async with Api(server.url) as api:

            async def gone() -> bool:
                return not (await api.get("/api/snapshots"))["snapshots"]

            await until(gone)
            assert (await api.get("/api/usage"))["snapshot_bytes"] == 0


@contextlib.asynccontextmanager
async def as_admin(server: ServerProcess) -> Any:
    (key,) = json.loads(server.credentials.read_text()).values()
    async with Api(server.url, {"X-API-Key": key}) as api:
        yield api
