"""What the methods of the clients return: typed values, whose fields can be read by name as well."""

import base64
import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Final, Self


class BaseResult:
    """The base of all results: `result.output` and `result["output"]` are the same. `to_dict` makes a real dictionary
    of them.

    `_inner` names the fields that are results themselves, or lists of them, with their class.
    """

    __slots__ = ()
    _inner: ClassVar[Mapping[str, "type[BaseResult]"]] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Returns the names of the fields."""
        return list(_field_names(type(self)))

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the field of that name, or `default` if there is none."""
        return getattr(self, name) if name in self.keys() else default

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, and those of the results in it, as dictionaries.

        `json.dumps` takes them all but those of an OutputChunk, whose `data` are bytes.
        """
        values = {name: getattr(self, name) for name in _field_names(type(self))}
        for name in self._inner:
            if inner := values[name]:
                values[name] = [each.to_dict() for each in inner] if isinstance(inner, list) else inner.to_dict()
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Makes a result from the JSON of the server; fields that the class does not have are left out."""
        known = _field_names(cls)
        given = {
            name: value if type(value) in _PLAIN else _plain(value) for name, value in values.items() if name in known
        }
        for name, kind in cls._inner.items():
            if inner := given.get(name):
                given[name] = [kind.of(each) for each in inner] if isinstance(inner, list) else kind.of(inner)
        return cls(**given)


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_FIELD_NAMES: Final[dict[type, dict[str, None]]] = {}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _field_names(kind: type) -> dict[str, None]:
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = dict.fromkeys(each.name for each in fields(kind))
    return _FIELD_NAMES[kind]


@dataclass(frozen=True, slots=True)
class ArtifactInfo(BaseResult):
    """A file that outlives its sandbox. `name` is its path below /workspace/artifacts, /workspace or /."""

    artifact_id: str
    name: str
    size: int
    sha256: str
    mime_type: str
    session_id: str
    created_at: str
    expires_at: str
    path: str | None = None
    thread_id: str | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class LogEntry(BaseResult):
    """One entry of the log of a session: what happened (`event`), or what was written (`stream` and `text`).

    `kind`: command, cell, terminal, output or note. `command_id` is the same in all entries of a command. `missing`: so
    many bytes before the text were not kept. docs/logs.md explains the others.
    """

    id: int
    at: str
    kind: str
    event: str = ""
    command_id: str = ""
    process_id: str | None = None
    command: str = ""
    cwd: str = ""
    user: str | None = None
    key_id: str | None = None
    background: bool = False
    context_id: str = ""
    language: str | None = None
    exit_code: int | None = None
    reason: str = ""
    signal: int | None = None
    duration_ms: float = 0.0
    cpu_ms: float = 0.0
    bytes_total: int = 0
    execution_count: int | None = None
    error: str | None = None
    detail: str = ""
    stream: str = ""
    text: str = ""
    missing: int = 0
    until: int = 0


@dataclass(frozen=True, slots=True)
class SavedArtifacts(BaseResult):
    """The artifacts that were saved, and what was not: `left_out` has the path and the reason (`why`) of the first of
    `left_out_count` files."""

    artifacts: list[ArtifactInfo]
    left_out: list[dict[str, str]]
    left_out_count: int = 0

    _inner: ClassVar = {"artifacts": ArtifactInfo}


