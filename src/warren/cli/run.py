"""`warren run` and `warren shell`: a command or a terminal in a sandbox that is gone afterwards in every case.

Without a server, in this process. With SESSION or --thread, `warren shell` opens its terminal in a session of a
server instead.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import click

from warren.cli.console import (
    Sink,
    attach_terminal,
    check_terminal,
    exit_code_of,
    read_stream,
    show_command,
    terminal_size,
    until_signal,
)
from warren.cli.main import report
from warren.cli.options import (
    EGRESS_NETWORKS,
    SizeType,
    command_options,
    drop_empty,
    environment_option,
    json_option,
    network_options,
    network_values,
    parse_pairs,
    replace_lost_option,
    variables_option,
)
from warren.cli.output import printable
from warren.config.settings import Settings, read_settings
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import ImageNotFound, InvalidRequest, WarrenError
from warren.model.gpus import parse_gpus
from warren.model.image_reference import is_image_reference
from warren.model.network import NetworkRules
from warren.model.operations import Command
from warren.model.session import DEFAULT_TENANT
from warren.model.snapshot import Snapshot
from warren.model.spec import Layer, SandboxSpec
from warren.model.tenant_images import reference_in

_MEMORY_HINT: Final = "give it more: --memory MB"
_REFUSALS: Final = 5
_SHELL: Final = "command -v bash >/dev/null && exec bash; exec sh"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that describe a sandbox."""

    environment: str
    image: str
    provider: str
    memory: int | None = None
    cpus: float | None = None
    disk: int | None = None
    require: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    internet: bool = False
    no_network: bool = False
    gpus: str = ""
    snapshot: str = ""


_OPTIONS = (
    environment_option("Environment of the registry.  [base]", "base"),
    click.option("--image", default="", metavar="I", help="Image to use instead of the environment's."),
    click.option("--provider", default="", metavar="P", help="oci or docker.  [oci]"),
    click.option("-m", "--memory", type=SizeType(), metavar="MB", help="Memory limit, in MiB or as 512m or 1g."),
    click.option("--cpus", type=float, metavar="N", help="CPU limit."),
    click.option("--disk", type=SizeType(), metavar="MB", help="Disk limit, in MiB or as 512m or 1g."),
    click.option("--require", multiple=True, metavar="LAYER", help="Start nothing without this layer of isolation."),
    click.option("--gpus", default="", metavar="N", help="Graphics processors for it alone: a number, or id:0,1."),
    click.option("--snapshot", default="", metavar="S", help="Start with the files of this snapshot of the machine."),
)


