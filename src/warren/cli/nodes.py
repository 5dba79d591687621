"""`warren coordinator` and `warren worker`: the processes of a cluster."""

from typing import TYPE_CHECKING, Any

import click

from warren.cli.serve import check_open_to, first_key, run_process, serve_until_told, url_of
from warren.config.options import serve_options
from warren.config.settings import Settings, read_settings

if TYPE_CHECKING:
    import ssl


@click.command()
@serve_options
def coordinator(flags: dict[str, Any]) -> int:
    """Serve the HTTP API of a cluster until it is told to stop.

    The sandboxes are on its workers: what is about a session is passed on to the worker that has it. Any number of
    coordinators may run, on any machines: each answers every request. They and the workers meet in Redis
    (WARREN_REDIS_URL, or REDIS_HOST and REDIS_PORT) and know each other by WARREN_CLUSTER_SECRET.

    Example: REDIS_HOST=10.0.0.2 WARREN_CLUSTER_SECRET=... warren coordinator --host 0.0.0.0
    """
    from warren.app.cluster_wiring import of_coordinator
    from warren.app.wiring import build_tls

    settings = of_coordinator(read_settings(flags=flags))
    check_open_to(settings)
    return run_process(settings, build_tls(settings), lambda tls: _coordinate(settings, tls))


@click.command()
@serve_options
def worker(flags: dict[str, Any]) -> int:
    """Make the sandboxes of this machine for a cluster until it is told to stop.

    It listens on port 5000 and serves coordinators only. When it is stopped, its sandboxes go on for the next start,
    which must come within a minute: else its sessions are reported lost. A worker that should go for good is drained
    first: `warren cluster drain`.

    Example: REDIS_HOST=10.0.0.2 WARREN_CLUSTER_SECRET=... warren worker --host 0.0.0.0 --labels gpu=1
    """
    from warren.app.cluster_wiring import build_worker_tls, of_worker

    settings = of_worker(read_settings(flags=flags))
    return run_process(settings, build_worker_tls(settings), lambda tls: _work(settings, tls))


async def _coordinate(settings: Settings, tls: "ssl.SSLContext | None") -> int:
    from warren.app.coordinator_process import CoordinatorService
    from warren.app.wiring import build_identity, build_tokens

    tokens = await build_tokens(settings)
    service = CoordinatorService(settings)

    async def greet(port: int) -> None:
        await first_key(settings, service.tenancy.keys, [url_of(settings, port)])
        click.echo(f"Warren coordinates on {settings.host}:{port}; workers: {len(service.control.status().workers)}")

    return await serve_until_told(
        settings, service, tls, lambda: service.app(build_identity(settings, service.tenancy, tokens)), greet
    )


async def _work(settings: Settings, tls: "ssl.SSLContext | None") -> int:
    from warren.app.worker_process import WorkerService

    service = WorkerService(settings)

    async def greet(port: int) -> None:
        words = f"provider {', '.join(settings.providers)}, state in {settings.state_dir}"
        click.echo(f"Worker {settings.worker_id} of Warren works on {settings.host}:{port} ({words})")

    return await serve_until_told(settings, service, tls, service.app, greet)
