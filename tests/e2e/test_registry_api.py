"""The registry over the API, alone and in a cluster: what keys see, sessions made for agents, files that change."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import warm_parent
from e2e.alone_or_cluster import KINDS, Place, running
from e2e.api_client import Api
from e2e.conftest import NewState
from server_process import clean_environ

from warren import AsyncSandboxClient, SandboxClient

pytestmark = pytest.mark.anyio

GONE = "entry_not_found"
ADMIN = "the-operator-has-this-key"
BOUND = {"quota": {"environments": ["small"]}, "tenant": "bound", "name": "bound", "scopes": ["read", "sessions"]}
READER = {"tenant": "reader", "name": "reader", "scopes": ["read"]}
FILES = {
    "environments/small.yaml": "name: small\nimage: base\nlimits: {memory_mb: 128}\n",
    "agents/little.yml": (
        "name: little\ndescription: does little\nenvironment: small\nenv: {TOKEN: a-secret-of-the-operator}\n"
        "tools: [run_tests]\nlimits: {pids: 40}\nmetadata: {model: any}\n"
    ),
    "agents/broken.yaml": "name: broken\nenvironmnt: small\n",
    "agents/lost.yaml": "name: lost\nprompt: nowhere\n",
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, new_state: NewState, registry: Path) -> Iterator[Place]:
    environ = {"WARREN_API_KEY": ADMIN, "WARREN_REGISTRY_DIR": str(registry)}
    with running(request.param, new_state, **environ) as place:
        yield place


@pytest.fixture
async def api(place: Place) -> AsyncIterator[Api]:
    async with Api(place.server.url, headers={"X-API-Key": ADMIN}) as api:
        yield api


async def names(api: Api, kind: str) -> list[str]:
    return [one["name"] for one in (await api.get(f"/api/registry/{kind}"))["entries"]]


async def test_entries_are_listed_and_shown_without_secrets(api: Api, registry: Path) -> None:
    assert "small" in await names(api, "environments")
    assert await names(api, "agents") == ["coder", "little", "lost"]
    assert await names(api, "tools") == ["find_in_files", "run_tests"]
    assert await names(api, "prompts") == ["coding"]
    little = await api.get("/api/registry/agents/little")
    assert (little["environment"], little["env_names"], little["metadata"]) == ("small", ["TOKEN"], {"model": "any"})
    assert "a-secret" not in json.dumps(little)
    assert (await api.get("/api/registry/environments/small"))["limits"]["memory_mb"] == 128
    assert (await api.get("/api/registry/tools/run_tests"))["parameters"]["type"] == "object"
    for path in ("agents/broken", "agents/none", "cars", "cars/x", "agents/%00", "agents/.."):
        found = await api.refused("GET", f"/api/registry/{path}", status=404, code=GONE)
        assert str(registry) not in json.dumps(found)
    assert (
        "did you mean coder?"
        in (await api.refused("GET", "/api/registry/agents/codr", status=404, code=GONE))["remedy"]
    )


async def test_prompts_are_rendered(api: Api) -> None:
    path = "/api/registry/prompts/coding/render"
    assert "programs in Go." in (await api.post(path, {"variables": {"language": "Go"}}))["text"]
    assert "programs in Python." in (await api.post(path))["text"]
    await api.refused("POST", path, {"variables": {"langage": "Go"}}, status=422, code="invalid_request")
    await api.refused("POST", path, {"variables": {"language": 3}}, status=422, code="invalid_request")
    await api.refused("POST", "/api/registry/prompts/none/render", status=404, code=GONE)


async def test_a_key_sees_the_agents_whose_environments_it_may_use(api: Api, place: Place) -> None:
    bound = await api.post("/api/admin/keys", BOUND, status=201)
    async with Api(place.server.url, headers={"X-API-Key": bound["key"]}) as tenant:
        assert await names(tenant, "agents") == ["little"]
        assert await names(tenant, "environments") == ["small"]
        await tenant.refused("GET", "/api/registry/agents/coder", status=404, code=GONE)
        await tenant.refused("POST", "/api/sessions", {"agent_config": "coder"}, status=403, code="forbidden")
        made = await tenant.post("/api/sessions", {"agent_config": "little"}, status=201)
        await tenant.call("DELETE", f"/api/sessions/{made['session_id']}")
    reader = await api.post("/api/admin/keys", READER, status=201)
    async with Api(place.server.url, headers={"X-API-Key": reader["key"]}) as tenant:
        assert await names(tenant, "prompts") == ["coding"]
        await tenant.refused("POST", "/api/sessions", {"agent_config": "little"}, status=403, code="forbidden")
    async with Api(place.server.url) as nobody:
        await nobody.refused("GET", "/api/registry/agents", status=401, code="unauthorized")


async def test_a_session_is_made_for_an_agent(api: Api) -> None:
    async with api.session(agent_config="little") as session:
        for found in (session.found, await session.show()):
            assert (found["agent"], found["environment"]) == ("little", "small")
            assert (found["limits"]["memory_mb"], found["limits"]["pids"]) == (128, 40)
            assert (found["agent_config"]["tools"], found["env_names"]) == (["run_tests"], ["TOKEN"])
            assert "a-secret" not in json.dumps(found)
    own = {
        "type": "code_executor",
        "environment": "small",
        "tools": [{"name": "ls", "command": ["ls"]}],
        "limits": {"disk_mb": 64},
    }
    async with api.session(agent_config=own, limits={"pids": 50}) as session:
        found = session.found
        assert (found["agent"], found["agent_config"]["tools"][0]["name"]) == (None, "ls")
        assert (found["limits"]["disk_mb"], found["limits"]["pids"]) == (64, 50)
    flat = await api.post("/create_session", {"agent_config": "little"})
    assert (await api.get(f"/api/sessions/{flat['session_id']}"))["agent"] == "little"
    await api.post("/cleanup", {"session_id": flat["session_id"]})


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        ("litle", 422, "did you mean little?"),
        ("broken", 503, "the agent 'broken' cannot be used"),
        ("lost", 422, "there is no prompt 'nowhere'"),
        ({"tool": "code_executor"}, 422, "there is no key 'tool'"),
        ({"environment": "smal"}, 422, "did you mean small?"),
        ({"tools": ["x"] * 20_000}, 413, "may have 65536 bytes"),
        ({"tools": [{"name": "x", "command": "a\0b"}]}, 422, "characters that no text has"),
        (7, 422, "the name of an agent, or an object"),
        (["little"], 422, "the name of an agent, or an object"),
    ],
)
async def test_an_agent_that_is_wrong_makes_no_session(
    api: Api, registry: Path, config: object, status: int, said: str
) -> None:
    for path in ("/api/sessions", "/create_session"):
        text = (await api.post(path, {"agent_config": config}, status=status)).decode()
        assert said in text
        assert str(registry) not in text


async def test_changed_files_are_read_without_a_restart(api: Api, registry: Path) -> None:
    file = registry / "prompts/hello.yaml"
    file.parent.mkdir(exist_ok=True)
    path = "/api/registry/prompts/hello/render"
    file.write_text("name: hello\ntemplate: one\n")
    assert (await api.post(path))["text"] == "one"
    file.write_text("name: hello\ntemplate: two {{x}}\n")
    assert (await api.post(path))["text"] == "one"
    file.write_text("name: hello\ntemplate: three\n")
    assert (await api.post(path))["text"] == "three"
    file.unlink()
    await api.refused("POST", path, status=404, code=GONE)


async def test_clients_and_commands_use_it(place: Place, registry: Path) -> None:
    there = {"api_key": ADMIN}
    url = place.server.url
    assert [one.name for one in SandboxClient.list_registry("agents", url, **there)] == ["coder", "little", "lost"]
    assert await AsyncSandboxClient.get_registry_entry("agents", "little", url, **there) == (
        SandboxClient.get_registry_entry("agents", "little", url, **there)
    )
    assert "in Go." in SandboxClient.render_prompt("coding", {"language": "Go"}, url, **there)
    with SandboxClient(url, agent_config="little", **there) as client:
        assert client.info().agent == "little"
    assert "does little" in warren("registry", "list", "agents", url=url).stdout
    assert "environment: small" in warren("registry", "show", "agents", "little", url=url).stdout
    assert "in Rust." in warren("registry", "render", "coding", "--var", "language=Rust", url=url).stdout
    assert "in Python." in warren("registry", "render", "coder", "--var", "rules=none", url=url).stdout
    assert "neither a prompt nor an agent" in warren("registry", "render", "cod", url=url).stderr
    made = json.loads(warren("create", "--agent", "little", "--json", url=url).stdout)
    assert made["agent_config"]["name"] == "little"
    assert warren("kill", made["session_id"], url=url).returncode == 0
    checked = warren("registry", "validate", str(registry))
    assert checked.returncode == 1
    assert "broken.yaml, line 2: there is no key 'environmnt' (did you mean environment?" in checked.stdout
    assert "lost.yaml, line 2: there is no prompt 'nowhere'" in checked.stdout
    assert "ok    agents/little" in checked.stdout


def warren(*arguments: str, url: str = "") -> "subprocess.CompletedProcess[str]":
    environ = {**clean_environ(), "WARREN_URL": url, "WARREN_API_KEY": ADMIN}
    argv = [sys.executable, "-m", "warren.cli.main", *arguments]
    return warm_parent.run(argv, env=environ, capture_output=True, text=True, timeout=60)
