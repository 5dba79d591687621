"""Real Redis processes of the test's own: a server, a Sentinel, a node of a cluster, and a connection that fails.

They listen on loopback, keep everything in the directory they are given, and are ended by process id.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from server_process import free_port
from this_run import patience

PATIENCE_S = patience(60.0)
_TOGETHER = ("setpriv", "--pdeathsig", "KILL")  # so that it never outlives the tests


class RedisServer:
    """`start` returns when the server answers; `kill` sends SIGKILL. It may be started again, with the same port and
    files.

    `host`: where it listens. `within`: a command that runs it elsewhere, in a network of its own.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        password: str | None = None,
        tls_files: str = "",
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._host, self._within = host, within
        self.port = free_port()
        self.password = secrets.token_hex(16) if password is None else password
        self.socket = directory / "redis.sock"
        self._tls_port = free_port() if tls_files else 0
        self._flags = [*flags, "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        if self.password:
            self._flags += ["--requirepass", self.password, "--masterauth", self.password]
        if tls_files:
            self._flags += ["--tls-port", str(self._tls_port), "--tls-auth-clients", "no"]
            self._flags += ["--tls-cert-file", f"{tls_files}.crt", "--tls-key-file", f"{tls_files}.key"]
            self._flags += ["--tls-ca-cert-file", f"{tls_files}.crt"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{self._host}:{self.port}/0"

    @property
    def tls_url(self) -> str:
        return f"rediss://:{self.password}@127.0.0.1:{self._tls_port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        # In a file, because everybody on the machine can read a command line.
        config = self.directory / "redis.conf"
        pairs = zip(self._flags[::2], self._flags[1::2], strict=True)
        config.write_text("".join(f'{name.removeprefix("--")} "{value}"\n' for name, value in pairs))
        fixed = ["--bind", self._host, "--port", str(self.port), "--dir", str(self.directory), "--save", ""]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, *_TOGETHER, "redis-server", str(config), *fixed, "--daemonize", "no"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, f"redis-server did not start, see {self.directory}/log")

    def ask(self, *command: Any) -> Any:
        where: dict[str, Any] = {"unix_socket_path": str(self.socket)} if self._within else {"port": self.port}
        with redis.Redis(**where, password=self.password or None, protocol=2, socket_timeout=PATIENCE_S) as one:
            return one.execute_command(*command)

    def calls(self, command: str) -> int:
        """Returns how often the server has performed this command."""
        return int(self.ask("INFO", "commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text(errors="replace")[-2000:]
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.ask("PING"))
        return False


class RedisSentinel:
    """A Sentinel that watches one server under the name `mymaster`. `quorum`: how many must hold it for dead, and
    `silent_ms`: after how long."""

    def __init__(self, directory: Path, server: RedisServer, *, quorum: int = 1, silent_ms: int = 60_000) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._directory = directory
        self._server, self._quorum, self._silent_ms = server, quorum, silent_ms
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://:{self._server.password}@127.0.0.1:{self.port}/mymaster/0"

    def start(self) -> None:
        config = self._directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory}\nprotected-mode no\n"
            f"sentinel monitor mymaster 127.0.0.1 {self._server.port} {self._quorum}\n"
            f"sentinel auth-pass mymaster {self._server.password}\n"
            f"sentinel down-after-milliseconds mymaster {self._silent_ms}\n"
            f"sentinel failover-timeout mymaster {4 * self._silent_ms}\n"
        )
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_TOGETHER, "redis-server", str(config), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, f"the Sentinel did not start, see {self._directory}/log")

    def ask(self, *command: Any) -> Any:
        with redis.Redis(port=self.port, protocol=2, socket_timeout=PATIENCE_S) as one:
            return one.execute_command(*command)

    def changes_the_primary(self) -> bool:
        """Asks for a failover; returns whether it began. It cannot begin before the Sentinel knows the replica well
        enough."""
        with contextlib.suppress(redis.ResponseError):
            return bool(self.ask("SENTINEL", "FAILOVER", "mymaster"))
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.ask("PING"))
        return False


class LossyWire:
    """A proxy between a client and a server. It can lose answers together with their connection, or delay them."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._to_lose = 0
        self._delays_s: list[float] = []
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "LossyWire":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def lose(self, answers: int = 1) -> None:
        self._to_lose = answers

    def delay(self, *delays_s: float) -> None:
        """Delays the next answers, each by one of these times."""
        self._delays_s = list(delays_s)

    @property
    def lost_all(self) -> bool:
        return self._to_lose == 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        try:
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self._to)
            request_context = asyncio.create_task(_copied(reader, to_them))
            try:
                await self._answer(theirs, writer)
            finally:
                request_context.cancel()
                to_them.close()
        finally:
            writer.close()
            self._conversations.discard(task)

    async def _answer(self, theirs: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await theirs.read(65536):
            if self._to_lose:
                self._to_lose -= 1
                return
            if self._delays_s:
                await asyncio.sleep(self._delays_s.pop(0))
            writer.write(data)
            await writer.drain()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


@contextlib.contextmanager
def running_redis(directory: Path, *flags: str, **options: str) -> Iterator[RedisServer]:
    server = RedisServer(directory, *flags, **options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[RedisServer]:
    """Runs a cluster of one node that has all the slots."""
    with running_redis(directory, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_for_cluster(server)
        yield server


def wait_for_cluster(server: RedisServer) -> None:
    wait_until(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"), "the cluster did not form")


@contextlib.asynccontextmanager
async def lossy_wire(server: RedisServer) -> AsyncIterator[tuple[LossyWire, str]]:
    """Yields the wire, and the URL of the server behind it."""
    async with LossyWire(server.port) as wire:
        yield wire, f"redis://:{server.password}@127.0.0.1:{wire.port}/0"
