"""The webhooks that tenants have registered, as records: which events go where.

Signing needs the secret of a webhook, so the registry keeps it, encrypted if there is a key, and shows it once. For a
tenant the webhooks of others do not exist.

The registry notes each deleted webhook for a while: another process that does not know yet may still add a delivery to
its queue, and the process that finds the note when it is due clears the queue once more.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from warren.governance.webhooks.signing import new_secret
from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import InvalidRequest, NotFound, Unavailable
from warren.model.events import EventKind
from warren.stores.encryption import Encryption, decrypt

EVERYTHING: Final = "*"
MAX_WEBHOOKS: Final = 20
MAX_DESCRIPTION: Final = 200
CLEARED_AGAIN_S: Final = 120.0  # by then every process knows of the deletion, and every attempt under way has ended
_KIND: Final = "webhook"
_DELETED: Final = "webhook-deleted"
_PAGE: Final = 200

_log = get_log("warren.webhooks")


@dataclass(frozen=True, slots=True)
class Webhook:
    """`secret` may be encrypted, see `WebhookRegistry.secrets_of`. Until `old_until` messages are signed with the
    `old_secret` as well. `disabled` says why the webhook is disabled, and is empty if it is not."""

    id: str
    tenant: str
    url: str
    events: tuple[str, ...]
    created_at: float
    secret: str = field(repr=False)
    sealed: bool = False
    disabled: str = ""
    description: str = ""
    old_secret: str = field(default="", repr=False)
    old_sealed: bool = False
    old_until: float = 0.0

    def wants(self, kind: str) -> bool:
        return not self.disabled and (EVERYTHING in self.events or kind in self.events)


class WebhookRegistry:
    def __init__(self, records: RecordStore, clock: Clock, encryption: Encryption | None = None) -> None:
        self._records = records
        self._clock = clock
        self._encryption = encryption
        self._creating = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<WebhookRegistry {'encrypted' if self._encryption else 'not encrypted'}>"

    async def create(self, tenant: str, url: str, events: Sequence[str], description: str) -> tuple[Webhook, str]:
        """Returns the webhook and its secret, which nobody can show again. Does not check the URL."""
        wanted = read_events(events)
        _check_description(description)
        secret, hook_id = new_secret(), f"wh_{secrets.token_hex(12)}"
        kept = self._encryption.encrypt(secret, _purpose(hook_id)) if self._encryption else secret
        hook = Webhook(
            hook_id,
            tenant,
            url,
            wanted,
            self._clock.wall(),
            kept,
            sealed=self._encryption is not None,
            description=description,
        )
        async with self._creating:
            if await self._records.count(_KIND, group=tenant) >= MAX_WEBHOOKS:
                raise InvalidRequest(
                    f"there are {MAX_WEBHOOKS} webhooks already", remedy="delete one, or let one URL be told of more"
                )
            await self._records.put(_record(hook, 1))
        return hook, secret

    async def list(self, tenant: str) -> Sequence[Webhook]:
        """Returns a tenant's webhooks, without damaged records, so that these harm no others."""
        found = []
        for record in await self._records.list(_KIND, group=tenant, limit=_PAGE):
            try:
                found.append(_read(record))
            except Unavailable as exc:
                _log.warning("webhook_record_damaged", webhook=record.id, error=exc)
        return sorted(found, key=lambda hook: (hook.created_at, hook.id))

    async def get(self, tenant: str, hook_id: str) -> Webhook:
        return _read(await self._record_of(tenant, hook_id))

    async def _record_of(self, tenant: str, hook_id: str) -> Record:
        record = await self._records.get(_KIND, hook_id)
        if record is None or record.group != tenant:
            raise NotFound(
                f"there is no webhook {hook_id[:80]!r}", remedy="`warren webhooks list` shows those there are"
            )
        return record

    async def find(self, hook_id: str) -> Webhook | None:
        """Finds a webhook of any tenant."""
        record = await self._records.get(_KIND, hook_id)
        return None if record is None else _read(record)

    async def ids(self) -> AsyncIterator[str]:
        """Yields the ids of all tenants' webhooks."""
        after = ""
        while page := await self._records.list(_KIND, after=after, limit=_PAGE):
            for record in page:
                yield record.id
            after = page[-1].id

    async def delete(self, tenant: str, hook_id: str) -> None:
        await self._record_of(tenant, hook_id)
        due = self._clock.wall() + CLEARED_AGAIN_S
        # Before the webhook is gone: if the process dies after that, its queue is cleared all the same.
        await self._records.put(Record(_DELETED, hook_id, "", due=due))
        await self._records.delete(_KIND, hook_id)

    async def deleted_before(self) -> Sequence[str]:
        """Returns deleted webhooks whose queues have to be cleared once more; then `forget` them."""
        return [record.id for record in await self._records.due(_DELETED, self._clock.wall(), _PAGE)]

    async def forget(self, hook_id: str) -> None:
        await self._records.delete(_DELETED, hook_id)

    async def disable(self, hook_id: str, reason: str) -> None:
        """Disables the webhook: nothing is sent to it from now on."""
        while (record := await self._records.get(_KIND, hook_id)) is not None:
            changed = replace(_read(record), disabled=reason)
            if await self._records.put(_record(changed, record.version + 1)):
                return

    async def rotate(self, tenant: str, hook_id: str, keep_old_s: float) -> tuple[Webhook, str]:
        """Gives the webhook a new secret, which nobody can show again. For `keep_old_s` messages are signed with the
        old one, too."""
        while True:
            record = await self._record_of(tenant, hook_id)
            hook, secret = _read(record), new_secret()
            changed = replace(
                hook,
                secret=self._encryption.encrypt(secret, _purpose(hook_id)) if self._encryption else secret,
                sealed=self._encryption is not None,
                old_secret=hook.secret if keep_old_s else "",
                old_sealed=hook.sealed,
                old_until=self._clock.wall() + keep_old_s,
            )
            if await self._records.put(_record(changed, record.version + 1)):
                return changed, secret

    async def renew_encryption(self) -> None:
        """Encrypts all secrets with this server's first key, so that the other keys are no longer needed for them."""
        if self._encryption is None:
            return
        async for hook_id in self.ids():
            try:
                await self._renew(hook_id, self._encryption)
            except Unavailable as exc:
                _log.warning("webhook_secret_not_renewed", webhook=hook_id, error=exc)

    async def _renew(self, hook_id: str, encryption: Encryption) -> None:
        while (record := await self._records.get(_KIND, hook_id)) is not None:
            hook = _read(record)
            values = {"secret": hook.secret} if hook.sealed else {}
            values |= {"old_secret": hook.old_secret} if hook.old_secret and hook.old_sealed else {}
            fresh = {name: encryption.renew(value, _purpose(hook_id)) for name, value in values.items()}
            if fresh == values or await self._records.put(_record(replace(hook, **fresh), record.version + 1)):  # type: ignore[arg-type]
                return

    def secrets_of(self, hook: Webhook) -> Sequence[str]:
        """Returns the secrets that sign its messages, the newest first. Raises Unavailable if one was encrypted with a
        key that this server does not have."""
        kept = [(hook.secret, hook.sealed)]
        if hook.old_secret and self._clock.wall() < hook.old_until:
            kept.append((hook.old_secret, hook.old_sealed))
        return [decrypt(self._encryption, text, _purpose(hook.id)) if sealed else text for text, sealed in kept]


