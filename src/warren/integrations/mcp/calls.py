"""From a tool call to its answer: finds the sandbox, does the work, and turns every failure into a result.

Nothing is repeated by itself: a sandbox that was lost before the call is replaced and the call goes on with a notice;
one that is lost during the call is replaced too, but whether to run the call again is for the caller to say.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from warren.integrations.mcp.answers import noticed, problem, told
from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.model.errors import SandboxLost, SessionEnded, SessionNotFound, WarrenError

Work = Callable[[Sandbox], Awaitable[CallToolResult]]
Call = Context[Any, Any]

SandboxName = Annotated[
    str,
    Field(
        description="Which sandbox: any name you choose. The same name is the same sandbox in every later call, a new "
        "name is a new, empty one. Leave it out for the usual sandbox.",
        max_length=255,
    ),
]


async def answer(sandboxes: Sandboxes, call: Call, named: str, work: Work) -> CallToolResult:
    try:
        thread_id = sandboxes.thread_of(named, call.headers)
        sandbox = await sandboxes.open(thread_id)
    except WarrenError as exc:
        return problem(exc)
    return noticed(await _done(sandboxes, sandbox, work), sandbox.notice)


async def _done(sandboxes: Sandboxes, sandbox: Sandbox, work: Work) -> CallToolResult:
    try:
        return await work(sandbox)
    except (SandboxLost, SessionEnded, SessionNotFound) as exc:
        return await _replaced(sandboxes, sandbox.thread_id, exc)
    except WarrenError as exc:
        return problem(exc)


async def _replaced(sandboxes: Sandboxes, thread_id: str, lost: WarrenError) -> CallToolResult:
    try:
        await sandboxes.open(thread_id)
    except WarrenError as exc:
        return problem(exc)
    return told(
        f"The sandbox was lost while this ran: {lost.message}. A fresh one has taken its place: files, variables and "
        "background commands of the earlier one are gone. Nothing was run again; call the tool once more if you still "
        "want it.",
        failed=True,
    )


async def reset(sandboxes: Sandboxes, call: Call, named: str) -> CallToolResult:
    try:
        await sandboxes.reset(sandboxes.thread_of(named, call.headers))
    except WarrenError as exc:
        return problem(exc)
    return told("This is a fresh sandbox now; the earlier one and everything in it is gone.")
