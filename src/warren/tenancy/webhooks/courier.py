"""Brings what waits in the lines to its receivers.

`run` goes from line to line. It takes what is due and for which there is a place, by a change over the record as it
was: of several processes one succeeds, and for LEASE_S nobody else takes it. A task of its own then makes the attempt:
what was delivered is deleted, what was not waits for the next attempt or is given up. If the process dies in
between, the lease runs out and another attempt follows: every message is delivered at least once.

A line is looked at when something was put into it here, when an attempt of it has ended, and when its next delivery is
due. What others left behind is found by looking at all lines every LOOK_AT_ALL_S.
"""

import asyncio
import logging
import random
import secrets
from dataclasses import dataclass, replace
from typing import Final

from warren.clock import Clock
from warren.interfaces.records import Record
from warren.model.errors import RateLimited, Unavailable, WarrenError
from warren.shielding import run_shielded
from warren.tenancy.webhooks.deliveries import Delivery, DeliveryQueues, Message, State, new_message, read_delivery
from warren.tenancy.webhooks.hooks import Hooks, Webhook
from warren.tenancy.webhooks.post import Poster
from warren.tenancy.webhooks.retries import Next, NextStep, after_answer, after_failure, read_retry_after
from warren.tenancy.webhooks.signing import sign
from warren.tenancy.webhooks.slots import OF_A_WEBHOOK, DeliverySlots
from warren.tenancy.webhooks.wakeup import Wakeup

LEASE_S: Final = 60.0  # longer than any attempt takes
LOOK_AT_ALL_S: Final = 10.0
PING: Final = "ping"
_SWEEP_S: Final = 600.0
_TROUBLE_S: Final = 1.0
_EXCERPT: Final = 500
_GONE: Final = "its receiver answered 410: it wants nothing any more"

