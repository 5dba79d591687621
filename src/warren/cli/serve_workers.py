"""`warren serve --workers N`: several workers in one state directory, as processes of one unit behind one address.

Redis, workers and coordinators are processes of their own (processes.py), which this one starts, keeps running and
stops. All coordinators listen on the address of the server. app/turning.py says what is in the state directory, and
how a server of one process becomes one of several and comes back.
"""

import asyncio
import contextlib
import glob
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from warren.app import turning
from warren.app.one_machine import UNIT, WORKERS, has_rows_in_redis, read_or_make_secret, share_images
from warren.app.service import lock_state, server_pid, state_dir_errors
from warren.app.wiring import ARTIFACTS, makers_of, secret_keys
from warren.cli.cluster_up import prepare_redis
from warren.cli.left_sandboxes import destroy_sandboxes
from warren.cli.processes import (
    Processes,
    check_ports,
    find_redis,
    is_redis_up,
    redis_socket,
    until_interrupted,
)
from warren.cli.serve import check_exposure, check_user, server_url
from warren.cluster.roster import Roster
from warren.config.settings import Settings
from warren.kernel.free_ports import free_port
from warren.model.errors import InvalidRequest

_LAST_ONE_ENDS_S: Final = 60.0
_LOOK_S: Final = 0.1
_AWAY_S: Final = 600.0
_STOP_S: Final = 45.0
_LONGEST_STOP_S: Final = 900.0
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_SHARED_POOLS: Final = ("pool_size", "pool_min", "pool_max")


def serve_with_workers(settings: Settings, flags: Mapping[str, str]) -> bool:
    """Serves until a signal comes, with as many workers as the settings say. Returns False if one process is to serve:
    then all rows are where that finds them."""
    _check(settings)
    state_dir = settings.state_dir
    with state_dir_errors(state_dir):
        state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        (state_dir / UNIT).mkdir(mode=0o700, exist_ok=True)
        lock = lock_state(state_dir / UNIT)
    unit = _Unit(settings, flags)
    is_for_one_process = False
    try:
        with until_interrupted():
            _wait_for_the_last_one(state_dir)
            with _alone(state_dir):
                workers = unit.start_redis()
            is_for_one_process = workers == [settings.worker_id]
            if not is_for_one_process:
                unit.serve(workers)
    finally:
        unit.processes.stop(_LONGEST_STOP_S if settings.on_stop == "destroy" else settings.stop_grace_s + _STOP_S)
        os.close(lock)
    return not is_for_one_process


def _check(settings: Settings) -> None:
    check_exposure(settings)
    check_user(settings)
    if settings.store != "sqlite":
        raise InvalidRequest("several workers keep sessions in Redis", remedy="leave out --store, or --workers")
    if settings.sources["redis_url"] != "default":
        raise InvalidRequest(
            "several workers on one machine have a Redis of their own",
            remedy="leave out redis_url, or run `warren coordinator` and `warren worker` with it",
        )
    first = turning.first_worker(settings.state_dir)
    if first not in ("", settings.worker_id):
        raise InvalidRequest(
            f"the sandboxes in this state directory belong to the worker {first!r}",
            remedy=f"leave out worker_id, or give {first}",
        )


