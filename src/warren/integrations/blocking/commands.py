"""Runs a command or code in a sandbox and returns what a model should read of it."""

# Made from src/warren/integrations/aio/commands.py by scripts/generate_sync.py: edit that one.

from collections.abc import Sequence
from typing import Final, Unpack

from warren.integrations.reports import (
    EXIT_NOT_RUN,
    CodeReport,
    CommandReport,
    describe_code,
    describe_command,
    describe_error,
)
from warren.model.errors import WarrenError
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.code_results import OutputMessage, Result
from warren.sdk.options import CommandOptions

_LONGEST_S: Final = 24 * 3600.0  # in place of no time-out


def run_command(
    client: SandboxClient,
    command: str | Sequence[str],
    timeout_s: float,
    max_chars: int | None = None,
    **options: Unpack[CommandOptions],
) -> CommandReport:
    """Runs a line for bash, or a program. A time-out of 0 means: as long as the server allows.

    An error of the sandbox is a report too, with exit code 125: the agent's run goes on, whatever happened.
    """
    limit_s = timeout_s if timeout_s > 0 else _LONGEST_S
    try:
        result = client.execute(command, limit_s, **options)
    except WarrenError as exc:
        return CommandReport(describe_error(exc), EXIT_NOT_RUN)
    return describe_command(result, limit_s, max_chars)


def run_code(client: SandboxClient, code: str, language: str, timeout_s: float, max_chars: int) -> CodeReport:
    """Runs code in an interpreter that keeps its state; a time-out of 0 means none.

    Raises what the client raises, and SandboxLost if the sandbox died meanwhile.
    """
    limit_s = timeout_s if timeout_s > 0 else _LONGEST_S
    shown: list[OutputMessage | Result] = []
    take = shown.append
    execution = client.run_code(code, language, timeout=limit_s, on_stdout=take, on_stderr=take, on_result=take)
    return describe_code(execution, shown, limit_s, max_chars)
