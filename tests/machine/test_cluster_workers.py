"""The workers of a cluster as an operator has them: draining, removing, labels, addresses, TLS, stops and starts."""

import asyncio
import contextlib
import json
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from certificates import Certificates, make_certificates
from cluster_processes import SECRET
from e2e.api_client import Api, SessionApi
from faults.cluster.cluster_world import stopped
from machine.cluster_world import ADMIN, PATIENCE_S, Nodes, new_nodes
from server_process import ServerProcess

from warren.cluster.roster import PROTOCOL

pytestmark = pytest.mark.anyio

MANY = 8


@pytest.fixture(scope="module")
def nodes(image_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    (registry / "environments" / "real.yaml").write_text("name: real\nimage: host\nprovider: oci\n")
    (registry / "environments" / "networked.yaml").write_text(
        "name: networked\nimage: host\nnetwork: {internet: true}\n"
    )
    with new_nodes(image_cache / "images") as nodes:
        nodes.worker("plain", "--registry-dir", str(registry))
        flags = ("--labels", "gpu=1,zone=a", "--registry-dir", str(registry), "--on-stop", "destroy")
        special = nodes.worker("special", *flags, provider="fake,oci")
        nodes.coordinator(WARREN_REGISTRY_DIR=str(registry))
        for process in nodes.all:
            process.start(wait=False)
        for process in nodes.all:
            process.wait_until_ready()
        yield nodes
        assert special.stop() == 0, "its pool has real sandboxes"


@pytest.fixture
async def api(nodes: Nodes) -> AsyncIterator[Api]:
    async with Api(nodes.all[2].url, {"X-API-Key": ADMIN}) as api:
        await until(api, "plain", "ready")
        await until(api, "special", "ready")
        yield api


async def shown(api: Api) -> dict[str, dict[str, Any]]:
    return {worker["id"]: worker for worker in (await api.get("/api/cluster"))["workers"]}


async def until(api: Api, worker_id: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await shown(api)).get(worker_id, {}).get("state") != state:
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def sessions(api: Api, count: int, **wanted: Any) -> AsyncIterator[list[SessionApi]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(api.session(**wanted)) for _ in range(count)]


def where(nodes: Nodes, made: list[SessionApi]) -> list[str]:
    """The worker each is on, as Redis has it: callers are not told."""
    found = []
    for session in made:
        data = nodes.redis.ask("HGET", f"{{warren}}:session:{len(session.id)}:{session.id}", "data")
        found.append(json.loads(data)["worker"])
    return found


# Drain and remove.


async def test_a_draining_worker_gets_no_new_sessions_and_keeps_those_it_has(nodes: Nodes, api: Api) -> None:
    async with sessions(api, 1, labels={"gpu": "1"}) as [kept]:
        drained = await api.call("PATCH", "/api/cluster/workers/special", {"draining": True})
        assert (drained["id"], drained["state"]) == ("special", "draining")
        try:
            async with sessions(api, MANY) as made:
                assert set(where(nodes, made)) == {"plain"}
            assert await kept.output("echo goes on") == "goes on\n"
            found = await api.refused("POST", "/api/sessions", {"labels": {"gpu": "1"}}, status=503, code="no_capacity")
            assert "draining" in found["detail"]
        finally:
            back = await api.call("PATCH", "/api/cluster/workers/special", {"draining": False})
        assert back["state"] == "ready"
        async with sessions(api, 1, labels={"gpu": "1"}) as made:
            assert where(nodes, made) == ["special"]


async def test_a_worker_s_health_counts_its_own_sessions_and_a_coordinator_s_those_of_all(
    nodes: Nodes, api: Api
) -> None:
    async def active() -> list[int]:
        found = [await get(f"{process.url}/{path}") for process in nodes.all for path in ("health", "ready")]
        return [each["active_sessions"] for each in found]

    async with sessions(api, 2, labels={"gpu": "1"}):
        assert await active() == [0, 0, 2, 2, 2, 2]
    assert await active() == [0] * 6


async def get(url: str) -> Any:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return await response.json()


async def test_a_worker_that_is_alive_is_not_removed(api: Api) -> None:
    found = await api.refused("DELETE", "/api/cluster/workers/plain", status=409, code="conflict")
    assert "'plain' is alive" in found["detail"]
    assert "drain it" in found["remedy"]
    assert (await shown(api))["plain"]["state"] == "ready"


@pytest.mark.parametrize("name", ["ghost", "%00", "%F0%9F%90%87", "x" * 2000])
async def test_a_worker_that_nobody_knows_is_not_found(api: Api, name: str) -> None:
    place = f"/api/cluster/workers/{name}"
    for found in (
        await api.refused("DELETE", place, status=404, code="not_found"),
        await api.refused("PATCH", place, {"draining": True}, status=404, code="not_found"),
    ):
        assert "there is no worker" in found["detail"]
        assert "warren cluster status" in found["remedy"]


async def test_only_an_admin_sees_and_steers_workers(nodes: Nodes, api: Api) -> None:
    scopes = ["read", "exec", "files", "sessions"]
    made = await api.post("/api/admin/keys", {"name": "n", "tenant": "acme", "scopes": scopes}, status=201)
    async with Api(nodes.all[2].url, {"X-API-Key": made["key"]}) as theirs:
        await theirs.refused("GET", "/api/cluster", status=403, code="forbidden")
        await theirs.refused("DELETE", "/api/cluster/workers/plain", status=403, code="forbidden")
        body = {"draining": True}
        await theirs.refused("PATCH", "/api/cluster/workers/plain", body, status=403, code="forbidden")


# Labels and providers.


async def test_a_session_goes_where_its_labels_are(nodes: Nodes, api: Api) -> None:
    for labels in ({"gpu": "1"}, {"gpu": "1", "zone": "a"}):
        async with sessions(api, 3, labels=labels) as made:
            assert set(where(nodes, made)) == {"special"}


@pytest.mark.parametrize("wanted", [{"provider": "oci", "environment": "host"}, {"environment": "real"}])
async def test_a_session_goes_where_its_provider_is(nodes: Nodes, api: Api, wanted: dict[str, str]) -> None:
    workers = await shown(api)
    assert (workers["plain"]["provider"], workers["special"]["provider"]) == ("fake", "fake,oci")
    async with sessions(api, 2, **wanted) as made:
        assert set(where(nodes, made)) == {"special"}
        assert {session.found["provider"] for session in made} == {"oci"}


async def test_a_thread_moves_to_a_worker_that_can_have_the_session_that_replaces_its_own(
    nodes: Nodes, api: Api
) -> None:
    await api.call("PATCH", "/api/cluster/workers/special", {"draining": True})
    try:
        [old] = [await api.post("/api/sessions", {"thread_id": "moves", "environment": "base"}, status=201)]
    finally:
        await api.call("PATCH", "/api/cluster/workers/special", {"draining": False})
    wanted = {"thread_id": "moves", "environment": "host", "provider": "oci"}
    refused = await api.refused("POST", "/api/sessions", wanted, status=409, code="session_mismatch")
    assert refused["mismatch"]["provider"] == {"has": "fake", "asked": "oci"}
    impossible = {**wanted, "provider": "docker", "on_mismatch": "replace"}
    await api.refused("POST", "/api/sessions", impossible, status=422, code="invalid_request")
    async with api.session(**wanted, on_mismatch="replace") as new:
        assert where(nodes, [new]) == ["special"]
        assert new.found["previous"]["session_id"] == old["session_id"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"labels": {"gpu": "2"}}, "no worker has the label gpu=2"),
        ({"labels": {"moon": "full"}}, "no worker has the label moon=full"),
        ({"labels": {"gpu": "1", "zone": "b"}}, "zone=b"),
        ({"provider": "docker"}, "no worker has the provider docker, there are: fake, oci"),
        ({"network": {"internet": True}}, "the provider fake does not have the capability egress"),
        ({"environment": "networked"}, "the provider fake does not have the capability egress"),
        ({"secrets": ["key"]}, "the provider fake does not have the capability egress"),
    ],
)
async def test_what_no_worker_has_is_told_in_words(api: Api, wanted: dict[str, Any], words: str) -> None:
    for body in (wanted, {**wanted, "thread_id": "a-thread"}):
        found = await api.refused("POST", "/api/sessions", body, status=422, code="invalid_request")
        assert words in found["detail"]
        assert found["remedy"]


