"""Quotas on the command line: `--quota sessions=5`, read and shown."""

import re
from collections.abc import Mapping
from typing import Any, Final

import click

from warren.cli.remote import parse_pairs

_PARTED: Final = "limits."
_LISTED: Final = "environments"
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")

quota_option = click.option(
    "--quota", "quotas", multiple=True, metavar="NAME=N", help="A bound: sessions=5, limits.memory_mb=1024. Repeatable."
)


def read_quota(texts: tuple[str, ...]) -> dict[str, Any]:
    """As the API takes it. Which names there are is the server's to say. An empty value is None."""
    quota: dict[str, Any] = {}
    for name, text in parse_pairs("--quota", texts).items():
        if name.startswith(_PARTED):
            quota.setdefault("limits", {})[name.removeprefix(_PARTED)] = _number(name, text)
        elif name == _LISTED:
            quota[name] = [each for each in text.split(",") if each] or None
        else:
            quota[name] = _number(name, text)
    return quota


def _number(name: str, text: str) -> int | float | None:
    if not text:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--quota {name}: expected a number, not {text!r}")
    return float(text) if found[1] else int(text)


def changed_quota(quota: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is None in the changes is taken away, what they do not name stays."""
    limits = {**quota.get("limits", {}), **changes.get("limits", {})}
    merged = {**quota, **changes, "limits": {name: most for name, most in limits.items() if most is not None}}
    return {name: value for name, value in merged.items() if value not in (None, {})}


def show_quota(quota: Mapping[str, Any]) -> str:
    """In the words in which it is given."""
    parts = []
    for name, value in quota.items():
        if isinstance(value, Mapping):
            parts += [f"{_PARTED}{each}={most}" for each, most in value.items()]
        else:
            parts.append(f"{name}={','.join(value) if isinstance(value, list | tuple) else value}")
    return " ".join(parts)
