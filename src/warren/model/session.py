"""A session, a caller's claim on a sandbox: its states, their rules, and its deadlines.

Times are of two kinds. `created_at` is a wall-clock time, for people. `started`, `used` and `ended` are times of the
clock (warren.kernel.clock) and can be compared only within the same `epoch`.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from warren.model.artifact import SavedAtEnd
from warren.model.errors import Conflict, InvalidRequest
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.preview import NO_PREVIEW_RULES, PreviewRules
from warren.model.spec import Layer, Limits
from warren.model.volume import VolumeMount

DEFAULT_TENANT: Final = "default"
IDLE_TIMEOUT_S: Final = 1800.0
MAX_LIFETIME_S: Final = 3600.0
LONGEST_S: Final = 30 * 86400.0
MAX_METADATA: Final = 64
MAX_LABELS: Final = 8192
"""The characters of all metadata of a snapshot or a volume, of which a tenant has many more than sessions."""
MAX_THREAD_ID: Final = 255
MAX_KEY: Final = 255
MAX_PAUSED_S: Final = 7 * 86400.0
CREATING_S: Final = 600.0  # longer than any creation takes: after this, the process that creates it has died


class SessionState(StrEnum):
    """CREATING: the sandbox is being made. RUNNING: it exists. PAUSED: it exists and stands still. HIBERNATED: its disk
    was saved, and it was given back. LOST: it died by itself. STOPPING: it is being destroyed. ENDED: only the row is
    left."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    HIBERNATED = "hibernated"
    LOST = "lost"
    STOPPING = "stopping"
    ENDED = "ended"

    @property
    def is_active(self) -> bool:
        return STATES[self].is_active

    @property
    def is_in_transition(self) -> bool:
        return STATES[self].is_in_transition

    @property
    def is_usable(self) -> bool:
        return STATES[self].is_usable

    @property
    def can_run(self) -> bool:
        return STATES[self].can_run

    @property
    def can_be_lost(self) -> bool:
        return STATES[self].can_be_lost

    @property
    def holds_sandbox(self) -> bool:
        return STATES[self].holds_sandbox

    @property
    def is_paused(self) -> bool:
        return STATES[self].is_paused

    @property
    def is_counted(self) -> bool:
        """Whether quotas count the session."""
        return self.holds_sandbox or self.is_paused

    @property
    def lives(self) -> bool:
        """Whether the session has what callers have made: a sandbox, or its saved disk."""
        return self.can_be_lost or self.is_paused

    @property
    def expires(self) -> bool:
        return STATES[self].expires


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRules:
    """What holds for the sessions in a state.

    `next`: the states that may follow; a state that may follow itself lets other values of the session change.
    `is_active`: the session keeps its thread, is listed by default and is never purged.
    `is_in_transition`: a task makes or destroys the sandbox, and the state changes when the task is done.
    `is_usable`: the session can run commands, now or after a while; an Idempotency-Key may stand for it.
    `can_run`: commands run now.
    `can_be_lost`: the sandbox exists. A worker takes it over after a restart; if it dies, the session is lost.
    `holds_sandbox`: the session takes up a sandbox of its worker (wanted, present or not yet gone): quotas count it.
    `is_paused`: nothing runs until its next use. It counts as a paused session instead of a session.
    `expires`: the session ends at its deadline.
    """

    next: frozenset[SessionState]
    is_active: bool = True
    is_in_transition: bool = False
    is_usable: bool = False
    can_run: bool = False
    can_be_lost: bool = False
    holds_sandbox: bool = False
    is_paused: bool = False
    expires: bool = False


_S = SessionState

