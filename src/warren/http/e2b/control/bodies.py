"""Reads the fields of JSON bodies and queries. What is wrong becomes a 400. Fields that nobody asks for are ignored."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from warren.http.e2b.errors import E2bError

_SHOWN: Final = 80
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def bad(message: str) -> E2bError:
    return E2bError(400, message)


def read_flag(values: Mapping[str, Any], name: str) -> bool | None:
    """Returns None if the field is absent or null; so do `read_text`, `read_whole` and `read_object`."""
    value = values.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise bad(f"{name} must be true or false")


def read_text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad(f"{name} must be a text")


def read_whole(values: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
    if not is_whole or isinstance(value, bool):
        raise bad(f"{name} must be a whole number")
    return _within(name, int(value), least, most)


def read_texts(values: Mapping[str, Any], name: str, most: int) -> dict[str, str]:
    """Reads an object whose values are texts."""
    value = values.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise bad(f"{name} must be an object whose values are texts")
    if len(value) > most:
        raise bad(f"{name} has {len(value)} entries, at most {most} are taken")
    return value


def read_list(values: Mapping[str, Any], name: str, most: int) -> list[str]:
    value = values.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise bad(f"{name} must be a list of texts")
    if len(value) > most:
        raise bad(f"{name} has {len(value)} entries, at most {most} are taken")
    return value


def read_object(values: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = values.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise bad(f"{name} must be an object")


def whole_in_query(text: str, name: str, least: int, most: int) -> int | None:
    """Returns None for an empty text."""
    if not text:
        return None
    if not _WHOLE.fullmatch(text):
        raise bad(f"{name} is {text[:_SHOWN]!a}, it must be a whole number")
    return _within(name, int(text), least, most)


def moment_in_query(text: str, name: str) -> float | None:
    """Reads an ISO 8601 date and time, and returns seconds since the epoch."""
    if not text:
        return None
    try:
        # The plus of an offset that was not encoded arrives as a space.
        moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise bad(f"{name} is {text[:_SHOWN]!a}, it must be a date and time such as 2026-01-31T12:00:00Z") from None


def _within(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise bad(f"{name} must be between {least} and {most}")
    return value
