"""An agent of the registry with everything that it names: its tools and its prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warren.model.agent import Agent
from warren.model.errors import InvalidRequest
from warren.model.prompt import Prompt
from warren.model.tool import Tool

AgentConfig = str | Mapping[str, Any]
"""An agent's name in the registry, or an agent as the registry has them."""


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    agent: Agent
    tools: tuple[Tool, ...] = ()
    prompt: Prompt | None = None

    def render_prompt(self, variables: Mapping[str, str] | None = None) -> str:
        """Returns the agent's prompt; empty if it has none. Raises InvalidRequest for a variable without a value."""
        if self.agent.prompt is None:
            return ""
        return self.agent.prompt.render(lambda name: self._prompt(), variables or {})

    def _prompt(self) -> Prompt:
        assert self.prompt is not None
        return self.prompt


def check_tool(tool: Tool) -> Tool:
    """Raises InvalidRequest for a tool that Warren cannot run."""
    if tool.mcp is not None and tool.mcp.url:
        raise InvalidRequest(
            f"the tool {tool.name!r} is on an MCP server elsewhere, which Warren does not call",
            remedy="connect to its url with the MCP client of your framework, and leave the tool out here",
        )
    return tool