# The only place that classifies states. Stores generate their SQL and Lua from it, so they cannot disagree with it.
STATES: Final[Mapping[SessionState, StateRules]] = {
    _S.CREATING: StateRules(
        next=frozenset({_S.RUNNING, _S.HIBERNATED, _S.STOPPING, _S.ENDED}),
        is_in_transition=True,
        is_usable=True,
        holds_sandbox=True,
        expires=True,
    ),
    _S.RUNNING: StateRules(
        next=frozenset({_S.RUNNING, _S.PAUSED, _S.HIBERNATED, _S.LOST, _S.STOPPING}),
        is_usable=True,
        can_run=True,
        can_be_lost=True,
        holds_sandbox=True,
        expires=True,
    ),
    _S.PAUSED: StateRules(
        next=frozenset({_S.PAUSED, _S.RUNNING, _S.HIBERNATED, _S.LOST, _S.STOPPING}),
        is_usable=True,
        can_be_lost=True,
        holds_sandbox=True,
        is_paused=True,
        expires=True,
    ),
    _S.HIBERNATED: StateRules(
        next=frozenset({_S.HIBERNATED, _S.CREATING, _S.LOST, _S.STOPPING, _S.ENDED}),
        is_usable=True,
        is_paused=True,
        expires=True,
    ),
    _S.LOST: StateRules(next=frozenset({_S.LOST, _S.STOPPING, _S.ENDED}), expires=True),
    _S.STOPPING: StateRules(next=frozenset({_S.ENDED}), is_in_transition=True, holds_sandbox=True),
    _S.ENDED: StateRules(next=frozenset(), is_active=False),
}


class EndReason(StrEnum):
    """Why a session ended, or (LOST) why it can no longer be used."""

    NONE = ""
    DELETED = "deleted"
    IDLE = "idle"
    LIFETIME = "lifetime"
    PAUSED_TOO_LONG = "paused_too_long"
    LOST = "lost"
    FAILED = "failed"
    UNDONE = "undone"
    SHUTDOWN = "shutdown"
    REPLACED = "replaced"


class OnIdle(StrEnum):
    """What becomes of a session that is not used for its idle time-out, or whose lifetime is over."""

    END = "end"
    PAUSE = "pause"
    HIBERNATE = "hibernate"


# No caller ever got the sandbox, so the Idempotency-Key may be used again.
FAILED_CREATIONS: Final = frozenset({EndReason.FAILED, EndReason.UNDONE})


