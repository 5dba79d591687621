"""The store of contents, of artifacts or of snapshots. What is known about one is a record (interfaces/records.py)."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from warren.model.artifact import is_artifact_id
from warren.model.snapshot import is_snapshot_id


@dataclass(frozen=True, slots=True)
class ContentKind:
    """What a store keeps: its name in errors, what an id of it looks like, and the option that says where it is."""

    name: str
    is_id: Callable[[str], bool]
    option: str


ARTIFACTS: Final = ContentKind("artifact", is_artifact_id, "artifact_store")
SNAPSHOTS: Final = ContentKind("snapshot", is_snapshot_id, "snapshot_store")


@dataclass(frozen=True, slots=True)
class Content:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KeptContent:
    """`modified` is a wall-clock time."""

    tenant: str
    artifact_id: str
    modified: float


class ArtifactStore(Protocol):
    """Contents of artifacts, by tenant and artifact id; or those of snapshots, in a store of their own.

    `put` returns when the whole content is stored, so that it survives a kill -9. If `put` fails or is cancelled, or
    `data` raises, nothing is stored. The same id is never put twice. It raises NoSpace when the store is full, and
    Unavailable when the store cannot be reached.
    `read` yields the bytes from `start` up to `end`. It raises NotFound, before the first byte, if there is no such
    content.
    `delete` is idempotent. `list` yields every complete content; it may miss those that are put meanwhile.
    `shared`: other processes use the same store, so a content in it may not belong to this process.
    """

    @property
    def shared(self) -> bool: ...
    async def put(self, tenant: str, artifact_id: str, data: AsyncIterable[bytes]) -> Content: ...
    def read(self, tenant: str, artifact_id: str, start: int, end: int) -> AsyncGenerator[bytes, None]: ...
    async def delete(self, tenant: str, artifact_id: str) -> None: ...
    def list(self) -> AsyncGenerator[KeptContent, None]: ...
    async def close(self) -> None: ...
