"""A deed as it is kept: without secrets, of bounded size, one line of JSON. Pure."""

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from warren.interfaces.audit import Query
from warren.model.audit import COMMAND, CommandText, Deed
from warren.tenancy.audit.redaction import GONE, forms_of, redacted, without, without_shapes

TEXT_MOST: Final = 2048
LINE_MOST: Final = 32 * 1024
_NAME_MOST: Final = 256
_ENTRIES_MOST: Final = 64
_DEPTH_MOST: Final = 4
_FIGURE_MOST: Final = 1 << 63
_FIELDS: Final = tuple(each.name for each in fields(Deed))
_VALUES: Final = attrgetter(*_FIELDS)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_TEXTS: Final = ("action", "tenant", "key_id", "client", "request_id", "session_id", "result")
_FIGURES: Final = ("at", "status", "duration_ms")


def kept(deed: Deed, secrets: Iterable[str], commands: CommandText, text_most: int = TEXT_MOST) -> Deed:
    """The deed as it may be written down.

    Values of variables are not taken out of the fields that say who did what: whoever may choose variables could
    hide behind them.
    """
    cleaner = _Cleaner(forms_of(secrets), text_most)
    values: dict[str, Any] = {name: str(getattr(deed, name))[:_NAME_MOST] for name in _TEXTS}
    for given_by_caller in ("request_id", "session_id"):
        values[given_by_caller] = without_shapes(values[given_by_caller])
    values |= {name: _finite(getattr(deed, name)) for name in _FIGURES}
    return Deed(**values, detail=cleaner.detail(deed.detail, commands))


def kept_line(deed: Deed, secrets: Iterable[str], commands: CommandText) -> bytes:
    """The deed as it is written down, at most LINE_MOST long."""
    clean = kept(deed, secrets, commands)
    line = line_of(clean)
    if len(line) <= LINE_MOST:
        return line
    return line_of(replace(clean, detail={"left_out": f"{len(line)} bytes of detail"}))


def line_of(deed: Deed) -> bytes:
    """Every character that a terminal could take for a command is escaped."""
    return _ENCODER.encode(dict(zip(_FIELDS, _VALUES(deed), strict=True))).encode() + b"\n"


def deed_of(line: bytes) -> Deed | None:
    """None for what is not a whole deed: a half-written line, or one of somebody else's."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not _is_deed(values):
        return None
    return Deed(**{name: values[name] for name in _FIELDS if name in values})


def is_wanted(query: Query, deed: Deed) -> bool:
    return (
        query.tenant in (None, deed.tenant)
        and query.session_id in ("", deed.session_id)
        and query.key_id in ("", deed.key_id)
        and query.action in ("", deed.action)
        and (query.since is None or query.since <= deed.at)
        and (query.until is None or deed.at < query.until)
    )


def marks_of(query: Query) -> tuple[bytes, ...]:
    """What stands in the line of every deed that is wanted; far quicker to look for than to read the line."""
    wanted = {"tenant": query.tenant, "session_id": query.session_id, "key_id": query.key_id, "action": query.action}
    marks = (json.dumps({name: value}, separators=(",", ":"))[1:-1] for name, value in wanted.items() if value)
    return tuple(mark.encode() for mark in marks)


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
        """Arguments become one text: `--password` and what follows it belong together."""
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


def _is_deed(values: Mapping[str, Any]) -> bool:
    return (
        "at" in values
        and "action" in values
        and all(isinstance(values.get(name, ""), str) for name in _TEXTS)
        and all(isinstance(values.get(name, 0), int | float) for name in _FIGURES)
        and isinstance(values.get("detail", {}), dict)
    )
