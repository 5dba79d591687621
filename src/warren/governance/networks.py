"""Counts what sandboxes do with their networks: usage, quota, audit entries and events of refusals.

`report` gets what is new of one sandbox every few seconds from the meter (sessions/network_meter.py). An entry of the
audit record tells the name, port and bytes of a connection, never what went through it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from warren.governance.quotas import EGRESS_BYTES, Quotas
from warren.governance.usage import UsageBook
from warren.interfaces.audit import AuditLog
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.model.access import Caller
from warren.model.audit import AuditEntry
from warren.model.errors import WarrenError
from warren.model.events import Event, EventKind, NetworkRefusedData
from warren.model.network import EgressBound, NetworkUse, Refusal
from warren.model.session import Session
from warren.model.usage import Usage
from warren.sessions.event_hub import EventHub

EVENT_EVERY_S: Final = 10.0
_MAX_TOLD: Final = 10_000
CONNECTION: Final = "network.connection"


class Networks:
    """`payer_of` returns the caller whose quotas a session uses up."""

    def __init__(
        self,
        clock: Clock,
        usage: UsageBook,
        quotas: Quotas,
        events: EventHub,
        payer_of: Callable[[Session], Awaitable[Caller]],
        audit: AuditLog | None = None,
    ) -> None:
        self._clock = clock
        self._usage = usage
        self._quotas = quotas
        self._events = events
        self._payer_of = payer_of
        self._audit = audit
        self._told = BoundedDict[str, tuple[float, int]](_MAX_TOLD)  # by session: when, and how many were not told

    async def report(self, session: Session, new: NetworkUse) -> float:
        """Counts what is new. Returns for how many seconds the session must do without a network: 0 unless its quota is
        used up."""
        amount = new.bytes_sent + new.bytes_received
        closed_s = await self._spend(session, amount)  # before usage: a new counter begins with the usage so far
        used = Usage(egress_bytes=amount, egress_connections=new.connections, egress_refused=new.refused)
        self._usage.add(session.tenant, used)
        self._record(session, new)
        if new.refusals:
            self._tell(session, new.refusals[-1], new.refused)
        return closed_s

    async def bounds_of(self, session: Session) -> tuple[EgressBound, ...]:
        """Returns what the session's sandbox shares with others of its key, if that is bounded, and of its tenant,
        which comes last. Raises Unavailable."""
        levels = (await self._payer_of(session)).quota_levels
        *keys, tenant = (EgressBound(whose, quota.egress_connections, quota.egress_mbps) for whose, quota in levels)
        return (*(bound for bound in keys if bound != EgressBound(bound.owner)), tenant)

    async def _spend(self, session: Session, amount: int) -> float:
        """Spends the bytes. Returns as `report` does. While the counters cannot be read, networks stay open."""
        if not amount:
            return 0.0
        try:
            caller = await self._payer_of(session)
            if not self._quotas.bounds(caller, EGRESS_BYTES):
                return 0.0
            if await self._quotas.spend(caller, EGRESS_BYTES, amount):
                return 0.0
            return self._quotas.spent(caller, EGRESS_BYTES).retry_after_s or 0.0
        except WarrenError:
            return 0.0

    def _record(self, session: Session, new: NetworkUse) -> None:
        for each in new.ended:
            sizes = {"bytes_sent": each.bytes_sent, "bytes_received": each.bytes_received}
            self._write(session, each.at, CONNECTION, "allowed", {**_destination(each), **sizes})
        for refusal in new.refusals:
            detail = {**_destination(refusal), "reason": refusal.reason}
            self._write(session, refusal.at, EventKind.NETWORK_REFUSED, "refused", detail)
        if (more := new.refused - len(new.refusals)) > 0:
            self._write(session, self._clock.wall(), EventKind.NETWORK_REFUSED, "more", {"count": more})

    def _write(self, session: Session, at: float, action: str, result: str, detail: Mapping[str, Any]) -> None:
        entry = AuditEntry(
            at, str(action), session.tenant, session.key_id, session_id=session.id, result=result, detail=detail
        )
        if self._audit is not None:
            self._audit.record(entry)

    def _tell(self, session: Session, last: Refusal, count: int) -> None:
        """Publishes an event, unless the last one of this session was a moment ago."""
        now = self._clock.now()
        told_at, waiting = self._told.get(session.id, (now - EVENT_EVERY_S, 0))
        count += waiting
        if now - told_at >= EVENT_EVERY_S:
            data = NetworkRefusedData(last.name, last.address, last.port, last.reason, last.rule, count)
            self._events.publish(Event(EventKind.NETWORK_REFUSED, session.tenant, self._clock.wall(), data, session.id))
            told_at, count = now, 0
        self._told[session.id] = told_at, count


def _destination(each: Any) -> dict[str, Any]:
    return {"name": each.name, "address": each.address, "port": each.port}
