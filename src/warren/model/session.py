"""A caller's claim on a sandbox: its states, one table of moves, its deadlines.

Times are of two kinds. `created_at` is the time of day, to be shown. `started`, `used` and `ended` are
counted on the clock of warren.clock and mean something only within `epoch`.
"""

import secrets
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from warren.model.errors import Conflict, InvalidRequest
from warren.model.spec import Layer, Limits

DEFAULT_TENANT: Final = "default"
IDLE_TIMEOUT_S: Final = 1800.0
MAX_LIFETIME_S: Final = 3600.0
LONGEST_S: Final = 30 * 86400.0
MAX_METADATA: Final = 64
MAX_THREAD_ID: Final = 255
MAX_KEY: Final = 255
CREATING_S: Final = 600.0  # longer than any claim may wait: who is still at it then has died


class SessionState(StrEnum):
    """CREATING: its sandbox is being made. RUNNING: it has one. LOST: the sandbox died by itself.
    STOPPING: the sandbox is being destroyed. ENDED: nothing is left but the memory of it."""

    CREATING = "creating"
    RUNNING = "running"
    LOST = "lost"
    STOPPING = "stopping"
    ENDED = "ended"


_S = SessionState
NEXT: Final[dict[SessionState, frozenset[SessionState]]] = {
    _S.CREATING: frozenset({_S.RUNNING, _S.STOPPING, _S.ENDED}),
    _S.RUNNING: frozenset({_S.RUNNING, _S.LOST, _S.STOPPING}),
    _S.LOST: frozenset({_S.LOST, _S.STOPPING}),
    _S.STOPPING: frozenset({_S.ENDED}),
    _S.ENDED: frozenset(),
}


class EndReason(StrEnum):
    """Why a session ended, or (LOST) why it is no use any more."""

    NONE = ""
    DELETED = "deleted"
    IDLE = "idle"
    LIFETIME = "lifetime"
    LOST = "lost"
    FAILED = "failed"
    UNDONE = "undone"
    SHUTDOWN = "shutdown"


# In these it has a sandbox, or will have, and counts for quotas.
HOLDING: Final = frozenset({_S.CREATING, _S.RUNNING, _S.STOPPING})

# A create that came to nothing: its Idempotency-Key may be used again.
CAME_TO_NOTHING: Final = frozenset({EndReason.FAILED, EndReason.UNDONE})


@dataclass(frozen=True, slots=True)
class Previous:
    """The session a thread had before this one, and how it ended: its files are gone."""

    session_id: str
    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """`version` counts the changes; a store takes a change only over the version it was made from.

    `image`, `limits` and `require` are what the caller asked for beyond the environment (empty: nothing).
    `reason` and `detail` say why it was lost or ended. `key_id` names the key it was created with; `disk_mb` and
    `memory_mb` are what it may use up. The values of `env` may be secrets: only their names are ever shown.
    """

    id: str
    tenant: str
    environment: str
    epoch: str
    created_at: float
    started: float
    used: float
    thread_id: str = ""
    state: SessionState = SessionState.CREATING
    version: int = 1
    idle_timeout_s: float = IDLE_TIMEOUT_S
    max_lifetime_s: float = MAX_LIFETIME_S
    image: str = ""
    limits: Limits | None = None
    require: frozenset[Layer] = frozenset()
    env: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    worker: str = ""
    provider: str = ""
    sandbox_id: str = ""
    pooled: bool = False
    key_id: str = ""
    disk_mb: int = 0
    memory_mb: int = 0
    previous: Previous | None = None
    reason: EndReason = EndReason.NONE
    detail: str = ""
    ended: float | None = None

    @property
    def active(self) -> bool:
        return self.state is not SessionState.ENDED

    @property
    def slack_s(self) -> float:
        """Use is written down only this often; so much longer than the idle time-out a session may live."""
        return min(5.0, self.idle_timeout_s / 10)

    @property
    def deadline(self) -> float:
        """When it expires, unless it is used, prolonged or ended before."""
        if self.state is SessionState.CREATING:
            return self.started + CREATING_S
        return min(self.used + self.idle_timeout_s + self.slack_s, self.started + self.max_lifetime_s)

    def expiry(self, now: float) -> EndReason | None:
        """Why it has expired by now, if it has."""
        if now < self.deadline:
            return None
        if self.state is SessionState.CREATING:
            return EndReason.UNDONE
        return EndReason.LIFETIME if now >= self.started + self.max_lifetime_s else EndReason.IDLE

    def moved_to(self, state: SessionState, **changes: Any) -> "Session":
        if state not in NEXT[self.state]:
            raise Conflict(f"session {self.id} is {self.state}, it cannot become {state}")
        return replace(self, state=state, version=self.version + 1, **changes)

    def changed(self, **changes: Any) -> "Session":
        """The same state, other values."""
        return self.moved_to(self.state, **changes)


def new_session_id() -> str:
    return f"ses_{secrets.token_hex(16)}"


def check_seconds(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LONGEST_S:
        raise InvalidRequest(f"{name} is {value}, it must be between 1 and {LONGEST_S:.0f} seconds")
    return float(value)


def check_thread_id(thread_id: str) -> str:
    if not thread_id or len(thread_id) > MAX_THREAD_ID or not thread_id.isprintable():
        raise InvalidRequest(f"a thread id has 1 to {MAX_THREAD_ID} printable characters")
    return thread_id


def check_key(key: str) -> str:
    if not key or len(key) > MAX_KEY or not key.isascii() or not key.isprintable():
        raise InvalidRequest(f"an Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters")
    return key


def check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata has {len(metadata)} entries, at most {MAX_METADATA} are kept")
    for name, value in metadata.items():
        if not 1 <= len(name) <= 128 or not name.isprintable() or len(value) > 4096:
            raise InvalidRequest(
                f"metadata {name[:140]!r}: a name has 1 to 128 printable characters, a value up to 4096"
            )
    return metadata
