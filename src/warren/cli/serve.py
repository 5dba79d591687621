"""`warren serve`, `warren coordinator`, `warren worker`: the processes that serve until a signal stops them."""

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from warren.config.options import serve_options, worker_options
from warren.config.settings import Settings, read_settings
from warren.kernel.logs import get_log
from warren.model.addresses import is_loopback
from warren.model.errors import InvalidRequest, Unavailable
from warren.model.version import __version__

if TYPE_CHECKING:
    import ssl

    from starlette.types import ASGIApp

    from warren.access.keys import Keys
    from warren.app.coordinator_process import CoordinatorService
    from warren.app.service import Service

_log = get_log(__name__)
_SLOW_TO_LOAD: Final = ("warren.http.app", "warren.http.dispatch", "warren.http.e2b.handlers", "warren.http.pipeline")
_SWITCH_S: Final = 0.0001  # the event loop waits so long, instead of 5 ms, for a thread that computes, at each turn
_AnyService = TypeVar("_AnyService", bound="Service | CoordinatorService")


@click.command()
@serve_options
@click.option("--workers", metavar="N", help="Serve with so many processes that have sandboxes, and a Redis.  [1]")
def serve(flags: dict[str, Any], workers: str | None) -> int:
    """Serve the HTTP API until you stop it.

    SIGTERM and SIGINT stop it in order: running commands may finish, and sessions are kept for the next start (or
    destroyed: --on-stop). A second signal stops it at once. `warren config` shows every option.

    One process serves as many commands as one core can. With --workers 4 four of them do, behind the same address;
    sessions go on when the server is started again with another number.
    """
    from warren.app.one_machine import has_rows_in_redis

    if workers is not None:
        flags = {**flags, "serve_workers": workers}
    settings = read_settings(flags=flags)
    if settings.serve_workers > 1 or (settings.store == "sqlite" and has_rows_in_redis(settings.state_dir)):
        from warren.cli.serve_workers import serve_with_workers

        if serve_with_workers(settings, flags):
            return 0
    return run_server(settings)


@click.command()
@serve_options
def coordinator(flags: dict[str, Any]) -> int:
    """Serve the HTTP API of a cluster until you stop it.

    The sandboxes are on the cluster's workers: a request about a session is passed on to the worker that has it. Any
    number of coordinators may run, on any machines: each answers every request. They and the workers meet in Redis
    (WARREN_REDIS_URL, or REDIS_HOST and REDIS_PORT) and know each other by WARREN_CLUSTER_SECRET. If Redis and the
    WORKERS that are named are on this machine, a secret is made in the state directory when none is given.

    Example: REDIS_HOST=10.0.0.2 WARREN_CLUSTER_SECRET=... warren coordinator --host 0.0.0.0
    """
    from warren.app.cluster_wiring import coordinator_settings
    from warren.app.wiring import build_tls

    settings = coordinator_settings(given := read_settings(flags=flags))
    _tell_secret(given)
    check_exposure(settings)
    tls = build_tls(settings)
    why_not = _confine_coordinator(settings)
    return _run_process(settings, tls, lambda tls: _run_coordinator(settings, tls, why_not))


@click.command()
@worker_options
def worker(flags: dict[str, Any]) -> int:
    """Make the sandboxes of this machine for a cluster until you stop it.

    It serves coordinators only. Its sandboxes go on when it is stopped, and the next start
    takes them over; without one within a minute its sessions are reported lost. Before you remove a worker for good,
    drain it: `warren cluster drain`.

    Example: REDIS_HOST=10.0.0.2 WARREN_CLUSTER_SECRET=... warren worker --host 0.0.0.0 --labels gpu=1
    """
    from warren.app.cluster_wiring import build_worker_tls, worker_settings

    settings = worker_settings(given := read_settings(flags=flags))
    _tell_secret(given)
    check_user(settings)
    return _run_process(settings, build_worker_tls(settings), lambda tls: _run_worker(settings, tls))


def _tell_secret(given: Settings) -> None:
    """Prints where the secret is that `coordinator_settings` found or made."""
    from warren.app.one_machine import secret_path

    if not given.cluster_secret:
        path = secret_path(given.state_dir)
        click.echo(
            f"The secret of this cluster is in {path}. Its processes find it there if they have the same state "
            "directory; others need it as WARREN_CLUSTER_SECRET."
        )


def run_server(settings: Settings, make_service: "Callable[..., Service] | None" = None) -> int:
    """Serves until a signal comes; returns the exit code. `make_service` builds another service than the usual one
    from the same arguments."""
    from warren.app.service import Service
    from warren.app.wiring import build_tls

    check_exposure(settings)
    check_user(settings)
    make = make_service or Service
    return _run_process(settings, build_tls(settings), lambda tls: _run_service(settings, make, tls))


def check_user(settings: Settings) -> None:
    """Refuses to start without root if a provider needs it: the server would start, and then fail to make every
    sandbox."""
    from warren.sandboxes.providers.host_provider import require_root

    for provider in settings.providers:
        if provider != "fake":
            require_root(provider)


