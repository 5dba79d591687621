"""The images of named volumes: disks that outlive the sandboxes that mount them."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from warren.model.errors import WarrenError


@dataclass(frozen=True, slots=True)
class VolumeImage:
    """`used`: the bytes that it occupies on the machine's disk. `was_mounted`: it may hold something."""

    volume_id: str
    size_mb: int
    used: int
    was_mounted: bool = True


class VolumeImages(Protocol):
    """The volumes of a provider on this machine, by id (model/volume.py). Names and tenants are the caller's business.

    A volume holds what was synced in it through a loss of power. It is complete as soon as it can be found.
    `make` makes an empty one, whose top belongs to the sandbox user. It raises NoSpace when the machine's disk is
    nearly full. `copy` makes one with the content and size of another. `grow` makes one larger; it never shrinks one.
    `delete` is idempotent. `copy`, `grow` and `delete` raise Conflict for a volume that a sandbox has mounted.
    A failed or cancelled `make` or `copy` keeps nothing; after a crash, `delete` removes what there is of it.
    `find` returns None for one that is not here, `list` what is.
    `pack` yields a volume in a form of which `unpack` of any machine makes the same volume. It raises NotFound and
    Conflict before the first byte. `unpack` trusts what it is given, and replaces a volume of that id. If it fails or
    is cancelled, or `data` raises, it changes nothing. It raises InvalidRequest for what no `pack` has yielded, and
    NoSpace.
    """

    async def make(self, volume_id: str, size_mb: int) -> None: ...
    async def copy(self, source: str, volume_id: str) -> None: ...
    async def grow(self, volume_id: str, size_mb: int) -> None: ...
    async def delete(self, volume_id: str) -> None: ...
    async def find(self, volume_id: str) -> VolumeImage | None: ...
    async def list(self) -> Sequence[VolumeImage]: ...
    def pack(self, volume_id: str) -> AsyncGenerator[bytes, None]: ...
    async def unpack(self, volume_id: str, data: AsyncIterable[bytes]) -> None: ...


class NoVolumes:
    """Of a provider without volumes. `why` is raised by whatever needs one."""

    def __init__(self, why: Callable[[], WarrenError]) -> None:
        self._why = why

    async def make(self, volume_id: str, size_mb: int) -> None:
        raise self._why()

    async def copy(self, source: str, volume_id: str) -> None:
        raise self._why()

    async def grow(self, volume_id: str, size_mb: int) -> None:
        raise self._why()

    async def delete(self, volume_id: str) -> None:
        return None

    async def find(self, volume_id: str) -> VolumeImage | None:
        return None

    async def list(self) -> Sequence[VolumeImage]:
        return ()

    async def pack(self, volume_id: str) -> AsyncGenerator[bytes, None]:
        raise self._why()
        yield b""

    async def unpack(self, volume_id: str, data: AsyncIterable[bytes]) -> None:
        raise self._why()
