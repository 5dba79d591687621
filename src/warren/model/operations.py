"""The operations in a sandbox, and their results."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from warren.model.command_output import CommandOutput, Shown
from warren.model.errors import InvalidPath, InvalidRequest, UnknownUser
from warren.model.spec import check_env

KEEP_BYTES = 10 * 1024 * 1024
MAX_KEEP_BYTES = 32 * 1024 * 1024
MAX_COMMAND_BYTES = 3 * 1024 * 1024
MAX_PATTERN_BYTES = 4000
MAX_GLOBS = 64
MAX_METADATA = 64
MAX_METADATA_BYTES = 4096
MAX_METADATA_KEY_BYTES = 246
_PROCESS_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_BRACES = re.compile(r"(?<!\\)\{([^{}]*,[^{}]*)\}")


class Reason(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OOM = "oom"
    CANCELLED = "cancelled"
    SANDBOX_LOST = "sandbox_lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TerminalSize:
    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        if not (0 < self.rows < 10_000 and 0 < self.columns < 10_000):
            raise InvalidRequest(f"a terminal of {self.rows} rows and {self.columns} columns cannot be")


@dataclass(frozen=True, slots=True)
class Command:
    """A command line for the shell (`shell`) or a program with its arguments (`argv`).

    `carry_state`: a shell command starts with the directory and the exported variables that the last one of this
    sandbox left, and leaves its own to the next. `env`: overrides exported variables; `base_env` does not. `terminal`:
    gives the command a terminal of that size. `keep_bytes`: how much output is kept, half from its beginning and half
    from its end. `judged_as`: a shell line or an argv that policies judge, and the audit record shows, in place of the
    command; it is the caller's code if a program of Warren runs that. `stdin`: without it, the input of a started
    command is empty. `until_closed`: the command does not end while a process that it left in the background can write
    to its output, unless the command gets a signal KILL or TERM.
    """

    argv: tuple[str, ...] = ()
    shell: str = ""
    env: dict[str, str] = field(default_factory=dict)
    base_env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    timeout_s: float | None = None
    grace_s: float = 2.0
    carry_state: bool = True
    terminal: TerminalSize | None = None
    keep_bytes: int = KEEP_BYTES
    judged_as: str | tuple[str, ...] = ""
    stdin: bool = True
    until_closed: bool = False

    def as_judged(self) -> "Command":
        if not self.judged_as:
            return self
        if isinstance(self.judged_as, str):
            return replace(self, argv=(), shell=self.judged_as, judged_as="")
        return replace(self, argv=self.judged_as, shell="", judged_as="")

    def __post_init__(self) -> None:
        if bool(self.argv) == bool(self.shell):
            raise InvalidRequest("a command needs either a shell line or an argv, and not both")
        if self.argv and not self.argv[0]:
            raise InvalidRequest("the program's name (argv[0]) is empty")
        for text in (*self.argv, self.shell, self.cwd, self.user):
            if "\0" in text:
                raise InvalidRequest("a command cannot have a NUL byte in it", remedy="send binary data through stdin")
        if self.cwd:
            check_path(self.cwd)
        check_user(self.user)
        for name, value in (*self.env.items(), *self.base_env.items()):
            check_env(name, value)
        size = len("".join((*self.argv, self.shell)).encode(errors="surrogateescape"))
        if size > MAX_COMMAND_BYTES:
            raise InvalidRequest(
                f"the command is {size} bytes long, at most {MAX_COMMAND_BYTES} are taken",
                remedy="write it to a file and run that",
            )
        if self.timeout_s is not None and not 0 < self.timeout_s <= 7 * 86400:
            raise InvalidRequest(f"a time-out of {self.timeout_s} s cannot be: above 0 and at most a week")
        if not 0 <= self.grace_s <= 600:
            raise InvalidRequest(f"a grace time of {self.grace_s} s cannot be: 0 to 600")
        if not 0 <= self.keep_bytes <= MAX_KEEP_BYTES:
            raise InvalidRequest(f"keep_bytes is {self.keep_bytes}, it must be between 0 and {MAX_KEEP_BYTES}")


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended, and what it wrote (`written`).

    `output`: stdout and stderr in the order in which they were written. `truncated`: the command wrote more than is
    kept; a line between the beginning and the end says how much is missing. `killed`: the number of processes that a
    time-out or a cancellation ended. `survivors`: those that could not be killed. `background`: those that the command
    left running on purpose.
    """

    exit_code: int
    written: CommandOutput
    reason: Reason
    signal: int | None
    duration_ms: float
    cpu_ms: float
    bytes_total: int
    truncated: bool
    killed: int = 0
    survivors: int = 0
    background: int = 0
    process_id: str = ""

    @property
    def stdout(self) -> str:
        return self.written.text(Shown.STDOUT)

    @property
    def stderr(self) -> str:
        return self.written.text(Shown.STDERR)

    @property
    def output(self) -> str:
        return self.written.text(Shown.OUTPUT)


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output. If `offset` is beyond the end of the previous piece, the output in between was not kept."""

    stream: OutputStream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    id: str
    command: str
    user: str
    running: bool
    terminal: bool
    pid: int
    bytes_total: int
    truncated: bool
    started_s_ago: float
    exit_code: int | None = None
    reason: Reason | None = None
    background: int = 0


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """`target`: the text of a link. The fields after it are details, which are filled in only on request: the names of
    owner and group (their numbers if they have no names), the `metadata` of the file, and, for a link that does not
    dangle, the path, kind and mode of what it leads to. The `size` of anything but a file is a detail too."""

    path: str
    kind: FileKind
    size: int
    mode: int
    uid: int
    gid: int
    modified: float
    target: str = ""
    owner: str = ""
    group: str = ""
    target_path: str = ""
    target_kind: FileKind | None = None
    target_mode: int = 0
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


class Change(StrEnum):
    """WATCHING comes first, and once. From then on every change is reported, or an OVERFLOW if some were lost. A watch
    that did not ask for ATTRIBUTES (modes, owners, metadata) reports such changes as MODIFIED."""

    WATCHING = "watching"
    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    MOVED_FROM = "moved_from"
    MOVED_TO = "moved_to"
    OVERFLOW = "overflow"
    ATTRIBUTES = "attributes"


@dataclass(frozen=True, slots=True)
class FileEvent:
    change: Change
    path: str
    directory: bool


@dataclass(frozen=True, slots=True)
class Search:
    """Which files to find below `path`: by name (`glob`), by content (`pattern`), or by both.

    Without a pattern every file, directory and link whose name fits is a match. With one, every line of a fitting
    file in which the pattern is found is a match. `path` may also be a single file.

    `glob` knows `*`, `?`, `[a-z]`, `[!a-z]`, `{one,two}`, a backslash before what is meant literally, and `**` for
    any number of directories. Without a slash it is matched against the name, in any directory (`*.py`); with a slash,
    against the whole path below `path` (`src/**/*.py`, `/*.md`).

    `pattern` is a POSIX extended regular expression (`[[:digit:]]+`, not `\\d+`). It is matched against one line at
    a time, without its line end. `ignore_case` applies to `glob` and `pattern`.

    A search does not follow links, skips names that begin with a dot unless `hidden`, and does not enter /proc and
    /sys from above. It does not search the contents of binary files (those with a NUL byte), of files larger than
    `max_file_bytes`, and of devices, pipes and sockets; of a line longer than 1 MiB it searches only the beginning.
    """

    path: str = "/workspace"
    glob: str = ""
    pattern: str = ""
    ignore_case: bool = False
    hidden: bool = False
    max_matches: int = 1000
    max_file_bytes: int = 10 * 1024 * 1024
    timeout_s: float = 30.0
    user: str = ""

    def __post_init__(self) -> None:
        check_path(self.path)
        check_user(self.user)
        if not self.glob and not self.pattern:
            raise InvalidRequest("a search needs a glob, a pattern, or both")
        for name, text in (("glob", self.glob), ("pattern", self.pattern)):
            if "\0" in text or "\n" in text:
                raise InvalidRequest(f"a {name} cannot have a NUL byte or a line break in it")
            try:
                size = len(text.encode(errors="strict" if name == "pattern" else "surrogateescape"))
            except UnicodeEncodeError:
                raise InvalidRequest(f"the {name} is not valid text") from None
            if size > MAX_PATTERN_BYTES:
                raise InvalidRequest(f"the {name} is longer than {MAX_PATTERN_BYTES} bytes")
        if self.glob.endswith("/"):
            raise InvalidRequest(f"the glob {self.glob!r} ends with a slash", remedy="use name/** for what lies below")
        self.globs()
        if not 1 <= self.max_matches <= 100_000:
            raise InvalidRequest(f"max_matches is {self.max_matches}, it must be between 1 and 100,000")
        if not 1 <= self.max_file_bytes <= 1 << 40:
            raise InvalidRequest(f"max_file_bytes is {self.max_file_bytes}, it must be between 1 and 1 TiB")
        if not 0.001 <= self.timeout_s <= 600:
            raise InvalidRequest(f"a search cannot take {self.timeout_s} s: 0.001 to 600")

    def globs(self) -> tuple[str, ...]:
        """The glob without braces: one for each alternative."""
        globs = [self.glob] if self.glob else []
        while any(found := [_BRACES.search(glob) for glob in globs]):
            globs = [
                glob[: match.start()] + one + glob[match.end() :] if match else glob
                for glob, match in zip(globs, found, strict=True)
                for one in (match[1].split(",") if match else [""])
            ]
            if len(globs) > MAX_GLOBS:
                raise InvalidRequest(f"the glob has more than {MAX_GLOBS} alternatives in braces")
        return tuple(dict.fromkeys(globs))


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """A name that matches (`line` is 0), or a line in which the pattern was found.

    `line` and `column` count from 1; `column` is the byte at which the first match begins. `text` is the line without
    its line end. Of a long line it is the part around the match, and `text_truncated` is set.
    """

    path: str
    kind: FileKind = FileKind.FILE
    line: int = 0
    column: int = 0
    text: str = ""
    text_truncated: bool = False


class SearchLimit(StrEnum):
    MAX_MATCHES = "max_matches"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class SearchTotals:
    """The end of a search: what was found and everything that was left out.

    `truncated_by`: the limit that ended the search early, or None. `files_searched`: files whose contents were
    searched. `binary`, `too_large`, `unreadable`: files (and unreadable directories) that were not. `hidden`: skipped
    names that begin with a dot. `long_lines`: lines of which only the beginning was searched.
    """

    matches: int
    files_searched: int = 0
    binary: int = 0
    too_large: int = 0
    unreadable: int = 0
    hidden: int = 0
    long_lines: int = 0
    truncated_by: SearchLimit | None = None

    @property
    def truncated(self) -> bool:
        return self.truncated_by is not None


def check_path(path: str) -> str:
    """Returns the absolute path; a relative one starts in the workspace. Raises InvalidPath."""
    if not path:
        raise InvalidPath("the path is empty")
    if "\0" in path:
        raise InvalidPath("a path cannot have a NUL byte in it")
    if len(path.encode(errors="surrogateescape")) > 4095:
        raise InvalidPath("the path is longer than 4095 bytes")
    return path if path.startswith("/") else f"/workspace/{path}"


def check_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the metadata, or raises InvalidRequest if a file's attributes cannot hold it."""
    size = 0
    for key, value in metadata.items():
        if not key or "=" in key or "\0" in f"{key}{value}":
            raise InvalidRequest(f"{key[:80]!r} cannot be a key of metadata, or its value has a NUL byte in it")
        try:
            length = len(key.encode())
            size += length + len(value.encode()) + 2
        except UnicodeEncodeError:
            raise InvalidRequest(f"the metadata {key[:80]!r} is not valid text") from None
        if length > MAX_METADATA_KEY_BYTES:
            raise InvalidRequest(f"the key of metadata {key[:80]!r} is longer than {MAX_METADATA_KEY_BYTES} bytes")
    if len(metadata) > MAX_METADATA or size > MAX_METADATA_BYTES:
        raise InvalidRequest(f"a file takes {MAX_METADATA} entries of metadata at most, of {MAX_METADATA_BYTES} bytes")
    return metadata


def check_user(user: str) -> str:
    """Returns the name, or raises UnknownUser if no user can have it. The sandbox decides whether the user exists."""
    if "\0" in user or len(user.encode(errors="surrogateescape")) > 255:
        raise UnknownUser(f"{user[:80]!r} cannot be the name of a user")
    return user


def new_process_id() -> str:
    return f"p_{os.urandom(6).hex()}"


def check_process_id(process_id: str) -> str:
    if not _PROCESS_ID.fullmatch(process_id):
        raise InvalidRequest(f"{process_id!r} cannot be a process id: up to 64 letters, digits and _ . : -")
    return process_id
