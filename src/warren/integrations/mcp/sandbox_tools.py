"""The tools about the sandbox itself. The model reads their docstrings."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypedDict

from warren.integrations.mcp.calls import SandboxName, error_result, run_tool, text_result
from warren.integrations.mcp.sandboxes import Sandboxes, ToolSandbox
from warren.integrations.mcp.tools import READS, REPEATABLE, McpTool, ToolAnswer, ToolCall, about
from warren.model.errors import WarrenError
from warren.sdk.results import ProcessInfo, SessionInfo

_MAX_PROCESSES: Final = 50


class BackgroundCommand(TypedDict):
    process_id: str
    command: str


class SandboxState(TypedDict):
    sandbox: Annotated[str | None, about("Its name.")]
    session_id: str
    state: str
    environment: str
    user: str
    workspace: str
    expires_at: Annotated[str | None, about("When it ends if it is not used.")]
    isolation: list[str]
    network: Annotated[str, about("What it may reach outside.")]
    commands: Annotated[list[BackgroundCommand], about("The background commands that run; at most 50 of them.")]


class Fresh(TypedDict):
    session_id: Annotated[str, about("The session of the fresh sandbox.")]


class SandboxTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def tools(self) -> Sequence[McpTool]:
        return (
            McpTool(self.sandbox_info, "Show the sandbox", READS),
            McpTool(self.reset_sandbox, "Start afresh", REPEATABLE),
        )

    async def sandbox_info(self, call: ToolCall, sandbox: SandboxName = "") -> ToolAnswer[SandboxState]:
        """Show the sandbox: its name, user, workspace, when it ends, its isolation, its background commands."""

        async def work(box: ToolSandbox) -> ToolAnswer[SandboxState]:
            info = await box.client.info()
            running = [each for each in await box.client.processes() if each.running]
            data = _read_state(info, running)
            lines = [*_describe_session(data), *_describe_commands(data, len(running))]
            return text_result("\n".join(lines), data=data)

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def reset_sandbox(self, call: ToolCall, sandbox: SandboxName = "") -> ToolAnswer[Fresh]:
        """Throw the sandbox away, with all its files and background commands, and start a fresh one."""
        try:
            fresh = await self._sandboxes.reset(self._sandboxes.thread_of(sandbox, call.headers))
        except WarrenError as exc:
            return error_result(exc)
        text = "This is a fresh sandbox now; the earlier one and everything in it is gone."
        return text_result(text, data=Fresh(session_id=fresh.session_id))


def _read_state(info: SessionInfo, running: list[ProcessInfo]) -> SandboxState:
    return SandboxState(
        sandbox=info.thread_id,
        session_id=info.session_id,
        state=info.state,
        environment=info.environment,
        user=info.user,
        workspace=info.workspace,
        expires_at=info.expires_at,
        isolation=list((info.isolation or {}).get("in_force", {})),
        network=_describe_network(info.network or {}),
        commands=[
            BackgroundCommand(process_id=each.process_id, command=each.command[:120])
            for each in running[:_MAX_PROCESSES]
        ],
    )


def _describe_session(state: SandboxState) -> list[str]:
    facts = {
        "sandbox": state["sandbox"],
        "session": state["session_id"],
        "state": state["state"],
        "environment": state["environment"],
        "user": state["user"],
        "workspace": state["workspace"],
        "ends if unused at": state["expires_at"],
        "isolation": ", ".join(state["isolation"]),
        "network": state["network"],
    }
    return [f"{name}: {value}" for name, value in facts.items() if value]


def _describe_network(rules: Mapping[str, Any]) -> str:
    parts = [*(["the Internet"] if rules.get("internet") else []), *rules.get("allow", ())]
    denied = f", except {', '.join(rules['deny'])}" if rules.get("internet") and rules.get("deny") else ""
    return f"{', '.join(parts)}{denied}" if parts else "nothing outside can be reached"


def _describe_commands(state: SandboxState, running: int) -> list[str]:
    if not running:
        return ["background commands: none"]
    shown = [f"  {each['process_id']}: {each['command']}" for each in state["commands"]]
    rest = running - len(shown)
    return ["background commands:", *shown, *([f"  … and {rest} more"] if rest else [])]
