"""Volumes that move between two workers which share a store, and what is left when one of them crashes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from unit.session_world import TENANT, FullStore, World
from unit.test_volumes import AT, Crash, Mortal, wish

from warren.model.capability import Capability
from warren.model.errors import Conflict, Misdirected, NotFound, Unavailable, WarrenError
from warren.model.session import Session
from warren.model.volume import Volume, VolumeMount, VolumeState
from warren.sessions.volumes.contents import ROOT
from warren.sessions.volumes.moving import MOVE_S
from warren.sessions.volumes.service import VolumeRules, Volumes
from warren.testing.fake_provider import FakeProvider
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@dataclass
class Node:
    """A worker: a machine, and the process that uses it now."""

    name: str
    world: World
    volumes: Volumes

    @property
    def images(self) -> set[str]:
        return set(self.world.provider.volume_images.kept)


class Cluster:
    def __init__(self) -> None:
        self.store, self.clock = FullStore(), ManualClock()
        self.nodes: dict[str, Node] = {}
        self.fault: Callable[[str, str], None] = lambda node, step: None
        for name in ("a", "b", "c"):
            provider = FakeProvider(capabilities=frozenset({Capability.VOLUMES}))
            world = World(clock=self.clock, provider=provider, store=self.store, in_cluster=True)
            self.nodes[name] = Node(name, world, self.process(name, world))

    def process(self, name: str, world: World, crashed: list[str] | None = None) -> Volumes:
        basis = world.basis
        if crashed is not None:
            basis = replace(basis, store=Mortal(world.store, crashed), worker=Mortal(world.worker, crashed))
        rules = VolumeRules(place=name, fetch=self.fetch, fault=lambda step: self.fault(name, step))
        return Volumes(basis, rules, world.tenancy.events)

    async def fetch(self, tenant: str, volume: str) -> AsyncGenerator[bytes, None]:
        row = await self.nodes["a"].volumes.records.find(tenant, volume)
        assert row is not None
        async for piece in self.nodes[row.volume.place].volumes.moves.send(tenant, volume):
            yield piece

    async def restart(self, name: str) -> Volumes:
        node = self.nodes[name]
        await node.volumes.close()
        node.volumes = self.process(name, node.world)
        await node.volumes.recover()
        return node.volumes

    async def row(self) -> Volume:
        (row,) = [row async for row in self.nodes["a"].volumes.records.rows()]
        return row.volume

    def where(self) -> list[str]:
        """The machines that have an image."""
        return [name for name, node in self.nodes.items() if node.images]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    for node in made.nodes.values():
        await node.world.worker.start()
    yield made
    for node in made.nodes.values():
        await node.volumes.close()
        await node.world.worker.close()


async def filled(cluster: Cluster, text: bytes = b"kept") -> Volume:
    volume = await cluster.nodes["a"].volumes.create(TENANT, "data", 32)
    async with cluster.nodes["a"].volumes.contents.using(TENANT, volume.id, "base") as sandbox:
        await sandbox.write(f"{ROOT}/file", text)
    return volume


async def content(volumes: Volumes) -> bytes:
    async with volumes.contents.using(TENANT, "data", "base") as sandbox:
        return b"".join([part async for part in sandbox.read(f"{ROOT}/file")])


def session_with(volume: Volume) -> Session:
    times = {"created_at": 0.0, "started": 0.0, "used": 0.0}
    mounts = (VolumeMount(volume.id, "data", AT),)
    return Session("ses_" + "1" * 32, TENANT, "base", "epoch", worker="a", volumes=mounts, **times)


async def settled(cluster: Cluster) -> None:
    for _ in range(4):
        await cluster.clock.advance(1)


async def test_a_volume_moves_to_the_worker_that_wants_it_and_back(cluster: Cluster) -> None:
    await filled(cluster)
    a, b = cluster.nodes["a"].volumes, cluster.nodes["b"].volumes
    assert await b.choose(TENANT, [wish()]) == (VolumeMount((await a.get(TENANT, "data")).id, "data", AT),)
    assert (await cluster.row()).place == "b"
    await settled(cluster)
    assert cluster.where() == ["b"]
    assert await content(b) == b"kept"
    with pytest.raises(Unavailable, match="moves to another machine"):
        await content(a)
    await a.moves.bring(TENANT, "data")
    await settled(cluster)
    assert cluster.where() == ["a"]
    assert await content(a) == b"kept"
    with pytest.raises(NotFound):
        await b.moves.bring("other", "data")


async def test_one_that_somebody_uses_stays(cluster: Cluster) -> None:
    volume = await filled(cluster)
    a, b = cluster.nodes["a"].volumes, cluster.nodes["b"].volumes
    async with a.contents.using(TENANT, volume.id, "base"):
        with pytest.raises(Conflict, match="somebody reads or writes"):
            await b.moves.bring(TENANT, "data")
    await cluster.store.add(session_with(volume))
    with pytest.raises(Conflict, match="is used by"):
        await b.moves.bring(TENANT, "data")
    with pytest.raises(Misdirected) as refused:
        await b.choose(TENANT, [wish()])
    assert refused.value.worker == "a"
    row = await cluster.row()
    assert (row.place, row.state) == ("a", VolumeState.READY)
    assert cluster.where() == ["a"]


async def test_a_session_that_came_first_keeps_its_volume(cluster: Cluster) -> None:
    """It is stored between the look at who uses the volume and the mark that the volume moves."""
    volume = await filled(cluster)

    def fault(node: str, step: str) -> None:
        if step == "move marked":
            with suppress(StopIteration):
                cluster.store.add(session_with(volume)).send(None)

    cluster.fault = fault
    with pytest.raises(Conflict, match="is used by"):
        await cluster.nodes["b"].volumes.moves.bring(TENANT, "data")
    row = await cluster.row()
    assert (row.place, row.state) == ("a", VolumeState.READY)


async def test_while_it_moves_it_is_shown_and_not_used(cluster: Cluster) -> None:
    await filled(cluster)
    a, b = cluster.nodes["a"].volumes, cluster.nodes["b"].volumes
    row = await b.records.ready(TENANT, "data")
    assert await b.records.change(row, b.moves._marked(row.volume)) is not None
    assert [volume.name for volume in (await a.list(TENANT))[0]] == ["data"]
    assert (await a.get(TENANT, "data")).place == "a"
    for use in (
        a.delete(TENANT, "data"),
        a.change(TENANT, "data", size_mb=64),
        a.copy(TENANT, "data", "x"),
        content(a),
    ):
        with pytest.raises(Unavailable, match="moves to another machine"):
            await use
    await cluster.clock.advance(MOVE_S + 1)
    assert await content(a) == b"kept"
    assert (await cluster.row()).state is VolumeState.READY


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", ["move marked", "move copied", "moved"])
async def test_the_one_that_fetches_crashes(cluster: Cluster, step: str, late: bool) -> None:
    """`late`: it comes back when others have used the volume again."""
    await filled(cluster)
    node, crashed = cluster.nodes["b"], list[str]()

    def fault(name: str, at: str) -> None:
        if at == step:
            crashed.append(at)
            raise Crash

    cluster.fault = fault
    with pytest.raises(Crash):
        await cluster.process("b", node.world, crashed).moves.bring(TENANT, "data")
    cluster.fault = lambda name, at: None
    await settled(cluster)
    if late:
        await cluster.clock.advance(MOVE_S + 1)
        holder = (await cluster.row()).place
        assert await content(cluster.nodes[holder].volumes) == b"kept"
        if holder == "a":
            await cluster.nodes["c"].volumes.moves.bring(TENANT, "data")
            await settled(cluster)
    await cluster.restart("b")
    await cluster.restart("a")
    row = await cluster.row()
    assert row.state is VolumeState.READY
    assert cluster.where() == [row.place]
    assert await content(cluster.nodes[row.place].volumes) == b"kept"


@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_the_one_that_sends_crashes(cluster: Cluster, when: str) -> None:
    await filled(cluster)
    a, b = cluster.nodes["a"], cluster.nodes["b"].volumes
    send = a.volumes.moves.send

    async def broken(tenant: str, volume: str) -> AsyncGenerator[bytes, None]:
        if when == "before":
            raise Unavailable("it is away")
        async for piece in send(tenant, volume):
            yield piece
            if when == "between":
                raise Unavailable("it went away")

    rules: Any = replace(b.moves, fetch=broken)
    with suppress(WarrenError):
        await rules.bring(TENANT, "data")
    if when == "after":  # it never learns that the volume has moved
        await a.volumes.tasks.cancel()
    await cluster.restart("a")
    row = await cluster.row()
    assert (row.place, row.state) == ("b" if when == "after" else "a", VolumeState.READY)
    assert cluster.where() == [row.place]
    assert await content(cluster.nodes[row.place].volumes) == b"kept"


async def test_of_two_that_want_it_one_gets_it(cluster: Cluster) -> None:
    await filled(cluster)
    wanted = [cluster.nodes[name].volumes.moves.bring(TENANT, "data") for name in ("b", "c", "b", "c")]
    found = await asyncio.gather(*wanted, return_exceptions=True)
    assert {type(each) for each in found} <= {Volume, Unavailable, Conflict}
    await settled(cluster)
    row = await cluster.row()
    assert row.state is VolumeState.READY
    assert cluster.where() == [row.place]
    assert await content(cluster.nodes[row.place].volumes) == b"kept"


async def test_an_image_of_a_machine_with_another_name_now_is_kept(cluster: Cluster) -> None:
    await filled(cluster)
    node = cluster.nodes["a"]
    await node.volumes.contents.close()
    renamed = cluster.process("renamed", node.world)
    await renamed.recover()
    assert cluster.where() == ["a"]
