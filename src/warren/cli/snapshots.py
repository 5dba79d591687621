"""`warren snapshot` and `warren fork`: disks that sessions start from, and sessions with the same files."""

import sys
from functools import partial
from typing import Any, Final

import click

from warren.cli.main import CommandGroup, report
from warren.cli.options import Duration, SizeType, drop_empty, environment_option, parse_pairs, server_options
from warren.cli.output import format_age, format_size, print_json, printable, write_bytes
from warren.cli.remote import (
    Answer,
    RemoteServer,
    complete,
    complete_session,
    line,
    server_command,
    short_id,
    table,
)
from warren.sdk.blocking.backend import list_all

_TITLES: Final = ("SNAPSHOT", "NAME", "ENVIRONMENT", "SIZE", "DISK", "SESSION", "AGE")
_FORK_S: Final = 600.0

Values = dict[str, Any]


def _complete_snapshot(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def names(server: RemoteServer) -> list[str]:
        found = list_all(server.backend, "snapshots")
        return [name for each in found for name in (each["name"], each["snapshot_id"]) if name]

    return complete(ctx, incomplete, names)


_snapshot_argument = click.argument("name", metavar="SNAPSHOT", shell_complete=_complete_snapshot)
_session_argument = click.argument("session", required=False, default="", shell_complete=complete_session)
_thread_option = click.option("--thread", default="", metavar="T", help="The thread's session, instead of SESSION.")
_name_option = click.option("--name", default="", metavar="N", help="Its name; another snapshot's name moves to it.")
_expiry_option = click.option(
    "--expires-in", "expires_in_s", type=Duration(), metavar="D", help="Delete it after so long: 7d; 0: never."
)


@click.group(cls=CommandGroup)
def snapshot() -> None:
    """Save the files of sessions, and start others from them.

    Example: warren snapshot create --thread conv-42 --name ready && warren create --snapshot ready
    """


@snapshot.command()
@_session_argument
@_thread_option
@_name_option
@_expiry_option
@click.option("--public", is_flag=True, help="For operators: sessions of every tenant may start from it.")
@click.option("--metadata", multiple=True, metavar="K=V", help="A note of your own.")
@server_command
def create(
    server: RemoteServer,
    session: str,
    thread: str,
    name: str,
    expires_in_s: float | None,
    public: bool,
    metadata: tuple[str, ...],
) -> Answer:
    """Save the files of a session; it goes on.

    Example: warren snapshot create ses_0123 --name ready
    """
    given: Values = {"name": name, "public": public, "metadata": parse_pairs("--metadata", metadata)}
    if expires_in_s is not None:
        given["expires_in_s"] = expires_in_s
    made = server.backend.call("create_snapshot", server.find(_one(session, thread), thread), work_s=_FORK_S, **given)
    return line(made, made["snapshot_id"])


@snapshot.command("list")
@click.option("-q", "--quiet", is_flag=True, help="Only the ids.")
@server_command
def list_snapshots(server: RemoteServer, quiet: bool) -> Answer:
    """List snapshots, newest first.

    Example: warren snapshot list
    """
    found = list_all(server.backend, "snapshots")
    if quiet:
        return Answer(
            {"snapshots": found}, partial(click.echo, "\n".join(one["snapshot_id"] for one in found), nl=bool(found))
        )
    return table({"snapshots": found}, _TITLES, map(_row, found))


@snapshot.command()
@_snapshot_argument
@server_command
def show(server: RemoteServer, name: str) -> Answer:
    """Show what is known about a snapshot.

    Example: warren snapshot show ready
    """
    found = server.backend.call("get_snapshot", snapshot=name)
    shown = [f"{key:14} {printable(str(value))}" for key, value in found.items() if value not in (None, {}, "")]
    return line(found, "\n".join(shown))


@snapshot.command()
@click.argument("names", nargs=-1, required=True, metavar="SNAPSHOT...", shell_complete=_complete_snapshot)
@server_command
def rm(server: RemoteServer, names: tuple[str, ...]) -> Answer:
    """Delete snapshots. Sessions that started from them go on.

    Example: warren snapshot rm ready
    """
    for name in names:
        server.backend.call("delete_snapshot", snapshot=name)
    return line({"removed": list(names)}, "\n".join(f"removed {name}" for name in names))


@snapshot.command()
@_snapshot_argument
@click.argument("target", required=False, default="")
@server_options
def get(name: str, target: str, url: str, as_json: bool) -> None:
    """Download a snapshot to TARGET, NAME.warren-snapshot, or stdout (-).

    Example: warren snapshot get ready
    """
    with RemoteServer(url) as server:
        if target == "-":
            with server.backend.download("read_snapshot", "", snapshot=name) as (_, parts):
                for part in parts:
                    write_bytes(sys.stdout.fileno(), part)
            return
        path = server.client("").snapshots.download(name, target)
    print_json({"path": str(path)}) if as_json else click.echo(printable(str(path)))


@snapshot.command()
@click.argument("file")
@_name_option
@_expiry_option
@environment_option("Of a tar: the environment it is for.")
@click.option("--image", default="", metavar="I", help="Of a tar: an image instead of the environment's.")
@click.option("--disk", "disk_mb", type=SizeType(), metavar="MB", help="Of a tar: the size of its disk.")
@click.option("--path", default="", metavar="DIR", help="Of a tar: where it is unpacked.  [/workspace]")
@server_command
def put(
    server: RemoteServer,
    file: str,
    name: str,
    expires_in_s: float | None,
    environment: str,
    image: str,
    disk_mb: int | None,
    path: str,
) -> Answer:
    """Make a snapshot of a downloaded one, or of a tar, compressed or not.

    Example: warren snapshot put project.tar.gz --name project
    """
    made = server.client("").snapshots.upload(
        file, name, environment=environment, image=image, disk_mb=disk_mb, remote_path=path, expires_in_s=expires_in_s
    )
    return line(made.to_dict(), made.snapshot_id)


@click.command()
@_session_argument
@_thread_option
@click.option("-n", "--count", default=1, metavar="N", help="How many.  [1]")
@click.option("--new-thread", "thread_ids", multiple=True, metavar="T", help="A thread for each, that has no session.")
@click.option("--metadata", multiple=True, metavar="K=V", help="Added to that of the session.")
@server_command
def fork(
    server: RemoteServer,
    session: str,
    thread: str,
    count: int,
    thread_ids: tuple[str, ...],
    metadata: tuple[str, ...],
) -> Answer:
    """Start sessions with the files of a session; print their ids.

    Files are carried; processes and memory are not.

    Example: warren fork --thread conv-42 -n 3
    """
    given = {"thread_ids": list(thread_ids), "metadata": parse_pairs("--metadata", metadata)}
    source = server.find(_one(session, thread), thread)
    number = max(count, len(thread_ids))
    made = server.backend.call("fork_session", source, work_s=_FORK_S, count=number, **drop_empty(given))

    def show() -> None:
        for one in made["sessions"]:
            click.echo(one["session_id"])
        for error in made["errors"]:
            report(f"not made: {printable(error['detail'])}", error["remedy"])

    return Answer(made, show, exit_code=1 if made["errors"] else 0)


def _one(session: str, thread: str) -> str:
    if not session and not thread:
        raise click.UsageError("which session? Give SESSION (`warren ps` shows them) or --thread T")
    return session


def _row(one: Values) -> tuple[object, ...]:
    return (
        one["snapshot_id"],
        one["name"],
        one["environment"],
        format_size(round(one["bytes"] / 2**20, 1)),
        format_size(one["disk_mb"]),
        short_id(one["session_id"] or ""),
        format_age(one["created_at"]),
    )
