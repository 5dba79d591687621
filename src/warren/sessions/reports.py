"""Reports what happens to sessions: to the log, to the recorder, and to whoever subscribes to events."""

import asyncio

from warren.interfaces.recorder import Recorder
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import NoCapacity
from warren.model.events import (
    Event,
    EventData,
    EventKind,
    SessionChangedData,
    SessionCreatedData,
    SessionEndedData,
    SessionHibernatedData,
    SessionLostData,
    SessionPausedData,
    SessionResumedData,
)
from warren.model.session import EndReason, Session
from warren.sessions.event_hub import EventHub

_log = get_log(__name__)


class SessionReports:
    def __init__(self, events: EventHub, clock: Clock, recorder: Recorder) -> None:
        self._events = events
        self._clock = clock
        self._recorder = recorder

    def created(self, session: Session, ms: float) -> None:
        _log.info(
            "session_created",
            session=session.id,
            tenant=session.tenant,
            environment=session.environment,
            sandbox=session.sandbox_id,
            pooled=session.pooled,
            ms=ms,
        )
        self._recorder.creation_ended(session.environment, "pool" if session.pooled else "cold", "created")
        data = SessionCreatedData(session.thread_id or None, session.memory_mb, session.environment, session.pooled)
        self._publish(EventKind.SESSION_CREATED, session, data)

    def not_created(self, session: Session, error: BaseException) -> None:
        outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
        outcome = "no_capacity" if isinstance(error, NoCapacity) else outcome
        self._recorder.creation_ended(session.environment, "none", outcome)

    def changed(self, session: Session, *changed: str) -> None:
        self._publish(EventKind.SESSION_CHANGED, session, SessionChangedData(session.thread_id or None, changed))

    def paused(self, session: Session, *, idle: bool) -> None:
        _log.info("session_paused", session=session.id, tenant=session.tenant, idle=idle)
        data = SessionPausedData(session.thread_id or None, session.memory_mb, idle, session.max_paused_s)
        self._publish(EventKind.SESSION_PAUSED, session, data)

    def hibernated(self, session: Session, size: int) -> None:
        _log.info("session_hibernated", session=session.id, tenant=session.tenant, bytes=size)
        data = SessionHibernatedData(session.thread_id or None, session.memory_mb, size, session.max_paused_s)
        self._publish(EventKind.SESSION_HIBERNATED, session, data)

    def resumed(self, session: Session, paused_s: float) -> None:
        _log.info("session_resumed", session=session.id, tenant=session.tenant, paused_s=round(paused_s, 3))
        data = SessionResumedData(session.thread_id or None, session.memory_mb, round(paused_s, 3), session.restored)
        self._publish(EventKind.SESSION_RESUMED, session, data)

    def ended(self, session: Session) -> None:
        """A session that never had a sandbox is no event for subscribers, who were not told that it was created."""
        had_sandbox = session.sandbox_id or session.saved
        reason, name = session.reason, "session_ended" if had_sandbox else "session_not_created"
        detail = session.detail or None
        _log.info(name, session=session.id, tenant=session.tenant, reason=reason, detail=detail)
        if had_sandbox:
            expired = reason in (EndReason.IDLE, EndReason.LIFETIME, EndReason.PAUSED_TOO_LONG)
            kind = EventKind.SESSION_EXPIRED if expired else EventKind.SESSION_ENDED
            lived_s = round(self._clock.now() - session.started, 3)
            data = SessionEndedData(session.thread_id or None, session.memory_mb, str(reason), lived_s)
            self._publish(kind, session, data)

    def lost(self, session: Session) -> None:
        _log.warning("session_lost", session=session.id, tenant=session.tenant, detail=session.detail)
        self._recorder.sandbox_lost(session.detail)
        data = SessionLostData(session.thread_id or None, session.memory_mb, session.detail)
        self._publish(EventKind.SESSION_LOST, session, data)

    def _publish(self, kind: EventKind, session: Session, data: EventData) -> None:
        self._events.publish(Event(kind, session.tenant, self._clock.wall(), data, session.id))
