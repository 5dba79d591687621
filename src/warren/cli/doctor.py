"""`warren doctor`: can this machine run sandboxes, and does their isolation hold?"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from warren.cli.console import until_signal
from warren.cli.options import environment_option, json_option
from warren.cli.output import print_json
from warren.cli.run import RunOptions, build_spec
from warren.config.settings import Settings, read_settings
from warren.model.errors import InvalidRequest
from warren.model.version import __version__

if TYPE_CHECKING:
    from warren.doctor.check import Check
    from warren_attack.probe import Finding

_COLOURS = {
    "ok": "green",
    "warn": "yellow",
    "FAIL": "red",
}


@click.command()
@click.option("--attack", is_flag=True, help="Start a sandbox and attack it from inside.")
@environment_option("Environment to attack.  [base]", "base")
@click.option("--image", default="", metavar="I", help="Image to attack instead of the environment's.")
@click.option("--provider", default="", metavar="P", help="oci or docker.  [oci]")
@click.option("--url", default="", metavar="URL", help="With --attack: attack this server by its API instead.")
@click.option("--only", multiple=True, metavar="ID", help="With --attack: only this probe, or this group of them.")
@json_option
def doctor(
    attack: bool, environment: str, image: str, provider: str, url: str, only: tuple[str, ...], as_json: bool
) -> int:
    """Check what this machine can do.

    Checks every prerequisite and every layer of isolation; with --attack, attacks a sandbox from inside. With --attack
    --url, attacks a server by its API, as the tenant of WARREN_API_KEY, and the tenant of WARREN_OTHER_API_KEY if set.

    Example: warren doctor --attack
    """
    if url:
        if not attack:
            raise click.UsageError("--url names a server to attack: give --attack too")
        _require_attacks()
        return asyncio.run(until_signal(_attack_server(url, only, as_json)))
    settings = read_settings()
    if not attack:
        return asyncio.run(until_signal(_check(settings, provider, as_json)))
    _require_attacks()
    options = RunOptions(environment, image, provider)
    return asyncio.run(until_signal(_attack(settings, options, only, as_json)))


async def _check(settings: Settings, provider_name: str, as_json: bool) -> int:
    from warren.app.wiring import build_images, build_provider, build_registry
    from warren.doctor.check import Level
    from warren.doctor.checkup import checkup

    checks: list[Check] = []
    provider, images = build_provider(settings, provider_name), build_images(settings)
    directories = {"state_dir": settings.state_dir, "bin_dir": settings.bin_dir}
    try:
        async for check in checkup(
            provider, images, build_registry(settings).all_problems(), docker_url=settings.docker_url, **directories
        ):
            checks.append(check)
            if not as_json:
                _print_check(check)
    finally:
        await provider.close()
    counts = Counter(str(check.level) for check in checks)
    if as_json:
        print_json({"checks": [asdict(check) for check in checks], "counts": counts})
    else:
        click.echo(f"\n{counts['ok']} ok, {counts['warn']} to look at, {counts['FAIL']} failed")
    return 1 if counts[Level.FAIL] else 0


def _print_check(check: "Check") -> None:
    click.echo(f"{_coloured(check.level, 5)} {check.name:<24} {check.found}")
    if check.remedy:
        click.echo(f"{'':5} {'':<24} → {check.remedy}")


async def _attack(settings: Settings, options: RunOptions, only: tuple[str, ...], as_json: bool) -> int:
    from warren.app.wiring import build_provider
    from warren.doctor.reports import save_attack_report
    from warren_attack.report import summarize
    from warren_attack.warren.suite import attack, choose

    spec, started = build_spec(settings, options), time.monotonic()
    probes = choose(only, sudo=spec.sudo)
    provider = build_provider(settings, options.provider)
    secret_paths = (settings.state_dir, settings.bin_dir)
    try:
        findings = await attack(provider, spec, secret_paths=secret_paths, probes=probes, progress=_progress(as_json))
    finally:
        await provider.close()
    seconds = time.monotonic() - started
    if not only:
        about = {"at": time.time(), "version": __version__, "environment": options.environment}
        report = {**about, "provider": provider.name, **summarize(findings, seconds)}
        await asyncio.to_thread(save_attack_report, settings.state_dir, report)
    return _print_report(findings, seconds, as_json)


async def _attack_server(url: str, only: tuple[str, ...], as_json: bool) -> int:
    from warren.sdk.discovery import find_key
    from warren_attack.warren.api.arena import ApiArena, other_key
    from warren_attack.warren.api.suite import PROBES, attack_server
    from warren_attack.warren.suite import choose_from

    started, probes = time.monotonic(), choose_from(PROBES, only)
    arena = ApiArena(url, find_key(url), other_key())
    findings = await attack_server(arena, probes=probes, progress=_progress(as_json))
    return _print_report(findings, time.monotonic() - started, as_json)


def _require_attacks() -> None:
    """Raises InvalidRequest if the distribution that has the attacks is not installed."""
    if find_spec("warren_attack") is None:
        raise InvalidRequest(
            "the attacks are not installed", remedy="install them: pip install 'warren-sandbox[attack]'"
        )


def _progress(as_json: bool) -> "Callable[[Finding], None]":
    from warren_attack.report import describe

    return (lambda finding: None) if as_json else (lambda finding: click.echo(describe(finding)))


def _print_report(findings: "Sequence[Finding]", seconds: float, as_json: bool) -> int:
    """Returns the exit code."""
    from warren_attack.report import last_line, summarize

    report = summarize(findings, seconds)
    if as_json:
        print_json(report)
    else:
        click.echo(f"\n{last_line(report)}")
    return 1 if any(finding.failed for finding in findings) else 0


def _coloured(word: str, width: int) -> str:
    return click.style(f"{word:<{width}}", fg=_COLOURS.get(word))
