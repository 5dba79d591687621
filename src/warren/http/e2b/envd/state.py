"""What the services of a process remember of its sandboxes. Nothing of it outlives the process."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from warren.interfaces.sandbox import Sandbox
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.fair_share import FairShare
from warren.model.errors import UnknownUser

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024  # of all sandboxes
_SHARE: Final = 8
_MAX_SANDBOXES: Final = 10_000


class Collecting(Protocol):
    """A watcher that a client has created (watchers.py)."""

    async def take(self) -> list[dict[str, Any]]: ...
    async def end(self) -> None: ...


@dataclass
class EnvdState:
    """`watchers` are kept by session id and by their own id."""

    watchers: dict[str, dict[str, Collecting]] = field(default_factory=dict)
    _event_bytes: FairShare = field(default_factory=lambda: FairShare(MAX_EVENT_BYTES, of_rest=1 / _SHARE))
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _with_root: BoundedDict[str, bool] = field(default_factory=lambda: BoundedDict(_MAX_SANDBOXES))

    _reached: BoundedDict[str, None] = field(default_factory=lambda: BoundedDict(_MAX_SANDBOXES))

    def note_reached(self, session_id: str) -> None:
        """Remembers that a client has found the services of a sandbox."""
        if session_id and session_id not in self._reached:
            self._reached[session_id] = None

    def was_reached(self, session_id: str) -> bool:
        return session_id in self._reached

    def take_room(self, session_id: str, size: int) -> bool:
        """Whether events of a sandbox may take `size` bytes more. A sandbox gets an eighth of what is left to all, so
        one that comes later finds room too."""
        return self._event_bytes.try_take(session_id, size)

    def give_back_room(self, session_id: str, size: int) -> None:
        self._event_bytes.give_back(session_id, size)

    def turn_of(self, session_id: str) -> asyncio.Lock:
        """Returns the lock of a sandbox, for what it does for one watcher at a time."""
        turn = self._turns.get(session_id)
        if turn is None:
            turn = self._turns[session_id] = asyncio.Lock()
        return turn

    async def allows_root(self, sandbox: Sandbox) -> bool:
        """Whether commands and file operations of a sandbox may be root's; that never changes."""
        found = self._with_root.get(sandbox.id)
        if found is None:
            try:
                await sandbox.stat("/", user="root")
                found = True
            except UnknownUser:
                found = False
            self._with_root[sandbox.id] = found
        return found
