"""Several processes of this machine that run together, with a Redis of their own: what `warren cluster up` and
`warren serve --workers` are made of.

A process that ends by itself is started again (`Service.revive`). All of them end with the process that has started
them, however that ends. What they say goes to a file each, which is kept short, with what it had before beside it.
"""

import contextlib
import errno
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote

import click

from warren.config.settings import environment_with
from warren.model.errors import ImageBuilding, Unavailable, WarrenError
from warren.sdk.protocol import error_from_response

_REDIS_SOCKET: Final = "redis.sock"
REDIS_TIMEOUT_S: Final = 30.0
_START_S: Final = 60.0
_STOP_S: Final = 45.0
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 10.0  # a first look at the image may take some seconds
_LONG_S: Final = 60.0
_MAX_PAUSE_S: Final = 30.0
_MAX_LOG: Final = 16 * 1024 * 1024
_WARREN: Final = (sys.executable, "-P", "-m", "warren.cli.main")
_BOUND: Final = (sys.executable, "-P", "-m", "warren.kernel.bound_process")


def find_redis() -> str:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise Unavailable("there is no redis-server on this machine", remedy="apt-get install redis-server")
    return program


def check_ports(host: str, ports: Iterable[int]) -> None:
    """Raises Unavailable if a port cannot be used. To be called before anything is started or written, also the key,
    which clients of another server on such a port would find."""
    for port in ports:
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(address[0]) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address[4])
                probe.listen(1)  # an address that others share can be taken, but not by somebody else
        except OSError as exc:
            taken = f"port {port} is taken" if exc.errno == errno.EADDRINUSE else f"port {port} cannot be used: {exc}"
            raise Unavailable(taken, remedy="stop what uses it, or choose another with --port") from exc


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends the block at Ctrl-C, SIGTERM and SIGHUP, and lets none of them disturb what cleans up after it. After a
    block that comes to its end by itself they are what they were before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    is_over = False
    signal.signal(signal.SIGTERM, _interrupt)
    if before[signal.SIGHUP] is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        yield
        is_over = True
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if is_over else signal.SIG_IGN)


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

    def shorten_log(self) -> None:
        """Begins the log anew if it has become long, also if the disk has no room to keep what was in it. The process
        writes on at its new end."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size < _MAX_LOG:
                return
            before = os.open(self.log.with_suffix(".1.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(before, "wb") as kept, self.log.open("rb") as log:
                shutil.copyfileobj(log, kept)
        with contextlib.suppress(OSError):
            os.truncate(self.log, 0)


def pause_before_restart(ran_s: float, last_pause_s: float) -> float:
    """Returns how many seconds to wait before a process that ran for `ran_s` is started again: none if that was long,
    else more each time."""
    return 0.0 if ran_s > _LONG_S else min(_MAX_PAUSE_S, 2 * last_pause_s + 1)


class Processes:
    """Processes by name, whose logs are in `logs`."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._services: dict[str, Service] = {}

    def start(self, name: str, command: str, environ: Mapping[str, str]) -> None:
        """Starts a process of Warren."""
        self.start_program(name, [*_WARREN, command], environ)

    def start_program(self, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        log = self._logs / f"{name}.log"
        self._services[name] = Service(name, [*_BOUND, str(os.getpid()), *argv], environment_with(environ), log)

    def start_redis(self, program: str, directory: Path) -> str:
        """Starts a Redis that keeps its data in the directory, and returns its URL when it answers."""
        directory.mkdir(mode=0o700, exist_ok=True)
        path = redis_socket(directory)
        options = {"port": "0", "unixsocket": str(path), "unixsocketperm": "600", "dir": str(directory)}
        # What is acknowledged is in its file. Whoever promises more has the file synced (RedisRecords.sync).
        options |= {"appendonly": "yes", "appendfsync": "no", "maxmemory-policy": "noeviction", "save": ""}
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.start_program("redis", [program, *flags], {})
        deadline = time.monotonic() + _START_S
        while not is_redis_up(path):
            self._check_starting("redis", deadline)
        return redis_url(directory)

    def wait_until_ready(self, name: str, url: str) -> None:
        """Waits as long as the image of a worker is being made, and shows how far that is; for all else up to
        _START_S."""
        from warren.cli.remote import ImageProgress

        deadline, progress = time.monotonic() + _START_S, ImageProgress()
        try:
            while (obstacle := _obstacle(url)) is not None:
                if isinstance(obstacle, ImageBuilding):
                    progress(obstacle)
                    deadline = time.monotonic() + _START_S
                self._check_starting(name, deadline, obstacle.message)
        finally:
            progress.end()

    def _check_starting(self, name: str, deadline: float, obstacle: str = "") -> None:
        """Raises Unavailable if that process or Redis has ended, or if it was not ready in time. Others that have ended
        are started again. Waits before the next look: for longer if the process has answered with an `obstacle`,
        because each answer is a line of its log."""
        for each, service in self._services.items():
            if each not in (name, "redis"):
                service.revive(time.monotonic())
            elif service.process.poll() is not None:
                reason = _last_error(service.log.read_text(errors="replace"))
                raise Unavailable(f"{each} did not start: {reason}", remedy=f"its log is {service.log}")
        if time.monotonic() > deadline:
            reason = f": {obstacle}" if obstacle else ""
            log = self._services[name].log
            raise Unavailable(f"{name} was not ready in {_START_S:g} s{reason}", remedy=f"its log is {log}")
        time.sleep(_LOOK_S if obstacle else 0.05)

    def watch(self) -> NoReturn:
        """Keeps the processes running until an exception interrupts it."""
        while True:
            for service in self._services.values():
                service.revive(time.monotonic())
                service.shorten_log()
            time.sleep(_LOOK_S)

    def stop(self, patience_s: float = _STOP_S) -> None:
        """Stops coordinators first and Redis last, so that no process waits for one that is gone. At another signal
        meanwhile, and for each kind after its patience, it kills what is left."""

        def kill_all(number: int, frame: object) -> None:
            for service in self._services.values():
                service.process.kill()

        before = {number: signal.signal(number, kill_all) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for kind in ("coordinator", "worker", "redis"):
                self._stop_group(kind, patience_s)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop_group(self, kind: str, patience_s: float) -> None:
        group = [service.process for name, service in self._services.items() if name.startswith(kind)]
        for process in group:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in group:
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _obstacle(url: str) -> WarrenError | None:
    """Returns why the process behind `url` is not ready, None if it is; without a message while it does not answer."""
    try:
        # The certificate is for clients, who know the server by a name that may not lead here.
        trusting = ssl._create_unverified_context() if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=_ANSWER_S, context=trusting):
            return None
    except urllib.error.HTTPError as exc:
        with exc:
            return error_from_response(exc.code, exc.read(), retry_after=exc.headers["Retry-After"])
    except OSError:
        return Unavailable("")


def redis_socket(directory: Path) -> Path:
    return directory / _REDIS_SOCKET


def redis_url(directory: Path) -> str:
    """The URL of the Redis that has its files in the directory."""
    return f"unix://{quote(str(redis_socket(directory)))}"


def is_redis_up(path: Path) -> bool:
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
