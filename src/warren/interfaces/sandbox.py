"""A running sandbox, as the rest of Warren sees it."""

import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from warren.model.metrics import SandboxMetrics
from warren.model.network import EgressBound, ListeningPort, NetworkRules, NetworkUse
from warren.model.operations import (
    Chunk,
    Command,
    ExecResult,
    FileEvent,
    FileInfo,
    ProcessStatus,
    Search,
    SearchMatch,
    SearchTotals,
    TerminalSize,
)
from warren.model.secrets import BoundSecret
from warren.model.spec import Isolation


class Process(Protocol):
    """A command or terminal that runs, or ran, in a sandbox.

    It lives in the sandbox. If this object or the program that holds it goes away, the command runs on, and
    `Sandbox.process` finds it again by `id`.

    `output` yields the output from `offset` on, and ends when the command has ended and all of its output was yielded.
    Reading slowly slows the command down. `pid`: the process id inside the sandbox of a command that was just started;
    0 for one that was found again. `wait` returns the result with the output that the sandbox kept. `ended` returns the
    result without output, and does not count as reading. `kill` ends the whole tree of processes; the result says how
    many there were. `write` and `close_stdin` do nothing after the command has ended.
    """

    @property
    def id(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def output(self, offset: int = 0) -> AsyncIterator[Chunk]: ...
    async def wait(self) -> ExecResult: ...
    async def ended(self) -> ExecResult: ...
    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def kill(self, grace_s: float = 2.0) -> None: ...
    async def resize(self, size: TerminalSize) -> None: ...


class FileWatch(Protocol):
    """Yields the changes below a directory as they happen. Watching begins with the first iteration.

    `sync` returns when the iterating task has received every change made before the call, and asks for the next one. It
    raises Conflict before the watch has begun and after it has ended.
    """

    def __aiter__(self) -> AsyncIterator[FileEvent]: ...
    async def __anext__(self) -> FileEvent: ...
    async def aclose(self) -> None: ...
    async def sync(self) -> None: ...


class Sandbox(Protocol):
    """One isolated computer.

    Commands: `exec` runs a command to its end. A non-zero exit, a signal, a time-out or running out of memory is a
    result, not an error; an unknown user or directory raises. When the sandbox dies, `exec` and `wait` return a result
    with the reason `sandbox_lost`, and everything else raises SandboxLost at once. Cancelling `exec` ends the command
    and its children before the cancellation continues. With a `process_id`, `exec` raises Conflict if that process
    exists, and the sandbox keeps the result and the output until the caller forgets the process.
    `start` returns while the command runs; if a process with that id exists, it raises Conflict and starts nothing.
    With `follow` the command waits for its first reader, so that no output is lost. Commands do not wait for each
    other.

    `kill_all` ends everything that runs in the sandbox at once, without grace, also when the sandbox is at its limit of
    processes; file operations under way fail. It returns when all of it is gone, with the number of processes, and
    raises Unavailable if some cannot be ended. Commands so ended have the reason `cancelled` and keep their output.
    Until it returns, what is to be started raises Conflict.

    Files: operations run inside the sandbox with the rights of `user` (by default the sandbox user) and stream files
    of any size. Relative paths start in the workspace. Writing is atomic: a reader sees the old file or the new one,
    and a write that fails or is cancelled leaves the old one. Errors: FileNotFound, PermissionDenied, IsDirectory,
    NotADirectory, FileExists, InvalidPath, NoSpace.

    `write` with `in_place` writes into the file that is there: hard links to it stay, and a watch sees it created,
    given to the user and modified. It is not atomic. `metadata` replaces all that the file has; a file system that
    knows no attributes keeps none. Where commands may be root, `owner` is the user who gets what root creates.

    `entries` yields what `list` gives, as it is found, and with `details` in the order of names, each directory before
    what is in it; `list` raises LimitReached for more entries than fit in memory.

    `search` yields matches as they are found, ordered by directory and name, and one SearchTotals as the last item.
    Reaching a limit is not an error; the summary says so. An invalid expression raises InvalidRequest, one that needs
    too much memory or time to compile LimitReached, both before any match. A `path` that does not exist raises
    FileNotFound. Leaving the iteration ends the search.

    `set_network` replaces the rules about what the sandbox may reach; when it returns, connections that are no longer
    allowed are cut. NO_NETWORK closes the network. If it raises, the sandbox reaches nothing. An adopted sandbox has no
    network until it is set again. The last `bounds` given for an owner apply to all of its sandboxes together; open
    connections stay. The owner of the last bound is the sandbox's tenant. `network_use` counts since this process made
    or adopted the sandbox. Both raise an InvalidRequest that names the capability if the provider lacks it.

    Ports: `ports` returns the TCP ports on which servers inside listen. `dial` connects to a port on the sandbox's own
    loopback, 127.0.0.1 and then ::1, and returns a non-blocking socket that the caller closes; it raises PortClosed if
    nothing listens there. A provider without the capability refuses both.

    `metrics` returns what the sandbox uses now, as the host's kernel or the far side counts it: nothing runs in the
    sandbox for it, so programs inside can neither change nor delay it. `at` and `cpus` are 0; the caller computes them
    from two readings. `cpu_s` never falls while the sandbox lives; a far side's is counted from the first reading on.
    It raises SandboxLost when the sandbox is gone, and ProviderUnavailable when the metrics cannot be read.

    `note_pause` tells a frozen sandbox how long it stood still, before it is thawed: the time limits of its commands
    and cells move by that. It does not wait, because nobody in the sandbox can answer. `is_frozen` returns whether the
    sandbox stands still now, without asking it.

    `when_lost` calls back once, with the reason, when the sandbox has died or cannot be reached any more (at once if
    that has happened already), but not after `close`. `close` disconnects from the sandbox and leaves it running.
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
    async def processes(self) -> Sequence[ProcessStatus]: ...
    async def forget(self, process_id: str) -> None: ...
    async def kill_all(self) -> int: ...

    def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str = ""
    ) -> AsyncIterator[bytes]: ...
    async def write(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str = "",
        in_place: bool = False,
        metadata: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> FileInfo: ...
    async def list(self, path: str, *, depth: int = 1, user: str = "", details: bool = False) -> Sequence[FileInfo]: ...
    def entries(
        self, path: str, *, depth: int = 1, user: str = "", details: bool = False
    ) -> AsyncIterator[FileInfo]: ...
    async def stat(self, path: str, *, user: str = "", details: bool = False) -> FileInfo: ...
    async def mkdir(self, path: str, *, mode: int = 0o755, user: str = "", owner: str = "") -> None: ...
    async def remove(self, path: str, *, recursive: bool = False, user: str = "") -> None: ...
    async def rename(self, source: str, target: str, *, user: str = "") -> None: ...
    def pack(self, path: str, *, user: str = "") -> AsyncIterator[bytes]: ...
    async def unpack(self, path: str, tar: bytes | AsyncIterable[bytes], *, user: str = "") -> int: ...
    def watch(self, path: str, *, recursive: bool = False, user: str = "", attributes: bool = False) -> FileWatch: ...
    def search(self, query: Search) -> AsyncIterator[SearchMatch | SearchTotals]: ...

    async def set_network(
        self, rules: NetworkRules, secrets: Sequence[BoundSecret] = (), bounds: Sequence[EgressBound] = ()
    ) -> None: ...
    async def network_use(self) -> NetworkUse: ...
    async def ports(self) -> Sequence[ListeningPort]: ...
    async def dial(self, port: int) -> socket.socket: ...

    async def metrics(self) -> SandboxMetrics: ...
    async def ping(self) -> None: ...
    def note_pause(self, paused_s: float) -> None: ...
    def is_frozen(self) -> bool: ...
    def when_lost(self, call: Callable[[str], None]) -> None: ...
    async def close(self) -> None: ...
