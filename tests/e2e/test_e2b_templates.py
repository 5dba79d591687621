"""Templates of E2B's clients: built from uploaded files and steps, used, tagged, and gone without a trace."""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import Cluster, running_cluster
from e2e.api_client import Api, SessionApi, of, until
from e2e.conftest import NewState
from e2e.image_state import new_image_state
from redis_server import RedisServer
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

HASH = hashlib.sha256(b"files").hexdigest()
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    """Its images are its own: what a test builds is nobody else's."""
    state = new_image_state(image_cache)
    with running_server(state, "--pool-size", "0") as server:
        yield server
    shutil.rmtree(state)


@pytest.fixture
def url(server: ServerProcess) -> str:
    return server.url


def archive(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size, member.mode = len(text), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def step(kind: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "args": list(args), "force": False, **more}


async def build(api: Api, name: str, *steps: dict[str, Any], base: str = "base", **more: Any) -> dict[str, Any]:
    """Builds a template as E2B's clients do; returns the last status, with all entries of the log."""
    start = {key: more.pop(key) for key in ("startCmd", "readyCmd", "force") if key in more}
    asked = await api.post("/v3/templates", {"name": name, **more}, status=202)
    place = f"/templates/{asked['templateID']}/builds/{asked['buildID']}"
    await api.post(f"/v2{place}", {"fromTemplate": base, "steps": list(steps), "force": False} | start, status=202)
    return await ended(api, place)


async def ended(api: Api, place: str) -> dict[str, Any]:
    log: list[dict[str, Any]] = []

    async def look() -> dict[str, Any] | None:
        status: dict[str, Any] = await api.get(f"{place}/status", logsOffset=len(log))
        log.extend(status["logEntries"])
        return {**status, "logEntries": log} if status["status"] in ("ready", "error") else None

    found: dict[str, Any] = await until(look, 80)
    return found


def images(server: ServerProcess) -> list[str]:
    return [name for name in os.listdir(server.state_dir / "images") if name.startswith("template")]


def leftovers(server: ServerProcess) -> list[str]:
    builds = server.state_dir / "templates/builds"
    making = [str(path) for path in (server.state_dir / "images").glob(".making-*")]
    return making + ([str(path) for path in builds.iterdir()] if builds.is_dir() else [])


async def test_a_template_is_built_of_files_and_steps_and_used(api: Api, server: ServerProcess) -> None:
    asked = await api.post("/v3/templates", {"name": "mine:one", "cpuCount": 1, "memoryMB": 300}, status=202)
    assert (asked["templateID"], asked["names"], asked["tags"], asked["public"]) == ("mine", ["mine"], ["one"], False)
    files = await api.get(f"/templates/mine/files/{HASH}", status=201)
    assert files["present"] is False
    async with Api(files["url"].partition("/templates")[0]) as anybody:
        upload = "/templates" + files["url"].partition("/templates")[2]
        for wrong in (upload[:-1] + "x", upload.replace(HASH, HASH[::-1]), f"/templates/uploads/{HASH}"):
            refused = await anybody.call("PUT", wrong, data=b"x", status=401)
            assert refused["code"] == 401
        await anybody.call("PUT", upload, data=archive(hello="from a file\n", sub__inner="1"))
    assert (await api.get(f"/templates/mine/files/{HASH}", status=201))["present"] is True
    steps = [
        step("RUN", "pwd && whoami && touch made && chown user:user made"),
        step("COPY", "hello", "/opt/", "", "0600", filesHash=HASH),
        step("COPY", "sub", "dest", "root", "", filesHash=HASH),
        step("ENV", "COLOUR", "blue", "PATH", "/opt/bin:$PATH"),
        step("RUN", "id -u && echo $COLOUR", "root"),
        step("WORKDIR", "/srv/app"),
    ]
    place = f"/templates/mine/builds/{asked['buildID']}"
    started = {"fromImage": "e2bdev/base", "steps": steps, "force": False}
    await api.post(f"/v2{place}", started, status=202)
    again = await api.post(f"/v2{place}", started, status=400)
    assert "started already" in again["message"]
    status = await ended(api, place)
    said = [entry["message"] for entry in status["logEntries"]]
    assert status["status"] == "ready", status
    assert said[:3] == [f"step 1 of 6: RUN {steps[0]['args'][0]}", "/home/user", "user"]
    assert said[said.index("step 5 of 6: RUN id -u && echo $COLOUR") + 1 :][:2] == ["0", "blue"]
    assert "started already" in (await api.post(f"/v2{place}", started, status=400))["message"]

    made = await api.post("/sandboxes", {"templateID": "mine:one"}, status=201)
    shown = await api.get(f"/sandboxes/{made['sandboxID']}")
    assert (made["templateID"], shown["cpuCount"], shown["memoryMB"]) == ("mine", 1, 300)
    session = SessionApi(api, {"session_id": f"ses_{made['sandboxID']}"})
    seen = await session.output(
        "pwd; cat /opt/hello; stat -c '%u %a' /opt/hello; stat -c %u /home/user/dest/inner /home/user/made; "
        "echo $COLOUR; bash -lc 'echo $PATH'"
    )
    assert seen.splitlines()[:6] == ["/srv/app", "from a file", "1000 600", "0", "1000", "blue"]
    assert seen.splitlines()[6].startswith("/opt/bin:/usr/")

    refused = await api.post("/sandboxes", {"templateID": "mine"}, status=404)
    assert refused["message"].endswith("it has one")
    await api.call("DELETE", "/templates/mine", status=204)
    assert images(server) == leftovers(server) == []
    assert await session.output("cat /opt/hello") == "from a file\n"
    await api.call("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)


async def test_tags_decide_which_build_is_used_and_kept(api: Api, server: ServerProcess) -> None:
    first = await build(api, "tagged", step("ENV", "BUILD", "1"), tags=["v1", "latest"])
    second = await build(api, "tagged", step("ENV", "BUILD", "2"), base="tagged:v1", tags=["latest"])
    tags = {one["tag"]: one["buildID"] for one in await api.get("/templates/tagged/tags")}
    assert tags == {"v1": first["buildID"], "latest": second["buildID"]}
    assigned = await api.post("/templates/tags", {"target": "tagged:latest", "tags": ["v1"]}, status=201)
    assert assigned == {"buildID": second["buildID"], "tags": ["v1"]}
    assert [name.rpartition("%2F")[2] for name in images(server)] == [second["buildID"]]
    await api.call("DELETE", "/templates/tags", {"name": "tagged", "tags": ["v1"]}, status=204)
    assert await api.get("/templates/tagged/tags/count") == {"total": 1}
    assert (await api.get("/templates/tagged/tags/exists", tag="v1"))["exists"] is False
    assert (await api.get("/templates/tagged"))["buildCount"] == 2
    listed = {one["templateID"]: one["public"] for one in await api.get("/v2/templates")}
    assert (listed["base"], listed["tagged"]) == (True, False)
    assert await api.get("/templates/aliases/tagged") == {"templateID": "tagged", "public": False}
    assert await api.get("/templates/aliases/base") == {"templateID": "base", "public": True}
    await api.get("/templates/aliases/nobodys", status=404)
    await api.call("DELETE", "/templates/tagged", status=204)


async def test_a_start_command_runs_in_each_sandbox(api: Api) -> None:
    commands = {"startCmd": "echo up > /tmp/up && exec sleep 1000", "readyCmd": "test -s /tmp/up"}
    status = await build(api, "started", **commands)
    assert status["status"] == "ready", status
    made = await api.post("/v2/sandboxes", {"templateID": "started"}, status=201)
    session = SessionApi(api, {"session_id": f"ses_{made['sandboxID']}"})
    assert await session.output("cat /tmp/up; pgrep -c sleep") == "up\n1\n"
    await api.call("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)
    await api.call("DELETE", "/templates/started", status=204)


async def test_a_build_that_fails_says_which_step_and_leaves_nothing(api: Api, server: ServerProcess) -> None:
    status = await build(api, "failing", step("RUN", "true"), step("RUN", "echo why; exit 3"))
    assert (status["status"], status["reason"]["step"]) == ("error", "2")
    assert status["reason"]["message"] == "step 2 of 2: RUN echo why; exit 3: it ended with exit code 3"
    assert [entry["message"] for entry in status["logEntries"]][-2:] == ["why", status["reason"]["message"]]
    missing = await api.post("/v3/templates", {"name": "failing"}, status=202)
    copying = {"fromTemplate": "base", "steps": [step("COPY", "a", "b", filesHash="0" * 64)]}
    refused = await api.post(f"/v2/templates/failing/builds/{missing['buildID']}", copying, status=400)
    assert "were not uploaded" in refused["message"]
    assert images(server) == leftovers(server) == []
    assert str(server.state_dir) not in json.dumps(status)
    unknown = (await build(api, "failing", step("RUN", "whoami", "root123")))["reason"]
    reason = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    assert unknown == {"message": f"step 1 of 1: {reason}", "step": "1"}
    several = (await build(api, "failing", step("RUN", "true\nexit 5")))["reason"]["message"]
    assert several == "step 1 of 1: RUN true\nexit 5: it ended with exit code 5"


async def test_a_build_that_is_refused_leaves_no_template(api: Api) -> None:
    for body in ({"fromImage": "no-such-image"}, {"fromTemplate": "base", "steps": [step("ADD", "a", "b")]}):
        asked = await api.post("/v3/templates", {"name": "refused"}, status=202)
        await api.post(f"/v2/templates/refused/builds/{asked['buildID']}", body, status=400)
        await api.get("/templates/refused", status=404)
        await api.get("/templates/aliases/refused", status=404)


@pytest.mark.extended
async def test_builds_of_a_tenant_wait_for_each_other(api: Api) -> None:
    names = ("first", "second", "third")
    places = [await _started(api, name, step("RUN", f"sleep 1; echo {name}")) for name in names]
    second = await api.get(f"{places[1]}/status")
    assert (second["status"], second["logEntries"][0]["message"]) == ("building", "waiting for other builds to end")
    await api.call("DELETE", "/templates/third", status=409)
    statuses = [await ended(api, place) for place in places]
    assert [status["status"] for status in statuses] == ["ready"] * 3
    for name in names:
        await api.call("DELETE", f"/templates/{name}", status=204)


async def _started(api: Api, name: str, *steps: dict[str, Any]) -> str:
    asked = await api.post("/v3/templates", {"name": name}, status=202)
    place = f"/templates/{name}/builds/{asked['buildID']}"
    await api.post(f"/v2{place}", {"fromTemplate": "base", "steps": list(steps), "force": False}, status=202)
    return place


@pytest.mark.extended
async def test_a_killed_server_leaves_no_build_behind(api: Api, server: ServerProcess) -> None:
    asked = await api.post("/v3/templates", {"name": "killed"}, status=202)
    place = f"/templates/killed/builds/{asked['buildID']}"
    steps = [step("RUN", "echo begun; sleep 1000")]
    await api.post(f"/v2{place}", {"fromTemplate": "base", "steps": steps}, status=202)

    async def has_begun() -> bool:
        return any(entry["message"] == "begun" for entry in (await api.get(f"{place}/status"))["logEntries"])

    await until(has_begun)
    await api.call("DELETE", "/templates/killed", status=409)
    server.kill()
    server.start()
    status = await api.get(f"{place}/status")
    assert (status["status"], "stopped" in status["reason"]["message"]) == ("error", True)
    assert (await build(api, "killed", step("RUN", "true")))["status"] == "ready"
    await api.call("DELETE", "/templates/killed", status=204)

    async def is_clear() -> bool:
        return images(server) == leftovers(server) == []

    await until(is_clear, 20)


@pytest.mark.parametrize(
    ("method", "place", "body", "status"),
    [
        ("POST", "/v3/templates", None, 400),
        ("POST", "/v3/templates", [], 400),
        ("POST", "/v3/templates", {"name": "../up"}, 400),
        ("POST", "/v3/templates", {"name": "a" * 64}, 400),
        ("POST", "/v3/templates", {"name": "fine:"}, 400),
        ("POST", "/v3/templates", {"name": 7}, 400),
        ("POST", "/v3/templates", {"name": "base"}, 409),
        ("POST", "/v3/templates", {"name": "bad", "tags": "v1"}, 400),
        ("POST", "/v3/templates", {"name": "bad", "tags": [f"t{n}" for n in range(21)]}, 400),
        ("POST", "/v3/templates", {"name": "bad", "cpuCount": True}, 400),
        ("POST", "/v3/templates", {"name": "bad", "cpuCount": 100_000}, 400),
        ("POST", "/v3/templates", {"name": "bad", "memoryMB": -1}, 400),
        ("POST", "/v3/templates", {"name": "bad", "memoryMB": 1 << 40}, 400),
        ("GET", "/templates/nobodys", None, 404),
        ("GET", "/templates/a%00b", None, 404),
        ("GET", "/v2/templates?limit=-1", None, 400),
        ("PATCH", "/templates/nobodys", {"public": True}, 404),
        ("PATCH", "/v2/templates/bad", {"public": True}, 501),
        ("DELETE", "/templates/base", None, 404),
        ("GET", "/templates/nobodys/tags", None, 404),
        ("GET", "/templates/base/tags/exists", None, 400),
        ("GET", "/templates/base/tags/groups", None, 501),
        ("POST", "/templates/tags", {"target": "bad:x", "tags": ["a"]}, 404),
        ("POST", "/templates/tags", {"target": "bad", "tags": [None]}, 400),
        ("DELETE", "/templates/tags", {"name": "bad", "tags": ["default"]}, 404),
        ("DELETE", "/templates/tags", {}, 400),
        ("GET", "/templates/bad/files/xyz", None, 400),
        ("GET", f"/templates/nobodys/files/{HASH}", None, 404),
        ("PUT", f"/templates/uploads/{HASH}?token=a.b", None, 401),
        ("GET", f"/templates/uploads/{HASH}", None, 401),
        ("GET", f"/templates/bad/builds/{UNKNOWN}/status", None, 404),
        ("GET", "/templates/bad/builds/BUILD/status?logsOffset=x", None, 400),
        ("GET", "/templates/bad/builds/BUILD/logs?level=loud", None, 400),
        ("POST", f"/v2/templates/bad/builds/{UNKNOWN}", {"fromTemplate": "base"}, 404),
        ("POST", "/v2/templates/bad/builds/BUILD", {}, 400),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromTemplate": "base", "fromImage": "base"}, 400),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromTemplate": "nobodys"}, 404),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromImage": "python:3"}, 400),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromImage": "docker:base"}, 400),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromImage": "template/0123456789abcdef/a/b"}, 400),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromImage": "a", "fromImageRegistry": {"type": "aws"}}, 501),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromTemplate": "base", "startCmd": 7}, 400),
        ("POST", "/v2/templates/bad/builds/BUILD", {"fromTemplate": "base", "steps": {}}, 400),
        *(
            ("POST", "/v2/templates/bad/builds/BUILD", {"fromTemplate": "base", "steps": [bad]}, 400)
            for bad in (
                7,
                step("ADD", "a", "b"),
                step("RUN"),
                step("RUN", "a\0"),
                {"type": "RUN", "args": [7]},
                step("RUN", "true", "no user"),
                step("ENV", "NAME"),
                step("ENV", "1NAME", "x"),
                step("COPY", "a", "b"),
                step("COPY", "a", "b", filesHash="../../x"),
                step("COPY", "../a", "b", filesHash=HASH),
                step("COPY", "/a", "b", filesHash=HASH),
                step("COPY", "**/a", "b", filesHash=HASH),
                step("COPY", "a", "b", "", "rwx", filesHash=HASH),
                step("WORKDIR", ""),
                step("USER", "a b"),
            )
        ),
    ],
)
async def test_bad_input_is_refused(api: Api, method: str, place: str, body: Any, status: int) -> None:
    if "BUILD" in place or "/bad" in place:
        asked = await api.post("/v3/templates", {"name": "bad"}, status=202)
        place = place.replace("BUILD", asked["buildID"])
    refused = await api.call(method, place, body, status=status)
    assert (refused["code"], bool(refused["message"])) == (status, True)


