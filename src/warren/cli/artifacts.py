"""`warren artifacts`: files that outlive the sandbox they were made in."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from warren.cli.main import CommandGroup, report
from warren.cli.options import server_options
from warren.cli.output import format_age, print_json, printable, write_bytes
from warren.cli.remote import (
    SESSION_ID,
    Answer,
    RemoteServer,
    complete,
    complete_session,
    line,
    server_command,
    short_id,
    split_session,
    table,
)
from warren.sdk.results import ArtifactInfo

_TITLES: Final = ("ARTIFACT", "NAME", "SIZE", "TYPE", "SESSION", "AGE")
_PAGE: Final = 1000

Values = dict[str, Any]


def _complete_artifact(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda server: [each["artifact_id"] for each in _list(server, {})])


_artifact_argument = click.argument("artifact", shell_complete=_complete_artifact)


@click.group(cls=CommandGroup)
def artifacts() -> None:
    """Save, list, get and remove files that outlive their sandbox.

    What lies below /workspace/artifacts is saved when a session ends.

    Example: warren artifacts save --thread conv-42 '*.png'
    """


@artifacts.command("list")
@click.argument("session", required=False, default="", shell_complete=complete_session)
@click.option("--thread", default="", metavar="T", help="Only those of this thread.")
@click.option("--name", default="", metavar="GLOB", help="Only those whose name fits.")
@click.option("-q", "--quiet", is_flag=True, help="Only the ids.")
@server_command
def list_artifacts(server: RemoteServer, session: str, thread: str, name: str, quiet: bool) -> Answer:
    """List artifacts, newest first: all, or those of a session.

    Example: warren artifacts list --name '*.png'
    """
    is_whole = SESSION_ID.fullmatch(session) is not None
    given = {"session_id": session if is_whole else "", "thread_id": thread, "name": name}
    found = _list(server, {key: value for key, value in given.items() if value})
    if not is_whole:  # the server cannot look for a part of an id, and the session may have ended
        found = [one for one in found if one["session_id"].startswith(f"ses_{session.removeprefix('ses_')}")]
    if quiet:
        return Answer({"artifacts": found}, partial(_print_ids, found))
    return table({"artifacts": found}, _TITLES, map(_row, found))


@artifacts.command()
@click.argument("words", nargs=-1, metavar="[SESSION] PATH...", shell_complete=complete_session)
@click.option("--thread", default="", metavar="T", help="Instead of SESSION: the session of this thread.")
@server_options
def save(words: tuple[str, ...], thread: str, url: str, as_json: bool) -> None:
    """Save files of a sandbox now: paths, directories and globs.

    Example: warren artifacts save --thread conv-42 '*.png' out/report.pdf
    """
    name, paths = split_session(words, thread)
    if not paths:
        raise click.UsageError("which files? Give paths or globs")
    with RemoteServer(url) as server:
        saved = server.client(server.find(name, thread)).artifacts.save(paths)
    if as_json:
        shown = [{key: one[key] for key in one} for one in saved.artifacts]
        print_json({"artifacts": shown, "left_out": saved.left_out, "left_out_count": saved.left_out_count})
    else:
        for one in saved.artifacts:
            click.echo(f"{one.artifact_id}  {printable(one.name)}")
    for left in saved.left_out:
        report(f"not saved: {printable(left['path'])}: {printable(left['why'])}")
    if saved.left_out_count > len(saved.left_out):
        report(f"not saved: {saved.left_out_count - len(saved.left_out)} more")
    if saved.left_out_count:
        raise SystemExit(1)


@artifacts.command()
@_artifact_argument
@click.argument("target", required=False, default="")
@server_options
def get(artifact: str, target: str, url: str, as_json: bool) -> None:
    """Copy an artifact here: to TARGET, its own name, or stdout (-).

    Example: warren artifacts get art_7e0f2a1b9c8d7e6f5a4b3c2d1e0 plots/
    """
    with RemoteServer(url) as server:
        if target == "-":
            with server.backend.download("read_artifact", "", artifact_id=artifact) as (_, parts):
                for part in parts:
                    write_bytes(sys.stdout.fileno(), part)
            return
        client = server.client("")
        info: ArtifactInfo = client.artifacts.get(artifact)
        path: Path = client.artifacts.download(info, target)
    if as_json:
        print_json({"path": str(path), "size": info.size, "sha256": info.sha256})
    else:
        click.echo(printable(str(path)))


@artifacts.command()
@click.argument("names", nargs=-1, required=True, metavar="ARTIFACT...", shell_complete=_complete_artifact)
@server_command
def rm(server: RemoteServer, names: tuple[str, ...]) -> Answer:
    """Remove artifacts now, not when they expire.

    Example: warren artifacts rm art_7e0f2a1b9c8d7e6f5a4b3c2d1e0
    """
    for name in names:
        server.backend.call("delete_artifact", artifact_id=name)
    return line({"removed": list(names)}, "\n".join(f"removed {name}" for name in names))


def _list(server: RemoteServer, filters: Values) -> list[Values]:
    found: list[Values] = []
    after: str | None = ""
    while after is not None:
        page = server.backend.call("list_artifacts", limit=_PAGE, after=after, **filters)
        found += page["artifacts"]
        after = page["next"]
    return found


def _print_ids(found: list[Values]) -> None:
    for artifact in found:
        click.echo(artifact["artifact_id"])


def _row(artifact: Values) -> tuple[object, ...]:
    return (
        artifact["artifact_id"],
        artifact["name"],
        artifact["size"],
        artifact["mime_type"],
        short_id(artifact["session_id"]),
        format_age(artifact["created_at"]),
    )