def _complete_session(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from warren.cli.remote import complete_session  # here, so that `warren run` does not wait for the import

    return complete_session(ctx, parameter, incomplete)


def _sandbox_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = network_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@_sandbox_options
@click.option("--timeout", type=float, metavar="S", help="End the command, with all its processes, after S seconds.")
@command_options("/workspace")
@variables_option
@click.option("-i", "--interactive", is_flag=True, help="Pass stdin on, also if it is a terminal.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Give it a terminal.")
@click.option("--rm", is_flag=True, hidden=True, expose_value=False)
@json_option
@click.argument("command", nargs=-1, required=True)
def run(
    command: tuple[str, ...],
    timeout: float | None,
    user: str,
    cwd: str,
    variables: tuple[str, ...],
    interactive: bool,
    terminal: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a command in a fresh sandbox.

    stdin (unless it is a terminal), output and exit code are passed on; with --json the output is in the document.

    Example: warren run -- python3 -c 'print(6 * 7)'
    """
    settings, env = read_settings(), parse_pairs("-e", variables)
    order = Command(argv=command, env=env, user=user, cwd=cwd, timeout_s=timeout)
    if terminal:
        if as_json:
            raise click.UsageError("-t and --json do not go together")
        check_terminal("warren run -t", "warren run")
        order = replace(order, env={"TERM": settings.terminal, **env}, terminal=terminal_size())

    async def work(sandbox: Sandbox) -> int:
        if terminal:
            return await _run_in_terminal(sandbox, order, timeout)
        run_to_end = partial(_run_to_end, sandbox, order, interactive)
        return await show_command(run_to_end, timeout, as_json, _MEMORY_HINT)

    return _run_in_fresh_sandbox(settings, RunOptions(**options), work)


async def _run_in_terminal(sandbox: Sandbox, command: Command, timeout_s: float | None) -> int:
    process = await sandbox.start(command, follow=True)
    return exit_code_of(await attach_terminal(process), timeout_s, _MEMORY_HINT)


async def _run_to_end(sandbox: Sandbox, command: Command, interactive: bool, sink: Sink) -> dict[str, Any]:
    process = await sandbox.start(command, follow=True)
    sending = asyncio.create_task(_send_input(process, interactive))
    try:
        async for chunk in process.output():
            await sink(chunk.stream, chunk.data)
        result = await process.wait()
        texts = {"stdout": result.stdout, "stderr": result.stderr, "output": result.output}
        rest = {each.name: getattr(result, each.name) for each in fields(result) if each.name != "written"}
        return {"exit_code": result.exit_code, **texts, **rest}
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


async def _send_input(process: Process, interactive: bool) -> None:
    """Passes stdin on, but that of a terminal only if asked to: `warren shell` and -t are for terminals."""
    if sys.stdin is not None and (interactive or not os.isatty(0)):
        async for data in read_stream(0):
            await process.write(data)
    await process.close_stdin()


@click.command()
@click.argument("session", default="", shell_complete=_complete_session)
@_sandbox_options
@command_options("/workspace")
@variables_option
@click.option("--session", "session_option", default="", metavar="S", help="The same as SESSION.")
@click.option("--thread", default="", metavar="T", help="Open it in this thread's session of a server.")
@replace_lost_option
@click.option("--url", default="", metavar="URL", help="With SESSION or --thread: the server.  [WARREN_URL]")
@click.option("--json", "as_json", is_flag=True, hidden=True)
def shell(
    user: str,
    cwd: str,
    variables: tuple[str, ...],
    session: str,
    session_option: str,
    thread: str,
    replace_lost: bool,
    url: str,
    as_json: bool,
    **options: Any,
) -> int:
    """Open an interactive terminal in a sandbox.

    In a fresh one of this machine; with SESSION or --thread, in a session of a server.

    Example: warren shell --thread conv-42
    """
    if session and session_option:
        raise click.UsageError("give SESSION or --session, not both")
    session = session or session_option
    instead = "warren exec" if session or thread else "warren run"
    if as_json:
        raise click.UsageError(f"a terminal is for a person, not for a program: use `{instead} --json`")
    check_terminal("warren shell", instead)
    settings = read_settings()
    env = {"TERM": settings.terminal, **parse_pairs("-e", variables)}
    if session or thread:
        _check_session_options(session, thread, options)
        return _open_on_server(url, session, thread, replace_lost, {"env": env, "user": user, "cwd": cwd})
    if url or replace_lost:
        raise click.UsageError(f"{'--url' if url else '--replace-lost'} needs SESSION or --thread")
    command = Command(argv=("/bin/sh", "-c", _SHELL), env=env, user=user, cwd=cwd, terminal=terminal_size())

    async def work(sandbox: Sandbox) -> int:
        return await _run_in_terminal(sandbox, command, None)

    return _run_in_fresh_sandbox(settings, RunOptions(**options), work)


def _check_session_options(session: str, thread: str, options: dict[str, object]) -> None:
    """Refuses options that describe a sandbox: that of a session exists already."""
    if session and thread:
        raise click.UsageError("give SESSION or --thread, not both")
    context = click.get_current_context()
    for name in options:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} is for a fresh sandbox; `warren create` makes a session with it")


def _open_on_server(url: str, session: str, thread: str, replace_lost: bool, options: dict[str, object]) -> int:
    from warren.cli.exec import run_in_terminal
    from warren.cli.remote import RemoteServer

    with RemoteServer(url) as server:
        session_id = server.find_or_create(session, thread, replace_lost)
        command = {"command": ["/bin/sh", "-c", _SHELL], **options}
        return asyncio.run(until_signal(run_in_terminal(server, session_id, command, None)))


def _run_in_fresh_sandbox(settings: Settings, options: RunOptions, work: Callable[[Sandbox], Awaitable[int]]) -> int:
    """Runs `work` with a sandbox of its own; returns its exit code, or 128 + N when the signal N ended it."""
    from warren.app.wiring import read_environment

    snapshot = asyncio.run(_find_snapshot(settings, options.snapshot)) if options.snapshot else None
    if snapshot is not None:
        options = _with_snapshot(options, snapshot)
    if is_image_reference(options.environment):
        options = replace(options, environment="base", image=options.image or options.environment)
    spec = build_spec(settings, options)
    environment = read_environment(settings, options.environment)
    provider = options.provider or environment.provider or settings.providers[0]
    if snapshot is not None:
        from warren.sessions.snapshots.beginnings import check_beginning, with_room

        check_beginning(snapshot, environment, options.image, provider)
        asked = () if options.disk is None else ("disk_mb",)
        spec = replace(spec, limits=with_room(spec.limits, snapshot, asked))
    if provider == "oci" or (provider == "docker" and spec.image == "base"):
        _ensure_image(settings, spec.image)
    given = network_values(options.allow, options.deny, options.internet, options.no_network)
    rules = environment.network if given is None else NetworkRules.from_mapping(given)
    if rules.is_open and Layer.NO_NETWORK in spec.require:
        raise InvalidRequest(f"no_network is required, and the rules open: {rules}", remedy="give --no-network")
    return asyncio.run(until_signal(_with_sandbox(settings, provider, spec, rules, work, snapshot)))


async def _find_snapshot(settings: Settings, which: str) -> Snapshot:
    from warren.app.snapshot_access import open_snapshots

    async with open_snapshots(settings, None) as snapshots:
        return await snapshots.records.get(DEFAULT_TENANT, which)


def _with_snapshot(options: RunOptions, snapshot: Snapshot) -> RunOptions:
    """Returns the options with the environment, image and provider of the snapshot, where none were given."""
    is_default = click.get_current_context().get_parameter_source("environment") is click.core.ParameterSource.DEFAULT
    environment = snapshot.environment if is_default else options.environment
    image = options.image or (reference_in(snapshot.image) or snapshot.image if is_default else "")
    return replace(options, environment=environment, image=image, provider=options.provider or snapshot.provider)


def _ensure_image(settings: Settings, image: str) -> None:
    """Builds or pulls an image that is missing, and builds one that is outdated; one that is there costs no more than a
    look at it and at its recipe."""
    from warren.app.wiring import build_images, build_recipes

    if build_recipes(settings)(image) is None:
        if os.geteuid() != 0:
            return  # the provider says what it needs root for
        with contextlib.suppress(ImageNotFound):
            build_images(settings).version(image)
            return
    from warren.cli.image_build import ensure_image

    ensure_image(settings, image)


def build_spec(settings: Settings, options: RunOptions) -> SandboxSpec:
    """Describes the sandbox: what an option leaves out is what a server with these settings would take."""
    from warren.app.wiring import adapt_environment, read_environment

    environment = adapt_environment(settings, read_environment(settings, options.environment))
    limits = {"memory_mb": options.memory, "cpus": options.cpus, "disk_mb": options.disk}
    return SandboxSpec(
        image=options.image or environment.image,
        limits=replace(environment.limits, **drop_empty(limits)),
        env=environment.env,
        require=frozenset(_parse_layer(name) for name in options.require),
        ephemeral=True,
        writable_root=environment.writable_root,
        sudo=environment.sudo,
        gpus=parse_gpus(options.gpus) if options.gpus else environment.gpus,
    )


def _parse_layer(name: str) -> Layer:
    try:
        return Layer(name)
    except ValueError as exc:
        raise InvalidRequest(f"there is no layer {name!r}", remedy=f"there are: {', '.join(Layer)}") from exc


async def _with_sandbox(
    settings: Settings,
    provider_name: str,
    spec: SandboxSpec,
    rules: NetworkRules,
    work: Callable[[Sandbox], Awaitable[int]],
    snapshot: Snapshot | None,
) -> int:
    from warren.app.wiring import build_provider

    if rules.is_open:
        rules, env = await _check_network(settings, rules)
        spec = replace(spec, env={**env, **spec.env})
    provider = build_provider(settings, provider_name)
    try:
        sandbox = await _create(settings, provider, spec, snapshot)
        try:
            await provider.sweep()
            if not rules.is_open:
                return await work(sandbox)
            await sandbox.set_network(rules)
            code = await work(sandbox)
            if code:
                await _report_refusals(sandbox)
            return code
        finally:
            await provider.destroy(sandbox.id)
    finally:
        await provider.close()


async def _create(settings: Settings, provider: Provider, spec: SandboxSpec, snapshot: Snapshot | None) -> Sandbox:
    if snapshot is None:
        return await provider.create(spec)
    from warren.app.snapshot_access import open_snapshots

    async with open_snapshots(settings, provider) as snapshots, snapshots.present(snapshot) as disk:
        return await provider.create(replace(spec, disk=disk))


async def _check_network(settings: Settings, rules: NetworkRules) -> tuple[NetworkRules, dict[str, str]]:
    """Checks the rules. Returns them without presets, and the variables that the presets set."""
    from warren.app.wiring import build_egress
    from warren.model.access import Caller

    egress = build_egress(settings)
    presets = await egress.check(rules, Caller(), rules)
    return await egress.in_force(rules), presets.env(rules.allow)


async def _report_refusals(sandbox: Sandbox) -> None:
    """Says what the network has refused to a command that failed, and how to allow it."""
    with contextlib.suppress(WarrenError):
        refusals = (await sandbox.network_use()).refusals
        for refusal in list({(each.name, each.address, each.port): each for each in refusals}.values())[-_REFUSALS:]:
            where = printable(refusal.name or refusal.address)
            hint = f"--allow {refusal.rule}" if refusal.rule else EGRESS_NETWORKS if refusal.is_special else ""
            report(f"the network refused {where}{f':{refusal.port}' if refusal.port else ''}: {refusal.reason}", hint)
