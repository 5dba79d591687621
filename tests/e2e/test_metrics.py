"""/metrics over HTTP: who may read it, what it counts, and that it names nobody."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_processes import SECRET, Cluster, running_cluster
from e2e.api_client import Api, until
from e2e.conftest import NewState
from redis_server import RedisServer
from server_process import ServerProcess, running_server

from warren.cluster.roster import PROTOCOL

pytestmark = pytest.mark.anyio
ADMIN = "the-operator-has-this-key"
MONITORING = Path(__file__).parents[2] / "docs" / "monitoring.md"
OPEN_METRICS = "application/openmetrics-text"


@asynccontextmanager
async def scraper(admin: Api, url: str, *scopes: str, tenant: str = "watchers") -> AsyncIterator[Api]:
    body = {"name": "prometheus", "tenant": tenant, "scopes": [*(scopes or ("metrics",))]}
    made = await admin.call("POST", "/api/admin/keys", body, status=201)
    async with Api(url, {"Authorization": f"Bearer {made['key']}"}) as api:
        yield api


async def page_of(api: Api) -> list[str]:
    text: bytes = await api.get("/metrics")
    return text.decode().splitlines()


def total(page: list[str], name: str, *labels: str) -> float:
    rows = (line for line in page if line.split("{")[0].split(" ")[0] == name)
    return sum(float(line.rsplit(" ", 1)[1]) for line in rows if all(label in line for label in labels))


# -- one server


async def test_a_key_with_the_scope_metrics_reads_them_and_nothing_else(guarded: ServerProcess, admin: Api) -> None:
    async with scraper(admin, guarded.url) as api:
        async with api.ask("GET", "/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        async with api.ask("GET", "/metrics", headers={"Accept": f"{OPEN_METRICS}; version=1.0.0"}) as answer:
            assert answer.headers["Content-Type"].startswith(OPEN_METRICS)
        for path in ("/api/sessions", "/api/stats", "/api/admin/keys", "/api/admin/usage", "/api/usage"):
            await api.refused("GET", path, status=403, code="forbidden")
        await api.refused("POST", "/api/sessions", {}, status=403, code="forbidden")
    async with scraper(admin, guarded.url, "read", "exec", "files", "sessions", "audit") as other:
        await other.refused("GET", "/metrics", status=403, code="forbidden")
    usual = await admin.call("POST", "/api/admin/keys", {"name": "usual"}, status=201)
    assert "metrics" not in usual["scopes"]


async def test_what_callers_do_is_counted_and_none_of_their_words_is_on_the_page(
    guarded: ServerProcess, admin: Api
) -> None:
    async with scraper(admin, guarded.url) as prometheus:
        before = await page_of(prometheus)
        async with (
            scraper(admin, guarded.url, "sessions", "exec", "files", "read", tenant="tenantword") as caller,
            caller.session(thread_id="threadword", metadata={"key": "metaword"}) as session,
        ):
            await session.post("/exec", {"command": "echo commandword"})
            await session.post("/exec", {"command": "exit 3"})
            await caller.refused("GET", "/nowhere/pathword", status=404, code="not_found")
            words = ["tenantword", "threadword", "metaword", "commandword", "pathword", session.id]

        async def counted() -> bool:
            return total(await page_of(prometheus), "warren_execs_total") >= total(before, "warren_execs_total") + 2

        await until(counted)
        after = await page_of(prometheus)

    def more(name: str, *labels: str) -> float:
        return total(after, name, *labels) - total(before, name, *labels)

    assert more("warren_session_creates_total", 'environment="base"', 'outcome="created"') == 1
    assert more("warren_claim_seconds_count") == 1
    assert more("warren_execs_total", 'environment="base"', 'reason="exited"') == 2
    assert more("warren_exec_overhead_seconds_count") == 2
    assert more("warren_http_request_seconds_count", 'route="/api/sessions/{session_id}/exec"', 'status="200"') == 2
    assert more("warren_http_request_seconds_count", 'route="unknown"', 'status="404"') == 1
    assert total(after, "warren_build_info", 'role="server"') == 1
    assert total(after, "warren_event_loop_lag_seconds_count") > 0
    assert [word for word in words if word in "\n".join(after)] == []


async def test_a_server_without_metrics_says_so(new_state: NewState) -> None:
    with running_server(new_state(), "--no-metrics", provider="fake") as server:
        async with Api(server.url) as api:
            problem = await api.refused("GET", "/metrics", status=404, code="not_found")
            assert "--metrics" in problem["remedy"]


# -- the recipes that ship logs


def recipes() -> list[dict[str, Any]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", MONITORING.read_text(), flags=re.M | re.S)
    return [yaml.safe_load(block) for block in blocks]


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


async def test_the_files_that_the_recipes_name_are_written_and_each_line_is_json(new_state: NewState) -> None:
    state = new_state()
    (state / "log").mkdir()
    flags = ("--log-format", "json", "--log-file", str(state / "log" / "warren.log"))
    with running_server(state, *flags, provider="fake") as server:
        async with Api(server.url) as api, api.session() as session:
            await session.post("/exec", {"command": "true"})
    places = {"/var/log/warren": state / "log", "/var/lib/warren": state}
    shipped = [(text, name) for text in texts(recipes()) for name in places if text.startswith(name)]
    assert len(shipped) == 6  # of three programs, each both files
    for text, name in shipped:
        files = list(places[name].glob(text.removeprefix(name).lstrip("/")))
        assert files, text
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        known = {"event", "action", "chain"}
        assert lines
        assert all(known & line.keys() for line in lines), text


# -- a cluster


@pytest.fixture(scope="module")
def cluster(new_state: NewState) -> Iterator[Cluster]:
    states = [new_state(), new_state()]
    redis = RedisServer(states[0] / "redis")
    cluster = Cluster(redis, states[:1], states[1:], "--on-stop", "destroy", provider="fake", WARREN_API_KEY=ADMIN)
    with running_cluster(cluster):
        yield cluster


async def test_coordinators_and_workers_tell_what_is_their_own(cluster: Cluster) -> None:
    (coordinator,), (worker,) = cluster.coordinators, cluster.workers.values()
    async with (
        Api(coordinator.url, {"X-API-Key": ADMIN}) as admin,
        admin.session(),
        scraper(admin, coordinator.url) as one,
        scraper(admin, worker.url) as other,
    ):
        of_coordinator, of_worker = await page_of(one), await page_of(other)
    assert total(of_worker, "warren_sessions", 'state="running"') == 1
    assert total(of_worker, "warren_session_creates_total", 'outcome="created"') == 1
    assert 0 < total(of_worker, "warren_worker_lease_seconds") <= 8
    assert total(of_worker, "warren_build_info", 'role="worker"') == 1
    assert not any(line.startswith(("warren_sessions{", "warren_leaks")) for line in of_coordinator)
    assert total(of_coordinator, "warren_cluster_workers", 'state="ready"') == 1
    assert total(of_coordinator, "warren_workers_wanted") == 1
    assert total(of_coordinator, "warren_build_info", 'role="coordinator"') == 1


async def test_a_worker_lets_keys_read_metrics_and_nothing_else(cluster: Cluster) -> None:
    (coordinator,), (worker,) = cluster.coordinators, cluster.workers.values()
    async with Api(coordinator.url, {"X-API-Key": ADMIN}) as admin:
        async with scraper(admin, worker.url, "metrics", "admin") as api:
            await api.get("/metrics")
            for method, path in (
                ("GET", "/api/sessions"),
                ("GET", "/api/admin/keys"),
                ("GET", "/internal/worker"),
                ("POST", "/metrics"),
                ("GET", "/metrics/"),
                ("GET", "/metrics/../api/sessions"),
                ("GET", "//metrics"),
            ):
                await api.refused(method, path, status=401, code="unauthorized")
        async with scraper(admin, worker.url, "read") as reader:
            await reader.refused("GET", "/metrics", status=403, code="forbidden")
    async with Api(worker.url) as stranger:
        await stranger.refused("GET", "/metrics", status=401, code="unauthorized")
        trusted = {"X-Warren-Cluster": SECRET, "X-Warren-Protocol": str(PROTOCOL)}
        claimed = {"X-Warren-Caller": json.dumps({"tenant": "x", "key_id": "x", "scopes": ["admin"]})}
        await stranger.refused("GET", "/metrics", headers={**trusted, **claimed}, status=401, code="unauthorized")
