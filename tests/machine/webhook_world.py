"""Webhooks on a clock that stands still, with receivers on loopback: what their tests share."""

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver
from machine.webhook_receiver import PUBLIC, Receiver, Talk, saying
from this_run import patience

from warren.governance.webhooks.outbox import MAX_WAITING, Webhooks
from warren.governance.webhooks.sender import WebhookSender
from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.model.addresses import read_networks
from warren.model.errors import Unavailable
from warren.model.events import Event, EventKind, SessionEndedData
from warren.stores.encryption import Encryption
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

PATIENCE_S = patience(60.0)
NOW = 1_800_000_000.0


@dataclass(frozen=True)
class Post:
    """A request as its receiver sees it."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.body)
        return values


def posts(receiver: Receiver) -> list[Post]:
    found = []
    for request in receiver.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
        found.append(Post({name.lower(): value for name, value in lines}, body))
    return found


def ids(receiver: Receiver) -> list[str]:
    return [post.id for post in posts(receiver)]


def one_after_the_other(*talks: Talk) -> Talk:
    """The last one serves all that follow."""
    left = list(talks)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(reader, writer)

    return talk


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


TAKES = saying(b"thanks")
FAILS = saying(b"oh no", "500 Internal Server Error")
GONE = saying(b"go away", "410 Gone")


def an_event(
    tenant: str = "acme", kind: EventKind = EventKind.SESSION_ENDED, reason: str = "deleted", lived_s: float = 1.5
) -> Event:
    return Event(kind, tenant, NOW, SessionEndedData(None, 512, reason, lived_s), "ses_1")


class FailingRecords(MemoryRecords):
    broken = False

    async def put(self, record: Record) -> bool:
        if self.broken:
            raise Unavailable("the store is away")
        return await super().put(record)


@contextlib.asynccontextmanager
async def webhooks(
    records: RecordStore,
    clock: Clock,
    encryption: Encryption | None = None,
    *,
    resolver: AbstractResolver | None = None,
    max_waiting: int = MAX_WAITING,
) -> AsyncIterator[Webhooks]:
    """Publishes and does not deliver."""
    sender = WebhookSender(
        read_networks([f"{PUBLIC}/32"]), timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, resolver=resolver
    )
    made = Webhooks(records, clock, sender, encryption, max_waiting=max_waiting)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def delivering(made: Webhooks) -> AsyncIterator[None]:
    task = asyncio.create_task(made.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def working(records: RecordStore, clock: Clock, **values: Any) -> AsyncIterator[Webhooks]:
    async with webhooks(records, clock, **values) as made, delivering(made):
        yield made


async def wait_until(condition: Callable[[], object | Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await result if inspect.isawaitable(result := condition()) else result):
            await asyncio.sleep(0.01)


async def states(made: Webhooks, hook_id: str, tenant: str = "acme") -> list[tuple[str, int]]:
    return [(one["state"], one["attempts"]) for one in await made.deliveries(tenant, hook_id, 1000)]


async def until_states(made: Webhooks, hook_id: str, *wanted: tuple[str, int], tenant: str = "acme") -> None:
    async def as_wanted() -> bool:
        return await states(made, hook_id, tenant) == list(wanted)

    await wait_until(as_wanted)


async def until_delivered(
    made: Webhooks, hook_id: str, requests: list[bytes], count: int, tenant: str = "acme"
) -> None:
    await wait_until(lambda: len(requests) >= count)
    await until_states(made, hook_id, tenant=tenant)


async def to_the_next_attempt(clock: ManualClock, made: Webhooks, hook_id: str) -> None:
    """And no further: the lease of the attempt that begins then would run out."""
    (shown,) = await made.deliveries("acme", hook_id)
    await clock.advance(shown["next_attempt_at"] - clock.wall() + 0.001)
