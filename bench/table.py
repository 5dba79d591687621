"""The table that benchmarks print: a line for each figure, with its target and whether it was met."""

import math
import statistics


class Table:
    def __init__(self) -> None:
        self.missed = 0

    def add(self, what: str, figure: str, target: str = "", met: bool | None = None) -> None:
        verdict = "" if met is None else "yes" if met else "NO"
        self.missed += verdict == "NO"
        print(f"  {what:<66} {figure:>16}  {target:<14} {verdict}", flush=True)


def percentile(values: list[float], percent: float) -> float:
    """Returns the percentile by nearest rank; NaN for no values."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] if ranked else math.nan


def mean(values: list[float]) -> float:
    return statistics.mean(values) if values else math.nan
