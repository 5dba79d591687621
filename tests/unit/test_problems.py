"""Errors as answers."""

import json
from typing import Any

import pytest

from warren.http.problems import MEDIA_TYPE, internal_problem, problem
from warren.model.errors import InvalidJson, LimitReached, NoCapacity, SessionNotFound, TooLarge, WarrenError
from warren.model.strict_json import MAX_VALUES, read_in_steps, read_json
from warren.sessions.validation import validation_error


def body_of(exc: WarrenError, instance: str = "") -> dict[str, Any]:
    found = json.loads(bytes(problem(exc, instance).body))
    assert isinstance(found, dict)
    return found


def test_a_problem_says_everything_once() -> None:
    answer = problem(SessionNotFound("there is no session abc", remedy="list them"))
    assert answer.status_code == 404
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert json.loads(bytes(answer.body)) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "session_not_found",
        "detail": "there is no session abc",
        "remedy": "list them",
        "retryable": False,
    }


def test_what_is_empty_is_left_out() -> None:
    assert "remedy" not in body_of(SessionNotFound("gone"))
    assert "instance" not in body_of(SessionNotFound("gone"))
    assert body_of(SessionNotFound("gone"), "/v1/a")["instance"] == "/v1/a"


@pytest.mark.parametrize(
    ("exc", "wait"),
    [
        (NoCapacity("full", retry_after_s=2.1), "3"),
        (NoCapacity("full", retry_after_s=0.001), "1"),
        (NoCapacity("full", retry_after_s=0), "1"),
        (NoCapacity("full"), "1"),
        (LimitReached("slower"), "1"),
        (SessionNotFound("gone"), None),
        (SessionNotFound("not yet", retry_after_s=5), "5"),
    ],
)
def test_when_to_try_again_is_in_whole_seconds(exc: WarrenError, wait: str | None) -> None:
    assert problem(exc).headers.get("retry-after") == wait


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00\r\n", "😀", '"\\'])
def test_no_text_breaks_the_answer(text: str) -> None:
    answer = problem(SessionNotFound(text, remedy=text), text)
    assert bytes(answer.body).isascii()
    json.loads(bytes(answer.body))["detail"].encode("utf-8")


def test_an_internal_error_is_logged_once_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    exc = RuntimeError("the secret")
    answers = [internal_problem(exc), internal_problem(exc)]
    assert answers[0].body == answers[1].body
    assert b"secret" not in bytes(answers[0].body)
    (record,) = caplog.records
    assert record.message == "internal_error"
    assert record.fields == {"error_id": json.loads(bytes(answers[0].body))["error_id"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True, "x"]}, "\U0001f600", [[[]]], [[] for _ in range(1000)], "[" * 1000, 10**400]
)
def test_valid_json_is_read(value: object) -> None:
    assert read_json(json.dumps(value).encode()) == value


def test_a_byte_order_mark_is_ignored() -> None:
    assert read_json(b"\xef\xbb\xbf1") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "line 1, column 1"),
        (b'{\n "a": 1,\n}', "line 3, column 1|line 2"),
        (b"[NaN]", "NaN"),
        (b"[1e400]", "1e400"),
        (b'"\\ud83d"', "surrogate"),
        (b'"\\ude00\\ud83d"', "surrogate"),
        (rb'"\ud83d\\\ude00"', "surrogate"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"\xff\xfe1\x00", "UTF-8"),
        (b"[" * 101 + b"]" * 101, "nested"),
        (b'{"a":' * 200_000, "nested"),
        (b'"' + b"\\" * 100_001 + b"[" * 200, "JSON"),
    ],
)
def test_invalid_json_is_refused_with_a_reason(body: bytes, said: str) -> None:
    with pytest.raises(InvalidJson, match=said):
        read_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b'"",' * 100_000,
        b"[]" * 1_000_000,
        b"[" + b'{"a":"b"},' * 400_000 + b"1]",
    ],
)
def test_a_body_of_very_many_values_is_refused_before_any_is_made(body: bytes) -> None:
    with pytest.raises(TooLarge, match="values"):
        read_json(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" + b",".join([b"9" * 129] * 600) + b"]", "digits"),
        (b"[0." + b"7" * 129 + b"," * 70_000 + b"]", "digits"),
        (b"[1" + b" " * (2 * 1024 * 1024) + b"]", "outside of texts"),
        (b"[" + b"[]," * 25_100 + b"[" * 900 + b"]" * 901, "nested"),
    ],
)
def test_what_would_take_long_to_read_is_refused_before_any_of_it_is_read(body: bytes, said: str) -> None:
    with pytest.raises(WarrenError, match=said):
        list(read_in_steps(body, 100_000))


def test_text_may_hold_as_many_commas_as_it_likes() -> None:
    assert read_json(json.dumps(["," * (2 * MAX_VALUES)] * 3).encode()) == ["," * (2 * MAX_VALUES)] * 3
    assert len(read_json(b"[" + b"1," * (MAX_VALUES - 1) + b"1]")) == MAX_VALUES
    quoted = ['"[{,}]"' * MAX_VALUES] * 3
    assert read_json(json.dumps(quoted).encode()) == quoted
    pairs = {f'"{number}"': "value" for number in range(MAX_VALUES)}
    assert read_json(json.dumps(pairs).encode()) == pairs


def test_the_value_of_a_variable_is_not_repeated_in_an_error() -> None:
    wrong = {"type": "string_type", "loc": ("env", "TOKEN"), "msg": "", "input": 12345678}
    assert validation_error([wrong]).message == "`env.TOKEN` must be a string"
    assert "12345678" in validation_error([{**wrong, "loc": ("cwd",)}]).message
