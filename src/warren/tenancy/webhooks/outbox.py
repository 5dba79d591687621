"""Webhooks: callers are told what happened to their sessions.

`publish` only notes the event. A task writes it into the line of every webhook of the tenant that wants it, at once;
what was written there survives kill -9 and is sent by the courier, in this process or another one. Who wants what is
remembered for REMEMBERED_S, so events that nobody wants cost next to nothing.

Tenants take turns in being written, and each has at most `most_waiting` deliveries: what comes then is dropped.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from warren.clock import Clock
from warren.interfaces.records import RecordStore
from warren.model.errors import Conflict, WarrenError
from warren.model.events import Event
from warren.stores.sealing import Sealer
from warren.tenancy.webhooks.courier import Courier, DeliveryOutcome
from warren.tenancy.webhooks.deliveries import DeliveryQueues, delivery_view, new_message
from warren.tenancy.webhooks.hooks import Hooks, Webhook
from warren.tenancy.webhooks.post import Poster
from warren.tenancy.webhooks.wakeup import Wakeup

MOST_WAITING: Final = 10_000
REMEMBERED_S: Final = 2.0
_MOST_REMEMBERED: Final = 4096
_TROUBLE_S: Final = 1.0

_log = logging.getLogger("warren.webhooks")


@dataclass(slots=True)
class _Known:
    """Of a tenant, as it was not long ago. What was put in line since is counted in `waiting`."""

    hooks: Sequence[Webhook]
    waiting: int
    until: float


class Webhooks:
    """`publish` neither waits nor raises. `dropped` counts the deliveries that found the tenant's lines full, and the
    events that could not be written."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        poster: Poster,
        sealer: Sealer | None = None,
        *,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._clock = clock
        self._poster = poster
        self._most_waiting = most_waiting
        self._hooks = Hooks(records, clock, sealer)
        self._lines = DeliveryQueues(records)
        self._courier = Courier(self._hooks, self._lines, clock, poster)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._unwritten: dict[str, deque[Event]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._wakeup = Wakeup(clock)
        self._closed = False
        self._full: set[str] = set()
        self.dropped = 0

    def __repr__(self) -> str:
        unwritten = sum(map(len, self._unwritten.values()))
        return f"<Webhooks: {unwritten} events to be written, {self.dropped} dropped, {self._courier!r}>"

    # -- who wants what

    async def create(self, tenant: str, url: str, events: Sequence[str], description: str = "") -> tuple[Webhook, str]:
        """The webhook, and the secret it signs with, which nobody can show again.

        Raises InvalidRequest for a URL that may not be called. A name is not looked up before something is sent.
        """
        self._poster.check(url)
        made = await self._hooks.create(tenant, url, events, description)
        self._known.pop(tenant, None)
        return made

    async def list(self, tenant: str) -> Sequence[Webhook]:
        return await self._hooks.list(tenant)

    async def get(self, tenant: str, hook_id: str) -> Webhook:
        return await self._hooks.get(tenant, hook_id)

    async def delete(self, tenant: str, hook_id: str) -> None:
        """What waits for it is not sent any more."""
        await self._hooks.delete(tenant, hook_id)
        self._known.pop(tenant, None)
        await self._lines.clear(hook_id)

    async def test(self, tenant: str, hook_id: str) -> DeliveryOutcome:
        """Sends a `ping` now, once, whatever the webhook wants to be told of; says what came of it."""
        hook = await self._hooks.get(tenant, hook_id)
        if hook.disabled:
            raise Conflict(f"the webhook is disabled: {hook.disabled}", remedy="delete it and make a new one")
        return await self._courier.ping(hook)

    async def deliveries(self, tenant: str, hook_id: str, limit: int = 100) -> Sequence[dict[str, Any]]:
        """Those that wait, are being sent or were given up in the last day, the newest first."""
        await self._hooks.get(tenant, hook_id)
        return [delivery_view(record) for record in await self._lines.shown(hook_id, limit)]

    # -- what happened

    def publish(self, event: Event) -> None:
        known = self._remembered(event.tenant)
        if self._closed or (known is not None and not any(hook.wants(event.kind) for hook in known.hooks)):
            return
        line = self._unwritten.setdefault(event.tenant, deque())
        if len(line) >= self._most_waiting:
            self._drop(event.tenant)
            return
        line.append(event)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name="webhooks are written")

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        await self._courier.run()

    async def close(self) -> None:
        """Writes what was published before; what the store does not take now is lost, and told. Closes the poster."""
        self._closed = True
        self._wakeup.ring()
        if self._writing is not None:
            await self._writing
        await self._poster.close()

    async def _write_all(self) -> None:
        while self._unwritten:
            tenant = next(iter(self._unwritten))
            line = self._unwritten[tenant]
            await self._write_surely(line[0])
            line.popleft()
            del self._unwritten[tenant]
            if line:
                self._unwritten[tenant] = line  # at the end: tenants take turns
            await asyncio.sleep(0)

    async def _write_surely(self, event: Event) -> None:
        """Tries until the store takes it, or this is closed."""
        told = False
        while True:
            try:
                await self._write(event)
                return
            except WarrenError as exc:
                if self._closed:
                    self.dropped += 1
                    _log.warning("the event %s is not sent to webhooks: %s", event.id, exc)
                    return
                if not told:
                    _log.warning("events for webhooks cannot be kept, it is tried again: %s", exc)
                told = True
                await self._wakeup.rest(_TROUBLE_S)
            except Exception:
                self.dropped += 1
                _log.exception("the event %s cannot be sent to webhooks", event.id)
                return

    async def _write(self, event: Event) -> None:
        known = self._remembered(event.tenant) or await self._recall(event.tenant)
        wanting = [hook for hook in known.hooks if hook.wants(event.kind)]
        if not wanting:
            return
        now = self._clock.wall()
        message = new_message(event.id, str(event.kind), event.at, event.tenant, event.session_id, event.data)
        for hook in wanting:
            if known.waiting >= self._most_waiting:
                self._drop(event.tenant)
                continue
            self._full.discard(event.tenant)
            known.waiting += await self._lines.add(hook.id, event.tenant, message, event.at, now)
            self._courier.expect(hook.id, now)

    def _drop(self, tenant: str) -> None:
        self.dropped += 1
        if tenant not in self._full:
            self._full.add(tenant)
            _log.warning("%d webhooks of the tenant %s wait to be sent: more are dropped", self._most_waiting, tenant)

    def _remembered(self, tenant: str) -> _Known | None:
        known = self._known.get(tenant)
        return known if known is not None and known.until > self._clock.now() else None

    async def _recall(self, tenant: str) -> _Known:
        hooks = await self._hooks.list(tenant)
        counts = [await self._lines.count(hook.id) for hook in hooks]
        known = self._known[tenant] = _Known(hooks, sum(counts), self._clock.now() + REMEMBERED_S)
        self._known.move_to_end(tenant)
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        return known
