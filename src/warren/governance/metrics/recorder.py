"""Counters and histograms of what happens in a process. Other parts know it as `interfaces.recorder.Recorder`."""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from warren.governance.metrics.histograms import Histogram, Series
from warren.model.network import NetworkUse

OTHER: Final = "other"
MAX_ENVIRONMENTS: Final = 200
MAX_ROUTES: Final = 1000  # label sets of requests; there are some 150 routes
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
_LIMITED: Final = 429
_LOSSES: Final = (  # what the reason of a loss says, and its label
    ("machine was restarted", "reboot"),
    ("its worker", "worker"),
    ("far side", "far_side"),
    ("disk", "disk"),
    ("agent", "agent"),
    ("was destroyed", "destroyed"),
    ("directory is gone", "destroyed"),
    ("has ended", "ended"),
)
_CLAIM_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_MAKE_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_EXEC_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600)
_OVERHEAD_S: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1)
_REQUEST_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class PrometheusRecorder:
    """`is_environment` tells whether the registry has an environment of that name."""

    def __init__(self, registry: CollectorRegistry, is_environment: Callable[[str], bool]) -> None:
        self._is_environment = is_environment
        self._environments: dict[str, str] = {}
        self._requests: dict[tuple[str, str, int], Series] = {}
        self._commands: dict[tuple[str, str], Counter] = {}

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, about, buckets, labels, registry)

        self._creates = counter(
            "warren_session_creates_total",
            "Attempts to give a new session its sandbox",
            *("environment", "source", "outcome"),
        )
        self._claim_s = histogram(
            "warren_claim_seconds", "How long new sessions waited for their sandbox", _CLAIM_S
        ).labels()
        self._create_s = histogram("warren_create_seconds", "How long making a sandbox took", _MAKE_S, "provider")
        self._destroy_s = histogram("warren_destroy_seconds", "How long destroying a sandbox took", _MAKE_S).labels()
        self._lost = counter("warren_sandbox_lost_total", "Sandboxes that sessions have lost", "why")
        self._refusals = counter(
            "warren_guard_refusals_total", "Sandboxes that were not made because the machine is full", "what"
        )
        self._hits = counter("warren_pool_hits_total", "Claims that got a sandbox made ahead", "environment")
        self._misses = counter("warren_pool_misses_total", "Claims that found none ready and queued", "environment")
        self._queue_s = histogram(
            "warren_queue_wait_seconds", "How long claims queued for a sandbox", _CLAIM_S
        ).labels()
        self._execs = counter("warren_execs_total", "Commands by how they ended", "environment", "reason")
        self._exec_s = histogram("warren_exec_seconds", "How long commands took", _EXEC_S).labels()
        self._overhead_s = histogram(
            "warren_exec_overhead_seconds", "What Warren added to the commands that callers waited for", _OVERHEAD_S
        ).labels()
        self._request_s = histogram(
            "warren_http_request_seconds", "How long requests took", _REQUEST_S, "route", "method", "status"
        )
        self._limited = counter("warren_rate_limited_total", "Requests that were answered with 429")
        self._connections = counter(
            "warren_egress_connections_total", "Connections that sandboxes wanted to make", "verdict"
        )
        self._bytes = counter("warren_egress_bytes_total", "Bytes between sandboxes and the network", "direction")
        # These exist with the value 0 from the start, so that a rate can be told from the first event on.
        self._allowed, self._refused = (self._connections.labels(verdict) for verdict in ("allowed", "refused"))
        self._sent, self._received = (self._bytes.labels(direction) for direction in ("sent", "received"))
        for _, why in _LOSSES:
            self._lost.labels(why)
        for what in ("sandboxes", "memory", "files", "disk", "provider"):
            self._refusals.labels(what)

    def creation_ended(self, environment: str, source: str, outcome: str) -> None:
        self._creates.labels(self._environment(environment), source, outcome).inc()

    def sandbox_claimed(self, seconds: float) -> None:
        self._claim_s.observe(seconds)

    def sandbox_made(self, provider: str, seconds: float) -> None:
        self._create_s.labels(provider).observe(seconds)

    def sandbox_destroyed(self, seconds: float) -> None:
        self._destroy_s.observe(seconds)

    def sandbox_lost(self, why: str) -> None:
        self._lost.labels(kind_of_loss(why)).inc()

    def machine_full(self, what: str) -> None:
        self._refusals.labels(what).inc()

    def pool_hit(self, environment: str) -> None:
        self._hits.labels(self._environment(environment)).inc()

    def pool_missed(self, environment: str) -> None:
        self._misses.labels(self._environment(environment)).inc()

    def queue_left(self, waited_s: float) -> None:
        self._queue_s.observe(waited_s)

    def command_ended(self, environment: str, reason: str, seconds: float, overhead_s: float | None) -> None:
        known = self._commands.get((environment, reason))
        if known is None:
            label = self._environment(environment)
            known = self._execs.labels(label, reason)
            if label == environment:
                self._commands[environment, reason] = known
        known.inc()
        self._exec_s.observe(seconds)
        if overhead_s is not None:
            self._overhead_s.observe(overhead_s)

    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else OTHER
        if status == _LIMITED:
            self._limited.inc()
        known = self._requests.get((route, method, status))
        if known is None:
            if len(self._requests) >= MAX_ROUTES:
                self._request_s.labels(OTHER, OTHER, OTHER).observe(seconds)
                return
            known = self._requests[route, method, status] = self._request_s.labels(route, method, str(status))
        known.observe(seconds)

    def network_used(self, use: NetworkUse) -> None:
        self._allowed.inc(use.connections)
        self._refused.inc(use.refused)
        self._sent.inc(use.bytes_sent)
        self._received.inc(use.bytes_received)

    def _environment(self, name: str) -> str:
        """Returns the environment's name as a label; `other` for one that the registry does not have."""
        known = self._environments.get(name)
        if known is not None:
            return known
        if len(self._environments) >= MAX_ENVIRONMENTS or not self._is_environment(name):
            return OTHER
        self._environments[name] = name
        self._hits.labels(name), self._misses.labels(name)  # a ratio needs both, also while one is 0
        return name


def kind_of_loss(why: str) -> str:
    return next((kind for text, kind in _LOSSES if text in why), OTHER)
