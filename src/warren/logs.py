"""Logs: a line is an event name that never changes, and fields.

    log = get_log(__name__)
    log.info("session_created", session=session.id, tenant=session.tenant, pooled=True, ms=2.9)

As text: `2026-01-02T03:04:05.678Z info    session_created session=s_1 tenant=acme pooled=true ms=2.9 request=r_1`; as
JSON the same fields in one object. Values with spaces or control characters are quoted, so a line is always one line.
Lines of libraries have the event `log` and a `message`. The server's command sets the format up once.
"""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

_ROOT: Final = "warren"
_QUIET: Final = ("uvicorn", "asyncio", "aiodocker", "websockets")


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
        """With `exc` the traceback follows the line."""
        self._write(logging.ERROR, event, fields, exc)

    def writes(self, level: int) -> bool:
        """Whether lines of this level are written: for callers that would have to work for their fields."""
        return self._logger.isEnabledFor(level)

    def _write(self, level: int, event: str, fields: dict[str, object], exc: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        # `Logger.log` would look for the caller's line on the stack, which costs more than all the rest.
        traceback = (type(exc), exc, exc.__traceback__) if exc is not None else None
        record = logging.LogRecord(self._logger.name, level, "", 0, event, (), traceback)
        record.fields = fields
        self._logger.handle(record)


def get_log(name: str) -> EventLog:
    return EventLog(name)


def set_up_logs(level: str, form: str, request_id: Callable[[], str] = lambda: "") -> None:
    """Writes the log to stderr. `request_id` tells which request a line belongs to."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(request_id) if form == "json" else TextLines(request_id))
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class TextLines(logging.Formatter):
    def __init__(self, request_id: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self._request_id = request_id

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _parts(record, self._request_id())
        shown = "".join(f" {name}={_text(value)}" for name, value in fields.items())
        line = f"{_time(record)} {record.levelname.lower():7} {event}{shown}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    def __init__(self, request_id: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self._request_id = request_id

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _parts(record, self._request_id())
        values = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            **{name: value if isinstance(value, int | float) else str(value) for name, value in fields.items()},
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


def _parts(record: logging.LogRecord, request_id: str) -> tuple[str, dict[str, Any]]:
    ours: dict[str, Any] | None = getattr(record, "fields", None)
    if ours is None:
        event, fields = "log", {"source": record.name, "message": record.getMessage()}
    else:
        event, fields = record.msg, {name: value for name, value in ours.items() if value is not None}
    if request_id:
        fields.setdefault("request", request_id)
    return event, fields


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    is_plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text)


def _time(record: logging.LogRecord) -> str:
    seconds, milliseconds = divmod(int(record.created * 1000), 1000)
    return f"{_second(seconds)}.{milliseconds:03}Z"


@lru_cache(maxsize=4)
def _second(created: int) -> str:
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%S")
