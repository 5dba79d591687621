"""Audit entries as they are kept: without secrets, of bounded size, one line of JSON each; and pages of them. Pure."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from warren.interfaces.audit import MOST_ON_PAGE, Query
from warren.model.audit import COMMAND, AuditEntry, CommandText
from warren.model.errors import InvalidRequest
from warren.tenancy.audit.redaction import GONE, forms_of, redacted, without, without_shapes

TEXT_MOST: Final = 2048
LINE_MOST: Final = 32 * 1024
SEARCH_BYTES: Final = 8 * 1024 * 1024  # so much is read for one page
_NAME_MOST: Final = 256
_ENTRIES_MOST: Final = 64
_DEPTH_MOST: Final = 4
_FIGURE_MOST: Final = 1 << 63
_FIELDS: Final = tuple(each.name for each in fields(AuditEntry))
_VALUES: Final = attrgetter(*_FIELDS)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_TEXTS: Final = ("action", "tenant", "key_id", "client", "request_id", "session_id", "result")
_POSITION: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_FIGURES: Final = ("at", "status", "duration_ms")


def redact_entry(
    entry: AuditEntry, secrets: Iterable[str], commands: CommandText, text_most: int = TEXT_MOST
) -> AuditEntry:
    """Gives the entry as it may be written.

    Values of variables stay in the fields that say who did what: a caller who chooses variables could otherwise hide
    there.
    """
    cleaner = _Cleaner(forms_of(secrets), text_most)
    values: dict[str, Any] = {name: str(getattr(entry, name))[:_NAME_MOST] for name in _TEXTS}
    for given_by_caller in ("request_id", "session_id"):
        values[given_by_caller] = without_shapes(values[given_by_caller])
    values |= {name: _finite(getattr(entry, name)) for name in _FIGURES}
    return AuditEntry(**values, detail=cleaner.detail(entry.detail, commands))


def encode_redacted(entry: AuditEntry, secrets: Iterable[str], commands: CommandText) -> bytes:
    """Gives the line to be written, LINE_MOST bytes at most."""
    clean = redact_entry(entry, secrets, commands)
    line = encode_entry(clean)
    if len(line) <= LINE_MOST:
        return line
    return encode_entry(replace(clean, detail={"left_out": f"{len(line)} bytes of detail"}))


def encode_entry(entry: AuditEntry) -> bytes:
    """Escapes every character that a terminal could take for a command."""
    return _ENCODER.encode(dict(zip(_FIELDS, _VALUES(entry), strict=True))).encode() + b"\n"


def parse_entry(line: bytes) -> AuditEntry | None:
    """Gives None for what is not a whole entry: half a line, or another program's."""
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
    """Gives texts that the line of every matching entry contains: searching is far faster than parsing."""
    wanted = {"tenant": query.tenant, "session_id": query.session_id, "key_id": query.key_id, "action": query.action}
    marks = (json.dumps({name: value}, separators=(",", ":"))[1:-1] for name, value in wanted.items() if value)
    return tuple(mark.encode() for mark in marks)


class PageBuilder:
    """Collects a page from lines, newest first."""

    def __init__(self, query: Query, search_bytes: int = SEARCH_BYTES) -> None:
        self.found: list[AuditEntry] = []
        self._query = query
        self._limit = max(1, min(query.limit, MOST_ON_PAGE))
        self._marks = search_marks(query)
        self._left = search_bytes

    def take(self, line: bytes) -> bool:
        """Gives whether the page ends here."""
        self._left -= len(line) + 1
        marked = all(mark in line for mark in self._marks)
        if marked and (entry := parse_entry(line)) and matches(self._query, entry):
            self.found.append(entry)
        return len(self.found) == self._limit or self._left <= 0


def parse_position(after: str) -> tuple[int, int]:
    """Gives the two numbers of a position. Raises InvalidRequest if it is none."""
    match = _POSITION.fullmatch(after)
    if match is None:
        raise InvalidRequest(f"{after[:80]!r} is no page of the audit record", remedy="give the `after` of a page")
    return int(match[1]), int(match[2])


class _Cleaner:
    def __init__(self, forms: Sequence[str], text_most: int) -> None:
        self._forms = forms
        self._text_most = text_most

    def detail(self, detail: Mapping[str, Any], commands: CommandText) -> dict[str, Any]:
        clean = {}
        for name, value in islice(detail.items(), _ENTRIES_MOST):
            if name != COMMAND:
                clean[str(name)[:_NAME_MOST]] = self._named(str(name), value, 1)
            elif commands is CommandText.REDACTED:
                clean[COMMAND] = self._command(value)
        return clean

    def _command(self, value: Any) -> Any:
        """Joins arguments to one text: `--password` and the next word belong together."""
        if not _is_list(value):
            return self._value(value, 1)
        words = (without(str(word), self._forms) for word in islice(value, self._text_most))
        return self._text(shlex.join(words))

    def _named(self, name: str, value: Any, depth: int) -> Any:
        if isinstance(value, str) and value and _names_a_secret(name):
            return GONE
        return self._value(value, depth)

    def _value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value if abs(value) < _FIGURE_MOST else f"<{type(value).__name__}>"
        if isinstance(value, str):
            return self._text(value)
        if depth >= _DEPTH_MOST or not (isinstance(value, Mapping) or _is_list(value)):
            return f"<{type(value).__name__}>"
        if isinstance(value, Mapping):
            entries = islice(value.items(), _ENTRIES_MOST)
            return {self._text(str(name)): self._named(str(name), one, depth + 1) for name, one in entries}
        return [self._value(one, depth + 1) for one in islice(value, _ENTRIES_MOST)]

    def _text(self, text: str) -> str:
        return redacted(text, self._forms, self._text_most)


@lru_cache(1024)
def _names_a_secret(name: str) -> bool:
    return without_shapes(assigned := f"{name[:_NAME_MOST]}=x") != assigned


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


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
