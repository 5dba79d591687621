"""What the attacks make of measured figures: tables in, verdicts out."""

import pytest

from warren_attack.probe import ProbeVerdict
from warren_attack.warren.api.probes_load import judge_lag
from warren_attack.warren.fair_share import Phase, Round, judge

CONTAINED, GOT_THROUGH, UNDECIDED = ProbeVerdict.CONTAINED, ProbeVerdict.GOT_THROUGH, ProbeVerdict.UNDECIDED


def measured(before: float, during: float, after: float, *, others: float = 0.0, uncharged_mib: int = 0) -> Round:
    """Milliseconds of one kind of work; another kind takes what it always takes."""
    phases = [Phase({"disk": ms / 1000, "cpu": 0.001}, others) for ms in (before, during, after)]
    return Round(phases[0], phases[1], phases[2], uncharged_mib)


def charged(needs: float, *, attacker: float = 1.0, kernel: float = 0.0) -> Round:
    """A neighbour that waits for other programs too; its work `needs` so many ms of processor time instead of 10."""
    fair = Phase({"disk": 0.010}, 2.0, {"processor time": 0.010}, 1.0, 0.5)
    return Round(fair, Phase({"disk": 0.050}, 2.0, {"processor time": needs / 1000}, attacker, 0.5 + kernel), fair)


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([measured(10, 10, 10)], CONTAINED),
        ([measured(10, 12, 10)], CONTAINED),  # a sixth is lost
        ([measured(10, 13, 10)], GOT_THROUGH),  # more than a fifth
        ([measured(10, 50, 10), measured(10, 50, 10)], GOT_THROUGH),
        ([measured(10, 50, 10), measured(10, 11, 10)], CONTAINED),  # an attack that works, works each time
        ([measured(10, 12, 9)], CONTAINED),  # the worse of the fair figures counts
        ([measured(10, 45, 40)], CONTAINED),
        ([measured(10, 50, 20), measured(10, 50, 10)], UNDECIDED),  # the fair share itself moved
        ([measured(10, 50, 10, others=1.5), measured(10, 50, 10)], UNDECIDED),  # others were at work
        ([charged(11), charged(11)], CONTAINED),  # others again, and processor time tells
        ([charged(20), charged(11)], CONTAINED),
        ([charged(20), charged(20)], GOT_THROUGH),
        ([charged(10, attacker=1.5)] * 2, GOT_THROUGH),  # above its limit of 1
        ([charged(10, kernel=0.9)] * 2, GOT_THROUGH),
        ([charged(10, kernel=0.1)] * 2, CONTAINED),
        ([measured(10, 10, 10, others=1.5)], CONTAINED),
        ([measured(10, 10, 10, uncharged_mib=300), measured(10, 10, 10, uncharged_mib=280)], GOT_THROUGH),
        ([measured(10, 10, 10, uncharged_mib=300), measured(10, 10, 10, uncharged_mib=3)], CONTAINED),
        ([measured(10, 10, 10, uncharged_mib=300, others=1.5)], UNDECIDED),
    ],
)
def test_a_loss_is_a_breach_only_if_nothing_else_explains_it(rounds: list[Round], verdict: ProbeVerdict) -> None:
    outcome = judge(rounds)
    assert outcome.verdict is verdict
    assert "ms" in outcome.evidence


@pytest.mark.parametrize(
    ("quiet", "busy", "others", "verdict"),
    [
        ([0.01], [0.3], 0.0, CONTAINED),
        ([0.01], [0.3], 2.0, CONTAINED),
        ([0.01, 0.01], [0.9, 0.1], 0.0, CONTAINED),
        ([0.01, 0.01], [0.9, 0.8], 0.0, GOT_THROUGH),
        ([0.01, 0.01], [0.9, 0.8], 1.5, UNDECIDED),
        ([0.01, 0.4], [0.9, 0.8], 0.0, UNDECIDED),
        ([0.01, 0.4], [8.0, 9.0], 1.5, GOT_THROUGH),  # no load of others takes that long
    ],
)
def test_a_wait_is_a_breach_only_if_nothing_else_explains_it(
    quiet: list[float], busy: list[float], others: float, verdict: ProbeVerdict
) -> None:
    assert judge_lag(quiet, busy, others).verdict is verdict
