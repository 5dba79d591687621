"""`warren stats`: the figures of a server."""

from typing import Any

import click

from warren.cli.remote import Server, server_options
from warren.cli.tables import print_json, print_table

_TITLES = ("POOL", "READY", "CREATING", "TARGET", "WAITING", "HIT RATE", "P50", "P95", "MADE", "FAILED")


@click.command()
@server_options
def stats(url: str, as_json: bool) -> None:
    """Show the figures of a server.

    Its sessions, its pools, its machine. docs/operations.md says what to do about each figure.

    Example: warren stats --json
    """
    with Server(url) as server:
        found = server.backend.stats()
    if as_json:
        print_json(found)
        return
    counts = ", ".join(f"{count} {state}" for state, count in found["sessions"].items() if count)
    click.echo(f"sessions: {counts or 'none'}")
    for name, worker in found["workers"].items():
        _print_worker(name, worker)


def _print_worker(name: str, worker: dict[str, Any]) -> None:
    guard = worker["guard"]
    click.echo(f"worker {name}: {worker['sandboxes']} sandboxes, {worker['claimed']} of them in use")
    reserve = f"{guard['memory_reserve_mb']} and {guard['disk_reserve_mb']} MiB stay free"
    click.echo(
        f"machine: {guard['memory_free_mb']} MiB of memory and {guard['disk_free_mb']} MiB of disk are free; "
        f"{reserve}; {guard['max_sandboxes']} sandboxes at most"
    )
    click.echo()
    print_table(_TITLES, [_row(pool, figures) for pool, figures in worker["pools"].items()])
    for pool, figures in worker["pools"].items():
        if figures["last_failure"]:
            click.echo(f"{pool}: the last sandbox could not be made: {figures['last_failure']}")


def _row(name: str, pool: dict[str, Any]) -> tuple[object, ...]:
    rate = pool["hit_rate"]
    return (
        name,
        pool["ready"],
        pool["creating"],
        pool["target"],
        pool["waiting"],
        None if rate is None else f"{rate:.0%}",
        _milliseconds(pool["latency_p50_s"]),
        _milliseconds(pool["latency_p95_s"]),
        pool["creations"],
        pool["failures"],
    )


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.1f} ms"
