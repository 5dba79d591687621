"""Usage as a table for other programs. Pure."""

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from warren.model.usage import DayUsage, Usage

_COLUMNS: Final = ("day", "tenant", *(each.name for each in fields(Usage)))
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_csv(rows: Iterable[DayUsage]) -> str:
    """With a line of names. A text that a spreadsheet would take for a formula gets a ' before it."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(_COLUMNS)
    for row in rows:
        table.writerow(_harmless(value) for value in row_view(row).values())
    return out.getvalue()


def row_view(row: DayUsage) -> dict[str, Any]:
    return {"day": row.day.isoformat(), "tenant": row.tenant, **row.usage.as_mapping()}


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
