"""Code in an interpreter of the sandbox, for the tools of agents: what a model reads of it, and its pictures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warren.integrations.mcp.file_preview import MAX_IMAGE_BYTES, image_type
from warren.integrations.plans import Plan, call, shorten
from warren.model.errors import InvalidRequest, SandboxLost
from warren.sdk.code_results import Execution, OutputMessage, Result

_MOST_PICTURES: Final = 8
_ALL_PICTURES_BYTES: Final = 8_000_000
_TEXTS: Final = ("text", "markdown", "latex", "json", "html")


@dataclass(frozen=True, slots=True)
class Picture:
    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CodeReport:
    """`text` has all that the code wrote and showed, in order, and how it ended; a picture is a note in it."""

    text: str
    pictures: tuple[Picture, ...]
    execution: Execution


def run_code(code: str, language: str, timeout_s: float, max_chars: int) -> Plan[CodeReport]:
    """Raises what the client raises, and SandboxLost if the sandbox died meanwhile."""
    shown: list[OutputMessage | Result] = []
    take = shown.append
    execution: Execution = yield from call(
        "run_code", code, language, timeout=timeout_s, on_stdout=take, on_stderr=take, on_result=take
    )
    if execution.reason == "sandbox_lost":
        raise SandboxLost("the sandbox died while the code ran")
    return describe(execution, shown, timeout_s, max_chars)


def describe(
    execution: Execution, shown: Sequence[OutputMessage | Result], timeout_s: float, max_chars: int
) -> CodeReport:
    texts: list[str] = []
    pictures: list[Picture] = []
    for each in shown:
        if isinstance(each, OutputMessage):
            texts.append(str(each))
        elif not each.is_picture:
            texts.append(_on_lines(_text_of(each), texts))
        elif (picture := _picture(each)) is not None and _has_room(pictures, picture):
            pictures.append(picture)
            texts.append(_on_lines(f"[picture {len(pictures)}]", texts))
        else:
            texts.append(_on_lines("[a picture that is too large to be shown, or of a kind that is not]", texts))
    ending = _describe_end(execution, timeout_s)
    text = "\n".join(part for part in ("".join(texts).rstrip(), ending) if part)
    return CodeReport(shorten(text, max_chars)[0], tuple(pictures), execution)


def _on_lines(text: str, before: Sequence[str]) -> str:
    begin = "\n" if before and not before[-1].endswith("\n") else ""
    return f"{begin}{text}\n"


def _text_of(result: Result) -> str:
    for name in _TEXTS:
        if (value := result[name]) is not None:
            return value if isinstance(value, str) else json.dumps(value)
    return f"[a value as {', '.join(result.formats()) or 'nothing'}]"


def _picture(result: Result) -> Picture | None:
    """None for a picture that models do not take. What the sandbox calls a picture may be none."""
    name = "png" if result.png is not None else "jpeg"
    try:
        data = result.to_bytes(name)
    except InvalidRequest:
        return None
    mime_type = image_type(data[:16])
    return Picture(mime_type, data) if mime_type else None


def _has_room(pictures: Sequence[Picture], picture: Picture) -> bool:
    left = _ALL_PICTURES_BYTES - sum(len(each.data) for each in pictures)
    return len(pictures) < _MOST_PICTURES and len(picture.data) <= min(MAX_IMAGE_BYTES, left)


def _describe_end(execution: Execution, timeout_s: float) -> str:
    notes = []
    if execution.reason == "timeout":
        notes.append(f"[The code was interrupted after {timeout_s:g} seconds, its time-out.]")
    elif execution.error is not None:
        notes.append(execution.error.traceback.rstrip() or str(execution.error))
    if execution.context_lost:
        why = {"oom": "it ran out of memory", "killed": "it was killed"}.get(execution.context_lost, "it ended")
        notes.append(f"[The interpreter is gone: {why}. Its variables are lost; the next call starts a fresh one.]")
    if execution.truncated:
        notes.append("[Some output is missing: there was more than is kept.]")
    return "\n".join(notes)
