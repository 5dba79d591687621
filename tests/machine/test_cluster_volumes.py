"""Volumes in a cluster: a session goes to the worker whose disk they are on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.api_client import Api
from machine.cluster_world import ADMIN, PATIENCE_S, Nodes, new_nodes

pytestmark = pytest.mark.anyio
AT = "/workspace/data"
HOMES = "name: homes\nimage: host\nvolumes: [{name: 'home-{user}', path: /workspace/home, size_mb: 16}]\n"


@pytest.fixture
def nodes(image_cache: Path, tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "homes.yaml").write_text(HOMES)
    environ = {"WARREN_REGISTRY_DIR": str(tmp_path), "WARREN_DEFAULT_ENVIRONMENT": "host", "WARREN_POOL_SIZE": "0"}
    with new_nodes(image_cache / "images") as nodes:
        for name in ("first", "second"):
            nodes.worker(name, "--on-stop", "destroy", provider="oci", **environ)
        nodes.coordinator(provider="oci", **environ)
        for process in nodes.all:
            process.start(wait=False)
        for process in nodes.all:
            process.wait_until_ready()
        yield nodes
        for process in nodes.all[:2]:
            if process.alive:
                assert process.stop() == 0, process.log[-3000:]


async def test_a_session_goes_where_its_volumes_are(nodes: Nodes) -> None:
    async with Api(nodes.all[2].url, {"X-API-Key": ADMIN}) as api:
        made = await asyncio.gather(
            *(api.post("/api/volumes", {"name": f"v{n}", "size_mb": 16}, status=201) for n in range(4))
        )
        place = {each["name"]: each["worker"] for each in made}
        assert set(place.values()) <= {"first", "second"}
        for name, worker in place.items():
            for _ in range(2):
                async with api.session(volumes=[{"name": name, "path": AT}]) as session:
                    assert session.found["worker"] == worker
                    await session.output(f"echo {name} >> {AT}/a")
            shown = await api.get(f"/api/volumes/{name}")
            assert (shown["worker"], shown["sessions"]) == (worker, [])
            assert shown["used_bytes"] > 0
        other = "second" if place["v0"] == "first" else "first"
        await api.call("PATCH", f"/api/cluster/workers/{place['v0']}", {"draining": True})
        body = {"name": "v0", "path": AT}
        async with api.session() as session:  # on the other worker
            assert session.found["worker"] == other
            problem = await session.refused("POST", "/volumes", body, status=409, code="conflict")
            assert f"on the worker '{place['v0']}'" in problem["detail"]
        await api.call("PATCH", f"/api/cluster/workers/{place['v0']}", {"draining": False})
        for name in place:
            await api.call("DELETE", f"/api/volumes/{name}", status=204)
        assert (await api.get("/api/volumes"))["volumes"] == []


async def test_a_users_home_is_found_again_by_whoever_is_asked(nodes: Nodes) -> None:
    async with Api(nodes.all[2].url, {"X-API-Key": ADMIN}) as api:
        workers = set()
        for number in range(4):
            async with api.session(environment="homes", metadata={"user": "ann"}) as session:
                workers.add(session.found["worker"])
                lines = await session.output("echo x >> /workspace/home/a; wc -l < /workspace/home/a")
                assert int(lines) == number + 1
        assert len(workers) == 1


async def test_a_volume_whose_worker_is_away_can_be_deleted_and_is_gone_when_it_is_back(nodes: Nodes) -> None:
    async with Api(nodes.all[2].url, {"X-API-Key": ADMIN}) as api:
        made = await api.post("/api/volumes", {"name": "away", "size_mb": 16}, status=201)
        holder = nodes.all[0 if made["worker"] == "first" else 1]
        image = holder.state_dir / "disks/volumes" / f"{made['volume_id']}.img"
        holder.kill()
        async with asyncio.timeout(PATIENCE_S):
            while await state_of(api, made["worker"]) != "dead":
                await asyncio.sleep(0.2)
        await api.call("DELETE", "/api/volumes/away", status=204)
        assert (await api.get("/api/volumes"))["volumes"] == []
        assert image.exists()
        holder.start()
        assert not image.exists()


async def state_of(api: Api, worker: str) -> str:
    workers = (await api.get("/api/cluster"))["workers"]
    return next((str(each["state"]) for each in workers if each["id"] == worker), "")
