"""Several Redis servers of which another one takes over when the primary dies: by Sentinels, or as a Redis Cluster."""

import contextlib
import secrets
from pathlib import Path
from typing import Any, Final

import redis
from redis_server import RedisSentinel, RedisServer, wait_until
from server_process import free_port

_DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "everysec")
_SILENT_MS: Final = 1500  # after which a server is held for dead


class RedisGroup:
    """`kill_primary` returns when another server is the primary; `heal` starts the killed one again."""

    def __init__(self) -> None:
        self.servers: list[RedisServer] = []
        self._dead: RedisServer | None = None

    @property
    def primary(self) -> RedisServer:
        raise NotImplementedError

    def ask(self, *command: Any) -> Any:
        return self.primary.ask(*command)

    def kill_primary(self) -> None:
        dead = self._dead = self.primary
        dead.kill()
        wait_until(lambda: self._primary_or(dead) is not dead, "no other server became the primary")

    def _primary_or(self, other: RedisServer) -> RedisServer:
        with contextlib.suppress(redis.RedisError, StopIteration):
            if (found := self.primary) is not other and found.ask("ROLE")[0] == b"master":
                return found
        return other

    def heal(self) -> None:
        assert self._dead is not None
        self._dead.start()
        wait_until(self._is_whole, "the server that was killed is no replica of the new one")

    def _is_whole(self) -> bool:
        with contextlib.suppress(redis.RedisError, StopIteration):
            return self.primary.ask("INFO", "replication").get("slave0", {}).get("state") == "online"
        return False

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


class WithSentinels(RedisGroup):
    """A primary, a replica and three Sentinels, two of which must agree."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        password = secrets.token_hex(16)
        self.servers = [RedisServer(directory / f"redis-{n}", *_DURABLE, password=password) for n in (1, 2)]
        self._sentinels = [
            RedisSentinel(directory / f"sentinel-{n}", self.servers[0], quorum=2, silent_ms=_SILENT_MS)
            for n in (1, 2, 3)
        ]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self._sentinels)
        return f"redis+sentinel://:{self.servers[0].password}@{places}/mymaster/0"

    @property
    def primary(self) -> RedisServer:
        _, port = self._sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        return next(server for server in self.servers if server.port == int(port))

    def start(self) -> None:
        first, second = self.servers
        for server in self.servers:
            server.start()
        second.ask("REPLICAOF", "127.0.0.1", first.port)
        for sentinel in self._sentinels:
            sentinel.start()
        wait_until(lambda: all(map(self._knows_all, self._sentinels)), "the Sentinels did not find each other")

    @staticmethod
    def _knows_all(sentinel: RedisSentinel) -> bool:
        ask = sentinel.ask
        return len(ask("SENTINEL", "SENTINELS", "mymaster")) == 2 and len(ask("SENTINEL", "REPLICAS", "mymaster")) == 1

    def kill(self) -> None:
        for sentinel in self._sentinels:
            sentinel.kill()
        super().kill()


class AsCluster(RedisGroup):
    """Three primaries, each with a replica. The one that has our slot is the primary here."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        password = secrets.token_hex(16)
        self._bus = {n: free_port() for n in range(6)}
        self.servers = [
            RedisServer(
                *(directory / f"redis-{n}", *_DURABLE, "--cluster-enabled", "yes", "--cluster-port", str(self._bus[n])),
                *("--cluster-node-timeout", str(_SILENT_MS)),
                password=password,
            )
            for n in range(6)
        ]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://:{self.servers[0].password}@{places}"

    @property
    def primary(self) -> RedisServer:
        for server in self.servers:
            with contextlib.suppress(redis.RedisError):
                slot = server.ask("CLUSTER", "KEYSLOT", "{warren}")
                for first, last, (_, port, *_), *_ in server.ask("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(each for each in self.servers if each.port == port)
        raise StopIteration

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for number, server in enumerate(self.servers[1:], 1):
            self.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port, self._bus[number])
        wait_until(lambda: all(self._count(server) == 6 for server in self.servers), "the nodes did not meet")
        for number, server in enumerate(self.servers[:3]):
            server.ask("CLUSTER", "ADDSLOTSRANGE", number * 5461, 16383 if number == 2 else number * 5461 + 5460)
            name = server.ask("CLUSTER", "MYID").decode()
            replica = self.servers[number + 3]
            wait_until(lambda replica=replica, name=name: name in str(replica.ask("CLUSTER", "NODES")), "not told")  # type: ignore[misc]
            replica.ask("CLUSTER", "REPLICATE", name)
        wait_until(lambda: all(map(_is_ok, self.servers)) and self._is_whole(), "the cluster did not form")

    @staticmethod
    def _count(server: RedisServer) -> int:
        found = server.ask("CLUSTER", "INFO")
        return int(str(found).split("cluster_known_nodes:")[1].split("\\r")[0].split("\r")[0])


def _is_ok(server: RedisServer) -> bool:
    return b"cluster_state:ok" in server.ask("CLUSTER", "INFO")
