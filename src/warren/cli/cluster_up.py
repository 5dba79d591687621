"""`warren cluster up`: a whole cluster on one machine, with real processes and a real Redis.

A process that ends by itself once the cluster is up is started again; see `Service.revive`.
"""

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import click

from warren.app.one_machine import TRIAL, TRIAL_REDIS
from warren.config.settings import Settings, environment_with, read_settings
from warren.kernel.free_ports import free_port
from warren.model.errors import ImageBuilding, Unavailable, WarrenError
from warren.sdk.protocol import error_from_response

_START_S: Final = 60.0
_STOP_S: Final = 45.0
_REDIS_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 10.0  # a first look at the image may take some seconds
_LONG_S: Final = 60.0
_MAX_PAUSE_S: Final = 30.0


def run_cluster(workers: int, coordinators: int, port: int, directory: Path | None) -> int:
    from warren.app.service import lock_state, state_dir_errors
    from warren.cli.serve import check_user

    settings = read_settings()
    check_user(settings)
    redis = _find_redis()
    root = (directory or settings.state_dir / TRIAL).absolute()
    with state_dir_errors(root):
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = lock_state(root)
    cluster = _Cluster(settings, root, redis)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _check_ports(settings.host, range(port, port + coordinators))
        click.echo(f"starting Redis, workers ({workers}) and coordinators ({coordinators}); this takes some seconds")
        cluster.start(workers, coordinators, port)
        click.echo(f"The cluster is up: http://127.0.0.1:{port}  (log files in {root}; stop it with Ctrl-C)")
        cluster.watch()
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cluster.stop()
        os.close(lock)


def _find_redis() -> str:
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("there is no redis-server on this machine", remedy="apt-get install redis-server")
    return program


