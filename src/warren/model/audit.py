"""Who did what, when, and with which result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

COMMAND: Final = "command"  # the key of `detail` for what was run: a shell line, or a list of arguments
DROPPED: Final = "audit.dropped"  # the action of an entry that counts lost entries

REFUSED: Final = "audit.refused"  # the action of an entry that counts refused requests without an entry of their own


class CommandText(StrEnum):
    """What entries keep of commands. NONE: nothing. REDACTED: the text, with the secrets found in it removed."""

    NONE = "none"
    REDACTED = "redacted"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`at`: wall-clock time. `action`: the operation's id ("run_command") or an event's kind ("session.expired").
    `status`: the HTTP status, 0 if there was none. `result`: one short word. `client`: the address of the caller.
    `detail`: JSON (exit_code, reason, path, bytes, command …), which must not change after the entry was recorded."""

    at: float
    action: str
    tenant: str = ""
    key_id: str = ""
    client: str = ""
    request_id: str = ""
    session_id: str = ""
    status: int = 0
    result: str = ""
    duration_ms: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)


class RequestRecord(NamedTuple):
    """What is known of a finished request. The thread that writes entries makes the entry from it, so that the event
    loop has almost nothing to do. `notes` must not change after the record was handed over."""

    at: float
    action: str
    tenant: str
    key_id: str
    client: str
    request_id: str
    path_params: Mapping[str, Any]
    status: int
    result: str
    duration_ms: float
    notes: Mapping[str, Any]

    def as_entry(self) -> AuditEntry:
        notes = dict(self.notes)
        session_id = str(notes.pop("session_id", "") or self.path_params.get("session_id", ""))
        result = str(notes.pop("error", "")) or self.result
        if "process_id" in self.path_params:
            notes.setdefault("process_id", self.path_params["process_id"])
        return AuditEntry(
            self.at,
            self.action,
            self.tenant,
            self.key_id,
            self.client,
            self.request_id,
            session_id,
            self.status,
            result,
            self.duration_ms,
            notes,
        )
