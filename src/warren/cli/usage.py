"""`warren usage`: what tenants of a server have used, by day."""

from typing import Any

import click

from warren.cli.remote import Server, server_options
from warren.cli.tables import print_json, print_table, show_mib
from warren.sdk.protocol import Request

_TITLES = ("DAY", "TENANT", "SESSIONS", "COMMANDS", "CPU", "RUNNING", "LIVED", "MEMORY", "IN", "OUT")
_CSV = "text/csv"


@click.command()
@click.option("--from", "first", default="", metavar="DAY", help="The first day: 2026-01-31.  [the first of the month]")
@click.option("--to", "last", default="", metavar="DAY", help="The last day.  [today; days are UTC]")
@click.option("--tenant", default="", metavar="T", help="Of this tenant. Needs the scope admin.")
@click.option("-a", "--all", "of_all", is_flag=True, help="Of all tenants. Needs the scope admin.")
@click.option("--csv", "as_csv", is_flag=True, help="For spreadsheets.")
@server_options
def usage(first: str, last: str, tenant: str, of_all: bool, as_csv: bool, url: str, as_json: bool) -> None:
    """Show what was used, day by day.

    Without --tenant and --all: by your own tenant. Of a session the whole life counts on the day it ends. MEMORY is
    what was set aside for it, in MiB, times the hours it lived.

    Example: warren usage --from 2026-01-01 --to 2026-01-31 --all --csv
    """
    if (tenant and of_all) or (as_csv and as_json):
        raise click.UsageError("--tenant T or --all, and --csv or --json, not both")
    path = "/api/admin/usage" if tenant or of_all else "/api/usage"
    wanted = {name: value for name, value in {"first": first, "last": last, "tenant": tenant}.items() if value}
    with Server(url) as server:
        if as_csv:
            _pass_on(server, Request("GET", path, wanted, accept=_CSV))
            return
        found = server.transport.call(Request("GET", path, wanted))
    if as_json:
        print_json(found)
        return
    total = {"day": "total", "tenant": None, **found["total"]}
    print_table(_TITLES, [_row(row) for row in (*found["usage"], total)])


def _pass_on(server: Server, request: Request) -> None:
    with server.transport.download(request) as (_, parts):
        for part in parts:
            click.echo(part, nl=False)


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["day"],
        row["tenant"],
        row["sessions"],
        row["commands"],
        f"{row['cpu_s']:.1f} s",
        f"{row['exec_s']:.1f} s",
        f"{row['session_s'] / 3600:.2f} h",
        f"{row['memory_mb_s'] / 3600:.0f} MiBh",
        show_mib(row["bytes_in"]),
        show_mib(row["bytes_out"]),
    )
