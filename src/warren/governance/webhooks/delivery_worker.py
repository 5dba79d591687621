"""Sends waiting deliveries to their receivers.

`DeliveryWorker.run` goes through the queues of all webhooks. It takes a delivery that is due, if there is a free slot,
by changing its record: of several processes one succeeds, and no other takes the delivery for LEASE_S. A task then
makes the attempt. It deletes a delivery that arrived; any other waits for its next attempt, or has failed for good.
If the process dies in between, the lease expires and another attempt follows: each message arrives at least once.

The worker looks at a queue when something was added to it here, when one of its attempts has ended, and when its next
delivery is due. It finds what other processes left behind by looking at all queues every SCAN_S.

While the name of a webhook has no public address, none of its deliveries can arrive. So its queue pauses as a whole,
and each pause ends with one attempt. After as many attempts as one delivery gets, the webhook is disabled, which tells
the tenant why.
"""

import asyncio
import random
import secrets
from dataclasses import dataclass, replace
from typing import Final

from warren.governance.webhooks.deliveries import Delivery, DeliveryQueues, Message, State, new_message, read_delivery
from warren.governance.webhooks.registry import Webhook, WebhookRegistry
from warren.governance.webhooks.retries import (
    ATTEMPTS,
    NextStep,
    Step,
    after_failure,
    after_response,
    read_retry_after,
)
from warren.governance.webhooks.sender import NoPublicAddress, WebhookSender
from warren.governance.webhooks.signing import sign
from warren.interfaces.records import Record
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.kernel.fair_share import FairShare
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import RateLimited, Unavailable, WarrenError

LEASE_S: Final = 60.0  # longer than any attempt takes
SCAN_S: Final = 10.0
PING: Final = "ping"
MAX_SENDING: Final = 16
MAX_OF_TENANT: Final = 4
MAX_OF_WEBHOOK: Final = 2
_SWEEP_S: Final = 600.0
_RETRY_STORE_S: Final = 1.0
_EXCERPT: Final = 500
_MAX_NAMELESS: Final = 10_000
_GONE: Final = "its receiver answered 410: it wants nothing any more"

_NAMELESS: Final = f"its name has had no public address in {ATTEMPTS} attempts, for most of a day"

_log = get_log("warren.webhooks")


class Wakeup:
    """`wait` returns when the time is over or `wake` is called, at once if it was called since the last `wait`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        if seconds > 0 and not self._woken.is_set():
            tasks = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._woken.wait())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        self._woken.clear()
        await asyncio.sleep(0)


class DeliverySlots:
    """How many deliveries go on at once: a slow receiver delays neither other receivers nor other tenants. A tenant
    sends MAX_OF_TENANT at once, a webhook gets MAX_OF_WEBHOOK; further deliveries wait."""

    def __init__(self) -> None:
        self._tenants = FairShare(MAX_SENDING, each=MAX_OF_TENANT)
        self._hooks = FairShare(MAX_SENDING, each=MAX_OF_WEBHOOK)

    def __repr__(self) -> str:
        return f"<DeliverySlots: {self._hooks.in_all} of {MAX_SENDING} taken>"

    def has_free(self, tenant: str, hook_id: str) -> bool:
        return self._tenants.may_take(tenant) and self._hooks.may_take(hook_id)

    @property
    def are_full(self) -> bool:
        return self._hooks.in_all >= MAX_SENDING

    def take(self, tenant: str, hook_id: str) -> None:
        self._tenants.take(tenant)
        self._hooks.take(hook_id)

    def give_back(self, tenant: str, hook_id: str) -> None:
        self._tenants.give_back(tenant)
        self._hooks.give_back(hook_id)


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt. Without a status there was no response."""

    status: int | None = None
    error: str = ""
    retry_after_s: float = 0.0
    retryable: bool = True
    is_nameless: bool = False

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class _Nameless:
    """A webhook whose name has no public address: attempts that found it so, when the last did, when the next is."""

    failures: int
    failed_at: float
    until: float