def _wait_for_the_last_one(state_dir: Path) -> None:
    """Waits until what a unit that was killed has left has ended, which it does at once."""
    until = time.monotonic() + _LAST_ONE_ENDS_S
    while has_rows_in_redis(state_dir) and _is_running(state_dir) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _is_running(state_dir: Path) -> bool:
    directories = (state_dir, *(state_dir / WORKERS).glob("*"))
    return is_redis_up(redis_socket(state_dir / turning.REDIS)) or any(map(server_pid, directories))


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Raises Unavailable if a server uses the state directory."""
    lock = lock_state(state_dir)
    try:
        yield
    finally:
        os.close(lock)


class _Unit:
    def __init__(self, settings: Settings, flags: Mapping[str, str]) -> None:
        self._settings = settings
        self._directory = settings.state_dir.absolute() / UNIT
        self._given = {f"WARREN_{name.upper()}": text for name, text in flags.items()}
        self._url = ""
        self.processes = Processes(self._directory)

    def start_redis(self) -> list[str]:
        """Starts Redis, and sees to it that it has all rows, if there are to be several workers. Returns the names of
        the workers: those that are wanted and those that still have something; if it is the first alone, it has all
        that is here, and Redis nothing."""
        settings, redis = self._settings, self._settings.state_dir.absolute() / turning.REDIS
        program = find_redis()
        is_turned = has_rows_in_redis(settings.state_dir)
        if not is_turned:
            shutil.rmtree(redis, ignore_errors=True)
        self._url = self.processes.start_redis(program, redis)
        if not is_turned:
            moved = asyncio.run(turning.move_rows_to_redis(settings, self._url))
            click.echo(f"sessions that go on: {moved}")
        names = self._wanted
        others = asyncio.run(turning.others_with_something(settings, self._url)) - set(names)
        if others:
            click.echo(f"workers that are not wanted any more and still have something: {', '.join(sorted(others))}")
        for directory in (settings.state_dir / WORKERS).glob(f"{glob.escape(settings.worker_id)}-*"):
            is_ours = directory.name.removeprefix(f"{settings.worker_id}-").isdecimal() and not server_pid(directory)
            if is_ours and directory.name not in {*names, *others}:
                destroy_sandboxes(replace(settings, state_dir=directory))  # of its pools: no session has them
        if settings.serve_workers == 1 and not others:
            moved = asyncio.run(turning.move_rows_from_redis(settings, self._url))
            self.processes.stop()
            shutil.rmtree(redis, ignore_errors=True)
            click.echo(f"one process serves from now on; sessions that go on: {moved}")
        return [*names, *sorted(others)]

    def serve(self, workers: Sequence[str]) -> None:
        settings, count = self._settings, max(1, (len(workers) + 1) // 2)
        check_ports(settings.host, [settings.port])
        url, near = server_url(settings, settings.port), server_url(replace(settings, host=self._near), settings.port)
        asyncio.run(prepare_redis(self._url, settings, settings.state_dir, [url]))
        click.echo(f"starting workers ({len(workers)}) and coordinators ({count}); this takes some seconds")
        environ = self._environ()
        with keep_address(settings.host, settings.port):
            ports = {name: free_port() for name in workers}
            for name, port in ports.items():
                self.processes.start(f"worker-{name}", "worker", {**environ, **self._of_worker(name, port)})
            for name, port in ports.items():
                if settings.cluster_ca is None:  # with certificates, workers answer coordinators only
                    self.processes.wait_until_ready(f"worker-{name}", f"http://127.0.0.1:{port}/health")
            asyncio.run(self._drain_others(workers))
            for number in range(1, count + 1):
                name = f"coordinator-{number}"
                self.processes.start(name, "coordinator", {**environ, **self._of_coordinator(name)})
            self.processes.wait_until_ready("coordinator-1", f"{near}/health")
            click.echo(f"Warren serves {url} ({len(workers)} workers, state in {settings.state_dir})")
            self.processes.watch()

    async def _drain_others(self, workers: Sequence[str]) -> None:
        """Lets the workers that are wanted no more take no new sessions."""
        link = turning.link_of(self._settings, self._url)
        try:
            for number, name in enumerate(workers):
                await Roster(link).set_draining(name, number >= self._settings.serve_workers)
        finally:
            await link.close()

    def _environ(self) -> dict[str, str]:
        """What all processes have in common: the flags of the command line too. These names win over all others."""
        settings = self._settings
        key = settings.secrets_key or secret_keys(settings)[0].hex()
        return self._given | {
            "WARREN_REDIS_URL": self._url,
            "WARREN_CLUSTER_SECRET": settings.cluster_secret
            or read_or_make_secret(settings.state_dir / turning.SECRET),
            "WARREN_SECRETS_KEY": key,
            "WARREN_ARTIFACT_STORE": settings.artifact_store or str(settings.state_dir.absolute() / ARTIFACTS),
        }

    @property
    def _wanted(self) -> list[str]:
        """The names of the workers; the first has the state directory itself."""
        first = self._settings.worker_id
        return [first, *(f"{first}-{number}" for number in range(2, self._settings.serve_workers + 1))]

    @property
    def _near(self) -> str:
        """The host at which this machine reaches the coordinators."""
        return _LOOPBACK.get(self._settings.host, self._settings.host)

    def _of_worker(self, name: str, port: int) -> dict[str, str]:
        settings, count = self._settings, self._settings.serve_workers
        state_dir = settings.state_dir.absolute()
        if name != settings.worker_id:
            state_dir = state_dir / WORKERS / name
            state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            share_images(settings.state_dir, state_dir)
        pools = {each: math.ceil(getattr(settings, each) / count) for each in _SHARED_POOLS}
        shares: dict[str, float] = pools if name in self._wanted else dict.fromkeys(pools, 0)
        shares |= {"max_sandboxes": math.ceil(settings.max_sandboxes / count), "makers": makers_of(settings) // count}
        shares["disk_overcommit"] = max(1, round(settings.disk_overcommit / count, 2))
        return {
            **{f"WARREN_{option.upper()}": str(share) for option, share in shares.items()},
            "WARREN_HOST": "127.0.0.1",
            "WARREN_ADVERTISE": f"127.0.0.1:{port}",
            **self._own(name, port, state_dir),
        }

    def _of_coordinator(self, name: str) -> dict[str, str]:
        """No other worker has a use for the sandboxes of one that ends: its sessions wait until it is back."""
        state_dir, settings = self._directory / name, self._settings
        state_dir.mkdir(mode=0o700, exist_ok=True)
        away_s = _AWAY_S if settings.sources["worker_away_s"] == "default" else settings.worker_away_s
        near = f"[{self._near}]" if ":" in self._near else self._near
        own = {"WARREN_SHARE_PORT": "true", "WARREN_WORKER_AWAY_S": str(away_s)}
        own |= {"WARREN_ADVERTISE": f"{near}:{settings.port}"}
        return {**own, **self._own(name, settings.port, state_dir)}

    def _own(self, name: str, port: int, state_dir: Path) -> dict[str, str]:
        log = self._settings.log_file
        logs = {} if log is None else {"WARREN_LOG_FILE": str(log.absolute().with_stem(f"{log.stem}-{name}"))}
        return {"WARREN_WORKER_ID": name, "WARREN_PORT": str(port), "WARREN_STATE_DIR": str(state_dir), **logs}


@contextlib.contextmanager
def keep_address(host: str, port: int) -> Iterator[None]:
    """Keeps the address for processes of this user that share it, also while none of them listens there. Connections
    that have ended may still be there when it takes the address; later it lets nobody have it who does not share it."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(address)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        yield
