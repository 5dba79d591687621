"""What a provider with volumes must do, the fake included. The hooks are those of the provider's other contract."""

from collections.abc import AsyncGenerator, Sequence

import pytest
from contract.provider_contract import ProviderHooks

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import Conflict, FileNotFound, InvalidRequest, NotFound, PermissionDenied, SandboxNotFound
from warren.model.spec import WORKSPACE
from warren.model.volume import VolumeMount, new_volume_id

AT = f"{WORKSPACE}/data"


def at(volume: str, path: str = AT, *, read_only: bool = False) -> VolumeMount:
    return VolumeMount(volume, "data", path, read_only)


async def content(box: Sandbox, path: str) -> bytes:
    return b"".join([part async for part in box.read(path)])


@pytest.mark.anyio
class VolumesContract(ProviderHooks):
    async def _box(self, provider: Provider) -> Sandbox:
        box = await provider.create(self.spec())
        await box.mkdir(AT)
        return box

    async def _volume(self, provider: Provider) -> str:
        volume = new_volume_id()
        await provider.volume_images.make(volume, 32)
        return volume

    async def test_a_volume_outlives_the_sandboxes_that_share_it(self, provider: Provider) -> None:
        volume, boxes = await self._volume(provider), [await self._box(provider) for _ in range(2)]
        for box in boxes:
            await provider.attach(box.id, at(volume))
            await provider.attach(box.id, at(volume))
        assert (await boxes[0].stat(AT)).uid == (await boxes[0].stat(WORKSPACE)).uid
        await boxes[0].write(f"{AT}/a", b"kept")
        assert await content(boxes[1], f"{AT}/a") == b"kept"
        for box in boxes:
            await provider.destroy(box.id)
        later = await self._box(provider)
        await provider.attach(later.id, at(volume))
        assert await content(later, f"{AT}/a") == b"kept"
        await provider.detach(later.id, volume)
        await provider.detach(later.id, volume)
        with pytest.raises(FileNotFound):
            await later.stat(f"{AT}/a")
        await provider.destroy(later.id)
        await provider.volume_images.delete(volume)
        assert await provider.volume_images.find(volume) is None

    async def test_a_packed_volume_is_the_same_on_another_machine(self, provider: Provider) -> None:
        volume, images, box = await self._volume(provider), provider.volume_images, await self._box(provider)
        await provider.attach(box.id, at(volume))
        await box.write(f"{AT}/a", bytes(range(256)) * 10_000)
        with pytest.raises(Conflict):
            await anext(images.pack(volume))
        await provider.destroy(box.id)
        packed = [piece async for piece in images.pack(volume)]
        copy = new_volume_id()

        async def sent(pieces: Sequence[bytes], error: Exception | None = None) -> AsyncGenerator[bytes, None]:
            for piece in pieces:
                yield piece
            if error is not None:
                raise error

        with pytest.raises(OSError, match="broken"):
            await images.unpack(copy, sent(packed, OSError("broken")))
        assert await images.find(copy) is None
        await images.unpack(copy, sent(packed))
        found = await images.find(copy)
        assert found is not None
        assert (found.size_mb, found.was_mounted) == (32, True)
        other = await self._box(provider)
        await provider.attach(other.id, at(copy))
        assert await content(other, f"{AT}/a") == bytes(range(256)) * 10_000
        await provider.destroy(other.id)
        await provider.attach((box := await self._box(provider)).id, at(volume))
        await box.write(f"{AT}/a", b"newer")
        await provider.destroy(box.id)
        await images.unpack(copy, images.pack(volume))
        await provider.attach((box := await self._box(provider)).id, at(copy))
        assert await content(box, f"{AT}/a") == b"newer"
        await provider.destroy(box.id)
        with pytest.raises(NotFound):
            await anext(images.pack(new_volume_id()))
        for each in (volume, copy):
            await images.delete(each)

    async def test_a_read_only_volume_cannot_be_written(self, provider: Provider) -> None:
        volume, box = await self._volume(provider), await self._box(provider)
        await provider.attach(box.id, at(volume, read_only=True))
        with pytest.raises(PermissionDenied):
            await box.write(f"{AT}/a", b"")
        await provider.destroy(box.id)
        await provider.volume_images.delete(volume)

    async def test_a_volume_in_use_is_neither_deleted_nor_grown_nor_copied(self, provider: Provider) -> None:
        images, volume, box = provider.volume_images, await self._volume(provider), await self._box(provider)
        await provider.attach(box.id, at(volume))
        with pytest.raises(Conflict):
            await images.delete(volume)
        with pytest.raises(Conflict):
            await images.grow(volume, 64)
        with pytest.raises(Conflict):
            await images.copy(volume, new_volume_id())
        await box.write(f"{AT}/a", b"original")
        await provider.detach(box.id, volume)
        await images.grow(volume, 64)
        with pytest.raises(InvalidRequest):
            await images.grow(volume, 32)
        copy = new_volume_id()
        await images.copy(volume, copy)
        await provider.attach(box.id, at(copy))
        await box.write(f"{AT}/a", b"copied")
        await provider.detach(box.id, copy)
        await provider.attach(box.id, at(volume))
        assert await content(box, f"{AT}/a") == b"original"
        found = {image.volume_id: image.size_mb for image in await images.list()}
        assert found == {volume: 64, copy: 64}
        await provider.destroy(box.id)
        for each in (volume, copy):
            await images.delete(each)
            await images.delete(each)

    async def test_a_volume_is_at_one_path_and_hides_no_other_mount(self, provider: Provider) -> None:
        volumes, box = [await self._volume(provider) for _ in range(2)], await self._box(provider)
        await provider.attach(box.id, at(volumes[0]))
        with pytest.raises(Conflict):
            await provider.attach(box.id, at(volumes[0], "/mnt/data"))
        with pytest.raises(Conflict):
            await provider.attach(box.id, at(volumes[1]))
        with pytest.raises(InvalidRequest):
            await provider.attach(box.id, at(volumes[1], "/home"))
        with pytest.raises(InvalidRequest):
            await provider.attach(box.id, at(volumes[1], WORKSPACE))
        await box.mkdir(f"{AT}/below")
        await provider.attach(box.id, at(volumes[1], f"{AT}/below"))
        with pytest.raises(Conflict):
            await provider.detach(box.id, volumes[0])
        for volume in reversed(volumes):
            await provider.detach(box.id, volume)
        await provider.destroy(box.id)
        for volume in volumes:
            await provider.volume_images.delete(volume)

    async def test_what_is_not_there_cannot_be_attached(self, provider: Provider) -> None:
        volume, box = await self._volume(provider), await self._box(provider)
        with pytest.raises(NotFound):
            await provider.attach(box.id, at(new_volume_id()))
        with pytest.raises(FileNotFound):
            await provider.attach(box.id, at(volume, f"{WORKSPACE}/missing"))
        await provider.destroy(box.id)
        with pytest.raises(SandboxNotFound):
            await provider.attach(box.id, at(volume))
        await provider.volume_images.delete(volume)

    async def test_a_sandbox_keeps_its_volumes_when_its_worker_starts_anew(self, provider: Provider) -> None:
        volume, box = await self._volume(provider), await self._box(provider)
        await provider.attach(box.id, at(volume, WORKSPACE))
        await box.close()
        again = await self.reopened(provider)
        adopted = await again.adopt(box.id)
        await adopted.write(f"{WORKSPACE}/a", b"after")
        await again.detach(box.id, volume)
        assert [info.name async for info in adopted.entries(WORKSPACE)] == ["data"]
        await adopted.close()
        await again.destroy(box.id)
        await again.volume_images.delete(volume)
        await again.close()
