"""`warren webhooks`: the addresses that a server calls when something happens."""

from typing import Any, Final
from urllib.parse import quote

import click

from warren.cli.options import Duration, server_options
from warren.cli.output import format_age, format_seconds, print_json, print_table, seconds_since
from warren.cli.remote import Server, complete
from warren.model.events import EventKind

_HOOKS: Final = "/api/webhooks"
_TITLES: Final = ("WEBHOOK", "URL", "EVENTS", "DESCRIPTION", "DISABLED")
_DELIVERY_TITLES: Final = ("MESSAGE", "EVENT", "AGE", "STATE", "ATTEMPTS", "NEXT IN", "STATUS", "ERROR")
_PING_S: Final = 30.0
EXIT_NOT_DELIVERED: Final = 1

Values = dict[str, Any]


def complete_hook(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda server: [each["id"] for each in _list(server)])


def complete_event(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in EventKind if kind.startswith(incomplete)]


_hook_argument = click.argument("hook_id", metavar="ID", shell_complete=complete_hook)


@click.group()
def webhooks() -> None:
    """Have a server call you when something happens to your sessions.

    Example: warren webhooks create https://example.org/hook --event session.lost
    """


@webhooks.command()
@click.argument("address", metavar="URL")
@click.option(
    "--event", "events", multiple=True, metavar="E", shell_complete=complete_event,
    help=f"An event to call for, repeatable: {', '.join(EventKind)}.  [all]",
)  # fmt: skip
@click.option("--description", default="", metavar="TEXT", help="For people.")
@click.option("-q", "--quiet", is_flag=True, help="Print the secret alone.")
@server_options
def create(address: str, events: tuple[str, ...], description: str, quiet: bool, url: str, as_json: bool) -> None:
    """Have the server call URL when something happens.

    Shows the secret that signs the calls, this once.

    Example: warren webhooks create https://example.org/hook --event session.lost --event session.expired
    """
    values = {"url": address, "events": list(events) or ["*"], "description": description}
    with Server(url) as server:
        hook = server.call("POST", _HOOKS, values=values)
    if as_json:
        print_json(hook)
        return
    if not quiet:
        click.echo(f"{hook['id']} calls {address}. The secret that signs the calls is shown this once:", err=True)
    click.echo(hook["secret"])


@webhooks.command("list")
@server_options
def list_hooks(url: str, as_json: bool) -> None:
    """List the webhooks of your tenant.

    Example: warren webhooks list --json
    """
    with Server(url) as server:
        found = _list(server)
    print_json({"webhooks": found}) if as_json else print_table(_TITLES, [_row(hook) for hook in found])


@webhooks.command()
@_hook_argument
@server_options
def delete(hook_id: str, url: str, as_json: bool) -> None:
    """Delete a webhook: the server calls it no more.

    Example: warren webhooks delete wh_0123456789abcdef
    """
    with Server(url) as server:
        server.call("DELETE", _path(hook_id))
    print_json({"deleted": hook_id}) if as_json else click.echo(f"deleted {hook_id}")


@webhooks.command()
@_hook_argument
@click.option("--keep-old", type=Duration(), default="1d", metavar="D", help="Sign with the old one, too, for so long.")
@server_options
def rotate(hook_id: str, keep_old: float, url: str, as_json: bool) -> None:
    """Give a webhook a new secret and show it, this once.

    Example: SECRET=$(warren webhooks rotate wh_0123456789abcdef)
    """
    with Server(url) as server:
        hook: Values = server.call("POST", f"{_path(hook_id)}/rotate", {"keep_old_s": keep_old})
    print_json(hook) if as_json else click.echo(hook["secret"])


@webhooks.command("test")
@_hook_argument
@server_options
def test_hook(hook_id: str, url: str, as_json: bool) -> int:
    """Call a webhook with a `ping`, at once, and show the result.

    The exit code is 1 if the ping was not delivered.

    Example: warren webhooks test wh_0123456789abcdef
    """
    with Server(url) as server:
        result: Values = server.call("POST", f"{_path(hook_id)}/test", work_s=_PING_S)
    if as_json:
        print_json(result)
    else:
        delivered = "yes" if result["delivered"] else "no"
        print_table(("DELIVERED", "STATUS", "ERROR"), [(delivered, result["status"], result["error"])])
    return 0 if result["delivered"] else EXIT_NOT_DELIVERED


@webhooks.command()
@_hook_argument
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="At most this many.  [50]")
@server_options
def deliveries(hook_id: str, limit: int, url: str, as_json: bool) -> None:
    """Show the undelivered messages of a webhook.

    Those that wait, and those that were given up.

    Example: warren webhooks deliveries wh_0123456789abcdef
    """
    with Server(url) as server:
        found = server.call("GET", f"{_path(hook_id)}/deliveries", {"limit": limit})
    print_json(found) if as_json else print_table(
        _DELIVERY_TITLES, [_delivery_row(each) for each in found["deliveries"]]
    )


def _list(server: Server) -> list[Values]:
    found: list[Values] = server.call("GET", _HOOKS)["webhooks"]
    return found


def _path(hook_id: str) -> str:
    return f"{_HOOKS}/{quote(hook_id, safe='')}"


def _row(hook: Values) -> tuple[object, ...]:
    return hook["id"], hook["url"], ",".join(hook["events"]), hook["description"], hook["disabled"] or None


def _delivery_row(each: Values) -> tuple[object, ...]:
    next_at = each["next_attempt_at"]
    return (
        each["message_id"],
        each["type"],
        format_age(each["created_at"]),
        each["state"],
        each["attempts"],
        format_seconds(-seconds_since(next_at)) if next_at else None,
        each["status"],
        each["error"],
    )
