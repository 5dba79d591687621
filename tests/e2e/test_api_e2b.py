"""The suites where the provider e2b may differ from oci, against a server whose far side is a second Warren."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.api_client import Api
from e2e.artifact_suite import ArtifactSuite
from e2e.code_suite import CodeSuite
from e2e.command_suite import CommandSuite
from e2e.conftest import NewState
from e2e.figures_suite import LinuxFiguresSuite
from e2e.process_suite import read_all
from e2e.server_time import ServerTime, TurnedTime
from e2e.terminal_suite import TerminalSuite
from far_warren import KEY, running_far_warren
from server_process import ServerProcess
from turnable_server import running_turnable

from warren import AsyncSandboxClient
from warren.model.errors import ImageBuildFailed, ImageBuilding


@pytest.fixture(scope="module")
def far(image_cache: Path) -> Iterator[ServerProcess]:
    with running_far_warren(image_cache) as far:
        yield far


@pytest.fixture(scope="module")
def server(
    new_state: NewState, far: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    for name in ("far-slow", "far-broken"):
        text = f"name: {name}\nimage: {name}\npool: {{size: 0, min: 0, max: 2}}\n"
        (registry / "environments" / f"{name}.yaml").write_text(text)
    with running_turnable(
        new_state(),
        *("--pool-size", "2", "--registry-dir", str(registry)),
        provider="e2b",
        WARREN_E2B_API_URL=far.url,
        WARREN_E2B_API_KEY=KEY,
        WARREN_STREAM_KEEPALIVE_S="0.3",
        WARREN_ARTIFACT_MAX_MB="64",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


@pytest.fixture(scope="module")
def time(server: ServerProcess) -> ServerTime:
    return TurnedTime(server.state_dir)


class TestCommands(CommandSuite):
    pass


@pytest.mark.extended
class TestCode(CodeSuite):
    pass


@pytest.mark.extended
class TestArtifacts(ArtifactSuite):
    pass


@pytest.mark.extended
class TestTerminals(TerminalSuite):
    pass


@pytest.mark.anyio
async def test_a_session_outlives_kill_9_of_the_server(server: ServerProcess, api: Api) -> None:
    async with api.session() as session:
        await session.exec("cd /tmp; export KEPT=yes")
        process = await session.start("for n in 1 2 3 4 5; do echo $n; sleep 0.3; done")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert await session.output("pwd; echo $KEPT") == "/tmp\nyes\n"
        assert await read_all(session, process) == "1\n2\n3\n4\n5\n"


@pytest.mark.anyio
async def test_what_a_session_is_told_about_its_sandbox_is_true(api: Api) -> None:
    async with api.session() as session:
        shown = await session.show()
        assert shown["provider"] == "e2b"
        assert shown["isolation"]["in_force"] == {}
        assert "nothing of this can be read" in shown["isolation"]["missing"]["user_namespace"]
    refused = await api.refused(
        "POST", "/api/sessions", {"require": ["user_namespace"]}, status=503, code="isolation_unavailable"
    )
    assert "user_namespace" in refused["detail"]
    refused = await api.refused(
        "POST", "/api/sessions", {"network": {"allow": ["example.com"]}}, status=422, code="invalid_request"
    )
    assert "does not have the capability egress" in refused["detail"]


@pytest.mark.anyio
async def test_who_wants_an_image_that_the_far_side_makes_hears_how_far_it_is(api: Api) -> None:
    wanted, key = {"environment": "far-slow"}, {"Idempotency-Key": "slow"}
    problem = await api.refused("POST", "/api/sessions", wanted, status=503, code="image_building", headers=key)
    assert (problem["about"], problem["retryable"]) == ("5 s", True)
    assert "the far side is still preparing the template's image" in problem["detail"]
    seen: list[ImageBuilding] = []
    async with AsyncSandboxClient(api.url, environment="far-slow", on_image_progress=seen.append) as client:
        assert (await client.execute("cat /made")).stdout == "made\n"
    assert any("sleep 5" in each.step for each in seen)


@pytest.mark.anyio
async def test_an_image_that_the_far_side_cannot_make_is_not_waited_for(api: Api) -> None:
    with pytest.raises(ImageBuildFailed, match=r"the step .* failed"):
        async with AsyncSandboxClient(api.url, environment="far-broken") as client:
            await client.execute("true")


@pytest.mark.extended
class TestFigures(LinuxFiguresSuite):
    pass