@dataclass(frozen=True, slots=True)
class Previous:
    """The thread's previous session, whose files are gone, and how it ended."""

    session_id: str
    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """`version` counts the changes: a store accepts a change only if it was made from the stored version.

    `image`, `require`: what the caller asked for beyond the environment; empty for nothing.
    `limits`: those in force; None, in rows of older versions, means those of the environment.
    `disk_mb`, `memory_mb`: the most that it may use.
    `network`: what its sandbox may reach; presets are named, not expanded.
    `reason`, `detail`: why it was lost or ended.
    `key_id`: the key that created it.
    `env`: the values may be secrets, so only the names are ever shown.
    `secrets`: the names of the secrets that the sandbox's broker adds to its requests.
    `agent_config`: a copy of the agent it was made for; `agent`: the agent's name in the registry. Empty for none.
    `gpus`: the ids of its graphics processors; before it has its sandbox, `any` for each.
    `artifacts`: what was saved when it ended.
    `paused_at`: since when it is paused; `paused_s`: how long it was before, all times together. `max_paused_s`: it
    ends when it is paused for that long. `auto_resume`: whoever uses it while it is paused resumes it.
    `hibernate_after_s`: it is hibernated when it is paused for that long; 0: never. `saved`: the snapshot of its disk,
    while it is hibernated and until it has a sandbox again; `saved_gpus`: how many graphics processors it had.
    `restored`: how often it was; nothing that ran before runs since.
    `on_timeout`: what becomes of it when its lifetime is over. `renewal_s`: the lifetime that begins anew when it is
    paused, and counts from when it is resumed; 0: what was left goes on.
    `snapshot`: the one that its disk began from. `forked_from`: the session that it is a fork of.
    `logs`: how much of what it does is kept; empty for nothing. See model/session_log.py.
    `volumes`: the named volumes in its sandbox.
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
    network: NetworkRules = NO_NETWORK
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
    previews: PreviewRules = NO_PREVIEW_RULES
    secrets: tuple[str, ...] = ()
    agent: str = ""
    agent_config: dict[str, Any] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    artifacts: SavedAtEnd | None = None
    paused_at: float | None = None
    paused_s: float = 0.0
    max_paused_s: float = MAX_PAUSED_S
    auto_resume: bool = True
    hibernate_after_s: float = 0.0
    saved: str = ""
    saved_gpus: int = 0
    restored: int = 0
    on_idle: OnIdle = OnIdle.END
    on_timeout: OnIdle = OnIdle.END
    renewal_s: float = 0.0
    snapshot: str = ""
    forked_from: str = ""
    logs: str = ""
    volumes: tuple[VolumeMount, ...] = ()

    @property
    def opens_network(self) -> bool:
        """Whether its sandbox can reach anything outside."""
        return self.network.is_open or bool(self.secrets)

    @property
    def active(self) -> bool:
        return self.state.is_active

    @property
    def slack_s(self) -> float:
        """The least time between two writes of `used` to the store. A session may outlive its idle time-out by this
        much."""
        return min(5.0, self.idle_timeout_s / 10)

    @property
    def deadline(self) -> float:
        """When something becomes of the session, unless it is used, prolonged or ended before."""
        if self.state is SessionState.PAUSED and self.hibernate_after_s:
            return min(self.expires_at, self._paused_since + self.hibernate_after_s)
        return self.expires_at

    @property
    def expires_at(self) -> float:
        """When the session expires, unless it is used, prolonged or ended before."""
        if self.state is SessionState.CREATING:
            return self.used + CREATING_S
        if self.state.is_paused:  # its other clocks stand still
            return self._paused_since + self.max_paused_s
        return min(self.idle_deadline, self._lifetime_ends)

    @property
    def idle_deadline(self) -> float:
        return self.used + self.idle_timeout_s + self.slack_s

    @property
    def _lifetime_ends(self) -> float:
        return self.started + self.max_lifetime_s + self.paused_s

    @property
    def _paused_since(self) -> float:
        return self.used if self.paused_at is None else self.paused_at

    def hibernates(self, now: float) -> bool:
        """Whether it has been paused for so long that it is to be hibernated."""
        return self.state is SessionState.PAUSED and self.deadline <= now < self.expires_at

    def expiry(self, now: float) -> EndReason | None:
        """Returns why the session has expired, or None if it has not."""
        if now < self.expires_at:
            return None
        if self.state is SessionState.CREATING:
            return EndReason.UNDONE
        if self.state.is_paused:
            return EndReason.PAUSED_TOO_LONG
        return EndReason.LIFETIME if now >= self._lifetime_ends else EndReason.IDLE

    def on_expiry(self, reason: EndReason) -> OnIdle:
        """Returns what becomes of a session that has expired for this reason while it ran."""
        return {EndReason.IDLE: self.on_idle, EndReason.LIFETIME: self.on_timeout}.get(reason, OnIdle.END)

    def moved_to(self, state: SessionState, **changes: Any) -> "Session":
        if state not in STATES[self.state].next:
            raise Conflict(f"session {self.id} is {self.state}, it cannot become {state}")
        return replace(self, state=state, version=self.version + 1, **changes)

    def changed(self, **changes: Any) -> "Session":
        """Returns the session in the same state with other values."""
        return self.moved_to(self.state, **changes)

    def lived_for(self, now: float) -> float:
        """Returns how much of its lifetime is over."""
        return max(0.0, now - self.started - self.paused_s - self.paused_for(now))

    def pause_clocks(self, now: float) -> dict[str, Any]:
        """Returns the changes of a session that is paused now."""
        renewed = {"started": now, "paused_s": 0.0, "max_lifetime_s": self.renewal_s} if self.renewal_s else {}
        return {"paused_at": now, **renewed}

    def paused_for(self, now: float) -> float:
        """Returns how long it has been paused this time."""
        return max(0.0, now - self._paused_since) if self.state.is_paused else 0.0

    def clocks_at(self, now: float) -> dict[str, Any]:
        """Returns the changes of a session that is paused no longer: its idle clock begins anew, and its lifetime goes
        on where it stood still."""
        if not self.state.is_paused:
            return {}
        return {"paused_at": None, "paused_s": self.paused_s + self.paused_for(now), "used": max(self.used, now)}


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


def check_metadata(metadata: dict[str, str], most: int | None = None) -> dict[str, str]:
    """`most`: the characters of all of them together."""
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata has {len(metadata)} entries, at most {MAX_METADATA} are kept")
    for name, value in metadata.items():
        if not 1 <= len(name) <= 128 or not name.isprintable() or len(value) > 4096:
            raise InvalidRequest(
                f"metadata {name[:140]!r}: a name has 1 to 128 printable characters, a value up to 4096"
            )
    if most is not None and size_of_metadata(metadata) > most:
        raise InvalidRequest(f"the metadata has {size_of_metadata(metadata)} characters, at most {most} are kept")
    return metadata


def size_of_metadata(metadata: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in metadata.items())