@pytest.mark.parametrize("wanted", [{"labels": "gpu"}, {"labels": ["gpu"]}, {"labels": {"gpu": 1}}, {"provider": 7}])
async def test_wishes_that_are_none_are_refused_as_by_a_single_server(api: Api, wanted: dict[str, Any]) -> None:
    await api.refused("POST", "/api/sessions", wanted, status=422, code="invalid_request")


async def test_a_session_with_a_network_goes_where_the_default_provider_can_give_it_one(nodes: Nodes, api: Api) -> None:
    able = nodes.worker("able", "--on-stop", "destroy", provider="oci,fake", WARREN_DEFAULT_ENVIRONMENT="host")
    try:
        able.start()
        await until(api, "able", "ready")
        wanted = {"environment": "host", "network": {"allow": ["one.example"]}}
        async with sessions(api, 3, **wanted) as made:
            assert set(where(nodes, made)) == {"able"}
            assert (await made[0].call("GET", "/network"))["allow"] == ["one.example"]
    finally:
        assert able.stop() == 0
        nodes.all.remove(able)


# Addresses that were named in advance.


async def test_a_list_of_workers_says_where_they_are_reached() -> None:
    """They say of themselves that they are where nobody is."""
    with new_nodes() as nodes:
        worker = nodes.worker("hidden", WARREN_ADVERTISE="127.0.0.1:9")
        worker.start()
        lost = nodes.coordinator()
        lost.start()
        front = nodes.coordinator(WORKERS=f"127.0.0.1:9,127.0.0.1:{worker.port}")
        front.start()
        async with Api(front.url, {"X-API-Key": ADMIN}) as api, Api(lost.url, {"X-API-Key": ADMIN}) as other:
            assert (await shown(api))["hidden"]["address"] == f"127.0.0.1:{worker.port}"
            async with api.session() as session:
                assert await session.output("echo found") == "found\n"
            found = await other.refused("POST", "/api/sessions", {}, status=503, code="unavailable")
            assert "'hidden' cannot be reached" in found["detail"]