_log = logging.getLogger("warren.webhooks")


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """Of one attempt. Without a status there was no answer."""

    status: int | None = None
    error: str = ""
    asked_s: float = 0.0
    retryable: bool = True

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Courier:
    def __init__(self, hooks: Hooks, lines: DeliveryQueues, clock: Clock, poster: Poster) -> None:
        self._hooks = hooks
        self._lines = lines
        self._clock = clock
        self._poster = poster
        self._places = DeliverySlots()
        self._wakeup = Wakeup(clock)
        self._looks: dict[str, float] = {}  # when to look at which line
        self._held_up: dict[str, dict[str, None]] = {}  # lines to look at when their tenant has a place, in turn
        self._sending: set[asyncio.Task[None]] = set()
        self._look_at_all = self._sweep = clock.now()

    def __repr__(self) -> str:
        return f"<Courier: {len(self._sending)} sending, {len(self._looks)} lines to look at>"

    def expect(self, hook_id: str, at: float) -> None:
        """In this line something is due then."""
        self._looks[hook_id] = min(at, self._looks.get(hook_id, at))
        self._wakeup.ring()

    async def run(self) -> None:
        """Ends when it is cancelled. Attempts under way are broken off then, and made again later."""
        trouble = ""
        try:
            while True:
                try:
                    await self._round()
                    pause_s, trouble = self._until_next(), ""
                except Exception as exc:
                    # What waits, waits for this loop: it outlives whatever the store raises.
                    if repr(exc) != trouble:
                        trouble = repr(exc)
                        unforeseen = None if isinstance(exc, WarrenError) else exc
                        _log.warning("webhooks cannot be sent, it is tried again: %s", exc, exc_info=unforeseen)
                    pause_s = _TROUBLE_S
                await self._wakeup.rest(pause_s)
        finally:
            await run_shielded(self._break_off())

    async def ping(self, hook: Webhook) -> DeliveryOutcome:
        """One attempt, now; nothing of it is kept. Raises RateLimited if there is no place for it."""
        if not self._places.free(hook.tenant, hook.id):
            raise RateLimited(
                "as much is being sent to this webhook, or for this tenant, as may be at once",
                remedy="try again in some seconds",
                retry_after_s=5.0,
            )
        message = new_message(f"evt_{secrets.token_hex(16)}", PING, self._clock.wall(), hook.tenant)
        self._places.take(hook.tenant, hook.id)
        try:
            outcome = await self._send(hook, message)
        finally:
            self._left(hook.tenant, hook.id)
        if self._decide(1, outcome).verdict is NextStep.GONE:
            await self._hooks.disable(hook.id, _GONE)
        return outcome

    # -- which one is next

    async def _round(self) -> None:
        if self._clock.now() >= self._look_at_all:
            await self._find_all()
            self._look_at_all = self._clock.now() + LOOK_AT_ALL_S
        now = self._clock.wall()
        for hook_id in [hook_id for hook_id, at in self._looks.items() if at <= now]:
            if self._places.full:
                return
            await self._look(hook_id, now)
            await asyncio.sleep(0)

    def _until_next(self) -> float:
        """If all places are taken, the bell rings when one is free."""
        all_s = self._look_at_all - self._clock.now()
        if self._places.full or not self._looks:
            return all_s
        return min(all_s, min(self._looks.values()) - self._clock.wall())

    async def _find_all(self) -> None:
        now, sweep = self._clock.wall(), self._clock.now() >= self._sweep
        async for hook_id in self._hooks.ids():
            self.expect(hook_id, now)
            if sweep:
                await self._lines.sweep(hook_id, now)
            await asyncio.sleep(0)
        for hook_id in await self._hooks.deleted_before():
            await self._lines.clear(hook_id)
            await self._hooks.forget(hook_id)
        if sweep:
            self._sweep = self._clock.now() + _SWEEP_S

    async def _look(self, hook_id: str, now: float) -> None:
        """Starts what can be started, and notes when to look again."""
        self._looks.pop(hook_id, None)
        found = await self._lines.first(hook_id, now, OF_A_WEBHOOK + 1)
        for record in found:
            due = record.due or 0.0
            if due > now:
                self.expect(hook_id, due)
                return
            if not self._places.free(record.group, hook_id):
                self._held_up.setdefault(record.group, {})[hook_id] = None
                return
            await self._take(hook_id, record, now)
        if len(found) > OF_A_WEBHOOK:
            self.expect(hook_id, now)

    async def _take(self, hook_id: str, record: Record, now: float) -> None:
        try:
            delivery = read_delivery(record)
        except Unavailable as exc:
            _log.warning("a delivery is thrown away: %s", exc)
            await self._lines.remove(record)
            return
        delivery = replace(delivery, state=State.SENDING, attempts=delivery.attempts + 1, attempted_at=now)
        taken = await self._lines.change(record, delivery, now + LEASE_S)
        if taken is not None:
            self._start(hook_id, taken, delivery)

    def _start(self, hook_id: str, record: Record, delivery: Delivery) -> None:
        self._places.take(record.group, hook_id)
        task = asyncio.create_task(self._deliver(hook_id, record, delivery), name=f"webhook {delivery.message.id}")
        self._sending.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            self._left(record.group, hook_id)

        task.add_done_callback(ended)

    def _left(self, tenant: str, hook_id: str) -> None:
        self._places.give_back(tenant, hook_id)
        now, held_up = self._clock.wall(), self._held_up.pop(tenant, {})
        held_up.pop(hook_id, None)
        for waiting in (*held_up, hook_id):  # the others first: they have waited
            self.expect(waiting, now)

    async def _break_off(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    # -- one attempt

    async def _deliver(self, hook_id: str, record: Record, delivery: Delivery) -> None:
        """If this fails, the lease runs out and somebody tries again."""
        try:
            await self._attempt(hook_id, record, delivery)
        except asyncio.CancelledError:
            await run_shielded(self._put_back(record, delivery))
            raise
        except WarrenError as exc:
            _log.warning("what became of the delivery %s cannot be kept: %s", delivery.message.id, exc)
        except Exception:
            _log.exception("the delivery %s failed", delivery.message.id)

    async def _attempt(self, hook_id: str, record: Record, delivery: Delivery) -> None:
        hook = await self._hooks.find(hook_id)
        if hook is None:
            await self._lines.remove(record)
            return
        if hook.disabled:
            told = replace(delivery, attempts=delivery.attempts - 1, error=f"the webhook is disabled: {hook.disabled}")
            await self._lines.fail(hook_id, record, told, self._clock.wall())
            return
        outcome = await self._send(hook, delivery.message)
        await run_shielded(self._settle(hook_id, record, delivery, outcome))

    async def _send(self, hook: Webhook, message: Message) -> DeliveryOutcome:
        body = message.body.encode()
        try:
            headers = sign([self._hooks.secret_of(hook)], message.id, int(self._clock.wall()), body)
            answer = await self._poster.post(hook.url, body, headers)
        except WarrenError as exc:
            return DeliveryOutcome(error=exc.message[:_EXCERPT], retryable=exc.retryable)
        except Exception:
            _log.exception("the webhook %s cannot be sent", hook.id)
            return DeliveryOutcome(error="something went wrong inside the server")
        outcome = DeliveryOutcome(answer.status, asked_s=read_retry_after(answer.retry_after, self._clock.wall()))
        if outcome.delivered:
            return outcome
        return replace(outcome, error=f"it answered {answer.status}: {answer.excerpt}"[:_EXCERPT])

    async def _settle(self, hook_id: str, record: Record, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        now, step = self._clock.wall(), self._decide(delivery.attempts, outcome)
        told = replace(delivery, state=State.WAITING, status=outcome.status, error=outcome.error)
        if step.verdict is NextStep.DELIVERED:
            await self._lines.remove(record)
        elif step.verdict is NextStep.TRY_AGAIN:
            await self._lines.change(record, told, now + step.after_s)
        else:
            if step.verdict is NextStep.GONE:
                await self._hooks.disable(hook_id, _GONE)
            await self._lines.fail(hook_id, record, told, now)

    def _decide(self, attempt: int, outcome: DeliveryOutcome) -> Next:
        chance = random.random()
        if outcome.status is None:
            return after_failure(attempt, chance, retryable=outcome.retryable)
        return after_answer(attempt, outcome.status, outcome.asked_s, chance)

    async def _put_back(self, record: Record, delivery: Delivery) -> None:
        """It was broken off, and may have arrived or not: another attempt follows, by whoever comes next. Does nothing
        if it was settled."""
        waiting = replace(delivery, state=State.WAITING, attempts=delivery.attempts - 1)
        await self._lines.change(record, waiting, self._clock.wall())
