"""Snapshots, saved disks of sandboxes: what is known of one, and the rules for names.

Ids begin with a time that counts backwards, so sorted ids list the newest snapshots first.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from warren.model.errors import InvalidRequest

MAX_NAME: Final = 64
MAX_FORKS: Final = 20
MAX_REFERENCE: Final = 128
_LAST_MS: Final = (1 << 44) - 1
_ID: Final = re.compile(r"snap_[0-9a-f]{27}")
_NAME: Final = re.compile(rf"(?!snap_)(?=.{{1,{MAX_NAME}}}$)[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9._-]+)?")


class SnapshotOwner(StrEnum):
    """Whose a snapshot is. USER: a caller's. SESSION: a session's that gave its sandbox back. FORK: of a fork that is
    being made; it is gone when that is done."""

    USER = "user"
    SESSION = "session"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`parent`: the snapshot that its session began from. `image`: the one that its session had. `writable_root`:
    whether changes of the whole root were saved. `bytes`: what it occupies, and `sha256` of its contents. `expires_at`
    None: never. `place`: the worker that keeps it; empty if every process can read it. `packed`: it is in the store of
    snapshots, else among the saved disks of its place. `public`: every tenant may start from it. `stopped_s`: how long
    its session stood still for it."""

    id: str
    tenant: str
    name: str
    provider: str
    environment: str
    image: str
    writable_root: bool
    disk_mb: int
    bytes: int
    sha256: str
    created_at: float
    expires_at: float | None
    session_id: str = ""
    thread_id: str = ""
    parent: str = ""
    place: str = ""
    packed: bool = False
    public: bool = False
    owner: SnapshotOwner = SnapshotOwner.USER
    metadata: dict[str, str] = field(default_factory=dict)
    stopped_s: float = 0.0

    @property
    def is_hidden(self) -> bool:
        return self.owner is not SnapshotOwner.USER

    @property
    def charged_bytes(self) -> int:
        """What counts for the tenant's quota: the disk of a fork is gone in a moment."""
        return 0 if self.owner is SnapshotOwner.FORK else self.bytes

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Snapshot":
        """Reads a snapshot. Fields that this version does not know are ignored: another version may have written
        them."""
        known = {each.name for each in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        return cls(**{**given, "owner": SnapshotOwner(given.get("owner", SnapshotOwner.USER))})


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """How many a tenant may have, how long they are kept (0: for ever), and how much of them a worker keeps ready that
    are in the store."""

    max_count: int = 1000
    ttl_s: float = 30 * 86400.0
    cache_bytes: int = 10 << 30


@dataclass(frozen=True, slots=True)
class SnapshotWish:
    """What a caller wants of a new snapshot. `expires_in_s` None: as long as the server keeps them; 0: for ever."""

    name: str = ""
    expires_in_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    public: bool = False
    owner: SnapshotOwner = SnapshotOwner.USER


def new_snapshot_id(now: float) -> str:
    return f"snap_{_LAST_MS - round(now * 1000):011x}{secrets.token_hex(8)}"


def is_snapshot_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_snapshot_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_snapshot_name(name: str) -> str:
    if not is_snapshot_name(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot be the name of a snapshot",
            remedy="1 to 64 letters, digits, dots, dashes or underscores, and a colon before a tag; it does not begin "
            "with snap_",
        )
    return name
