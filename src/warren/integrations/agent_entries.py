"""An agent of the registry with everything that it names: its tools and its prompt."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from warren.model.agent import Agent
from warren.model.errors import InvalidRequest
from warren.model.prompt import Prompt
from warren.model.tool import Tool

AgentConfig = str | Mapping[str, Any]
"""An agent's name in the registry, or an agent as the registry has them."""
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    agent: Agent
    tools: tuple[Tool, ...] = ()
    prompt: Prompt | None = None

    def render_prompt(self, variables: Mapping[str, str] | None = None) -> str:
        """The agent's prompt; empty if it has none. Raises InvalidRequest for a variable without a value."""
        if self.agent.prompt is None:
            return ""
        return self.agent.prompt.render(lambda name: self._prompt(), variables or {})

    def _prompt(self) -> Prompt:
        assert self.prompt is not None
        return self.prompt


def load_agent(config: AgentConfig, find: Callable[[str, str], Entry]) -> LoadedAgent:
    """`find` gives an entry of the registry by its kind and name. Raises what it raises, and InvalidRequest for an
    agent that Warren cannot make tools of."""
    work = _load(config)
    try:
        wanted = next(work)
        while True:
            wanted = work.send(find(*wanted))
    except StopIteration as stop:
        loaded: LoadedAgent = stop.value
        return loaded


async def load_agent_async(config: AgentConfig, find: Callable[[str, str], Awaitable[Entry]]) -> LoadedAgent:
    work = _load(config)
    try:
        wanted = next(work)
        while True:
            wanted = work.send(await find(*wanted))
    except StopIteration as stop:
        loaded: LoadedAgent = stop.value
        return loaded


def _load(config: AgentConfig) -> Generator[tuple[str, str], Entry, LoadedAgent]:
    agent = Agent.of_shown((yield "agents", config)) if isinstance(config, str) else Agent.inline(config)
    tools = []
    for tool in agent.tools:
        found = tool if isinstance(tool, Tool) else Tool.from_mapping((yield "tools", tool))
        if found.mcp is not None and found.mcp.url:
            raise InvalidRequest(
                f"the tool {found.name!r} is on an MCP server elsewhere, which Warren does not call",
                remedy="connect to its url with the MCP client of your framework, and leave the tool out here",
            )
        tools.append(found)
    name = agent.prompt.name if agent.prompt else ""
    prompt = Prompt.from_mapping((yield "prompts", name)) if name else None
    return LoadedAgent(agent, tuple(tools), prompt)
