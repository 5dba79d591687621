"""Tools for LangGraph and LangChain agents: a shell and interpreters that remember, background commands, files.

`sandbox_tools` makes them. Each tool works in the sandbox of the thread that calls it, in blocking and in async graphs.
Errors of the sandbox are answers that the model can read; only a run without a thread id raises.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, Unpack

from warren.integrations.extras import missing_package

try:
    from langchain.tools import ToolRuntime
    from langchain_core.tools import BaseTool, StructuredTool
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "langchain") from None

from warren.integrations.agent_entries import AgentConfig, load_agent
from warren.integrations.agent_tools import run_tool
from warren.integrations.code_reports import run_code
from warren.integrations.plans import LONGEST_S, Plan, call, call_on, describe_error, run_command, shorten
from warren.integrations.threads import ClientPair, Connections, ThreadClients, thread_id_from
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.tool import Tool
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions, ServerOptions
from warren.sdk.results import ExecuteResult, FileEntry, ProcessInfo

COMMAND_TIMEOUT_S: Final = 120
MAX_CHARS: Final = 30_000
LONGEST_WAIT_S: Final = 60
_MOST_ENTRIES: Final = 500


def sandbox_tools(
    server_url: str = "",
    *,
    clients: ThreadClients | None = None,
    timeout: float = COMMAND_TIMEOUT_S,
    max_chars: int = MAX_CHARS,
    **options: Unpack[SandboxOptions],
) -> list[BaseTool]:
    """The tools bash, run_code, bash_background, background_output, background_stop, read_file, write_file and
    list_files. The artifact of run_code's messages is the execution as the API has it, with the pictures it showed.

    `options` are those of SandboxClient (environment, limits, api_key, mode …). `timeout` is for commands without one.
    `max_chars` is how much of an output the model sees. No request is sent before a tool is used.
    """
    threads = clients or ThreadClients(server_url, **options)
    return _standard_tools(_pairs_of(threads), timeout, max_chars)


def tools_for(
    agent: AgentConfig,
    server_url: str = "",
    *,
    client: SandboxClient | AsyncSandboxClient | None = None,
    clients: ThreadClients | None = None,
    standard: bool = True,
    timeout: float = COMMAND_TIMEOUT_S,
    max_chars: int = MAX_CHARS,
    **options: Unpack[SandboxOptions],
) -> list[BaseTool]:
    """The tools of an agent of the registry, behind those of `sandbox_tools` unless `standard` is false.

    `agent` is the agent's name, or an agent as the registry has them; each thread gets a sandbox that is made for it.
    With `client` the tools work in that client's session instead, whatever the thread. This asks the server for the
    agent and what it names, once. A tool of the agent replaces a standard one of the same name.
    """
    pair_of, connections = _places(agent, server_url, client, clients, options)
    loaded = load_agent(agent, connections.registry_entry)
    tools = _standard_tools(pair_of, timeout, max_chars) if standard else []
    own = [_build_agent_tool(pair_of, tool, max_chars) for tool in loaded.tools]
    return [*(tool for tool in tools if tool.name not in {each.name for each in own}), *own]


def prompt_for(
    agent: AgentConfig,
    server_url: str = "",
    variables: Mapping[str, str] | None = None,
    **options: Unpack[ServerOptions],
) -> str:
    """The prompt of an agent of the registry, with these values for its variables; empty if it has none."""
    connections = Connections(options.get("mode", "remote"), server_url, options.get("api_key", ""))
    try:
        return load_agent(agent, connections.registry_entry).render_prompt(variables)
    finally:
        connections.close()


def _places(
    agent: AgentConfig,
    server_url: str,
    client: SandboxClient | AsyncSandboxClient | None,
    clients: ThreadClients | None,
    options: SandboxOptions,
) -> tuple["_PairOf", Connections]:
    """Where the tools work: the session of a client, or that of the thread that calls them."""
    if client is not None:
        if clients is not None or options or server_url:
            raise InvalidRequest("tools_for takes a client, or what makes sessions; not both")
        only = ClientPair.of(client)
        return lambda runtime: only, only.connections
    if clients is None:
        made_for: SandboxOptions = {"agent_config": agent, **options}
        clients = ThreadClients(server_url, **made_for)
    return _pairs_of(clients), clients.connections


def _standard_tools(pair_of: "_PairOf", timeout: float, max_chars: int) -> list[BaseTool]:
    build = partial(_build_tool, pair_of)
    return [
        build(partial(_bash, timeout, max_chars), _sign_bash, _BASH),
        build(partial(_code, timeout, max_chars), _sign_code, _CODE, "content_and_artifact"),
        build(_start, _sign_start, _START),
        build(partial(_output, max_chars), _sign_output, _OUTPUT),
        build(_stop, _sign_stop, _STOP),
        build(partial(_read, max_chars), _sign_read, _READ),
        build(_write, _sign_write, _WRITE),
        build(_list, _sign_list, _LIST),
    ]


_BASH: Final = (
    "bash",
    "Runs a command line in the sandbox and gives its output and exit code. cd and export last to the next call.",
)
_CODE: Final = (
    "run_code",
    "Runs code in an interpreter of the sandbox that keeps its variables and imports for the next call. Gives what it "
    "wrote, the value of its last expression, or its traceback. Good for data analysis, step by step.",
)
_START: Final = (
    "bash_background",
    "Starts a command in the background of the sandbox, such as a server; gives its id.",
)
_OUTPUT: Final = ("background_output", "What a background command has said so far, and whether it still runs.")
_STOP: Final = ("background_stop", "Ends a background command and everything it started.")
_READ: Final = ("read_file", "Reads a text file of the sandbox.")
_WRITE: Final = ("write_file", "Writes a file in the sandbox, whole; directories on the way are made.")
_LIST: Final = ("list_files", "Lists a directory of the sandbox.")

_Line = Annotated[str, "a line for bash"]
_Id = Annotated[str, "what bash_background gave"]
_Path = Annotated[str, "absolute, or relative to /workspace"]


_PairOf = Callable[[ToolRuntime | None], ClientPair]


def _pairs_of(threads: ThreadClients) -> _PairOf:
    """The clients of the thread that a tool is called in; of the running one if the tool does not know."""
    return lambda runtime: threads.pair(_thread_id(runtime) if runtime else "")


class _AgentTool(BaseTool):
    """A tool of an agent. Its functions take nothing but the arguments, so these may have any names."""

    entry: Any
    pair_of: Any
    max_chars: int

    def _run(self, /, **arguments: Any) -> str:
        found: str = self.pair_of(None).run(_run_agent_tool(self.entry, arguments, self.max_chars))
        return found

    async def _arun(self, /, **arguments: Any) -> str:
        found: str = await self.pair_of(None).arun(_run_agent_tool(self.entry, arguments, self.max_chars))
        return found


def _build_agent_tool(pair_of: _PairOf, tool: Tool, max_chars: int) -> BaseTool:
    described = {"name": tool.name, "description": tool.description or tool.name}
    schema = {"title": tool.name, "description": described["description"], **tool.parameters}
    return _AgentTool(**described, args_schema=schema, entry=tool, pair_of=pair_of, max_chars=max_chars)


def _run_agent_tool(tool: Tool, arguments: dict[str, Any], max_chars: int) -> Plan[str]:
    report = yield from run_tool(tool, arguments, max_chars)
    return f"{report.text.rstrip()}\n[exit code {report.exit_code}]".lstrip("\n")


def _build_tool(
    pair_of: _PairOf,
    plan: Callable[..., Plan[Any]],
    signature: Callable[..., str],
    words: tuple[str, str],
    gives: Literal["content", "content_and_artifact"] = "content",
) -> BaseTool:
    """`signature` shows the model the arguments; it is never called."""
    name, description = words

    def run(runtime: ToolRuntime, **arguments: Any) -> Any:
        return pair_of(runtime).run(plan(**arguments))

    async def arun(runtime: ToolRuntime, **arguments: Any) -> Any:
        return await pair_of(runtime).arun(plan(**arguments))

    schema = StructuredTool.from_function(signature, name=name, description=description).args_schema
    return StructuredTool.from_function(
        run, arun, name=name, description=description, args_schema=schema, response_format=gives
    )


def _thread_id(runtime: ToolRuntime) -> str:
    return thread_id_from(runtime.config.get("configurable"))


# -- the arguments, as the model sees them


def _sign_bash(command: _Line, timeout: Annotated[int | None, "seconds"] = None, *, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


def _sign_code(  # type: ignore[empty-body]
    code: str,
    language: Annotated[str, "python, javascript, bash or r"] = "python",
    timeout: Annotated[int | None, "seconds"] = None,
    *,
    runtime: ToolRuntime,
) -> str: ...


def _sign_start(command: _Line, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


def _sign_output(  # type: ignore[empty-body]
    process_id: _Id, wait_s: Annotated[int, "wait so long for its end, at most 60"] = 0, *, runtime: ToolRuntime
) -> str: ...


def _sign_stop(process_id: _Id, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


def _sign_read(path: _Path, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


def _sign_write(path: _Path, content: str, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


def _sign_list(path: _Path = "/workspace", *, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


# -- the plans of the tools


def _bash(default_s: float, max_chars: int, command: str, timeout: float | None = None) -> Plan[str]:
    limit_s = default_s if timeout is None else timeout
    report = yield from run_command(command, limit_s, max_chars=max_chars)
    return f"{report.text.rstrip()}\n[exit code {report.exit_code}]".lstrip("\n")


def _code(
    default_s: float, max_chars: int, code: str, language: str = "python", timeout: float | None = None
) -> Plan[tuple[str, dict[str, Any] | None]]:
    limit_s = default_s if timeout is None else timeout
    try:
        report = yield from run_code(code, language, limit_s if limit_s > 0 else LONGEST_S, max_chars)
    except WarrenError as exc:
        return describe_error(exc), None
    notice = f"[{report.execution.notice}]\n" if report.execution.notice else ""
    return notice + (report.text or "[no output]"), json.loads(report.execution.to_json())


def _start(command: str) -> Plan[str]:
    try:
        process = yield from call("spawn", command, name=f"bg-{secrets.token_hex(3)}")
    except WarrenError as exc:
        return describe_error(exc)
    return f"started in the background as {process.id}"


def _output(max_chars: int, process_id: str, wait_s: float = 0) -> Plan[str]:
    try:
        process = yield from call("process", process_id)
        if wait_s > 0:
            yield from _wait(process, min(wait_s, LONGEST_WAIT_S))
        text: str = yield from call_on(process, "output")
        info: ProcessInfo = yield from call_on(process, "info")
    except WarrenError as exc:
        return describe_error(exc)
    state = "still running" if info.running else f"exit code {info.exit_code}"
    return f"{shorten(text, max_chars)[0].rstrip()}\n[{state}]".lstrip("\n")


def _wait(process: Any, wait_s: float) -> Plan[None]:
    try:
        yield from call_on(process, "wait", wait_s)
    except TimeoutError:
        return


def _stop(process_id: str) -> Plan[str]:
    try:
        process = yield from call("process", process_id)
        result: ExecuteResult = yield from call_on(process, "kill")
    except WarrenError as exc:
        return describe_error(exc)
    return f"{process_id} has ended, exit code {result.exit_code}"


def _read(max_chars: int, path: str) -> Plan[str]:
    try:
        data: bytes = yield from call("read_file", path)
    except WarrenError as exc:
        return describe_error(exc)
    if b"\0" in data[:8192]:
        return f"[{path} is not a text file: {len(data)} bytes]"
    return shorten(data.decode(errors="replace"), max_chars)[0] or f"[{path} is empty]"


def _write(path: str, content: str) -> Plan[str]:
    try:
        entry: FileEntry = yield from call("write_file", path, content)
    except WarrenError as exc:
        return describe_error(exc)
    return f"wrote {entry.size} bytes to {entry.path}"


def _list(path: str = "/workspace") -> Plan[str]:
    try:
        found: list[FileEntry] = yield from call("list_files", path)
    except WarrenError as exc:
        return describe_error(exc)
    lines = [f"{each.name}/" if each.is_dir else f"{each.name} ({each.size} bytes)" for each in found[:_MOST_ENTRIES]]
    rest = [f"[and {len(found) - _MOST_ENTRIES} more]"] if len(found) > _MOST_ENTRIES else []
    return "\n".join([*lines, *rest]) or f"[{path} is empty]"
