"""Agents, tools and prompts of the registry."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from warren.model.agent import Agent
from warren.model.prompt import Prompt
from warren.model.tool import Tool

Entry = TypeVar("Entry", covariant=True)


class EntriesOfKind(Protocol[Entry]):
    """The current entries: changed files are read again.

    `get` raises UnknownEntry, or Unavailable if the entry cannot be used because of a mistake in its file. `list`
    returns the usable entries, by name.
    """

    def get(self, name: str) -> Entry: ...
    def list(self) -> Sequence[Entry]: ...


class RegistryEntries(Protocol):
    """`check_agent` raises if the agent names something that the registry does not have."""

    @property
    def agents(self) -> EntriesOfKind[Agent]: ...
    @property
    def tools(self) -> EntriesOfKind[Tool]: ...
    @property
    def prompts(self) -> EntriesOfKind[Prompt]: ...
    def check_agent(self, agent: Agent) -> None: ...
