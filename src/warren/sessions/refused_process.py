"""A command that the policy refused, as a process whose only output is the reason."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from warren.model.command_output import CommandOutput, output_of
from warren.model.errors import CommandRefused
from warren.model.operations import Chunk, ExecResult, OutputStream, Reason, TerminalSize

_EXIT_CODE: Final = 126


class RefusedProcess:
    """A Process that ended before it was started."""

    def __init__(self, refusal: ExecResult) -> None:
        self._refusal = refusal

    @property
    def id(self) -> str:
        return self._refusal.process_id

    @property
    def pid(self) -> int:
        return 0

    async def output(self, offset: int = 0) -> AsyncIterator[Chunk]:
        reason = self._refusal.stderr.encode(errors="surrogateescape")[offset:]
        if reason:
            yield Chunk(OutputStream.STDERR, offset, reason)

    async def wait(self) -> ExecResult:
        return self._refusal

    async def ended(self) -> ExecResult:
        return replace(self._refusal, written=CommandOutput())

    async def write(self, data: bytes) -> None:
        pass

    async def close_stdin(self) -> None:
        pass

    async def signal(self, number: int) -> None:
        pass

    async def kill(self, grace_s: float = 2.0) -> None:
        pass

    async def resize(self, size: TerminalSize) -> None:
        pass


def refused_result(refused: CommandRefused) -> ExecResult:
    """Returns the result that `exec` gives for a refused command."""
    reason = f"{refused.message}\n"
    size = len(reason.encode(errors="replace"))
    return ExecResult(_EXIT_CODE, output_of(stderr=reason), Reason.REFUSED, None, 0.0, 0.0, size, truncated=False)
