"""What is logged, on its way to the files: events of commands, and pieces of their output.

`CommandLogs` runs in the writer's thread. It turns them into the entries that are kept, and remembers for each command
that writes what its next piece of output continues.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from warren.governance.audit.redaction import (
    MAX_SECRETS,
    MAX_SECRETS_HELD,
    NO_FORMS,
    CutText,
    Forms,
    cut_words,
    forms_of,
    joined,
    redacted,
    without,
)
from warren.governance.session_logs.texts import StreamText
from warren.kernel.bounded_dict import BoundedDict
from warren.model.code import CellReader
from warren.model.command_output import STDERR, CommandOutput, Piece
from warren.model.operations import OutputStream
from warren.model.session_log import LogLevel
from warren.sessions.schemas import timestamp

MOST_OUTPUT: Final = 64 * 1024
"""The most that one entry of output has, and the beginning and the end of a command's output that are kept."""
NO_TEXT: Final = "more variables than are searched for: nothing of commands and output is kept"
_MAX_RUNS: Final = 64
_WRITING: Final = 10_000
_STREAMS: Final = (OutputStream.STDOUT, OutputStream.STDERR, OutputStream.TERMINAL)
_TERMINAL: Final = 3

Values = dict[str, Any]


class OutputPart(NamedTuple):
    """Output of a command from `begin` on; what lies between its pieces, or between them and `end`, was not kept.
    `wait`: more will come soon."""

    pieces: Sequence[Piece] | CommandOutput
    begin: int
    end: int
    wait: bool = False

    @property
    def size(self) -> int:
        if isinstance(self.pieces, CommandOutput):
            return self.pieces.kept
        return sum(len(piece.data) + 64 for piece in self.pieces)

    def read(self) -> Sequence[Piece]:
        if isinstance(self.pieces, CommandOutput):
            return cut_middle(list(self.pieces.pieces()))
        return self.pieces


@dataclass(slots=True)
class NewEntry:
    """`values` are kept as they are, `command` without secrets. `secrets` None: there are more than are searched for.
    `output` makes entries of its own, before this one. An entry without `event` is output only. `is_last`: the command
    has ended. `is_cell`: its output is that of a cell's program."""

    tenant: str
    session_id: str
    level: LogLevel
    at: float
    kind: str
    command_id: str = ""
    event: str = ""
    values: Values = field(default_factory=dict)
    command: str | Sequence[str] = ""
    cwd: str = ""
    secrets: tuple[str, ...] | None = ()
    output: OutputPart | None = None
    is_last: bool = False
    is_cell: bool = False

    @property
    def name(self) -> tuple[str, str]:
        return self.tenant, self.session_id

    def measure(self) -> int:
        """Cuts what is too long to be looked at; returns how many characters it holds."""
        size = 300 + len(self.cwd)
        if self.secrets is not None:
            held = sum(map(len, self.secrets))
            if len(self.secrets) > MAX_SECRETS or held > MAX_SECRETS_HELD:
                self.secrets = None
            else:
                size += held
        if isinstance(self.command, str):
            if len(self.command) > 8192:
                self.command = CutText.of(self.command)
            size += len(self.command)
        else:
            self.command = cut_words(self.command) or self.command
            size += sum(map(len, self.command))
        if self.output is not None:
            size += self.output.size
        return size


class CommandLogs:
    """`with_text`: the texts of commands are kept."""

    def __init__(self, *, with_text: bool = True) -> None:
        self._with_text = with_text
        self._writing = BoundedDict[tuple[str, str], _Writing](_WRITING)

    def entries_of(self, new: NewEntry, *, with_output: bool = True) -> Iterator[Values]:
        """Yields the entries to be kept; without output if the log has no room for that."""
        forms = None if new.secrets is None else forms_of(new.secrets) if new.secrets else NO_FORMS
        known = new.session_id, new.command_id
        writing = self._writing.get(known)
        head = {"at": timestamp(new.at)}
        with_output = with_output and new.level is LogLevel.OUTPUT and forms is not None
        if new.output is not None:
            if writing is None:
                writing = self._writing[known] = _Writing(forms or NO_FORMS, is_cell=new.is_cell)
            for shown in writing.take(new.output):
                if with_output:
                    yield head | {"kind": "output", "command_id": new.command_id, **shown}
        extra: Values = {}
        if new.is_last and writing is not None:
            for shown in writing.finish():
                if with_output:
                    yield head | {"kind": "output", "command_id": new.command_id, **shown}
            extra = writing.outcome()
            del self._writing[known]
        if new.event:
            yield head | self._event(new, forms) | extra

    def _event(self, new: NewEntry, forms: Forms | None) -> Values:
        shown: Values = {"kind": new.kind, "event": new.event}
        if new.command_id:
            shown["command_id"] = new.command_id
        shown |= new.values
        if new.command and self._with_text:
            text = new.command
            shown["command"] = (
                NO_TEXT if forms is None else redacted(text if isinstance(text, str) else joined(text, forms), forms)
            )
        if new.cwd:
            shown["cwd"] = NO_TEXT if forms is None else without(new.cwd, forms)
        return shown


