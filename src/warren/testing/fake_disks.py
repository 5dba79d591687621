"""The saved disks of the fake provider: trees of nodes in memory."""

import hashlib
import pickle
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from warren.interfaces.disks import SavedDisk
from warren.model.errors import Conflict, InvalidRequest, NotFound
from warren.model.spec import SandboxSpec, check_disk_name
from warren.testing.fake_files import FakeNode

_MARK = b"fake disk\n"


@dataclass(frozen=True)
class _Kept:
    disk: SavedDisk
    writable_root: bool
    content: bytes


class FakeSavedDisks:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __repr__(self) -> str:
        return f"<FakeSavedDisks {len(self._kept)}>"

    def keep(self, name: str, root: FakeNode, spec: SandboxSpec) -> SavedDisk:
        return self._keep(name, pickle.dumps((spec.limits.disk_mb, spec.writable_root, root)))

    def _keep(self, name: str, content: bytes) -> SavedDisk:
        check_disk_name(name)
        if name in self._kept:
            raise Conflict(f"there is a saved disk {name}")
        disk_mb, writable_root, _ = pickle.loads(content)
        disk = SavedDisk(name, disk_mb, len(content), hashlib.sha256(content).hexdigest())
        self._kept[name] = _Kept(disk, writable_root, content)
        return disk

    def _find(self, name: str) -> _Kept:
        if name not in self._kept:
            raise NotFound(f"there is no saved disk {name}")
        return self._kept[name]

    def tree(self, name: str) -> FakeNode:
        root: FakeNode = pickle.loads(self._find(name).content)[2]
        return deepcopy(root)

    def check_fit(self, spec: SandboxSpec) -> None:
        kept = self._find(spec.disk)
        if spec.limits.disk_mb < kept.disk.disk_mb or spec.writable_root != kept.writable_root:
            raise InvalidRequest(f"the saved disk {spec.disk} does not fit the sandbox")

    async def find(self, name: str) -> SavedDisk | None:
        kept = self._kept.get(name)
        return None if kept is None else kept.disk

    async def list(self) -> Sequence[str]:
        return list(self._kept)

    async def delete(self, name: str) -> None:
        self._kept.pop(name, None)

    async def pack(self, name: str) -> AsyncGenerator[bytes, None]:
        kept = self._find(name)
        yield _MARK + hashlib.sha256(kept.content).digest()
        yield kept.content

    async def unpack(self, name: str, data: AsyncIterable[bytes]) -> SavedDisk:
        check_disk_name(name)
        whole = b"".join([part async for part in data])
        digest, content = whole[len(_MARK) : len(_MARK) + 32], whole[len(_MARK) + 32 :]
        if not whole.startswith(_MARK) or hashlib.sha256(content).digest() != digest:
            raise InvalidRequest("this is no packed disk")
        return self._keep(name, content)
