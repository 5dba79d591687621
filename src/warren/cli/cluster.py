"""`warren cluster`: the workers of a cluster, and a whole cluster on one machine to try it."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from warren.cli.options import server_options
from warren.cli.output import print_json, print_table
from warren.cli.remote import Server

_CLUSTER: Final = "/api/cluster"
_TITLES: Final = ("WORKER", "STATE", "ADDRESS", "SESSIONS", "CAPACITY", "READY", "WAITING", "LABELS", "VERSION")

Values = dict[str, Any]


@click.group()
def cluster() -> None:
    """Show and change the workers of a cluster, or run a cluster here to try it."""


@cluster.command()
@server_options
def status(url: str, as_json: bool) -> None:
    """Show the workers, and whether Redis answers.

    Example: warren cluster status
    """
    with Server(url) as server:
        found = server.call("GET", _CLUSTER)
    if as_json:
        print_json(found)
        return
    print_table(_TITLES, [_row(worker) for worker in found["workers"]])
    click.echo(f"\nRedis is {found['redis']}; answered by the coordinator {found['coordinator']}")
    if not found["settled"]:
        click.echo("Redis was empty: no new sessions until workers have had the time to publish those they have")


@cluster.command()
@click.argument("worker_id", metavar="WORKER")
@click.option("--undo", is_flag=True, help="Give it new sessions again.")
@server_options
def drain(worker_id: str, undo: bool, url: str, as_json: bool) -> None:
    """Give WORKER no new sessions; its sessions go on.

    Example: warren cluster drain worker-2
    """
    with Server(url) as server:
        worker = server.call("PATCH", _path(worker_id), values={"draining": not undo})
    if as_json:
        print_json(worker)
    else:
        click.echo(f"{worker['id']} is {worker['state']}, with {worker['sessions']} sessions")


@cluster.command()
@click.argument("worker_id", metavar="WORKER")
@server_options
def remove(worker_id: str, url: str, as_json: bool) -> None:
    """Forget a dead WORKER; its sessions are reported lost at once.

    Example: warren cluster remove worker-2
    """
    with Server(url) as server:
        server.call("DELETE", _path(worker_id))
    if as_json:
        print_json({"removed": worker_id})
    else:
        click.echo(f"{worker_id} is forgotten")


@cluster.command()
@click.option(
    "--workers", default=3, metavar="N", show_default=True, type=click.IntRange(1, 64), help="How many workers."
)
@click.option(
    "--coordinators",
    default=2,
    metavar="N",
    show_default=True,
    type=click.IntRange(1, 16),
    help="How many coordinators.",
)
@click.option(
    "--port",
    default=8000,
    metavar="N",
    show_default=True,
    help="The port of the first coordinator; the others use the next ones.",
)
@click.option("--directory", metavar="DIR", help="Where its files are.  [cluster, in the state directory]")
def up(workers: int, coordinators: int, port: int, directory: str | None) -> int:
    """Run a whole cluster on this machine until you stop it.

    Redis, coordinators and workers, each a process of its own, on loopback: for development and tests. Options are
    given by variables (WARREN_PROVIDER, POOL_SIZE, …) and reach all processes. The next start in the same directory
    finds the same sessions; with WARREN_ON_STOP=destroy none is left.

    Example: warren cluster up --workers 3
    """
    from warren.cli.cluster_up import run_cluster

    return run_cluster(workers, coordinators, port, Path(directory) if directory else None)


def _path(worker_id: str) -> str:
    return f"{_CLUSTER}/workers/{quote(worker_id, safe='')}"


def _row(worker: Values) -> list[str]:
    ready = ", ".join(f"{name} {count}" for name, count in worker["ready"].items())
    labels = ", ".join(f"{name}={value}" for name, value in worker["labels"].items())
    return [
        worker["id"],
        worker["state"],
        worker["address"],
        str(worker["sessions"]),
        str(worker["capacity"]),
        ready,
        str(worker["waiting"]),
        labels,
        worker["version"],
    ]
