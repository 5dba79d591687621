"""Saved disks: copies of sandboxes' disks that outlive them, and from which others begin."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from warren.model.errors import WarrenError


@dataclass(frozen=True, slots=True)
class SavedDisk:
    """`disk_mb`: the size of the disk that was saved; one that begins from it must be asked for with at least as much.
    `bytes`: what it occupies. `sha256`: of its contents, the same for the same contents wherever they are kept.
    `stopped_s`: how long the sandbox stood still for it; 0 for one that was unpacked."""

    name: str
    disk_mb: int
    bytes: int
    sha256: str
    stopped_s: float = 0.0


class SavedDisks(Protocol):
    """The saved disks of a provider, on this machine, by name: up to 64 letters, digits, `_` and `-`.

    A saved disk never changes, is complete as soon as it can be found, and survives a loss of power.
    `find` returns None for one that is not here. `list` returns the names of all that are complete; what a crash left
    is removed when the provider starts. `delete` is idempotent; disks that have begun from it stay as they are.
    `pack` yields a saved disk in a form that `unpack` of any machine takes. It raises NotFound before the first byte.
    `unpack` trusts what it is given: the caller has checked that this installation has packed it. If it fails or is
    cancelled, or `data` raises, nothing is kept. It raises InvalidRequest for what no `pack` has yielded, and NoSpace.
    """

    async def find(self, name: str) -> SavedDisk | None: ...
    async def list(self) -> Sequence[str]: ...
    async def delete(self, name: str) -> None: ...
    def pack(self, name: str) -> AsyncGenerator[bytes, None]: ...
    async def unpack(self, name: str, data: AsyncIterable[bytes]) -> SavedDisk: ...


class NoSavedDisks:
    """Of a provider that saves no disks. `why` is raised by whatever needs some."""

    def __init__(self, why: Callable[[], WarrenError]) -> None:
        self._why = why

    async def find(self, name: str) -> SavedDisk | None:
        return None

    async def list(self) -> Sequence[str]:
        return ()

    async def delete(self, name: str) -> None:
        return None

    async def pack(self, name: str) -> AsyncGenerator[bytes, None]:
        raise self._why()
        yield b""

    async def unpack(self, name: str, data: AsyncIterable[bytes]) -> SavedDisk:
        raise self._why()
