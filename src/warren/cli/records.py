"""`warren audit` and `warren usage`: what was done on a server, and what its tenants have used."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import click

from warren.cli.main import CommandGroup
from warren.cli.options import Duration, drop_empty, json_option, server_options
from warren.cli.output import format_mib, print_json, print_table
from warren.cli.remote import RemoteServer, complete_session, short_id
from warren.model.errors import InvalidRequest, SessionNotFound
from warren.sdk.protocol import ClientRequest

if TYPE_CHECKING:
    from warren.config.settings import Settings
    from warren.governance.audit.chain import Verification

_AUDIT_TITLES: Final = ("TIME (UTC)", "TENANT", "KEY", "ACTION", "SESSION", "STATUS", "RESULT", "TOOK", "DETAIL")
_USAGE_TITLES: Final = ("DAY", "TENANT", "SESSIONS", "COMMANDS", "CPU", "RUNNING", "LIVED", "MEMORY", "IN", "OUT")
_PAGE: Final = 1000
_DETAIL_LENGTH: Final = 100
_SESSION_ID_LENGTH: Final = 36


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A duration before now (90s, 10m, 1h, 7d), or a time: ISO 8601 or Unix seconds, as the API takes it."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return f"{time.time() - Duration().convert(value, param, ctx):.3f}"
        except click.BadParameter:
            return str(value)


_tenant_option = click.option(
    "--tenant", default="", metavar="T", help="Of this tenant. Needs the scope audit or admin."
)
_all_option = click.option(
    "-a", "--all", "all_tenants", is_flag=True, help="Of all tenants. Needs the scope audit or admin."
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--since", type=Moment(), default="", metavar="T", help="From then on: 1h (ago), or 2026-01-31T12:00Z.")
@click.option("--until", type=Moment(), default="", metavar="T", help="Before then.")
@click.option("--session", default="", metavar="ID", shell_complete=complete_session, help="With this session.")
@click.option("--key", "key_id", default="", metavar="ID", help="With this key.")
@click.option("--action", default="", metavar="A", help="Only this: run_command, create_session, session.lost …")
@_tenant_option
@_all_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, metavar="N", help="At most this many.  [50]")
@server_options
@click.pass_context
def audit(
    ctx: click.Context,
    /,
    session: str,
    tenant: str,
    all_tenants: bool,
    limit: int,
    url: str,
    as_json: bool,
    **filters: Any,
) -> None:
    """Show who did what, when, and with which result, the newest first.

    Without --tenant and --all: what was done in the name of your own tenant.

    Example: warren audit --since 1h --action run_command
    """
    if ctx.invoked_subcommand is not None:
        return
    if tenant and all_tenants:
        raise click.UsageError("--tenant T or --all, not both")
    path = "/api/admin/audit" if tenant or all_tenants else "/api/audit"
    with RemoteServer(url) as server:
        query = drop_empty({**filters, "tenant": tenant, "session_id": _full_session_id(server, session)})
        deeds, after = _read_deeds(server, path, query, limit)
    if as_json:
        print_json({"deeds": deeds, "next": after})
        return
    print_table(_AUDIT_TITLES, [_audit_row(deed) for deed in deeds])
    if after:
        click.echo(f"these are the last {limit}; --limit N shows more", err=True)


@audit.command()
@click.option("--state-dir", default="", metavar="DIR", help="Whose record it is.  [the server's of this machine]")
@click.option("--cluster", "of_cluster", is_flag=True, help="The record in the cluster's Redis: WARREN_REDIS_URL.")
@click.option("--head", default="", metavar="HASH", help="A hash from an earlier time that must be part of the record.")
@json_option
def verify(state_dir: str, of_cluster: bool, head: str, as_json: bool) -> None:
    """Check that nobody has tampered with the audit record.

    Finds entries that were changed, removed or inserted: every entry has a hash of itself and the one before. Keep the
    hash that this prints in another place: with --head the next check also finds out whether entries were cut off at
    the end, or all of them written anew. Works beside a running server; needs the right to read its files. With
    --cluster and without a setting for Redis, it is that of `warren cluster up` in the state directory.

    Example: warren audit verify --head "$(cat /mnt/elsewhere/head)"
    """
    from pathlib import Path

    from warren.config.settings import read_settings
    from warren.governance.audit.files import verify_files

    settings = read_settings()
    if of_cluster:
        found = asyncio.run(_verify_cluster(settings, head))
    else:
        from warren.app.wiring import AUDIT

        found = verify_files((Path(state_dir) if state_dir else settings.state_dir) / AUDIT, head)
    if as_json:
        names = ("entries", "unchained", "damaged", "head", "problems")
        print_json({"whole": not found.problems, **{name: getattr(found, name) for name in names}})
    else:
        for problem in found.problems:
            click.echo(problem, err=True)
        others = [f"{found.unchained} of versions that made no hashes"] if found.unchained else []
        others += [f"{found.damaged} half lines of killed processes"] if found.damaged else []
        click.echo(f"{found.entries} entries{''.join(f', {other}' for other in others)}; the last hash:", err=True)
        click.echo(found.head)
    if found.problems:
        raise SystemExit(1)


def _with_trial_redis(settings: "Settings") -> "Settings":
    """Returns the settings with the Redis of `warren cluster up` in this state directory, if no other one was given."""
    from dataclasses import replace

    from warren.app.one_machine import TRIAL, TRIAL_REDIS

    path = settings.state_dir.absolute() / TRIAL / TRIAL_REDIS
    is_given = any(settings.sources[name] != "default" for name in ("redis_url", "redis_host", "redis_port"))
    return settings if is_given or not path.exists() else replace(settings, redis_url=f"unix://{path}")


async def _verify_cluster(settings: "Settings", head: str) -> "Verification":
    from warren.app.cluster_wiring import build_redis_link
    from warren.governance.audit.redis import verify_stream

    link = build_redis_link(_with_trial_redis(settings))
    try:
        return await verify_stream(link, head)
    finally:
        await link.close()


def _read_deeds(
    server: RemoteServer, path: str, query: dict[str, Any], limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Reads page by page: a page may be empty and still not be the last."""
    deeds: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = server.call("GET", path, {**query, "limit": min(limit - len(deeds), _PAGE), "after": after})
        deeds += page["deeds"]
        after = page["next"]
        if after is None or len(deeds) >= limit:
            return deeds, after