@pytest.fixture
async def tenant(admin: Api) -> AsyncIterator[Api]:
    async with of(admin, "acme") as api:
        yield api


async def test_templates_and_their_images_belong_to_a_tenant(admin: Api, tenant: Api) -> None:
    async with of(admin, "acme", "read", "exec") as reader:
        refused = await reader.post("/v3/templates", {"name": "mine"}, status=403)
    assert (refused["code"], "scope sessions" in refused["message"]) == (403, True)
    await admin.post("/v3/templates", {"name": "operators"}, status=202)
    await admin.get("/templates/aliases/operators")
    await tenant.get("/templates/aliases/operators", status=404)
    await tenant.get("/templates/aliases/base")
    assert not [one for one in await tenant.get("/templates") if not one["public"]]
    other = {"image": "template/0123456789abcdef/operators/1"}
    await tenant.refused("POST", "/api/sessions", other, status=404, code="image_not_found")
    await admin.call("DELETE", "/templates/operators", status=204)


async def test_a_cluster_says_that_it_builds_no_templates(new_state: NewState) -> None:
    states = [new_state(), new_state()]
    cluster = Cluster(RedisServer(states[0] / "redis"), states[:1], states[1:])
    with running_cluster(cluster):
        async with Api(cluster.coordinators[0].url) as api:
            refused = await api.post("/v3/templates", {"name": "mine"}, status=501)
            assert "cluster" in refused["message"]
            assert [one for one in await api.get("/templates") if one["templateID"] == "base"]


