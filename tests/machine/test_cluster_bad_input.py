"""What a cluster does with processes that do not belong together, with clients that pretend, with a Redis that is none.

Real processes with the fake provider.
"""

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import warm_parent
from cluster_processes import SECRET
from e2e.api_client import Api
from machine.cluster_world import ADMIN, Nodes, new_nodes, wait_until
from marks import first_of
from server_process import ServerProcess, clean_environ, free_port

from warren.cluster.auth import encode_caller
from warren.cluster.roster import PROTOCOL, Report
from warren.model.access import ALL_SCOPES, Caller
from warren.model.session import Session, SessionState, new_session_id
from warren.stores.redis_store import RedisStore

pytestmark = pytest.mark.anyio

TRUSTED = {"X-Warren-Cluster": SECRET, "X-Warren-Protocol": str(PROTOCOL)}
OTHER_SECRET = secrets.token_hex(16)
FAILED = 125  # of `warren` itself, whatever a command that it runs may end with


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One worker and one coordinator, and what tests add. Nobody's log has a secret in the end."""
    with new_nodes() as nodes:
        for process in (nodes.worker("worker-1"), nodes.coordinator()):
            process.start(wait=False)
        for process in nodes.all[:2]:
            process.wait_until_ready()
        yield nodes
        for secret in (SECRET, OTHER_SECRET, ADMIN, nodes.redis.password):
            assert secret not in nodes.logs()
        assert "Traceback" not in nodes.logs()


@pytest.fixture(scope="module")
def worker(nodes: Nodes) -> ServerProcess:
    return nodes.all[0]


@pytest.fixture(scope="module")
def coordinator(nodes: Nodes) -> ServerProcess:
    return nodes.all[1]


@pytest.fixture
async def api(coordinator: ServerProcess) -> AsyncIterator[Api]:
    async with Api(coordinator.url, {"X-API-Key": ADMIN}) as api:
        yield api


# Secrets.


async def test_a_worker_serves_nobody_who_does_not_know_the_secret(worker: ServerProcess) -> None:
    caller = encode_caller(Caller("acme", "k", ALL_SCOPES)).decode()
    async with Api(worker.url) as api:
        for secret in ({}, {"X-Warren-Cluster": OTHER_SECRET}, {"X-Warren-Cluster": SECRET[:-1]}):
            headers = {**TRUSTED, "X-Warren-Caller": caller, "X-API-Key": ADMIN}
            del headers["X-Warren-Cluster"]
            for method, place in (
                ("GET", "/api/sessions"),
                ("POST", "/api/sessions"),
                ("GET", "/internal/worker"),
                ("GET", "/openapi.json"),
                ("GET", "/nowhere"),
                ("GET", "/api/sessions/x/terminal"),
            ):
                found = await api.refused(method, place, headers={**headers, **secret}, status=401, code="unauthorized")
                assert "serves the coordinators of its cluster" in found["detail"]
                assert "WARREN_CLUSTER_SECRET" in found["remedy"]
                assert SECRET not in json.dumps(found)
        assert (await api.get("/ready"))["status"] == "ready"
        assert (await api.get("/health"))["status"] == "healthy"


async def test_a_coordinator_must_say_for_whom_it_asks_and_speak_the_same_protocol(worker: ServerProcess) -> None:
    async with Api(worker.url) as api:
        found = await api.refused("GET", "/api/sessions", headers=TRUSTED, status=401, code="unauthorized")
        assert "does not name its caller" in found["detail"]
        for spoken in ("0", "2", ""):
            headers = {**TRUSTED, "X-Warren-Protocol": spoken}
            found = await api.refused("GET", "/api/sessions", headers=headers, status=409, code="conflict")
            assert f"this process uses protocol {PROTOCOL}" in found["detail"]
            assert "same version" in found["remedy"]
        assert (await api.get("/internal/worker", headers=TRUSTED))["id"] == "worker-1"


async def test_a_coordinator_with_another_secret_tells_its_callers_what_is_wrong(nodes: Nodes, api: Api) -> None:
    stranger = nodes.coordinator(WARREN_CLUSTER_SECRET=OTHER_SECRET)
    stranger.start()
    async with Api(stranger.url, {"X-API-Key": ADMIN}) as theirs, api.session() as session:
        for ask in (
            theirs.refused("POST", "/api/sessions", {}, status=503, code="unavailable"),
            theirs.refused("POST", "/execute", {"thread_id": "t", "command": "true"}, status=503, code="unavailable"),
            theirs.refused("GET", f"/api/sessions/{session.id}", status=503, code="unavailable"),
            theirs.refused(
                "POST", f"/api/sessions/{session.id}/exec", {"command": "true"}, status=503, code="unavailable"
            ),
        ):
            found = await ask
            assert "secrets differ" in found["detail"]
            assert "WARREN_CLUSTER_SECRET" in found["remedy"]
            assert not {SECRET, OTHER_SECRET} & set(json.dumps(found).split('"'))
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
        place = f"/api/sessions/{session.id}/terminal"
        found = await theirs.refused("GET", place, headers=headers, status=503, code="unavailable")
        assert "secrets differ" in found["detail"]
        assert await session.output("echo unharmed") == "unharmed\n"
    assert stranger.stop() == 0


