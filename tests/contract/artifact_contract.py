"""What every store of artifacts' contents does (interfaces/artifacts.py)."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator

import pytest

from warren.interfaces.artifacts import ArtifactStore
from warren.model.artifact import new_artifact_id
from warren.model.errors import InvalidRequest, NotFound

MIB = 1024 * 1024


def new_id() -> str:
    return new_artifact_id(time.time())


async def parts_of(data: bytes, size: int = 100_000) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(store: ArtifactStore, tenant: str, artifact_id: str, start: int, end: int) -> bytes:
    return b"".join([part async for part in store.read(tenant, artifact_id, start, end)])


async def kept(store: ArtifactStore) -> set[tuple[str, str]]:
    return {(one.tenant, one.artifact_id) async for one in store.list()}


@pytest.mark.anyio
class ArtifactContract:
    @pytest.mark.parametrize("size", [0, 1, 200_000, 20 * MIB + 1])
    async def test_what_is_put_is_read(self, store: ArtifactStore, size: int) -> None:
        name, data = new_id(), bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        content = await store.put("a", name, parts_of(data))
        assert (content.size, content.sha256) == (size, hashlib.sha256(data).hexdigest())
        assert await read(store, "a", name, 0, size) == data
        assert await read(store, "a", name, size // 3, size // 2) == data[size // 3 : size // 2]

    async def test_tenants_are_apart(self, store: ArtifactStore) -> None:
        name = new_id()
        await store.put("a.b-c_D", name, parts_of(b"mine"))
        with pytest.raises(NotFound):
            await read(store, "other", name, 0, 4)
        await store.delete("other", name)
        assert await read(store, "a.b-c_D", name, 0, 4) == b"mine"

    async def test_the_list_has_what_is_complete(self, store: ArtifactStore) -> None:
        names = [("a", new_id()), ("a", new_id()), ("b", new_id())]
        for tenant, name in names:
            await store.put(tenant, name, parts_of(b"x"))
        assert await kept(store) == set(names)
        async for one in store.list():
            assert abs(one.modified - time.time()) < 60
        await store.delete(*names[0])
        assert await kept(store) == set(names[1:])

    async def test_deleting_twice_is_no_error(self, store: ArtifactStore) -> None:
        name = new_id()
        await store.put("a", name, parts_of(b"x"))
        for _ in range(2):
            await store.delete("a", name)
        with pytest.raises(NotFound):
            await read(store, "a", name, 0, 1)
        await store.put("a", name := new_id(), parts_of(b"again"))
        assert await read(store, "a", name, 0, 5) == b"again"

    @pytest.mark.parametrize("size", [10, 12 * MIB])
    async def test_a_source_that_fails_leaves_nothing(self, store: ArtifactStore, size: int) -> None:
        async def failing() -> AsyncGenerator[bytes, None]:
            for _ in range(0, size, MIB):
                yield bytes(min(size, MIB))
            raise InvalidRequest("the file is gone")

        with pytest.raises(InvalidRequest, match="the file is gone"):
            await store.put("a", new_id(), failing())
        assert await kept(store) == set()

    async def test_cancelling_leaves_nothing(self, store: ArtifactStore) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncGenerator[bytes, None]:
            while True:
                begun.set()
                yield bytes(MIB)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(store.put("a", new_id(), endless()))
        await begun.wait()
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await kept(store) == set()

    async def test_many_at_once(self, store: ArtifactStore) -> None:
        names = [new_id() for _ in range(20)]
        await asyncio.gather(*(store.put("a", name, parts_of(name.encode() * 1000)) for name in names))
        for name in names:
            assert await read(store, "a", name, 0, len(name)) == name.encode()
        await asyncio.gather(*(store.delete("a", name) for name in names))
        assert await kept(store) == set()
