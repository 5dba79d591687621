"""Logs: one line per event, as text or JSON, with control characters escaped. Named once, set up once."""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

_ROOT: Final = "warren"
_QUIET: Final = ("uvicorn", "asyncio", "aiodocker", "websockets")


def set_up_logs(level: str, form: str, request_id: Callable[[], str] = lambda: "") -> None:
    """Writes the log to stderr. `request_id` tells which request a line belongs to."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(request_id) if form == "json" else TextLines(request_id))
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
        chosen = self._request_id()
        where = f" [{chosen}]" if chosen else ""
        line = f"{_time(record)} {record.levelname.lower():7} {record.name}{where}: {_one_line(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    def __init__(self, request_id: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self._request_id = request_id

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if chosen := self._request_id():
            values["request_id"] = chosen
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