@pytest.mark.parametrize("kind", ["worker", "coordinator"])
@pytest.mark.parametrize(
    ("secret", "words"),
    [("", "need a secret to know each other by"), ("fifteen-letters", "16 or more"), ("with a space in it", "spaces")],
)
def test_without_a_proper_secret_nothing_starts(nodes: Nodes, kind: str, secret: str, words: str) -> None:
    redis = nodes.redis.url if secret else "redis://10.255.255.1:6379/0"  # with a Redis on loopback one is made
    done = started(kind, WARREN_REDIS_URL=redis, WARREN_CLUSTER_SECRET=secret)
    assert done.returncode == FAILED
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not secret or secret not in done.stderr


@pytest.mark.parametrize(
    ("environ", "words"),
    first_of(
        [
            ({"WARREN_REDIS_URL": "http://127.0.0.1"}, "redis://"),
            ({"WARREN_REDIS_URL": "redis://:hunter2hunter2@127.0.0.1:x"}, "redis://"),
            ({"WARREN_CLUSTER_CA": "/nowhere/ca.pem"}, "cluster_ca, cluster_cert and cluster_key"),
            ({"WARREN_ADVERTISE": "everywhere"}, "a host and a port"),
            ({"WARREN_LABELS": "gpu"}, "gpu=1,zone=a"),
            ({"WORKER_ID": "two words"}, "a name of 1 to 64"),
            ({"WORKERS": "10.0.0.1"}, "hosts with ports"),
        ]
    ),
)
def test_settings_that_cannot_be_are_told_at_the_start(environ: dict[str, str], words: str) -> None:
    for kind in ("worker", "coordinator"):
        done = started(kind, WARREN_CLUSTER_SECRET=SECRET, **environ)
        assert done.returncode == FAILED, done.stderr
        assert words in done.stderr
        assert "hunter2" not in done.stderr
        assert "Traceback" not in done.stderr


