"""Runs servers of this version on the state that another version left: see tests/data/make_old_state.py.

This file runs `warren serve`, `warren worker` and `warren coordinator` with a clock that is set to five minutes after
the state was left, on the same boot of the same machine. Otherwise the state would be too old to be kept.
"""

import contextlib
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis_server import RedisServer, running_redis
from server_process import ServerProcess

from warren.app import cluster_wiring
from warren.cli.main import main
from warren.kernel import clock
from warren.stores.redis_link import RedisLink

ADMIN_KEY: Final = "the-key-of-the-operator-in-tests-0001"
CLUSTER_SECRET: Final = "5ec2e75ec2e75ec2e75ec2e75ec2e700"
REDIS_PASSWORD: Final = "a-password-of-tests"
WEBHOOK_ADDRESS: Final = "127.76.54.32"
WEBHOOK_PORT: Final = 17654
ALONE, CLUSTER = "alone", "cluster"
_LATER_S: Final = 300.0
_CLOCK: Final = "TEST_CLOCK"


def environ(redis_url: str = "") -> dict[str, str]:
    values = {"WARREN_API_KEY": ADMIN_KEY, "WARREN_WEBHOOK_NETWORKS": f"{WEBHOOK_ADDRESS}/32"}
    if redis_url:
        values |= {"WARREN_REDIS_URL": redis_url, "WARREN_CLUSTER_SECRET": CLUSTER_SECRET}
    return values


@dataclass(frozen=True)
class OldState:
    """`kind`: ALONE or CLUSTER. `before`: what the old version answered, and the secrets that belong to it."""

    kind: str
    directory: Path
    before: dict[str, Any]

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Runs servers of this version, and yields the URL of the one to ask."""
        with self._alone() if self.kind == ALONE else self._cluster() as url:
            yield url

    @contextlib.contextmanager
    def _alone(self) -> Iterator[str]:
        server = self._process("serve", "state")
        with _running(server):
            yield server.url

    @contextlib.contextmanager
    def _cluster(self) -> Iterator[str]:
        """Starts workers 1 and 2 again, but not worker-3."""
        with running_redis(self.directory, password=REDIS_PASSWORD) as redis:
            workers = [self._node("worker", name, redis) for name in ("worker-1", "worker-2")]
            coordinator = self._node("coordinator", "coordinator-1", redis)
            with _running(*workers, coordinator):
                yield coordinator.url

    def _node(self, kind: str, name: str, redis: RedisServer) -> ServerProcess:
        return self._process(kind, name, "--worker-id", name, redis_url=redis.url)

    def _process(self, kind: str, name: str, *flags: str, redis_url: str = "") -> ServerProcess:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        moment = json.dumps({name: self.before[name] for name in ("boot", "now", "wall")})
        argv = (sys.executable, __file__, kind)
        return ServerProcess(directory, *flags, provider="fake", argv=argv, **{_CLOCK: moment}, **environ(redis_url))


def unpacked(kind: str, version: Path, directory: Path) -> OldState:
    with tarfile.open(version / f"{kind}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return OldState(kind, directory, json.loads((version / "answers.json").read_text())[kind])


@contextlib.contextmanager
def _running(*nodes: ServerProcess) -> Iterator[None]:
    try:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_until_ready()
        yield
        for node in reversed(nodes):
            assert node.stop() == 0, node.log[-3000:]
    finally:
        for node in nodes:
            node.kill()


def _set_clocks(boot: str, now: float, wall: float) -> None:
    """Makes all clocks of this process continue from that moment."""
    started, real_init = clock.boot_time(), clock.SystemClock.__init__
    real_time = clock.boot_time

    def passed() -> float:
        return real_time() - started + _LATER_S

    def init(self: clock.SystemClock) -> None:
        real_init(self)
        self._epoch = boot

    changes: list[tuple[Any, str, Any]] = [
        (clock, "boot_time", lambda: now + passed()),
        (cluster_wiring, "boot_time", lambda: now + passed()),
        (clock.SystemClock, "__init__", init),
        (clock.SystemClock, "now", lambda self: now + passed()),
        (clock.ClusterClock, "now", lambda self: now + passed() + self.offset_s),
        (clock.SystemClock, "wall", lambda self: wall + passed()),
        (RedisLink, "time_of_day", lambda self: wall + passed()),
    ]
    for owner, name, value in changes:
        setattr(owner, name, value)


if __name__ == "__main__":
    _set_clocks(**json.loads(os.environ[_CLOCK]))
    main()