# TLS with certificates on both sides.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def test_over_tls_only_those_with_a_certificate_of_the_cluster_get_in(
    certificates: Certificates, tmp_path: Path
) -> None:
    ours = {
        "WARREN_CLUSTER_CA": str(certificates.ca),
        "WARREN_CLUSTER_CERT": str(certificates.cert),
        "WARREN_CLUSTER_KEY": str(certificates.key),
    }
    shows = ssl.create_default_context(cafile=certificates.ca)
    shows.load_cert_chain(certificates.cert, certificates.key)
    strangers = make_certificates(tmp_path)
    other = ssl.create_default_context(cafile=certificates.ca)
    other.load_cert_chain(strangers.cert, strangers.key)
    with new_nodes() as nodes:
        worker = nodes.worker("worker-1", tls=shows, **ours)
        front, plain = nodes.coordinator(**ours), nodes.coordinator()
        for process in (worker, front, plain):
            process.start(wait=False)
        for process in (worker, front):
            process.wait_until_ready()
        async with Api(front.url, {"X-API-Key": ADMIN}) as api, api.session() as session:
            assert await session.output("echo sealed") == "sealed\n"
            async with session.socket("/terminal") as terminal:
                await terminal.expect("started")
            for context in (certificates.client, other):
                assert not await let_in(worker, "https", context)
            assert not await let_in(worker, "http", None)
            assert await let_in(worker, "https", shows)
            plain.wait_until_ready()
            async with Api(plain.url, {"X-API-Key": ADMIN}) as without:
                found = await without.refused("GET", f"/api/sessions/{session.id}", status=503, code="unavailable")
                assert "'worker-1' cannot be reached" in found["detail"]


