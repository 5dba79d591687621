"""The volumes of the fake provider: trees of nodes in memory, which its sandboxes share."""

import asyncio
import pickle
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from warren.interfaces.volumes import VolumeImage
from warren.model.errors import Conflict, InvalidRequest, NotFound
from warren.model.operations import FileKind
from warren.model.spec import USER_UID
from warren.testing.fake_files import FakeNode, size_of


@dataclass
class FakeVolume:
    """`users`: the sandboxes that have it mounted."""

    size_mb: int
    root: FakeNode = field(default_factory=lambda: FakeNode(FileKind.DIRECTORY, USER_UID, 0o755))
    users: set[str] = field(default_factory=set)
    was_mounted: bool = False


class FakeVolumes:
    def __init__(self) -> None:
        self.kept: dict[str, FakeVolume] = {}

    def __repr__(self) -> str:
        return f"<FakeVolumes {len(self.kept)}>"

    def get(self, volume_id: str) -> FakeVolume:
        if volume_id not in self.kept:
            raise NotFound("the volume's disk is not on this machine")
        return self.kept[volume_id]

    def _unused(self, volume_id: str) -> FakeVolume:
        volume = self.get(volume_id)
        if volume.users:
            raise Conflict("a sandbox has the volume mounted", remedy="end its sessions, or detach it")
        return volume

    async def make(self, volume_id: str, size_mb: int) -> None:
        self.kept[volume_id] = FakeVolume(size_mb)

    async def copy(self, source: str, volume_id: str) -> None:
        self.kept[volume_id] = deepcopy(self._unused(source))

    async def grow(self, volume_id: str, size_mb: int) -> None:
        volume = self._unused(volume_id)
        await asyncio.sleep(0)
        if size_mb < volume.size_mb:
            raise InvalidRequest("a volume cannot be made smaller", remedy="copy what is in it to a smaller one")
        volume.size_mb = size_mb

    async def delete(self, volume_id: str) -> None:
        if volume_id in self.kept:
            self._unused(volume_id)
            del self.kept[volume_id]

    async def pack(self, volume_id: str) -> AsyncGenerator[bytes, None]:
        volume = self._unused(volume_id)
        yield pickle.dumps((volume.size_mb, volume.root, volume.was_mounted))

    async def unpack(self, volume_id: str, data: AsyncIterable[bytes]) -> None:
        packed = b"".join([piece async for piece in data])
        size_mb, root, was_mounted = pickle.loads(packed)
        self.kept[volume_id] = FakeVolume(size_mb, root, was_mounted=was_mounted)

    async def find(self, volume_id: str) -> VolumeImage | None:
        volume = self.kept.get(volume_id)
        return None if volume is None else _image(volume_id, volume)

    async def list(self) -> Sequence[VolumeImage]:
        return [_image(name, volume) for name, volume in self.kept.items()]


def _image(volume_id: str, volume: FakeVolume) -> VolumeImage:
    return VolumeImage(volume_id, volume.size_mb, size_of(volume.root), volume.was_mounted)
