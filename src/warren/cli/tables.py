"""How the commands show things to a person: tables, durations, sizes; and one JSON document to a program."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

_MIB = 1024 * 1024


def print_json(values: Any) -> None:
    click.echo(json.dumps(values, indent=2))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    lines = [list(titles), *([_plain(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        click.echo("  ".join(f"{value:<{width}}" for value, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: object) -> str:
    """Nothing in a table may move the cursor or colour the terminal: names come from others."""
    text = "-" if value in (None, "") else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def show_seconds(seconds: float) -> str:
    """One figure, as a person would say it: 45 s, 12 min, 3 h, 2 d."""
    if seconds < 0:
        return "now"
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def show_mib(count: float) -> str:
    return f"{count / _MIB:.1f} MiB"


def seconds_since(timestamp: str) -> float:
    """Negative for a time to come."""
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()
