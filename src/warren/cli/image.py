"""`warren image`: the root filesystems sandboxes stand on."""

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warren.cli.progress import ProgressLine
from warren.cli.tables import print_json
from warren.config.settings import read_settings
from warren.model.errors import InvalidRequest

if TYPE_CHECKING:
    from warren.worker.images.store import ImageInfo, ImageStore


_json_option = click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")


def _images() -> "ImageStore":
    from warren.app.wiring import build_images

    return build_images(read_settings())


@click.group()
def image() -> None:
    """Build, import, list and remove root filesystems.

    Example: warren image build base
    """


@image.command()
@click.argument("name", default="base")
@click.option("--if-missing", is_flag=True, help="Do nothing if the image is there.")
@_json_option
def build(name: str, if_missing: bool, as_json: bool) -> None:
    """Build NAME: base (a small Debian, about a minute) or host (this machine's /usr, at once)."""
    images = _images()
    there = next((info for info in images.list() if info.name == name), None) if if_missing else None
    if there is not None:
        if as_json:
            print_json(asdict(there))
        return
    with ProgressLine(f"image {name}") as progress:
        info = images.build(name, progress)
    _say_made(info, as_json)


@image.command("import")
@click.argument("source")
@click.option("--name", default="", help="The image's name here; without it, made from SOURCE.")
@click.option("--no-shell", is_flag=True, help="Take an image without /bin/sh.")
@_json_option
def import_image(source: str, name: str, no_shell: bool, as_json: bool) -> None:
    """Import SOURCE: a directory, a tar (compressed or not, - for stdin) or a Docker image (docker:REF)."""
    images, needed = _images(), not no_shell
    name = name or name_of(source)
    with ProgressLine(f"image {name}") as progress:
        if source == "-":
            info = images.import_tar(name, sys.stdin.buffer, "tar from stdin", progress, shell_needed=needed)
        elif source.startswith("docker:") or not _looks_like_path(source):
            reference = source.removeprefix("docker:")
            docker = read_settings().docker_url
            info = images.import_docker(name, reference, docker, progress, shell_needed=needed)
        elif Path(source).is_dir():
            info = images.import_directory(name, Path(source), progress, shell_needed=needed)
        else:
            info = _import_file(images, name, Path(source), progress, needed)
    _say_made(info, as_json)


def _import_file(
    images: "ImageStore", name: str, path: Path, progress: ProgressLine, shell_needed: bool
) -> "ImageInfo":
    try:
        with path.open("rb") as stream:
            return images.import_tar(name, stream, f"tar {path.name}", progress, shell_needed=shell_needed)
    except FileNotFoundError as exc:
        raise InvalidRequest(f"there is no file or directory {path}") from exc
    except PermissionError as exc:
        raise InvalidRequest(f"no permission to read {path}") from exc


def _looks_like_path(source: str) -> bool:
    return Path(source).exists() or source.startswith(("/", ".", "~")) or ".tar" in source


def name_of(source: str) -> str:
    """A name for an image from where it comes: the Docker reference, or the file's name without its endings."""
    if source == "-":
        raise click.UsageError("a tar from stdin needs a --name")
    if source.startswith("docker:") or not _looks_like_path(source):
        return source.removeprefix("docker:")
    return re.sub(r"(\.tar)?(\.(gz|xz|bz2|tgz|tar))?$", "", Path(source).resolve().name)


@image.command("list")
@_json_option
def list_images(as_json: bool) -> None:
    """List the images of this machine."""
    found = _images().list()
    if as_json:
        print_json([asdict(info) for info in found])
        return
    if not found:
        click.echo("no images; `warren image build base` makes one", err=True)
    for info in found:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
        click.echo(f"{info.name:<24} {info.size_bytes / 2**20:8.0f} MiB  {made}  {info.source}")


@image.command()
@click.argument("name")
@_json_option
def remove(name: str, as_json: bool) -> None:
    """Remove the image NAME."""
    _images().remove(name)
    if as_json:
        print_json({"removed": name})


def _say_made(info: "ImageInfo", as_json: bool) -> None:
    if as_json:
        print_json(asdict(info))
        return
    click.echo(f"image {info.name}: {info.files} files, {info.size_bytes / 2**20:.0f} MiB", err=True)