async def let_in(worker: ServerProcess, scheme: str, tls: ssl.SSLContext | None) -> bool:
    headers = {"X-Warren-Cluster": SECRET, "X-Warren-Protocol": str(PROTOCOL)}
    url = f"{scheme}://127.0.0.1:{worker.port}/internal/worker"
    try:
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers, ssl=tls or True) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False


# Stops and starts. Sandboxes of the fake end with its process: these are real.


@pytest.fixture(scope="module")
def real(image_cache: Path) -> Iterator[Nodes]:
    with new_nodes(image_cache / "images") as nodes:
        for name in ("worker-1", "worker-2"):
            nodes.worker(name, "--on-stop", "destroy", provider="oci").start(wait=False)
        nodes.coordinator().start(wait=False)
        for process in nodes.all:
            process.wait_until_ready()
        yield nodes
        for process in nodes.all:
            if not process.alive:
                process.start()
        for process in nodes.all:
            assert process.stop() == 0
            assert not list((process.state_dir / "sandboxes").glob("*"))


async def on_each(api: Api, stack: contextlib.AsyncExitStack) -> dict[str, SessionApi]:
    """A session on each of the workers. One that is draining gets none."""
    made = {}
    for name, other in (("worker-1", "worker-2"), ("worker-2", "worker-1")):
        await api.call("PATCH", f"/api/cluster/workers/{other}", {"draining": True})
        made[name] = await stack.enter_async_context(api.session())
        await api.call("PATCH", f"/api/cluster/workers/{other}", {"draining": False})
    return made


async def answered(session: SessionApi, command: str) -> str:
    """A worker that has just been started again is not heard of at once."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with session.ask("POST", "/exec", {"command": command}) as answer:
                found = await answer.json(content_type=None)
                if answer.status == 200:
                    return str(found["output"])
                assert answer.status in (502, 503), found
            await asyncio.sleep(0.05)


async def test_a_worker_that_is_killed_and_started_goes_on_with_its_sessions(real: Nodes) -> None:
    async with Api(real.all[2].url, {"X-API-Key": ADMIN}) as api, contextlib.AsyncExitStack() as stack:
        made = await on_each(api, stack)
        mine = made["worker-1"]
        body = {"command": "while :; do date +%s%N > ticks; sleep 0.1; done", "process_id": "ticking"}
        await mine.post("/processes", body, status=201)
        real.all[0].send(signal.SIGKILL)
        real.all[0].wait_for_end()
        assert await made["worker-2"].output("echo unharmed") == "unharmed\n"
        with stopped(real.all[2].pid):  # on a slow machine the coordinator would give up the sessions
            real.all[0].start()
        before = await answered(mine, "cat ticks")
        async with asyncio.timeout(PATIENCE_S):
            while await mine.output("cat ticks") == before:
                await asyncio.sleep(0.05)
        assert (await mine.get("/processes/ticking"))["running"]


async def test_a_coordinator_that_is_killed_and_started_knows_everything(real: Nodes) -> None:
    front = real.all[2]
    async with Api(front.url, {"X-API-Key": ADMIN}) as api:
        found = await api.post("/api/sessions", {"thread_id": "kept"}, status=201)
    front.kill()
    front.start()
    async with Api(front.url, {"X-API-Key": ADMIN}) as api:
        again = await api.post("/api/sessions", {"thread_id": "kept"})
        assert again["session_id"] == found["session_id"]
        await api.call("DELETE", f"/api/sessions/{found['session_id']}")


async def test_a_worker_that_stops_and_destroys_destroys_only_what_is_its_own(real: Nodes) -> None:
    async with Api(real.all[2].url, {"X-API-Key": ADMIN}) as api, contextlib.AsyncExitStack() as stack:
        made = await on_each(api, stack)
        assert real.all[0].stop() == 0
        assert not list((real.all[0].state_dir / "sandboxes").glob("*"))
        gone = await made["worker-1"].refused("POST", "/exec", {"command": "true"}, status=410, code="session_ended")
        assert "stopped" in gone["detail"]
        assert await made["worker-2"].output("echo unharmed") == "unharmed\n"
        real.all[0].start()
        await until(api, "worker-1", "ready")
