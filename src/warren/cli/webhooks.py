"""`warren webhooks`: the addresses that a server calls when something happens."""

from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import click

from warren.cli.main import CommandGroup
from warren.cli.options import Duration
from warren.cli.output import format_age, format_seconds, seconds_since
from warren.cli.remote import Answer, RemoteServer, complete, line, server_command, table
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


@click.group(cls=CommandGroup)
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
@server_command
def create(server: RemoteServer, address: str, events: tuple[str, ...], description: str, quiet: bool) -> Answer:
    """Have the server call URL when something happens.

    Shows the secret that signs the calls, this once.

    Example: warren webhooks create https://example.org/hook --event session.lost --event session.expired
    """
    values = {"url": address, "events": list(events) or ["*"], "description": description}
    hook = server.call("POST", _HOOKS, values=values)

    def show() -> None:
        if not quiet:
            click.echo(f"{hook['id']} calls {address}. The secret that signs the calls is shown this once:", err=True)
        click.echo(hook["secret"])

    return Answer(hook, show)


@webhooks.command("list")
@server_command
def list_hooks(server: RemoteServer) -> Answer:
    """List the webhooks of your tenant.

    Example: warren webhooks list --json
    """
    found = _list(server)
    return table({"webhooks": found}, _TITLES, map(_row, found))


@webhooks.command()
@_hook_argument
@server_command
def delete(server: RemoteServer, hook_id: str) -> Answer:
    """Delete a webhook: the server calls it no more.

    Example: warren webhooks delete wh_0123456789abcdef
    """
    server.call("DELETE", _path(hook_id))
    return line({"deleted": hook_id}, f"deleted {hook_id}")


@webhooks.command()
@_hook_argument
@click.option(
    "--keep-old", type=Duration(7), default="1d", metavar="D", help="Sign with the old one, too, for so long."
)
@server_command
def rotate(server: RemoteServer, hook_id: str, keep_old: float) -> Answer:
    """Give a webhook a new secret and show it, this once.

    Example: SECRET=$(warren webhooks rotate wh_0123456789abcdef)
    """
    hook: Values = server.call("POST", f"{_path(hook_id)}/rotate", {"keep_old_s": keep_old})
    return line(hook, hook["secret"])


@webhooks.command("test")
@_hook_argument
@server_command
def test_hook(server: RemoteServer, hook_id: str) -> Answer:
    """Call a webhook with a `ping`, at once, and show the result.

    The exit code is 1 if the ping was not delivered.

    Example: warren webhooks test wh_0123456789abcdef
    """
    result: Values = server.call("POST", f"{_path(hook_id)}/test", work_s=_PING_S)
    delivered = "yes" if result["delivered"] else "no"
    shown = table(result, ("DELIVERED", "STATUS", "ERROR"), [(delivered, result["status"], result["error"])])
    return shown if result["delivered"] else replace(shown, exit_code=EXIT_NOT_DELIVERED)


@webhooks.command()
@_hook_argument
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="At most this many.  [50]")
@server_command
def deliveries(server: RemoteServer, hook_id: str, limit: int) -> Answer:
    """Show the undelivered messages of a webhook.

    Those that wait, and those that were given up.

    Example: warren webhooks deliveries wh_0123456789abcdef
    """
    found = server.call("GET", f"{_path(hook_id)}/deliveries", {"limit": limit})
    return table(found, _DELIVERY_TITLES, map(_delivery_row, found["deliveries"]))


def _list(server: RemoteServer) -> list[Values]:
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
