"""Clients that ask a worker itself about the sessions it has: with their own keys, about their own sessions only."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import SECRET
from machine.cluster_world import ADMIN, new_nodes, wait_until
from machine.remote_cli import RemoteCli
from server_process import ServerProcess

from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import ServerUnreachable

pytestmark = pytest.mark.anyio
EXEC = "route=/api/sessions/{session_id}/exec status=200"


@dataclass
class World:
    """Workers that take clients, `a` and `b`, and one that does not, `c`. All know `key`, and `other` of another one;
    ADMIN is the coordinator's alone."""

    front: ServerProcess
    workers: dict[str, ServerProcess]
    key: str = ""
    other: str = ""

    def session(self, where: str, key: str = "") -> dict[str, Any]:
        status, made = ask(self.front.url, "POST", "/api/sessions", {"labels": {"where": where}}, key or self.key)
        assert status == 201, made
        return dict(made)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with new_nodes() as nodes:
        workers = {
            name: nodes.worker(name, "--labels", f"where={name}", WARREN_AUTH="true", WARREN_DIRECT_CLIENTS=takes)
            for name, takes in (("a", "true"), ("b", "true"), ("c", "false"))
        }
        world = World(nodes.coordinator(), workers)
        for node in nodes.all:
            node.start(wait=False)
        for node in nodes.all:
            node.wait_until_ready()
        wait_until(lambda: len(ask(world.front.url, "GET", "/api/cluster")[1]["workers"]) == 3, "three workers")
        world.key, world.other = (new_key(world.front, tenant)[0] for tenant in ("default", "other"))
        yield world


def new_key(front: ServerProcess, tenant: str) -> tuple[str, str]:
    """Returns a key and its id."""
    made = ask(front.url, "POST", "/api/admin/keys", {"name": "a key", "tenant": tenant})[1]
    return made["key"], made["id"]


def ask(url: str, method: str, path: str, body: Any = None, key: str = ADMIN, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {}), **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as exc:
        return exc.code, json.loads(exc.read())


async def test_what_is_about_a_session_goes_to_its_worker(world: World) -> None:
    passed, asked = world.front.log.count(EXEC), world.workers["a"].log.count(EXEC)
    with SandboxClient(world.front.url, api_key=world.key, direct=True, labels={"where": "a"}) as one:
        assert one.execute("echo here").output == "here\n"
        one.write_file("a.txt", b"data")
        assert one.read_file("a.txt") == b"data"
        assert b"".join(chunk.data for chunk in one.stream("echo streamed")) == b"streamed\n"
        backend = one._backend
        assert len(backend._session_at) == 1  # type: ignore[attr-defined]
    assert not backend._session_at  # type: ignore[attr-defined]
    async with AsyncSandboxClient(world.front.url, api_key=world.key, direct=True, labels={"where": "a"}) as two:
        assert (await two.execute("echo here")).output == "here\n"
        assert (await two.info()).worker == "a"
    wait_until(lambda: world.workers["a"].log.count(EXEC) == asked + 3, "the worker has logged them")
    assert world.front.log.count(EXEC) == passed


@pytest.mark.parametrize(("where", "direct"), [("a", False), ("c", True)])
async def test_all_else_goes_through_the_cluster(world: World, where: str, direct: bool) -> None:
    passed = world.front.log.count(EXEC)
    with SandboxClient(world.front.url, api_key=world.key, direct=direct, labels={"where": where}) as sandbox:
        assert sandbox.execute("echo here").output == "here\n"
    wait_until(lambda: world.front.log.count(EXEC) == passed + 1, "the coordinator has logged it")
    assert ("worker_url" in world.session(where)) == (where != "c")


async def test_a_client_that_asks_the_wrong_worker_goes_on_through_the_cluster(world: World) -> None:
    with SandboxClient(world.front.url, api_key=world.key, direct=True, labels={"where": "a"}) as sandbox:
        assert sandbox.execute("echo here").output == "here\n"
        known: dict[str, str] = sandbox._backend._session_at  # type: ignore[attr-defined]
        sandbox._backend._note({"session_id": sandbox.session_id, "worker_url": world.workers["b"].url})  # type: ignore[attr-defined]
        assert sandbox.execute("echo here").output == "here\n"
        assert known == {}
        for way in ("stream", "download"):
            known[sandbox.session_id] = world.workers["b"].url
            if way == "stream":
                assert b"".join(chunk.data for chunk in sandbox.stream("echo on")) == b"on\n"
            else:
                sandbox.write_file("a.txt", b"data")
                known[sandbox.session_id] = world.workers["b"].url
                assert sandbox.read_file("a.txt") == b"data"
            assert known == {}
        sandbox._backend._note({"session_id": sandbox.session_id, "worker_url": "http://127.0.0.1:9"})  # type: ignore[attr-defined]
        with pytest.raises(ServerUnreachable):
            sandbox.execute("echo here")
        assert sandbox.execute("echo here").output == "here\n"


