"""The HTTP server: listens, checks its connections for stalled clients, stops.

`HttpServer` replaces uvicorn's own server class, which exits the process on errors, takes over signals and stops only
between polls. The protocols below it are uvicorn's, see `connections`. Ten times per shortest time-out it lets every
connection check whether its client has stalled.
"""

import asyncio
import errno
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from warren.http.server.connections import HttpConnection, WebSocketConnection
from warren.http.server.http_guard import MAX_CONNECTIONS, HttpLimits
from warren.http.server.tls_hellos import TLS_HELLOS, TlsHellos
from warren.model.errors import Unavailable

_BACKLOG = 2048
_WS_MAX_SIZE = 1024 * 1024
_CANCEL_S = 5.0
_ACCEPT_S = 0.01
_TLS_SHUTDOWN_S = 2.0  # how long the server waits for the client's close_notify


class HttpServer:
    """Serves one ASGI app on one address. `start` returns when it accepts connections; `stop` may be called twice.

    It sets no signal handlers and prints nothing. It should run on uvloop: `asyncio.Runner(loop_factory=
    new_event_loop)`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
        shares_port: bool = False,
    ) -> None:
        self._host, self._requested_port, self._shares_port = host, port, shares_port
        self._tls = tls
        self._limits = limits or HttpLimits()
        self._state = ServerState()
        self._app = app
        self._server: asyncio.AbstractServer | None = None
        self._lifespan: LifespanOn | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self.port = port

    def __repr__(self) -> str:
        state = "listening on" if self._server is not None else "not listening on"
        return f"<HttpServer {state} {self._host}:{self.port}: {len(self._state.connections)} connections>"

    async def start(self, announce: Callable[[int], Awaitable[None]] | None = None) -> None:
        """Starts the app and listens. Calls `announce` with the port; requests wait until it has returned. Raises
        `Unavailable` if the address cannot be used or the app does not start."""
        # The app itself needs the other half of the open files.
        connections = min(self._limits.max_connections, raise_file_limit() // 2)
        self._limits = replace(self._limits, max_connections=connections)
        self._config = _configure(self._app, self._limits)
        self._config.load()
        listener = bind(self._host, self._requested_port, shared=self._shares_port)
        self.port = int(listener.getsockname()[1])
        try:
            await self._start_app()
            if announce is not None:
                await announce(self.port)
            self._server = await asyncio.get_running_loop().create_server(
                self._new_connection, sock=listener, backlog=_BACKLOG, **self._tls_options()
            )
        except BaseException:
            listener.close()
            raise
        self._check_connections()

    async def stop(self, grace_s: float) -> None:
        """Stops listening at once, waits up to `grace_s` for requests to finish, and then ends the rest."""
        if self._server is None:
            return
        await self._stop_listening(self._server)
        self._server = None
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            await self._wait_until_idle(grace_s)
        finally:
            await self._close_connections()

    async def _stop_listening(self, server: asyncio.AbstractServer) -> None:
        """Serves the connections that the kernel has accepted and the server has not: closing would reset them."""
        with cast(asyncio.Server, server).sockets[0].dup() as listener:
            listener.setblocking(False)
            server.close()
            while True:
                try:
                    waiting, _ = listener.accept()
                except OSError:
                    break
                waiting.setblocking(False)
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._new_connection, waiting, **self._tls_options()
                )
        await asyncio.sleep(_ACCEPT_S)  # for connections that the loop has just accepted

    def _tls_options(self) -> dict[str, Any]:
        """Returns the TLS arguments of asyncio. A handshake has the same time-out as a request's head."""
        if self._tls is None:
            return {}
        handshake_s = self._limits.header_timeout_s
        return {"ssl": self._tls, "ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": _TLS_SHUTDOWN_S}

    async def _start_app(self) -> None:
        lifespan = self._config.lifespan_class(self._config)
        await lifespan.startup()
        if lifespan.should_exit:
            raise Unavailable("the server could not start", remedy="the log says why")
        lifespan.state[MAX_CONNECTIONS] = self._limits.max_connections
        if self._tls is None:
            lifespan.state[TLS_HELLOS] = TlsHellos()
        self._lifespan = lifespan

    def _new_connection(self) -> asyncio.Protocol:
        assert self._lifespan is not None
        make = cast(Any, self._config.http_protocol_class)
        return cast(
            asyncio.Protocol, make(config=self._config, server_state=self._state, app_state=self._lifespan.state)
        )

    def _check_connections(self) -> None:
        loop = asyncio.get_running_loop()
        self._check_timer = loop.call_later(_check_interval_s(self._limits), self._check_connections)
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        now = loop.time()
        for connection in list(self._state.connections):
            cast(HttpConnection | WebSocketConnection, connection).check_timeouts(now)

    async def _wait_until_idle(self, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._state.tasks or self._state.connections:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            if self._state.tasks:
                await asyncio.wait(list(self._state.tasks), timeout=left_s)
            await asyncio.sleep(0.01)

    async def _close_connections(self) -> None:
        try:
            for task in list(self._state.tasks):
                task.cancel()
            if self._state.tasks:
                await asyncio.wait(list(self._state.tasks), timeout=_CANCEL_S)
            if self._state.connections:
                await asyncio.sleep(0.05)  # for the last responses to leave
        finally:
            for connection in list(self._state.connections):
                cast(HttpConnection | WebSocketConnection, connection).abort()
            if self._check_timer is not None:
                self._check_timer.cancel()
        if self._lifespan is not None:
            await self._lifespan.shutdown()


def new_event_loop() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns it: every connection is an open file, and the
    usual 1,024 would run out first."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a listening socket. Raises `Unavailable`, with the reason, if the address cannot be used. If it is
    `shared`, other processes of this user may listen there too, if they share it as well."""
    if not 0 <= port < 65536:
        raise Unavailable(f"{port} is not a port", remedy="choose one from 1 to 65535 with --port or WARREN_PORT")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # IPv4 first, so that `localhost` means 127.0.0.1 on every machine.
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    except (OSError, ValueError) as exc:
        raise Unavailable(f"{host!r} is not an address to listen on", remedy="check --host or WARREN_HOST") from exc
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise _cannot_listen(host, port, exc) from exc
    return listener


def _cannot_listen(host: str, port: int, exc: OSError) -> Unavailable:
    number = exc.errno
    if number == errno.EADDRINUSE:
        return Unavailable(f"port {port} is taken", remedy="choose another with --port or WARREN_PORT")
    if number in (errno.EACCES, errno.EPERM):
        return Unavailable(f"port {port} may not be used by this user", remedy="choose one above 1023 with --port")
    if number == errno.EADDRNOTAVAIL:
        return Unavailable(f"{host!r} is not an address of this machine", remedy="check --host or WARREN_HOST")
    return Unavailable(f"cannot listen on {host} port {port}: {exc}", remedy="check --host and --port")


def _check_interval_s(limits: HttpLimits) -> float:
    shortest = min(limits.header_timeout_s, limits.body_timeout_s, limits.send_timeout_s, 10.0)
    return max(0.02, shortest / 10)


def _configure(app: ASGIApp, limits: HttpLimits) -> uvicorn.Config:
    return uvicorn.Config(
        cast(Any, app),
        interface="asgi3",
        http=cast(Any, partial(HttpConnection, limits=limits)),
        ws=cast(Any, partial(WebSocketConnection, limits=limits)),
        ws_max_size=_WS_MAX_SIZE,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=cast(int, limits.keep_alive_s),
    )
