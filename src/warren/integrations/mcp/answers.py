"""What a tool answers: short enough for a model's context, and errors as sentences it can act on."""

import base64
from typing import Final

from mcp.types import CallToolResult, ImageContent, TextContent

from warren.model.errors import FileNotFound, NoCapacity, ProcessNotFound, ServerUnreachable, Unauthorized, WarrenError

MAX_CHARACTERS: Final = 30_000
_HEAD: Final = 20_000

_ADVICE: Final[tuple[tuple[type[WarrenError], str], ...]] = (
    (ServerUnreachable, "The sandbox server cannot be used right now; tell the user, a retry helps once it runs."),
    (Unauthorized, "The sandbox server did not accept the key; tell the user to check WARREN_API_KEY."),
    (NoCapacity, "All sandboxes are taken; try again in a minute."),
    (FileNotFound, "Use list_files to see what there is; relative paths start in /workspace."),
    (ProcessNotFound, "Use sandbox_info to see the background commands there are."),
)


def told(*texts: str, failed: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text) for text in texts if text], is_error=failed)


def shown(data: bytes, mime_type: str, note: str) -> CallToolResult:
    image = ImageContent(data=base64.b64encode(data).decode(), mime_type=mime_type)
    return CallToolResult(content=[image, TextContent(text=note)])


def problem(exc: WarrenError) -> CallToolResult:
    """The error, its remedy, and what a model can do about it."""
    advice = next((text for kind, text in _ADVICE if isinstance(exc, kind)), "")
    parts = [_sentence(part) for part in (exc.message, exc.remedy, advice) if part]
    return told(" ".join(parts), failed=True)


def noticed(answer: CallToolResult, notice: str) -> CallToolResult:
    if not notice:
        return answer
    return answer.model_copy(update={"content": [TextContent(text=notice), *answer.content]})


def shortened(text: str, where: str) -> str:
    """Beginning and end of a text that is too long; `where` says how to get at the rest."""
    if len(text) <= MAX_CHARACTERS:
        return text
    tail = MAX_CHARACTERS - _HEAD
    left_out = len(text) - MAX_CHARACTERS
    return f"{text[:_HEAD]}\n\n[… {left_out} characters left out here; {where} …]\n\n{text[-tail:]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")
