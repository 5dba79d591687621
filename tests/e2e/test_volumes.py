"""Named volumes over the API of a real server: homes of users, what tenants see, what a restart leaves."""

import asyncio
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from e2e.api_client import Api, SessionApi, of, until
from e2e.conftest import NewState
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, running_server

from warren import AsyncSandboxClient

pytestmark = pytest.mark.anyio

ADMIN = "the-operator-has-this-key"
HOMES = "name: homes\nimage: base\nvolumes: [{name: 'home-{user}', path: /home/sandboxuser, size_mb: 32}]\n"
AT = "/workspace/data"


WITH_DOCKER = [pytest.mark.extended, pytest.mark.group("docker")]


@pytest.fixture(scope="module", params=["oci", pytest.param("docker", marks=WITH_DOCKER)])
def server(
    request: pytest.FixtureRequest, new_state: NewState, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    (registry / "environments" / "homes.yaml").write_text(HOMES)
    environ = {"WARREN_API_KEY": ADMIN, "WARREN_REGISTRY_DIR": str(registry), "WARREN_VOLUME_MB": "24"}
    if request.param == "docker":
        environ["WARREN_DOCKER_URL"] = request.getfixturevalue("docker_engine").url
        environ["WARREN_E2B_TEMPLATES"] = "base=base"  # the usual one has sudo
    with running_server(new_state(), "--pool-size", "1", provider=request.param, **environ) as server:
        yield server
    assert backing_files(server.state_dir) == []


def backing_files(state: Path) -> list[str]:
    found = subprocess.run(["losetup", "-ln", "-O", "BACK-FILE"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.split() if line.startswith(f"{state}/disks/volumes")]


@pytest.fixture
async def api(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": ADMIN}) as admin, of(admin, "acme") as api:
        yield api


async def make(api: Api, name: str, **more: object) -> None:
    await api.post("/api/volumes", {"name": name, **more}, status=201)


async def test_each_user_has_a_home_that_lasts(api: Api) -> None:
    ann, bo = {"user": "ann"}, {"user": "bo@example.com"}
    async with api.session(environment="homes", metadata=ann) as session:
        assert await session.output("pwd -P; cd; ls -A; echo mine > note") == "/workspace\n"
        assert [each["name"] for each in (await session.show())["volumes"]] == ["home-ann"]
    async with (
        api.session(environment="homes", metadata=ann) as again,
        api.session(environment="homes", metadata=bo) as other,
    ):
        assert await again.output("cat ~/note") == "mine\n"
        assert await other.output("ls -A ~") == ""
        await api.refused("DELETE", "/api/volumes/home-ann", status=409, code="conflict")
    problem = await api.refused("POST", "/api/sessions", {"environment": "homes"}, status=422, code="invalid_request")
    assert "{user}" in problem["detail"]
    listed = (await api.get("/api/volumes"))["volumes"]
    assert [(each["name"], each["size_mb"]) for each in listed] == [("home-ann", 32), ("home-bo_40example_2Ecom", 32)]
    for each in listed:
        await api.call("DELETE", f"/api/volumes/{each['name']}", status=204)


async def test_a_cache_that_one_session_fills_is_read_by_others(api: Api) -> None:
    await make(api, "cache")
    shared = [{"name": "cache", "path": AT}]
    async with api.session(volumes=shared) as writer, api.session(volumes=[{**shared[0], "read_only": True}]) as reader:
        await writer.output(f"echo wheel > {AT}/wheel")
        assert await reader.output(f"cat {AT}/wheel; touch {AT}/x 2>&1 || true") == (
            f"wheel\ntouch: cannot touch '{AT}/x': Read-only file system\n"
        )
        shown = await api.get("/api/volumes/cache")
        assert sorted(shown["sessions"]) == sorted([writer.id, reader.id])
        assert shown["used_bytes"] > 0
        isolation = (await writer.show())["isolation"]
        assert not {"disk_limit", "mount_flags", "no_host_files"} & set(isolation["missing"])
        await api.refused("PATCH", "/api/volumes/cache", {"size_mb": 64}, status=409, code="conflict")
    assert (await api.call("PATCH", "/api/volumes/cache", {"size_mb": 64}))["size_mb"] == 64
    await api.post("/api/volumes/cache/copy", {"name": "copy"}, status=201)
    async with api.session(volumes=[{"name": "copy", "path": AT}]) as session:
        assert await session.output(f"cat {AT}/wheel; df --output=size -m {AT} | tail -1 | tr -d ' '") != ""
    for name in ("cache", "copy"):
        await api.call("DELETE", f"/api/volumes/{name}", status=204)


async def test_a_volume_comes_and_goes_while_the_sandbox_runs(api: Api) -> None:
    await make(api, "late", size_mb=16)
    async with api.session() as session:
        shown = await session.post("/volumes", {"name": "late", "path": AT}, status=201)
        assert [(each["name"], each["path"], each["read_only"]) for each in shown["volumes"]] == [("late", AT, False)]
        await session.output(f"dd if=/dev/zero of={AT}/full bs=1M count=64 2>/dev/null || true; sync")
        assert int(await session.output(f"stat -c %s {AT}/full")) < 16 << 20
        await session.call("DELETE", "/volumes", path=AT)
        assert await session.output(f"ls -A {AT}") == ""
        await session.refused("DELETE", "/volumes", path=AT, status=404, code="not_found")
        await session.output("ln -s /etc /workspace/link")
        body = {"name": "late", "path": "/workspace/link"}
        await session.refused("POST", "/volumes", body, status=422, code="invalid_path")
        await session.refused("POST", "/volumes", {**body, "path": "/data"}, status=403, code="permission_denied")
        assert (await session.show())["volumes"] == []
    await api.call("DELETE", "/api/volumes/late", status=204)


async def test_a_create_whose_volume_cannot_be_mounted_makes_nothing(api: Api) -> None:
    await make(api, "data")
    wanted = [{"name": "data", "path": "/proc/x"}]
    await api.refused("POST", "/api/sessions", {"volumes": wanted}, status=422, code="invalid_request")
    wanted = [{"name": "data", "path": "/home"}]
    problem = await api.refused("POST", "/api/sessions", {"volumes": wanted}, status=422, code="invalid_request")
    assert "would hide /home/" in problem["detail"]
    wanted = [{"name": "nothing", "path": AT}]
    await api.refused("POST", "/api/sessions", {"volumes": wanted}, status=404, code="not_found")
    assert (await api.get("/api/sessions"))["sessions"] == []
    await api.call("DELETE", "/api/volumes/data", status=204)


async def test_another_tenants_volume_cannot_be_named_or_guessed(server: ServerProcess, api: Api) -> None:
    await make(api, "secret")
    mine = await api.get("/api/volumes/secret")
    async with Api(server.url, {"X-API-Key": ADMIN}) as admin, of(admin, "other") as other:
        for name in ("secret", mine["volume_id"], "..%2Facme%2Fsecret", "acme%2Fsecret"):
            for method in ("GET", "DELETE"):
                async with other.ask(method, f"/api/volumes/{name}") as answer:
                    assert answer.status == 404
        await other.refused("POST", "/api/volumes/secret/copy", {"name": "x"}, status=404, code="not_found")
        async with other.session() as session:
            for name in ("secret", mine["volume_id"]):
                async with session.ask("POST", "/volumes", {"name": name, "path": AT}) as answer:
                    assert answer.status in (404, 422)
        assert (await other.get("/api/volumes"))["volumes"] == []
    async with Api(server.url, {"X-API-Key": ADMIN}) as admin, of(admin, "acme", "read") as reader:
        await reader.refused("DELETE", "/api/volumes/secret", status=403, code="forbidden")
    await api.call("DELETE", "/api/volumes/secret", status=204)


async def test_a_tenant_has_no_more_than_its_quota(server: ServerProcess) -> None:
    async with Api(server.url, {"X-API-Key": ADMIN}) as admin:
        await admin.call("PUT", "/api/admin/tenants/small", {"quota": {"volumes": 2, "volumes_mb": 50}})
        async with of(admin, "small") as api:
            await make(api, "one", size_mb=30)
            await api.refused("POST", "/api/volumes", {"name": "two", "size_mb": 30}, status=429, code="quota_exceeded")
            await make(api, "two", size_mb=20)
            await api.refused("POST", "/api/volumes", {"name": "three"}, status=429, code="quota_exceeded")
            used = {row["name"]: row["used"] for row in (await api.get("/api/quotas"))["quotas"]}
            assert (used["volumes"], used["volumes_mb"]) == (2, 50)
            assert (await api.get("/api/usage"))["volumes_mb"] == 50
            for name in ("one", "two"):
                await api.call("DELETE", f"/api/volumes/{name}", status=204)


async def test_the_sdk_and_the_command_line(server: ServerProcess, api: Api) -> None:
    key = api.headers["X-API-Key"]
    async with AsyncSandboxClient(server.url, api_key=key, thread_id="sdk") as client:
        made = await client.volumes.create("notes", 16, metadata={"of": "sdk"})
        assert (made.size_mb, made.metadata) == (16, {"of": "sdk"})
        info = await client.attach_volume("notes", AT)
        assert info.volumes[0]["name"] == "notes"
        await client.execute(f"echo kept > {AT}/a")
        assert (await client.volumes.get("notes")).sessions == [client.session_id]
        await client.detach_volume(AT)
        assert (await client.volumes.resize("notes", 32)).size_mb == 32
        assert [each.name for each in await client.volumes.list()] == ["notes"]
        await client.cleanup()
    cli = RemoteCli(server.url, WARREN_API_KEY=key)
    assert cli.say("volume", "copy", "notes", "more") == "more  32 MiB\n"
    session = cli.say("create", "-v", f"more:{AT}:ro").strip()
    assert cli.say("exec", session, "cat", f"{AT}/a") == "kept\n"
    assert "more" in cli.say("volume", "list")
    assert cli.document("volume", "show", "more")["sessions"] == [session]
    cli.say("volume", "detach", AT, session)
    cli.say("volume", "attach", f"notes:{AT}", session)
    cli.say("kill", session)
    assert cli.say("volume", "rm", "notes", "more") == "removed notes\nremoved more\n"


async def test_what_a_session_has_stays_when_the_server_is_killed(server: ServerProcess, api: Api) -> None:
    await make(api, "lasting")
    found = await api.post("/api/sessions", {"volumes": [{"name": "lasting", "path": AT}]}, status=201)
    session = SessionApi(api, found)
    await session.output(f"echo before > {AT}/a")
    server.kill()
    server.start()
    async with Api(server.url, api.headers) as api:  # the connections of the first one are gone
        session = SessionApi(api, found)
        await session.output(f"echo after >> {AT}/a")
        assert [each["name"] for each in (await session.show())["volumes"]] == ["lasting"]
        await api.refused("DELETE", "/api/volumes/lasting", status=409, code="conflict")
        await api.call("DELETE", f"/api/sessions/{session.id}")
        async with api.session(volumes=[{"name": "lasting", "path": AT, "read_only": True}]) as again:
            assert await again.output(f"cat {AT}/a") == "before\nafter\n"
        await api.call("DELETE", "/api/volumes/lasting", status=204)


async def test_a_volume_that_was_read_from_outside_is_free_after_a_kill(server: ServerProcess, api: Api) -> None:
    made = await api.post("/volumes", {"name": "outside"}, status=201)
    headers, place = {"Authorization": f"Bearer {made['token']}"}, f"/volumecontent/{made['volumeID']}/file?path=/a"
    async with Api(server.url) as client:
        await client.call("PUT", place, data=b"kept", headers=headers, status=201)
    assert backing_files(server.state_dir) != []
    assert (await api.get("/api/sessions"))["sessions"] == []
    server.kill()
    server.start()

    async def no_loop_is_left() -> bool:
        return not backing_files(server.state_dir)

    await until(no_loop_is_left)
    async with Api(server.url, api.headers) as api, Api(server.url) as client:
        assert await client.call("GET", place, headers=headers) == b"kept"
        async with api.session(volumes=[{"name": "outside", "path": AT}]) as session:
            whose = f"test $(stat -c %u {AT}/a) = $(id -u) && echo mine"
            assert await session.output(f"cat {AT}/a; echo more >> {AT}/a; {whose}") == "keptmine\n"
            assert await client.call("GET", place, headers=headers) == b"keptmore\n"
        await api.call("DELETE", "/api/volumes/outside", status=204)


async def test_a_kill_at_any_moment_loses_nothing_and_leaves_nothing(server: ServerProcess, api: Api) -> None:
    chance = random.Random(7)
    for round_ in range(6):
        work = [
            asyncio.ensure_future(call)
            for call in (
                api.post("/api/volumes", {"name": f"made-{round_}", "size_mb": 16}, status=201),
                api.post(
                    "/api/sessions", {"volumes": [{"name": f"new-{round_}", "path": AT, "size_mb": 16}]}, status=201
                ),
            )
        ]
        await asyncio.sleep(chance.random() * 0.3)
        server.kill()
        done = await asyncio.gather(*work, return_exceptions=True)
        server.start()
        async with Api(server.url, api.headers) as after:
            await look_after_a_kill(after, server, done[0], round_)

    async def no_loop_is_left() -> bool:
        return not backing_files(server.state_dir)

    await until(no_loop_is_left)


async def look_after_a_kill(api: Api, server: ServerProcess, made: object, round_: int) -> None:
    listed = {each["name"]: each["volume_id"] for each in (await api.get("/api/volumes"))["volumes"]}
    if not isinstance(made, BaseException):
        assert f"made-{round_}" in listed
    images = {path.stem for path in (server.state_dir / "disks/volumes").glob("*.img")}
    assert images == set(listed.values())
    for session in (await api.get("/api/sessions"))["sessions"]:
        await api.call("DELETE", f"/api/sessions/{session['session_id']}")
    for name in listed:
        await api.call("DELETE", f"/api/volumes/{name}", status=204)
    assert list((server.state_dir / "disks/volumes").iterdir()) == []