def _full_session_id(server: RemoteServer, session: str) -> str:
    """Returns the full id of a session, because the record has no others. The beginning of an id is enough for a
    session that still exists."""
    if not session or len(session) >= _SESSION_ID_LENGTH:
        return session
    try:
        return server.find(session, "")
    except (SessionNotFound, InvalidRequest) as exc:
        raise type(exc)(exc.message, remedy="give its whole id; `warren ps -a -q` shows those there are") from None


def _audit_row(deed: dict[str, Any]) -> tuple[object, ...]:
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
        detail if len(detail) <= _DETAIL_LENGTH else f"{detail[: _DETAIL_LENGTH - 1]}…",
    )


@click.command()
@click.option("--from", "first", default="", metavar="DAY", help="The first day: 2026-01-31.  [the first of the month]")
@click.option("--to", "last", default="", metavar="DAY", help="The last day.  [today; days are UTC]")
@_tenant_option
@_all_option
@click.option("--csv", "as_csv", is_flag=True, help="For spreadsheets.")
@server_options
def usage(first: str, last: str, tenant: str, all_tenants: bool, as_csv: bool, url: str, as_json: bool) -> None:
    """Show what was used, day by day.

    Without --tenant and --all: by your own tenant. A session counts with its whole life on the day it ends. MEMORY is
    what was set aside for it, in MiB, times the hours it lived.

    Example: warren usage --from 2026-01-01 --to 2026-01-31 --all --csv
    """
    if (tenant and all_tenants) or (as_csv and as_json):
        raise click.UsageError("--tenant T or --all, and --csv or --json, not both")
    path = "/api/admin/usage" if tenant or all_tenants else "/api/usage"
    query = drop_empty({"first": first, "last": last, "tenant": tenant})
    with RemoteServer(url) as server:
        if as_csv:
            with server.transport.download(ClientRequest("GET", path, query, accept="text/csv")) as (_, parts):
                for part in parts:
                    click.echo(part, nl=False)
            return
        found = server.call("GET", path, query)
    if as_json:
        print_json(found)
        return
    total = {"day": "total", "tenant": None, **found["total"]}
    print_table(_USAGE_TITLES, [_usage_row(row) for row in (*found["usage"], total)])
    click.echo(f"artifacts take {format_mib(found.get('artifact_bytes', 0))} now")


def _usage_row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["day"],
        row["tenant"],
        row["sessions"],
        row["commands"],
        f"{row['cpu_s']:.1f} s",
        f"{row['exec_s']:.1f} s",
        f"{row['session_s'] / 3600:.2f} h",
        f"{row['memory_mb_s'] / 3600:.0f} MiBh",
        format_mib(row["bytes_in"]),
        format_mib(row["bytes_out"]),
    )
