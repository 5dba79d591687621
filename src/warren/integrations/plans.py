"""Work on a sandbox, written once for the blocking and for the async client.

A plan is a generator: it yields the calls it needs (`Call`) and is sent their results, or thrown their errors. `run`
makes the calls with the blocking client, `arun` with the async one; the plan cannot tell which. Of a method that yields
its results one by one, the plan gets the list.

`run_command` is the plan behind every shell tool. It describes how a command ended in words that a model can read, and
never raises: the agent's run goes on, whatever happened.
"""

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, Unpack

from warren.model.errors import SandboxLost, SessionEnded, SessionNotFound, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import CommandOptions
from warren.sdk.results import ExecuteResult

T = TypeVar("T")

EXIT_TIMED_OUT: Final = 124
EXIT_NOT_RUN: Final = 125
LONGEST_S: Final = 24 * 3600.0


class Call(NamedTuple):
    """A call of a method of the client, or of `target`, which an earlier call returned."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    target: Any = None


Plan = Generator[Call, Any, T]


def call(method: str, *args: Any, **options: Any) -> Generator[Call, Any, Any]:
    """`data = yield from call("read_file", path)`"""
    return (yield Call(method, args, options))


def call_on(target: Any, method: str, *args: Any, **options: Any) -> Generator[Call, Any, Any]:
    """`text = yield from call_on(process, "output")`"""
    return (yield Call(method, args, options, target))


def run(client: SandboxClient, plan: Plan[T]) -> T:
    try:
        step = next(plan)
        while True:
            try:
                result = _find_method(client, step)(*step.args, **step.options)
                if isinstance(result, Generator):
                    result = list(result)
            except (WarrenError, TimeoutError) as exc:
                step = plan.throw(exc)
            else:
                step = plan.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def arun(client: AsyncSandboxClient, plan: Plan[T]) -> T:
    try:
        step = next(plan)
        while True:
            try:
                result = _find_method(client, step)(*step.args, **step.options)
                result = [each async for each in result] if isinstance(result, AsyncGenerator) else await result
            except (WarrenError, TimeoutError) as exc:
                step = plan.throw(exc)
            else:
                step = plan.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _find_method(client: Any, step: Call) -> Any:
    return getattr(client if step.target is None else step.target, step.method)


# -- commands


@dataclass(frozen=True, slots=True)
class CommandReport:
    """`exit_code` is 124 when the command took too long, and 125 when there was no sandbox to run it in."""

    text: str
    exit_code: int
    truncated: bool = False


def run_command(
    command: str | Sequence[str],
    timeout_s: float,
    *,
    max_chars: int | None = None,
    **options: Unpack[CommandOptions],
) -> Plan[CommandReport]:
    """Runs a line for bash, or a program. A time-out of 0 means: as long as the server allows."""
    limit_s = timeout_s if timeout_s > 0 else LONGEST_S
    try:
        result: ExecuteResult = yield from call("execute", command, limit_s, **options)
    except WarrenError as exc:
        return CommandReport(describe_error(exc), EXIT_NOT_RUN)
    output, is_cut = shorten(result.output, max_chars)
    notice = f"[{result.notice}]\n" if result.notice else ""
    exit_code, ending = _describe_end(result, limit_s)
    return CommandReport(notice + output + ending, exit_code, result.truncated or is_cut)


def describe_error(exc: WarrenError) -> str:
    """An error as the model should read it."""
    text = f"[sandbox: {exc}]"
    if isinstance(exc, SandboxLost | SessionEnded | SessionNotFound):
        text += "\n[Its files and processes are gone. The next command begins in a fresh sandbox.]"
    return text


def _describe_end(result: ExecuteResult, limit_s: float) -> tuple[int, str]:
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