@pytest.mark.extended
async def test_templates_of_a_tenant_take_no_more_than_the_operator_gives(image_cache: Path) -> None:
    """What a template shares with the image it is built on counts once, or not at all if that image is the server's."""
    state = new_image_state(image_cache)
    with running_server(state, "--pool-size", "0", WARREN_E2B_TEMPLATE_MB="45") as server:
        async with Api(server.url) as api:
            random = step("RUN", "head -c 25000000 /dev/urandom > $RANDOM")
            assert (await build(api, "first", random))["status"] == "ready"
            assert (await build(api, "second", step("RUN", "true"), base="first"))["status"] == "ready"
            assert (await build(api, "again", random, force=True))["status"] == "ready"  # the same step, other files
            refused = await _refused(api, "more")
            assert refused.endswith("45 MiB is the most; delete some first")
            await api.get("/templates/more", status=404)
            await api.call("DELETE", "/templates/first", status=204)
            await _refused(api, "more")  # `second` has the files still
            await api.call("DELETE", "/templates/second", status=204)
            assert (await build(api, "more"))["status"] == "ready"
            assert leftovers(server) == []
    shutil.rmtree(state)


async def _refused(api: Api, name: str) -> str:
    asked = await api.post("/v3/templates", {"name": name}, status=202)
    place = f"/v2/templates/{name}/builds/{asked['buildID']}"
    refused = await api.post(place, {"fromTemplate": "base", "steps": [], "force": False}, status=429)
    return str(refused["message"])
