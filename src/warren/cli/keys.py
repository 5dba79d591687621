"""`warren keys`: made, listed, revoked, rotated; on a server, or in a state directory of this machine.

A key is shown once, when it is made. It is never an argument: every user of the machine can read those.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import click

from warren.cli.create import Duration
from warren.cli.key_backends import key_place
from warren.cli.quota import quota_option, read_quota, show_quota
from warren.cli.remote import server_options
from warren.cli.tables import print_json, print_table, seconds_since, show_seconds
from warren.model.errors import WarrenError

_TITLES = ("KEY", "NAME", "TENANT", "SCOPES", "AGE", "EXPIRES IN", "USED", "QUOTA")

_state_option = click.option(
    "--state-dir", default="", metavar="DIR", help="Instead of asking a server: work on its files on this machine."
)
_quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print the key alone.")


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return server_options(_state_option(command))


def complete_key(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    url, state_dir = ctx.params.get("url") or "", ctx.params.get("state_dir") or ""
    with contextlib.suppress(WarrenError, OSError, click.UsageError), key_place(url, state_dir) as place:
        return [each["id"] for each in place.list("") if each["id"].startswith(incomplete)]
    return []


@click.group()
def keys() -> None:
    """Make, list, revoke and rotate API keys.

    Needs a key with the scope admin, or --state-dir and the right to read the server's files.

    Example: warren keys create ci --scopes read,exec --expires 30d
    """


@keys.command()
@click.argument("name")
@click.option("--tenant", default="", metavar="T", help="Whose key it is.  [default]")
@click.option("--scopes", default="", metavar="S,S", help="Of read, exec, files, sessions, admin.  [all but admin]")
@click.option("--expires", "expires_in_s", type=Duration(), metavar="D", help="Refuse it after so long: 30d.")
@quota_option
@_quiet_option
@place_options
def create(
    name: str,
    tenant: str,
    scopes: str,
    expires_in_s: float | None,
    quotas: tuple[str, ...],
    quiet: bool,
    url: str,
    state_dir: str,
    as_json: bool,
) -> None:
    """Make a key called NAME and show it, this once.

    Example: KEY=$(warren keys create ci --tenant acme -q)
    """
    wanted = {
        "name": name,
        "tenant": tenant,
        "scopes": [each for each in scopes.replace(",", " ").split() if each],
        "expires_in_s": expires_in_s,
        "quota": {name: value for name, value in read_quota(quotas).items() if value is not None},
    }
    with key_place(url, state_dir) as place:
        made = place.create({name: value for name, value in wanted.items() if value not in (None, "", [], {})})
    _show_new(made, quiet, as_json)


@keys.command("list")
@click.option("--tenant", default="", metavar="T", help="Only those of this tenant.")
@click.option("-q", "--quiet", is_flag=True, help="Only the ids.")
@place_options
def list_keys(tenant: str, quiet: bool, url: str, state_dir: str, as_json: bool) -> None:
    """List keys, the oldest first; the keys themselves are kept nowhere.

    Example: warren keys list --tenant acme
    """
    with key_place(url, state_dir) as place:
        found = place.list(tenant)
    if as_json:
        print_json({"keys": found})
    elif quiet:
        for key in found:
            click.echo(key["id"])
    else:
        print_table(_TITLES, [_row(key) for key in found])


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=complete_key)
@place_options
def revoke(key_id: str, url: str, state_dir: str, as_json: bool) -> None:
    """Revoke a key: nobody is let in with it any more.

    Example: warren keys revoke key_0123456789abcdef
    """
    with key_place(url, state_dir) as place:
        place.revoke(key_id)
    print_json({"revoked": key_id}) if as_json else click.echo(f"revoked {key_id}")


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=complete_key)
@_quiet_option
@place_options
def rotate(key_id: str, quiet: bool, url: str, state_dir: str, as_json: bool) -> None:
    """Give a key a new secret; the old one is worth nothing any more.

    Example: KEY=$(warren keys rotate key_0123456789abcdef -q)
    """
    with key_place(url, state_dir) as place:
        made = place.rotate(key_id)
    _show_new(made, quiet, as_json)


def _show_new(made: dict[str, Any], quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    if not quiet:
        scopes = ", ".join(made["scopes"])
        click.echo(f"{made['id']} of the tenant {made['tenant']}, for {scopes}. It is shown this once:", err=True)
    click.echo(made["key"])


def _row(key: dict[str, Any]) -> tuple[object, ...]:
    return (
        key["id"],
        key["name"],
        key["tenant"],
        ",".join(key["scopes"]),
        show_seconds(max(0.0, seconds_since(key["created_at"]))),
        _until(key["expires_at"]),
        f"{show_seconds(max(0.0, seconds_since(key['used_at'])))} ago" if key["used_at"] else "never",
        show_quota(key["quota"]),
    )


def _until(expires_at: str | None) -> str | None:
    if expires_at is None:
        return None
    left_s = -seconds_since(expires_at)
    return show_seconds(left_s) if left_s > 0 else "expired"
