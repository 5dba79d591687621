"""What every provider with the capability SNAPSHOTS promises of saved disks (interfaces/disks.py, provider.py)."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from contract.provider_contract import ProviderHooks

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import Conflict, InvalidRequest, NotFound, SandboxLost, SandboxNotFound
from warren.model.operations import Command
from warren.model.spec import MIB, USER, Limits, SandboxSpec


class SavedDisksHooks(ProviderHooks):
    @pytest.fixture
    async def there(self) -> AsyncIterator[Provider]:
        """A provider of the same kind whose saved disks are others."""
        raise NotImplementedError
        yield

    async def freeze(self, provider: Provider, sandbox: Sandbox) -> None:
        await provider.freeze(sandbox.id)

    async def is_frozen(self, provider: Provider, sandbox: Sandbox) -> bool:
        raise NotImplementedError

    async def thaw(self, provider: Provider, sandbox: Sandbox) -> None:
        await provider.thaw(sandbox.id)


async def parts_of(*parts: bytes, then: Exception | None = None) -> AsyncGenerator[bytes, None]:
    for part in parts:
        yield part
    if then is not None:
        raise then


async def whole(parts: AsyncIterable[bytes]) -> bytes:
    return b"".join([part async for part in parts])


async def content(box: Sandbox, path: str) -> bytes:
    return await whole(box.read(path))


@pytest.mark.anyio
class SavedDisksContract(SavedDisksHooks):
    @asynccontextmanager
    async def sandboxes(self, provider: Provider, *specs: SandboxSpec) -> AsyncIterator[list[Sandbox]]:
        boxes: list[Sandbox] = []
        try:
            for spec in specs:
                boxes.append(await provider.create(spec))
            yield boxes
        finally:
            for box in boxes:
                await provider.destroy(box.id)

    @pytest.fixture(autouse=True)
    async def nothing_is_left(self, provider: Provider) -> AsyncIterator[None]:
        yield
        for name in await provider.saved_disks.list():
            await provider.saved_disks.delete(name)

    async def test_a_sandbox_begins_with_the_files_of_another(self, provider: Provider) -> None:
        assert Capability.SNAPSHOTS in provider.capabilities
        async with self.sandboxes(provider, self.spec()) as [box]:
            await box.write("/workspace/notes.txt", b"first")
            await box.mkdir("/workspace/folder/inner")
            await box.write("/home/sandboxuser/tool", b"#!/bin/sh\n", mode=0o750)
            saved = await provider.save_disk(box.id, "first")
            await box.write("/workspace/notes.txt", b"later")
            assert (await box.exec(Command(shell="echo it runs on"))).stdout == "it runs on\n"
        assert (saved.name, saved.disk_mb) == ("first", self.spec().limits.disk_mb)
        assert saved == await provider.saved_disks.find("first")
        assert await provider.saved_disks.list() == ["first"]
        began = replace(self.spec(), disk="first")
        async with self.sandboxes(provider, began, began) as [one, other]:
            await one.write("/workspace/notes.txt", b"changed")
            assert [await content(box, "/workspace/notes.txt") for box in (one, other)] == [b"changed", b"first"]
            tool = await other.stat("/home/sandboxuser/tool", details=True)
            assert (tool.mode & 0o777, tool.owner) == (0o750, USER)
            assert (await other.stat("/workspace/folder/inner", details=True)).owner == USER
            await provider.save_disk(one.id, "second")
        await provider.saved_disks.delete("first")
        async with self.sandboxes(provider, replace(self.spec(), disk="second")) as [box]:
            assert await content(box, "/workspace/notes.txt") == b"changed"

    async def test_a_frozen_sandbox_stays_frozen(self, provider: Provider) -> None:
        async with self.sandboxes(provider, self.spec()) as [box]:
            await box.write("/workspace/notes.txt", b"before")
            await self.freeze(provider, box)
            await provider.save_disk(box.id, "frozen")
            assert await self.is_frozen(provider, box)
            await self.thaw(provider, box)
            assert await content(box, "/workspace/notes.txt") == b"before"
        async with self.sandboxes(provider, replace(self.spec(), disk="frozen")) as [box]:
            assert await content(box, "/workspace/notes.txt") == b"before"

    async def test_saved_disks_outlive_the_provider(self, provider: Provider) -> None:
        async with self.sandboxes(provider, self.spec()) as [box]:
            saved = await provider.save_disk(box.id, "kept")
            again = await self.reopened(provider)
            try:
                assert await again.saved_disks.find("kept") == saved
                await again.saved_disks.delete("kept")
                await again.saved_disks.delete("kept")
            finally:
                await again.close()
            assert (await provider.saved_disks.find("kept"), await provider.saved_disks.list()) == (None, [])

    @pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a.img", "ä", "x" * 65, "a\n"])
    async def test_a_name_that_is_none_is_refused(self, provider: Provider, name: str) -> None:
        async with self.sandboxes(provider, self.spec()) as [box]:
            with pytest.raises(InvalidRequest, match="no name of a saved disk"):
                await provider.save_disk(box.id, name)
        with pytest.raises(InvalidRequest, match="no name of a saved disk"):
            await provider.saved_disks.unpack(name, parts_of())
        assert await provider.saved_disks.find(name) is None
        await provider.saved_disks.delete(name)
        with pytest.raises(NotFound):
            await whole(provider.saved_disks.pack(name))

    async def test_what_is_not_there_or_does_not_fit_is_refused(self, provider: Provider) -> None:
        small = replace(self.spec(), limits=replace(self.spec().limits, disk_mb=64))
        with pytest.raises(NotFound):
            await provider.create(replace(self.spec(), disk="never"))
        with pytest.raises(SandboxNotFound):
            await provider.save_disk("0" * 32, "never")
        async with self.sandboxes(provider, self.spec()) as [box]:
            await provider.save_disk(box.id, "taken")
            with pytest.raises(Conflict):
                await provider.save_disk(box.id, "taken")
            await self.lose(provider, box)
            with pytest.raises(SandboxLost):
                await provider.save_disk(box.id, "lost")
        for spec in (small, replace(self.spec(), writable_root=True, image="base")):
            with pytest.raises(InvalidRequest):
                await provider.check(replace(spec, disk="taken"))
            with pytest.raises(InvalidRequest):
                await provider.create(replace(spec, disk="taken"))
        assert await provider.saved_disks.list() == ["taken"]
        assert await provider.list_ids() == []

    async def test_a_larger_disk_can_be_asked_for(self, provider: Provider) -> None:
        spec = replace(self.spec(), limits=Limits(disk_mb=24, cpus=2))
        async with self.sandboxes(provider, spec) as [box]:
            await box.write("/workspace/notes.txt", b"small")
            await provider.save_disk(box.id, "small")
        for disk_mb in (24, 26, 100):
            began = replace(spec, limits=Limits(disk_mb=disk_mb, cpus=2), disk="small")
            async with self.sandboxes(provider, began) as [box]:
                assert await content(box, "/workspace/notes.txt") == b"small"
                if disk_mb == 100:
                    await box.write("/workspace/large", bytes(range(256)) * 4096 * 60)
                    await provider.save_disk(box.id, "larger")
        larger = await provider.saved_disks.find("larger")
        assert larger is not None
        assert larger.disk_mb == 100

    async def test_a_disk_travels_to_another_place(self, provider: Provider, there: Provider) -> None:
        data = hashlib.sha256(b"x").digest() * 40_000
        async with self.sandboxes(provider, self.spec()) as [box]:
            await box.write("/workspace/data", data)
            saved = await provider.save_disk(box.id, "travels")
        moved = await there.saved_disks.unpack("arrived", provider.saved_disks.pack("travels"))
        assert (moved.sha256, moved.disk_mb, moved.stopped_s) == (saved.sha256, saved.disk_mb, 0)
        with pytest.raises(Conflict):
            await there.saved_disks.unpack("arrived", provider.saved_disks.pack("travels"))
        async with self.sandboxes(there, replace(self.spec(), disk="arrived")) as [box]:
            assert await content(box, "/workspace/data") == data
        again = await provider.saved_disks.unpack("back", there.saved_disks.pack("arrived"))
        assert again.sha256 == saved.sha256

    async def test_of_a_damaged_stream_nothing_is_kept(self, provider: Provider) -> None:
        async with self.sandboxes(provider, self.spec()) as [box]:
            await box.write("/workspace/data", b"data" * MIB)
            await provider.save_disk(box.id, "good")
        good = await whole(provider.saved_disks.pack("good"))
        middle = len(good) // 2
        flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
        streams: Iterable[bytes] = (b"", b"\n", good[:middle], good[:-1], flipped, good + b"more", b"{}\n" + good)
        for stream in streams:
            with pytest.raises(InvalidRequest):
                await provider.saved_disks.unpack("bad", parts_of(stream))
        with pytest.raises(SandboxLost, match="far away"):
            await provider.saved_disks.unpack("bad", parts_of(good[:middle], then=SandboxLost("far away")))
        assert await provider.saved_disks.list() == ["good"]
        each = [good[at : at + 1000] for at in range(0, len(good), 1000)]
        await provider.saved_disks.unpack("bad", parts_of(*each))
