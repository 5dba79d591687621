"""Environments by name."""

from collections.abc import Sequence
from typing import Protocol

from warren.interfaces.entries import RegistryEntries
from warren.model.environment import Environment


class Environments(Protocol):
    """The current environments: changed files are read again.

    A call raises UnknownEnvironment, or Unavailable if the environment cannot be used because of a mistake in its file.
    `list` returns the usable environments, by name. `entries` holds the other kinds of entries of the registry.
    """

    @property
    def entries(self) -> RegistryEntries: ...

    def __call__(self, name: str) -> Environment: ...
    def list(self) -> Sequence[Environment]: ...
