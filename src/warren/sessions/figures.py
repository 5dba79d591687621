"""Reads what sessions use, keeps the last points, and publishes an event when something is nearly used up.

`run` reads every session of this process each READ_S, a few at a time, and keeps POINTS points of each until the
session ends; a new session is read within a second. Reading a sandbox takes some 0.1 ms of a thread, so 1,000 sessions
cost about a hundredth of a core. When reading all of them took longer than SHARE of the time, on a busy machine or from
a far side, the next round begins later, after LONGEST_S at most. Whoever asks for the figures of now has them read at
once, once a second at most.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from warren.clock import Clock
from warren.interfaces.sandbox import Sandbox
from warren.logs import get_log
from warren.model.environment import Environment
from warren.model.errors import SandboxLost, SandboxNotFound, WarrenError
from warren.model.events import Event, EventKind, ResourceHighData
from warren.model.figures import (
    DEFAULT_ALERTS,
    AlertThresholds,
    FigureLimits,
    Figures,
    LatestFigures,
    Resource,
    used_and_limit,
)
from warren.model.session import Session

READ_S: Final = 10.0
LONGEST_S: Final = 60.0
SHARE: Final = 0.01
POINTS: Final = 60
FRESH_S: Final = 1.0
_LOOK_S: Final = 1.0
_AT_ONCE: Final = 16
_LONGEST_READING_S: Final = 5.0
_FALL: Final = 10.0  # percentage points below the threshold, after which the next alert may come
_ALERT_EVERY_S: Final = 60.0
_CPU_HOLDS_S: Final = 60.0
_log = get_log(__name__)

FindSandbox = Callable[[Session], Awaitable[Sandbox]]
Publish = Callable[[Event], None]


@dataclass(slots=True)
class _Alert:
    """Of one resource. `since` is when the figures reached the threshold; `told`: an event says so."""

    since: float | None = None
    told: bool = False
    told_at: float = float("-inf")


@dataclass(slots=True)
class _Followed:
    session: Session
    points: deque[Figures] = field(default_factory=lambda: deque(maxlen=POINTS))
    last: Figures | None = None  # the last point of the series, or one that somebody asked for since
    last_at: float = float("-inf")  # by the clock that never jumps, as are the others
    point_at: float = 0.0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    alerts: dict[Resource, _Alert] = field(default_factory=lambda: {resource: _Alert() for resource in Resource})


class FiguresMeter:
    """`find_sandbox` gives the sandbox of a session; the lifecycle sets it."""

    def __init__(
        self,
        clock: Clock,
        environments: Callable[[str], Environment] | None = None,
        publish: Publish = lambda event: None,
        read_s: float = READ_S,
    ) -> None:
        self._clock = clock
        self._environments = environments
        self._publish = publish
        self._read_s = read_s
        self.interval_s = read_s
        self._followed: dict[tuple[str, str], _Followed] = {}  # by tenant and session id
        self._new: dict[tuple[str, str], _Followed] = {}  # those that were never read
        self.find_sandbox: FindSandbox = _not_found

    def __repr__(self) -> str:
        return f"<FiguresMeter: {len(self._followed)} followed, each {self.interval_s:g} s>"

    def follow(self, session: Session) -> None:
        name = session.tenant, session.id
        self._followed[name] = self._new[name] = _Followed(session)

    def forget(self, tenant: str, session_id: str) -> None:
        self._followed.pop((tenant, session_id), None)
        self._new.pop((tenant, session_id), None)

    # -- for callers

    async def now(self, session: Session, sandbox: Sandbox) -> Figures:
        """What the session uses now; a point that is less than a second old will do. Raises what `figures` does."""
        followed = self._followed.get((session.tenant, session.id)) or _Followed(session)
        async with followed.reading:
            if followed.last is None or self._clock.now() - followed.last_at >= FRESH_S:
                await self._read(followed, sandbox)
            assert followed.last is not None
            return followed.last

    def series(self, session: Session) -> Sequence[Figures]:
        followed = self._followed.get((session.tenant, session.id))
        return tuple(followed.points) if followed is not None else ()

    def latest(self, tenant: str, session_ids: Sequence[str]) -> Mapping[str, LatestFigures]:
        """The last point of each, as far as there is one. Reads nothing."""
        found = {}
        for session_id in session_ids:
            followed = self._followed.get((tenant, session_id))
            if followed is not None and followed.last is not None:
                found[session_id] = LatestFigures(FigureLimits.of(followed.session.limits), followed.last)
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

    async def _add_points(self, all_of_them: list[_Followed]) -> None:
        for at in range(0, len(all_of_them), _AT_ONCE):
            await asyncio.gather(*map(self._add_point, all_of_them[at : at + _AT_ONCE]))
            await asyncio.sleep(0)

    def _is_followed(self, followed: _Followed) -> bool:
        session = followed.session
        return self._followed.get((session.tenant, session.id)) is followed

    async def _add_point(self, followed: _Followed) -> None:
        session = followed.session
        try:
            sandbox = await self.find_sandbox(session)
            async with asyncio.timeout(_LONGEST_READING_S), followed.reading:
                before, before_at = (followed.points[-1], followed.point_at) if followed.points else (None, 0.0)
                point = await self._read(followed, sandbox)
                if not self._is_followed(followed):
                    return  # it has ended meanwhile
                followed.point_at = followed.last_at
                if before is not None:
                    point = _with_cpus(point, before, followed.point_at - before_at)
                followed.points.append(point)
                self._look_for_alerts(followed, point)
        except (SandboxLost, SandboxNotFound):
            pass  # the lifecycle ends or forgets the session
        except (WarrenError, TimeoutError) as exc:
            _log.debug("figures_not_read", session=session.id, error=exc)
        except Exception as exc:
            # The alerts of all sessions depend on this loop: it must survive whatever one sandbox raises.
            _log.warning("figures_not_read", session=session.id, error=exc)

    async def _read(self, followed: _Followed, sandbox: Sandbox) -> Figures:
        found = replace(await sandbox.figures(), at=self._clock.wall())
        now = self._clock.now()
        if followed.last is not None:
            found = _with_cpus(found, followed.last, now - followed.last_at)
        followed.last, followed.last_at = found, now
        return found

    # -- alerts

    def _look_for_alerts(self, followed: _Followed, point: Figures) -> None:
        session = followed.session
        thresholds = self._thresholds(session.environment)
        limits, now = FigureLimits.of(session.limits), self._clock.now()
        for resource in Resource:
            threshold = float(getattr(thresholds, resource))
            used, limit = used_and_limit(point, limits, resource)
            percent = 100 * used / limit if limit else 0.0
            holds_s = _CPU_HOLDS_S if resource is Resource.CPU else 0.0
            if _is_due(followed.alerts[resource], percent, threshold, now, holds_s):
                data = ResourceHighData(
                    str(resource), round(used, 3), limit, round(percent, 1), threshold, session.thread_id or None
                )
                self._publish(Event(EventKind.RESOURCE_HIGH, session.tenant, self._clock.wall(), data, session.id))

    def _thresholds(self, environment: str) -> AlertThresholds:
        """Those of the environment as it is now; the usual ones if it is gone or broken."""
        if self._environments is None:
            return DEFAULT_ALERTS
        try:
            return self._environments(environment).alerts
        except WarrenError:
            return DEFAULT_ALERTS


def _is_due(alert: _Alert, percent: float, threshold: float, now: float, holds_s: float) -> bool:
    """Whether an event is to be published for a new point; notes what follows from it."""
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


def _with_cpus(point: Figures, before: Figures, passed_s: float) -> Figures:
    if passed_s <= 0:
        return replace(point, cpus=before.cpus)
    return replace(point, cpus=round(max(0.0, point.cpu_s - before.cpu_s) / passed_s, 4))


async def _not_found(session: Session) -> Sandbox:
    raise SandboxNotFound(f"there is no sandbox of session {session.id} here")
