"""`warren image`: the root filesystems of sandboxes."""

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warren.cli import image_build, image_transfer
from warren.cli.main import CommandGroup
from warren.cli.options import json_option
from warren.cli.output import ProgressLine, print_json, print_table
from warren.config.settings import read_settings
from warren.model.errors import ImageNotFound, InvalidRequest, ProviderUnavailable

if TYPE_CHECKING:
    from warren.images.store.store import ImageStore
    from warren.interfaces.images import ImageVersion

_TITLES = ("NAME", "VERSION", "STATE", "SANDBOXES", "DISK", "MADE", "SOURCE")


def _open_store() -> "ImageStore":
    from warren.app.wiring import build_images

    return build_images(read_settings())


@click.group(cls=CommandGroup)
def image() -> None:
    """Build, pull, import, export, list and remove root filesystems.

    Building, pulling or importing makes a new version of an image; sandboxes keep the version they began with.

    Example: warren image build base
    """


for _command in (image_build.build, image_transfer.pull, image_transfer.export, image_transfer.show):
    image.add_command(_command)


@image.command("import")
@click.argument("source")
@click.option("--name", default="", help="The image's name here.  [made from SOURCE]")
@click.option("--no-shell", is_flag=True, help="Accept an image without /bin/sh.")
@click.option("--platform", default="", metavar="OS/ARCH", help="Of images for several.  [this machine's]")
@json_option
def import_image(source: str, name: str, no_shell: bool, platform: str, as_json: bool) -> None:
    """Import a directory, a tar or a Docker image.

    SOURCE is a path, `-` for a tar on stdin, or docker:REF; a tar may be compressed. A directory or tar may also be an
    OCI layout, and a tar what `docker save` writes: then ENV, WORKDIR and USER of the image hold here too.

    Example: docker export $(docker create python:3.12) | sudo warren image import - --name python
    """
    images, shell_needed = _open_store(), not no_shell
    name = name or name_of(source)
    image_build.check_own_name(name)
    with ProgressLine(f"image {name}") as progress:
        if source == "-":
            info = images.import_tar(
                *(name, sys.stdin.buffer, "tar from stdin", progress), shell_needed=shell_needed, platform=platform
            )
        elif source.startswith("docker:") or not _looks_like_path(source):
            info = _import_docker(images, name, source, progress, shell_needed)
        elif Path(source).is_dir():
            info = images.import_directory(
                *(name, Path(source), progress), shell_needed=shell_needed, platform=platform
            )
        else:
            info = _import_file(images, name, Path(source), progress, shell_needed, platform)
    image_build.print_made(info, as_json)


def _import_docker(
    images: "ImageStore", name: str, source: str, progress: ProgressLine, shell_needed: bool
) -> "ImageVersion":
    reference, docker = source.removeprefix("docker:"), read_settings().docker_url
    try:
        return images.import_docker(name, reference, docker, progress, shell_needed=shell_needed)
    except (ImageNotFound, ProviderUnavailable) as exc:
        if source != reference:
            raise
        raise InvalidRequest(f"there is no file or directory {source}, and {exc.message}", remedy=exc.remedy) from exc


def _import_file(
    images: "ImageStore", name: str, path: Path, progress: ProgressLine, shell_needed: bool, platform: str
) -> "ImageVersion":
    try:
        with path.open("rb") as stream:
            return images.import_tar(
                *(name, stream, f"tar {path.name}", progress), shell_needed=shell_needed, platform=platform
            )
    except FileNotFoundError as exc:
        raise InvalidRequest(f"there is no file or directory {path}") from exc
    except PermissionError as exc:
        raise InvalidRequest(f"no permission to read {path}") from exc


def _looks_like_path(source: str) -> bool:
    return Path(source).exists() or source.startswith(("/", ".", "~")) or ".tar" in source


def name_of(source: str) -> str:
    """Returns the name of an image without --name: the Docker reference, or the file's name without its endings."""
    if source == "-":
        raise click.UsageError("a tar from stdin needs a --name")
    if source.startswith("docker:") or not _looks_like_path(source):
        return source.removeprefix("docker:")
    return re.sub(r"(\.tar)?(\.(gz|xz|bz2|zst|tgz|tar))?$", "", Path(source).resolve().name)


@image.command("list")
@json_option
def list_images(as_json: bool) -> None:
    """List the images of this machine.

    All their versions, with the disk space they take and how many sandboxes use them.

    Example: sudo warren image list
    """
    found = _open_store().list()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        click.echo("no images; `warren image build base` makes one", err=True)
    else:
        print_table(_TITLES, [_row(one) for one in found])


@image.command()
@click.argument("name")
@click.option("--when-unused", is_flag=True, help="If sandboxes use it: remove it when the last of them ends.")
@json_option
def remove(name: str, when_unused: bool, as_json: bool) -> None:
    """Remove the image NAME, or one version by its id.

    One that sandboxes use is not removed.

    Example: sudo warren image remove base --when-unused
    """
    images = _open_store()
    removed = images.remove(name, when_unused=when_unused)
    left = any(one.version == removed.version for one in images.list())
    if as_json:
        print_json({"removed": removed.name, "version": removed.version, "pending": left})
    elif left:
        click.echo(
            f"{removed.sandboxes} sandboxes use image {removed.name}, version {removed.version}: it goes with the last",
            err=True,
        )


@image.command()
@click.option("--cache", is_flag=True, help="Remove also all layers that builds have kept.")
@json_option
def prune(cache: bool, as_json: bool) -> None:
    """Remove the versions that no name points to and no sandbox uses.

    Layers that no build has used for a month go too.

    Example: sudo warren image prune
    """
    images = _open_store()
    removed, layers = images.prune(), images.prune_layers(everything=cache)
    if as_json:
        print_json([asdict(one) for one in removed])
        return
    if layers.removed:
        click.echo(f"removed {layers.removed} layers of builds", err=True)
    for one in removed:
        click.echo(f"removed image {one.name}, version {one.version}, {_mib(one)}", err=True)


def _row(one: "ImageVersion") -> tuple[object, ...]:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created))
    state = "current" if one.current else "old"
    return one.name, one.version or None, state, one.sandboxes, _mib(one), made, one.source


def _mib(one: "ImageVersion") -> str:
    return f"{one.size_bytes / 2**20:.0f} MiB"
