"""What `run` and `shell` share: their options, and a fresh sandbox that is gone afterwards in every case."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from warren.config.settings import Settings
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import InvalidRequest
from warren.model.spec import Layer, SandboxSpec

Use = Callable[[Sandbox], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options that say what kind of sandbox is wanted."""

    environment: str
    image: str
    provider: str
    memory: int | None
    cpus: float | None
    disk: int | None
    require: tuple[str, ...]


_OPTIONS = (
    click.option("--env", "environment", default="base", metavar="E", help="Environment of the registry.  [base]"),
    click.option("--image", default="", metavar="I", help="Image to use instead of the environment's."),
    click.option("--provider", default="", metavar="P", help="oci or docker.  [oci]"),
    click.option("--memory", type=int, metavar="MB", help="Memory limit."),
    click.option("--cpus", type=float, metavar="N", help="CPU limit."),
    click.option("--disk", type=int, metavar="MB", help="Disk limit."),
    click.option("--require", multiple=True, metavar="LAYER", help="Start nothing without this layer of isolation."),
)


def sandbox_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def wanted_spec(settings: Settings, wanted: Wanted) -> SandboxSpec:
    from warren.app.wiring import build_registry

    environment = build_registry(settings).environment(wanted.environment)
    given = {"memory_mb": wanted.memory, "cpus": wanted.cpus, "disk_mb": wanted.disk}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return SandboxSpec(
        image=wanted.image or environment.image,
        limits=replace(environment.limits, **changes),
        env=environment.env,
        require=frozenset(_layer(name) for name in wanted.require),
        ephemeral=True,
    )


def _layer(name: str) -> Layer:
    try:
        return Layer(name)
    except ValueError as exc:
        raise InvalidRequest(f"there is no layer {name!r}", remedy=f"there are: {', '.join(Layer)}") from exc


def use_fresh_sandbox(settings: Settings, wanted: Wanted, use: Use) -> int:
    """Runs `use` with a sandbox of its own; gives its exit code, or 128 + N when the signal N ended it."""
    from warren.app.wiring import build_registry

    spec = wanted_spec(settings, wanted)
    provider = wanted.provider or build_registry(settings).environment(wanted.environment).provider
    return asyncio.run(until_signal(_with_sandbox(settings, provider, spec, use)))


async def _with_sandbox(settings: Settings, provider_name: str, spec: SandboxSpec, use: Use) -> int:
    from warren.app.wiring import build_provider

    provider = build_provider(settings, provider_name)
    try:
        sandbox = await provider.create(spec)
        try:
            await provider.sweep()
            return await use(sandbox)
        finally:
            await provider.destroy(sandbox.id)
    finally:
        await provider.close()


async def until_signal(work: Any) -> int:
    """The first signal cancels the work; those after it wait until everything is cleaned up."""
    task = asyncio.ensure_future(work)
    caught: list[int] = []

    def end(number: int) -> None:
        if not caught:
            caught.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return int(await task)
    except asyncio.CancelledError:
        if not caught:
            raise
        return 128 + caught[0]
