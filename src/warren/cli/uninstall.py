"""`warren uninstall`: takes away what Warren has made on this machine, after it has said what that is."""

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

from warren.app.one_machine import COPIES_FILE, WORKERS, has_rows_in_redis, secret_path
from warren.app.one_machine import UNIT as WORKERS_UNIT
from warren.cli.left_keys import find_left_keys
from warren.cli.left_sandboxes import count_sandboxes, destroy_sandboxes
from warren.cli.service import UNIT, remove_service
from warren.config.settings import Settings, read_settings
from warren.model.errors import Unavailable
from warren.sandboxes.host.storage import unmount_storage
from warren.sandboxes.providers.host_provider import require_root

_STOP_S: Final = 90.0


@click.command()
@click.option("--purge", is_flag=True, help="Also end every sandbox, and remove the state directory.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def uninstall(purge: bool, yes: bool) -> int:
    """Remove the service, or with --purge all that Warren has made here.

    With --purge: the server is stopped, every sandbox of the state directory ends, with its processes, loop device and
    cgroup, and the directory is removed, with images, sessions, keys and records. The key that the server has left for
    your clients is removed from their file. Nothing of it can be had back. It says first what it would
    remove, and asks. The program itself stays: it goes as it came.

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
    if purge and _has_shared_state(settings.state_dir):
        click.echo(
            "A worker of a cluster has run here. This stays: coordinators, which you stop yourself, and in their Redis "
            "the keys, sessions and records of the cluster."
        )
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody is there to be asked: give --yes if this is what you want")
        click.confirm("Go on?", abort=True)
    remove_service()
    if purge and settings.state_dir.is_dir():
        states = _state_dirs(settings.state_dir)
        for state in states:
            _stop_server(state)
            destroy_sandboxes(replace(settings, state_dir=state))
            unmount_storage(state)
        _remove_keys(states)
        _remove_state(settings.state_dir)
    click.echo("Done.")
    return 0


def _describe(settings: Settings, purge: bool) -> list[str]:
    from warren.app.service import server_pid

    lines = [f"the service: {UNIT}"] if UNIT.exists() else []
    state = settings.state_dir
    if not purge or not state.is_dir():
        return lines
    counts: Counter[str] = Counter()
    for each in _state_dirs(state):
        if pid := server_pid(each):
            lines.append(f"a running server: process {pid}")
        counts.update(count_sandboxes(replace(settings, state_dir=each)))
    for name, count in counts.items():
        lines.append(f"{count} sandboxes of the provider {name}, with their processes, disks and files")
    lines += [f"the key of this server in {left.path}" for left in find_left_keys(_state_dirs(state))]
    parts = ", ".join(sorted(path.name for path in state.iterdir())) or "empty"
    return [*lines, f"the state directory {state}: {parts}"]


def _state_dirs(state: Path) -> list[Path]:
    """Returns the state directory, those of workers that share it, and those of a cluster that `warren cluster up` has
    run in it: that of its own process, and those of its workers. First that of a process that starts others again."""
    cluster, sharing = state / "cluster", sorted(state.glob(f"{WORKERS}/*/"))
    workers = [path for path in sorted(cluster.glob("worker-*")) if path.is_dir()]  # their logs are there as well
    return [*state.glob(WORKERS_UNIT), state, *sharing, *([cluster, *workers] if cluster.is_dir() else [])]


def _remove_state(state: Path) -> None:
    """Removes the directory part by part, and names each before: one with images takes a while."""
    for path in sorted(state.iterdir()):
        click.echo(f"removing {path}")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.rmtree(state)


def _has_shared_state(state: Path) -> bool:
    """Whether processes of a cluster that were started one by one have used the directory: their Redis is elsewhere."""
    if has_rows_in_redis(state):
        return False
    places = [state, *state.glob(f"{WORKERS}/*/")]
    return any((place / name).exists() for place in places for name in (COPIES_FILE, secret_path(state).name))


def _remove_keys(states: list[Path]) -> None:
    for left in find_left_keys(states):
        try:
            left.remove()
        except OSError as exc:
            click.echo(f"the key in {left.path} could not be removed: {exc.strerror or exc}", err=True)


def _stop_server(state: Path) -> None:
    from warren.app.service import server_pid

    deadline, told = time.monotonic() + _STOP_S, 0
    while pid := server_pid(state):
        if pid != told:
            click.echo(f"stopping the server (process {pid})")
            os.kill(pid, signal.SIGTERM)
            told = pid
        if time.monotonic() > deadline:
            raise Unavailable(f"the server (process {pid}) did not stop", remedy=f"kill -9 {pid}, and run this again")
        time.sleep(0.1)
