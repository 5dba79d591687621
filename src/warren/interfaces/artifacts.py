"""Where the contents of artifacts are kept. What is known about an artifact is a record (interfaces/records.py)."""

from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KeptContent:
    """`modified` is a time of day."""

    tenant: str
    artifact_id: str
    modified: float


class ArtifactStore(Protocol):
    """Contents of artifacts, by tenant and artifact id.

    `put` returns when all of the content is there, also after a kill -9; if it fails, or is cancelled, or `data`
    raises, there is nothing. The same id is never put twice. It raises NoSpace when the store is full, and
    Unavailable when it cannot be reached.
    `read` yields the bytes from `start` up to `end`; it raises NotFound before the first of them if there is no such
    content. `delete` is idempotent. `list` yields every content that is complete, those put meanwhile perhaps.
    `shared`: other processes use the same store, so what is there need not be of this one.
    """

    @property
    def shared(self) -> bool: ...
    async def put(self, tenant: str, artifact_id: str, data: AsyncIterable[bytes]) -> Content: ...
    def read(self, tenant: str, artifact_id: str, start: int, end: int) -> AsyncGenerator[bytes, None]: ...
    async def delete(self, tenant: str, artifact_id: str) -> None: ...
    def list(self) -> AsyncGenerator[KeptContent, None]: ...
    async def close(self) -> None: ...
