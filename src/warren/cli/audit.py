"""`warren audit`: who did what on a server, when, and with which result."""

import time
from typing import Any, Final

import click

from warren.cli.create import Duration
from warren.cli.remote import Server, complete_session, server_options, short_id
from warren.cli.tables import print_json, print_table
from warren.model.errors import InvalidRequest, SessionNotFound
from warren.sdk.protocol import Request

_TITLES: Final = ("TIME (UTC)", "TENANT", "KEY", "ACTION", "SESSION", "STATUS", "RESULT", "TOOK", "DETAIL")
_PAGE: Final = 1000
_SHOWN: Final = 100
_WHOLE_ID: Final = 36


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """So long ago (90s, 10m, 1h, 7d), or a time: ISO 8601 or Unix seconds, as the API takes it."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return f"{time.time() - Duration().convert(value, param, ctx):.3f}"
        except click.BadParameter:
            return str(value)


@click.command()
@click.option("--since", type=Moment(), default="", metavar="T", help="From then on: 1h (ago), or 2026-01-31T12:00Z.")
@click.option("--until", type=Moment(), default="", metavar="T", help="Before then.")
@click.option("--session", default="", metavar="ID", shell_complete=complete_session, help="With this session.")
@click.option("--key", "key_id", default="", metavar="ID", help="With this key.")
@click.option("--action", default="", metavar="A", help="Only this: run_command, create_session, session.lost …")
@click.option("--tenant", default="", metavar="T", help="Of this tenant. Needs the scope admin.")
@click.option("-a", "--all", "of_all", is_flag=True, help="Of all tenants. Needs the scope admin.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, metavar="N", help="So many at most.  [50]")
@server_options
def audit(session: str, tenant: str, of_all: bool, limit: int, url: str, as_json: bool, **filters: Any) -> None:
    """Show what was done, the newest first.

    Without --tenant and --all: in the name of your own tenant.

    Example: warren audit --since 1h --action run_command
    """
    if tenant and of_all:
        raise click.UsageError("--tenant T or --all, not both")
    path = "/api/admin/audit" if tenant or of_all else "/api/audit"
    with Server(url) as server:
        wanted = {**filters, "tenant": tenant, "session_id": _whole(server, session)}
        found, after = _read(server, path, {name: value for name, value in wanted.items() if value}, limit)
    if as_json:
        print_json({"deeds": found, "next": after})
        return
    print_table(_TITLES, [_row(deed) for deed in found])
    if after:
        click.echo(f"these are the last {limit}; --limit N shows more", err=True)


def _read(server: Server, path: str, wanted: dict[str, Any], limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Page by page: one may be empty and still not be the last."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        asked = {**wanted, "limit": min(limit - len(found), _PAGE), "after": after}
        page = server.transport.call(Request("GET", path, asked))
        found += page["deeds"]
        after = page["next"]
        if after is None or len(found) >= limit:
            return found, after


def _whole(server: Server, session: str) -> str:
    """Records are found by the whole id; of a session that is there, the beginning is enough."""
    if not session or len(session) >= _WHOLE_ID:
        return session
    try:
        return server.find(session, "")
    except (SessionNotFound, InvalidRequest) as exc:
        raise type(exc)(exc.message, remedy="give its whole id; `warren ps -a -q` shows those there are") from None


def _row(deed: dict[str, Any]) -> tuple[object, ...]:
    detail = ", ".join(f"{name}={value}" for name, value in deed["detail"].items())
    return (
        deed["at"].replace("T", " ").removesuffix("Z"),
        deed["tenant"],
        deed["key_id"],
        deed["action"],
        short_id(deed["session_id"]),
        deed["status"] or None,
        deed["result"],
        f"{deed['duration_ms']:.0f} ms" if deed["status"] else None,
        detail if len(detail) <= _SHOWN else f"{detail[: _SHOWN - 1]}…",
    )
