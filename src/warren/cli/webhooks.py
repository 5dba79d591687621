"""`warren webhooks`: whom a server tells when something happens."""

import contextlib
from typing import Any
from urllib.parse import quote

import click

from warren.cli.remote import Server, server_options
from warren.cli.tables import print_json, print_table, seconds_since, show_seconds
from warren.model.errors import WarrenError
from warren.model.events import EventKind
from warren.sdk.protocol import Request

_HOOKS = "/api/webhooks"
_TITLES = ("WEBHOOK", "URL", "EVENTS", "DESCRIPTION", "DISABLED")
_DELIVERIES = ("MESSAGE", "EVENT", "AGE", "STATE", "ATTEMPTS", "NEXT IN", "STATUS", "ERROR")
_PING_S = 30.0
EXIT_NOT_DELIVERED = 1

Values = dict[str, Any]


def complete_hook(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    with contextlib.suppress(WarrenError, OSError), Server(ctx.params.get("url") or "") as server:
        return [each["id"] for each in _all(server) if each["id"].startswith(incomplete)]
    return []


def complete_event(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in EventKind if kind.startswith(incomplete)]


_hook_argument = click.argument("hook_id", metavar="ID", shell_complete=complete_hook)


@click.group()
def webhooks() -> None:
    """Have a server tell you what happens to your sessions.

    Example: warren webhooks create https://example.org/hook --event session.lost
    """


@webhooks.command()
@click.argument("address", metavar="URL")
@click.option(
    "--event", "events", multiple=True, metavar="E", shell_complete=complete_event,
    help=f"What to tell, repeatable: {', '.join(EventKind)}.  [everything]",
)  # fmt: skip
@click.option("--description", default="", metavar="TEXT", help="For people.")
@click.option("-q", "--quiet", is_flag=True, help="Print the secret alone.")
@server_options
def create(address: str, events: tuple[str, ...], description: str, quiet: bool, url: str, as_json: bool) -> None:
    """Call URL when something happens; show the secret that signs the calls, this once.

    Example: warren webhooks create https://example.org/hook --event session.lost --event session.expired
    """
    wanted = {"url": address, "events": list(events) or ["*"], "description": description}
    with Server(url) as server:
        made = server.transport.call(Request("POST", _HOOKS, values=wanted))
    if as_json:
        print_json(made)
        return
    if not quiet:
        click.echo(f"{made['id']} calls {address}. The secret that signs the calls is shown this once:", err=True)
    click.echo(made["secret"])


@webhooks.command("list")
@server_options
def list_hooks(url: str, as_json: bool) -> None:
    """List the webhooks of your tenant.

    Example: warren webhooks list --json
    """
    with Server(url) as server:
        found = _all(server)
    print_json({"webhooks": found}) if as_json else print_table(_TITLES, [_row(hook) for hook in found])


@webhooks.command()
@_hook_argument
@server_options
def delete(hook_id: str, url: str, as_json: bool) -> None:
    """Delete a webhook: it is called no more.

    Example: warren webhooks delete wh_0123456789abcdef
    """
    with Server(url) as server:
        server.transport.call(Request("DELETE", _place(hook_id)))
    print_json({"deleted": hook_id}) if as_json else click.echo(f"deleted {hook_id}")


@webhooks.command("test")
@_hook_argument
@server_options
def test_hook(hook_id: str, url: str, as_json: bool) -> int:
    """Call a webhook with a `ping`, at once, and say what came of it.

    The exit code is 1 if the ping was not taken.

    Example: warren webhooks test wh_0123456789abcdef
    """
    with Server(url) as server:
        found: Values = server.transport.call(Request("POST", f"{_place(hook_id)}/test", work_s=_PING_S))
    if as_json:
        print_json(found)
    else:
        print_table(("DELIVERED", "STATUS", "ERROR"), [("yes" if found["delivered"] else "no", *_outcome(found))])
    return 0 if found["delivered"] else EXIT_NOT_DELIVERED


@webhooks.command()
@_hook_argument
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="So many at most.  [50]")
@server_options
def deliveries(hook_id: str, limit: int, url: str, as_json: bool) -> None:
    """Show what was not delivered to a webhook: what waits, and what was given up.

    Example: warren webhooks deliveries wh_0123456789abcdef
    """
    with Server(url) as server:
        found = server.transport.call(Request("GET", f"{_place(hook_id)}/deliveries", {"limit": limit}))
    print_json(found) if as_json else print_table(_DELIVERIES, [_delivery(each) for each in found["deliveries"]])


def _all(server: Server) -> list[Values]:
    found: list[Values] = server.transport.call(Request("GET", _HOOKS))["webhooks"]
    return found


def _place(hook_id: str) -> str:
    return f"{_HOOKS}/{quote(hook_id, safe='')}"


def _row(hook: Values) -> tuple[object, ...]:
    return hook["id"], hook["url"], ",".join(hook["events"]), hook["description"], hook["disabled"] or None


def _delivery(each: Values) -> tuple[object, ...]:
    then = each["next_attempt_at"]
    return (
        each["message_id"],
        each["type"],
        show_seconds(max(0.0, seconds_since(each["created_at"]))),
        each["state"],
        each["attempts"],
        show_seconds(-seconds_since(then)) if then else None,
        *_outcome(each),
    )


def _outcome(found: Values) -> tuple[object, object]:
    return found["status"], found["error"]
