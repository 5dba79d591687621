"""What the file services of a process remember of its sandboxes. Nothing of it outlives the process."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from warren.interfaces.sandbox import Sandbox
from warren.model.errors import UnknownUser

if TYPE_CHECKING:
    from warren.e2b.envd.watchers import Watcher

_MOST_SANDBOXES: Final = 10_000


@dataclass
class EnvdState:
    """`watchers` by session id and their own. `event_bytes` is what the events take that wait in all of them."""

    watchers: dict[str, dict[str, "Watcher"]] = field(default_factory=dict)
    event_bytes: int = 0
    _with_root: OrderedDict[str, bool] = field(default_factory=OrderedDict)

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
            if len(self._with_root) > _MOST_SANDBOXES:
                self._with_root.popitem(last=False)
        return found
