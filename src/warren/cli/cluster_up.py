"""`warren cluster up`: a whole cluster on one machine, with real processes and a real Redis."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from warren.app.one_machine import TRIAL, TRIAL_REDIS
from warren.cli.processes import REDIS_TIMEOUT_S, Processes, check_ports, find_redis, until_interrupted
from warren.config.settings import Settings, read_settings
from warren.kernel.free_ports import free_port


def run_cluster(workers: int, coordinators: int, port: int, directory: Path | None) -> int:
    from warren.app.service import lock_state, state_dir_errors
    from warren.cli.serve import check_user

    settings = read_settings()
    check_user(settings)
    redis = find_redis()
    root = (directory or settings.state_dir / TRIAL).absolute()
    with state_dir_errors(root):
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = lock_state(root)
    cluster = _Cluster(settings, root, redis)
    try:
        with until_interrupted():
            check_ports(settings.host, range(port, port + coordinators))
            click.echo(
                f"starting Redis, workers ({workers}) and coordinators ({coordinators}); this takes some seconds"
            )
            cluster.start(workers, coordinators, port)
            click.echo(f"The cluster is up: http://127.0.0.1:{port}  (log files in {root}; stop it with Ctrl-C)")
            cluster.processes.watch()
    finally:
        cluster.processes.stop()
        os.close(lock)
    return 0


async def prepare_redis(url: str, settings: Settings, state_dir: Path, coordinators: Sequence[str]) -> None:
    """Opens the Redis of a cluster's own, which is new if it is empty: no worker needs time to publish its sessions.

    Makes the first key as well, under the addresses of all coordinators, so that clients of any of them find it.
    """
    from warren.access.keys import Keys
    from warren.cli.serve import ensure_first_key
    from warren.kernel.clock import SystemClock
    from warren.stores.redis_store import RedisStore

    store = await RedisStore.open(url, timeout_s=REDIS_TIMEOUT_S, namespace=settings.redis_namespace)
    try:
        keys = Keys(store.records, SystemClock())
        await ensure_first_key(replace(settings, state_dir=state_dir), keys, coordinators)
    finally:
        await store.close()


class _Cluster:
    def __init__(self, settings: Settings, root: Path, redis: str) -> None:
        self._settings = settings
        self._redis = redis
        self._root = root
        self.processes = Processes(root)

    def start(self, workers: int, coordinators: int, port: int) -> None:
        from warren.app.one_machine import read_or_make_secret

        url = self.processes.start_redis(self._redis, (self._root / TRIAL_REDIS).parent)
        environ = {
            "WARREN_REDIS_URL": url,
            "WARREN_CLUSTER_SECRET": self._settings.cluster_secret or read_or_make_secret(self._root / "secret"),
        }
        urls = [f"http://127.0.0.1:{port + number}" for number in range(coordinators)]
        asyncio.run(prepare_redis(url, self._settings, self._root, urls))
        self._start_workers(workers, environ)
        for number in range(1, coordinators + 1):
            name = f"coordinator-{number}"
            self.processes.start(name, "coordinator", {**environ, **self._own_options(name, port + number - 1)})
        for number, address in enumerate(urls, 1):
            self.processes.wait_until_ready(f"coordinator-{number}", f"{address}/ready")
            click.echo(f"  coordinator-{number}: {address}")

    def _start_workers(self, count: int, environ: Mapping[str, str]) -> None:
        """Workers start before coordinators, which would take the rows of an earlier start for live workers."""
        from warren.app.one_machine import share_images

        ports = {f"worker-{number}": free_port() for number in range(1, count + 1)}
        for name, port in ports.items():
            state = self._root / name
            state.mkdir(mode=0o711, exist_ok=True)
            share_images(self._settings.state_dir, state)
            own = {**self._own_options(name, port), "WARREN_HOST": "127.0.0.1"}
            self.processes.start(name, "worker", {**environ, **own})
        for name, port in ports.items():
            if self._settings.cluster_ca is None:  # with certificates, workers answer coordinators only
                self.processes.wait_until_ready(name, f"http://127.0.0.1:{port}/ready")

    def _own_options(self, name: str, port: int) -> dict[str, str]:
        """Returns the options in which the processes differ. They have the names that win over all others: what the
        shell of `cluster up` has for a single server must not reach every process."""
        own = {"WARREN_WORKER_ID": name, "WARREN_PORT": str(port), "WARREN_STATE_DIR": str(self._root / name)}
        log = self._settings.log_file
        logs = {} if log is None else {"WARREN_LOG_FILE": str(log.with_stem(f"{log.stem}-{name}"))}
        return {**own, **logs, "WARREN_ADVERTISE": ""}
