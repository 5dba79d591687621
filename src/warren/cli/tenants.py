"""`warren tenants`: what each tenant of a server may have and do."""

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from warren.cli.quota import changed_quota, quota_option, read_quota, show_quota
from warren.cli.remote import Server, server_options
from warren.cli.tables import print_json, print_table
from warren.model.errors import InvalidRequest, NotFound, WarrenError
from warren.sdk.protocol import Request

_TENANTS = "/api/admin/tenants"
_TITLES = ("TENANT", "QUOTA", "POLICY")

Values = dict[str, Any]


def complete_tenant(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    with contextlib.suppress(WarrenError, OSError), Server(ctx.params.get("url") or "") as server:
        return [each["name"] for each in _all(server) if each["name"].startswith(incomplete)]
    return []


_name_argument = click.argument("name", shell_complete=complete_tenant)


@click.group()
def tenants() -> None:
    """Set what tenants may have: quotas and command policies.

    A tenant is whom keys belong to. It need not be set up; the name * stands for all that nothing is set for.

    Example: warren tenants set acme --quota sessions=10
    """


@tenants.command("list")
@server_options
def list_tenants(url: str, as_json: bool) -> None:
    """List the tenants that something is set for.

    Example: warren tenants list
    """
    with Server(url) as server:
        found = _all(server)
    print_json({"tenants": found}) if as_json else print_table(_TITLES, [_row(tenant) for tenant in found])


@tenants.command()
@_name_argument
@server_options
def show(name: str, url: str, as_json: bool) -> None:
    """Show what is set for a tenant.

    Example: warren tenants show acme
    """
    with Server(url) as server:
        found = server.transport.call(Request("GET", _place(name)))
    _show(found, as_json)


@tenants.command("set")
@_name_argument
@quota_option
@click.option("--policy", "policy_file", default="", metavar="FILE", help="Its command policy, in YAML.")
@click.option("--no-policy", is_flag=True, help="Take its command policy away.")
@server_options
def set_tenant(name: str, quotas: tuple[str, ...], policy_file: str, no_policy: bool, url: str, as_json: bool) -> None:
    """Set the quota or the command policy of a tenant; what is not named stays.

    `--quota NAME=` takes a bound away. docs/tenants.md has the names.

    Example: warren tenants set acme --quota sessions=10 --quota requests_per_minute=600 --policy policy.yaml
    """
    if not (quotas or policy_file or no_policy) or (policy_file and no_policy):
        raise click.UsageError("set what? Give --quota NAME=N, and --policy FILE or --no-policy")
    changes, policy = read_quota(quotas), read_policy(Path(policy_file)) if policy_file else None
    with Server(url) as server:
        old = _known(server, name)
        wanted = {
            "quota": changed_quota(old["quota"], changes),
            "policy": {} if no_policy else old["policy"] if policy is None else policy,
        }
        found = server.transport.call(Request("PUT", _place(name), values=wanted))
    _show(found, as_json)


@tenants.command()
@_name_argument
@server_options
def remove(name: str, url: str, as_json: bool) -> None:
    """Take away what is set for a tenant; its keys and sessions stay.

    Example: warren tenants remove acme
    """
    with Server(url) as server:
        server.transport.call(Request("DELETE", _place(name)))
    print_json({"removed": name}) if as_json else click.echo(f"nothing is set for {name} any more")


def read_policy(path: Path) -> Values:
    """The policy in a file, alone or under `policy:` as in an environment."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeError) as exc:
        raise InvalidRequest(f"{path}: this is not YAML: {' '.join(str(exc).split())}") from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
    if isinstance(values, dict) and set(values) == {"policy"}:
        values = values["policy"]
    if not isinstance(values, dict) or not values:
        raise InvalidRequest(f"{path} holds no policy", remedy="docs/command-policy.md shows some")
    return values


def _all(server: Server) -> list[Values]:
    found: list[Values] = server.transport.call(Request("GET", _TENANTS))["tenants"]
    return found


def _known(server: Server, name: str) -> Values:
    try:
        found: Values = server.transport.call(Request("GET", _place(name)))
    except NotFound:
        return {"quota": {}, "policy": {}}
    return found


def _place(name: str) -> str:
    return f"{_TENANTS}/{quote(name, safe='')}"


def _show(tenant: Values, as_json: bool) -> None:
    print_json(tenant) if as_json else print_table(_TITLES, [_row(tenant)])


def _row(tenant: Values) -> tuple[object, ...]:
    policy = tenant["policy"]
    rules = [f"{len(policy[name])} {name}" for name in ("allow", "deny") if policy.get(name)]
    return tenant["name"], show_quota(tenant["quota"]), " ".join([policy["mode"], *rules]) if policy else None
