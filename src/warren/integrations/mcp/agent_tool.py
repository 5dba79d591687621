"""A tool of the registry as a tool of the protocol."""

from collections.abc import Mapping
from typing import Any, Final

from warren.integrations.aio.agents import run_tool as run_registry_tool
from warren.integrations.mcp.calls import MAX_CHARACTERS, SandboxName, run_tool, text_result
from warren.integrations.mcp.sandboxes import Sandboxes, ToolSandbox
from warren.integrations.mcp.tools import ToolAnswer, ToolCall, schema_of
from warren.model.errors import InvalidRequest
from warren.model.tool import Tool

_SANDBOX: Final = "sandbox"


class AgentTool:
    """Takes the tool's own arguments, and `sandbox` as all tools do, unless the tool has an argument of that name."""

    def __init__(self, sandboxes: Sandboxes, tool: Tool, hints: Mapping[str, bool]) -> None:
        self.name = tool.name
        self._sandboxes, self._tool, self._hints = sandboxes, tool, hints
        self._takes_sandbox = _SANDBOX not in tool.parameters["properties"]

    def to_json(self) -> dict[str, Any]:
        schema = dict(self._tool.parameters)
        if self._takes_sandbox:
            schema["properties"] = {**schema["properties"], _SANDBOX: schema_of(SandboxName)}
        return {
            "name": self.name,
            "description": self._tool.description or self.name,
            "inputSchema": schema,
            "annotations": dict(self._hints),
        }

    async def call(self, call: ToolCall, arguments: Mapping[str, Any]) -> ToolAnswer[Any]:
        given = dict(arguments)
        sandbox = (given.pop(_SANDBOX, None) or "") if self._takes_sandbox else ""
        if not isinstance(sandbox, str):
            raise InvalidRequest("the argument sandbox must be a string")
        self._tool.read_arguments(given)  # raises before a sandbox is made

        async def work(box: ToolSandbox) -> ToolAnswer[None]:
            report = await run_registry_tool(box.client, self._tool, given, MAX_CHARACTERS)
            ending = f"[exit code {report.exit_code}]" if report.exit_code else "" if report.text else "(no output)"
            return text_result(report.text, ending, data=None, failed=report.exit_code != 0)

        return await run_tool(self._sandboxes, call, sandbox, work)
