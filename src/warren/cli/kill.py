"""`warren kill`: ends a session, or one process of it."""

import click

from warren.cli.remote import Server, complete_session, server_options, take_session, thread_option
from warren.cli.tables import print_json


@click.command()
@click.argument("words", nargs=-1, metavar="SESSION [PROCESS]", shell_complete=complete_session)
@thread_option
@click.option("--grace", "grace_s", type=float, default=2.0, metavar="S", help="Time between TERM and KILL.  [2]")
@server_options
def kill(words: tuple[str, ...], thread: str, grace_s: float, url: str, as_json: bool) -> None:
    """End a session, or a process of it.

    When this returns, the session's sandbox, processes and files are gone. With PROCESS only that process is ended,
    with everything it started, and it is said how many that were.

    Example: warren kill ses_0123 web
    """
    name, rest = take_session(words, thread)
    if len(rest) > 1:
        raise click.UsageError(f"one process at a time, not {len(rest)}")
    with Server(url) as server:
        session_id = server.find(name, thread)
        if rest:
            _kill_process(server, session_id, rest[0], grace_s, as_json)
            return
        ended = server.backend.call("delete_session", session_id)
    print_json(ended) if as_json else click.echo(f"ended {session_id}")


def _kill_process(server: Server, session_id: str, process_id: str, grace_s: float, as_json: bool) -> None:
    result = server.backend.call("kill_process", session_id, process_id=process_id, work_s=grace_s, grace_s=grace_s)
    if as_json:
        print_json(result)
        return
    left = f", {result['survivors']} could not be" if result["survivors"] else ""
    how = f"it ended with {result['exit_code']} ({result['reason']})"
    click.echo(f"{process_id}: {result['killed']} killed{left}; {how}")
