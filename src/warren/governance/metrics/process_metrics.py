"""The metrics of one process, as text for Prometheus.

`render` reads the values on the event loop, which costs microseconds, and writes the page in a thread: that takes
milliseconds. One page is written at a time, and it serves all who ask within a second, so nobody can keep the process
busy by asking. `run` measures how late the event loop is.
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


async def _nothing() -> Readings:
    return Readings()


class ProcessMetrics:
    """`role` is server, coordinator or worker. `read` gives the values of the moment; the process sets it."""

    def __init__(self, role: str, version: str, is_environment: Callable[[str], bool]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would make a page a third longer
        registry = CollectorRegistry()
        self.read: Callable[[], Awaitable[Readings]] = _nothing
        self.recorder = PrometheusRecorder(registry, is_environment)
        self._registry = registry
        self._readings = ReadingsCollector()
        registry.register(self._readings)
        ProcessCollector(registry=registry)
        info = Gauge("warren_build_info", "Which Warren this is", ["version", "role", "python"], registry=registry)
        info.labels(version, role, platform.python_version()).set(1)
        lag = Histogram("warren_event_loop_lag_seconds", "How late the event loop was", _LAG_S, (), registry)
        self._lag_s = lag.labels()
        self._pages: dict[bool, tuple[float, Page]] = {}  # by whether it is OpenMetrics: until when it is fresh
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self._lag_s.observe(max(0.0, loop.time() - due))

    async def render(self, accept: str = "") -> Page:
        """The page in the format that an Accept header asks for: OpenMetrics, or the older text format."""
        is_open = "application/openmetrics-text" in accept
        loop = asyncio.get_running_loop()
        async with self._writing:
            fresh_until, page = self._pages.get(is_open, (0.0, (b"", "")))
            if loop.time() < fresh_until:
                return page
            self._readings.readings = await self.read()
            encode, content_type = choose_encoder(_OPEN_METRICS if is_open else "")
            page = await asyncio.to_thread(encode, self._registry), content_type
            self._pages[is_open] = loop.time() + FRESH_S, page
            return page
