"""The environments of a server: those of the registry, with what the settings say about them.

`app/service.py` and `app/coordinator_process.py` run `watch`, which looks at the files every two seconds, reads those
that have changed and logs what is wrong with them.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from warren.config.registry import Registry
from warren.config.registry_files import RegistryFiles
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.environment import Environment
from warren.model.errors import Unavailable, UnknownEnvironment

LOOK_S: Final = 2.0
_log = get_log(__name__)


class RegistryEnvironments:
    """Keeps the contract of interfaces/environments.py. `adapt` applies the settings to an environment."""

    def __init__(self, registry: Registry, adapt: Callable[[Environment], Environment]) -> None:
        self._registry = registry
        self._adapt = adapt
        self._adapted: dict[str, tuple[Environment, Environment]] = {}  # as in the registry, and as `adapt` made it

    def __call__(self, name: str) -> Environment:
        environment = self._registry.environment(name)
        pair = self._adapted.get(name)
        if pair is None or pair[0] is not environment:
            pair = self._adapted[name] = environment, self._adapt(environment)
        return pair[1]

    @property
    def entries(self) -> Registry:
        return self._registry

    def list(self) -> Sequence[Environment]:
        found = []
        for name in self._registry.names:
            try:
                found.append(self(name))
            except (Unavailable, UnknownEnvironment):
                continue
        return found

    def look(self) -> None:
        """Reads what has changed since the last look, and logs it."""
        for change in self._registry.changes():
            if change.problem:
                _log.warning("environment_broken", environment=change.name, error=change.problem, kept=change.kept)
            else:
                _log.info("environment_removed" if change.removed else "environment_read", environment=change.name)
        for files in (self._registry.agents, self._registry.tools, self._registry.prompts):
            _log_changes(files)

    async def watch(self, clock: Clock) -> None:
        while True:
            await clock.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self.look)
            except OSError as exc:
                _log.warning("environments_not_read", error=exc)


def _log_changes(files: RegistryFiles[Any]) -> None:
    for change in files.changes():
        which = {"kind": files.kind, "name": change.name}
        if change.problem:
            _log.warning("entry_broken", **which, error=change.problem, kept=change.kept)
        else:
            _log.info("entry_removed" if change.removed else "entry_read", **which)