def _check_ports(host: str, ports: Iterable[int]) -> None:
    """Raises Unavailable if a port cannot be used. To be called before anything is started or written, also the key,
    which clients of another server on such a port would find."""
    for port in ports:
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(address[0]) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address[4])
        except OSError as exc:
            taken = f"port {port} is taken" if exc.errno == errno.EADDRINUSE else f"port {port} cannot be used: {exc}"
            raise Unavailable(taken, remedy="stop what uses it, or choose another with --port") from exc


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class Service:
    """One process of the cluster, which writes to the file `log`. Raises OSError if it cannot be started."""

    def __init__(self, name: str, argv: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._name, self._argv, self._environ, self.log = name, argv, environ, log
        self._pause_s, self._again_at = 0.0, 0.0
        self.start()

    def start(self) -> None:
        """Starts a process that Ctrl-C does not reach: this process gets it, and stops the others in order."""
        self._started, self._again_at = time.monotonic(), 0.0
        with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as log:
            os.fchmod(log.fileno(), 0o600)  # also if an earlier version has made it
            self.process = subprocess.Popen(
                self._argv, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def revive(self, now: float) -> None:
        """Starts the process again if it has ended, after a pause if it did not run for long. `now` is the monotonic
        time."""
        if self.process.poll() is None:
            return
        if not self._again_at:
            self._pause_s = pause_before_restart(now - self._started, self._pause_s)
            self._again_at = now + self._pause_s
            click.echo(f"{self._name} has ended ({self.process.returncode}); its log is {self.log}", err=True)
        if now >= self._again_at:
            try:
                self.start()
                click.echo(f"{self._name} is started again", err=True)
            except OSError as exc:  # such as too many processes: the next look counts it as one that has ended again
                click.echo(f"{self._name} cannot be started: {exc}", err=True)


def pause_before_restart(ran_s: float, last_pause_s: float) -> float:
    """Returns how many seconds to wait before a process that ran for `ran_s` is started again: none if that was long,
    else more each time."""
    return 0.0 if ran_s > _LONG_S else min(_MAX_PAUSE_S, 2 * last_pause_s + 1)


class _Cluster:
    def __init__(self, settings: Settings, root: Path, redis: str) -> None:
        self._settings = settings
        self._redis = redis
        self._root = root
        self._services: dict[str, Service] = {}

    def start(self, workers: int, coordinators: int, port: int) -> None:
        from warren.app.one_machine import read_or_make_secret

        url = self._start_redis()
        environ = {
            "WARREN_REDIS_URL": url,
            "WARREN_CLUSTER_SECRET": self._settings.cluster_secret or read_or_make_secret(self._root / "secret"),
        }
        urls = [f"http://127.0.0.1:{port + number}" for number in range(coordinators)]
        self._prepare_redis(url, urls)
        self._start_workers(workers, environ)
        for number in range(1, coordinators + 1):
            name = f"coordinator-{number}"
            self._start(name, "coordinator", {**environ, **self._own_options(name, port + number - 1)})
        for number, address in enumerate(urls, 1):
            wait_until_ready(self._services, f"coordinator-{number}", f"{address}/ready")
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
            self._start(name, "worker", {**environ, **own})
        for name, port in ports.items():
            if self._settings.cluster_ca is None:  # with certificates, workers answer coordinators only
                wait_until_ready(self._services, name, f"http://127.0.0.1:{port}/ready")

    def _own_options(self, name: str, port: int) -> dict[str, str]:
        """Returns the options in which the processes differ. They have the names that win over all others: what the
        shell of `cluster up` has for a single server must not reach every process."""
        own = {"WARREN_WORKER_ID": name, "WARREN_PORT": str(port), "WARREN_STATE_DIR": str(self._root / name)}
        log = self._settings.log_file
        logs = {} if log is None else {"WARREN_LOG_FILE": str(log.with_stem(f"{log.stem}-{name}"))}
        return {**own, **logs, "WARREN_ADVERTISE": ""}

    def watch(self) -> NoReturn:
        """Keeps the processes running until an exception interrupts it."""
        while True:
            for service in self._services.values():
                service.revive(time.monotonic())
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """Stops coordinators first and Redis last, so that no process waits for one that is gone."""
        for kind in ("coordinator", "worker", "redis"):
            group = [service.process for name, service in self._services.items() if name.startswith(kind)]
            for process in group:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            for process in group:
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start_redis(self) -> str:
        path = self._root / TRIAL_REDIS
        data = path.parent
        data.mkdir(mode=0o700, exist_ok=True)
        options = {"port": "0", "unixsocket": str(path), "unixsocketperm": "600", "dir": str(data)}
        options |= {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "save": ""}
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._start_service("redis", [self._redis, *flags], {})
        deadline = time.monotonic() + _START_S
        while not _is_redis_up(path):
            _check_starting(self._services, "redis", deadline)
        return f"unix://{path}"

    def _prepare_redis(self, url: str, coordinators: Sequence[str]) -> None:
        """Opens the cluster's own Redis, which is new if it is empty: no worker needs time to publish its sessions.

        Makes the first key as well, under the addresses of all coordinators, so that clients of any of them find it.
        """
        import asyncio

        from warren.access.keys import Keys
        from warren.cli.serve import ensure_first_key
        from warren.kernel.clock import SystemClock
        from warren.stores.redis_store import RedisStore

        async def prepare() -> None:
            store = await RedisStore.open(url, timeout_s=_REDIS_TIMEOUT_S, namespace=self._settings.redis_namespace)
            try:
                settings = replace(self._settings, state_dir=self._root)
                await ensure_first_key(settings, Keys(store.records, SystemClock()), coordinators)
            finally:
                await store.close()

        asyncio.run(prepare())

    def _start(self, name: str, command: str, environ: Mapping[str, str]) -> None:
        self._start_service(name, [sys.executable, "-m", "warren.cli.main", command], environ)

    def _start_service(self, name: str, argv: list[str], environ: Mapping[str, str]) -> None:
        self._services[name] = Service(name, argv, environment_with(environ), self._root / f"{name}.log")


def wait_until_ready(services: Mapping[str, Service], name: str, url: str) -> None:
    """Waits as long as the image of a worker is being made, and shows how far that is; for all else up to _START_S."""
    from warren.cli.remote import ImageProgress

    deadline, progress = time.monotonic() + _START_S, ImageProgress()
    try:
        while (obstacle := _obstacle(url)) is not None:
            if isinstance(obstacle, ImageBuilding):
                progress(obstacle)
                deadline = time.monotonic() + _START_S
            _check_starting(services, name, deadline, obstacle.message)
    finally:
        progress.end()


def _check_starting(services: Mapping[str, Service], name: str, deadline: float, obstacle: str = "") -> None:
    """Raises Unavailable if a process has ended, or if `name` was not ready in time. Waits before the next look: for
    longer if the process has answered with an `obstacle`, because each answer is a line of its log."""
    for each, service in services.items():
        if service.process.poll() is not None:
            reason = _last_error(service.log.read_text(errors="replace"))
            raise Unavailable(f"{each} did not start: {reason}", remedy=f"its log is {service.log}")
    if time.monotonic() > deadline:
        reason = f": {obstacle}" if obstacle else ""
        raise Unavailable(f"{name} was not ready in {_START_S:g} s{reason}", remedy=f"its log is {services[name].log}")
    time.sleep(_LOOK_S if obstacle else 0.05)


def _obstacle(url: str) -> WarrenError | None:
    """Returns why the process behind `url` is not ready, None if it is; without a message while it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S):
            return None
    except urllib.error.HTTPError as exc:
        with exc:
            return error_from_response(exc.code, exc.read(), retry_after=exc.headers["Retry-After"])
    except OSError:
        return Unavailable("")


def _is_redis_up(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        client.connect(str(path))
        client.sendall(b"PING\r\n")
        return client.recv(16).startswith(b"+PONG")
    return False


def _last_error(log: str) -> str:
    """Returns the last line of a log that is not a hint below another one."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1].removeprefix("warren: ") if lines else "it did not say why"