def read_events(names: Sequence[str]) -> tuple[str, ...]:
    known = {EVERYTHING, *map(str, EventKind)}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"there is no event {name[:80]!r}", remedy=f"there are: {', '.join(sorted(known))}")
    if not names:
        raise InvalidRequest("a webhook without events is never sent", remedy=f"{EVERYTHING!r} stands for all of them")
    return (EVERYTHING,) if EVERYTHING in names else tuple(sorted(set(names)))


def webhook_view(hook: Webhook) -> dict[str, Any]:
    """Returns everything about a webhook but its secret."""
    return {
        "id": hook.id,
        "url": hook.url,
        "events": list(hook.events),
        "description": hook.description,
        "created_at": hook.created_at,
        "disabled": hook.disabled or None,
    }


def _check_description(text: str) -> None:
    if len(text) > MAX_DESCRIPTION or not text.isprintable():
        raise InvalidRequest(f"the description of a webhook has at most {MAX_DESCRIPTION} printable characters")


def _purpose(hook_id: str) -> str:
    return f"webhook {hook_id}"


def _record(hook: Webhook, version: int) -> Record:
    return Record(_KIND, hook.id, json.dumps(asdict(hook)), version, group=hook.tenant)


def _read(record: Record) -> Webhook:
    try:
        values = json.loads(record.value)
        return Webhook(**{**values, "events": tuple(values["events"])})
    except (ValueError, TypeError, KeyError) as exc:
        raise Unavailable(
            f"the record of the webhook {record.id!r} is damaged", remedy="delete it, make it anew"
        ) from exc
