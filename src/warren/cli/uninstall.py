"""`warren uninstall`: takes away what Warren has made on this machine, after it has said what that is."""

import asyncio
import fcntl
import os
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from warren.cli.service import UNIT, remove_service
from warren.config.settings import Settings, read_settings
from warren.interfaces.provider import Provider
from warren.model.errors import Unavailable, WarrenError
from warren.sandboxes.providers.host_provider import require_root

_STOP_S: Final = 90.0
_FOLDERS: Final = {"oci": "sandboxes", "docker": "docker", "e2b": "e2b"}  # of each provider, in the state directory


@click.command()
@click.option("--purge", is_flag=True, help="Also end every sandbox, and remove the state directory.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def uninstall(purge: bool, yes: bool) -> int:
    """Remove the service, or with --purge all that Warren has made here.

    With --purge: the server is stopped, every sandbox of the state directory ends, with its processes, loop device and
    cgroup, and the directory is removed, with images, sessions, keys and records. Nothing of it can be had back.
    It says first what it would remove, and asks. The program itself stays: it goes as it came.

    Example: sudo warren uninstall --purge
    """
    settings = read_settings()
    if purge:
        require_root(settings.providers[0])
    found = _describe(settings, purge)
    if not found:
        click.echo(
            "There is nothing to remove." if purge else "There is no service to remove; --purge removes the rest."
        )
        return 0
    click.echo("This removes:")
    for line in found:
        click.echo(f"  {line}")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody is there to be asked: give --yes if this is what you want")
        click.confirm("Go on?", abort=True)
    remove_service()
    if purge:
        for state in (settings.state_dir, *_cluster_dirs(settings.state_dir)):
            _stop_server(state)
            _destroy_sandboxes(replace(settings, state_dir=state))
        shutil.rmtree(settings.state_dir)
    click.echo("Done.")
    return 0


def _describe(settings: Settings, purge: bool) -> list[str]:
    lines = [f"the service: {UNIT}"] if UNIT.exists() else []
    state = settings.state_dir
    if not purge or not state.is_dir():
        return lines
    counts: Counter[str] = Counter()
    for each in (state, *_cluster_dirs(state)):
        if pid := _server_pid(each):
            lines.append(f"a running server: process {pid}")
        counts.update(asyncio.run(_count_sandboxes(replace(settings, state_dir=each))))
    for name, count in counts.items():
        lines.append(f"{count} sandboxes of the provider {name}, with their processes, disks and files")
    parts = ", ".join(sorted(path.name for path in state.iterdir())) or "empty"
    return [*lines, f"the state directory {state}: {parts}"]


def _cluster_dirs(state: Path) -> list[Path]:
    """Returns the state directories of a cluster that `warren cluster up` has run there; first that of its own
    process."""
    cluster = state / "cluster"
    return [cluster, *sorted(cluster.glob("worker-*"))] if cluster.is_dir() else []


async def _count_sandboxes(settings: Settings) -> dict[str, int]:
    counts = {}
    for name, provider in _providers(settings).items():
        try:
            if count := len(await provider.list_ids()):
                counts[name] = count
        finally:
            await provider.close()
    return counts


def _providers(settings: Settings) -> dict[str, Provider]:
    """Returns the providers that may have sandboxes in the state directory, also if the server does not use them any
    more."""
    from warren.app.wiring import build_provider

    used = [name for name, folder in _FOLDERS.items() if (settings.state_dir / folder).is_dir()]
    return {name: build_provider(settings, name) for name in used}


def _server_pid(state: Path) -> int:
    """Returns the process that holds the state directory, or 0."""
    from warren.app.service import LOCK

    try:
        fd = os.open(state / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(fd, 32, 0) or b"0")
    finally:
        os.close(fd)
    return 0


def _stop_server(state: Path) -> None:
    deadline, told = time.monotonic() + _STOP_S, 0
    while pid := _server_pid(state):
        if pid != told:
            click.echo(f"stopping the server (process {pid})")
            os.kill(pid, signal.SIGTERM)
            told = pid
        if time.monotonic() > deadline:
            raise Unavailable(f"the server (process {pid}) did not stop", remedy=f"kill -9 {pid}, and run this again")
        time.sleep(0.1)


def _destroy_sandboxes(settings: Settings) -> None:
    async def destroy_all() -> None:
        for provider in _providers(settings).values():
            try:
                for sandbox_id in await provider.list_ids():
                    await provider.destroy(sandbox_id)
            finally:
                await provider.close()

    try:
        asyncio.run(destroy_all())
    except WarrenError as exc:
        raise Unavailable(f"a sandbox could not be ended: {exc.message}", remedy="run this again") from exc
