"""A running sandbox, as the rest of Warren sees it."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Protocol

from warren.model.operations import (
    Chunk,
    Command,
    ExecResult,
    FileEvent,
    FileInfo,
    ProcessInfo,
    Search,
    SearchMatch,
    SearchSummary,
    TerminalSize,
)
from warren.model.spec import Isolation


class Process(Protocol):
    """A command or terminal that runs, or ran, in a sandbox.

    It lives in the sandbox, not here: losing this object, or the whole program that holds it,
    leaves the command running, and `Sandbox.process` finds it again by `id`.

    `output` yields what was written from `offset` on and ends when the command has ended and all
    of its output was given; reading slowly slows the command down. `wait` gives the result; its
    texts hold what the sandbox kept. `ended` gives the result without its texts, and does not count as
    reading. `kill` ends the whole tree of processes and `wait` says how many that were. `write` and
    `close_stdin` after the end of the command are ignored.
    """

    @property
    def id(self) -> str: ...
    def output(self, offset: int = 0) -> AsyncIterator[Chunk]: ...
    async def wait(self) -> ExecResult: ...
    async def ended(self) -> ExecResult: ...
    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def kill(self, grace_s: float = 2.0) -> None: ...
    async def resize(self, size: TerminalSize) -> None: ...


class Sandbox(Protocol):
    """One isolated computer.

    Commands: `exec` runs one to its end. A non-zero exit, a signal, a time-out or running out of
    memory are results, not errors; an unknown user or directory raises. When the sandbox dies,
    `exec` and `wait` give a result with reason `sandbox_lost`, everything else raises SandboxLost,
    at once. Cancelling `exec` ends the command and its children before the cancellation goes on. With a
    `process_id` of the caller's, `exec` raises Conflict if there is such a process, and leaves it known,
    with its end and what was kept of its output, until it is forgotten.
    `start` leaves it running on its own; `start` with the id of a process that exists raises
    Conflict and starts nothing; with `follow` the command waits for its first reader rather than lose
    what it says before. Commands do not wait for each other.

    Files: done inside the sandbox with the rights of `user` (the sandbox user unless told
    otherwise), streamed, any size. Relative paths start in the workspace. Writing is atomic: a
    reader sees the old file or the new one, and a write that fails or is cancelled leaves the old.
    Errors: FileNotFound, PermissionDenied, IsDirectory, NotADirectory, FileExists, InvalidPath,
    NoSpace.

    `search` yields matches as they are found, ordered by directory and name, and exactly one SearchSummary as the
    last item. Reaching a limit is not an error: the summary tells. An expression that is not valid raises
    InvalidRequest, one that needs too much memory LimitReached, both before any match; a `path` that is not there
    raises FileNotFound. Leaving the iteration ends the search. A sandbox that was made by an older release may not
    be able to search: that raises Conflict.

    `when_lost` calls back once, with the reason, when the sandbox has died or cannot be reached any more (at
    once if it already is); not after `close`. `close` lets go of the sandbox without ending it.
    """

    @property
    def id(self) -> str: ...
    @property
    def isolation(self) -> Isolation: ...

    async def exec(
        self, command: Command, stdin: bytes | AsyncIterable[bytes] = b"", *, process_id: str = ""
    ) -> ExecResult: ...
    async def start(self, command: Command, *, process_id: str = "", follow: bool = False) -> Process: ...
    async def process(self, process_id: str) -> Process: ...
    async def processes(self) -> Sequence[ProcessInfo]: ...
    async def forget(self, process_id: str) -> None: ...

    def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str = ""
    ) -> AsyncIterator[bytes]: ...
    async def write(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int | None = None, user: str = ""
    ) -> FileInfo: ...
    async def list(self, path: str, *, depth: int = 1, user: str = "") -> Sequence[FileInfo]: ...
    async def stat(self, path: str, *, user: str = "") -> FileInfo: ...
    async def mkdir(self, path: str, *, mode: int = 0o755, user: str = "") -> None: ...
    async def remove(self, path: str, *, recursive: bool = False, user: str = "") -> None: ...
    async def rename(self, source: str, target: str, *, user: str = "") -> None: ...
    def pack(self, path: str, *, user: str = "") -> AsyncIterator[bytes]: ...
    async def unpack(self, path: str, tar: bytes | AsyncIterable[bytes], *, user: str = "") -> int: ...
    def watch(self, path: str, *, recursive: bool = False, user: str = "") -> AsyncIterator[FileEvent]: ...
    def search(self, query: Search) -> AsyncIterator[SearchMatch | SearchSummary]: ...

    async def ping(self) -> None: ...
    def when_lost(self, call: Callable[[str], None]) -> None: ...
    async def close(self) -> None: ...
