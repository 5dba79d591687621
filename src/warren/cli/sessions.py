"""`warren create`, `ps`, `inspect`, `pause`, `resume`, `kill`, `kill-all` and `stats`: the sessions of a server."""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click

from warren.cli.figures import show_session
from warren.cli.main import EXIT_WARREN_FAILED, report
from warren.cli.options import (
    Duration,
    SizeType,
    drop_empty,
    environment_option,
    network_options,
    network_values,
    parse_pairs,
    replace_lost_option,
    server_options,
    thread_option,
)
from warren.cli.output import (
    CLEAR_SCREEN,
    Coloured,
    format_age,
    format_seconds,
    format_size,
    print_json,
    print_table,
    seconds_since,
)
from warren.cli.remote import (
    RemoteServer,
    complete_session,
    report_fresh_sandbox,
    report_mismatch,
    short_id,
    split_session,
)
from warren.model.errors import Conflict, InvalidRequest, NotFound, SandboxLost, SessionEnded
from warren.model.gpus import gpus_value
from warren.model.volume import parse_mount

Values = dict[str, Any]

_SESSION_TITLES: Final = (
    "SESSION", "THREAD", "ENVIRONMENT", "IMAGE", "PROVIDER", "WORKER", "LIMITS", "STATE", "AGE", "IDLE LEFT",
    "ENDS IN", "POOL",
)  # fmt: skip
_SPARE_TITLES: Final = ("POOL", "IMAGE", "WORKER", "PROVIDER", "IDLE LEFT")
_CUT_TITLES: Final = ("THREAD", "ENVIRONMENT", "STATE")
_STATE_COLOURS: Final = {
    "running": "green", "paused": "cyan", "creating": "yellow", "stopping": "yellow", "lost": "red",
    "ended": "bright_black",
}  # fmt: skip
_POOL_TITLES: Final = (
    "POOL", "READY", "CREATING", "TARGET", "CLAIMS/S", "WAITING", "HIT RATE", "P50", "P95", "MADE", "FAILED",
)  # fmt: skip
_SHORTAGES: Final = {
    "idle": "nobody has claimed one for ten minutes; the next claim fills the pool again",
    "creations_fail": "making one fails",
    "creation_takes_long": "making one takes longer than half a minute",
    "machine_nearly_full": "the machine has little memory or disk left, so only the pool's minimum is made",
    "being_made": "more are being made",
    "callers_first": "sandboxes are taken as fast as they can be made",
    "pool_ceiling": "the machine's memory allows the pool no more",
    "planning_failed": "the server cannot read how much room the machine has; its log says why",
}
_WATCH_S: Final = 2.0


