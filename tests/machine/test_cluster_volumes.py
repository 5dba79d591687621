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
        body = {"name": "v0", "path": AT}
        async with api.session(volumes=[body]) as user:
            await api.call("PATCH", f"/api/cluster/workers/{place['v0']}", {"draining": True})
            async with api.session() as session:  # on the other worker
                assert session.found["worker"] == other
                problem = await session.refused("POST", "/volumes", body, status=409, code="conflict")
                assert f"on the worker '{place['v0']}'" in problem["detail"]
                await user.call("DELETE", "")
                await session.post("/volumes", body, status=201)
                assert await session.output(f"cat {AT}/a") == "v0\nv0\n"
                await session.output(f"echo moved >> {AT}/a")
        async with asyncio.timeout(PATIENCE_S):  # the others leave by themselves
            while any(each["worker"] != other for each in (await api.get("/api/volumes"))["volumes"]):
                await asyncio.sleep(0.2)
        for name in place:
            async with api.session(volumes=[{"name": name, "path": AT}]) as session:
                assert session.found["worker"] == other
                lines = await session.output(f"cat {AT}/a")
                assert lines == f"{name}\n" * 2 + ("moved\n" if name == "v0" else "")
        left = nodes.all[0 if other == "second" else 1].state_dir / "disks" / "volumes"
        async with asyncio.timeout(PATIENCE_S):
            while list(left.iterdir()):
                await asyncio.sleep(0.1)
        drained = "first" if other == "second" else "second"
        await api.call("PATCH", f"/api/cluster/workers/{drained}", {"draining": False})
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


async def test_volumes_of_two_workers_come_together_where_one_is_in_use(nodes: Nodes) -> None:
    async with Api(nodes.all[2].url, {"X-API-Key": ADMIN}) as api:
        place: dict[str, str] = {}
        while len(set(place.values())) < 2:
            name = f"v{len(place)}"
            made = await api.post("/api/volumes", {"name": name, "size_mb": 16}, status=201)
            place[name] = made["worker"]
        one, other = (next(name for name, at in place.items() if at == worker) for worker in ("first", "second"))
        volumes = [{"name": one, "path": AT}, {"name": other, "path": f"{AT}2"}]
        async with api.session(volumes=volumes[1:]) as user:
            await user.output(f"echo kept > {AT}2/a")
            async with api.session(volumes=volumes) as session:
                assert session.found["worker"] == user.found["worker"] == "second"
                assert await session.output(f"cat {AT}2/a") == "kept\n"
            async with api.session(volumes=[{"name": one, "path": AT}]) as third:
                assert third.found["worker"] == "second"


@pytest.mark.extended
async def test_a_machine_that_dies_while_it_gets_volumes_loses_none(nodes: Nodes) -> None:
    """The worker to which they move is killed again and again, at moments that nobody chooses."""
    async with Api(nodes.all[2].url, {"X-API-Key": ADMIN}) as api:
        for number in range(6):
            async with api.session(volumes=[{"name": f"v{number}", "path": AT, "size_mb": 64}]) as session:
                await session.output(f"head -c 20000000 /dev/urandom > {AT}/a; sha256sum < {AT}/a > {AT}/sum; sync")
        for turn in range(6):
            source, target = ("first", "second") if turn % 2 else ("second", "first")
            worker = nodes.all[0 if target == "first" else 1]
            await api.call("PATCH", f"/api/cluster/workers/{target}", {"draining": False})
            await api.call("PATCH", f"/api/cluster/workers/{source}", {"draining": True})
            await asyncio.sleep(3.0 + 0.17 * turn)
            worker.kill()
            worker.start(wait=False)
            worker.wait_until_ready()
        async with asyncio.timeout(2 * PATIENCE_S):
            while any(each["worker"] != target for each in (await api.get("/api/volumes"))["volumes"]):
                await asyncio.sleep(0.2)
        for number in range(6):
            async with api.session(volumes=[{"name": f"v{number}", "path": AT}]) as session:
                assert await session.output(f"sha256sum < {AT}/a") == await session.output(f"cat {AT}/sum")
        places = [node.state_dir / "disks" / "volumes" for node in nodes.all[:2]]
        names = [sorted(path.name for path in place.iterdir()) for place in places]
        assert sum(map(len, names)) == 6, names
