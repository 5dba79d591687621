"""How a command ended, in words a model can read. Nothing here raises: a run goes on, whatever happened."""

from dataclasses import dataclass
from typing import Final

from warren.integrations.steps import Plan, call
from warren.model.errors import SandboxLost, SessionEnded, SessionNotFound, WarrenError
from warren.sdk.results import ExecuteResult

TIMED_OUT: Final = 124
NOT_RUN: Final = 125
LONGEST_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """`exit_code` is 124 when the command took too long, and 125 when there was no sandbox to run it in."""

    text: str
    exit_code: int
    truncated: bool = False


def run_command(command: str, timeout_s: float, *, max_chars: int | None = None) -> Plan[ToolAnswer]:
    """Runs a line for bash. A time-out of 0 means: as long as the server allows."""
    limit_s = timeout_s if timeout_s > 0 else LONGEST_S
    try:
        result: ExecuteResult = yield from call("execute", command, limit_s)
    except WarrenError as exc:
        return ToolAnswer(said(exc), NOT_RUN)
    return _answer(result, limit_s, max_chars)


def said(exc: WarrenError) -> str:
    """An error as the model should read it."""
    text = f"[sandbox: {exc}]"
    if isinstance(exc, SandboxLost | SessionEnded | SessionNotFound):
        text += "\n[Its files and processes are gone. The next command begins in a fresh sandbox.]"
    return text


def _answer(result: ExecuteResult, limit_s: float, max_chars: int | None) -> ToolAnswer:
    output, cut = shortened(result.output, max_chars)
    notes = [f"[{result.notice}]\n"] if result.notice else []
    code, ending = _ending(result, limit_s)
    return ToolAnswer("".join(notes) + output + ending, code, result.truncated or cut)


def _ending(result: ExecuteResult, limit_s: float) -> tuple[int, str]:
    if result.reason == "timeout":
        remedy = "Give it a longer timeout, or run it in the background."
        return TIMED_OUT, f"\n[The command was stopped after {limit_s:g} seconds. {remedy}]"
    if result.reason == "oom":
        return result.exit_code, "\n[The command was stopped: the sandbox ran out of memory.]"
    if result.reason == "sandbox_lost":
        return NOT_RUN, "\n[The sandbox was lost while the command ran; its files are gone.]"
    if result.reason == "cancelled":
        return result.exit_code, "\n[The command was cancelled.]"
    return result.exit_code, ""


def shortened(text: str, max_chars: int | None) -> tuple[str, bool]:
    """Head and tail: what a model needs of a long output is at both ends."""
    if max_chars is None or len(text) <= max_chars:
        return text, False
    half = max_chars // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[-half:]}", True
