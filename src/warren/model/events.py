"""Events: what happened to sessions and commands, for usage, audit and webhooks."""

import itertools
import secrets
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

_RUN: Final = f"evt_{secrets.token_hex(12)}"  # one per process: ids must be unique, but not secret
_numbers = itertools.count(1)


class EventKind(StrEnum):
    SESSION_CREATED = "session.created"
    SESSION_CHANGED = "session.changed"
    SESSION_ENDED = "session.ended"
    SESSION_EXPIRED = "session.expired"
    SESSION_LOST = "session.lost"
    SESSION_PAUSED = "session.paused"
    SESSION_HIBERNATED = "session.hibernated"
    SESSION_RESUMED = "session.resumed"
    COMMAND_FINISHED = "command.finished"
    COMMAND_REFUSED = "command.refused"
    QUOTA_REACHED = "quota.reached"
    NETWORK_REFUSED = "network.refused"
    RESOURCE_HIGH = "resource.high"
    ARTIFACT_CREATED = "artifact.created"
    ARTIFACT_LEFT_OUT = "artifact.left_out"
    SNAPSHOT_CREATED = "snapshot.created"
    SNAPSHOT_DELETED = "snapshot.deleted"
    VOLUME_CREATED = "volume.created"
    VOLUME_DELETED = "volume.deleted"
    VOLUME_ATTACHED = "volume.attached"


@dataclass(frozen=True, slots=True)
class SessionCreatedData:
    thread_id: str | None
    memory_mb: int
    environment: str
    pooled: bool


@dataclass(frozen=True, slots=True)
class SessionChangedData:
    """`changed` names what a caller has set: time-outs, metadata, network. Using a session does not change it."""

    thread_id: str | None
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionEndedData:
    """Data of a session that was ended, or that expired."""

    thread_id: str | None
    memory_mb: int
    reason: str
    lived_s: float


@dataclass(frozen=True, slots=True)
class SessionLostData:
    thread_id: str | None
    memory_mb: int
    detail: str


@dataclass(frozen=True, slots=True)
class SessionPausedData:
    """`idle`: nobody asked for it, it was not used for its idle time-out."""

    thread_id: str | None
    memory_mb: int
    idle: bool
    max_paused_s: float


@dataclass(frozen=True, slots=True)
class SessionHibernatedData:
    """It was paused before. `bytes` is what its saved disk occupies."""

    thread_id: str | None
    memory_mb: int
    bytes: int
    max_paused_s: float


@dataclass(frozen=True, slots=True)
class SessionResumedData:
    """`restored`: how often it was restored from disk until now; one more than before if it was this time."""

    thread_id: str | None
    memory_mb: int
    paused_s: float
    restored: int


@dataclass(frozen=True, slots=True)
class CommandEndedData:
    """Data of a command that ended or was refused. `background`: no request waited for its end."""

    process_id: str
    exit_code: int
    reason: str
    duration_ms: float
    cpu_ms: float
    bytes_total: int
    background: bool


@dataclass(frozen=True, slots=True)
class QuotaReachedData:
    quota: str
    key_id: str


@dataclass(frozen=True, slots=True)
class NetworkRefusedData:
    """The last of `count` refusals since the previous event. `rule` would allow the destination; empty if no rule of a
    session can."""

    name: str
    address: str
    port: int
    reason: str
    rule: str
    count: int


@dataclass(frozen=True, slots=True)
class ResourceHighData:
    """`used` and `limit` are in bytes, processes or cores, depending on the resource. `percent` is `used` in percent of
    `limit`, and `threshold` the alert that it reached."""

    resource: str
    used: float
    limit: float
    percent: float
    threshold: float
    thread_id: str | None


@dataclass(frozen=True, slots=True)
class ArtifactCreatedData:
    artifact_id: str
    name: str
    size: int
    sha256: str
    mime_type: str
    thread_id: str | None


@dataclass(frozen=True, slots=True)
class ArtifactsLeftOutData:
    """`count` files were not saved. `path` is the first of them, and `why` the reason."""

    count: int
    path: str
    why: str
    thread_id: str | None


@dataclass(frozen=True, slots=True)
class SnapshotCreatedData:
    snapshot_id: str
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SnapshotDeletedData:
    """`reason`: deleted, expired, or damaged: its content was lost."""

    snapshot_id: str
    name: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class VolumeData:
    volume_id: str
    name: str
    size_mb: int


@dataclass(frozen=True, slots=True)
class VolumeAttachedData:
    volume_id: str
    name: str
    path: str
    read_only: bool
    thread_id: str | None


EventData = (
    SessionCreatedData
    | SessionChangedData
    | SessionEndedData
    | SessionLostData
    | SessionPausedData
    | SessionHibernatedData
    | SessionResumedData
    | CommandEndedData
    | QuotaReachedData
    | NetworkRefusedData
    | ResourceHighData
    | ArtifactCreatedData
    | ArtifactsLeftOutData
    | SnapshotCreatedData
    | SnapshotDeletedData
    | VolumeData
    | VolumeAttachedData
)


@dataclass(frozen=True, slots=True)
class Event:
    """`at` is a wall-clock time. `data` contains no secrets and no output of commands."""

    kind: EventKind
    tenant: str
    at: float
    data: EventData
    session_id: str = ""
    id: str = field(default_factory=lambda: f"{_RUN}{next(_numbers):08x}")

    def json_data(self) -> dict[str, Any]:
        return asdict(self.data)
