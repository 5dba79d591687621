"""What running code gives: an `Execution` with the `Result`s that the code has shown.

The names are those that users of code interpreters know. Values come from a sandbox: nothing here runs them, and what
a notebook displays of a `Result` cannot run scripts in the notebook.
"""

import base64
import binascii
import html
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from warren.model.errors import InvalidRequest
from warren.sdk import results
from warren.sdk.results import SavedArtifacts

_FORMATS: Final = (
    "text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "data", "chart",
)  # fmt: skip
_ENCODED: Final = frozenset({"png", "jpeg", "pdf"})
# Which format a file is saved in, by its suffix; and, for a file without one, the first that the result has.
_SUFFIXES: Final = {
    ".png": "png",
    ".jpeg": "jpeg",
    ".jpg": "jpeg",
    ".svg": "svg",
    ".pdf": "pdf",
    ".html": "html",
    ".md": "markdown",
    ".tex": "latex",
    ".json": "json",
    ".js": "javascript",
    ".txt": "text",
}
_FRAME: Final = (
    '<iframe sandbox="" style="width: 100%; height: 20em; border: 0; resize: vertical" srcdoc="{}"></iframe>'
)


@dataclass(frozen=True, slots=True, repr=False)
class Result(results.BaseResult):
    """A value that code has shown: the value of a cell's last expression (`is_main_result`), or one it displayed.

    Every field is a format of the same value, and None if it has none in that format. `png`, `jpeg` and `pdf` are
    base64. `data` is a table as columns, `chart` what a chart shows. `extra` has formats without a field, by their MIME
    type. `cut` names the formats that were too long: texts are shortened, others left out.
    """

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: Any = None
    chart: Any = None
    is_main_result: bool = False
    extra: dict[str, Any] | None = None
    cut: list[str] = field(default_factory=list)
    display_id: str | None = None

    def __repr__(self) -> str:
        return f"<Result {', '.join(self.formats()) or 'empty'}>"

    def __str__(self) -> str:
        return self.text if self.text is not None else repr(self)

    def formats(self) -> list[str]:
        """Returns the names of the formats that it has."""
        return [name for name in _FORMATS if getattr(self, name) is not None] + list(self.extra or {})

    def given(self) -> dict[str, Any]:
        """Returns the fields that have a value."""
        return {name: value for name, value in dict(self).items() if value not in (None, [])}

    @property
    def is_picture(self) -> bool:
        """Whether it can be shown as a picture."""
        return any(getattr(self, name) is not None for name in ("png", "jpeg", "svg"))

    def to_bytes(self, name: str) -> bytes:
        """Returns the content of a file in that format. Raises InvalidRequest if the result does not have it."""
        value = getattr(self, name) if name in _FORMATS else (self.extra or {}).get(name)
        if value is None:
            raise InvalidRequest(f"the result has no {name}", remedy=f"it has: {', '.join(self.formats())}")
        if name in _ENCODED:
            return _decoded(name, value)
        return (value if isinstance(value, str) else json.dumps(value)).encode(errors="surrogateescape")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it into a local file, in the format that the suffix says; returns the file's path.

        A path without a suffix gets that of the first format there is, pictures before texts.
        """
        target = Path(path).expanduser()
        name = _SUFFIXES.get(target.suffix.lower())
        if name is None:
            if target.suffix:
                raise InvalidRequest(f"{target.name} is of no format that a result has", remedy=_SUFFIX_LIST)
            found = ((each, name) for each, name in _SUFFIXES.items() if getattr(self, name) is not None)
            suffix, name = next(found, (".txt", "text"))
            target = target.with_name(target.name + suffix)
        target.write_bytes(self.to_bytes(name))
        return target

    # What notebooks display. HTML and SVG come from a sandbox, so they are shown where no script of theirs runs.

    def _repr_html_(self) -> str | None:
        if self.html is not None:
            return _FRAME.format(html.escape(self.html))
        if self.svg is None:
            return None
        encoded = base64.b64encode(self.svg.encode(errors="replace")).decode()
        return f'<img src="data:image/svg+xml;base64,{encoded}">'

    def _repr_png_(self) -> str | None:
        return self.png

    def _repr_jpeg_(self) -> str | None:
        return self.jpeg

    def _repr_latex_(self) -> str | None:
        return self.latex

    def _repr_json_(self) -> Any:
        return self.json


_SUFFIX_LIST: Final = f"take one of {', '.join(_SUFFIXES)}"


def _decoded(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidRequest(f"the sandbox gave a {name} that is not base64") from None


@dataclass(frozen=True, slots=True)
class Logs(results.BaseResult):
    """The output of the code, in the pieces in which it came."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Returns the fields as a JSON document."""
        return json.dumps(dict(self))


