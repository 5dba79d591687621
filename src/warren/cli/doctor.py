"""`warren doctor`: can this machine run sandboxes, and does their isolation hold?"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from warren.cli.console import until_signal
from warren.cli.options import environment_option, json_option
from warren.cli.output import print_json
from warren.cli.run import SandboxOptions, build_spec
from warren.config.settings import Settings, read_settings
from warren.model.version import __version__

if TYPE_CHECKING:
    from warren.attack.probe import Finding
    from warren.doctor.check import Check

_COLOURS = {
    "ok": "green",
    "warn": "yellow",
    "FAIL": "red",
    "contained": "green",
    "GOT THROUGH": "red",
    "UNDECIDED": "red",
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
        return asyncio.run(until_signal(_attack_server(url, only, as_json)))
    settings = read_settings()
    if not attack:
        return asyncio.run(until_signal(_check(settings, provider, as_json)))
    options = SandboxOptions(environment, image, provider)
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


async def _attack(settings: Settings, options: SandboxOptions, only: tuple[str, ...], as_json: bool) -> int:
    from warren.app.wiring import build_provider
    from warren.attack.suite import attack, choose
    from warren.doctor.reports import save_attack_report

    spec, started = build_spec(settings, options), time.monotonic()
    probes = choose(only, sudo=spec.sudo)
    provider = build_provider(settings, options.provider)
    try:
        findings = await attack(
            provider,
            spec,
            secret_paths=(settings.state_dir, settings.bin_dir),
            probes=probes,
            progress=(lambda finding: None) if as_json else _print_finding,
        )
    finally:
        await provider.close()
    seconds = time.monotonic() - started
    if not only:
        about = {"at": time.time(), "version": __version__, "environment": options.environment}
        report = {**about, "provider": provider.name, **_summarize(findings, seconds)}
        await asyncio.to_thread(save_attack_report, settings.state_dir, report)
    _print_summary(findings, seconds, as_json)
    return 1 if any(finding.failed for finding in findings) else 0


async def _attack_server(url: str, only: tuple[str, ...], as_json: bool) -> int:
    from warren.attack.api_arena import ApiArena, other_key
    from warren.attack.api_suite import PROBES, attack_server
    from warren.attack.suite import chosen
    from warren.sdk.discovery import find_key

    started, probes = time.monotonic(), chosen(PROBES, only)
    arena = ApiArena(url, find_key(url), other_key())
    findings = await attack_server(arena, probes=probes, progress=(lambda finding: None) if as_json else _print_finding)
    _print_summary(findings, time.monotonic() - started, as_json)
    return 1 if any(finding.failed for finding in findings) else 0


def _print_finding(finding: "Finding") -> None:
    probe, outcome = finding.probe, finding.outcome
    click.echo(f"{_coloured(outcome.verdict, 14)} {probe.group:<15} {probe.id:<20} {probe.tries}")
    if finding.failed or outcome.verdict == "not applicable":
        click.echo(f"{'':14} {'':<15} {'':<20} → {outcome.evidence}")


def _summarize(findings: "Sequence[Finding]", seconds: float) -> dict[str, Any]:
    counts = Counter(str(finding.outcome.verdict) for finding in findings)
    applicable = len(findings) - counts["not applicable"]
    rows = [
        {
            "id": finding.probe.id,
            "group": finding.probe.group,
            "tries": finding.probe.tries,
            "verdict": finding.outcome.verdict,
            "evidence": finding.outcome.evidence,
            "seconds": finding.seconds,
        }
        for finding in findings
    ]
    summary = f"{counts['contained']} of {applicable} contained"
    return {"summary": summary, "counts": counts, "seconds": seconds, "probes": rows}


def _print_summary(findings: "Sequence[Finding]", seconds: float, as_json: bool) -> None:
    found = _summarize(findings, seconds)
    if as_json:
        print_json(found)
        return
    counts = found["counts"].items()
    more = "".join(f", {count} {verdict}" for verdict, count in counts if verdict != "contained")
    click.echo(f"\n{found['summary']}{more}, in {seconds:.0f} s")


def _coloured(word: str, width: int) -> str:
    return click.style(f"{word:<{width}}", fg=_COLOURS.get(word))
