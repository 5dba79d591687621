"""The metrics of one process, as text for Prometheus.

`MetricsPage.render` reads the values on the event loop, which costs microseconds, and writes the page in a thread: that
takes milliseconds. One page is written at a time, and it serves all who ask within a second, so nobody can keep the
process busy by asking. `ProcessMetrics.run` measures how late the event loop is.
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from warren.governance.metrics.histograms import Histogram
from warren.governance.metrics.readings import Readings, ReadingsCollector
from warren.governance.metrics.recorder import PrometheusRecorder

FRESH_S: Final = 1.0
LOOK_S: Final = 0.25
_LAG_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"

Page = tuple[bytes, str]
"""The text and its content type."""


class ProcessMetrics:
    """`role` is server, coordinator or worker."""

    def __init__(self, role: str, version: str, is_environment: Callable[[str], bool]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would make a page a third longer
        registry = CollectorRegistry()
        self.recorder = PrometheusRecorder(registry, is_environment)
        self.registry = registry
        self.readings = ReadingsCollector()
        registry.register(self.readings)
        ProcessCollector(registry=registry)
        info = Gauge("warren_build_info", "Which Warren this is", ["version", "role", "python"], registry=registry)
        info.labels(version, role, platform.python_version()).set(1)
        lag = Histogram("warren_event_loop_lag_seconds", "How late the event loop was", _LAG_S, (), registry)
        self._lag_s = lag.labels()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self._lag_s.observe(max(0.0, loop.time() - due))


class MetricsPage:
    """The metrics of a process as text. `read` returns the values of the moment."""

    def __init__(self, metrics: ProcessMetrics, read: Callable[[], Awaitable[Readings]]) -> None:
        self._metrics = metrics
        self._read = read
        self._pages: dict[bool, tuple[float, Page]] = {}  # by whether it is OpenMetrics: until when a page is fresh
        self._writing = asyncio.Lock()

    async def render(self, accept: str = "") -> Page:
        """The page in the format that an Accept header asks for: OpenMetrics, or the older text format."""
        is_open = "application/openmetrics-text" in accept
        loop = asyncio.get_running_loop()
        async with self._writing:
            fresh_until, page = self._pages.get(is_open, (0.0, (b"", "")))
            if loop.time() < fresh_until:
                return page
            self._metrics.readings.readings = await self._read()
            encode, content_type = choose_encoder(_OPEN_METRICS if is_open else "")
            page = await asyncio.to_thread(encode, self._metrics.registry), content_type
            self._pages[is_open] = loop.time() + FRESH_S, page
            return page
