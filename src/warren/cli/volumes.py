"""`warren volume`: named disks that outlive sessions, and that several can share."""

from functools import partial
from typing import Any, Final

import click

from warren.cli.main import CommandGroup
from warren.cli.options import SizeType, drop_empty, parse_pairs, thread_option
from warren.cli.output import format_age, print_json, printable
from warren.cli.remote import Answer, RemoteServer, complete, complete_session, line, server_command, table
from warren.model.volume import parse_mount

_TITLES: Final = ("VOLUME", "NAME", "SIZE MB", "WORKER", "AGE")
_PAGE: Final = 1000
_COPY_S: Final = 600.0

Values = dict[str, Any]


def _complete_volume(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda server: [each["name"] for each in _list(server)])


_volume_argument = click.argument("name", metavar="VOLUME", shell_complete=_complete_volume)


@click.group(cls=CommandGroup)
def volume() -> None:
    """Make, list, change and remove volumes, and mount them in sandboxes.

    Example: warren volume create cache --size 2g
    """


@volume.command()
@click.argument("name")
@click.option("--size", "size_mb", type=SizeType(), metavar="MB", help="Its size, in MiB or as 512m or 2g.")
@click.option("--metadata", multiple=True, metavar="K=V", help="A note of your own.")
@server_command
def create(server: RemoteServer, name: str, size_mb: int | None, metadata: tuple[str, ...]) -> Answer:
    """Make an empty volume.

    Example: warren volume create cache --size 2g
    """
    values = drop_empty({"size_mb": size_mb, "metadata": parse_pairs("--metadata", metadata)})
    made = server.backend.call("create_volume", name=name, **values)
    return line(made, f"{made['name']}  {made['size_mb']} MiB")


@volume.command("list")
@click.option("-q", "--quiet", is_flag=True, help="Only the names.")
@server_command
def list_volumes(server: RemoteServer, quiet: bool) -> Answer:
    """List volumes.

    Example: warren volume list
    """
    found = _list(server)
    if quiet:
        return Answer({"volumes": found}, partial(_print_names, found))
    return table({"volumes": found}, _TITLES, map(_row, found))


@volume.command()
@_volume_argument
@server_command
def show(server: RemoteServer, name: str) -> Answer:
    """Show a volume: its size, what it occupies, and who has it.

    Example: warren volume show cache
    """
    found = server.backend.call("get_volume", volume=name)
    return Answer(found, partial(print_json, found))


@volume.command()
@click.argument("names", nargs=-1, required=True, metavar="VOLUME...", shell_complete=_complete_volume)
@server_command
def rm(server: RemoteServer, names: tuple[str, ...]) -> Answer:
    """Remove volumes, with all that is in them.

    Example: warren volume rm cache
    """
    for name in names:
        server.backend.call("delete_volume", volume=name)
    return line({"removed": list(names)}, "\n".join(f"removed {printable(name)}" for name in names))


@volume.command()
@_volume_argument
@click.argument("size_mb", type=SizeType(), metavar="SIZE")
@server_command
def resize(server: RemoteServer, name: str, size_mb: int) -> Answer:
    """Make a volume larger that no session has.

    Example: warren volume resize cache 4g
    """
    changed = server.backend.call("change_volume", volume=name, size_mb=size_mb, work_s=_COPY_S)
    return line(changed, f"{changed['name']}  {changed['size_mb']} MiB")


@volume.command("copy")
@_volume_argument
@click.argument("to")
@server_command
def copy_volume(server: RemoteServer, name: str, to: str) -> Answer:
    """Copy a volume that no session has.

    Example: warren volume copy cache cache-2
    """
    made = server.backend.call("copy_volume", volume=name, name=to, work_s=_COPY_S)
    return line(made, f"{made['name']}  {made['size_mb']} MiB")


@volume.command()
@click.argument("mount", metavar="NAME:PATH[:ro]")
@click.argument("session", required=False, default="", shell_complete=complete_session)
@thread_option
@server_command
def attach(server: RemoteServer, mount: str, session: str, thread: str) -> Answer:
    """Mount a volume in the sandbox of a running session.

    Example: warren volume attach cache:/workspace/cache:ro --thread conv-42
    """
    shown = server.backend.call("attach_volume", server.find(session, thread), **parse_mount(mount))
    return _mounts(shown)


@volume.command()
@click.argument("path")
@click.argument("session", required=False, default="", shell_complete=complete_session)
@thread_option
@server_command
def detach(server: RemoteServer, path: str, session: str, thread: str) -> Answer:
    """Take the volume at PATH away from the sandbox of a session.

    Example: warren volume detach /workspace/cache --thread conv-42
    """
    return _mounts(server.backend.call("detach_volume", server.find(session, thread), path=path))


def _mounts(session: Values) -> Answer:
    rows = [(each["name"], each["path"], "ro" if each["read_only"] else "rw") for each in session["volumes"]]
    return table({"volumes": session["volumes"]}, ("NAME", "PATH", "MODE"), rows)


def _list(server: RemoteServer) -> list[Values]:
    found: list[Values] = []
    after: str | None = ""
    while after is not None:
        page = server.backend.call("list_volumes", limit=_PAGE, after=after)
        found += page["volumes"]
        after = page["next"]
    return found


def _print_names(found: list[Values]) -> None:
    for each in found:
        click.echo(each["name"])


def _row(each: Values) -> tuple[object, ...]:
    return each["volume_id"], each["name"], each["size_mb"], each["worker"], format_age(each["created_at"])
