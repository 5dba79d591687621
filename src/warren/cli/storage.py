"""`warren storage`: a file system for the disks of this machine's sandboxes whose files share blocks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from warren.cli.main import CommandGroup
from warren.cli.options import SizeType
from warren.config.settings import read_settings
from warren.sandboxes.host.storage import make_storage, read_storage, remove_storage, shares_blocks
from warren.sandboxes.providers.host_provider import require_root


@click.group(cls=CommandGroup)
def storage() -> None:
    """Let forks and snapshots share blocks where the file system cannot (ext4).

    Example: sudo warren storage init --size 50g
    """


@storage.command()
@click.option(
    "--size", "size_mb", type=SizeType(), metavar="MB", help="At most, in MiB or as 50g; half of what is free."
)
def init(size_mb: int | None) -> None:
    """Keep disks in an xfs image from now on.

    The server must not run, and no sandbox may be there; snapshots and volumes are moved. The image takes of the
    machine's disk what is written to it, and the server mounts it when it starts.

    Example: sudo warren storage init --size 50g
    """
    with _stopped() as state_dir:
        if not make_storage(state_dir, size_mb):
            click.echo("There is a storage already.")
        _show(state_dir)


@storage.command()
def status() -> None:
    """Say where disks are kept, and how much is free there.

    Example: sudo warren storage status
    """
    _show(read_settings().state_dir.absolute())


@storage.command()
def remove() -> None:
    """Keep disks in the state directory again.

    The server must not run, and no sandbox may be there; snapshots and volumes are moved back, the image is removed.

    Example: sudo warren storage remove
    """
    with _stopped() as state_dir:
        click.echo("The storage is removed." if remove_storage(state_dir) else "There is no storage.")


def _show(state_dir: Path) -> None:
    found = read_storage(state_dir)
    if found is not None:
        click.echo(f"image    {found.image}, {found.size_mb} MiB, of which it occupies {found.occupied_mb}")
        click.echo(f"mounted  {'yes' if found.is_mounted else 'no: the server mounts it when it starts'}")
        click.echo(f"free     {found.free_mb} MiB, and {found.host_free_mb} MiB of the machine's disk")
    elif state_dir.is_dir() and os.access(state_dir, os.W_OK) and shares_blocks(state_dir):
        click.echo(f"There is no storage, and none is needed: the file system of {state_dir} shares blocks itself.")
    else:
        click.echo("There is no storage: each snapshot and each fork is a copy. `warren storage init` makes one.")


@contextmanager
def _stopped() -> Iterator[Path]:
    """Yields the state directory while no server may use it."""
    from warren.app.service import lock_state, state_dir_errors

    settings = read_settings()
    require_root(settings.providers[0])
    state_dir = settings.state_dir.absolute()
    with state_dir_errors(state_dir):
        state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = lock_state(state_dir)
    try:
        yield state_dir
    finally:
        os.close(lock)
