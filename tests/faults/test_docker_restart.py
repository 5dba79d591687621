"""The Docker engine is killed under the docker provider: sessions go on, what waits for it is done when it is back."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_engine import DockerEngine
from faults.caller import Caller, calling
from faults.host_view import sandboxes
from faults.invariants import Ledger, check, check_held, occupied, settled
from faults.test_kill_points import has_ended
from faults.world import BIN, FLAGS, new_state, until
from server_process import ServerProcess
from this_run import patience

from warren.images.store.store import ImageStore
from warren.model.errors import ProviderUnavailable
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.providers.docker import DockerProvider

pytestmark = [pytest.mark.anyio, pytest.mark.extended, pytest.mark.group("docker")]

COLD: dict[str, Any] = {"limits": {"memory_mb": 256}}


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    engine = DockerEngine()
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


@pytest.fixture
def docker_state(image_cache: Path, engine: DockerEngine) -> Iterator[Path]:
    path = new_state(image_cache)
    yield path
    asyncio.run(destroy_all(path, engine))


async def destroy_all(state_dir: Path, engine: DockerEngine) -> None:
    provider = DockerProvider(state_dir, ImageStore(state_dir), BIN, engine.url)
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()
    shutil.rmtree(state_dir, ignore_errors=True)


@pytest.fixture
def server(docker_state: Path, engine: DockerEngine) -> Iterator[ServerProcess]:
    environ = {"DOCKER_HOST": engine.url, "WARREN_CLAIM_TIMEOUT_S": str(round(patience(10)))}
    server = ServerProcess(docker_state, *FLAGS, "--container-image", "base", provider="docker", **environ)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with calling(server.url) as caller:
        yield caller


async def test_sessions_outlive_the_engine(
    engine: DockerEngine, server: ServerProcess, caller: Caller, docker_state: Path
) -> None:
    ledger = Ledger()
    await until(lambda: has_pool(caller), "the engine has the image and the pool is full", 100)
    held = await occupied(caller, ledger)
    doomed = (await caller.create()).good()["session_id"]
    await settled(caller, docker_state)
    engine.kill()
    await check_held(caller, held)
    await check_creates_are_refused(caller, ledger)
    assert (await caller.delete(doomed)).status == 503
    server.kill()
    server.start(wait=False)
    server.wait_until_ready("/health")
    await check_held(caller, held)
    engine.start()
    await until(lambda: has_ended(caller, doomed), "what was deleted meanwhile is gone", 60)
    ledger.holds((await caller.create(**COLD)).good())
    await until(lambda: has_pool(caller), "the pool is full again", 60)
    ledger.holds((await caller.create()).good())
    await check(caller, docker_state, ledger)
    containers = engine.docker("ps", "--all", "--quiet").stdout.split()
    assert len(containers) == len(sandboxes(docker_state))


async def test_what_was_being_made_when_the_engine_ended_goes_when_it_is_back(
    engine: DockerEngine, docker_state: Path, tmp_path: Path
) -> None:
    (tmp_path / "readme").write_text("all there is\n")
    engine.import_rootfs(tmp_path, "warren-tests/small:1")
    ends_at = ["created", "started"]
    provider = DockerProvider(
        *(docker_state, ImageStore(docker_state), BIN, engine.url),
        fault=lambda step: engine.kill() if step in ends_at else None,
    )
    try:
        while ends_at:
            with pytest.raises(ProviderUnavailable, match="does not answer"):
                await provider.create(SandboxSpec("warren-tests/small:1"))
            assert await provider.list_ids() == list(provider.half_made) != []
            engine.start()
            ends_at.pop(0)
            for sandbox_id in list(provider.half_made):
                await provider.destroy(sandbox_id)
            assert (await provider.list_ids(), provider.half_made) == ([], set())
            assert provider.sandbox_disks.promises.total_mb == 0
            assert engine.docker("ps", "--all", "--quiet").stdout == ""
    finally:
        await provider.close()


async def test_a_frozen_sandbox_outlives_the_engine(engine: DockerEngine, docker_state: Path) -> None:
    provider = DockerProvider(docker_state, ImageStore(docker_state), BIN, engine.url)
    try:
        boxes = [await provider.create(SandboxSpec()) for _ in range(2)]
        for box in boxes:
            await provider.freeze(box.id)
        engine.kill()
        for _ in range(2):
            await provider.thaw(boxes[0].id)
            assert (await boxes[0].exec(Command(shell="echo on"))).stdout == "on\n"
            await provider.freeze(boxes[0].id)
        engine.start()
        await provider.save_disk(boxes[1].id, "frozen")
        for box in boxes:
            await provider.destroy(box.id)
        assert engine.docker("ps", "--all", "--quiet").stdout == ""
    finally:
        await provider.close()


async def check_creates_are_refused(caller: Caller, ledger: Ledger) -> None:
    refused = await caller.create(**COLD)
    assert (refused.status, refused.body["code"]) == (503, "provider_unavailable")
    assert "the Docker engine at" in refused.body["detail"]
    while (answer := await caller.create()).ok:  # what the pool has ready lives without the engine
        ledger.holds(answer.body)
    assert answer.status == 503
    assert "does not answer" in answer.body["detail"]


async def has_pool(caller: Caller) -> bool:
    return bool((await caller.health())["pool_size"] >= 1)
