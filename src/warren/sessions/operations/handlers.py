"""The handlers of all operations that are performed over HTTP and without it, by the operation's name."""

from typing import Final

from warren.sessions.operations import (
    artifacts,
    code,
    commands,
    environments,
    files,
    network,
    ports,
    processes,
    registry,
    sessions,
)

HANDLERS: Final = {
    handler.name: handler
    for module in (sessions, network, environments, registry, commands, code, processes, files, artifacts, ports)
    for handler in module.HANDLERS
}
