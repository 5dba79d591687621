"""Volumes without a machine: their names, whose they are, what they may use, what a crash leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.session_world import TENANT, World, environment

from warren.config.registry import read_environment
from warren.model.access import Caller, Quota
from warren.model.capability import Capability
from warren.model.environment import Environment
from warren.model.errors import Conflict, InvalidPath, InvalidRequest, NotFound, QuotaExceeded, WarrenError
from warren.model.session import SessionState
from warren.model.volume import VolumeMount, VolumeState, VolumeWish, check_mount_path, check_volume_name, render_name
from warren.sessions.new_session import NewSession
from warren.sessions.request_context import RequestContext, set_request_context
from warren.sessions.volumes.records import Use
from warren.sessions.volumes.service import VolumeRules, Volumes
from warren.stores.session_json import decode_session, encode_session
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio
AT = "/workspace/data"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = new_world()
    await made.worker.start()
    yield made
    await made.lifecycle.wait_for_tasks()
    await made.worker.close()


def new_world() -> World:
    return World(provider=FakeProvider(capabilities=frozenset({Capability.VOLUMES})))


def wish(name: str = "data", path: str = AT, size_mb: int | None = None) -> VolumeWish:
    return VolumeWish(name, path, size_mb=size_mb)


# -- names


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "a b", "ü", "x" * 129, "vol_1"])
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_volume_name(name)


@pytest.mark.parametrize(
    "path",
    ["", "data", "/", "//data", "/data/", "/a/../b", "/a/./b", "/proc/x", "/dev", "/.warren/disk", "/a\n", "/a\0"],
)
def test_where_no_volume_can_be(path: str) -> None:
    with pytest.raises(InvalidRequest):
        check_mount_path(path)


def test_values_never_become_the_same_name() -> None:
    values = ["a", "A", "a-b", "a.b", "a_b", "a_2Db", "ü", "../a", "a/b", "a b", "_", "x" * 48, "x" * 49, "x" * 50]
    values += ["_h" + "0" * 40, "\udc80"]
    names = [render_name("home-{user}", {"user": value}) for value in values]
    assert len(set(names)) == len(names)
    for name in names:
        assert check_volume_name(name) == name
    pairs = [render_name("u-{user}-{thread}", {"user": user, "thread": thread}) for user, thread in PAIRS]
    assert len(set(pairs)) == len(pairs)


PAIRS = [("a-b", "c"), ("a", "b-c"), ("a", "b.c"), ("a.b", "c"), ("a_", "c"), ("a", "_c")]


def test_a_value_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"needs \{user\}") as refused:
        render_name("home-{user}", {"tenant": "t"})
    assert "metadata `user`" in refused.value.remedy


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{name: 'home-{who}', path: /data}", "has {who}"),
        ("{name: '{user}', path: /data}", "cannot be a volume's name"),
        ("{name: 'a{user}{thread}', path: /data}", "side by side"),
        ("{name: a, path: data}", "cannot be at 'data'"),
        ("{name: a, path: /data, size: 3}", "has no 'size'"),
        ("{name: a, path: /data, size_mb: 3}", "size of a volume is 3"),
        ("{name: a, path: /data}, {name: b, path: /data}", "two volumes at '/data'"),
        ("home", "a volume is 'home'"),
    ],
)
def test_a_mistake_in_an_environment_is_told(tmp_path: Path, entry: str, why: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\nimage: base\nvolumes: [{entry}]\n")
    with pytest.raises(InvalidRequest, match=why.replace("{", r"\{")):
        read_environment(file)


def test_an_environment_names_its_volumes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nimage: base\nvolumes:\n"
        "  - {name: 'home-{user}', path: /home/sandboxuser, size_mb: 64}\n"
        "  - {name: cache, path: /workspace/cache, read_only: true}\n"
    )
    assert read_environment(file).volumes == (
        VolumeWish("home-{user}", "/home/sandboxuser", size_mb=64),
        VolumeWish("cache", "/workspace/cache", read_only=True, size_mb=0),
    )


# -- sessions


async def test_a_session_gets_its_volumes_and_those_of_its_environment(world: World) -> None:
    volumes = world.lifecycle.volumes
    await volumes.create(TENANT, "data", 32)
    made = await world.sessions.create(TENANT, NewSession(volumes=(wish(), wish("new", "/mnt/data", 16))))
    session = made.session
    assert [(mount.name, mount.path) for mount in session.volumes] == [("data", AT), ("new", "/mnt/data")]
    assert decode_session(encode_session(session)).volumes == session.volumes
    sandbox = await world.worker.sandbox(session.sandbox_id)
    await sandbox.write(f"{AT}/a", b"kept")
    with pytest.raises(Conflict, match=session.id):
        await volumes.delete(TENANT, "data")
    with pytest.raises(Conflict):
        await volumes.change(TENANT, "data", size_mb=64)
    await world.sessions.delete(TENANT, session.id)
    again = (await world.sessions.create(TENANT, NewSession())).session
    await world.sessions.attach_volume(TENANT, again.id, wish())
    sandbox = await world.worker.sandbox(again.sandbox_id)
    assert b"".join([part async for part in sandbox.read(f"{AT}/a")]) == b"kept"
    gone = await world.sessions.detach_volume(TENANT, again.id, AT)
    assert gone.volumes == ()
    assert (await volumes.change(TENANT, "data", size_mb=64)).size_mb == 64
    await volumes.delete(TENANT, "data")
    with pytest.raises(NotFound):
        await world.sessions.create(TENANT, NewSession(volumes=(wish(),)))


async def test_a_user_has_a_home_and_no_other_users(world: World) -> None:
    home = VolumeWish("home-{user}", "/home/sandboxuser", size_mb=0)
    offer = world.sessions.new_rows._offer
    world.sessions.new_rows._offer = replace(offer, environments=lambda name: with_home(name, home))
    users = [
        (await world.sessions.create(TENANT, NewSession(metadata={"user": user}))).session for user in ("ann", "bo/b")
    ]
    assert [each.volumes[0].name for each in users] == ["home-ann", "home-bo_2Fb"]
    with pytest.raises(InvalidRequest, match=r"needs \{user\}"):
        await world.sessions.create(TENANT, NewSession())


def with_home(name: str, home: VolumeWish) -> Environment:
    return replace(environment(name), volumes=(home,))


async def test_a_create_whose_volume_cannot_be_attached_leaves_no_sandbox(world: World) -> None:
    await world.lifecycle.volumes.create(TENANT, "data", 32)
    with pytest.raises((InvalidPath, WarrenError)):
        await world.sessions.create(TENANT, NewSession(volumes=(wish(path="/home"),)))
    assert await world.provider.list_ids() == []
    assert await world.lifecycle.volumes.users(await world.lifecycle.volumes.get(TENANT, "data")) == []


async def test_an_attach_that_fails_is_undone(world: World) -> None:
    await world.lifecycle.volumes.create(TENANT, "data", 32)
    session = (await world.sessions.create(TENANT, NewSession())).session
    with pytest.raises(WarrenError):
        await world.sessions.attach_volume(TENANT, session.id, wish(path="/home"))
    assert (await world.session(session)).volumes == ()
    await world.lifecycle.volumes.delete(TENANT, "data")


async def test_a_delete_and_an_attach_at_once_never_both_succeed(world: World) -> None:
    volumes = world.lifecycle.volumes
    session = (await world.sessions.create(TENANT, NewSession())).session
    for _ in range(20):
        await volumes.create(TENANT, "data", 16)
        attached, deleted = await asyncio.gather(
            world.sessions.attach_volume(TENANT, session.id, wish()),
            volumes.delete(TENANT, "data"),
            return_exceptions=True,
        )
        assert isinstance(attached, WarrenError) or isinstance(deleted, WarrenError)
        if isinstance(deleted, WarrenError):
            if not isinstance(attached, WarrenError):
                await world.sessions.detach_volume(TENANT, session.id, AT)
            await volumes.delete(TENANT, "data")
        assert (await world.session(session)).volumes == ()


async def test_nobody_reaches_a_volume_of_another_tenant(world: World) -> None:
    volumes = world.lifecycle.volumes
    mine = await volumes.create(TENANT, "data", 16)
    for name in ("data", mine.id):
        with pytest.raises(NotFound):
            await volumes.get("other", name)
        with pytest.raises(NotFound):
            await volumes.delete("other", name)
    with pytest.raises(NotFound):
        await world.sessions.create("other", NewSession(volumes=(wish(),)))
    assert (await volumes.list("other"))[0] == []
    assert (await volumes.create("other", "data", 16)).id != mine.id
    assert (await volumes.get(TENANT, mine.id)) == mine


async def test_long_labels_make_pages_short_and_are_bounded(world: World) -> None:
    volumes = world.lifecycle.volumes
    with pytest.raises(InvalidRequest, match="at most 8192"):
        await volumes.create(TENANT, "data", 16, {"a": "x" * 4096, "b": "x" * 4096})
    for number in range(70):
        await volumes.create(TENANT, f"v{number}", 16, {"a": "x" * 4096, "b": "x" * 4000})
    with pytest.raises(InvalidRequest, match="at most 8192"):
        await volumes.change(TENANT, "v0", metadata={"c": "x" * 1000})
    found, after = await volumes.list(TENANT, limit=1000)
    assert (len(found), after) == (33, found[-1].name)
    pages = [len(found)]
    while after is not None:
        found, after = await volumes.list(TENANT, after, 1000)
        pages.append(len(found))
    assert pages == [33, 33, 4]


# -- quotas


async def test_a_tenant_has_no_more_volumes_than_it_may(world: World) -> None:
    volumes = world.lifecycle.volumes
    caller = Caller(TENANT, quota=Quota(volumes=2, volumes_mb=100), key_quota=Quota(volumes_mb=90))
    set_request_context(RequestContext(caller))
    try:
        made = await asyncio.gather(
            *(volumes.create(TENANT, f"v{number}", 30) for number in range(6)), return_exceptions=True
        )
        assert sum(isinstance(each, QuotaExceeded) for each in made) == 4
        assert await volumes.records.used(TENANT) == Use(60, 2)
        one = next(each for each in made if not isinstance(each, BaseException))
        with pytest.raises(QuotaExceeded):
            await volumes.change(TENANT, one.name, size_mb=80)
        await volumes.change(TENANT, one.name, size_mb=50)
        assert await volumes.records.used(TENANT) == Use(80, 2)
        await volumes.delete(TENANT, one.name)
    finally:
        set_request_context(RequestContext())
    assert await volumes.records.used(TENANT) == Use(30, 1)


async def test_two_that_make_a_volume_larger_at_once_pay_for_the_size_it_gets(world: World) -> None:
    volumes = world.lifecycle.volumes
    await volumes.create(TENANT, "data", 16)
    changes = [volumes.change(TENANT, "data", size_mb=size) for size in (48, 64, 32)]
    made = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(isinstance(each, Conflict) for each in made) == 2
    (image,) = await world.worker.volume_images.list()
    size = (await volumes.get(TENANT, "data")).size_mb
    assert (image.size_mb, await volumes.records.used(TENANT)) == (size, Use(size, 1))
    assert (await volumes.change(TENANT, "data", size_mb=80)).size_mb == 80


# -- crashes


class Crash(BaseException):
    pass


class Mortal:
    """A part of a process: once that has crashed, it does nothing any more."""

    def __init__(self, part: Any, crashed: list[str]) -> None:
        self._part, self._crashed = part, crashed

    def __getattr__(self, name: str) -> Any:
        if self._crashed:
            raise Crash
        found = getattr(self._part, name)
        return Mortal(found, self._crashed) if name in ("records", "volume_images") else found


@pytest.mark.parametrize("step", ["charged", "row stored", "image made", "grown", "marked", "image deleted"])
async def test_a_crash_leaves_neither_an_image_without_a_row_nor_a_row_without_an_image(step: str) -> None:
    world, crashed = new_world(), list[str]()
    await world.worker.start()

    def fault(name: str) -> None:
        if name == step:
            crashed.append(name)
            raise Crash

    await world.lifecycle.volumes.create(TENANT, "first", 16)
    dying = replace(world.basis, store=Mortal(world.store, crashed), worker=Mortal(world.worker, crashed))
    volumes = Volumes(dying, VolumeRules(fault=fault), world.tenancy.events)
    images = world.provider.volume_images
    deeds: dict[str, Callable[[], Awaitable[object]]] = {
        "grown": lambda: volumes.change(TENANT, "first", size_mb=32),
        "marked": lambda: volumes.delete(TENANT, "first"),
        "image deleted": lambda: volumes.delete(TENANT, "first"),
    }
    with pytest.raises(Crash):
        await deeds.get(step, lambda: volumes.create(TENANT, "second", 16))()
    after = Volumes(world.basis, VolumeRules(), world.tenancy.events)
    await after.recover()
    listed = {volume.id: volume.size_mb for volume in (await after.list(TENANT))[0]}
    assert {image.volume_id: image.size_mb for image in await images.list()} == listed
    rows = [row.volume async for row in after.records.rows()]
    assert {row.id for row in rows} == listed.keys()
    assert all(row.state is VolumeState.READY for row in rows)
    assert await after.records.used(TENANT) == Use(sum(listed.values()), len(listed))
    await world.worker.close()


async def test_an_image_that_may_hold_something_outlives_the_rows(world: World) -> None:
    images = world.provider.volume_images
    await images.make("vol_" + "0" * 32, 16)
    await images.make("vol_" + "1" * 32, 16)
    images.kept["vol_" + "1" * 32].was_mounted = True
    await world.lifecycle.volumes.recover()
    assert [image.volume_id for image in await images.list()] == ["vol_" + "1" * 32]


async def test_a_session_that_is_lost_uses_no_volume(world: World) -> None:
    volumes = world.lifecycle.volumes
    session = (await world.sessions.create(TENANT, NewSession(volumes=(wish(size_mb=16),)))).session
    assert await volumes.users(await volumes.get(TENANT, "data")) == [session.id]
    assert session.volumes == (VolumeMount(session.volumes[0].volume, "data", AT),)
    await world.sessions.delete(TENANT, session.id)
    assert (await world.session(session)).state is SessionState.ENDED
    assert await volumes.users(await volumes.get(TENANT, "data")) == []
