"""Reads what sessions use, keeps the last points, and publishes an event when something is nearly used up.

`run` reads every session of this process each READ_S, a few at a time, and keeps POINTS points of each until the
session ends; a new session is read within a second. A session costs some 0.15 ms of a processor, so 700 of them take a
hundredth of a core. When reading all took longer than SHARE of the time, because there are more, the machine is busy or
a far side is slow, the next round begins later, after LONGEST_S at most. Whoever asks for the metrics of now has them
read at once, once a second at most.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.environment import Environment
from warren.model.errors import SandboxLost, SandboxNotFound, SessionPaused, WarrenError
from warren.model.events import Event, EventKind, ResourceHighData
from warren.model.metrics import (
    DEFAULT_ALERTS,
    AlertThresholds,
    LatestMetrics,
    MetricLimits,
    Resource,
    SandboxMetrics,
    used_and_limit,
)
from warren.model.session import Session

READ_S: Final = 10.0
LONGEST_S: Final = 60.0
SHARE: Final = 0.01
POINTS: Final = 60
FRESH_S: Final = 1.0
_LOOK_S: Final = 1.0
_AT_ONCE: Final = 32
_BATCH_S: Final = 5.0  # for the readings of one batch
_FALL: Final = 10.0  # percentage points below the threshold, after which the next alert may come
_ALERT_EVERY_S: Final = 60.0
_CPU_HOLDS_S: Final = 60.0
_log = get_log(__name__)

FindSandbox = Callable[[Session], Awaitable[Sandbox]]
Publish = Callable[[Event], None]


@dataclass(slots=True)
class _Alert:
    """The alert of one resource. `since` is when the metrics reached the threshold; `told`: an event says so."""

    since: float | None = None
    told: bool = False
    told_at: float = float("-inf")


@dataclass(slots=True)
class _MeteredSession:
    """`last` is the last point of the series, or a newer one that a caller asked for. `point_at` and `last_at` are the
    times of these two, by the clock that never jumps."""

    session: Session
    limits: MetricLimits
    points: deque[SandboxMetrics] = field(default_factory=partial(deque, maxlen=POINTS))
    point_at: float = 0.0
    last: SandboxMetrics | None = None
    last_at: float = float("-inf")
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    alerts: dict[Resource, _Alert] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session) -> "_MeteredSession":
        return cls(session, MetricLimits.of(session.limits))


class MetricsMeter:
    """`find_sandbox` returns the sandbox of a session."""

    def __init__(
        self,
        clock: Clock,
        find_sandbox: FindSandbox,
        environments: Callable[[str], Environment] | None = None,
        publish: Publish = lambda event: None,
        read_s: float = READ_S,
    ) -> None:
        self._clock = clock
        self._find_sandbox = find_sandbox
        self._environments = environments
        self._publish = publish
        self._read_s = read_s
        self.interval_s = read_s
        self._followed: dict[tuple[str, str], _MeteredSession] = {}  # by tenant and session id
        self._new: dict[tuple[str, str], _MeteredSession] = {}  # those that were never read

    def __repr__(self) -> str:
        return f"<MetricsMeter: {len(self._followed)} followed, each {self.interval_s:g} s>"

    def follow(self, session: Session) -> None:
        name = session.tenant, session.id
        self._followed[name] = self._new[name] = _MeteredSession.of(session)

    def forget(self, tenant: str, session_id: str) -> None:
        self._followed.pop((tenant, session_id), None)
        self._new.pop((tenant, session_id), None)

    # -- for callers

    async def now(self, session: Session, sandbox: Sandbox) -> SandboxMetrics:
        """Returns what the session uses now, or a point that is less than a second old. Raises what `Sandbox.metrics`
        raises."""
        followed = self._followed.get((session.tenant, session.id)) or _MeteredSession.of(session)
        async with followed.reading:
            if followed.last is None or self._clock.now() - followed.last_at >= FRESH_S:
                await self._read(followed, sandbox)
            assert followed.last is not None
            return followed.last

    def series(self, session: Session) -> Sequence[SandboxMetrics]:
        followed = self._followed.get((session.tenant, session.id))
        return tuple(followed.points) if followed is not None else ()

    def latest(self, tenant: str, session_ids: Sequence[str]) -> Mapping[str, LatestMetrics]:
        """Returns the last point of each session that has one. Reads no sandbox."""
        found = {}
        for session_id in session_ids:
            followed = self._followed.get((tenant, session_id))
            if followed is not None and followed.last is not None:
                found[session_id] = LatestMetrics(followed.limits, followed.last)
        return found

    # -- the series

    async def run(self) -> None:
        next_round = self._clock.now() + self.interval_s
        while True:
            await self._clock.sleep(min(self._read_s, _LOOK_S))
            began = self._clock.now()
            if began < next_round:
                await self._read_new()
                continue
            await self.read_all()
            took_s = self._clock.now() - began
            self.interval_s = min(max(self._read_s, took_s / SHARE), max(self._read_s, LONGEST_S))
            next_round = began + self.interval_s

    async def read_all(self) -> None:
        self._new.clear()
        await self._add_points(list(self._followed.values()))

    async def _read_new(self) -> None:
        new, self._new = self._new, {}
        await self._add_points(list(new.values()))

    async def _add_points(self, all_of_them: list[_MeteredSession]) -> None:
        thresholds: dict[str, AlertThresholds] = {}  # by environment, looked up once for all
        for at in range(0, len(all_of_them), _AT_ONCE):
            some = all_of_them[at : at + _AT_ONCE]
            try:
                async with asyncio.timeout(_BATCH_S):
                    await asyncio.gather(*(self._add_point(followed, thresholds) for followed in some))
            except TimeoutError:
                _log.debug("figures_not_read", sessions=len(some), error="no answer in time")
            await asyncio.sleep(0)

    async def _add_point(self, followed: _MeteredSession, thresholds: dict[str, AlertThresholds]) -> None:
        session = followed.session
        try:
            sandbox = await self._find_sandbox(session)
            async with followed.reading:
                before, before_at = followed.points[-1] if followed.points else None, followed.point_at
                was_asked_for = followed.last is not before
                point = await self._read(followed, sandbox)
                if before is not None and was_asked_for:
                    point = followed.last = replace(point, cpus=_cpus(point, before, followed.last_at - before_at))
                followed.points.append(point)
                followed.point_at = followed.last_at
            if self._followed.get((session.tenant, session.id)) is followed:  # else it has ended meanwhile
                self._look_for_alerts(followed, point, self._thresholds(session.environment, thresholds))
        except (SandboxLost, SandboxNotFound, SessionPaused):
            pass  # the lifecycle ends, forgets or resumes the session
        except WarrenError as exc:
            _log.debug("figures_not_read", session=session.id, error=exc.message)
        except Exception as exc:
            # The alerts of all sessions depend on this loop: it must survive whatever one sandbox raises.
            _log.warning("figures_not_read", session=session.id, error=exc)

    async def _read(self, followed: _MeteredSession, sandbox: Sandbox) -> SandboxMetrics:
        found = await sandbox.metrics()
        now = self._clock.now()
        cpus = 0.0 if followed.last is None else _cpus(found, followed.last, now - followed.last_at)
        followed.last = replace(found, at=self._clock.wall(), cpus=cpus)
        followed.last_at = now
        return followed.last

    # -- alerts

    def _look_for_alerts(self, followed: _MeteredSession, point: SandboxMetrics, thresholds: AlertThresholds) -> None:
        session, now = followed.session, self._clock.now()
        for resource in Resource:
            alert = followed.alerts.setdefault(resource, _Alert())
            threshold: float = getattr(thresholds, resource)
            used, limit = used_and_limit(point, followed.limits, resource)
            percent = 100 * used / limit if limit else 0.0
            if _is_due(alert, percent, threshold, now, _CPU_HOLDS_S if resource is Resource.CPU else 0.0):
                data = ResourceHighData(
                    str(resource), round(used, 3), limit, round(percent, 1), threshold, session.thread_id or None
                )
                self._publish(Event(EventKind.RESOURCE_HIGH, session.tenant, self._clock.wall(), data, session.id))

    def _thresholds(self, environment: str, known: dict[str, AlertThresholds]) -> AlertThresholds:
        """Returns the thresholds of the environment as it is now, or the default ones if it is gone or broken."""
        if environment not in known:
            known[environment] = DEFAULT_ALERTS
            if self._environments is not None:
                with contextlib.suppress(WarrenError):
                    known[environment] = self._environments(environment).alerts
        return known[environment]


def _is_due(alert: _Alert, percent: float, threshold: float, now: float, holds_s: float) -> bool:
    """Whether an event is to be published for a new point. Updates the alert."""
    if not threshold:
        alert.since, alert.told = None, False
        return False
    if percent < threshold:
        alert.since = None
        if percent <= max(threshold - _FALL, threshold / 2):
            alert.told = False
        return False
    if alert.since is None:
        alert.since = now
    if alert.told or now - alert.since < holds_s or now - alert.told_at < _ALERT_EVERY_S:
        return False
    alert.told, alert.told_at = True, now
    return True


def _cpus(point: SandboxMetrics, before: SandboxMetrics, passed_s: float) -> float:
    return round(max(0.0, point.cpu_s - before.cpu_s) / passed_s, 4) if passed_s > 0 else before.cpus
