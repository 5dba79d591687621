"""`warren bench`: how fast Warren is on this machine, on a server of its own that is gone afterwards."""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warren.cli.output import print_json
from warren.config.settings import read_settings
from warren.model.errors import Unavailable
from warren.model.version import __version__

if TYPE_CHECKING:
    from warren.measure.figures import Effort, Figure

_IMAGE: Final = "host"  # made of this machine's own programs, in a second


@click.command()
@click.option("--quick", is_flag=True, help="Few requests of each kind: some seconds, and rougher figures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def bench(quick: bool, as_json: bool) -> int:
    """Measure how fast Warren is on this machine.

    Creates with and without the pool, commands, ends of sessions, and the memory that an idle one takes; beside docker
    and bubblewrap, where they are installed. It starts a server of its own, with a state directory of its own beside
    the usual one, and removes both. Other work on the machine makes the figures worse; so does the client, which needs
    a part of the same cores.

    Example: sudo warren bench --quick
    """
    from warren.cli.console import until_signal
    from warren.measure.figures import FULL, QUICK
    from warren.sandboxes.providers.host_provider import require_root

    require_root("oci")
    return asyncio.run(until_signal(_measure(QUICK if quick else FULL, as_json)))


async def _measure(effort: "Effort", as_json: bool) -> int:
    from warren.measure.figures import POOL, measure
    from warren.measure.http_client import RequestFailed
    from warren.measure.rivals import time_rivals
    from warren.measure.server import serving

    found: list[Figure] = []
    note = found.append if as_json else _print_too(found)
    machine = _describe_machine()
    if not as_json:
        click.echo(f"{', '.join(f'{value}' for value in machine.values())}\n")
    flags = ("--provider", "oci", "--environment", _IMAGE, "--pool-size", str(POOL), "--pool-max", str(POOL))
    with serving(_new_state(), *flags, key=secrets.token_hex(24)) as server:
        try:
            missing = await measure(server, effort, note)
        except RequestFailed as exc:
            raise Unavailable(f"the measured server failed: {exc}") from exc
    missing += await asyncio.to_thread(time_rivals, effort.rival, note)
    if as_json:
        print_json({"machine": machine, "figures": [asdict(figure) for figure in found], "missing": missing})
    elif missing:
        click.echo("\n" + "\n".join(f"not measured: {why}" for why in missing))
    return 0


def _new_state() -> Path:
    """Makes a state directory with an image. It is on the disk of the usual one, because a server's speed depends on
    the disk."""
    from warren.images.store.store import ImageStore

    usual = read_settings().state_dir
    parent = usual.parent if os.access(usual.parent, os.W_OK) else None
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir=parent))
    try:
        ImageStore(state).build(_IMAGE)
    except BaseException:
        shutil.rmtree(state, ignore_errors=True)
        raise
    return state


def _describe_machine() -> dict[str, str]:
    from warren.sandboxes.host.machine_size import memory_total_mb, usable_cores

    system = os.uname()
    return {
        "warren": f"warren {__version__}",
        "cores": f"{usable_cores()} cores",
        "architecture": system.machine,
        "memory": f"{memory_total_mb()} MiB",
        "kernel": f"Linux {system.release}",
    }


def _print_too(found: "list[Figure]") -> "Callable[[Figure], None]":
    def note(figure: "Figure") -> None:
        found.append(figure)
        what = figure.what if figure.of == "warren" else f"{figure.of}: {figure.what}"
        click.echo(f"{what:<62} {_shown(figure):>12}")

    return note


def _shown(figure: "Figure") -> str:
    number: Any = f"{figure.value:.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
    return f"{number}{'' if figure.unit == '/s' else ' '}{figure.unit}"
