"""Webhooks tell tenants what happened to their sessions.

`publish` only puts the event into memory. A task writes it at once into the queue of every webhook of the tenant that
wants it. What is in a queue survives kill -9; the delivery worker of this process or of another one sends it. The
webhooks of a tenant are cached for CACHED_S, so events that no webhook wants cost next to nothing.

Tenants take turns in being written. Each has at most `max_waiting` deliveries: further ones are dropped.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from warren.governance.webhooks.deliveries import DeliveryQueues, delivery_view, new_message
from warren.governance.webhooks.delivery_worker import DeliveryOutcome, DeliveryWorker, Wakeup
from warren.governance.webhooks.registry import Webhook, WebhookRegistry
from warren.governance.webhooks.sender import WebhookSender
from warren.interfaces.records import RecordStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.kernel.fair_share import Turns
from warren.kernel.logs import get_log
from warren.model.errors import Conflict, WarrenError
from warren.model.events import Event, EventKind
from warren.stores.encryption import Encryption

MAX_WAITING: Final = 10_000
CACHED_S: Final = 2.0
_MAX_CACHED: Final = 4096
_RETRY_S: Final = 1.0

_log = get_log("warren.webhooks")


@dataclass(slots=True)
class _TenantWebhooks:
    """A tenant's webhooks, and how many deliveries wait for them, those that were added since included. It is read
    again after `until`."""

    hooks: Sequence[Webhook]
    waiting: int
    until: float


class Webhooks:
    """`publish` neither waits nor raises. `dropped` counts the deliveries for which the tenant's queues were full, and
    the events that could not be written."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        sender: WebhookSender,
        encryption: Encryption | None = None,
        *,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._clock = clock
        self._sender = sender
        self._max_waiting = max_waiting
        self._registry = WebhookRegistry(records, clock, encryption)
        self._queues = DeliveryQueues(records)
        self._worker = DeliveryWorker(self._registry, self._queues, clock, sender)
        self._cache = BoundedDict[str, _TenantWebhooks](_MAX_CACHED)
        self._unwritten = Turns[Event]()
        self._writing: asyncio.Task[None] | None = None
        self._wakeup = Wakeup(clock)
        self._closed = False
        self._full: set[str] = set()
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Webhooks: {len(self._unwritten)} events to be written, {self.dropped} dropped, {self._worker!r}>"

    # -- webhooks

    async def create(self, tenant: str, url: str, events: Sequence[str], description: str = "") -> tuple[Webhook, str]:
        """Returns the webhook and the secret it signs with, which nobody can show again.

        Raises InvalidRequest for a URL that is not allowed. Its name is not looked up before something is sent.
        """
        self._sender.check(url)
        made = await self._registry.create(tenant, url, events, description)
        self._cache.pop(tenant, None)
        return made

    async def list(self, tenant: str) -> Sequence[Webhook]:
        return await self._registry.list(tenant)

    async def get(self, tenant: str, hook_id: str) -> Webhook:
        return await self._registry.get(tenant, hook_id)

    async def delete(self, tenant: str, hook_id: str) -> None:
        """Also deletes the deliveries that wait for it."""
        await self._registry.delete(tenant, hook_id)
        self._cache.pop(tenant, None)
        await self._queues.clear(hook_id)

    async def rotate(self, tenant: str, hook_id: str, keep_old_s: float) -> tuple[Webhook, str]:
        """Gives the webhook a new secret, and returns it; nobody can show it again."""
        made = await self._registry.rotate(tenant, hook_id, keep_old_s)
        self._cache.pop(tenant, None)
        return made

    async def test(self, tenant: str, hook_id: str) -> DeliveryOutcome:
        """Sends a `ping` now, once, whatever events the webhook wants."""
        hook = await self._registry.get(tenant, hook_id)
        if hook.disabled:
            raise Conflict(f"the webhook is disabled: {hook.disabled}", remedy="delete it and make a new one")
        return await self._worker.ping(hook)

    async def deliveries(self, tenant: str, hook_id: str, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Returns deliveries that wait, are being sent or failed in the last day, newest first."""
        await self._registry.get(tenant, hook_id)
        return [delivery_view(record) for record in await self._queues.newest(hook_id, limit)]

    # -- events

    def wants(self, tenant: str, kind: EventKind) -> bool:
        """Whether an event of this kind goes to a webhook, as far as is known without asking the store."""
        cached = self._find_cached(tenant)
        return not self._closed and (cached is None or any(hook.wants(kind) for hook in cached.hooks))

    def publish(self, event: Event) -> None:
        if not self.wants(event.tenant, event.kind):
            return
        if len(self._unwritten.of(event.tenant)) >= self._max_waiting:
            self._drop(event.tenant)
            return
        self._unwritten.add(event.tenant, event)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name="writing webhook deliveries")

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        try:
            await self._registry.renew_encryption()
        except WarrenError as exc:
            _log.warning("webhook_secrets_not_renewed", action="at_next_start", error=exc)
        await self._worker.run()

    async def close(self) -> None:
        """Writes what was published before; what the store does not take now is lost, and logged. Closes the sender."""
        self._closed = True
        self._wakeup.wake()
        if self._writing is not None:
            await self._writing
        await self._sender.close()

    async def _write_all(self) -> None:
        while self._unwritten:
            _, event = self._unwritten.next()
            await self._write_until_saved(event)
            await asyncio.sleep(0)

    async def _write_until_saved(self, event: Event) -> None:
        """Tries until the store takes the event, or `close` was called."""
        logged = False
        while True:
            try:
                await self._write(event)
                return
            except WarrenError as exc:
                if self._closed:
                    self.dropped += 1
                    _log.warning("webhook_event_lost", event_id=event.id, error=exc)
                    return
                if not logged:
                    _log.warning("webhook_event_not_saved", event_id=event.id, action="retry", error=exc)
                logged = True
                await self._wakeup.wait(_RETRY_S)
            except Exception as exc:
                self.dropped += 1
                _log.error("webhook_event_lost", event_id=event.id, exc=exc)
                return

    async def _write(self, event: Event) -> None:
        cached = self._find_cached(event.tenant) or await self._read_tenant(event.tenant)
        wanting = [hook for hook in cached.hooks if hook.wants(event.kind)]
        if not wanting:
            return
        now = self._clock.wall()
        message = new_message(event.id, str(event.kind), event.at, event.tenant, event.session_id, event.json_data())
        for hook in wanting:
            if cached.waiting >= self._max_waiting:
                self._drop(event.tenant)
                continue
            self._full.discard(event.tenant)
            cached.waiting += await self._queues.add(hook.id, event.tenant, message, event.at, now)
            self._worker.expect(hook.id, now)

    def _drop(self, tenant: str) -> None:
        self.dropped += 1
        if tenant not in self._full:
            self._full.add(tenant)
            _log.warning("webhook_deliveries_dropped", tenant=tenant, waiting=self._max_waiting)

    def _find_cached(self, tenant: str) -> _TenantWebhooks | None:
        cached = self._cache.get(tenant)
        return cached if cached is not None and cached.until > self._clock.now() else None

    async def _read_tenant(self, tenant: str) -> _TenantWebhooks:
        hooks = await self._registry.list(tenant)
        counts = [await self._queues.count(hook.id) for hook in hooks]
        cached = self._cache[tenant] = _TenantWebhooks(hooks, sum(counts), self._clock.now() + CACHED_S)
        return cached