class _Writing:
    """A command that writes."""

    def __init__(self, forms: Forms, *, is_cell: bool) -> None:
        self._forms = forms
        self._texts: dict[str, StreamText] = {}
        self._cell = CellReader() if is_cell else None
        self._at = self._until = 0
        self._missing = 0

    def take(self, part: OutputPart) -> list[Values]:
        found: list[Values] = []
        runs, at = _runs(part.read(), max(self._at, part.begin))
        self._until = max(at, part.end)
        for stream, missing, data in runs:
            if missing:
                found += self._skip(missing)
            found += self._add(stream, data, wait=part.wait)
        if part.end > at:
            found += self._skip(part.end - at)
        self._at = self._until
        if not part.wait:
            for name, text in self._texts.items():
                found += self._show(name, text.add(b""))
        return found

    def _add(self, stream: int, run: bytearray, *, wait: bool) -> Iterator[Values]:
        name, data = str(_STREAMS[min(stream, _TERMINAL) - 1]), bytes(run)
        if self._cell is None:
            yield from self._show(name, self._text(name).add(data, wait=wait))
        elif stream != STDERR:
            for event in self._cell.events(data):
                if event is None:
                    continue
                text = event.values.get("text")
                if isinstance(text, str) and event.kind in (*_STREAMS, "result"):
                    text = text[:MOST_OUTPUT].encode(errors="replace") + (b"\n" if event.kind == "result" else b"")
                    yield from self._show(event.kind, self._text(event.kind).add(text, wait=wait))

    def _text(self, name: str) -> StreamText:
        if name not in self._texts:
            self._texts[name] = StreamText(self._forms)
        return self._texts[name]

    def _skip(self, missing: int) -> Iterator[Values]:
        self._missing += missing
        if self._cell is not None:
            self._cell.break_off()
        for name, text in self._texts.items():
            yield from self._show(name, text.skip(), missing=False)

    def _show(self, stream: str, text: str, *, missing: bool = True) -> Iterator[Values]:
        """What is missing is said with the text that follows it."""
        for begin in range(0, len(text), MOST_OUTPUT):
            said = {"missing": self._missing} if missing and self._missing else {}
            self._missing = 0 if missing else self._missing
            if self._cell is None:
                said["until"] = self._until
            yield {"stream": stream, "text": text[begin : begin + MOST_OUTPUT], **said}

    def finish(self) -> Iterator[Values]:
        if self._cell is not None:
            for event in self._cell.finish():
                yield from self._show(event.kind, self._text(event.kind).add(event.values["text"].encode()))
        for name, text in self._texts.items():
            yield from self._show(name, text.finish())
        if self._missing:
            yield {"stream": "stdout", "text": "", "missing": self._missing}

    def outcome(self) -> Values:
        """What the end of a cell says beside how its program ended."""
        if self._cell is None:
            return {}
        error = self._cell.error
        return {"execution_count": self._cell.execution_count, "error": None if error is None else error.name[:200]}


def cut_middle(pieces: Sequence[Piece]) -> list[Piece]:
    """Returns MOST_OUTPUT bytes of the beginning, and as many of the end."""
    if sum(len(piece.data) for piece in pieces) <= 2 * MOST_OUTPUT:
        return list(pieces)
    head, tail, room = list[Piece](), list[Piece](), MOST_OUTPUT
    for stream, offset, data in pieces:
        if room <= 0:
            break
        head.append(Piece(stream, offset, data[:room]))
        room -= len(data)
    room = MOST_OUTPUT
    for stream, offset, data in reversed(pieces):
        if room <= 0:
            break
        tail.append(Piece(stream, offset + max(0, len(data) - room), data[-room:]))
        room -= len(data)
    return head + tail[::-1]


def _runs(pieces: Sequence[Piece], at: int) -> tuple[list[tuple[int, int, bytearray]], int]:
    """Joins pieces of one stream that follow each other; if streams take turns too often, all pieces of each stream.
    Returns the stream, the bytes that are missing before it and the bytes of each run, and where the last one ends."""
    runs: list[tuple[int, int, bytearray]] = []
    for stream, offset, data in pieces:
        missing, at = max(0, offset - at), max(at, offset + len(data))
        if runs and runs[-1][0] == stream and not missing:
            runs[-1][2].extend(data)
        else:
            runs.append((stream, missing, bytearray(data)))
    if len(runs) <= _MAX_RUNS:
        return runs, at
    joined_runs: list[tuple[int, int, bytearray]] = []
    of_stream: dict[int, bytearray] = {}
    for stream, missing, run in runs:
        if missing:
            of_stream.clear()
        if stream not in of_stream:
            of_stream[stream] = bytearray()
            joined_runs.append((stream, missing, of_stream[stream]))
        of_stream[stream].extend(run)
    return joined_runs, at
