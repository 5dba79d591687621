"""`warren ps`: the sessions of a server."""

from typing import Any

import click

from warren.cli.remote import Server, server_options, short_id
from warren.cli.tables import print_json, print_table, seconds_since, show_seconds

_TITLES = ("SESSION", "THREAD", "ENVIRONMENT", "STATE", "AGE", "EXPIRES IN", "POOL")


@click.command()
@click.option("-a", "--all", "ended_too", is_flag=True, help="Also those that have ended, as long as they are known.")
@click.option("-q", "--quiet", is_flag=True, help="Only the ids, in full.")
@server_options
def ps(ended_too: bool, quiet: bool, url: str, as_json: bool) -> None:
    """List sessions, the newest first.

    POOL says whether its sandbox was ready when it was asked for.

    Example: warren ps -a
    """
    with Server(url) as server:
        found = list(server.sessions())
        if ended_too:
            found += server.sessions(state="ended")
    if as_json:
        print_json({"sessions": found})
    elif quiet:
        for session in found:
            click.echo(session["session_id"])
    else:
        print_table(_TITLES, [_row(session) for session in found])


def _row(session: dict[str, Any]) -> tuple[object, ...]:
    state = f"{session['state']} ({session['reason']})" if session["reason"] else session["state"]
    expires = session["expires_at"]
    return (
        short_id(session["session_id"]),
        session["thread_id"],
        session["environment"],
        state,
        show_seconds(max(0.0, seconds_since(session["created_at"]))),
        show_seconds(-seconds_since(expires)) if expires else None,
        "yes" if session["pooled"] else "no",
    )
