"""Logs: a line is an event name that never changes, and fields.

    log = get_log(__name__)
    log.info("session_created", session=session.id, tenant=session.tenant, pooled=True, ms=2.9)

As text: `2026-01-02T03:04:05.678Z info    session_created session=s_1 tenant=acme pooled=true ms=2.9 request=r_1`; as
JSON the same fields in one object. Values with spaces or control characters are quoted, so a line is always one line.
Lines of libraries have the event `log` and a `message`. The server's command sets the format up once.
"""

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, TextIO

from warren.kernel.tracing import current_span

_ROOT: Final = "warren"
_LEVELS: Final = {
    logging.getLevelName(name): name.lower() for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
}
_PLAIN: Final = re.compile(r'[^ "=]+')
_QUIET: Final = ("uvicorn", "asyncio", "aiodocker", "websockets")


Fields = Mapping[str, object]


class EventLog:
    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, *, exc: BaseException | None = None, **fields: object) -> None:
        """Writes the line; with `exc`, its traceback follows."""
        self._write(logging.ERROR, event, fields, exc)

    def _write(self, level: int, event: str, fields: dict[str, object], exc: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if exc is None and _handlers and logging.root.handlers == _handlers:
            _handlers[0].write_line(self._logger.name, level, event, fields)
            return
        # `Logger.log` would search the stack for the caller's line, which costs more than everything else here.
        traceback = (type(exc), exc, exc.__traceback__) if exc is not None else None
        record = logging.LogRecord(self._logger.name, level, "", 0, event, (), traceback)
        record.fields = fields
        self._logger.handle(record)


def get_log(name: str) -> EventLog:
    return EventLog(name)


def _nothing() -> str:
    return ""


def set_up_logs(level: str, form: str, request_id: Callable[[], str] = _nothing, file: Path | None = None) -> None:
    """Writes the log to stderr, or to a file that is rotated: its older parts are FILE.1 to FILE.4.

    `request_id` returns the request that a line belongs to. Raises OSError if the file cannot be written.
    """
    lines = (JsonLines if form == "json" else TextLines)(request_id)
    handler = _Handler(lines, sys.stderr if file is None else RotatingFile(file))
    _handlers[:] = [handler]
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class TextLines(logging.Formatter):
    def __init__(self, request_id: Callable[[], str] = _nothing) -> None:
        super().__init__()
        self._request_id = request_id

    def line(self, logger: str, level: int, created: float, event: str, fields: Fields) -> str:
        request = self._request_id()
        if request and "request" not in fields:
            fields = {**fields, "request": request}
        if (span := current_span.get()) is not None:
            fields = {**fields, "trace": span.context.trace_id}
        shown = f"{_time(created)} {_LEVELS.get(level, str(level)):7} {event}"
        for name, value in fields.items():
            if (type(value) is str and _PLAIN.fullmatch(value) and value.isprintable()) or type(value) is int:
                shown += f" {name}={value}"
            elif type(value) is float:
                shown += f" {name}={value:.6g}"
            elif value is not None:
                shown += f" {name}={_text(value)}"
        return shown

    def format(self, record: logging.LogRecord) -> str:
        line = self.line(record.name, record.levelno, record.created, *_parts(record))
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    def __init__(self, request_id: Callable[[], str] = _nothing) -> None:
        super().__init__()
        self._request_id = request_id

    def line(self, logger: str, level: int, created: float, event: str, fields: Fields) -> str:
        start = {"time": _time(created), "level": _LEVELS.get(level, str(level)), "logger": logger, "event": event}
        shown = {
            name: value if isinstance(value, int | float) else str(value)
            for name, value in fields.items()
            if value is not None
        }
        span = current_span.get()
        belongs_to = {"request": self._request_id(), "trace": span.context.trace_id if span is not None else ""}
        return json.dumps({**start, **{name: value for name, value in belongs_to.items() if value}, **shown})

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _parts(record)
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        return self.line(record.name, record.levelno, record.created, event, fields)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes the events of EventLog without the steps that `logging` takes for the records of libraries."""

    def __init__(self, lines: TextLines | JsonLines, stream: "TextIO | RotatingFile") -> None:
        super().__init__(stream)  # type: ignore[arg-type]  # it writes and flushes, no more
        self.setFormatter(lines)
        self._lines = lines

    def write_line(self, logger: str, level: int, event: str, fields: Fields) -> None:
        try:
            # Both stderr and the file flush whole lines by themselves.
            self.stream.write(self._lines.line(logger, level, time.time(), event, fields) + "\n")
        except Exception:
            self.handleError(logging.LogRecord(logger, level, "", 0, event, (), None))


class RotatingFile:
    """A log file that only its owner can read, and that is renamed when it is full."""

    def __init__(self, path: Path, max_bytes: int = 10 * 1024 * 1024, kept: int = 5) -> None:
        self._path, self._max_bytes, self._kept = path, max_bytes, kept
        self._file = self._open()

    def write(self, text: str) -> int:
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self._size + size > self._max_bytes:
            self._rotate()
        self._size += size  # counted, because `tell` would take longer than all the rest of a line
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> TextIO:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(fd).st_size
        return os.fdopen(fd, "a", buffering=1)

    def _rotate(self) -> None:
        """Renames the parts. If that fails, the file keeps growing: losing lines would be worse."""
        with contextlib.suppress(OSError):
            for number in range(self._kept - 1, 0, -1):
                older = self._part(number - 1)
                if older.exists():
                    older.replace(self._part(number))
            fresh = self._open()
            self._file.close()
            self._file = fresh

    def _part(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


_handlers: list[_Handler] = []


def _parts(record: logging.LogRecord) -> tuple[str, Fields]:
    fields: Fields | None = getattr(record, "fields", None)
    if fields is None:
        return "log", {"source": record.name, "message": record.getMessage()}
    return record.msg, fields


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text.isprintable() and _PLAIN.fullmatch(text) else json.dumps(text)


def _time(created: float) -> str:
    seconds, milliseconds = divmod(int(created * 1000), 1000)
    return f"{_second(seconds)}.{milliseconds:03}Z"


@lru_cache(maxsize=4)
def _second(created: int) -> str:
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%S")
