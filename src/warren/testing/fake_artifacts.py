"""Contents of artifacts in memory. It keeps the contract of interfaces/artifacts.py, but nothing outlives the
process."""

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterable

from warren.interfaces.artifacts import Content, KeptContent
from warren.model.errors import NotFound


class FakeArtifacts:
    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self._contents: dict[tuple[str, str], tuple[bytes, float]] = {}

    async def put(self, tenant: str, artifact_id: str, data: AsyncIterable[bytes]) -> Content:
        found = b"".join([part async for part in data])
        self._contents[tenant, artifact_id] = found, time.time()
        return Content(len(found), hashlib.sha256(found).hexdigest())

    async def read(self, tenant: str, artifact_id: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        if (tenant, artifact_id) not in self._contents:
            raise NotFound("the content of the artifact is gone")
        if start < end:
            yield self._contents[tenant, artifact_id][0][start:end]

    async def delete(self, tenant: str, artifact_id: str) -> None:
        self._contents.pop((tenant, artifact_id), None)

    async def list(self) -> AsyncGenerator[KeptContent, None]:
        for (tenant, artifact_id), (_, modified) in list(self._contents.items()):
            yield KeptContent(tenant, artifact_id, modified)

    async def close(self) -> None:
        return None
