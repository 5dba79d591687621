"""The deliveries that wait to be sent: a queue for each webhook, kept as records.

Each queue is a kind of records of its own, so finding the next delivery of a webhook takes the same time however long
the queues of others are. Names of records begin with the time, counted backwards: the newest are listed first. Failed
deliveries move to another kind, where the last few are kept for a day for people to look at.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from warren.interfaces.records import Record, RecordStore
from warren.model.errors import Unavailable

FAILED_KEPT_S: Final = 86400.0
MAX_FAILED: Final = 100  # of each webhook
_PAGE: Final = 500
_LATEST_US: Final = 10**16 - 1
_FAR_S: Final = 366 * 86400.0


class State(StrEnum):
    WAITING = "waiting"
    SENDING = "sending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Message:
    """An event as a receiver gets it. Every attempt to deliver it has the same id and the same body."""

    id: str
    type: str
    body: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to one webhook. `status` and `error` are those of the last attempt that has ended."""

    message: Message
    made_at: float
    state: State = State.WAITING
    attempts: int = 0
    attempted_at: float | None = None
    status: int | None = None
    error: str = ""


def new_message(
    message_id: str, kind: str, at: float, tenant: str, session_id: str = "", data: Mapping[str, Any] | None = None
) -> Message:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    values = {
        "id": message_id,
        "type": kind,
        "timestamp": moment,
        "tenant": tenant,
        "session_id": session_id,
        "data": dict(data or {}),
    }
    return Message(message_id, kind, json.dumps(values, allow_nan=False))


class DeliveryQueues:
    """`add` and `fail` may be repeated: a message is in the queue of a webhook once."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def __repr__(self) -> str:
        return "<DeliveryQueues>"

    async def add(self, hook_id: str, tenant: str, message: Message, made_at: float, now: float) -> bool:
        name = f"{_LATEST_US - int(made_at * 1e6):016d}-{message.id}"
        value = _text(Delivery(message, made_at))
        return await self._records.put(Record(_waiting(hook_id), name, value, group=tenant, due=now))

    async def count(self, hook_id: str) -> int:
        return await self._records.count(_waiting(hook_id))

    async def first(self, hook_id: str, now: float, limit: int) -> Sequence[Record]:
        """Returns the deliveries that are due first, also those that are not due yet."""
        return await self._records.due(_waiting(hook_id), now + _FAR_S, limit)

    async def change(self, record: Record, delivery: Delivery, due: float) -> Record | None:
        """Returns the changed record; None if another process has changed or deleted it."""
        changed = record.changed(_text(delivery), due)
        return changed if await self._records.put(changed) else None

    async def remove(self, record: Record) -> None:
        await self._records.delete(record.kind, record.id)

    async def fail(self, hook_id: str, record: Record, delivery: Delivery, now: float) -> None:
        """Moves a delivery from the queue to the failed ones, which are kept for a day."""
        value = _text(replace(delivery, state=State.FAILED))
        kept = Record(_failed(hook_id), record.id, value, group=record.group, due=now + FAILED_KEPT_S)
        await self._records.put(kept)  # before it leaves the queue: if the process dies in between, it is not lost
        await self.remove(record)
        for old in (await self._records.list(kept.kind, limit=MAX_FAILED + 1))[MAX_FAILED:]:
            await self.remove(old)

    async def newest(self, hook_id: str, limit: int) -> Sequence[Record]:
        """Returns deliveries that wait, are being sent or have failed, newest first."""
        waiting = await self._records.list(_waiting(hook_id), limit=limit)
        failed = await self._records.list(_failed(hook_id), limit=limit)
        return sorted([*waiting, *failed], key=lambda record: record.id)[:limit]

    async def sweep(self, hook_id: str, now: float) -> None:
        """Deletes failed deliveries that are too old."""
        for record in await self._records.due(_failed(hook_id), now, _PAGE):
            await self.remove(record)

    async def clear(self, hook_id: str) -> None:
        for kind in (_waiting(hook_id), _failed(hook_id)):
            while page := await self._records.list(kind, limit=_PAGE):
                for record in page:
                    await self.remove(record)
                    await asyncio.sleep(0)


def read_delivery(record: Record) -> Delivery:
    try:
        values = json.loads(record.value)
        return Delivery(**{**values, "message": Message(**values["message"]), "state": State(values["state"])})
    except (ValueError, TypeError, KeyError) as exc:
        raise Unavailable(f"the delivery {record.id!r} is damaged", remedy="delete it from the store") from exc


def delivery_view(record: Record) -> dict[str, Any]:
    """Returns the progress of a delivery, without its content. Times are times of day."""
    delivery = read_delivery(record)
    waiting = delivery.state is State.WAITING
    return {
        "id": record.id,
        "message_id": delivery.message.id,
        "type": delivery.message.type,
        "state": str(delivery.state),
        "attempts": delivery.attempts,
        "created_at": delivery.made_at,
        "attempted_at": delivery.attempted_at,
        "next_attempt_at": record.due if waiting else None,
        "status": delivery.status,
        "error": delivery.error,
    }


def _waiting(hook_id: str) -> str:
    return f"delivery/{hook_id}"


def _failed(hook_id: str) -> str:
    return f"delivery-failed/{hook_id}"


def _text(delivery: Delivery) -> str:
    return json.dumps(asdict(delivery))