@click.command()
@click.option("--thread", default="", metavar="T", help="Its thread. If the thread has a session, that one is used.")
@environment_option("Environment of the server's registry.")
@click.option(
    "--on-mismatch",
    type=click.Choice(["keep", "replace", "error"]),
    help="If the thread's session has another environment, image, provider or limit: use it, end it and make a new "
    "one, or refuse (the default).",
)
@click.option("--agent", "agent_config", default="", metavar="A", help="Agent of the server's registry that it is for.")
@click.option("--image", default="", metavar="I", help="Image to use instead of the environment's.")
@click.option(
    "-m", "--memory", "memory_mb", type=SizeType(), metavar="MB", help="Memory limit, in MiB or as 512m or 1g."
)
@click.option("--cpus", type=float, metavar="N", help="CPU limit.")
@click.option("--disk", "disk_mb", type=SizeType(), metavar="MB", help="Disk limit, in MiB or as 512m or 1g.")
@click.option("-e", "variables", multiple=True, metavar="K=V", help="Environment variable for every command in it.")
@click.option("--require", multiple=True, metavar="LAYER", help="Start nothing without this layer of isolation.")
@click.option("--secret", "secret_names", multiple=True, metavar="NAME", help="A secret that its requests carry.")
@click.option("--snapshot", default="", metavar="S", help="Start with the files of this snapshot.")
@click.option("--provider", default="", metavar="P", help="What makes the sandbox, one of the server's providers.")
@click.option("--gpus", default="", metavar="N", help="Graphics processors for it alone: a number, or id:0,1.")
@click.option("-v", "--volume", "volumes", multiple=True, metavar="NAME:PATH[:ro]", help="A named volume in it.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="What its worker must have: gpu=1.")
@click.option("--metadata", multiple=True, metavar="K=V", help="A note of your own, to find it by.")
@network_options
@click.option("--logs", default="", metavar="LEVEL", help="What is kept of what it does: off, commands, output.")
@click.option("--idle-timeout", "idle_timeout_s", type=Duration(), metavar="D", help="End it when unused so long: 10m.")
@click.option("--max-lifetime", "max_lifetime_s", type=Duration(), metavar="D", help="End it after so long: 1h.")
@click.option(
    "--on-idle", type=click.Choice(["end", "pause", "hibernate"]), help="What becomes of it when unused so long."
)
@click.option("--max-paused", "max_paused_s", type=Duration(), metavar="D", help="End it when paused so long: 1d.")
@replace_lost_option
@server_options
def create(
    thread: str,
    memory_mb: int | None,
    cpus: float | None,
    disk_mb: int | None,
    variables: tuple[str, ...],
    metadata: tuple[str, ...],
    require: tuple[str, ...],
    secret_names: tuple[str, ...],
    gpus: str,
    volumes: tuple[str, ...],
    labels: tuple[str, ...],
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    internet: bool,
    no_network: bool,
    url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a session and print its id.

    Example: warren create --memory 1g --idle-timeout 10m --metadata user=u-7
    """
    values = {
        **options,
        "thread_id": thread,
        "limits": drop_empty({"memory_mb": memory_mb, "cpus": cpus, "disk_mb": disk_mb}),
        "env": parse_pairs("-e", variables),
        "require": list(require),
        "secrets": list(secret_names),
        "gpus": gpus_value(gpus),
        "volumes": [parse_mount(each) for each in volumes],
        "labels": parse_pairs("--label", labels),
        "metadata": parse_pairs("--metadata", metadata),
        "network": network_values(allow, deny, internet, no_network),
    }
    with RemoteServer(url) as server:
        session = server.create_session(drop_empty(values))
    report_fresh_sandbox(session)
    report_mismatch(session)
    print_json(session) if as_json else click.echo(session["session_id"])


@click.command()
@click.option("-a", "--all", "with_ended", is_flag=True, help="Also those that have ended, as long as they are known.")
@click.option("-q", "--quiet", is_flag=True, help="Only the ids, in full.")
@server_options
def ps(with_ended: bool, quiet: bool, url: str, as_json: bool) -> None:
    """List sessions, the newest first.

    LIMITS are memory, cores and disk; M is MiB, G is GiB. IDLE LEFT is how long it may still go unused, ENDS IN when
    it ends if it does. POOL says whether the session's sandbox came from the pool. A narrow terminal shows fewer
    columns, `warren ps | cat` shows all.

    Example: warren ps -a
    """
    with RemoteServer(url) as server:
        sessions = list(server.sessions())
        if with_ended:
            sessions += server.sessions(state="ended")
    if as_json:
        print_json({"sessions": sessions})
    elif quiet:
        for session in sessions:
            click.echo(session["session_id"])
    else:
        rows = [_session_row(session) for session in sessions]
        print_table(_SESSION_TITLES, rows, spare=_SPARE_TITLES, cut=_CUT_TITLES)


def _session_row(session: Values) -> tuple[object, ...]:
    state, reason = session["state"], session["reason"]
    return (
        short_id(session["session_id"]),
        session["thread_id"],
        session["environment"],
        session.get("image"),
        session["provider"],
        session["worker"],
        _format_limits(session.get("limits")),
        Coloured(f"{state} ({reason})" if reason and reason != state else state, _STATE_COLOURS.get(state, "reset")),
        format_age(session["created_at"]),
        _time_left(session.get("idle_expires_at")),  # a server of an earlier version does not say
        _time_left(session["expires_at"]),
        "yes" if session["pooled"] else "no",
    )


def _format_limits(limits: Values | None) -> str | None:
    if not limits:
        return None
    return f"{format_size(limits['memory_mb'])}/{limits['cpus']:g}/{format_size(limits['disk_mb'])}"


def _time_left(timestamp: str | None) -> str | None:
    return format_seconds(-seconds_since(timestamp)) if timestamp else None


@click.command()
@click.argument("sessions", nargs=-1, metavar="SESSION…", shell_complete=complete_session)
@thread_option
@server_options
def inspect(sessions: tuple[str, ...], thread: str, url: str, as_json: bool) -> int:
    """Print everything about sessions, as a JSON array.

    Their limits, time-outs, metadata, and the layers of isolation in force.

    Example: warren inspect ses_0123
    """
    with RemoteServer(url) as server:

        def get(name: str) -> Values:
            found: Values = server.backend.call("get_session", server.find(name, thread))
            return found

        shown, code = _for_each(_given_sessions(sessions, thread), get)
    print_json(shown)
    return code


def _given_sessions(words: tuple[str, ...], thread: str) -> tuple[str, ...]:
    """Returns the SESSION arguments; one empty name stands for the session of --thread."""
    name, rest = split_session(words, thread)
    if thread and rest:
        raise click.UsageError("give SESSION or --thread, not both")
    return (name, *rest)


def _for_each(names: tuple[str, ...], do: Callable[[str], Values]) -> tuple[list[Values], int]:
    """Calls `do` with each name, also if it fails for some. Returns the results and the exit code."""
    results, code = [], 0
    for name in names:
        try:
            results.append(do(name))
        except (NotFound, SessionEnded, SandboxLost, Conflict, InvalidRequest) as exc:
            if len(names) == 1:
                raise
            report(exc.message, exc.remedy)
            code = EXIT_WARREN_FAILED
    return results, code


def _print_each(
    names: tuple[str, ...], do: Callable[[str], Values], line: Callable[[Values], str], as_json: bool
) -> int:
    """Calls `do` with each name. Prints a line for each result, or one document: for one name its result, for several a
    list. Returns the exit code."""

    def do_and_print(name: str) -> Values:
        result = do(name)
        if not as_json:
            click.echo(line(result))
        return result

    results, code = _for_each(names, do_and_print)
    if as_json:
        print_json(results[0] if len(names) == 1 else results)
    return code


@click.command()
@click.argument("sessions", nargs=-1, metavar="SESSION…", shell_complete=complete_session)
@thread_option
@click.option("--max-paused", "max_paused_s", type=Duration(), metavar="D", help="End it when paused so long: 1d.")
@click.option("--auto-resume/--no-auto-resume", default=None, help="Whether whoever uses it resumes it.")
@click.option("--to-disk", is_flag=True, help="Keep its files alone, and give its sandbox back.")
@server_options
def pause(
    sessions: tuple[str, ...],
    thread: str,
    max_paused_s: float | None,
    auto_resume: bool | None,
    to_disk: bool,
    url: str,
    as_json: bool,
) -> int:
    """Let everything in sessions stand still. They keep their memory, and their time-outs stand still as well. With
    --to-disk their files alone are kept.

    Example: warren pause ses_0123
    """
    given = {"max_paused_s": max_paused_s, "auto_resume": auto_resume, "to_disk": to_disk or None}
    values = {name: value for name, value in given.items() if value is not None}
    return _change_each("pause_session", _given_sessions(sessions, thread), thread, url, as_json, values)


@click.command()
@click.argument("sessions", nargs=-1, metavar="SESSION…", shell_complete=complete_session)
@thread_option
@server_options
def resume(sessions: tuple[str, ...], thread: str, url: str, as_json: bool) -> int:
    """Let paused sessions go on.

    Example: warren resume ses_0123
    """
    return _change_each("resume_session", _given_sessions(sessions, thread), thread, url, as_json, {})


def _change_each(operation: str, names: tuple[str, ...], thread: str, url: str, as_json: bool, values: Values) -> int:
    """Performs an operation on each session and prints the id and the state it has then."""
    with RemoteServer(url) as server:

        def change(name: str) -> Values:
            session: Values = server.backend.call(operation, server.find(name, thread), **values)
            return session

        return _print_each(names, change, lambda session: f"{session['session_id']} {session['state']}", as_json)


@click.command()
@click.argument("words", nargs=-1, metavar="SESSION… | SESSION PROCESS…", shell_complete=complete_session)
@thread_option
@click.option("--grace", "grace_s", type=float, default=2.0, metavar="S", help="Time between TERM and KILL.  [2]")
@click.option("-f", "--force", is_flag=True, hidden=True, expose_value=False)
@server_options
def kill(words: tuple[str, ...], thread: str, grace_s: float, url: str, as_json: bool) -> int:
    """End sessions, or processes of a session.

    When this returns, the session's sandbox, processes and files are gone. With PROCESS only that process is ended,
    with everything it started; the number of killed processes is printed. The second word is a PROCESS unless it
    begins with ses_, as every session id does.

    Example: warren kill $(warren ps -q)
    """
    sessions, processes = _split_sessions(words, thread)
    with RemoteServer(url) as server:
        if processes:
            kill_one = partial(_kill_process, server, server.find(sessions[0], thread), grace_s)
            return _print_each(processes, kill_one, _describe_kill, as_json)

        def end(name: str) -> Values:
            ended: Values = server.backend.call("delete_session", server.find(name, thread))
            return ended

        return _print_each(sessions, end, lambda session: f"ended {session['session_id']}", as_json)


def _split_sessions(words: tuple[str, ...], thread: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits arguments into sessions and processes of the one session."""
    name, rest = split_session(words, thread)
    if not any(word.startswith("ses_") for word in rest):
        return (name,), rest
    if thread or not all(word.startswith("ses_") for word in rest):
        raise click.UsageError("give sessions, or one session and its processes, not both")
    return (name, *rest), ()


def _kill_process(server: RemoteServer, session_id: str, grace_s: float, process_id: str) -> Values:
    options: Values = {"work_s": grace_s, "grace_s": grace_s}
    result: Values = server.backend.call("kill_process", session_id, process_id=process_id, **options)
    return result


def _describe_kill(result: Values) -> str:
    survivors = f", {result['survivors']} could not be" if result["survivors"] else ""
    ending = f"it ended with {result['exit_code']} ({result['reason']})"
    return f"{result['process_id']}: {result['killed']} killed{survivors}; {ending}"


@click.command("kill-all")
@click.argument("sessions", nargs=-1, metavar="SESSION…", shell_complete=complete_session)
@thread_option
@server_options
def kill_all(sessions: tuple[str, ...], thread: str, url: str, as_json: bool) -> int:
    """End everything that runs in sessions.

    At once, also when a fork bomb has used up all processes. The session, its files and the output of background
    commands stay.

    Example: warren kill-all ses_0123
    """
    with RemoteServer(url) as server:

        def end(name: str) -> Values:
            session_id = server.find(name, thread)
            return {"session_id": session_id, **server.backend.call("kill_all", session_id)}

        names = _given_sessions(sessions, thread)
        return _print_each(
            names, end, lambda result: f"{result['session_id']}: {result['killed']} processes ended", as_json
        )


@click.command()
@click.argument("session", required=False, default="", shell_complete=complete_session)
@thread_option
@click.option("--watch", is_flag=True, help=f"Show them again every {_WATCH_S:g} seconds, until Ctrl-C.")
@server_options
def stats(session: str, thread: str, watch: bool, url: str, as_json: bool) -> None:
    """Show the figures of a session, or of a server.

    Of a session: what it uses of its processors, memory, disk and processes, and used in the last minutes; with --watch
    in place on a terminal, otherwise a line each time. Without one: sessions, pools and the machine of the server.
    docs/figures.md and docs/operations.md say what to do about each figure.

    Example: warren stats ses_0123 --watch
    """
    with RemoteServer(url) as server:
        if session or thread:
            session_id = server.find(session, thread)
            return show_session(server, session_id, watch_s=_WATCH_S if watch else None, as_json=as_json)
        if watch and as_json:
            raise click.UsageError("--watch is for a person; a program asks again when it wants to")
        while True:
            figures = server.backend.stats()
            if as_json:
                print_json(figures)
                return
            if watch:
                click.echo(CLEAR_SCREEN if sys.stdout.isatty() else "", nl=False)
            _print_figures(figures)
            if not watch:
                return
            time.sleep(_WATCH_S)


def _print_figures(figures: Values) -> None:
    counts = ", ".join(f"{count} {state}" for state, count in figures["sessions"].items() if count)
    click.echo(f"sessions: {counts or 'none'}")
    for name, worker in figures["workers"].items():
        _print_worker(name, worker)


def _print_worker(name: str, worker: Values) -> None:
    guard = worker["guard"]
    click.echo(f"worker {name}: {worker['sandboxes']} sandboxes, {worker['claimed']} of them in use")
    reserve = f"{guard['memory_reserve_mb']} and {guard['disk_reserve_mb']} MiB stay free"
    click.echo(
        f"machine: {guard['memory_free_mb']} MiB of memory and {guard['disk_free_mb']} MiB of disk are free; "
        f"{reserve}; {guard['max_sandboxes']} sandboxes at most"
    )
    click.echo()
    print_table(_POOL_TITLES, [_pool_row(pool, figures) for pool, figures in worker["pools"].items()])
    for pool, figures in worker["pools"].items():
        if shortage := figures["shortage"]:
            most = max(figures["size"], figures["target"])
            click.echo(f"{pool}: {figures['ready']} of {most} are ready: {_SHORTAGES.get(shortage, shortage)}")
        if figures["last_failure"]:
            click.echo(f"{pool}: the last sandbox could not be made: {figures['last_failure']}")


def _pool_row(name: str, pool: Values) -> tuple[object, ...]:
    rate = pool["hit_rate"]
    return (
        name,
        pool["ready"],
        pool["creating"],
        pool["target"],
        f"{pool['claim_rate']:.2g}",
        pool["waiting"],
        None if rate is None else f"{rate:.0%}",
        _milliseconds(pool["latency_p50_s"]),
        _milliseconds(pool["latency_p95_s"]),
        pool["creations"],
        pool["failures"],
    )


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.1f} ms"
