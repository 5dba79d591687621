"""A command that was not started, for those who follow it as a stream: it says why, and that is its end."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from warren.model.errors import CommandRefused
from warren.model.operations import Chunk, ExecResult, Reason, Stream, TerminalSize

_EXIT_CODE: Final = 126


class RefusedProcess:
    """A Process that has ended before it began."""

    def __init__(self, refusal: ExecResult) -> None:
        self._refusal = refusal

    @property
    def id(self) -> str:
        return self._refusal.process_id

    async def output(self, offset: int = 0) -> AsyncIterator[Chunk]:
        said = self._refusal.stderr.encode(errors="surrogateescape")[offset:]
        if said:
            yield Chunk(Stream.STDERR, offset, said)

    async def wait(self) -> ExecResult:
        return self._refusal

    async def ended(self) -> ExecResult:
        return replace(self._refusal, stdout="", stderr="", output="")

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
    """For those who wait for a result: the same as `exec` gives."""
    said = f"{refused.message}\n"
    size = len(said.encode(errors="replace"))
    return ExecResult(_EXIT_CODE, "", said, said, Reason.REFUSED, None, 0.0, 0.0, size, truncated=False)
