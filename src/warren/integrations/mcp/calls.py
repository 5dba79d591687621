"""From a tool call to its result: finds the sandbox, does the work, and turns every failure into a result.

Results are short enough for a model's context, and errors are sentences that a model can act on. Nothing is repeated
by itself: a sandbox that was lost before the call is replaced, and the call goes on with a notice; one that is lost
during the call is replaced too, but the caller decides whether to call the tool again.
"""

import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

from warren.integrations.mcp.sandboxes import Sandboxes, ToolSandbox
from warren.integrations.mcp.tools import ToolAnswer, ToolCall, about
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

Data = TypeVar("Data")
Work = Callable[[ToolSandbox], Awaitable[ToolAnswer[Data]]]

MAX_CHARACTERS: Final = 30_000
_HEAD_CHARACTERS: Final = 20_000

SandboxName = Annotated[
    str,
    about(
        "Which sandbox: any name you choose. The same name is the same sandbox in every later call, a new name is a "
        "new, empty one. Leave it out for the usual sandbox.",
        maxLength=255,
    ),
]

_ADVICE: Final[tuple[tuple[type[WarrenError], str], ...]] = (
    (ServerUnreachable, "The sandbox server cannot be used right now; tell the user, a retry helps once it runs."),
    (Unauthorized, "The sandbox server did not accept the key; tell the user to check WARREN_API_KEY."),
    (NoCapacity, "All sandboxes are taken; try again in a minute."),
    (FileNotFound, "Use list_files to see what there is; relative paths start in /workspace."),
    (ProcessNotFound, "Use sandbox_info to see the background commands there are."),
)


async def run_tool(sandboxes: Sandboxes, call: ToolCall, name: str, work: Work[Data]) -> ToolAnswer[Data]:
    """Runs `work` in the sandbox that the call names. Every failure becomes an answer."""
    try:
        thread_id = sandboxes.thread_of(name, call.headers)
        sandbox = await sandboxes.open(thread_id)
    except WarrenError as exc:
        return error_result(exc)
    return _add_notice(await _run_work(sandboxes, sandbox, work), sandbox.notice)


async def _run_work(sandboxes: Sandboxes, sandbox: ToolSandbox, work: Work[Data]) -> ToolAnswer[Data]:
    try:
        return await work(sandbox)
    except (SandboxLost, SessionEnded, SessionNotFound) as exc:
        return await _replace_sandbox(sandboxes, sandbox.thread_id, exc)
    except WarrenError as exc:
        return error_result(exc)


async def _replace_sandbox(sandboxes: Sandboxes, thread_id: str, lost: WarrenError) -> ToolAnswer[Any]:
    try:
        await sandboxes.open(thread_id)
    except WarrenError as exc:
        return error_result(exc)
    return text_result(
        f"The sandbox was lost while this ran: {lost.message}. A fresh one has taken its place: files, variables and "
        "background commands of the earlier one are gone. Nothing was run again; call the tool once more if you still "
        "want it.",
        data=None,
        failed=True,
    )


# -- results


def text_result(*texts: str, data: Data, failed: bool = False) -> ToolAnswer[Data]:
    return ToolAnswer(tuple(_text(text) for text in texts if text), data, failed)


def image_result(image: bytes, mime_type: str, note: str) -> ToolAnswer[None]:
    return ToolAnswer((image_content(image, mime_type), _text(note)))


def image_content(image: bytes, mime_type: str) -> dict[str, str]:
    return {"type": "image", "data": base64.b64encode(image).decode(), "mimeType": mime_type}


def error_result(exc: WarrenError) -> ToolAnswer[Any]:
    """Returns an answer with the error, its remedy, and what a model can do about it."""
    advice = next((text for kind, text in _ADVICE if isinstance(exc, kind)), "")
    parts = [_sentence(part) for part in (exc.message, exc.remedy, advice) if part]
    return text_result(" ".join(parts), data=None, failed=True)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _add_notice(answer: ToolAnswer[Any], notice: str) -> ToolAnswer[Any]:
    if not notice:
        return answer
    data = answer.data and {"notice": notice, **answer.data}
    return replace(answer, content=(_text(notice), *answer.content), data=data)


def shorten(text: str, hint: str) -> str:
    """Cuts the middle out of a text that is too long; `hint` says how to get at the rest."""
    if len(text) <= MAX_CHARACTERS:
        return text
    tail = MAX_CHARACTERS - _HEAD_CHARACTERS
    left_out = len(text) - MAX_CHARACTERS
    return f"{text[:_HEAD_CHARACTERS]}\n\n[… {left_out} characters left out here; {hint} …]\n\n{text[-tail:]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")
