"""`warren create`: a session on a server."""

import re
import secrets
from typing import Any, Final

import click

from warren.cli.remote import Server, parse_pairs, server_options, tell_of_fresh
from warren.cli.tables import print_json

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Seconds, or a number with a unit: 90s, 10m, 1h, 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration, such as 90s, 10m or 1h", param, ctx)
        return float(found[1]) * _UNITS_S[found[2]]


@click.command()
@click.option("--thread", default="", metavar="T", help="The thread it is for. If the thread has one, that is given.")
@click.option("--env", "environment", default="", metavar="E", help="Environment of the server's registry.")
@click.option("--image", default="", metavar="I", help="Image to use instead of the environment's.")
@click.option("--provider", default="", metavar="P", help="What makes the sandbox, one of the server's providers.")
@click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory limit.")
@click.option("--cpus", type=float, metavar="N", help="CPU limit.")
@click.option("--disk", "disk_mb", type=int, metavar="MB", help="Disk limit.")
@click.option("--require", multiple=True, metavar="LAYER", help="Start nothing without this layer of isolation.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="What its worker must have: gpu=1.")
@click.option("--metadata", multiple=True, metavar="K=V", help="A note of your own, to find it by.")
@click.option("--idle-timeout", "idle_timeout_s", type=Duration(), metavar="D", help="End it when unused so long: 10m.")
@click.option("--max-lifetime", "max_lifetime_s", type=Duration(), metavar="D", help="End it after so long: 1h.")
@server_options
def create(
    thread: str,
    memory_mb: int | None,
    cpus: float | None,
    disk_mb: int | None,
    metadata: tuple[str, ...],
    require: tuple[str, ...],
    labels: tuple[str, ...],
    url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a session and print its id.

    Example: warren create --memory 1024 --idle-timeout 10m --metadata user=u-7
    """
    wanted = {
        **options,
        "thread_id": thread,
        "limits": _given({"memory_mb": memory_mb, "cpus": cpus, "disk_mb": disk_mb}),
        "require": list(require),
        "labels": parse_pairs("--label", labels),
        "metadata": parse_pairs("--metadata", metadata),
    }
    with Server(url) as server:
        made = server.backend.create(_given(wanted), secrets.token_hex(16))
    tell_of_fresh(made)
    print_json(made) if as_json else click.echo(made["session_id"])


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}
