"""`warren network`: what a session's sandbox may reach, what it reached, and what it was refused."""

from functools import partial
from typing import Any, Final

import click

from warren.cli.options import EGRESS_NETWORKS, network_options, thread_option
from warren.cli.output import format_age, format_mib, print_table, printable
from warren.cli.remote import Answer, RemoteServer, complete_session, server_command
from warren.model.network import is_special_refusal

Values = dict[str, Any]
_NOTHING: Final[Values] = {"internet": False, "allow": [], "deny": []}


@click.command()
@click.argument("session", required=False, default="", shell_complete=complete_session)
@thread_option
@network_options
@click.option("--add", is_flag=True, help="Keep the rules there are, and add these.")
@server_command
def network(
    server: RemoteServer,
    session: str,
    thread: str,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    internet: bool,
    no_network: bool,
    add: bool,
) -> Answer:
    """Show or change what the sandbox of a session may reach.

    Without an option it shows the rules, how much went through them, and what was refused of late, each with the
    option that would allow it. Options replace all rules at once; connections that are no longer allowed are cut.

    Example: warren network ses_0123 --add --allow api.example.com:443
    """
    if no_network and (allow or deny or internet or add):
        raise click.UsageError("--none goes alone")
    session_id = server.find(session, thread)
    if allow or deny or internet or no_network:
        old: Values = server.backend.call("get_network", session_id) if add else _NOTHING
        found = server.backend.call(
            "set_network",
            session_id,
            internet=internet or old["internet"],
            allow=list(dict.fromkeys([*old["allow"], *allow])),
            deny=list(dict.fromkeys([*old["deny"], *deny])),
        )
    elif add:
        raise click.UsageError("add what? Give --allow, --deny or --internet")
    else:
        found = server.backend.call("get_network", session_id)
    return Answer(found, partial(_print, found))


def _print(found: Values) -> None:
    rules = [("internet", "yes")] if found["internet"] else []
    rules += [("allow", text) for text in found["allow"]] + [("deny", text) for text in found["deny"]]
    print_table(("RULE", "DESTINATION"), rules or [("none", "the sandbox reaches nothing but itself")])
    click.echo(
        f"\n{found['connections']} connections, {found['open_connections']} of them open; "
        f"{format_mib(found['bytes_sent'])} sent, {format_mib(found['bytes_received'])} received; "
        f"{found['refused']} refused"
    )
    if found["refusals"]:
        click.echo()
        rows = [_refusal_row(refusal) for refusal in found["refusals"]]
        print_table(("REFUSED", "AGE", "WHY", "TO ALLOW IT"), rows)


def _refusal_row(refusal: Values) -> tuple[object, ...]:
    where = refusal["name"] or refusal["address"]
    shown = f"{where}:{refusal['port']}" if refusal["port"] else where
    remedy = f"--add --allow {refusal['rule']}" if refusal["rule"] else None
    if is_special_refusal(refusal["reason"], refusal["rule"]):
        remedy = EGRESS_NETWORKS
    return printable(shown), format_age(refusal["at"]), printable(refusal["reason"]), remedy
