"""A process that publishes one event and delivers until it is killed: its arguments are a store and the event's id."""

import asyncio
import sys
import time
from pathlib import Path

from machine.webhook_receiver import PUBLIC

from warren.governance.webhooks.outbox import Webhooks
from warren.governance.webhooks.sender import WebhookSender
from warren.kernel.clock import SystemClock
from warren.model.addresses import read_networks
from warren.model.events import Event, EventKind, QuotaReachedData
from warren.stores.sqlite import SqliteStore


async def main() -> None:
    store = await SqliteStore.open(Path(sys.argv[1]))
    made = Webhooks(store.records, SystemClock(), WebhookSender(read_networks([f"{PUBLIC}/32"])))
    made.publish(Event(EventKind.QUOTA_REACHED, "acme", time.time(), QuotaReachedData("sessions", ""), id=sys.argv[2]))
    await made.run()


if __name__ == "__main__":
    asyncio.run(main())
