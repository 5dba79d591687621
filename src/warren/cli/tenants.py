"""`warren tenants`: what each tenant of a server may have and do. `warren whoami`: who you are to a server.

`keys` uses the functions for quotas too: `--quota sessions=5`, as options and as text.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from warren.cli.main import CommandGroup
from warren.cli.options import parse_pairs
from warren.cli.remote import Answer, RemoteServer, complete, line, server_command, table
from warren.model.errors import InvalidRequest, NotFound

Values = dict[str, Any]

_TENANTS: Final = "/api/admin/tenants"
_TITLES: Final = ("TENANT", "QUOTA", "POLICY")
_LIMIT_PREFIX: Final = "limits."
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


@click.command()
@server_command
def whoami(server: RemoteServer) -> Answer:
    """Show your tenant, your key and what it may do.

    Example: warren whoami --json
    """
    identity = server.call("GET", "/api/whoami")
    rows = [
        ("tenant", identity["tenant"]),
        ("key", identity["key_id"]),
        ("scopes", ", ".join(identity["scopes"])),
        ("quota", format_quota(identity["quota"])),
        ("key's quota", format_quota(identity["key_quota"])),
    ]
    return table(identity, ("YOU", "ARE"), rows)


# -- quotas


quota_option = click.option(
    "--quota", "quotas", multiple=True, metavar="NAME=N", help="A bound: sessions=5, limits.memory_mb=1024. Repeatable."
)


def parse_quota(texts: tuple[str, ...]) -> Values:
    """Returns a quota as the API takes it; an empty value is None. The server checks the names."""
    quota: Values = {}
    for name, text in parse_pairs("--quota", texts).items():
        if name.startswith(_LIMIT_PREFIX):
            quota.setdefault("limits", {})[name.removeprefix(_LIMIT_PREFIX)] = _parse_number(name, text)
        elif name in ("environments", "egress"):
            quota[name] = [each for each in text.split(",") if each] or None
        else:
            quota[name] = _parse_number(name, text)
    return quota


def _parse_number(name: str, text: str) -> int | float | None:
    if not text:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--quota {name}: expected a number, not {text!r}")
    return float(text) if match[1] else int(text)


def _merge_quota(quota: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """Applies changes: a None removes a bound; bounds that the changes do not name stay."""
    limits = {**quota.get("limits", {}), **changes.get("limits", {})}
    merged = {**quota, **changes, "limits": {name: most for name, most in limits.items() if most is not None}}
    return {name: value for name, value in merged.items() if value not in (None, {})}


def format_quota(quota: Mapping[str, Any]) -> str:
    """Returns the quota as --quota takes it."""
    parts = []
    for name, value in quota.items():
        if isinstance(value, Mapping):
            parts += [f"{_LIMIT_PREFIX}{each}={most}" for each, most in value.items()]
        else:
            parts.append(f"{name}={','.join(value) if isinstance(value, list | tuple) else value}")
    return " ".join(parts)


# -- tenants


def complete_tenant(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda server: [each["name"] for each in _list(server)])


_name_argument = click.argument("name", shell_complete=complete_tenant)


@click.group(cls=CommandGroup)
def tenants() -> None:
    """Set what tenants may have: quotas and command policies.

    Keys belong to tenants. A tenant need not be set up; the name * stands for all tenants without settings.

    Example: warren tenants set acme --quota sessions=10
    """


@tenants.command("list")
@server_command
def list_tenants(server: RemoteServer) -> Answer:
    """List the tenants with settings.

    Example: warren tenants list
    """
    found = _list(server)
    return table({"tenants": found}, _TITLES, map(_row, found))


@tenants.command()
@_name_argument
@server_command
def show(server: RemoteServer, name: str) -> Answer:
    """Show the settings of a tenant.

    Example: warren tenants show acme
    """
    return _answer(server.call("GET", _path(name)))


@tenants.command("set")
@_name_argument
@quota_option
@click.option("--policy", "policy_file", default="", metavar="FILE", help="Its command policy, in YAML.")
@click.option("--no-policy", is_flag=True, help="Remove its command policy.")
@click.option("--logs", metavar="LEVEL", help="Least that is kept of what its sessions do: off, commands, output.")
@server_command
def set_tenant(
    server: RemoteServer, name: str, quotas: tuple[str, ...], policy_file: str, no_policy: bool, logs: str | None
) -> Answer:
    """Set the quota, the command policy or the logs of a tenant.

    Settings that are not named stay. `--quota NAME=` removes a bound. docs/tenants.md has the names.

    Example: warren tenants set acme --quota sessions=10 --quota requests_per_minute=600 --policy policy.yaml
    """
    if not (quotas or policy_file or no_policy or logs is not None) or (policy_file and no_policy):
        raise click.UsageError("set what? Give --quota NAME=N, --policy FILE or --no-policy, or --logs LEVEL")
    changes, policy = parse_quota(quotas), read_policy(Path(policy_file)) if policy_file else None
    old = _get_or_empty(server, name)
    values = {
        "quota": _merge_quota(old["quota"], changes),
        "policy": {} if no_policy else old["policy"] if policy is None else policy,
        "logs": old.get("logs", "") if logs is None else logs,
    }
    return _answer(server.call("PUT", _path(name), values=values))


@tenants.command()
@_name_argument
@server_command
def remove(server: RemoteServer, name: str) -> Answer:
    """Remove the settings of a tenant; its keys and sessions stay.

    Example: warren tenants remove acme
    """
    server.call("DELETE", _path(name))
    return line({"removed": name}, f"nothing is set for {name} any more")


def read_policy(path: Path) -> Values:
    """Reads the policy in a file, alone or under `policy:` as in an environment."""
    from warren.config.yaml_files import read_yaml

    values = read_yaml(path)
    if isinstance(values, dict) and set(values) == {"policy"}:
        values = values["policy"]
    if not isinstance(values, dict) or not values:
        raise InvalidRequest(f"{path} holds no policy", remedy="docs/command-policy.md shows some")
    return values


def _list(server: RemoteServer) -> list[Values]:
    found: list[Values] = server.call("GET", _TENANTS)["tenants"]
    return found


def _get_or_empty(server: RemoteServer, name: str) -> Values:
    try:
        tenant: Values = server.call("GET", _path(name))
    except NotFound:
        return {"quota": {}, "policy": {}}
    return tenant


def _path(name: str) -> str:
    return f"{_TENANTS}/{quote(name, safe='')}"


def _answer(tenant: Values) -> Answer:
    return table(tenant, _TITLES, [_row(tenant)])


def _row(tenant: Values) -> tuple[object, ...]:
    policy = tenant["policy"]
    rules = [f"{len(policy[name])} {name}" for name in ("allow", "deny") if policy.get(name)]
    return tenant["name"], format_quota(tenant["quota"]), " ".join([policy["mode"], *rules]) if policy else None