class DeliveryWorker:
    def __init__(self, registry: WebhookRegistry, queues: DeliveryQueues, clock: Clock, sender: WebhookSender) -> None:
        self._registry = registry
        self._queues = queues
        self._clock = clock
        self._sender = sender
        self._slots = DeliverySlots()
        self._wakeup = Wakeup(clock)
        self._next_looks: dict[str, float] = {}  # when to look at which queue
        self._blocked: dict[str, dict[str, None]] = {}  # by tenant: the queues that wait for a slot, in their order
        self._nameless = BoundedDict[str, _Nameless](_MAX_NAMELESS)
        self._sending: set[asyncio.Task[None]] = set()
        self._next_scan = self._next_sweep = clock.now()

    def __repr__(self) -> str:
        return f"<DeliveryWorker: {len(self._sending)} sending, {len(self._next_looks)} queues to look at>"

    def expect(self, hook_id: str, at: float) -> None:
        """Has the worker look at this queue at that time, or earlier."""
        self._next_looks[hook_id] = min(at, self._next_looks.get(hook_id, at))
        self._wakeup.wake()

    async def run(self) -> None:
        """Runs until it is cancelled. That aborts attempts under way; they are made again later."""
        trouble = ""
        try:
            while True:
                try:
                    await self._look_at_due_queues()
                    pause_s, trouble = self._pause_s(), ""
                except Exception as exc:
                    # Deliveries depend on this loop: it must survive whatever the store raises.
                    if repr(exc) != trouble:
                        trouble = repr(exc)
                        _log.error(
                            "webhook_deliveries_paused", error=exc, exc=None if isinstance(exc, WarrenError) else exc
                        )
                    pause_s = _RETRY_STORE_S
                await self._wakeup.wait(pause_s)
        finally:
            await run_shielded(self._abort_attempts())

    async def ping(self, hook: Webhook) -> DeliveryOutcome:
        """Makes one attempt now and keeps nothing of it. Raises RateLimited if there is no free slot."""
        if not self._slots.has_free(hook.tenant, hook.id):
            raise RateLimited(
                "as much is being sent to this webhook, or for this tenant, as may be at once",
                remedy="try again in some seconds",
                retry_after_s=5.0,
            )
        message = new_message(f"evt_{secrets.token_hex(16)}", PING, self._clock.wall(), hook.tenant)
        self._slots.take(hook.tenant, hook.id)
        try:
            outcome = await self._send(hook, message)
        finally:
            self._free_slot(hook.tenant, hook.id)
        if self._next_step(1, outcome).step is NextStep.DISABLE:
            await self._disable(hook.id, _GONE)
        if not outcome.is_nameless and self._nameless.pop(hook.id, None) is not None:
            self.expect(hook.id, self._clock.wall())
        return outcome

    # -- which delivery is next

    async def _look_at_due_queues(self) -> None:
        if self._clock.now() >= self._next_scan:
            await self._scan()
            self._next_scan = self._clock.now() + SCAN_S
        now = self._clock.wall()
        for hook_id in [hook_id for hook_id, at in self._next_looks.items() if at <= now]:
            if self._slots.are_full:
                return
            await self._look(hook_id, now)
            await asyncio.sleep(0)

    def _pause_s(self) -> float:
        """Returns how long to wait for the next look. While all slots are taken that is the next scan: a freed slot
        wakes the worker up."""
        until_scan_s = self._next_scan - self._clock.now()
        if self._slots.are_full or not self._next_looks:
            return until_scan_s
        return min(until_scan_s, min(self._next_looks.values()) - self._clock.wall())

    async def _scan(self) -> None:
        """Notes the queues of all webhooks, and cleans up after deleted ones and old failures."""
        now, sweeps = self._clock.wall(), self._clock.now() >= self._next_sweep
        async for hook_id in self._registry.ids():
            self.expect(hook_id, now)
            if sweeps:
                await self._queues.sweep(hook_id, now)
            await asyncio.sleep(0)
        for hook_id in await self._registry.deleted_before():
            await self._queues.clear(hook_id)
            await self._registry.forget(hook_id)
        if sweeps:
            self._next_sweep = self._clock.now() + _SWEEP_S

    async def _look(self, hook_id: str, now: float) -> None:
        """Starts the attempts that can be started, and notes when to look again."""
        self._next_looks.pop(hook_id, None)
        nameless = self._nameless.get(hook_id)
        if nameless is not None and nameless.until > now:
            self.expect(hook_id, nameless.until)
            return
        records = await self._queues.first(hook_id, now, 1 if nameless is not None else MAX_OF_WEBHOOK + 1)
        for record in records:
            due = record.due or 0.0
            if due > now:
                self.expect(hook_id, due)
                return
            if not self._slots.has_free(record.group, hook_id):
                self._blocked.setdefault(record.group, {})[hook_id] = None
                return
            if nameless is not None:
                self._nameless[hook_id] = replace(nameless, until=now + LEASE_S)  # this attempt alone, until it ends
            await self._take(hook_id, record, now)
        if len(records) > MAX_OF_WEBHOOK:
            self.expect(hook_id, now)

    async def _take(self, hook_id: str, record: Record, now: float) -> None:
        try:
            delivery = read_delivery(record)
        except Unavailable as exc:
            _log.warning("webhook_delivery_discarded", webhook=hook_id, record=record.id, error=exc)
            await self._queues.remove(record)
            return
        delivery = replace(delivery, state=State.SENDING, attempts=delivery.attempts + 1, attempted_at=now)
        taken = await self._queues.change(record, delivery, now + LEASE_S)
        if taken is not None:
            self._start(hook_id, taken, delivery)

    def _start(self, hook_id: str, record: Record, delivery: Delivery) -> None:
        self._slots.take(record.group, hook_id)
        task = asyncio.create_task(self._deliver(hook_id, record, delivery), name=f"webhook {delivery.message.id}")
        self._sending.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            self._free_slot(record.group, hook_id)

        task.add_done_callback(end)

    def _free_slot(self, tenant: str, hook_id: str) -> None:
        self._slots.give_back(tenant, hook_id)
        now, blocked = self._clock.wall(), self._blocked.pop(tenant, {})
        blocked.pop(hook_id, None)
        for waiting in (*blocked, hook_id):  # the others first: they have waited
            self.expect(waiting, now)

    async def _abort_attempts(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    # -- one attempt

    async def _deliver(self, hook_id: str, record: Record, delivery: Delivery) -> None:
        """Makes the attempt. If the store fails, the lease expires and some process tries again."""
        try:
            await self._attempt(hook_id, record, delivery)
        except asyncio.CancelledError:
            await run_shielded(self._put_back(record, delivery))
            raise
        except WarrenError as exc:
            _log.warning("webhook_status_not_saved", delivery=delivery.message.id, error=exc)
        except Exception as exc:
            _log.error("webhook_delivery_failed", delivery=delivery.message.id, exc=exc)

    async def _attempt(self, hook_id: str, record: Record, delivery: Delivery) -> None:
        hook = await self._registry.find(hook_id)
        if hook is None:
            self._nameless.pop(hook_id, None)
            await self._queues.remove(record)
            return
        if hook.disabled:
            self._nameless.pop(hook_id, None)
            error = f"the webhook is disabled: {hook.disabled}"
            failed = replace(delivery, attempts=delivery.attempts - 1, error=error)
            await self._queues.fail(hook_id, record, failed, self._clock.wall())
            return
        outcome = await self._send(hook, delivery.message)
        await run_shielded(self._save(hook_id, record, delivery, outcome))

    async def _send(self, hook: Webhook, message: Message) -> DeliveryOutcome:
        try:
            headers = sign(self._registry.secrets_of(hook), message.id, int(self._clock.wall()), message.body)
            response = await self._sender.send(hook.url, message.body.encode(), headers)
        except WarrenError as exc:
            is_nameless = isinstance(exc, NoPublicAddress)
            return DeliveryOutcome(error=exc.message[:_EXCERPT], retryable=exc.retryable, is_nameless=is_nameless)
        except Exception as exc:
            _log.error("webhook_not_sent", webhook=hook.id, exc=exc)
            return DeliveryOutcome(error="something went wrong inside the server")
        retry_after_s = read_retry_after(response.retry_after, self._clock.wall())
        outcome = DeliveryOutcome(response.status, retry_after_s=retry_after_s)
        if outcome.delivered:
            return outcome
        return replace(outcome, error=f"it answered {response.status}: {response.excerpt}"[:_EXCERPT])

    async def _save(self, hook_id: str, record: Record, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        now, attempts = self._clock.wall(), delivery.attempts
        if outcome.is_nameless:
            attempts = self._nameless_attempts(hook_id, delivery)
        following = self._next_step(attempts, outcome)
        if outcome.is_nameless and following.step is NextStep.GIVE_UP:
            following = Step(NextStep.DISABLE)
        if outcome.is_nameless and following.step is NextStep.TRY_AGAIN:
            self._nameless[hook_id] = _Nameless(attempts, now, now + following.after_s)
        else:
            self._nameless.pop(hook_id, None)
        updated = replace(delivery, state=State.WAITING, status=outcome.status, error=outcome.error)
        if following.step is NextStep.DONE:
            await self._queues.remove(record)
        elif following.step is NextStep.TRY_AGAIN:
            await self._queues.change(record, updated, now + following.after_s)
        else:
            if following.step is NextStep.DISABLE:
                await self._disable(hook_id, _NAMELESS if outcome.is_nameless else _GONE)
            await self._queues.fail(hook_id, record, updated, now)

    def _nameless_attempts(self, hook_id: str, delivery: Delivery) -> int:
        """Returns how many attempts in a row have found the webhook without a public address, as far as this process
        knows. Those that went on together are one."""
        known = self._nameless.get(hook_id)
        if known is None:
            return 1
        return known.failures + ((delivery.attempted_at or 0.0) > known.failed_at)

    async def _disable(self, hook_id: str, reason: str) -> None:
        _log.warning("webhook_disabled", webhook=hook_id, reason=reason)
        await self._registry.disable(hook_id, reason)

    def _next_step(self, attempt: int, outcome: DeliveryOutcome) -> Step:
        chance = random.random()
        if outcome.status is None:
            return after_failure(attempt, chance, retryable=outcome.retryable)
        return after_response(attempt, outcome.status, outcome.retry_after_s, chance)

    async def _put_back(self, record: Record, delivery: Delivery) -> None:
        """Makes an aborted attempt due again; its message may have arrived or not. Does nothing if the outcome was
        saved."""
        waiting = replace(delivery, state=State.WAITING, attempts=delivery.attempts - 1)
        await self._queues.change(record, waiting, self._clock.wall())
