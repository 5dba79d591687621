"""Loads agents of the registry, and runs their tools in a sandbox.

A tool of an MCP server runs on a process of the session: the first call starts the server, and it stays for later ones,
whoever makes them.
"""

# Made from src/warren/integrations/aio/agents.py by scripts/generate_sync.py: edit that one.

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from warren.integrations.agents import AgentConfig, LoadedAgent, check_tool
from warren.integrations.blocking.commands import run_command
from warren.integrations.registry_servers import AnswerReader, process_name, read_answer, start_command
from warren.integrations.reports import EXIT_NOT_RUN, EXIT_TIMED_OUT, CommandReport, describe_error, shorten
from warren.model.agent import Agent
from warren.model.errors import Conflict, WarrenError
from warren.model.prompt import Prompt
from warren.model.tool import McpServer, Tool
from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.blocking.process import Process

_PIECE: Final = 1024 * 1024
_LONGEST_WAIT_S: Final = 30.0


def load_agent(backend: Backend, config: AgentConfig) -> LoadedAgent:
    """Asks the server for an agent and for what it names. Raises InvalidRequest for a tool that Warren cannot run."""

    def find(kind: str, name: str) -> dict[str, Any]:
        return backend.call("get_registry_entry", kind=kind, entry=name)

    agent = Agent.of_shown(find("agents", config)) if isinstance(config, str) else Agent.inline(config)
    tools = []
    for tool in agent.tools:
        tools.append(check_tool(tool if isinstance(tool, Tool) else Tool.from_mapping(find("tools", tool))))
    name = agent.prompt.name if agent.prompt else ""
    prompt = Prompt.from_mapping(find("prompts", name)) if name else None
    return LoadedAgent(agent, tuple(tools), prompt)


def run_tool(client: SandboxClient, tool: Tool, arguments: Any, max_chars: int | None = None) -> CommandReport:
    """Runs a tool. Never raises: the report tells the model what is wrong with the arguments, or with the sandbox."""
    try:
        if tool.mcp is not None:
            return _call_server(client, tool, tool.mcp, tool.read_arguments(arguments), max_chars)
        wanted = tool.command_for(arguments)
    except WarrenError as exc:
        return CommandReport(describe_error(exc), EXIT_NOT_RUN)
    command = wanted.command if isinstance(wanted.command, str) else list(wanted.command)
    return run_command(client, command, tool.timeout_s, max_chars, env=wanted.env, carry_state=False)


def _call_server(
    client: SandboxClient, tool: Tool, server: McpServer, arguments: Mapping[str, Any], max_chars: int | None
) -> CommandReport:
    process, offset = _find_server(client, server)
    request_id = secrets.token_hex(8)
    params = {"name": server.tool or tool.name, "arguments": arguments}
    _send(process, {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})
    answer = _wait_for_answer(process, offset, request_id, tool.timeout_s)
    if answer is None:
        cancelled = {"requestId": request_id, "reason": "time-out"}
        _send(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        return CommandReport(f"[the tool {tool.name} gave no answer in {tool.timeout_s:g} s]", EXIT_TIMED_OUT)
    text, has_failed = read_answer(answer)
    shown, is_cut = shorten(text, max_chars)
    return CommandReport(shown, 1 if has_failed else 0, is_cut)


def _find_server(client: SandboxClient, server: McpServer) -> tuple[Process, int]:
    """Returns the server's process, which it starts if there is none, and where its next output begins."""
    name, argv = process_name(server), start_command(server)
    while True:
        try:
            return client.spawn(argv, name=name, env=dict(server.env), carry_state=False), 0
        except Conflict:
            process = client.process(name)
            info = process.info()
            if info.running:
                return process, info.bytes_total
            process.forget()


def _send(process: Process, message: Mapping[str, Any]) -> None:
    process.write(json.dumps(message) + "\n")


def _wait_for_answer(process: Process, offset: int, request_id: str, timeout_s: float) -> dict[str, Any] | None:
    """Returns the answer with this id; None if it did not come in time. Raises InvalidRequest if the server has ended
    or writes too much."""
    deadline, reader = time.monotonic() + timeout_s, AnswerReader(request_id, offset)
    while (left_s := deadline - time.monotonic()) > 0:
        wait_s = min(left_s, _LONGEST_WAIT_S)
        how = {"offset": offset, "limit": _PIECE, "encoding": "base64", "wait_s": wait_s}
        found = process._call("read_output", work_s=wait_s, **how)
        if (answer := reader.read(found)) is not None:
            return answer
        offset = found["next_offset"]
    return None