def started(kind: str, **environ: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="warren-test-") as state:
        flags = ("--state-dir", state, "--provider", "fake", "--port", str(free_port()))
        return warm_parent.run(
            [sys.executable, "-m", "warren.cli.main", kind, *flags],
            env={**clean_environ(), "WARREN_AUTH": "false", **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )


# Names and versions.


async def test_a_second_worker_of_the_same_name_does_not_start_and_harms_nobody(nodes: Nodes, api: Api) -> None:
    async with api.session() as session:
        twin = nodes.worker("worker-1")
        twin.start(wait=False)
        assert twin.wait_for_end() == FAILED
        assert "there is another worker called 'worker-1'" in twin.log
        assert "--worker-id" in twin.log
        assert await session.output("echo unharmed") == "unharmed\n"
        [shown] = [one for one in (await api.get("/api/cluster"))["workers"] if one["id"] == "worker-1"]
        assert (shown["state"], shown["epoch"]) == ("ready", 1)


async def test_a_worker_of_another_version_is_shown_and_not_used(nodes: Nodes, api: Api) -> None:
    report = Report("worker-old", "127.0.0.1:9", "elsewhere", "0.1", PROTOCOL + 1, "fake", capacity=1000)
    seconds, _ = nodes.redis.ask("TIME")
    values = {"report": report.to_json(), "home": "elsewhere", "epoch": 1, "until": f"{int(seconds) + 3600}.000000"}
    pairs = [part for pair in values.items() for part in pair]
    nodes.redis.ask("HSET", "{warren}:worker:10:worker-old", *pairs)
    nodes.redis.ask("SADD", "{warren}:workers", "worker-old")
    session = a_row("worker-old")
    store = await RedisStore.open(nodes.redis.url, timeout_s=60)
    await store.add(session)
    await store.close()
    try:
        shown = await seen(api, "worker-old")
        assert (shown["state"], shown["protocol"], shown["version"]) == ("incompatible", PROTOCOL + 1, "0.1")
        found = await api.refused("GET", f"/api/sessions/{session.id}", status=503, code="unavailable")
        assert f"'worker-old' speaks protocol {PROTOCOL + 1}, and this coordinator {PROTOCOL}" in found["detail"]
        assert "same version of Warren" in found["remedy"]
        for _ in range(5):
            async with api.session() as fine:
                assert await fine.output("echo fine") == "fine\n"
    finally:
        nodes.redis.ask("DEL", "{warren}:worker:10:worker-old")


async def seen(api: Api, worker_id: str) -> dict[str, Any]:
    """A coordinator looks every second."""
    while True:
        for shown in (await api.get("/api/cluster"))["workers"]:
            if shown["id"] == worker_id:
                return dict(shown)


def a_row(worker: str) -> Session:
    return Session(
        new_session_id(),
        "default",
        "base",
        "cluster",
        created_at=1e9,
        started=1e12,
        used=1e12,
        state=SessionState.RUNNING,
        worker=worker,
        sandbox_id="sb_1",
    )


# Clients that pretend.


async def test_what_only_a_coordinator_may_say_is_not_heard_from_a_client(nodes: Nodes, api: Api) -> None:
    made = await api.post(
        "/api/admin/keys", {"name": "theirs", "tenant": "theirs", "scopes": ["sessions", "read", "exec"]}, status=201
    )
    chosen = new_session_id()
    lies = {
        "X-Warren-Caller": encode_caller(Caller("default", "boss", ALL_SCOPES)).decode(),
        "X-Warren-Session": chosen,
        "X-Warren-Patience": "0",
        "X-Warren-Client": "10.9.8.7",
        "X-Warren-Scheme": "https",
        "X-Warren-Cluster": "wrong",
        "X-Warren-Protocol": "99",
        "X-Warren-Worker": "worker-7",
        "X-Warren-Anything": "1",
    }
    async with api.session() as mine, Api(nodes.all[1].url, {"X-API-Key": made["key"]}) as theirs:
        found = await theirs.post("/api/sessions", {}, headers=lies, status=201)
        assert found["session_id"] != chosen
        place = f"/api/sessions/{found['session_id']}"
        done = await theirs.post(f"{place}/exec", {"command": "echo mine"}, headers=lies)
        assert done["output"] == "mine\n"
        await theirs.refused("GET", f"/api/sessions/{mine.id}", headers=lies, status=404, code="session_not_found")
        await theirs.refused("GET", "/api/admin/keys", headers=lies, status=403, code="forbidden")
        assert [one["session_id"] for one in (await theirs.get("/api/sessions", headers=lies))["sessions"]] == [
            found["session_id"]
        ]
        await theirs.call("DELETE", place, headers=lies)
        deeds = str(await api.get("/api/admin/audit", **{"of": "theirs"}))
        assert "10.9.8.7" not in deeds
    async with Api(nodes.all[1].url) as nobody:
        await nobody.refused("GET", "/api/sessions", headers={**lies, **TRUSTED}, status=401, code="unauthorized")


async def test_the_doors_between_processes_are_closed_to_clients(coordinator: ServerProcess, api: Api) -> None:
    renew = "/internal/lease?worker=worker-1&epoch=1"
    for headers in ({}, {"X-Warren-Cluster": OTHER_SECRET}):
        for method in ("GET", "POST"):
            await api.refused(method, renew, headers=headers, status=401, code="unauthorized")
    await api.refused("GET", "/internal/worker", status=404, code="not_found")
    async with Api(coordinator.url) as trusted:
        assert await trusted.post(renew, headers=TRUSTED) == {"pulse": "ok"}
        assert await trusted.post(renew.replace("=1", "=77"), headers=TRUSTED) == {"pulse": "superseded"}
        assert await trusted.post(renew.replace("er-1", "er-x"), headers=TRUSTED) == {"pulse": "unknown"}
        for bad in ("", "?worker=worker-1", "?epoch=1", "?worker=worker-1&epoch=x", "?worker=&epoch=1"):
            found = await trusted.refused(
                "POST", f"/internal/lease{bad}", headers=TRUSTED, status=422, code="invalid_request"
            )
            assert "`worker` and `epoch`" in found["detail"]


# A Redis that is none.


@pytest.mark.parametrize("what", ["password", "port"])
def test_a_redis_that_cannot_be_used_is_told_and_waited_for(nodes: Nodes, what: str) -> None:
    password = "not-the-password-of-this-redis" if what == "password" else nodes.redis.password
    port = nodes.redis.port if what == "password" else free_port()
    words = "does not take this user name and password" if what == "password" else "cannot be reached"
    environ = {"WARREN_REDIS_URL": "", "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port), "REDIS_PASSWORD": password}
    waiting = [nodes.worker("worker-waits", **environ), nodes.coordinator(**environ)]
    for process in waiting:
        process.start(wait=False)
    for process in waiting:
        told = f'waiting_for_redis error="Redis at 127.0.0.1:{port} {words}'
        wait_until(lambda process=process, told=told: told in process.log, process.log)
        assert process.alive
        assert process.stop() == 0
        assert password not in process.log
        assert process.log.count("waiting_for_redis") == 1


async def test_one_that_has_waited_for_redis_begins_when_it_is_there() -> None:
    with new_nodes() as nodes:
        nodes.redis.kill()
        late = [nodes.worker("worker-1"), nodes.coordinator()]
        for process in late:
            process.start(wait=False)
        for process in late:
            wait_until(lambda process=process: "waiting_for_redis" in process.log, process.log)
        nodes.redis.start()
        nodes.redis.ask("SET", "{warren}", "1")
        for process in late:
            process.wait_until_ready()
        async with Api(late[1].url, {"X-API-Key": ADMIN}) as api, api.session() as session:
            assert await session.output("echo there") == "there\n"
