"""The saved disks of the fake provider: trees of nodes in memory."""

import hashlib
import pickle
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from warren.interfaces.disks import SavedDisk
from warren.model.errors import Conflict, InvalidRequest, NotFound
from warren.testing.fake_files import FakeNode

_MARK = b"fake disk\n"


@dataclass(frozen=True)
class _Kept:
    disk: SavedDisk
    content: bytes


class FakeSavedDisks:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __repr__(self) -> str:
        return f"<FakeSavedDisks {len(self._kept)}>"

    def keep(self, name: str, root: FakeNode, disk_mb: int) -> SavedDisk:
        if name in self._kept:
            raise Conflict(f"there is a saved disk {name}")
        return self._keep(name, pickle.dumps((disk_mb, root)), disk_mb)

    def _keep(self, name: str, content: bytes, disk_mb: int) -> SavedDisk:
        disk = SavedDisk(name, disk_mb, len(content), hashlib.sha256(content).hexdigest())
        self._kept[name] = _Kept(disk, content)
        return disk

    def tree(self, name: str) -> FakeNode:
        if name not in self._kept:
            raise NotFound(f"there is no saved disk {name}")
        root: FakeNode = pickle.loads(self._kept[name].content)[1]
        return deepcopy(root)

    async def find(self, name: str) -> SavedDisk | None:
        kept = self._kept.get(name)
        return None if kept is None else kept.disk

    async def list(self) -> Sequence[str]:
        return list(self._kept)

    async def delete(self, name: str) -> None:
        self._kept.pop(name, None)

    async def pack(self, name: str) -> AsyncGenerator[bytes, None]:
        if name not in self._kept:
            raise NotFound(f"there is no saved disk {name}")
        yield _MARK
        yield self._kept[name].content

    async def unpack(self, name: str, data: AsyncIterable[bytes]) -> SavedDisk:
        whole = b"".join([part async for part in data])
        if not whole.startswith(_MARK):
            raise InvalidRequest("this is no packed disk")
        content = whole.removeprefix(_MARK)
        disk_mb, _ = pickle.loads(content)
        return self._keep(name, content, disk_mb)