async def test_a_worker_lets_nobody_do_more_than_the_cluster_does(world: World) -> None:
    a, c = world.workers["a"].url, world.workers["c"].url
    key = world.key
    mine, theirs = world.session("a"), world.session("a", world.other)
    here, there = f"/api/sessions/{mine['session_id']}", f"/api/sessions/{world.session('b')['session_id']}"
    run = {"command": "echo here"}
    assert ask(a, "POST", f"{here}/exec", run, key)[0] == 200
    assert ask(a, "POST", f"/api/sessions/{theirs['session_id']}/exec", run, world.other)[0] == 200
    refused = {
        "no key": (ask(a, "POST", f"{here}/exec", run, ""), 401, "unauthorized"),
        "a wrong key": (ask(a, "POST", f"{here}/exec", run, "wk_nobody"), 401, "unauthorized"),
        "another tenant": (ask(a, "POST", f"{here}/exec", run, world.other), 404, "session_not_found"),
        "one who says who asks": (
            ask(a, "POST", f"{here}/exec", run, world.other, **{"X-Warren-Caller": '{"tenant": "default"}'}),
            404,
            "session_not_found",
        ),
        "a guessed secret": (
            ask(a, "POST", f"{here}/exec", run, key, **{"X-Warren-Cluster": "x"}),
            401,
            "unauthorized",
        ),
        "another name": (ask(a, "POST", f"{here}/exec", run, key, Host="evil.example"), 421, "host_not_allowed"),
        "a web page": (
            ask(a, "POST", f"{here}/exec", run, key, Origin="http://evil.example"),
            403,
            "origin_not_allowed",
        ),
        "a session elsewhere": (ask(a, "POST", f"{there}/exec", run, key), 503, "misdirected"),
        "a session of nobody": (
            ask(a, "GET", "/api/sessions/ses_0", None, key),
            404,
            "session_not_found",
        ),
        "no operation": (ask(a, "GET", f"{here}/nothing", None, key), 503, "misdirected"),
        "a worker that takes none": (ask(c, "POST", f"{here}/exec", run, key), 401, "unauthorized"),
        **{
            path: (ask(a, method, path, {} if method == "POST" else None, key), 401, "unauthorized")
            for method, path in (
                *(("POST", "/api/sessions"), ("GET", "/api/sessions"), ("GET", "/api/admin/keys")),
                *(("GET", "/api/cluster"), ("GET", "/internal/worker"), ("POST", "/execute")),
            )
        },
    }
    assert {
        name: (status, found["code"])
        for name, ((status, found), *expected) in refused.items()
        if [status, found["code"]] != expected
    } == {}


async def test_what_clients_ask_a_worker_counts_against_their_quotas(world: World) -> None:
    session = world.session("b", world.other)
    path, worker = f"/api/sessions/{session['session_id']}/exec", world.workers["b"].url
    assert ask(world.front.url, "PUT", "/api/admin/tenants/other", {"quota": {"requests_per_minute": 5}})[0] == 200
    try:

        def is_refused() -> bool:
            return ask(worker, "POST", path, {"command": "true"}, world.other)[0] == 429

        wait_until(is_refused, "the quota is known and used up")
        assert ask(world.front.url, "POST", path, {"command": "true"}, world.other)[0] == 429
    finally:
        ask(world.front.url, "PUT", "/api/admin/tenants/other", {"quota": {}})


async def test_a_revoked_key_opens_no_worker(world: World) -> None:
    key, key_id = new_key(world.front, "default")
    path = f"/api/sessions/{world.session('a')['session_id']}"
    worker = world.workers["a"].url
    assert ask(worker, "GET", path, None, key)[0] == 200
    assert ask(world.front.url, "DELETE", f"/api/admin/keys/{key_id}")[0] in (200, 204)
    wait_until(lambda: ask(worker, "GET", path, None, key)[0] == 401, "the key opens nothing")


async def test_workers_that_answer_nobody_but_coordinators_take_no_clients(tmp_path: Path) -> None:
    files = {f"WARREN_CLUSTER_{name}": "/dev/null" for name in ("CA", "CERT", "KEY")}
    environ = {"WARREN_STATE_DIR": str(tmp_path), "WARREN_CLUSTER_SECRET": SECRET, **files}
    done = RemoteCli("", WARREN_DIRECT_CLIENTS="true", **environ).run("worker")
    assert (done.returncode, b"nobody but coordinators" in done.stderr) == (125, True), done.stderr
