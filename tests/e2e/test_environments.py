"""What sessions can be made of: listed over the API, alone and in a cluster, read again when files change."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import warm_parent
from e2e.alone_or_cluster import KINDS, Place, running
from e2e.api_client import Api, until
from e2e.conftest import NewState
from server_process import clean_environ

from warren import AsyncSandboxClient, SandboxClient

pytestmark = pytest.mark.anyio

ADMIN = "the-operator-has-this-key"
BOUND = {"quota": {"environments": ["small"]}, "tenant": "bound", "name": "bound", "scopes": ["read", "sessions"]}
SMALL = """
name: small
description: little of everything
image: base
limits: {memory_mb: 128, cpus: 0.25, pids: 50, disk_mb: 64, open_files: 256}
env: {TOKEN: a-secret-of-the-operator}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry") / "environments"
    folder.mkdir()
    (folder / "small.yaml").write_text(SMALL)
    (folder / "broken.yaml").write_text("name: broken\nimage: base\nlimits: {memory: 3}\n")
    return folder


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, new_state: NewState, registry: Path) -> Iterator[Place]:
    (registry / "small.yaml").write_text(SMALL)
    environ = {"WARREN_API_KEY": ADMIN, "WARREN_REGISTRY_DIR": str(registry.parent)}
    with running(request.param, new_state, **environ) as place:
        yield place


@pytest.fixture
async def api(place: Place) -> AsyncIterator[Api]:
    async with Api(place.server.url, headers={"X-API-Key": ADMIN}) as api:
        yield api


async def test_environments_are_listed_with_their_limits_and_without_secrets(api: Api) -> None:
    found = await api.get("/api/environments")
    by_name = {one["name"]: one for one in found["environments"]}
    packaged = ["base", "code-interpreter", "e2b", "e2b-code-interpreter", "host", "Node", "polyglot", "Python3"]
    assert list(by_name) == [*packaged, "small"]
    assert [name for name, one in by_name.items() if one["default"]] == ["base"]
    small = by_name["small"]
    assert small["limits"] == {"memory_mb": 128, "cpus": 0.25, "pids": 50, "disk_mb": 64, "open_files": 256}
    assert (small["image"], small["env_names"], small["provider"]) == ("base", ["TOKEN"], None)
    assert "a-secret" not in json.dumps(found)


async def test_images_are_listed_with_their_versions(api: Api) -> None:
    found = {one["name"]: one for one in (await api.get("/api/images"))["images"]}
    assert set(found) == {"base", "host"}
    assert found["base"]["size_bytes"] > 100 << 20
    assert set(found["base"]) == {"name", "version", "size_bytes", "files", "created_at"}


async def test_a_key_sees_what_it_may_use(api: Api, place: Place) -> None:
    key = await api.post("/api/admin/keys", BOUND, status=201)
    async with Api(place.server.url, headers={"X-API-Key": key["key"]}) as bound:
        assert [one["name"] for one in (await bound.get("/api/environments"))["environments"]] == ["small"]
        assert [one["name"] for one in (await bound.get("/api/images"))["images"]] == ["base"]


async def test_a_quota_names_environments_that_there_are(api: Api) -> None:
    for method, path in (("PUT", "/api/admin/tenants/picky"), ("POST", "/api/admin/keys")):
        wrong = {"quota": {"environments": ["smal"]}} | ({"name": "picky"} if method == "POST" else {})
        problem = await api.refused(method, path, wrong, status=422, code="unknown_environment")
        assert "there is no environment 'smal'" in problem["detail"]
        assert "did you mean small" in problem["remedy"]
    both = {"environments": ["small", "broken"]}
    assert (await api.call("PUT", "/api/admin/tenants/picky", {"quota": both}))["quota"] == both
    await api.call("DELETE", "/api/admin/tenants/picky", status=204)


async def test_a_mistake_in_a_file_is_the_operators_business(api: Api, place: Place, registry: Path) -> None:
    async with api.ask("POST", "/api/sessions", {"environment": "broken"}) as answer:
        text = await answer.text()
        assert answer.status == 503
    assert "the environment 'broken' cannot be used" in text
    assert str(registry.parent) not in text
    assert "environment_broken environment=broken" in place.server.log
    assert str(registry / "broken.yaml") in place.server.log


async def test_a_changed_file_is_read_without_a_restart(api: Api, registry: Path) -> None:
    async def memory() -> int:
        async with api.session(environment="small") as session:
            limits = session.found["limits"]
            assert limits == (await session.show())["limits"]
            return int(limits["memory_mb"])

    assert await memory() == 128
    (registry / "small.yaml").write_text(SMALL.replace("128", "160"))
    assert await memory() == 160
    (registry / "small.yaml").write_text("name: [")
    assert await memory() == 160
    (registry / "new.yaml").write_text("name: new\nimage: base\n")
    async with api.session(environment="new"):
        pass
    (registry / "new.yaml").unlink()
    await api.refused("POST", "/api/sessions", {"environment": "new"}, status=422, code="unknown_environment")
    (registry / "small.yaml").write_text(SMALL)


async def test_what_a_session_asks_for_is_in_its_json(api: Api) -> None:
    async with api.session(limits={"memory_mb": 96}) as session:
        assert session.found["limits"] == {
            "memory_mb": 96,
            "cpus": 0.5,
            "pids": 256,
            "disk_mb": 1024,
            "open_files": 1024,
        }
        assert session.found["pooled"] is False
    await until(lambda: pooled(api))


async def pooled(api: Api) -> bool:
    """Whether a session without limits of its own still comes from the pool."""
    async with api.session() as session:
        return bool(session.found["pooled"])


async def test_clients_and_commands_list_them(place: Place, registry: Path) -> None:
    there = {"api_key": ADMIN}
    environments = SandboxClient.list_environments(place.server.url, **there)
    assert [one.limits["memory_mb"] for one in environments if one.name == "small"] == [128]
    assert environments == await AsyncSandboxClient.list_environments(place.server.url, **there)
    images = SandboxClient.list_images(place.server.url, **there)
    assert [one.name for one in images] == ["base", "host"]
    assert images == await AsyncSandboxClient.list_images(place.server.url, **there)
    listed = warren("list", url=place.server.url)
    assert "small" in listed.stdout
    shown = json.loads(warren("show", "small", "--json", url=place.server.url).stdout)
    assert shown["limits"]["pids"] == 50
    assert warren("show", "none", url=place.server.url).returncode == 125


def test_files_are_checked_as_a_server_would(registry: Path) -> None:
    checked = warren("validate", registry=registry.parent)
    assert checked.returncode == 1
    assert "there is no limit 'memory'" in checked.stdout
    assert str(registry / "broken.yaml") in checked.stdout
    assert warren("validate", str(registry / "small.yaml")).returncode == 0


def warren(*arguments: str, url: str = "", registry: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environ = {**clean_environ(), "WARREN_URL": url, "WARREN_API_KEY": ADMIN}
    if registry is not None:
        environ["WARREN_REGISTRY_DIR"] = str(registry)
    argv = [sys.executable, "-m", "warren.cli.main", "environments", *arguments]
    return warm_parent.run(argv, env=environ, capture_output=True, text=True, timeout=60)