@dataclass(frozen=True, slots=True)
class SnapshotInfo(BaseResult):
    """The saved disk of a session. `bytes`: what it occupies. `disk_mb`: sessions that start from it have at least so
    much. `parent`: the snapshot that its session started from. `worker`: the machine that keeps it, if others do not
    reach it. `expires_at` None: never."""

    snapshot_id: str
    name: str | None = None
    environment: str = ""
    image: str = ""
    provider: str = ""
    writable_root: bool = False
    disk_mb: int = 0
    bytes: int = 0
    sha256: str = ""
    stopped_ms: float = 0.0
    session_id: str | None = None
    thread_id: str | None = None
    parent: str | None = None
    worker: str | None = None
    owner: str = "user"
    public: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    created_at: str = ""
    expires_at: str | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class VolumeInfo(BaseResult):
    """A named disk that outlives sessions. `used_bytes`: what it occupies on its machine; `sessions`: those that have
    it. Both are None in lists. `worker`: whose disk it is on, in a cluster."""

    volume_id: str
    name: str
    size_mb: int
    created_at: str
    metadata: dict[str, str] = field(default_factory=dict)
    worker: str | None = None
    used_bytes: int | None = None
    sessions: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ExecuteResult(BaseResult):
    """How a command ended, and its output.

    `reason`: exited, signal, timeout, oom, cancelled, refused or sandbox_lost. Bytes that are no text are replaced in
    `output`, `stdout` and `stderr`; `stdout_bytes` and `stderr_bytes` have them all.

    `notice` is what the caller should know, such as that this is a fresh sandbox and earlier files are gone. `saved`
    are the artifacts, if `save_artifacts` asked for some.
    """

    exit_code: int
    output: str = ""
    stdout: str = ""
    stderr: str = ""
    reason: str = "exited"
    signal: int | None = None
    duration_ms: float = 0.0
    cpu_ms: float = 0.0
    bytes_total: int = 0
    truncated: bool = False
    killed: int = 0
    survivors: int = 0
    background: int = 0
    process_id: str = ""
    notice: str | None = None
    stdout_base64: str = ""
    stderr_base64: str = ""
    saved: SavedArtifacts | None = None

    _inner: ClassVar = {"saved": SavedArtifacts}

    @property
    def stdout_bytes(self) -> bytes:
        """Every byte of stdout, also if it is not text."""
        return _exact_bytes(self.stdout, self.stdout_base64)

    @property
    def stderr_bytes(self) -> bytes:
        """Every byte of stderr, also if it is not text."""
        return _exact_bytes(self.stderr, self.stderr_base64)

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and self.reason == "exited"


def _exact_bytes(text: str, encoded: str) -> bytes:
    return base64.b64decode(encoded) if encoded else text.encode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class OutputChunk(BaseResult):
    """A piece of output: `data` has every byte of it, `text` is for reading. `offset` counts bytes."""

    stream: str
    data: bytes
    text: str
    offset: int
    next_offset: int

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SessionInfo(BaseResult):
    """A session as it is. `isolation` has the layers that are in force; `created` says whether this call made it.

    `previous` tells how the thread's session before it ended. `reason` and `detail` say why this one has ended.
    `mismatch`, of a client that keeps its thread's session, tells what that has and the client had asked for otherwise.
    """

    session_id: str
    state: str
    environment: str
    thread_id: str | None = None
    sandbox_id: str | None = None
    provider: str | None = None
    worker: str | None = None
    user: str = ""
    workspace: str = ""
    created_at: str = ""
    expires_at: str | None = None
    idle_expires_at: str | None = None
    idle_timeout_s: float = 0.0
    max_lifetime_s: float = 0.0
    on_idle: str = "end"
    paused_at: str | None = None
    max_paused_s: float = 0.0
    auto_resume: bool = True
    restored: int = 0
    limits: dict[str, float] | None = None
    pooled: bool = False
    image: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    env_names: list[str] = field(default_factory=list)
    network: dict[str, Any] | None = None
    previous: dict[str, str] | None = None
    reason: str | None = None
    detail: str | None = None
    isolation: dict[str, Any] | None = None
    created: bool | None = None
    agent: str | None = None
    agent_config: dict[str, Any] | None = None
    mismatch: dict[str, Any] | None = None
    snapshot: str | None = None
    forked_from: str | None = None
    volumes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NetworkInfo(BaseResult):
    """What a sandbox may reach, and what it did since it was made or its machine's worker restarted.

    Each of `refusals` has `at`, `name`, `address`, `port`, `reason`, `rule` (what would allow it, if anything would)
    and `count`: how often it came in a row.
    """

    internet: bool = False
    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    open_connections: int = 0
    refused: int = 0
    refusals: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FiguresInfo(BaseResult):
    """What a session uses at a moment.

    `cpu_s` is all the processor time so far, `cpus` the cores in use on average since the point before. `memory_bytes`
    is without `cache_bytes`, which the kernel gives back when memory is short. `processes` counts threads too.
    """

    at: str = ""
    cpu_s: float = 0.0
    cpus: float = 0.0
    memory_bytes: int = 0
    cache_bytes: int = 0
    disk_bytes: int = 0
    processes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MetricsInfo(BaseResult):
    """What a session uses now, and used in the last minutes: `series` has a point every `interval_s`, oldest first.
    `limits` has `cpus`, `memory_bytes`, `disk_bytes` and `processes`."""

    session_id: str
    now: FiguresInfo
    limits: dict[str, float] = field(default_factory=dict)
    interval_s: float = 0.0
    series: list[FiguresInfo] = field(default_factory=list)

    _inner: ClassVar = {"now": FiguresInfo, "series": FiguresInfo}


