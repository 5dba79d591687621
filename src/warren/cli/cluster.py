"""`warren cluster`: the workers of a cluster, and a whole cluster on one machine to try it."""

from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from warren.cli.main import CommandGroup
from warren.cli.output import print_table
from warren.cli.remote import Answer, RemoteServer, line, server_command

_CLUSTER: Final = "/api/cluster"
_TITLES: Final = ("WORKER", "STATE", "ADDRESS", "SESSIONS", "CAPACITY", "READY", "WAITING", "LABELS", "VERSION")

Values = dict[str, Any]


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show and change the workers of a cluster, or run a cluster here to try it."""


@cluster.command()
@server_command
def status(server: RemoteServer) -> Answer:
    """Show the workers, and whether Redis answers.

    Example: warren cluster status
    """
    found = server.call("GET", _CLUSTER)
    return Answer(found, partial(_print_status, found))


def _print_status(found: Values) -> None:
    print_table(_TITLES, [_row(worker) for worker in found["workers"]])
    click.echo(f"\nRedis is {found['redis']}; answered by the coordinator {found['coordinator']}")
    if not found["settled"]:
        click.echo("Redis was empty: no new sessions until workers have had the time to publish those they have")


@cluster.command()
@click.argument("worker_id", metavar="WORKER")
@click.option("--undo", is_flag=True, help="Give it new sessions again.")
@server_command
def drain(server: RemoteServer, worker_id: str, undo: bool) -> Answer:
    """Give WORKER no new sessions; its sessions go on.

    Example: warren cluster drain worker-2
    """
    worker = server.call("PATCH", _path(worker_id), values={"draining": not undo})
    return line(worker, f"{worker['id']} is {worker['state']}, with {worker['sessions']} sessions")


@cluster.command()
@click.argument("worker_id", metavar="WORKER")
@server_command
def remove(server: RemoteServer, worker_id: str) -> Answer:
    """Forget a dead WORKER; its sessions are reported lost at once.

    Example: warren cluster remove worker-2
    """
    server.call("DELETE", _path(worker_id))
    return line({"removed": worker_id}, f"{worker_id} is forgotten")


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
    given by variables (WARREN_PROVIDER, POOL_SIZE, …) and reach all processes; each has a port, a name, a log file and
    a state directory of its own, whatever these say: WARREN_PORT does not count, --port does. The next start
    in the same directory finds the same sessions; with WARREN_ON_STOP=destroy none is left.

    Example: warren cluster up --workers 3
    """
    from warren.cli.cluster_up import run_cluster

    return run_cluster(workers, coordinators, port, Path(directory) if directory else None)


def _path(worker_id: str) -> str:
    return f"{_CLUSTER}/workers/{quote(worker_id, safe='')}"


def _row(worker: Values) -> tuple[object, ...]:
    ready = ", ".join(f"{name} {count}" for name, count in worker["ready"].items())
    labels = ", ".join(f"{name}={value}" for name, value in worker["labels"].items())
    counts = worker["sessions"], worker["capacity"], ready, worker["waiting"]
    return worker["id"], worker["state"], worker["address"], *counts, labels, worker["version"]
