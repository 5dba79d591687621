"""`warren image pull`, `export` and `show`: images from and to elsewhere, and what is known of one."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from warren.cli.image_build import check_own_name, locked_image
from warren.cli.options import json_option
from warren.cli.output import ProgressLine, print_json
from warren.config.settings import read_settings
from warren.model.errors import ImageNotFound, InvalidRequest, NoSpace

if TYPE_CHECKING:
    from warren.images.store.store import ImageStore
    from warren.interfaces.images import ImageVersion


def _open_store() -> "ImageStore":
    from warren.app.wiring import build_images

    return build_images(read_settings())


@click.command()
@click.argument("reference")
@click.option("--name", default="", help="The image's name here.  [REFERENCE]")
@click.option("--platform", default="", metavar="OS/ARCH", help="Of images for several.  [this machine's]")
@click.option("--no-shell", is_flag=True, help="Accept an image without /bin/sh.")
@json_option
def pull(reference: str, name: str, platform: str, no_shell: bool, as_json: bool) -> None:
    """Pull an image from a registry.

    REFERENCE is HOST/PATH:TAG, or HOST/PATH@sha256:…; names without a host are Docker Hub's, or those of image_registry
    if that is set. Passwords are those of `docker login`.

    Example: sudo warren image pull ubuntu:22.04
    """
    from warren.app.wiring import build_pull_options
    from warren.images.registry.pull import pull_image

    images, name = _open_store(), name or reference
    check_own_name(name)
    before, settings = {one.version for one in images.list()}, read_settings()
    with ProgressLine(f"image {name}") as progress, locked_image(settings, name, progress):
        options = build_pull_options(settings)
        found = pull_image(
            *(images, reference, name, progress), options=options, platform=platform, shell_needed=not no_shell
        )
    if as_json:
        print_json({**asdict(found), "new": found.version not in before})
    elif found.version in before:
        click.echo(f"image {name}, version {found.version}, is up to date: {found.config.digest}", err=True)
    else:
        size = f"{found.files} files, {found.size_bytes / 2**20:.0f} MiB"
        click.echo(f"image {name}, version {found.version}: {size}, {found.config.digest}", err=True)


@click.command()
@click.argument("name")
@click.option("-o", "--output", default="-", metavar="FILE", help="Where to write it; - is stdout.  [-]")
@click.option(
    "--format", "form", type=click.Choice(["tar", "oci"]), default="tar", help="A tar of the files, or an OCI layout."
)
def export(name: str, output: str, form: str) -> None:
    """Write an image to a file.

    A `tar` holds the files alone; `oci` is a tar of an OCI layout, with ENV, WORKDIR and USER, which other engines load
    too. `warren image import` reads both; the files are the same afterwards (`content` of `warren image show`).

    Example: sudo warren image export base -o base.tar --format oci
    """
    from warren.images.transfer.oci_export import export_image

    with _output(output) as out, _open_store().using(name) as rootfs, ProgressLine(f"image {name}") as progress:
        export_image(rootfs, name, out, form, progress)


@contextmanager
def _output(output: str) -> Iterator[IO[bytes]]:
    import errno

    from warren.images.transfer.oci_export import new_file

    if output == "-":
        if sys.stdout.isatty():
            raise click.UsageError("an image is not for a terminal: give -o FILE, or send it through a pipe")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with new_file(Path(output)) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"writing {output}: the disk is full", remedy="free some space first") from exc
        raise InvalidRequest(f"{output} cannot be written: {exc.strerror}") from exc


@click.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what is known of an image: its source, size and digests, ENV, WORKDIR, USER.

    Example: warren image show base
    """
    found = [one for one in _open_store().list() if (one.name == name and one.current) or one.version == name]
    if not found:
        raise ImageNotFound(
            f"there is no image {name!r} on this machine", remedy="`warren image list` shows those there are"
        )
    if as_json:
        print_json(asdict(found[0]))
        return
    for title, value in _lines(found[0]):
        click.echo(f"{title:12} {value}")


def _lines(one: "ImageVersion") -> Iterator[tuple[str, str]]:
    config = one.config
    yield "name", one.name
    yield "version", one.version
    yield "source", one.source
    yield "made", time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created))
    yield "size", f"{one.files} files, {one.size_bytes / 2**20:.0f} MiB"
    yield "sandboxes", str(one.sandboxes)
    yield "content", one.content or "unknown: made by an older Warren"
    said = {
        "digest": config.digest,
        "workdir": config.workdir,
        "user": config.user,
        "entrypoint": " ".join(config.entrypoint),
        "cmd": " ".join(config.cmd),
        "ports": " ".join(config.exposed_ports),
    }
    yield from ((title, _printable(value)) for title, value in said.items() if value)
    yield from (("env", _printable(f"{name}={value}")) for name, value in config.env.items())
    yield from (("label", _printable(f"{name}={value}")) for name, value in config.labels.items())


def _printable(text: str) -> str:
    """Escapes control characters: what a stranger has written into an image must not reach the terminal as it is."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[:2000])