@dataclass(frozen=True, slots=True)
class EnvironmentInfo(BaseResult):
    """A session gets these `limits` if it asks for no others. Times are None where the server's apply."""

    name: str
    description: str = ""
    image: str = ""
    provider: str | None = None
    limits: dict[str, float] = field(default_factory=dict)
    io: dict[str, int] = field(default_factory=dict)
    env_names: list[str] = field(default_factory=list)
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    on_idle: str | None = None
    max_paused_s: float | None = None
    needs: list[str] = field(default_factory=list)
    network: dict[str, Any] | None = None
    default: bool = False
    root: str = "read-only"
    sudo: bool = False
    image_state: str | None = None


@dataclass(frozen=True, slots=True)
class EntryInfo(BaseResult):
    """An entry of the registry; `get_registry_entry` gives all of it."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class ImageInfo(BaseResult):
    """An image. Its `version` changes each time the image is built."""

    name: str
    version: str = ""
    size_bytes: int = 0
    files: int = 0
    created_at: str = ""


@dataclass(frozen=True, slots=True)
class ProcessInfo(BaseResult):
    """A background command or terminal. `exit_code` and `reason` are None while it runs."""

    process_id: str
    command: str
    user: str
    running: bool
    terminal: bool
    bytes_total: int
    truncated: bool
    started_s_ago: float
    exit_code: int | None = None
    reason: str | None = None
    background: int = 0


@dataclass(frozen=True, slots=True)
class PortInfo(BaseResult):
    """A TCP port on which a server inside the sandbox listens. `address` 0.0.0.0 or :: is all addresses."""

    port: int
    address: str
    public: bool = False


@dataclass(frozen=True, slots=True)
class Ticket(BaseResult):
    """Opens the session's terminal to a page without a key. `url` is good for one use, within a minute; what it opens
    is closed at `expires_at`."""

    ticket: str
    url: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class FileEntry(BaseResult):
    """An entry of a directory. `kind`: file, directory, symlink or other. `mode` is octal text such as 0644."""

    path: str
    name: str
    kind: str
    size: int
    mode: str
    uid: int
    gid: int
    modified: str
    target: str | None = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory itself, not a link to one."""
        return self.kind == "directory"


@dataclass(frozen=True, slots=True)
class FileChange(BaseResult):
    """`change` is watching (the first one), created, modified, removed, moved_from, moved_to or overflow."""

    change: str
    path: str
    directory: bool = False


@dataclass(frozen=True, slots=True)
class FileMatch(BaseResult):
    """A name that matched (`line` is 0), or a line in which the pattern was found; `line` and `column` count from 1.

    `text` is the line, or, if `text_truncated`, a part of it around the match.
    """

    path: str
    kind: str
    line: int = 0
    column: int = 0
    text: str = ""
    text_truncated: bool = False


@dataclass(frozen=True, slots=True)
class SearchSummary(BaseResult):
    """What a search found and what it left out. `truncated_by`: max_matches or time, if that ended it early."""

    matches: int
    files_searched: int = 0
    binary: int = 0
    too_large: int = 0
    unreadable: int = 0
    hidden: int = 0
    long_lines: int = 0
    truncated_by: str | None = None


class OutputDecoder:
    """Makes `OutputChunk`s from the events of a stream, whose data is base64.

    A character that was cut in two is in the text of the later chunk. Bytes that are not UTF-8 are replaced in `text`
    and unchanged in `data`.
    """

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._end = 0

    def decode(self, event: Mapping[str, Any]) -> OutputChunk:
        """Returns the chunk of an `output` event."""
        stream, data = event["stream"], base64.b64decode(event["data"])
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = event["next_offset"]
        text = self._decoders[stream].decode(data)
        return OutputChunk(str(stream), data, text, event["offset"], self._end)

    def finish(self) -> Iterator[OutputChunk]:
        """Yields a replacement character for each stream that ended within a character."""
        for stream, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                yield OutputChunk(str(stream), b"", text, self._end, self._end)
