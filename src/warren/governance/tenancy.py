"""Brings together everything about tenants: who they are (keys, tenants), what they may use (quotas, policies, turns),
what they have used (usage, audit), and which events they want to receive (webhooks). Sessions see `metering` only.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from warren.access.keys import Keys
from warren.access.revocations import Revocations
from warren.access.tenants import Tenants
from warren.governance.audit.page_reads import PageReads
from warren.governance.audit.refusals import RefusalLimit
from warren.governance.counters import Counters
from warren.governance.event_feed import KINDS, EventFeed
from warren.governance.metered_sandbox import CommandMetering
from warren.governance.networks import Networks
from warren.governance.quotas import Quotas
from warren.governance.secrets import Secrets
from warren.governance.session_policies import Policies
from warren.governance.usage import UsageBook, day_of
from warren.interfaces.audit import AuditLog
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.records import RecordStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.access import Caller
from warren.model.audit import AuditEntry
from warren.model.environment import Environment
from warren.model.errors import NotFound, WarrenError
from warren.model.events import (
    CommandEndedData,
    Event,
    EventKind,
    NetworkRefusedData,
    QuotaReachedData,
    SessionChangedData,
    SessionCreatedData,
    SessionEndedData,
)
from warren.model.session import Session
from warren.model.spec import MIB
from warren.model.usage import Usage
from warren.sessions.event_hub import EventHub
from warren.stores.encryption import Encryption

if TYPE_CHECKING:
    from warren.governance.shared_events import SharedEvents
    from warren.governance.webhooks.outbox import Webhooks

_log = get_log(__name__)
_OF_SESSIONS: Final = frozenset(EventKind) - {EventKind.COMMAND_FINISHED, EventKind.COMMAND_REFUSED}
"""Commands that a request waited for are neither counted nor recorded by their events."""
_COUNTED_AS: Final = {"exec_seconds": "exec_s", "bytes_out": "bytes_out", "egress_bytes": "egress_bytes"}


class Tenancy:
    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        environments: Callable[[str], Environment],
        *,
        audit: AuditLog | None = None,
        webhooks: "Webhooks | None" = None,
        counters: Counters | None = None,
        encryption: Encryption | None = None,
        shared_events: "SharedEvents | None" = None,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        """Without `counters` this process counts quotas in its memory; without `encryption` secrets end with it.
        `shared_events` have the feed of a cluster; without them this process has one of its own."""
        self._clock = clock
        self.keys = Keys(records, clock)
        self.revocations = Revocations(records, clock)
        self.tenants = Tenants(records, clock)
        self.secrets = Secrets(records, clock, encryption)
        self.usage = UsageBook(records, clock)
        self.audit = audit
        self.page_reads = PageReads(clock)
        self.refusals = None if audit is None else RefusalLimit(clock, audit.record)
        self.webhooks = webhooks
        self.events = EventHub()
        self.events.subscribe(self._count_usage, kinds=_OF_SESSIONS)
        self.events.subscribe(self._record_event, kinds=_OF_SESSIONS)
        if webhooks is not None:
            self.events.subscribe(webhooks.publish, webhooks.wants)
        self.feed = EventFeed() if shared_events is None else shared_events.feed
        self._shared_events = shared_events
        self.events.subscribe((shared_events or self.feed).publish, kinds=KINDS)
        quotas = Quotas(clock, counters, reached=self._publish_quota_reached, spent_before=self.spent_today)
        policies = Policies(environments, self.tenants.of)
        self.metering = CommandMetering(
            clock,
            quotas,
            events=self.events,
            refused=policies.refused,
            payer_of=self.payer_of,
            count_command=self.usage.add_command,
            recorder=recorder,
        )
        self.networks = Networks(clock, self.usage, quotas, self.events, self.payer_of, audit)
        self._tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<Tenancy {self.metering!r}>"

    def start(self, *, deliver_webhooks: bool = True) -> None:
        """Without `deliver_webhooks` this process only queues deliveries and writes events; others send them."""
        self._run(self.usage.run(), "usage")
        if deliver_webhooks:
            self._run(self._renew_secrets(), "renewing secrets")
        if self.webhooks is not None and deliver_webhooks:
            self._run(self.webhooks.run(), "webhooks")
        if self._shared_events is not None and deliver_webhooks:
            self._run(self._shared_events.run(), "events")

    async def close(self) -> None:
        """Writes what is still to be written."""
        self.feed.close()
        await self.metering.close()
        await self.metering.quotas.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.usage.close()
        if self._shared_events is not None:
            await self._shared_events.close()
        if self.webhooks is not None:
            await self.webhooks.close()
        if self.refusals is not None:
            self.refusals.flush()
        if self.audit is not None:
            await self.audit.close()

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _renew_secrets(self) -> None:
        try:
            await self.secrets.renew_encryption()
        except WarrenError as exc:
            _log.warning("secrets_not_renewed", action="at_next_start", error=exc.message)

    # -- events

    def _count_usage(self, event: Event) -> None:
        """Counts the whole life of a session on the day it ends. Commands are counted by Metering."""
        match event.data:
            case SessionCreatedData():
                self.usage.add(event.tenant, Usage(sessions=1))
            case SessionEndedData(lived_s=lived_s, memory_mb=memory_mb):
                self.usage.add(event.tenant, Usage(session_s=lived_s, memory_mb_s=lived_s * memory_mb))

    def _record_event(self, event: Event) -> None:
        """Writes an audit entry for an event that no other entry covers."""
        data = event.data
        has_entry = isinstance(data, SessionCreatedData | SessionChangedData | NetworkRefusedData) or (
            isinstance(data, CommandEndedData) and not data.background
        )
        if self.audit is not None and not has_entry:
            kind, detail = str(event.kind), event.json_data()
            self.audit.record(AuditEntry(event.at, kind, event.tenant, session_id=event.session_id, detail=detail))

    # -- quotas and policies

    def _publish_quota_reached(self, caller: Caller, quota: str) -> None:
        data = QuotaReachedData(quota, caller.key_id)
        self.events.publish(Event(EventKind.QUOTA_REACHED, caller.tenant, self._clock.wall(), data))

    async def spent_today(self, tenant: str, what: str) -> float:
        """Returns what a tenant has used of a day's quota, by the usage book."""
        today = day_of(self._clock.wall())
        rows = await self.usage.between(tenant, today, today)
        return sum(float(getattr(row.usage, _COUNTED_AS[what])) for row in rows)

    async def payer_of(self, session: Session) -> Caller:
        """Keeps the contract of `PayerOf`."""
        return await self._payer(session.tenant, session.key_id)

    async def _payer(self, tenant: str, key_id: str) -> Caller:
        caller = Caller(tenant, key_id, quota=(await self.tenants.of(tenant)).quota)
        try:
            return replace(caller, key_quota=(await self.keys.get(key_id)).quota)
        except NotFound:
            return caller

    async def artifact_bound(self, session: Session) -> int | None:
        """Returns how many bytes the artifacts of the session's tenant may have in all; None if nothing bounds them."""
        return await self._bytes_bound(session, "artifacts_mb")

    async def log_bound(self, session: Session) -> int | None:
        """Returns how many bytes the logs of the session's tenant may take in all; None if nothing bounds them."""
        return await self._bytes_bound(session, "logs_mb")

    async def _bytes_bound(self, session: Session, quota: str) -> int | None:
        bounds = (await self.payer_of(session)).bounds[quota]
        return min((most * MIB for _, most in bounds), default=None)

    async def report_artifact_limit(self, session: Session) -> None:
        self.metering.report_limit(await self.payer_of(session), "artifacts_mb")

    async def snapshot_bound(self, tenant: str, key_id: str) -> int | None:
        """Returns how many bytes the tenant's snapshots may have in all; None if nothing bounds them."""
        bounds = (await self._payer(tenant, key_id)).bounds["snapshots_mb"]
        return min((most * MIB for _, most in bounds), default=None)

    async def report_snapshot_limit(self, tenant: str, key_id: str) -> None:
        self.metering.report_limit(await self._payer(tenant, key_id), "snapshots_mb")
