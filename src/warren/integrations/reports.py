"""What a model reads of a command or of code that ran, and of the errors of a sandbox. No I/O.

`blocking/commands.py` and `aio/commands.py` run them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warren.integrations.file_preview import MAX_IMAGE_BYTES, image_type
from warren.model.errors import InvalidRequest, SandboxLost, SessionEnded, SessionNotFound, WarrenError
from warren.sdk.code_results import Execution, OutputMessage, Result
from warren.sdk.results import ExecuteResult

EXIT_TIMED_OUT: Final = 124
EXIT_NOT_RUN: Final = 125
_MAX_PICTURES: Final = 8
_ALL_PICTURES_BYTES: Final = 8_000_000
_TEXTS: Final = ("text", "markdown", "latex", "json", "html")


@dataclass(frozen=True, slots=True)
class CommandReport:
    """How a command ended. `exit_code` is 124 if it took too long, and 125 if there was no sandbox to run it in."""

    text: str
    exit_code: int
    truncated: bool = False

    def to_text(self) -> str:
        """Returns the output, and the exit code on a line of its own."""
        return f"{self.text.rstrip()}\n[exit code {self.exit_code}]".lstrip("\n")


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


def describe_error(exc: WarrenError) -> str:
    """Returns an error as the model should read it."""
    text = f"[sandbox: {exc}]"
    if isinstance(exc, SandboxLost | SessionEnded | SessionNotFound):
        text += "\n[Its files and processes are gone. The next command begins in a fresh sandbox.]"
    return text


def describe_command(result: ExecuteResult, limit_s: float, max_chars: int | None) -> CommandReport:
    output, is_cut = shorten(result.output, max_chars)
    notice = f"[{result.notice}]\n" if result.notice else ""
    exit_code, ending = _end_of_command(result, limit_s)
    return CommandReport(notice + output + ending, exit_code, result.truncated or is_cut)


def _end_of_command(result: ExecuteResult, limit_s: float) -> tuple[int, str]:
    if result.reason == "timeout":
        remedy = "Give it a longer timeout, or run it in the background."
        return EXIT_TIMED_OUT, f"\n[The command was stopped after {limit_s:g} seconds. {remedy}]"
    if result.reason == "oom":
        return result.exit_code, "\n[The command was stopped: the sandbox ran out of memory.]"
    if result.reason == "sandbox_lost":
        return EXIT_NOT_RUN, "\n[The sandbox was lost while the command ran; its files are gone.]"
    if result.reason == "cancelled":
        return result.exit_code, "\n[The command was cancelled.]"
    return result.exit_code, ""


def shorten(text: str, max_chars: int | None) -> tuple[str, bool]:
    """Cuts the middle out of a long text: what a model needs of it is at both ends. Returns whether it was cut."""
    if max_chars is None or len(text) <= max_chars:
        return text, False
    half = max_chars // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[-half:]}", True


# -- code


def describe_code(
    execution: Execution, shown: Sequence[OutputMessage | Result], timeout_s: float, max_chars: int
) -> CodeReport:
    """Makes a report of what the code wrote and showed. Raises SandboxLost if the sandbox died meanwhile."""
    if execution.reason == "sandbox_lost":
        raise SandboxLost("the sandbox died while the code ran")
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
    ending = _end_of_code(execution, timeout_s)
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
    """Returns None for a picture that models do not take. What the sandbox calls a picture may be none."""
    name = "png" if result.png is not None else "jpeg"
    try:
        data = result.to_bytes(name)
    except InvalidRequest:
        return None
    mime_type = image_type(data[:16])
    return Picture(mime_type, data) if mime_type else None


def _has_room(pictures: Sequence[Picture], picture: Picture) -> bool:
    left = _ALL_PICTURES_BYTES - sum(len(each.data) for each in pictures)
    return len(pictures) < _MAX_PICTURES and len(picture.data) <= min(MAX_IMAGE_BYTES, left)


def _end_of_code(execution: Execution, timeout_s: float) -> str:
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
