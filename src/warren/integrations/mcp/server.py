"""The tools of the MCP server, as every transport serves them: names, schemas and results are the protocol's JSON.

`stdio.py` and `http.py` are the ways in. Connections have no state here, so any of them may break and come back.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warren.integrations.mcp.agent_tool import AgentTool
from warren.integrations.mcp.calls import error_result
from warren.integrations.mcp.command_tools import CommandTools
from warren.integrations.mcp.file_tools import FileTools
from warren.integrations.mcp.sandbox_tools import SandboxTools
from warren.integrations.mcp.sandboxes import Sandboxes
from warren.integrations.mcp.tools import CHANGES, McpTool, ToolCall
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.tool import Tool

_log = logging.getLogger(__name__)

NAME: Final = "warren"
INSTRUCTIONS: Final = """\
These tools give you an isolated Linux computer of your own. Use bash to run commands: the working directory and \
exported variables last between calls, and files stay in /workspace. Use run_code to run Python and other languages in \
an interpreter that keeps its variables and shows charts. Nothing you do there touches the user's machine. \
Start servers and long jobs with bash_background. The argument sandbox chooses another, separate computer by a name; \
leave it out unless you need one. If an answer says that the sandbox is fresh, earlier files are gone."""


class ToolServer:
    """Lists and calls tools. One of `agent_tools`, the registry's, replaces a usual one of the same name."""

    def __init__(self, sandboxes: Sandboxes, version: str, agent_tools: Sequence[Tool] = ()) -> None:
        self.version = version
        tools = (*CommandTools(sandboxes).tools(), *FileTools(sandboxes).tools(), *SandboxTools(sandboxes).tools())
        self._tools: dict[str, McpTool | AgentTool] = {tool.name: tool for tool in tools}
        self._tools |= {each.name: AgentTool(sandboxes, each, CHANGES) for each in agent_tools}

    def list_tools(self) -> dict[str, Any]:
        return {"tools": [tool.to_json() for tool in self._tools.values()]}

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Calls a tool and returns its result. Never raises: the result tells the model what was wrong."""
        try:
            if (tool := self._tools.get(name)) is None:
                raise InvalidRequest(
                    f"there is no tool {name[:100]!r}", remedy=f"the tools are {', '.join(self._tools)}"
                )
            return (await tool.call(ToolCall(headers), arguments)).to_json()
        except WarrenError as exc:
            return error_result(exc).to_json()
        except Exception as exc:
            _log.exception("mcp_tool_failed tool=%s", name)
            return error_result(
                WarrenError(
                    f"the MCP server failed in the tool {name} ({type(exc).__name__})",
                    remedy="this is a defect of Warren: tell the user to report it with the server's log",
                )
            ).to_json()
