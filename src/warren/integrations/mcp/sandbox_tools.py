"""The tools about the sandbox itself. The model reads their docstrings."""

from typing import Final

from mcp.types import CallToolResult

from warren.integrations.mcp.calls import Call, SandboxName, reset_sandbox, run_tool, text_result
from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.sdk.results import ProcessInfo, SessionInfo

_MAX_PROCESSES: Final = 50


class SandboxTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def sandbox_info(self, call: Call, sandbox: SandboxName = "") -> CallToolResult:
        """Show the sandbox: its name, user, workspace, when it ends, its isolation, its background commands."""

        async def work(box: Sandbox) -> CallToolResult:
            info = await box.client.info()
            processes = [each for each in await box.client.processes() if each.running]
            return text_result("\n".join([*_describe_session(info), *_describe_processes(processes)]))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def reset_sandbox(self, call: Call, sandbox: SandboxName = "") -> CallToolResult:
        """Throw the sandbox away, with all its files and background commands, and start a fresh one."""
        return await reset_sandbox(self._sandboxes, call, sandbox)


def _describe_session(info: SessionInfo) -> list[str]:
    layers = (info.isolation or {}).get("in_force", {})
    facts = {
        "sandbox": info.thread_id,
        "session": info.session_id,
        "state": info.state,
        "environment": info.environment,
        "user": info.user,
        "workspace": info.workspace,
        "ends if unused at": info.expires_at,
        "isolation": ", ".join(layers),
    }
    return [f"{name}: {value}" for name, value in facts.items() if value]


def _describe_processes(processes: list[ProcessInfo]) -> list[str]:
    if not processes:
        return ["background commands: none"]
    shown = [f"  {each.process_id}: {each.command[:120]}" for each in processes[:_MAX_PROCESSES]]
    rest = len(processes) - len(shown)
    return ["background commands:", *shown, *([f"  … and {rest} more"] if rest else [])]
