"""Environments by name."""

from collections.abc import Sequence
from typing import Protocol

from warren.interfaces.entries import Entries
from warren.model.environment import Environment


class Environments(Protocol):
    """The environments as they are now: changed files are read again.

    A call raises UnknownEnvironment, and Unavailable for an environment that cannot be used because of a mistake in
    its file. `list` returns those that can be used, by name. `entries` are what else the registry has.
    """

    @property
    def entries(self) -> Entries: ...

    def __call__(self, name: str) -> Environment: ...
    def list(self) -> Sequence[Environment]: ...
