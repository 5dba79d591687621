"""`warren cluster`: the workers of a cluster, and a whole cluster on one machine to try it."""

import asyncio
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

import click

from warren.cli.main import EXIT_WARREN_FAILED, CommandGroup, report
from warren.cli.output import print_table
from warren.cli.remote import Answer, RemoteServer, line, server_command
from warren.config.settings import environment_with
from warren.model.errors import Unavailable

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
@click.option("--run", "program", metavar="LINE", help="Run this line of shell each time another number is wanted.")
@click.option(
    "--every",
    "every_s",
    default=15.0,
    metavar="S",
    show_default=True,
    type=click.FloatRange(1, 3600),
    help="How often to look, in seconds; with --run.",
)
@server_command
def demand(server: RemoteServer, program: str | None, every_s: float) -> Answer:
    """Show how many workers are needed, or have a program follow it.

    With --run it goes on until you stop it. The program gets WARREN_WORKERS_WANTED, WARREN_WORKERS, and in
    WARREN_WORKERS_MAY_STOP the drained ones that nobody uses any more. If it fails it is run again at the next look. To
    stop machines, drain as many workers as there are too many, and stop those that may stop.

    Example: warren cluster demand --run 'echo $WARREN_WORKERS_WANTED'
    """
    if program is not None:
        _follow_demand(server, program, every_s)
    found = server.call("GET", f"{_CLUSTER}/demand")
    return line(found, _shown_demand(found))


def _shown_demand(found: Values) -> str:
    text = f"{found['wanted']} workers are wanted ({found['reason']}), {found['workers']} take sessions: "
    text += f"{found['sessions']} sessions, {found['waiting']} wait, the machines are {found['load']:.0%} full"
    return text + (f"\nmay be stopped: {', '.join(found['may_stop'])}" if found["may_stop"] else "")


def _follow_demand(server: RemoteServer, program: str, every_s: float) -> NoReturn:
    told: tuple[int, list[str]] | None = None
    while True:
        try:
            found = server.call("GET", f"{_CLUSTER}/demand")
        except Unavailable as exc:  # another coordinator may answer the next time
            report(exc.message)
        else:
            now = int(found["wanted"]), list(found["may_stop"])
            if now != told:
                click.echo(_shown_demand(found))
                told = now if _run_program(program, found) else None
        time.sleep(every_s)


def _run_program(program: str, found: Values) -> bool:
    variables = {
        "WARREN_WORKERS_WANTED": str(found["wanted"]),
        "WARREN_WORKERS": str(found["workers"]),
        "WARREN_WORKERS_MAY_STOP": " ".join(found["may_stop"]),
    }
    code = subprocess.run(["sh", "-c", program], env=environment_with(variables)).returncode
    if code:
        report(f"the program failed ({code}); it is run again")
    return code == 0


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
@click.option("--for-good", is_flag=True, help="It does not come back: its volumes move to other workers too.")
@click.option(
    "--wait",
    "wait_s",
    default=60.0,
    metavar="S",
    show_default=True,
    type=click.FloatRange(min=0),
    help="How long to wait until nothing is left, in seconds.",
)
def leave(for_good: bool, wait_s: float) -> int:
    """Prepare this machine's worker for its stop.

    It gets no new sessions until it is started again, and this waits until it has none. To be run before the worker is
    stopped, with the same options (variables, file) and as the same user: by a hook of Kubernetes or of systemd. It
    needs no key. With --for-good it fails if something is left.

    Example: warren cluster leave --for-good --wait 3600
    """
    left = asyncio.run(_leave(for_good, wait_s))
    return EXIT_WARREN_FAILED if for_good and left else 0


async def _leave(for_good: bool, wait_s: float) -> bool:
    """Returns whether something is left."""
    from warren.app.cluster_wiring import build_encryption, build_redis_link, worker_settings
    from warren.cluster.leaving import Remainder
    from warren.cluster.leaving import leave as leave_cluster
    from warren.cluster.roster import Roster
    from warren.config.settings import read_settings
    from warren.sessions.volumes.records import VolumeRecords
    from warren.stores.redis_store import RedisStore

    def tell(left: Remainder) -> None:
        volumes = f" and {left.volumes} volumes" if for_good else ""
        click.echo(f"{settings.worker_id} gets no new sessions, and has {left.sessions} sessions{volumes}")

    settings = worker_settings(read_settings())
    link = build_redis_link(settings)
    try:
        volumes = VolumeRecords(RedisStore(link, build_encryption(settings)).records)
        left = await leave_cluster(
            Roster(link), volumes, settings.worker_id, wait_s=wait_s, for_good=for_good, tell=tell
        )
    finally:
        await link.close()
    return bool(left)


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
