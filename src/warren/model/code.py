"""Code contexts: interpreters that live in a sandbox and keep their state from one cell to the next.

A cell is a command like any other: a small program of the agent (`AGENT cell`) hands the code to the context's keeper
and writes what comes back to its stdout, as frames. `CellReader` turns the frames into events, `CellExecution` collects
the events. User code can forge frames. That spoils the results of its own cell and of later cells in its context, and
nothing else: malformed events are dropped and counted.
"""

import codecs
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from warren.model.errors import InvalidRequest, WarrenError
from warren.model.operations import ExecResult, Reason
from warren.model.strict_json import read_and_count, read_in_steps

AGENT: Final = "/.warren/agent"
RUNNERS: Final = "/.warren/runners"
# With these checks Node would exit when a timer's callback is interrupted.
_NODE: Final = ("node", "--no-force-async-hooks-checks", f"{RUNNERS}/javascript/main.js")
PREFIX: Final = "ctx_"
CELL_PREFIX: Final = "cell_"
MAX_CONTEXTS: Final = 16
CONTEXT_IDLE_S: Final = 3600.0

MAX_FRAME: Final = 32 * 1024 * 1024
MAX_VALUES: Final = 100_000  # in all results of a cell: a value takes far more memory than its JSON
_MAX_PIECES: Final = 1000  # of stdout or stderr; later ones are joined
_MAX_DROPPED: Final = 1000  # events; later ones are not looked at
_JOINED: Final = 64 * 1024
_LARGEST: Final = 1 << 53
_HEADS: Final = struct.Struct(">BI")
_HEAD: Final = _HEADS.size
_TEXT: Final = b"oe"

# Exit codes of the program that runs one cell.
CELL_NO_KEEPER: Final = 69
CELL_LOST: Final = 70
CELL_BUSY: Final = 75
NO_PROGRAM: Final = 127


@dataclass(frozen=True, slots=True)
class Language:
    """`argv`: starts its runner. `also`: other names for the language. `program`: what the image must contain. `needs`:
    which version of the program, if not every version will do."""

    name: str
    program: str
    argv: tuple[str, ...]
    also: tuple[str, ...]
    needs: str = ""

    @property
    def default_context(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def judged_start(self) -> tuple[str, ...]:
        """Returns the command that policies judge when the interpreter is started: one without code."""
        return (self.program, self._option, ":" if self.name == "bash" else "")

    @property
    def _option(self) -> str:
        return "-c" if self.name in ("python", "bash") else "-e"

    def judged_as(self, code: str) -> str | tuple[str, ...]:
        """Returns the command that policies judge, and that the audit record shows, for a cell with this code."""
        if self.name == "bash":
            return code or ":"
        return (self.program, self._option, code)


LANGUAGES: Final = {
    language.name: language
    for language in (
        Language("python", "python3", ("python3", f"{RUNNERS}/python/main.py"), ("python3", "py")),
        Language("javascript", "node", _NODE, ("node", "js")),
        Language("bash", "bash", ("bash", f"{RUNNERS}/bash/main.sh"), ("sh", "shell")),
        Language("r", "Rscript", ("sh", f"{RUNNERS}/r/main.sh"), ("R",)),
        Language("typescript", "node", (*_NODE, "typescript"), ("ts",), "Node 22.13 or later"),
        Language("java", "jshell", ("sh", f"{RUNNERS}/java/main.sh"), (), "jshell (of a JDK)"),
    )
}
_BY_NAME: Final = {name: language for language in LANGUAGES.values() for name in (language.name, *language.also)}
_ID: Final = re.compile(rf"{PREFIX}({'|'.join(LANGUAGES)})(_[0-9a-f]{{8}})?")


def find_language(name: str) -> Language:
    language = _BY_NAME.get(name)
    if language is None:
        raise InvalidRequest(f"there is no language {name[:80]!r}", remedy=f"there are: {', '.join(LANGUAGES)}")
    return language


def language_of(context_id: str) -> Language | None:
    """Returns the language of a context with this id, or None if the id cannot be a context's."""
    found = _ID.fullmatch(context_id)
    return LANGUAGES[found[1]] if found else None


def is_context(process_id: str) -> bool:
    """Returns whether this is the id of a context's keeper. Callers cannot give such an id to their own processes."""
    return process_id.startswith(PREFIX) and _ID.fullmatch(process_id) is not None


def check_not_reserved(process_id: str) -> None:
    if is_context(process_id) or process_id.startswith(CELL_PREFIX):
        raise InvalidRequest(
            f"the id {process_id!r} is one of those that contexts and their cells have", remedy="give another one"
        )


@dataclass(frozen=True, slots=True)
class ContextStatus:
    """`state`: idle, busy or lost. `lost_reason`: oom, killed or exited."""

    id: str
    language: str
    state: str
    cwd: str
    version: str
    default: bool
    started_s_ago: float
    lost_reason: str | None = None


@dataclass(frozen=True, slots=True)
class CodeError:
    name: str
    value: str
    traceback: str


CodeResult = dict[str, Any]
"""A value that a cell gave or displayed, in one or several formats. `read_result` says what it may hold."""

FORMATS: Final = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "javascript")
_TEXTS: Final = (*FORMATS, "display_id")
_ANY: Final = ("json", "data", "chart")


