"""A log line is one line: an event name, then fields."""

import json
import logging
import re
from datetime import datetime
from pathlib import Path

import pytest

from warren.kernel.logs import JsonLines, RotatingFile, TextLines, get_log

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


def test_a_log_file_is_renamed_when_it_is_full_and_the_oldest_part_goes(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    file = RotatingFile(path, max_bytes=100, kept=3)
    for number in range(40):
        file.write(f"line {number:04}\n")
    file.close()
    parts = [tmp_path / name for name in ("server.log.2", "server.log.1", "server.log")]
    assert sorted(tmp_path.iterdir()) == sorted(parts)
    assert "".join(part.read_text() for part in parts) == "".join(f"line {number:04}\n" for number in range(10, 40))
    assert all(part.stat().st_mode & 0o777 == 0o600 for part in parts)
    again = RotatingFile(path, max_bytes=100, kept=3)
    again.write("more\n")
    again.close()
    assert path.read_text() == "more\n"