def check_exposure(settings: Settings) -> None:
    """Raises InvalidRequest if a server without authentication could be reached from other machines, or through a
    proxy."""
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


def _run_process(
    settings: Settings,
    tls: "ssl.SSLContext | None",
    main: "Callable[[ssl.SSLContext | None], Coroutine[Any, Any, int]]",
) -> int:
    from warren.http.server.http_guard import request_id
    from warren.http.server.serving import new_event_loop
    from warren.kernel.logs import set_up_logs

    _check_port(settings)
    try:
        set_up_logs(settings.log_level, settings.log_format, request_id.get, settings.log_file)
    except OSError as exc:
        raise InvalidRequest(f"the log file {settings.log_file} cannot be written: {exc.strerror}") from exc
    for warning in settings.warnings:
        _log.warning("setting_ignored", reason=warning)
    if settings.auth and settings.api_key:
        _log.info("admin_key_configured", source=settings.sources.get("api_key", "default"))
    sys.setswitchinterval(_SWITCH_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main(tls))


def _check_port(settings: Settings) -> None:
    """Raises Unavailable if the address cannot be used, before a state directory is made and images are built. A second
    server in one state directory is not refused here: its start says which process has the directory."""
    from warren.app.service import server_pid
    from warren.http.server.serving import bind

    if settings.share_port:
        return  # clients of the others must not come to a listener that goes away
    try:
        bind(settings.host, settings.port).close()
    except Unavailable:
        if not server_pid(settings.state_dir):
            raise


async def _run_service(settings: Settings, make: "Callable[..., Service]", tls: "ssl.SSLContext | None") -> int:
    from warren.app.service import Service
    from warren.app.wiring import build_app, build_identity, build_tokens

    tokens = await build_tokens(settings)

    def app(service: Service) -> "ASGIApp":
        identity = build_identity(settings, service.tenancy, tokens)
        environments, builds = service.environments, service.template_builds()
        return build_app(
            settings,
            environments,
            service.sessions,
            service.tenancy,
            identity,
            builds,
            service.tracing,
            service.metrics,
            service.history,
            service.logs,
        )

    async def announce(service: Service, port: int) -> None:
        url = server_url(settings, port)
        first_key = await ensure_first_key(settings, service.tenancy.keys, [url])
        click.echo(f"Warren serves {url} (provider {', '.join(settings.providers)}, state in {settings.state_dir})")
        # By a variable: every user of the machine can read the arguments of a process.
        key = f"WARREN_API_KEY={first_key} " if first_key else ""
        program = sys.argv[0] if Path(sys.argv[0]).name == "warren" else "warren"
        click.echo(f"  try:  {key}{program} exec --url {url} --thread hello -- uname -a")
        click.echo(f"  docs: {url}/docs    stop: Ctrl-C")

    return await _serve_until_stopped(settings, Service.role, partial(make, settings), tls, app, announce)


def _confine_coordinator(settings: Settings) -> str:
    """Confines this process to what a coordinator needs: it writes temporary files, its log, the first key, and
    artifacts and snapshots if all machines share their directories; it keeps all else in Redis.

    Returns why that was not possible, or an empty text; the coordinator runs in either case.
    """
    import tempfile

    from warren.app.confinement import confine
    from warren.sdk.discovery import credentials_path

    places = [Path(tempfile.gettempdir()), Path("/dev/null")]
    if settings.log_file is not None:
        places.append(settings.log_file.absolute().parent)
    places += [Path(each) for each in (settings.artifact_store, settings.snapshot_store) if each.startswith("/")]
    if credentials := credentials_path():
        with contextlib.suppress(OSError):
            credentials.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        places.append(credentials.parent)
    try:
        confine(places)
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


async def _run_coordinator(settings: Settings, tls: "ssl.SSLContext | None", why_not_confined: str) -> int:
    from warren.app.coordinator_process import CoordinatorService
    from warren.app.wiring import build_identity, build_tokens

    if why_not_confined:
        _log.warning("coordinator_not_confined", reason=why_not_confined)
    tokens = await build_tokens(settings)

    async def announce(service: CoordinatorService, port: int) -> None:
        await ensure_first_key(settings, service.tenancy.keys, [server_url(settings, port)])
        click.echo(f"Warren coordinates on {settings.host}:{port}; workers: {len(service.control.status().workers)}")

    def app(service: CoordinatorService) -> "ASGIApp":
        return service.app(build_identity(settings, service.tenancy, tokens))

    make = partial(CoordinatorService, settings)
    return await _serve_until_stopped(settings, CoordinatorService.role, make, tls, app, announce)


async def _run_worker(settings: Settings, tls: "ssl.SSLContext | None") -> int:
    from warren.app.worker_process import WorkerService

    async def announce(service: WorkerService, port: int) -> None:
        details = f"provider {', '.join(settings.providers)}, state in {settings.state_dir}"
        click.echo(f"Worker {settings.worker_id} of Warren works on {settings.host}:{port} ({details})")

    make = partial(WorkerService, settings)
    return await _serve_until_stopped(settings, WorkerService.role, make, tls, WorkerService.app, announce)


