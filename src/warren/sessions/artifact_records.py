"""Keeps the records of artifacts: finds them, and counts how many bytes each tenant has in all.

`Artifacts` writes records when it saves something; `ArtifactExpiry` looks for those that have expired.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Final

from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.pacing import Pace
from warren.model.artifact import Artifact, Filter, is_artifact_id
from warren.model.errors import NotFound
from warren.sessions.tenant_use import PAGE, TenantUse

_KIND: Final = "artifact"
_USE: Final = "artifact_use"
_MAX_SCANNED: Final = 5000

_log = get_log(__name__)


class ArtifactRecords(TenantUse):
    def __init__(self, records: RecordStore, clock: Clock) -> None:
        super().__init__(records, _USE, "artifacts")
        self._records, self._clock = records, clock

    async def add(self, artifact: Artifact) -> None:
        value = json.dumps(artifact.as_mapping())
        record_id = _id(artifact.tenant, artifact.id)
        await self._records.put(Record(_KIND, record_id, value, group=artifact.session_id, due=artifact.expires_at))

    async def remove(self, artifact: Artifact) -> bool:
        """Returns False if there was no such record any more."""
        return await self._records.delete(_KIND, _id(artifact.tenant, artifact.id))

    async def exists(self, tenant: str, artifact_id: str) -> bool:
        """Whether there is a record, also of one that has expired."""
        return await self._records.get(_KIND, _id(tenant, artifact_id)) is not None

    async def expired(self) -> list[Artifact]:
        """Returns some artifacts that have expired, or an empty list if there are none. Deletes damaged records among
        them."""
        while due := await self._records.due(_KIND, self._clock.wall(), PAGE):
            found = list[Artifact]()
            for record in due:
                try:
                    found.append(Artifact.from_mapping(json.loads(record.value)))
                except (ValueError, TypeError):
                    await self._records.delete(_KIND, record.id)
            if found:
                return found
        return []

    # -- finding

    async def list(
        self,
        tenant: str,
        *,
        session_id: str = "",
        thread_id: str = "",
        name: str = "",
        after: str = "",
        limit: int = 100,
    ) -> tuple[list[Artifact], str | None]:
        """Returns artifacts, the newest first, and the id after which the next page begins; None if there is none. A
        page may have fewer than `limit`."""
        found: list[Artifact] = []
        wanted = Filter.of(session_id=session_id, thread_id=thread_id, name=name)
        scanned, last = 0, ""
        source = self.of_session(tenant, session_id, after) if session_id else self.of_tenant(tenant, after)
        async with contextlib.aclosing(source):
            async for artifact in source:
                if len(found) == limit or scanned == _MAX_SCANNED:
                    return found, last
                scanned, last = scanned + 1, artifact.id
                if wanted.fits(artifact):
                    found.append(artifact)
        return found, None

    async def of_tenant(self, tenant: str, after: str = "") -> AsyncGenerator[Artifact, None]:
        at, pace = _id(tenant, after), Pace()
        while page := await self._records.list(_KIND, after=at, limit=PAGE):
            for record in page:
                if not record.id.startswith(f"{tenant}/"):
                    return
                if (artifact := self._read_record(record)) is not None:
                    yield artifact
                await pace.give_way()
            at = page[-1].id

    async def of_session(self, tenant: str, session_id: str, after: str = "") -> AsyncGenerator[Artifact, None]:
        at, pace = _id(tenant, after) if after else "", Pace()
        while page := await self._records.list(_KIND, group=session_id, after=at, limit=PAGE):
            for record in page:
                artifact = self._read_record(record)
                if artifact is not None and artifact.tenant == tenant:
                    yield artifact
                await pace.give_way()
            at = page[-1].id

    def _read_record(self, record: Record) -> Artifact | None:
        """Returns None for an artifact that has expired, or whose record is damaged."""
        try:
            artifact = Artifact.from_mapping(json.loads(record.value))
        except (ValueError, TypeError) as exc:
            _log.warning("artifact_record_damaged", artifact=record.id, error=exc)
            return None
        return artifact if artifact.expires_at > self._clock.wall() else None

    async def get(self, tenant: str, artifact_id: str) -> Artifact:
        """Raises NotFound, also for an artifact of another tenant."""
        record = await self._records.get(_KIND, _id(tenant, artifact_id)) if is_artifact_id(artifact_id) else None
        artifact = self._read_record(record) if record else None
        if artifact is None:
            raise NotFound(
                f"there is no artifact {artifact_id[:80]!r}", remedy="GET /api/artifacts lists those there are"
            )
        return artifact

    async def count_anew(self, use: Record, is_busy: Callable[[], bool]) -> None:
        await self.correct_use(use, (artifact.size async for artifact in self.of_tenant(use.id)), is_busy)


async def place_of(records: RecordStore, tenant: str, artifact_id: str) -> str:
    """Returns the worker that keeps the content of an artifact; "" if every process reaches it, or there is no such
    artifact."""
    record = await records.get(_KIND, _id(tenant, artifact_id)) if is_artifact_id(artifact_id) else None
    if record is None:
        return ""
    try:
        return str(json.loads(record.value)["place"])
    except (ValueError, TypeError, KeyError):
        return ""


def _id(tenant: str, artifact_id: str) -> str:
    """No tenant's name has a slash in it, so the records of a tenant form one range of ids."""
    return f"{tenant}/{artifact_id}"
