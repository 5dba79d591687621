"""Histograms for what happens with every request: an observation adds to two numbers.

prometheus_client's own look at every bucket and take a lock, which costs several times as much. Only the event loop
may observe; the page may be written in another thread, and then be one observation behind in one of its numbers.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily


class Series:
    """What was observed with one set of labels."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last for what is beyond all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Histogram:
    def __init__(
        self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._about, self._bounds, self._labels = name, about, bounds, labels
        self._bound_names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._series: dict[tuple[str, ...], Series] = {}
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Series:
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}")
            series = self._series[values] = Series(self._bounds)
        return series

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        for values, series in [*self._series.items()]:
            below, buckets = 0, []
            for name, count in zip(self._bound_names, [*series.counts], strict=True):
                below += count
                buckets.append((name, float(below)))
            family.add_metric(values, buckets, series.sum)
        yield family
