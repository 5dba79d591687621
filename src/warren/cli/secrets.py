"""`warren secrets`: credentials that the sessions of a server use and never see.

The value of a secret is never an argument, because every user of the machine can read those: it is read from stdin, or
asked for at a terminal. No command shows it.
"""

import sys
from typing import Any, Final
from urllib.parse import quote

import click

from warren.cli.main import CommandGroup
from warren.cli.options import Duration, drop_empty
from warren.cli.output import format_seconds, seconds_since
from warren.cli.remote import Answer, RemoteServer, complete, line, server_command, table
from warren.model.secrets import MAX_VALUE, SecretKind, check_value

_SECRETS: Final = "/api/secrets"
_TITLES: Final = ("SECRET", "HOSTS", "CARRIED BY", "KIND", "EXPIRES IN")

Values = dict[str, Any]


def complete_secret(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda server: [each["name"] for each in _list(server, "")])


_tenant_option = click.option("--tenant", default="", metavar="T", help="Of this tenant, with an admin's key.  [yours]")
_name_argument = click.argument("name", shell_complete=complete_secret)


@click.group(cls=CommandGroup)
def secrets() -> None:
    """Set credentials that sessions use and never see.

    A secret is bound to hosts. Requests to them leave the sandbox without it; the broker outside adds it.

    Example: warren secrets set openai --kind openai --host api.openai.com < key.txt
    """


@secrets.command("set")
@_name_argument
@click.option(
    "--host", "hosts", multiple=True, required=True, metavar="H", help="A host that it is sent to, repeatable."
)
@click.option("--header", default="", metavar="NAME", help="The header that carries it.  [the kind's]")
@click.option("--query", default="", metavar="PARAM", help="Instead of a header: the query parameter.")
@click.option(
    "--format",
    "form",
    default="",
    metavar="F",
    help="How: {} is the value, {base64} its encoding.  [the kind's, or {}]",
)
@click.option(
    "--kind",
    default="",
    metavar="K",
    help=f"Also set the variables of: {', '.join(filter(None, SecretKind))}.",
)
@click.option("--path", default="", metavar="P", help="Where the service of the kind begins.  [the kind's]")
@click.option("--expires", "expires_in_s", type=Duration(), metavar="D", help="Send it no more after so long: 30d.")
@click.option("--no-scrub", is_flag=True, help="Leave answers as they are, compressed if the client wants it.")
@_tenant_option
@server_command
def set_secret(
    server: RemoteServer,
    name: str,
    hosts: tuple[str, ...],
    header: str,
    query: str,
    form: str,
    kind: str,
    path: str,
    expires_in_s: float | None,
    no_scrub: bool,
    tenant: str,
) -> Answer:
    """Set the secret NAME. Its value is read from stdin, or asked for.

    Example: warren secrets set crm --host api.example.com --header Authorization --format 'Bearer {}' < token.txt
    """
    values = {
        "hosts": list(hosts),
        "header": header,
        "query": query,
        "format": form,
        "kind": kind,
        "path": path,
        "expires_in_s": expires_in_s,
    }
    body = {**drop_empty(values), "scrub": not no_scrub, "value": _read_value()}
    secret = server.call("PUT", _path(name), _query(tenant), values=body)
    return line(secret, f"{name} is sent to {', '.join(secret['hosts'])} and nowhere else")


@secrets.command("list")
@_tenant_option
@server_command
def list_secrets(server: RemoteServer, tenant: str) -> Answer:
    """List the secrets, without their values.

    Example: warren secrets list --json
    """
    found = _list(server, tenant)
    return table({"secrets": found}, _TITLES, map(_row, found))


@secrets.command()
@_name_argument
@_tenant_option
@server_command
def delete(server: RemoteServer, name: str, tenant: str) -> Answer:
    """Delete a secret: running sessions cannot use it any more.

    Example: warren secrets delete openai
    """
    server.call("DELETE", _path(name), _query(tenant))
    return line({"deleted": name}, f"deleted {name}")


def _read_value() -> str:
    """Reads the value of a secret, without the newline at its end."""
    if sys.stdin.isatty():
        value = str(click.prompt("Value", hide_input=True, err=True))
    else:
        value = sys.stdin.read(MAX_VALUE + 3).removesuffix("\n").removesuffix("\r")
    return check_value(value)


def _list(server: RemoteServer, tenant: str) -> list[Values]:
    found: list[Values] = server.call("GET", _SECRETS, _query(tenant))["secrets"]
    return found


def _path(name: str) -> str:
    return f"{_SECRETS}/{quote(name, safe='')}"


def _query(tenant: str) -> dict[str, str]:
    return {"tenant": tenant} if tenant else {}


def _row(secret: Values) -> tuple[object, ...]:
    carried = (
        f"{secret['header']}: {secret['format']}" if secret["header"] else f"?{secret['query']}={secret['format']}"
    )
    expires_at = secret["expires_at"]
    left = format_seconds(max(0.0, -seconds_since(expires_at))) if expires_at else None
    return secret["name"], ",".join(secret["hosts"]), carried, secret["kind"], left