def read_result(values: dict[str, Any]) -> CodeResult | None:
    """Reads the result in an event of a runner; returns None if a field has a wrong type."""
    result: CodeResult = {"is_main_result": values.get("is_main_result", False)}
    if not isinstance(result["is_main_result"], bool):
        return None
    for name in _TEXTS:
        if (text := values.get(name)) is not None:
            if not isinstance(text, str):
                return None
            result[name] = text
    for name in _ANY:
        if name in values and values[name] is not None:
            result[name] = values[name]
    if (extra := values.get("extra")) is not None:
        if not isinstance(extra, dict):
            return None
        result["extra"] = extra
    if (cut := values.get("cut")) is not None:
        if not (isinstance(cut, list) and all(isinstance(name, str) for name in cut)):
            return None
        result["cut"] = cut
    return result


class Frame(NamedTuple):
    kind: str
    data: bytes


class BadFrames(Exception):
    """The bytes are not frames."""


class FrameReader:
    """Takes bytes in pieces of any size and yields complete frames.

    After the first thousand frames, those of text that follow each other are joined: each costs far more as an event
    than as a frame.
    """

    def __init__(self, kinds: str = "boercxlh") -> None:
        self._kinds = kinds.encode()
        self._data = bytearray()
        self._separate = _MAX_PIECES

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are now complete. Raises BadFrames at the first byte that does not begin a frame."""
        buffer, at = self._data, 0
        buffer += data
        try:
            while (head := self._head(at)) is not None:
                kind, size = head
                begin, at = at + _HEAD, at + _HEAD + size
                if size > _JOINED:
                    end, at = at, 0
                    yield self._take(kind, begin, end)
                elif self._separate > 0 or kind not in _TEXT:
                    self._separate -= 1
                    yield Frame(chr(kind), bytes(memoryview(buffer)[begin:at]))
                else:
                    text, at = self._join(kind, begin, at)
                    yield Frame(chr(kind), text)
        finally:
            del buffer[:at]

    def _head(self, at: int) -> tuple[int, int] | None:
        """Returns kind and size of the frame that begins there, or None if it is not complete."""
        buffer = self._data
        if len(buffer) - at < _HEAD:
            return None
        kind, size = _HEADS.unpack_from(buffer, at)
        if kind not in self._kinds or size > MAX_FRAME:
            raise BadFrames(f"no frame begins with {bytes(buffer[at : at + _HEAD])!r}")
        return (kind, size) if len(buffer) - at - _HEAD >= size else None

    def _join(self, kind: int, begin: int, end: int) -> tuple[bytes, int]:
        """Returns the text of this frame and of those of its kind that follow, and where the last one ends."""
        buffer, start, text = self._data, begin, self._data[begin:end]
        while end - start < _JOINED and end < len(buffer) and buffer[end] == kind:
            if (head := self._head(end)) is None or head[1] > _JOINED:
                break
            begin, end = end + _HEAD, end + _HEAD + head[1]
            text += buffer[begin:end]
        return bytes(text), end

    def _take(self, kind: int, begin: int, end: int) -> Frame:
        """Returns a long frame after removing its bytes from the buffer, so that they are in memory only once."""
        taken = Frame(chr(kind), bytes(memoryview(self._data)[begin:end]))
        del self._data[:end]
        return taken


def frame(kind: str, data: bytes) -> bytes:
    return kind.encode() + len(data).to_bytes(4, "big") + data


class CellEvent(NamedTuple):
    """`kind`: begin, stdout, stderr, result or clear_output. `size`: about how many bytes it adds to an answer."""

    kind: str
    values: dict[str, Any]
    size: int = 0


class CellReader:
    """Turns the output of a cell's program into events.

    `ended`: the runner reported the end, with `execution_count` and `error`. `lost`: why the context is gone, in the
    keeper's words (`signal 9`, `exit 3`, `gone`). After bytes that are not frames it reads nothing more.
    """

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._decoders = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in "oe"}
        self._broken = False
        self._values_left = MAX_VALUES
        self.begun = False
        self.ended = False
        self.lost: str | None = None
        self.execution_count: int | None = None
        self.error: CodeError | None = None
        self.dropped_text = 0
        self.dropped_events = 0

    def events(self, data: bytes) -> Iterator[CellEvent | None]:
        """Yields the events in the next piece of output. A None marks a point where the caller may let other tasks
        run."""
        if self._broken:
            return
        try:
            for found in self._frames.feed(data):
                if found.kind == "r" and self.dropped_events >= _MAX_DROPPED:
                    self.dropped_events += 1
                    yield None
                    continue
                steps = self._read_event(found.data) if found.kind == "r" else self._read(*found)
                del found  # keeps a long frame from being in memory twice
                yield from steps
        except BadFrames:
            self._broken = True
            self.dropped_events += 1

    def _read(self, kind: str, payload: bytes) -> Iterator[CellEvent | None]:
        if kind in "oe":
            for begin in range(0, len(payload), _JOINED):
                if text := self._decoders[kind].decode(payload[begin : begin + _JOINED]):
                    yield CellEvent("stdout" if kind == "o" else "stderr", {"text": text}, len(text))
        elif kind == "x":
            yield from self._read_end(payload)
        elif kind == "b":
            self.begun = True
            yield CellEvent("begin", {})
        elif kind == "l":
            self.lost = payload[:100].decode("ascii", "replace")
        elif kind == "c":
            self._read_cut(payload)

    def break_off(self) -> None:
        """Stops reading: a part of the output is missing, so the rest makes no sense."""
        self._broken = True

    def finish(self) -> Iterator[CellEvent]:
        """Yields what is left at the end of the output: a replacement for a character that came only in part."""
        for kind, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                yield CellEvent("stdout" if kind == "o" else "stderr", {"text": text}, len(text))

    def _read_event(self, payload: bytes) -> Iterator[CellEvent | None]:
        found: tuple[Any, int] | None = None
        try:
            for step in read_and_count(payload, self._values_left):
                found = step
                yield None
        except (WarrenError, RecursionError):
            found = None
        size = len(payload)
        del payload
        values, count = found or (None, 0)
        if isinstance(values, dict):
            self._values_left -= count
            if values.get("type") == "result" and (result := read_result(values)) is not None:
                yield CellEvent("result", result, size)
                return
            if values.get("type") == "clear_output" and isinstance(values.get("wait", False), bool):
                yield CellEvent("clear_output", {"wait": values.get("wait", False)})
                return
        self.dropped_events += 1

    def _read_end(self, payload: bytes) -> Iterator[CellEvent | None]:
        self.ended = True
        values: Any = None
        try:
            for step in read_in_steps(payload, MAX_VALUES):
                values = step
                yield None
            if not isinstance(values, dict):
                raise TypeError
            count, error = values.get("execution_count"), values.get("error")
            if count is not None and not (type(count) is int and 0 <= count < _LARGEST):
                raise TypeError
            self.execution_count = count
            if error is not None:
                self.error = CodeError(*(_text(error[name]) for name in ("name", "value", "traceback")))
        except (WarrenError, RecursionError, TypeError, KeyError):
            self.dropped_events += 1

    def _read_cut(self, payload: bytes) -> None:
        what, _, count = payload[:64].decode("ascii", "replace").partition(" ")
        if count.isdecimal() and count.isascii():
            if what == "text":
                self.dropped_text += int(count)
            elif what == "events":
                self.dropped_events += int(count)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


@dataclass(slots=True)
class CellExecution:
    """The result of a cell. `reason`: exited, timeout, cancelled, context_lost, refused, sandbox_lost, or running.

    `size`: about how many bytes it holds. `room`: how many it may hold; what does not fit is counted as dropped.
    """

    id: str
    context_id: str
    language: str
    timeout_s: float | None = None
    results: list[CodeResult] = field(default_factory=list)
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    error: CodeError | None = None
    execution_count: int | None = None
    reason: str = "running"
    context_lost: str | None = None
    duration_ms: float = 0.0
    truncated: bool = False
    dropped_text: int = 0
    dropped_events: int = 0
    room: int = 2 * MAX_FRAME
    size: int = 0

    def add(self, event: CellEvent) -> None:
        if event.kind not in ("result", "stdout", "stderr"):
            return
        is_text = event.kind != "result"
        if self.size + event.size > self.room:
            self.dropped_text += event.size if is_text else 0
            self.dropped_events += not is_text
            return
        self.size += event.size
        if not is_text:
            self.results.append(event.values)
            return
        log, text = self.stdout if event.kind == "stdout" else self.stderr, event.values["text"]
        if len(log) >= _MAX_PIECES and len(log[-1]) < _JOINED:
            log[-1] += text
        else:
            log.append(text)

    def note(self, reader: CellReader) -> None:
        """Copies what the reader knows apart from events: the error, the count, and how much was dropped."""
        self.error, self.execution_count = reader.error, reader.execution_count
        self.dropped_text += reader.dropped_text
        self.dropped_events += reader.dropped_events
        self.truncated = bool(self.dropped_text or self.dropped_events)

    def close(self, reader: CellReader, ended: ExecResult, said: str, lost: str | None) -> None:
        """Records how the cell ended. `said`: the stderr of the cell's program. `lost`: why the context is gone, if it
        is."""
        self.note(reader)
        self.duration_ms = round(ended.duration_ms, 3)
        self.context_lost = lost
        self.reason, self.error = _outcome(self, reader, ended, said.strip()[-2000:])


def _outcome(
    execution: CellExecution, reader: CellReader, ended: ExecResult, said: str
) -> tuple[str, CodeError | None]:
    trace, lost = reader.error.traceback if reader.error else "", execution.context_lost
    if ended.reason is Reason.TIMEOUT:
        after = (
            f"the cell ran longer than {execution.timeout_s:g} s" if execution.timeout_s else "the cell ran too long"
        )
        after += "; it did not heed the interrupt, and what its context held is lost" if lost else ""
        return "timeout", CodeError("TimeoutError", after, trace)
    if ended.reason is Reason.REFUSED:
        return "refused", CodeError("CommandRefused", said, "")
    if ended.reason is Reason.SANDBOX_LOST:
        return "sandbox_lost", CodeError("SandboxLost", said or "the sandbox is lost", trace)
    if lost is not None:
        why = {"oom": "it ran out of memory", "killed": "it was killed"}.get(lost, "it exited")
        return "context_lost", CodeError("ContextLost", f"the context {execution.context_id} has ended: {why}", trace)
    if ended.reason is Reason.CANCELLED:
        return "cancelled", reader.error or CodeError("Cancelled", "the cell was ended", "")
    if not reader.ended:
        how = said or f"exit code {ended.exit_code}"
        return "cancelled", CodeError("Cancelled", f"the program that ran the cell was ended: {how}", "")
    return "exited", reader.error


def read_execution(execution: CellExecution, reader: CellReader, pieces: Iterable[bytes]) -> Iterator[None]:
    """Adds the events in the output of the cell's program. At each yield the caller may let other tasks run."""
    for piece in pieces:
        for event in reader.events(piece):
            if event is not None:
                execution.add(event)
            yield
    for event in reader.finish():
        execution.add(event)
