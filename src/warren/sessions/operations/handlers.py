"""The handlers of all operations that are performed over HTTP and without it, by the operation's name."""

from typing import Final

from warren.sessions.operations import (
    artifacts,
    code,
    commands,
    environments,
    files,
    logs,
    machine,
    metrics,
    network,
    ports,
    processes,
    registry,
    sessions,
    snapshots,
    volumes,
)

_MODULES: Final = (
    sessions,
    network,
    metrics,
    environments,
    machine,
    registry,
    commands,
    code,
    processes,
    files,
    artifacts,
    snapshots,
    volumes,
    ports,
    logs,
)
HANDLERS: Final = {handler.name: handler for module in _MODULES for handler in module.HANDLERS}
