"""A server with several providers: the session, the environment or the server says which one makes the sandbox."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_parent
from e2e.api_client import Api, SessionApi
from e2e.conftest import NewState
from e2e.hosts import Hosts
from server_process import ServerProcess, clean_environ

from warren import AsyncSandboxClient

pytestmark = pytest.mark.anyio

_ENVIRONMENTS = {
    "real": "name: real\nimage: host\nprovider: oci\n",
    "nowhere": "name: nowhere\nimage: host\nprovider: docker\n",
    "demanding": "name: demanding\nimage: host\nneeds: [user_namespace]\n",
    "rooted": "name: rooted\nimage: base\nprovider: oci\nroot: writable\nsudo: true\n",
    "exposed": "name: exposed\nimage: host\nprovider: oci\nsudo: true\n",
}


@pytest.fixture(scope="module")
def server(new_state: NewState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    registry: Path = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    for name, text in _ENVIRONMENTS.items():
        (registry / "environments" / f"{name}.yaml").write_text(text)
    flags = ("--pool-size", "1", "--environment", "host", "--registry-dir", str(registry))
    server = ServerProcess(new_state(), "--on-stop", "destroy", *flags, provider="fake,oci")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


@pytest.mark.parametrize(
    ("wanted", "provider"),
    [
        ({}, "fake"),
        ({"provider": "fake"}, "fake"),
        ({"provider": "oci"}, "oci"),
        ({"provider": "oci", "limits": {"memory_mb": 96}}, "oci"),
        ({"environment": "real"}, "oci"),
        ({"environment": "real", "provider": "fake"}, "fake"),
        ({"environment": "demanding", "provider": "oci"}, "oci"),
    ],
)
async def test_the_session_or_its_environment_or_the_server_chooses(
    api: Api, server: ServerProcess, wanted: dict[str, object], provider: str
) -> None:
    async with api.session(**wanted) as session:
        shown = await session.show()
        assert (session.found["provider"], shown["isolation"]["provider"]) == (provider, provider)
        assert Hosts(server.state_dir).has(shown["sandbox_id"]) is (provider == "oci")
        assert await session.output("echo up") == "up\n"


@pytest.mark.parametrize("wanted", [{"provider": "docker"}, {"provider": "e2b"}, {"environment": "nowhere"}])
async def test_a_provider_that_is_not_there_is_refused_with_those_that_are(api: Api, wanted: dict[str, str]) -> None:
    refusal = await api.refused("POST", "/api/sessions", wanted, status=422, code="invalid_request")
    assert refusal["detail"].startswith("this server has no provider ")
    assert refusal["remedy"] == "leave provider out, or use one that it has: fake, oci"


async def test_what_a_provider_cannot_do_is_refused_with_those_that_can(api: Api) -> None:
    wanted = {"environment": "demanding"}
    refusal = await api.refused("POST", "/api/sessions", wanted, status=422, code="invalid_request")
    assert refusal["detail"].startswith("the provider fake does not have the capability user_namespace")
    assert refusal["remedy"] == "use a provider that has it: oci"


async def test_each_provider_has_a_pool_and_the_figures_name_it(api: Api) -> None:
    async with api.session(provider="oci"):
        found = await api.get("/api/stats")
    assert {"host", "host@oci"} <= set(found["workers"]["local"]["pools"])
    assert (await api.get("/version"))["provider"] == "fake"


async def test_after_a_kill_the_sandbox_is_found_with_its_own_provider(server: ServerProcess) -> None:
    async with Api(server.url) as api:
        real = SessionApi(api, await api.post("/api/sessions", {"provider": "oci"}, status=201))
        pretended = await api.post("/api/sessions", {"provider": "fake"}, status=201)
        await real.output("echo kept > kept")
    server.kill()
    server.start()
    async with Api(server.url) as api:
        real = SessionApi(api, real.found)
        assert await real.output("cat kept") == "kept\n"
        shown = await SessionApi(api, pretended).show()
        assert (shown["state"], shown["provider"]) == ("lost", "fake")


async def test_an_environment_may_allow_root_and_no_request_can(api: Api, server: ServerProcess) -> None:
    async with api.session(environment="rooted") as session:
        result = await session.exec("id -u; sudo id -u; sudo touch /etc/made", user="root")
        assert (result["exit_code"], result["stdout"]) == (0, "0\n0\n")
        await session.write("/etc/sent", b"text", user="root")
        assert await session.output("id -u; sudo id -u; stat -c %U /etc/made /etc/sent") == "1000\n0\nroot\nroot\n"
        argv = ("exec", "--user", "root", session.id, "--", "sh", "-c", "id -u; cat /etc/sent")
        assert warren(server, *argv).stdout == "0\ntext"
        async with AsyncSandboxClient(server.url, environment="rooted") as client:
            assert (await client.execute("id -u", user="root")).stdout == "0\n"
    shown = json.loads(warren(server, "environments", "show", "rooted", "--json").stdout)
    assert (shown["root"], shown["sudo"], shown["needs"]) == ("writable", True, ["user_namespace"])
    refused = {"environment": "rooted", "provider": "fake"}
    await api.refused("POST", "/api/sessions", refused, status=422, code="invalid_request")
    await api.refused("POST", "/api/sessions", {"sudo": True}, status=422, code="invalid_request")
    async with api.session(environment="real") as session:
        order = {"command": "id", "user": "root"}
        problem = await session.refused("POST", "/exec", order, status=422, code="unknown_user")
        assert "sudo: true" in problem["remedy"]


async def test_the_machines_own_usr_and_root_inside_are_refused_together(api: Api) -> None:
    for wanted in ({"environment": "exposed"}, {"environment": "rooted", "image": "host"}):
        problem = await api.refused("POST", "/api/sessions", wanted, status=422, code="invalid_request")
        assert "only the machine's root may read" in problem["detail"]
        assert "`base`" in problem["remedy"]


def warren(server: ServerProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {**clean_environ(), "WARREN_URL": server.url}
    argv = [sys.executable, "-m", "warren.cli.main", *arguments]
    done = warm_parent.run(argv, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done
