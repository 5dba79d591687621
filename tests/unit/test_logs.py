"""A log line is one line: an event name, then fields."""

import json
import logging
import re
from datetime import datetime
from pathlib import Path

import pytest

from warren.logs import JsonLines, TextLines, get_log

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def written(formatter: logging.Formatter, level: str = "info", event: str = "session_created", **fields: object) -> str:
    records: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, handler = logging.getLogger("warren.a_test"), Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        getattr(get_log("warren.a_test"), level)(event, **fields)
    finally:
        logger.removeHandler(handler)
    return (
        formatter.format(records[0]).split(" ", 1)[1]
        if isinstance(formatter, TextLines)
        else formatter.format(records[0])
    )


def test_a_text_line_is_the_event_and_its_fields() -> None:
    line = written(TextLines(), session="s_1", pooled=True, ms=2.9, reason=None)
    assert line == "info    session_created session=s_1 pooled=true ms=2.9"


def test_a_line_names_the_request_it_belongs_to() -> None:
    assert written(TextLines(lambda: "r_1")).endswith("session_created request=r_1")
    assert json.loads(written(JsonLines(lambda: "r_1")))["request"] == "r_1"


@pytest.mark.parametrize("value", ["two words", 'a "quote"', "a=b", "new\nline", "\x1b[31m", "", "bad \udcff byte"])
def test_a_value_cannot_break_its_line_or_imitate_a_field(value: str) -> None:
    line = written(TextLines(), path=value)
    assert line == f"info    session_created path={json.dumps(value)}"
    assert line.isprintable()
    assert json.loads(written(JsonLines(), path=value))["path"] == value


def test_json_keeps_numbers_and_the_traceback() -> None:
    try:
        raise ValueError("broken")
    except ValueError as exc:
        values = json.loads(written(JsonLines(), "error", "task_failed", exc=exc, tries=3))
    assert (values["event"], values["level"], values["tries"]) == ("task_failed", "error", 3)
    assert "ValueError: broken" in values["exception"]


def test_a_line_of_a_library_is_shown_with_its_message() -> None:
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "went %s", ("wrong",), None)
    assert TextLines().format(record).endswith('error   log source=uvicorn.error message="went wrong"')


def test_the_lines_that_operations_shows_are_written_like_that() -> None:
    texts, objects = re.findall(r"^```(?:text|json)\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    for text, shown in zip(texts.splitlines(), objects.splitlines(), strict=True):
        fields = json.loads(shown)
        time, level, logger, event = (fields.pop(name) for name in ("time", "level", "logger", "event"))
        record = logging.LogRecord(logger, getattr(logging, level.upper()), "", 0, event, (), None)
        record.created, record.fields = datetime.fromisoformat(time).timestamp(), fields
        assert TextLines().format(record) == text
        assert JsonLines().format(record) == shown