async def _serve_until_stopped(
    settings: Settings,
    role: str,
    make: Callable[..., _AnyService],
    tls: "ssl.SSLContext | None",
    app: "Callable[[_AnyService], ASGIApp]",
    announce: Callable[[_AnyService, int], Awaitable[None]],
) -> int:
    """Serves until a signal comes, with traces if the settings name a collector for them. Returns the exit code."""
    from warren.app.wiring import build_span_exporter
    from warren.kernel.tracing import Tracing

    signals = _Signals()
    spans = build_span_exporter(settings, role)
    if spans is None:
        return await _serve(settings, make(), signals, tls, app, announce)
    spans.start()
    try:
        service = make(tracing=Tracing(spans, settings.trace_sample))
        return await _serve(settings, service, signals, tls, app, announce)
    finally:
        await signals.run_until_second(spans.close())


async def _serve(
    settings: Settings,
    service: _AnyService,
    signals: "_Signals",
    tls: "ssl.SSLContext | None",
    app: "Callable[[_AnyService], ASGIApp]",
    announce: Callable[[_AnyService, int], Awaitable[None]],
) -> int:
    """Starts the service before the HTTP server, and stops it after the server."""
    for name in _SLOW_TO_LOAD:  # once the service runs, its heartbeats would wait for them
        importlib.import_module(name)
    from warren.http.server.http_guard import HttpLimits
    from warren.http.server.serving import HttpServer

    if not await signals.run_unless_stopped(service.start()):
        return 0
    limits = HttpLimits(
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        send_timeout_s=settings.send_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        max_connections=settings.max_connections,
    )
    server = HttpServer(
        app(service), host=settings.host, port=settings.port, limits=limits, tls=tls, shares_port=settings.share_port
    )
    grace_s = settings.stop_grace_s
    try:
        _freeze_loaded_objects()
        await server.start(partial(announce, service))
        _log.info("server_started", version=__version__, host=settings.host, port=server.port, process=os.getpid())
        await signals.first.wait()
        _log.info("server_stopping", grace_s=grace_s)
        service.sessions.uses.stop()
    finally:
        await signals.run_until_second(_stop(service, server, grace_s, destroy=settings.on_stop == "destroy"))
    _log.info("server_stopped")
    return 0


def _freeze_loaded_objects() -> None:
    """Keeps the garbage collector from visiting what was loaded so far: it stays until the end."""
    gc.collect()
    gc.freeze()


async def _stop(service: "Service | CoordinatorService", server: Any, grace_s: float, *, destroy: bool) -> None:
    """Ends the work first, so that its responses still leave, then the connections, then the rest."""
    service.tenancy.feed.close()
    await service.sessions.drain(grace_s)
    await server.stop(service.response_grace_s)
    await service.stop(0.0, destroy=destroy)


class _Signals:
    """The first signal stops the process in order, the second at once."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._catch)

    def _catch(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def run_unless_stopped(self, work: Any) -> bool:
        """Runs `work`; the first signal cancels it. Returns whether it was done."""
        task = await _wait_for_either(work, self.first)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            return False
        task.result()
        return True

    async def run_until_second(self, work: Any) -> None:
        """Runs `work`; the second signal cancels it."""
        task = await _wait_for_either(work, self.second)
        if task.done():
            task.result()
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _wait_for_either(work: Any, event: asyncio.Event) -> "asyncio.Future[Any]":
    task: asyncio.Future[Any] = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task


async def ensure_first_key(settings: Settings, keys: "Keys", urls: Sequence[str]) -> str:
    """Makes a key if the server has none, and leaves it where clients of the same user find it.

    If these have the first key of another server for the same address already, this server takes that one too, so that
    both can be used. Any other key of theirs stays where it is. Returns the key if clients will not find it, else an
    empty text.
    """
    from warren.cli.left_keys import leave_key
    from warren.model.access import ALL_SCOPES
    from warren.model.session import DEFAULT_TENANT
    from warren.sdk.discovery import credentials_path, read_key

    if not settings.auth or settings.api_key or settings.jwt_jwks:
        return ""
    path = credentials_path()
    known = {url: read_key(path, url) if path else "" for url in urls}
    created = await keys.create_first("first", DEFAULT_TENANT, ALL_SCOPES, next(filter(None, known.values()), ""))
    if created is None:
        return ""
    text = created[1]
    try:
        await asyncio.to_thread(leave_key, settings.state_dir, path, known, text)
    except OSError as exc:
        click.echo(f"Made a key, which is shown this once: {text}\n  It could not be left for your clients: {exc}")
        return text
    # stdout is a log unless it is a terminal, and keys must not be in a log.
    shown = f", which is shown this once: {text}" if sys.stdout.isatty() else "."
    click.echo(f"Made a key{shown}\n  Your own clients find it in {path}.")
    return ""


def server_url(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"
