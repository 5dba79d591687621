"""`warren-attack`: attacks a sandbox through any command that runs a shell in it, and prints the verdicts."""

import argparse
import asyncio
import json
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from warren_attack.command_sandbox import CommandSandbox, Unreachable
from warren_attack.elsewhere import needs_warren, why_not_here
from warren_attack.probe import Finding, Inside, Probe, ProbeVerdict, Target, not_applicable
from warren_attack.probes import NOT_AS_ROOT, PROBES
from warren_attack.report import describe, last_line, summarize, verdict_cell
from warren_attack.runner import Progress, UnknownProbe, chosen, groups_of, run_probes

_SAID_BY_NAME = 12
_COLOUR = re.compile(r"\033\[\d*m")
_EPILOG = """\
The command is given one more argument: a line for the shell. Its verdicts:
  contained       it was tried, and refused
  GOT THROUGH     it worked, or got as far as the kernel
  UNDECIDED       it could not be tried, or decided nothing; this counts as a failure
  not applicable  it does not apply to this sandbox, or takes an installation of Warren

Exit code: 0 if all that applies is contained, 1 if something is not or nothing applies, 2 if nothing was tried.
It attacks in earnest: aim it at a sandbox that you can throw away, on a machine that you may lose.

  warren-attack --exec 'docker exec -i NAME sh -c'
  warren-attack --exec 'kubectl exec POD -- sh -c' --only escape --only kernel --json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    elsewhere = needs_warren()
    everything: list[Probe[Any]] = [*PROBES, *elsewhere]
    try:
        wanted = {probe.id for probe in chosen(everything, given.only)}
    except UnknownProbe as exc:
        parser.error(f"{exc}; groups are: {', '.join(groups_of(everything))}")
    here = [probe for probe in PROBES if probe.id in wanted]
    there = [probe for probe in elsewhere if probe.id in wanted]
    if given.list:
        _list(here, there)
        return 0
    prefix = shlex.split(given.exec or "")
    if not prefix:
        parser.error("--exec COMMAND says how to run a shell in the sandbox; --list says what is tried")
    try:
        return asyncio.run(_attack(CommandSandbox(prefix), here, there, given.json))
    except Unreachable as exc:
        parser.error(str(exc))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "warren-attack",
        description="Attack a sandbox from inside and print what held.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--exec", metavar="COMMAND", help="runs a shell in the sandbox: 'docker exec -i NAME sh -c'")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this probe, or this group")
    parser.add_argument("--list", action="store_true", help="print the probes, and try none")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


async def _attack(
    sandbox: CommandSandbox, here: Sequence[Probe[Inside]], there: Sequence[Probe[Target]], as_json: bool
) -> int:
    started = time.monotonic()
    progress: Progress = (lambda finding: None) if as_json else (lambda finding: _print(describe(finding)))
    await sandbox.open()
    if not as_json:
        _print(f"as uid {sandbox.uid}, " + (f"with python3 {sandbox.python}" if sandbox.python else "without python3"))
    roots = [probe for probe in here if sandbox.uid == 0 and probe.id in NOT_AS_ROOT]
    try:
        findings = await run_probes([probe for probe in here if probe not in roots], sandbox, progress)
    finally:
        await sandbox.close()
    for probe in roots:
        findings.append(Finding(probe, not_applicable("root may do it in its own sandbox"), 0.0))
        progress(findings[-1])
    findings += [Finding(probe, await probe.attack(sandbox), 0.0) for probe in there]
    report = summarize(findings, time.monotonic() - started)
    if as_json:
        _print(json.dumps(report, indent=2))
    else:
        _print("\n".join([*_lines_of_elsewhere(there), "", last_line(report)]))
    applied = [finding for finding in findings if finding.outcome.verdict is not ProbeVerdict.NOT_APPLICABLE]
    return 0 if applied and not any(finding.failed for finding in applied) else 1


def _lines_of_elsewhere(probes: Iterable[Probe[Target]]) -> list[str]:
    """Returns two lines for each group: those of it that need Warren, and why."""
    lines = []
    for group, members in groupby(probes, lambda probe: probe.group):
        ids = [probe.id for probe in members]
        what = ", ".join(ids) if len(ids) <= _SAID_BY_NAME else f"{len(ids)} probes, see --list"
        lines.append(f"{verdict_cell(ProbeVerdict.NOT_APPLICABLE)} {group:<15} {what}")
        lines.append(f"{'':14} {'':<15} → {why_not_here(group)}")
    return lines


def _list(here: Sequence[Probe[Inside]], there: Sequence[Probe[Target]]) -> None:
    lines = [f"{probe.group:<17} {probe.id:<28} {probe.tries}" for probe in here]
    lines += [f"{probe.group:<17} {probe.id:<28} {probe.tries} (needs Warren)" for probe in there]
    _print("\n".join(lines))


def _print(text: str) -> None:
    sys.stdout.write((text if sys.stdout.isatty() else _COLOUR.sub("", text)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
