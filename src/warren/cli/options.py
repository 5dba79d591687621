"""Options and option values that several commands share."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from warren.sdk.discovery import DEFAULT_URL

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

url_option = click.option("--url", default="", metavar="URL", help=f"The server.  [WARREN_URL, else {DEFAULT_URL}]")
json_option = click.option("--json", "as_json", is_flag=True, help="For programs: print one JSON document.")
thread_option = click.option("--thread", default="", metavar="T", help="The thread's session, instead of SESSION.")

replace_lost_option = click.option(
    "--replace-lost", is_flag=True, help="If the thread's sandbox was lost: go on in a fresh one."
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return url_option(json_option(command))


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Seconds, or a number with a unit: 90s, 10m, 1h, 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration, such as 90s, 10m or 1h", param, ctx)
        return float(match[1]) * _UNITS_S[match[2]]


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Parses the values of an option that takes K=V and may be repeated."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.UsageError(f"{option} {name}: expected K=V")
    return {name: value for name, _, value in pairs}


def drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were given: options without one are None or empty."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}
