"""`warren config`: every option, its value and the source of the value. Secrets are not shown."""

from pathlib import Path
from typing import Any

import click

from warren.cli.main import report
from warren.cli.options import json_option
from warren.cli.output import print_json
from warren.config.option_kinds import MEMORY
from warren.config.options import OPTIONS, Option
from warren.config.settings import Settings, read_settings
from warren.model.errors import InvalidRequest

EXIT_BAD_VALUE = 2


@click.command()
@click.option("--config", "file", metavar="FILE", help="A TOML file with options, instead of the usual one.")
@json_option
def config(file: str | None, as_json: bool) -> int:
    """Show every option, its value and where the value comes from.

    Example: warren config --json
    """
    try:
        settings = read_settings(config_file=Path(file) if file else None)
    except InvalidRequest as exc:
        report(exc.message, exc.remedy)
        return EXIT_BAD_VALUE
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    _print_json(settings) if as_json else _print_table(settings)
    return 0


def _print_table(settings: Settings) -> None:
    rows = [("option", "value", "where from")]
    for name, option in OPTIONS.items():
        rows.append((name, option.show(getattr(settings, option.attribute)), settings.sources[name]))
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, value, source in rows:
        click.echo(f"{name:<{names}}  {value:<{values}}  {source}")


def _print_json(settings: Settings) -> None:
    print_json({"options": option_values(settings), "warnings": settings.warnings})


def option_values(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every option with its value and the source of it; secrets only as set or not."""
    return {
        name: {"value": _json_value(option, getattr(settings, option.attribute)), "source": settings.sources[name]}
        for name, option in OPTIONS.items()
    }


def _json_value(option: Option, value: Any) -> Any:
    if option.secret:
        return "(set)" if value else None
    if value is not None and option.kind is MEMORY:
        return option.show(value)
    return str(value) if isinstance(value, Path) else value
