"""Tools for LangGraph and LangChain agents: a shell and interpreters that remember, background commands, files.

`sandbox_tools` makes them. Each tool works in the sandbox of the thread that calls it, in blocking and in async graphs.
Errors of the sandbox are answers that the model can read; only a run without a thread id raises.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final, Literal, Unpack

from warren.integrations.extras import missing_package

try:
    from langchain.tools import ToolRuntime
    from langchain_core.tools import BaseTool, StructuredTool, ToolException
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "langchain") from None

from warren.integrations.agents import AgentConfig
from warren.integrations.aio import agents as async_agents
from warren.integrations.aio import tools as async_tools
from warren.integrations.blocking import agents, tools
from warren.integrations.connections import Connections
from warren.integrations.reports import CommandReport, describe_error
from warren.integrations.threads import ClientPair, ThreadClients, thread_id_from
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.tool import Tool
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions, ServerOptions

COMMAND_TIMEOUT_S: Final = 120
MAX_CHARS: Final = 30_000


def sandbox_tools(
    server_url: str = "",
    *,
    clients: ThreadClients | None = None,
    timeout: float = COMMAND_TIMEOUT_S,
    max_chars: int = MAX_CHARS,
    **options: Unpack[SandboxOptions],
) -> list[BaseTool]:
    """Returns the tools bash, run_code, bash_background, background_output, background_stop, read_file, write_file and
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
    """Returns the tools of an agent of the registry, after those of `sandbox_tools` unless `standard` is false.

    `agent` is the agent's name, or an agent as the registry has them; each thread gets a sandbox that is made for it.
    With `client` the tools work in that client's session instead, whatever the thread. This asks the server for the
    agent and what it names, once. A tool of the agent replaces a standard one of the same name.
    """
    pair_of, connections = _places(agent, server_url, client, clients, options)
    loaded = agents.load_agent(connections.blocking(), agent)
    usual = _standard_tools(pair_of, timeout, max_chars) if standard else []
    own = [_build_agent_tool(pair_of, tool, max_chars) for tool in loaded.tools]
    return [*(tool for tool in usual if tool.name not in {each.name for each in own}), *own]


def prompt_for(
    agent: AgentConfig,
    server_url: str = "",
    variables: Mapping[str, str] | None = None,
    **options: Unpack[ServerOptions],
) -> str:
    """Returns the prompt of an agent of the registry with these values for its variables; empty if it has none."""
    connections = Connections(options.get("mode", "remote"), server_url, options.get("api_key"))
    try:
        return agents.load_agent(connections.blocking(), agent).render_prompt(variables)
    finally:
        connections.close()


def _places(
    agent: AgentConfig,
    server_url: str,
    client: SandboxClient | AsyncSandboxClient | None,
    clients: ThreadClients | None,
    options: SandboxOptions,
) -> tuple["_PairOf", Connections]:
    """Returns how tools find their clients, and the connections: those of `client`, or of the thread that calls."""
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
    bounds = {"default_s": timeout, "max_chars": max_chars}
    cut = {"max_chars": max_chars}
    return [
        build(_BASH, _sign_bash, tools.bash, async_tools.bash, bounds),
        build(_CODE, _sign_code, tools.run_code, async_tools.run_code, bounds, "content_and_artifact"),
        build(_START, _sign_start, tools.bash_background, async_tools.bash_background, {}),
        build(_OUTPUT, _sign_output, tools.background_output, async_tools.background_output, cut),
        build(_STOP, _sign_stop, tools.background_stop, async_tools.background_stop, {}),
        build(_READ, _sign_read, tools.read_file, async_tools.read_file, cut),
        build(_WRITE, _sign_write, tools.write_file, async_tools.write_file, {}),
        build(_LIST, _sign_list, tools.list_files, async_tools.list_files, {}),
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
    """Returns a function that finds the clients of the thread that calls a tool."""
    return lambda runtime: threads.pair(_thread_id(runtime) if runtime else "")


class _AgentTool(BaseTool):
    """A tool of an agent. Its methods take only the arguments by name, so these may have any names."""

    entry: Any
    pair_of: Any
    max_chars: int

    def _run(self, /, **arguments: Any) -> str:
        report: CommandReport = self.pair_of(None).run(agents.run_tool, self.entry, arguments, self.max_chars)
        return report.to_text()

    async def _arun(self, /, **arguments: Any) -> str:
        pair: ClientPair = self.pair_of(None)
        return (await pair.arun(async_agents.run_tool, self.entry, arguments, self.max_chars)).to_text()


def _build_agent_tool(pair_of: _PairOf, tool: Tool, max_chars: int) -> BaseTool:
    described = {"name": tool.name, "description": tool.description or tool.name}
    schema = {"title": tool.name, "description": described["description"], **tool.parameters}
    return _AgentTool(**described, args_schema=schema, entry=tool, pair_of=pair_of, max_chars=max_chars)


def _build_tool(
    pair_of: _PairOf,
    words: tuple[str, str],
    signature: Callable[..., str],
    work: Callable[..., Any],
    async_work: Callable[..., Awaitable[Any]],
    fixed: Mapping[str, Any],
    gives: Literal["content", "content_and_artifact"] = "content",
) -> BaseTool:
    """`signature` shows the model the arguments; it is never called. `fixed` are further arguments of `work`."""
    name, description = words

    def run(runtime: ToolRuntime, **arguments: Any) -> Any:
        pair = pair_of(runtime)
        with _tool_errors():
            return pair.run(work, **fixed, **arguments)

    async def arun(runtime: ToolRuntime, **arguments: Any) -> Any:
        pair = pair_of(runtime)
        with _tool_errors():
            return await pair.arun(async_work, **fixed, **arguments)

    schema = StructuredTool.from_function(signature, name=name, description=description).args_schema
    return StructuredTool.from_function(
        run,
        arun,
        name=name,
        description=description,
        args_schema=schema,
        response_format=gives,
        handle_tool_error=True,
    )


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Makes an answer with the status `error` of an error of the sandbox."""
    try:
        yield
    except WarrenError as exc:
        raise ToolException(describe_error(exc)) from exc


def _thread_id(runtime: ToolRuntime) -> str:
    return thread_id_from(runtime.config.get("configurable"))


# -- the arguments, as the model sees them


def _sign_bash(command: _Line, timeout: Annotated[int | None, "seconds"] = None, *, runtime: ToolRuntime) -> str: ...  # type: ignore[empty-body]


def _sign_code(  # type: ignore[empty-body]
    code: str,
    language: Annotated[str, "python, javascript, typescript, bash, r or java"] = "python",
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
