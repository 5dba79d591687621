"""`warren serve`: the HTTP server of one machine."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import click

from warren.config.options import serve_options
from warren.config.settings import Settings, read_settings
from warren.model.addresses import is_loopback
from warren.model.errors import InvalidRequest

if TYPE_CHECKING:
    import ssl

    from starlette.types import ASGIApp

    from warren.app.service import Service
    from warren.tenancy.keys import Keys

_log = logging.getLogger("warren.serve")


@click.command()
@serve_options
def serve(flags: dict[str, Any]) -> int:
    """Serve the HTTP API until it is told to stop.

    SIGTERM and SIGINT stop it in order: running commands may finish, sessions are kept for the next start (or
    destroyed: --on-stop). A second signal does not wait. `warren config` shows every option there is.
    """
    return run_server(read_settings(flags=flags))


def run_server(settings: Settings, make_service: "Callable[[Settings], Service] | None" = None) -> int:
    """Until it is told to stop; gives the exit code. `make_service` may give the service more than the settings say."""
    from warren.app.service import Service
    from warren.app.wiring import build_tls

    check_open_to(settings)
    return run_process(
        settings, build_tls(settings), lambda tls: _serve(settings, (make_service or Service)(settings), tls)
    )


def run_process(
    settings: Settings,
    tls: "ssl.SSLContext | None",
    work: "Callable[[ssl.SSLContext | None], Coroutine[Any, Any, int]]",
) -> int:
    from warren.http.server.http_guard import request_id
    from warren.http.server.serving import new_event_loop
    from warren.logs import set_up_logs

    set_up_logs(settings.log_level, settings.log_format, request_id.get)
    for warning in settings.warnings:
        _log.warning("%s", warning)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work(tls))


def check_open_to(settings: Settings) -> None:
    """Without authentication nobody but this machine may reach the server, through a proxy neither."""
    if settings.auth:
        return
    if settings.trusted_proxies:
        raise InvalidRequest(
            "behind a proxy everybody can reach the server, so it needs authentication",
            remedy="leave out --no-auth, or --trusted-proxies",
        )
    if is_loopback(settings.host):
        return
    raise InvalidRequest(
        f"without authentication the server listens on loopback only, not on {settings.host}",
        remedy="leave out --no-auth (the server makes a key at its first start), or --host",
    )


async def _serve(settings: Settings, service: "Service", tls: "ssl.SSLContext | None") -> int:
    from warren.app.wiring import build_app, build_identity, build_tokens

    tokens = await build_tokens(settings)

    def app() -> "ASGIApp":
        identity = build_identity(settings, service.tenancy, tokens)
        return build_app(settings, service.sessions, service.tenancy, identity)

    async def greet(port: int) -> None:
        _greet(settings, port, await first_key(settings, service.tenancy.keys, [url_of(settings, port)]))

    return await serve_until_told(settings, service, tls, app, greet)


async def serve_until_told(
    settings: Settings,
    service: Any,
    tls: "ssl.SSLContext | None",
    app: "Callable[[], ASGIApp]",
    greet: Callable[[int], Awaitable[None]],
) -> int:
    """`service` is what has the work: it is started before anybody is served, and stopped after."""
    from warren.http.server.http_guard import HttpLimits
    from warren.http.server.serving import HttpServer

    caught = _Signals()
    if not await caught.none_during(service.start()):
        return 0
    limits = HttpLimits(
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        send_timeout_s=settings.send_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        max_connections=settings.max_connections,
    )
    server = HttpServer(app(), host=settings.host, port=settings.port, limits=limits, tls=tls)
    grace_s = settings.stop_grace_s
    try:
        await server.start()
        _spare_the_collector()
        await greet(server.port)
        await caught.first.wait()
        _log.info("stopping: running commands have %g s to finish", grace_s)
        service.sessions.stopping = True
    finally:
        await caught.or_at_once(_stop(service, server, grace_s, destroy=settings.on_stop == "destroy"))
    _log.info("stopped")
    return 0


def _spare_the_collector() -> None:
    """What was loaded so far stays: it need not be looked at again."""
    gc.collect()
    gc.freeze()


async def _stop(service: Any, server: Any, grace_s: float, *, destroy: bool) -> None:
    """First the work, so that its answers still leave; then the connections, then the rest."""
    await service.sessions.quiet(grace_s)
    await server.stop(service.goodbye_s)
    await service.stop(0.0, destroy=destroy)


class _Signals:
    """The first stops in order, the second at once."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._caught)

    def _caught(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def none_during(self, work: Any) -> bool:
        """Whether the work was done; a signal cancels it, and it is undone."""
        task, told = asyncio.ensure_future(work), asyncio.ensure_future(self.first.wait())
        await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            return False
        task.result()
        return True

    async def or_at_once(self, work: Any) -> None:
        task, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self.second.wait())
        await asyncio.wait([task, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        else:
            task.result()


async def first_key(settings: Settings, keys: "Keys", urls: Sequence[str]) -> str:
    """A server that nobody has a key for makes one, and leaves it where clients of the same user find it."""
    from warren.model.access import ALL_SCOPES
    from warren.model.session import DEFAULT_TENANT
    from warren.sdk.credentials import write_key
    from warren.sdk.discovery import credentials_path

    if not settings.auth or settings.api_key or settings.jwt_jwks:
        return ""
    made = await keys.create_first("first", DEFAULT_TENANT, ALL_SCOPES)
    if made is None:
        return ""
    text, path = made[1], credentials_path()
    try:
        if path is None:
            raise OSError("this user has no home directory")
        for url in urls:
            await asyncio.to_thread(write_key, path, url, text)
    except OSError as exc:
        click.echo(f"Made a key, which is shown this once: {text}\n  It could not be left for your clients: {exc}")
        return text
    # What is not a terminal is a log, where keys must not be.
    shown = f", which is shown this once: {text}" if sys.stdout.isatty() else "."
    click.echo(f"Made a key{shown}\n  Your own clients find it in {path}.")
    return text if sys.stdout.isatty() else ""


def url_of(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def _greet(settings: Settings, port: int, first_key: str) -> None:
    url = url_of(settings, port)
    key = f' -H "X-API-Key: {first_key or "$WARREN_API_KEY"}"' if settings.auth else ""
    click.echo(f"Warren serves {url} (provider {', '.join(settings.providers)}, state in {settings.state_dir})")
    click.echo(f'  try:  curl{key} {url}/execute -d \'{{"thread_id": "hello", "command": "uname -a"}}\'')
    click.echo(f"  docs: {url}/docs    stop: Ctrl-C")
