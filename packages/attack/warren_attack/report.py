"""What an attack found, for people and for programs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from warren_attack.probe import Finding, ProbeVerdict

_COLOURS: Final = {
    ProbeVerdict.CONTAINED: 32,  # green
    ProbeVerdict.GOT_THROUGH: 31,  # red
    ProbeVerdict.UNDECIDED: 31,
}


def describe(finding: Finding) -> str:
    """Returns a line of the table, and a second one with the evidence where something is not contained."""
    probe, outcome = finding.probe, finding.outcome
    text = f"{verdict_cell(outcome.verdict)} {probe.group:<15} {probe.id:<20} {probe.tries}"
    if outcome.verdict is not ProbeVerdict.CONTAINED:
        text += f"\n{'':14} {'':<15} {'':<20} → {outcome.evidence}"
    return text


def verdict_cell(verdict: ProbeVerdict) -> str:
    """Returns the first column, with the codes of its colour."""
    cell, colour = f"{verdict:<14}", _COLOURS.get(verdict)
    return f"\033[{colour}m{cell}\033[0m" if colour else cell


def summarize(findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """Returns the whole report as JSON has it."""
    counts = Counter(str(finding.outcome.verdict) for finding in findings)
    applicable = len(findings) - counts[ProbeVerdict.NOT_APPLICABLE]
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
    summary = f"{counts[ProbeVerdict.CONTAINED]} of {applicable} contained"
    return {"summary": summary, "counts": counts, "seconds": seconds, "probes": rows}


def last_line(report: dict[str, Any]) -> str:
    more = [f", {count} {verdict}" for verdict, count in report["counts"].items() if verdict != ProbeVerdict.CONTAINED]
    return f"{report['summary']}{''.join(more)}, in {report['seconds']:.0f} s"
