"""The connection to Redis: runs scripts within a deadline and translates errors into ours.

A dropped connection (Redis was restarted, another server became the primary) shows only when it is used; the link then
runs the script once more, over a new connection. The first run may have succeeded: both carry the same token, by which
the script recognises the repetition and answers as before. A script also carries its deadline by Redis' own clock,
which every answer contains: a frozen Redis does not do late what nobody waits for any more. One case remains: if the
answer was lost twice, or is still on its way at the deadline, `run` raises Unavailable although the change may have
been made.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from redis import exceptions as theirs
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from warren.kernel.syncing import sync_file
from warren.model.errors import NoSpace, StoreAway, Unavailable, WarrenError
from warren.stores.redis_address import RedisAddress, RedisKind, read_address
from warren.stores.redis_lua import TOKEN_BYTES, LuaScript

TIMEOUT_S: Final = 2.0
_RETRY_AFTER_S: Final = 1.0
_AT_ONCE: Final = 64  # connections, and so concurrent scripts
_STOOD_STILL_S: Final = 0.05  # a deadline noticed this late means that this process stood still, not Redis
_REMEMBERED_S: Final = 30.0  # Redis knows for longer than that that it has run a script
_CLUSTER_TRIES: Final = 2  # the first try may go to a node that has moved

# What the client says, with a cluster, of a connection that another task has closed while it was being used.
_CLOSED_MEANWHILE: Final = (RuntimeError, AttributeError)
# An immediate retry does not help against these connection errors.
_FINAL: Final = (theirs.AuthenticationError, theirs.AuthorizationError, theirs.BusyLoadingError)

Value = str | bytes | int | float | None


def connect(url: str, *, timeout_s: float = TIMEOUT_S, namespace: str = "warren") -> "RedisLink":
    """Makes a link, which connects with the first script. Raises InvalidRequest for a wrong URL.

    Every key begins with `namespace` in braces: several Warrens may share a Redis under different namespaces.
    """
    return RedisLink(read_address(url), timeout_s, f"{{{namespace}}}")


class RedisLink:
    def __init__(self, address: RedisAddress, timeout_s: float, tag: str) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._tag = tag
        self._client, self._close = new_client(address, timeout_s)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._ahead_s: float | None = None  # how far Redis' clock is ahead of the event loop's
        self._closed = False
        self._is_away = self._is_tried = False

    def __repr__(self) -> str:
        return f"<RedisLink {self.address}{' closed' if self._closed else ''}>"

    async def run(self, script: LuaScript, *values: Value) -> Any:
        """Returns the result of the script. Raises Unavailable or NoSpace."""
        if self._closed:
            raise Unavailable(f"the connection to Redis at {self.address} is closed")
        if self._is_away and self._is_tried:
            raise self._silent()  # another caller already waits for Redis, and one is enough
        packed = (secrets.token_hex(TOKEN_BYTES // 2), *map(_encode, values))
        self._is_tried = True
        try:
            return await self._run_or_translate(script, packed)
        finally:
            self._is_tried = False

    async def _run_or_translate(self, script: LuaScript, packed: tuple[Any, ...]) -> Any:
        try:
            return await self._run_or_time_out(script, packed, is_first=True)
        except TimeoutError as exc:
            raise self._silent() from exc
        except theirs.RedisClusterException as exc:
            raise self._ours_of_cluster(exc) from None  # the text of the error may contain what was to be stored
        except (theirs.RedisError, OSError, *_CLOSED_MEANWHILE) as exc:
            raise self._ours(exc) from exc

    async def _run_or_time_out(self, script: LuaScript, packed: tuple[Any, ...], *, is_first: bool) -> Any:
        """Raises TimeoutError. If it was this process that stood still, the answer may be there: it asks once more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline), self._room:
                result = await self._run_in_time(script, packed, deadline)
        except TimeoutError:
            late_s = loop.time() - deadline
            self._is_away = self._is_away or late_s < _STOOD_STILL_S
            if not (is_first and _STOOD_STILL_S <= late_s < _REMEMBERED_S):
                raise
        else:
            self._is_away = False
            return result
        return await self._run_or_time_out(script, packed, is_first=False)

    async def sync(self) -> None:
        """Waits until what Redis has written is on the disk, if its files are beside its socket: it writes before it
        answers. Raises Unavailable."""
        if self.address.kind is RedisKind.SOCKET:
            try:
                await asyncio.to_thread(_sync_files, Path(self.address.path).parent / "appendonlydir")
            except OSError as exc:
                raise self._away(f"cannot save what it has written: {exc.strerror or exc}") from exc

    def time_of_day(self) -> float:
        """Returns the time by Redis' clock, from its last answer. Raises Unavailable before the first one."""
        if self._ahead_s is None:
            raise Unavailable(f"Redis at {self.address} has not told the time yet")
        return asyncio.get_running_loop().time() + self._ahead_s

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._close()

    async def _run_in_time(self, script: LuaScript, values: tuple[Any, ...], deadline: float) -> Any:
        """Runs the script until it is in time: without a result, it came too late by a clock that we knew wrongly.

        Raises TimeoutError at the deadline, as the time-out around it does: the client may have swallowed that one
        (Python 3.11: `asyncio.wait_for`), and from then on every script would come too late.
        """
        loop = asyncio.get_running_loop()
        while True:
            not_after = b"" if self._ahead_s is None else repr(deadline + self._ahead_s).encode()
            time_of_day, *result = await self._run_twice(script, (not_after, *values))
            self._ahead_s = float(time_of_day) - loop.time()
            if result:
                return result[0]
            if loop.time() >= deadline:
                raise TimeoutError

    async def _run_twice(self, script: LuaScript, values: tuple[Any, ...]) -> Any:
        """Runs the script, and again if the connection was dropped."""
        try:
            return await self._evaluate(script, values)
        except (theirs.ConnectionError, theirs.ReadOnlyError, *_CLOSED_MEANWHILE) as exc:
            if isinstance(exc, _FINAL):
                raise
        if isinstance(self._client, Redis):
            # the idle connections were dropped too
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return await self._evaluate(script, values)

    async def _evaluate(self, script: LuaScript, values: tuple[Any, ...]) -> Any:
        """Runs the script by its hash; sends its text if Redis does not know it, as after a restart."""
        try:
            return await self._client.execute_command("EVALSHA", script.sha, 1, self._tag, *values)
        except theirs.NoScriptError:
            return await self._client.execute_command("EVAL", script.text, 1, self._tag, *values)

    def _silent(self) -> Unavailable:
        return self._away(f"did not answer within {self._timeout_s:g} s")

    def _away(self, what: str, remedy: str = "") -> Unavailable:
        return StoreAway(f"Redis at {self.address} {what}", remedy=remedy, retry_after_s=_RETRY_AFTER_S)

    def _ours(self, exc: Exception) -> WarrenError:
        if isinstance(exc, theirs.OutOfMemoryError):
            return NoSpace(
                f"Redis at {self.address} has no memory left to store this",
                remedy="raise its maxmemory, or end sessions that are not needed any more",
            )
        if isinstance(exc, theirs.TimeoutError):
            return self._silent()
        for kind, what, remedy in _KNOWN:
            if isinstance(exc, kind):
                return self._away(what, remedy)
        if isinstance(exc, theirs.ResponseError):
            return self._refused(str(exc))
        return self._away(f"cannot be reached: {exc}", "see that it runs, and that its URL is right")

    def _ours_of_cluster(self, exc: Exception) -> WarrenError:
        if isinstance(exc.__cause__, theirs.RedisError):
            return self._ours(exc.__cause__)
        return self._away("is a cluster that cannot be used", "look at CLUSTER INFO on one of its nodes")

    def _refused(self, text: str) -> Unavailable:
        if text.startswith("MISCONF"):
            return self._away("cannot write to its disk", "look at its log, and at the space on its disk")
        return self._away(f"refused it: {text}")


