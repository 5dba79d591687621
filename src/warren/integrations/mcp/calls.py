"""From a tool call to its result: finds the sandbox, does the work, and turns every failure into a result.

Results are short enough for a model's context, and errors are sentences that a model can act on. Nothing is repeated
by itself: a sandbox that was lost before the call is replaced, and the call goes on with a notice; one that is lost
during the call is replaced too, but the caller decides whether to call the tool again.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ImageContent, TextContent
from pydantic import Field

from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.model.errors import (
    FileNotFound,
    NoCapacity,
    ProcessNotFound,
    SandboxLost,
    ServerUnreachable,
    SessionEnded,
    SessionNotFound,
    Unauthorized,
    WarrenError,
)

Work = Callable[[Sandbox], Awaitable[CallToolResult]]
Call = Context[Any, Any]

MAX_CHARACTERS: Final = 30_000
_HEAD_CHARACTERS: Final = 20_000

SandboxName = Annotated[
    str,
    Field(
        description="Which sandbox: any name you choose. The same name is the same sandbox in every later call, a new "
        "name is a new, empty one. Leave it out for the usual sandbox.",
        max_length=255,
    ),
]

_ADVICE: Final[tuple[tuple[type[WarrenError], str], ...]] = (
    (ServerUnreachable, "The sandbox server cannot be used right now; tell the user, a retry helps once it runs."),
    (Unauthorized, "The sandbox server did not accept the key; tell the user to check WARREN_API_KEY."),
    (NoCapacity, "All sandboxes are taken; try again in a minute."),
    (FileNotFound, "Use list_files to see what there is; relative paths start in /workspace."),
    (ProcessNotFound, "Use sandbox_info to see the background commands there are."),
)


async def run_tool(sandboxes: Sandboxes, call: Call, name: str, work: Work) -> CallToolResult:
    """Runs `work` in the sandbox that the call means."""
    try:
        thread_id = sandboxes.thread_of(name, call.headers)
        sandbox = await sandboxes.open(thread_id)
    except WarrenError as exc:
        return error_result(exc)
    return _add_notice(await _run_work(sandboxes, sandbox, work), sandbox.notice)


async def _run_work(sandboxes: Sandboxes, sandbox: Sandbox, work: Work) -> CallToolResult:
    try:
        return await work(sandbox)
    except (SandboxLost, SessionEnded, SessionNotFound) as exc:
        return await _replace_sandbox(sandboxes, sandbox.thread_id, exc)
    except WarrenError as exc:
        return error_result(exc)


async def _replace_sandbox(sandboxes: Sandboxes, thread_id: str, lost: WarrenError) -> CallToolResult:
    try:
        await sandboxes.open(thread_id)
    except WarrenError as exc:
        return error_result(exc)
    return text_result(
        f"The sandbox was lost while this ran: {lost.message}. A fresh one has taken its place: files, variables and "
        "background commands of the earlier one are gone. Nothing was run again; call the tool once more if you still "
        "want it.",
        failed=True,
    )


async def reset_sandbox(sandboxes: Sandboxes, call: Call, name: str) -> CallToolResult:
    try:
        await sandboxes.reset(sandboxes.thread_of(name, call.headers))
    except WarrenError as exc:
        return error_result(exc)
    return text_result("This is a fresh sandbox now; the earlier one and everything in it is gone.")


# -- results


def text_result(*texts: str, failed: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text) for text in texts if text], is_error=failed)


def image_result(data: bytes, mime_type: str, note: str) -> CallToolResult:
    image = ImageContent(data=base64.b64encode(data).decode(), mime_type=mime_type)
    return CallToolResult(content=[image, TextContent(text=note)])


def error_result(exc: WarrenError) -> CallToolResult:
    """The error, its remedy, and what a model can do about it."""
    advice = next((text for kind, text in _ADVICE if isinstance(exc, kind)), "")
    parts = [_sentence(part) for part in (exc.message, exc.remedy, advice) if part]
    return text_result(" ".join(parts), failed=True)


def _add_notice(result: CallToolResult, notice: str) -> CallToolResult:
    if not notice:
        return result
    return result.model_copy(update={"content": [TextContent(text=notice), *result.content]})


def shorten(text: str, hint: str) -> str:
    """Cuts the middle out of a text that is too long; `hint` says how to get at the rest."""
    if len(text) <= MAX_CHARACTERS:
        return text
    tail = MAX_CHARACTERS - _HEAD_CHARACTERS
    left_out = len(text) - MAX_CHARACTERS
    return f"{text[:_HEAD_CHARACTERS]}\n\n[… {left_out} characters left out here; {hint} …]\n\n{text[-tail:]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")
