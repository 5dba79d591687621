"""Audit entries as they are kept: without secrets, of bounded size, one line of JSON each; and pages of them. Pure."""

import json
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from pydantic_core import to_json

from warren.governance.audit.redaction import (
    GONE,
    MAX_TEXT_HELD,
    NO_FORMS,
    Forms,
    contains_any,
    forms_of,
    joined,
    may_have_shapes,
    redacted,
    without_shapes,
)
from warren.interfaces.audit import MAX_ON_PAGE, Query
from warren.model.audit import COMMAND, AuditEntry, CommandText
from warren.model.errors import InvalidRequest

MAX_TEXT: Final = 2048
LEFT_OUT: Final = "[left out: more variables than are searched for]"
MAX_LINE: Final = 32 * 1024
SEARCH_BYTES: Final = 8 * 1024 * 1024  # the most that is read for one page
_MAX_NAME: Final = 256
_MAX_ENTRIES: Final = 64
_MAX_DEPTH: Final = 4
_MAX_PLAIN: Final = 16
_MAX_PLAIN_TEXT: Final = 1024
_MAX_VALUES: Final = 256  # of a whole entry
_MAX_WORK: Final = 64 * 1024  # characters of a whole entry that are searched for secrets
_MAX_FIGURE: Final = 1 << 63
_FIELDS: Final = tuple(each.name for each in fields(AuditEntry))
_VALUES: Final = attrgetter(*_FIELDS)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_TEXTS: Final = ("action", "tenant", "key_id", "client", "request_id", "session_id", "result")
_OUR_ID: Final = re.compile(r"(?:ses_)?[0-9a-f]{1,64}")
_POSITION: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_FIGURES: Final = ("at", "status", "duration_ms")


def redact_entry(
    entry: AuditEntry, secrets: Collection[str] | None, commands: CommandText, text_most: int = MAX_TEXT
) -> AuditEntry:
    """Returns the entry as it may be written. If the secrets to search for are not known (None), no texts are kept.

    The fields that say who did what are not searched for values of variables: a caller, who chooses these, could
    otherwise remove its own name.
    """
    return AuditEntry(**_head(entry), detail=_Cleaner(_forms(secrets), text_most).detail(entry.detail, commands))


def _forms(secrets: Collection[str] | None) -> Forms | None:
    if secrets is None:
        return None
    return forms_of(secrets) if secrets else NO_FORMS


def _head(entry: AuditEntry) -> dict[str, Any]:
    """Returns all fields of the entry but its detail."""
    return {
        "at": _finite(entry.at),
        "action": _name(entry.action),
        "tenant": _name(entry.tenant),
        "key_id": _name(entry.key_id),
        "client": _name(entry.client),
        "request_id": _callers_id(entry.request_id),
        "session_id": _callers_id(entry.session_id),
        "status": _finite(entry.status),
        "result": _name(entry.result),
        "duration_ms": _finite(entry.duration_ms),
    }


def encode_without_detail(entry: AuditEntry, reason: str) -> bytes:
    return _encode({**_head(entry), "detail": {"left_out": reason}})


def encode_redacted(entry: AuditEntry, secrets: Collection[str] | None, commands: CommandText) -> bytes:
    """Returns the line to be written, MAX_LINE bytes at most."""
    head = _head(entry)
    detail = _plain_detail(entry.detail, secrets, commands)
    if detail is None:
        detail = _Cleaner(_forms(secrets), MAX_TEXT).detail(entry.detail, commands)
    line = _encode({**head, "detail": detail})
    if len(line) <= MAX_LINE:
        return line
    return _encode({**head, "detail": {"left_out": f"{len(line)} bytes of detail"}})


def encode_entry(entry: AuditEntry) -> bytes:
    return _encode(dict(zip(_FIELDS, _VALUES(entry), strict=True)))


def _encode(values: Mapping[str, Any]) -> bytes:
    """Returns a line, in which every character that a terminal could take for a command is escaped."""
    try:
        line: bytes = to_json(values, inf_nan_mode="constants")
    except ValueError:  # such as half of a surrogate pair
        line = b"\x7f"
    if not line.isascii() or b"\x7f" in line or b"NaN" in line or b"Infinity" in line:
        line = _ENCODER.encode(values).encode()
    return line + b"\n"


def _plain_detail(
    detail: Mapping[str, Any], secrets: Collection[str] | None, commands: CommandText
) -> dict[str, Any] | None:
    """Returns the detail of an entry in which there is nothing to remove or to cut, as in most; else None."""
    if secrets is None or len(detail) > _MAX_PLAIN:
        return None
    plain: dict[str, Any] = {}
    texts = []
    for name, value in detail.items():
        if type(name) is not str or _names_a_secret(name):
            return None
        if name == COMMAND and commands is not CommandText.REDACTED:
            continue
        if type(value) is str:
            texts.append(value)
        elif name == COMMAND and type(value) is tuple and len(value) <= _MAX_PLAIN:
            texts.extend(value)
            value = shlex.join(value)
            texts.append(value)
        elif value is not None and type(value) is not bool and not (type(value) is int and abs(value) < _MAX_FIGURE):
            return None
        plain[name] = value
    text = "\n".join(texts)
    if len(text) > _MAX_PLAIN_TEXT or may_have_shapes(text):
        return None
    return None if secrets and contains_any(text, secrets) else plain