@dataclass(frozen=True, slots=True)
class ExecutionError(results.BaseResult):
    """The error that ended the code: what it raised, a time-out (TimeoutError), or that its context was lost."""

    name: str
    value: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name

    def to_json(self) -> str:
        """Returns the fields as a JSON document."""
        return json.dumps(dict(self))


@dataclass(frozen=True)
class Execution(results.BaseResult):
    """The outcome of a piece of code. An error of the code is in `error`; it is not raised.

    `reason`: exited, timeout, cancelled, context_lost, refused or sandbox_lost. `context_lost`, if the interpreter
    died: oom, killed or exited; its variables are gone then. `truncated`: some output is missing, `dropped` says how
    much. `notice` is what the caller should know, such as that this is a fresh sandbox. `saved` are the artifacts, if
    some were asked for.
    """

    results: list[Result] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    execution_count: int | None = None
    id: str = ""
    context_id: str = ""
    language: str = ""
    reason: str = "exited"
    context_lost: str | None = None
    duration_ms: float = 0.0
    truncated: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    notice: str | None = None
    saved: SavedArtifacts | None = None

    _inner: ClassVar = {"results": Result, "logs": Logs, "error": ExecutionError, "saved": SavedArtifacts}

    @property
    def ok(self) -> bool:
        """Whether it ended by itself and without an error."""
        return self.error is None and self.reason == "exited"

    @property
    def text(self) -> str | None:
        """The text of the value of the code's last expression; None if it has none."""
        return next((each.text for each in self.results if each.is_main_result), None)

    def to_json(self) -> str:
        """Returns all of it as one JSON document."""
        return json.dumps({**self.to_dict(), "results": [each.given() for each in self.results]})


@dataclass(frozen=True, slots=True)
class CodeContext(results.BaseResult):
    """An interpreter in the sandbox that keeps its state. `state`: idle, busy or lost; then `lost_reason` says why.

    `default`: code that names no context runs in this one.
    """

    id: str
    language: str
    cwd: str = ""
    state: str = "idle"
    version: str = ""
    default: bool = False
    started_s_ago: float = 0.0
    lost_reason: str | None = None


class OutputMessage(str):
    """A piece of output, as a callback gets it: a text. `error` says whether it was written to stderr."""

    __slots__ = ("error", "timestamp")

    error: bool
    timestamp: int

    def __new__(cls, text: str, error: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.error, made.timestamp = error, time.time_ns()
        return made

    @property
    def line(self) -> str:
        """The text itself."""
        return str(self)


class ExecutionBuilder:
    """Collects the events of running code. `execution` returns what they add up to, once `end` has come."""

    def __init__(self) -> None:
        self.id = ""
        self._results: list[Result] = []
        self._logs = Logs()
        self._error: ExecutionError | None = None
        self._end: Mapping[str, Any] | None = None

    def add(self, name: str, values: Mapping[str, Any]) -> OutputMessage | Result | ExecutionError | None:
        """Takes an event; returns what a callback for events of that name gets."""
        if name in ("stdout", "stderr"):
            getattr(self._logs, name).append(values["text"])
            return OutputMessage(values["text"], name == "stderr")
        if name == "result":
            self._results.append(Result.of(values))
            return self._results[-1]
        if name == "error":
            self._error = ExecutionError.of(values)
            return self._error
        if name == "started":
            self.id = values["id"]
        elif name == "end":
            self._end = values
        return None

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    def execution(self, notice: str | None = None) -> Execution:
        ended = Execution.of({**(self._end or {}), "notice": notice})
        error = ended.error or self._error
        return replace(ended, results=self._results, logs=self._logs, error=error)