_KNOWN: Final[tuple[tuple[type[Exception], str, str], ...]] = (
    (
        theirs.AuthenticationError,
        "does not take this user name and password",
        "put the right ones into its URL: redis://user:password@host:port",
    ),
    (
        theirs.NoPermissionError,
        "does not let this user do it",
        "allow its user all commands for the keys that begin with the namespace in braces: ~{warren}* +@all",
    ),
    (theirs.BusyLoadingError, "is still reading its data", ""),
    (
        theirs.ReadOnlyError,
        "is a replica and takes no changes",
        "name the primary in its URL, or let Sentinels name it: redis+sentinel://host:port/service",
    ),
    (theirs.ClusterDownError, "is a cluster that is down", "look at CLUSTER INFO on one of its nodes"),
)


def _sync_files(directory: Path) -> None:
    for path in (*directory.glob("*"), directory) if directory.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # Redis has written it anew, and waited for that
            sync_file(path)


def _encode(value: Value) -> bytes | int:
    """Encodes text exactly, lone surrogates too, and numbers so that they come back the same."""
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, float):
        return repr(value).encode()
    return b"" if value is None else value


def new_client(address: RedisAddress, timeout_s: float) -> tuple[Any, Callable[[], Awaitable[None]]]:
    """Returns a client and a function that closes it. The client repeats nothing: the link decides about that.

    It has a time-out for sending and reading only with a cluster or Sentinels, where another node may answer. `run` has
    one anyway, and with a second one inside the client may not notice its cancellation (Python 3.11:
    `asyncio.wait_for`).
    """
    settings: dict[str, Any] = {
        "username": address.username or None,
        "password": address.password or None,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "driver_info": None,
        **_tls(address),
    }
    once = Retry(NoBackoff(), 0)
    if address.kind is RedisKind.CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        settings.update(socket_timeout=timeout_s / 2, socket_connect_timeout=timeout_s / (len(nodes) + 1))
        cluster = RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), _CLUSTER_TRIES), **settings)
        return cluster, cluster.aclose
    settings.update(retry=once, db=address.db)
    if address.kind is RedisKind.SENTINEL:
        return _by_sentinel(address, timeout_s, settings)
    if address.kind is RedisKind.SOCKET:
        client = Redis(unix_socket_path=address.path, **settings)
    else:
        client = Redis(host=address.hosts[0][0], port=address.hosts[0][1], **settings)
    return client, client.aclose


def _by_sentinel(
    address: RedisAddress, timeout_s: float, settings: dict[str, Any]
) -> tuple[Any, Callable[[], Awaitable[None]]]:
    """Divides the time-out: a Sentinel that does not answer must leave time for the next one, and for Redis itself."""
    share = timeout_s / (len(address.hosts) + 1)
    sentinel_settings = {
        **settings,
        **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), share),
        "username": address.options.get("sentinel_username") or None,
        "password": address.options.get("sentinel_password") or None,
        "db": 0,
    }
    sentinel: Any = Sentinel(address.hosts, sentinel_kwargs=sentinel_settings, **settings)  # type: ignore[no-untyped-call]
    client = sentinel.master_for(address.service)

    async def close() -> None:
        await client.aclose()
        await sentinel.aclose()

    return client, close


def _tls(address: RedisAddress) -> dict[str, Any]:
    if not address.tls:
        return {}
    files = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
    return {"ssl": True, **files, "ssl_check_hostname": files.get("ssl_cert_reqs") != "none"}
