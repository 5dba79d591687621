"""Options and option values that several commands share."""

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from warren.model.errors import InvalidRequest, WarrenError
from warren.sdk.discovery import DEFAULT_URL

EGRESS_NETWORKS: Final = "the operator: egress_networks"
_UNITS_MB: Final = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

url_option = click.option(
    "--url", default="", metavar="URL", help=f"The server.  [WARREN_URL, else {DEFAULT_URL}, or this port: WARREN_PORT]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs: print one JSON document.")
thread_option = click.option("--thread", default="", metavar="T", help="The thread's session, instead of SESSION.")

variables_option = click.option(
    "-e", "variables", multiple=True, metavar="K=V", help="Environment variable for the command."
)
replace_lost_option = click.option(
    "--replace-lost", is_flag=True, help="If the thread's sandbox was lost: go on in a fresh one."
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return url_option(json_option(command))


_NETWORK_OPTIONS: Final = (
    click.option("--allow", multiple=True, metavar="RULE",
                 help="Let it reach this: NAME, *.NAME or a network, with :PORT or without; or a preset. Repeatable. "
                 "Addresses that are not public need the operator's egress_networks too."),
    click.option("--deny", multiple=True, metavar="RULE", help="With --internet: not this. Repeatable."),
    click.option("--internet", is_flag=True, help="Let it reach every public address."),
    click.option("--none", "--no-network", "no_network", is_flag=True, help="Let it reach nothing."),
)  # fmt: skip


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_NETWORK_OPTIONS):
        command = option(command)
    return command


def network_values(
    allow: tuple[str, ...], deny: tuple[str, ...], internet: bool, no_network: bool
) -> dict[str, Any] | None:
    """Returns the rules as the API takes them; None if no option was given."""
    if no_network and (allow or deny or internet):
        raise click.UsageError("--no-network goes alone")
    if not (allow or deny or internet or no_network):
        return None
    return {"internet": internet, "allow": list(allow), "deny": list(deny)}


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Seconds, or a number with a unit: 90s, 10m, 1h, 1d. With `most_days`, no longer than these."""

    name = "duration"

    def __init__(self, most_days: int | None = None) -> None:
        self._most_days = most_days

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration, such as 90s, 10m or 1h", param, ctx)
        seconds = float(match[1]) * _UNITS_S[match[2]]
        if self._most_days is not None and seconds > self._most_days * 86400:
            option = param.opts[0] if param else "it"
            raise InvalidRequest(f"{option} is {value}, it may be at most {self._most_days}d")
        return seconds


class SizeType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """MiB, or a number with a unit: 512m, 1g, 1.5GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([kmgt]?)(?:i?b)?", str(value).lower())
        if match is None:
            self.fail(f"{value!r} is not a size, such as 512 (MiB), 512m or 1g", param, ctx)
        return round(float(match[1]) * _UNITS_MB[match[2]])


def _check_environment(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if "=" in value:
        raise click.UsageError(
            f"--env names an environment of the registry, and is now --environment; the variable is -e {value}"
        )
    return value


def complete_environment(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of environments of the server that the command asks."""
    from warren.cli.remote import complete  # imported late: that module needs this one

    return complete(
        ctx,
        incomplete,
        lambda server: [each["name"] for each in server.backend.call("list_environments")["environments"]],
    )


def complete_own_environment(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of environments of this machine, or of the server that --url names."""
    if ctx.params.get("url"):
        return complete_environment(ctx, parameter, incomplete)
    with contextlib.suppress(WarrenError, OSError, ImportError):  # the client alone has no registry
        from warren.app.wiring import build_registry
        from warren.config.settings import read_settings

        return [name for name in build_registry(read_settings()).names if name.startswith(incomplete)]
    return []


def environment_option(help_text: str, default: str = "") -> Callable[..., Any]:
    """Returns the option --environment, whose earlier name is --env. A command with a default makes the sandbox on this
    machine, which then completes the names; others ask a server."""
    return click.option(
        "-E", "--environment", "--env", "environment", default=default, metavar="E", help=help_text,
        callback=_check_environment,
        shell_complete=complete_own_environment if default else complete_environment,
    )  # fmt: skip


def command_options(where: str) -> Callable[..., Any]:
    """Returns the options that say who runs a command in the sandbox, and in which directory. `where` is the default
    directory, in words."""
    options = (
        click.option("-u", "--user", default="", metavar="U", help="User inside the sandbox.  [sandboxuser]"),
        click.option("-w", "--workdir", "--cwd", "cwd", default="", metavar="D", help=f"Directory.  [{where}]"),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Parses the values of an option that takes K=V and may be repeated."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.UsageError(f"{option} {name}: expected K=V")
    return {name: value for name, _, value in pairs}


def drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that were given: options without one are None or empty."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}