def parse_entry(line: bytes) -> AuditEntry | None:
    """Returns the entry of a line; None for what is not a whole entry: half a line, or another program's."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not _is_entry(values):
        return None
    return AuditEntry(**{name: values[name] for name in _FIELDS if name in values})


def matches(query: Query, entry: AuditEntry) -> bool:
    return (
        query.tenant in (None, entry.tenant)
        and query.session_id in ("", entry.session_id)
        and query.key_id in ("", entry.key_id)
        and query.action in ("", entry.action)
        and (query.since is None or query.since <= entry.at)
        and (query.until is None or entry.at < query.until)
    )


def search_marks(query: Query) -> tuple[bytes, ...]:
    """Returns texts that the line of every matching entry contains: searching is far faster than parsing."""
    wanted = {"tenant": query.tenant, "session_id": query.session_id, "key_id": query.key_id, "action": query.action}
    marks = (json.dumps({name: value}, separators=(",", ":"))[1:-1] for name, value in wanted.items() if value)
    return tuple(mark.encode() for mark in marks)


class PageBuilder:
    """Collects a page from lines, newest first."""

    def __init__(self, query: Query, search_bytes: int = SEARCH_BYTES) -> None:
        self.found: list[AuditEntry] = []
        self._query = query
        self._limit = max(1, min(query.limit, MAX_ON_PAGE))
        self._marks = search_marks(query)
        self._left = search_bytes

    def take(self, line: bytes) -> bool:
        """Takes the next line, and returns whether the page ends with it."""
        self._left -= len(line) + 1
        marked = all(mark in line for mark in self._marks)
        if marked and (entry := parse_entry(line)) and matches(self._query, entry):
            self.found.append(entry)
        return len(self.found) == self._limit or self._left <= 0


def parse_position(after: str) -> tuple[int, int]:
    """Returns the two numbers of a position. Raises InvalidRequest for any other text."""
    match = _POSITION.fullmatch(after)
    if match is None:
        raise InvalidRequest(f"{after[:80]!r} is no page of the audit record", remedy="give the `after` of a page")
    return int(match[1]), int(match[2])


class _Cleaner:
    """Removes secrets from one entry. Without forms it keeps no text. Its work is bounded: what is beyond that is left
    out."""

    def __init__(self, forms: Forms | None, text_most: int) -> None:
        self._forms = forms
        self._text_most = text_most
        self._values_left = _MAX_VALUES
        self._work_left = _MAX_WORK

    def detail(self, detail: Mapping[str, Any], commands: CommandText) -> dict[str, Any]:
        clean = {}
        for name, value in islice(detail.items(), _MAX_ENTRIES):
            if name != COMMAND:
                clean[str(name)[:_MAX_NAME]] = self._named(str(name), value, 1)
            elif commands is CommandText.REDACTED:
                clean[COMMAND] = self._command(value)
        return clean

    def _command(self, value: Any) -> Any:
        """Joins arguments to one text: `--password` and the next word belong together."""
        if not _is_list(value):
            return self._value(value, 1)
        if self._forms is None:
            return LEFT_OUT
        self._work_left -= MAX_TEXT_HELD
        return self._text(joined(value, self._forms))

    def _named(self, name: str, value: Any, depth: int) -> Any:
        if isinstance(value, str) and value and _names_a_secret(name):
            return GONE
        return self._value(value, depth)

    def _value(self, value: Any, depth: int) -> Any:
        self._values_left -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value if abs(value) < _MAX_FIGURE else f"<{type(value).__name__}>"
        if isinstance(value, str):
            return self._text(value)
        if depth >= _MAX_DEPTH or self._values_left <= 0 or not (isinstance(value, Mapping) or _is_list(value)):
            return f"<{type(value).__name__}>"
        if isinstance(value, Mapping):
            entries = islice(value.items(), min(_MAX_ENTRIES, self._values_left))
            return {self._text(str(name)): self._named(str(name), one, depth + 1) for name, one in entries}
        return [self._value(one, depth + 1) for one in islice(value, min(_MAX_ENTRIES, self._values_left))]

    def _text(self, text: str) -> str:
        if self._forms is None:
            return LEFT_OUT if text else text
        self._work_left -= min(len(text), MAX_TEXT_HELD)
        if self._work_left <= 0:
            return f"<{len(text)} characters>"
        return redacted(text, self._forms, self._text_most)


@lru_cache(1024)
def _names_a_secret(name: str) -> bool:
    return without_shapes(assigned := f"{name[:_MAX_NAME]}=x") != assigned


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _callers_id(value: Any) -> str:
    """Returns an id that the caller may have made up, redacted: it could be a secret."""
    name = _name(value)
    return name if not name or _OUR_ID.fullmatch(name) else without_shapes(name)


def _name(value: Any) -> str:
    return value if type(value) is str and len(value) <= _MAX_NAME else str(value)[:_MAX_NAME]


def _finite(figure: float) -> float:
    return figure if math.isfinite(figure) else 0


def _is_entry(values: Mapping[str, Any]) -> bool:
    return (
        "at" in values
        and "action" in values
        and all(isinstance(values.get(name, ""), str) for name in _TEXTS)
        and all(isinstance(values.get(name, 0), int | float) for name in _FIGURES)
        and isinstance(values.get("detail", {}), dict)
    )
