"""The secrets of tenants, as records: set and deleted by their tenant, used by its sessions, shown to nobody.

The value is encrypted for the tenant, the name, the hosts and the place in a request (header or query, format): whoever
can write to the database but does not have the key cannot bind it to another host. For a tenant the secrets of others
do not exist.

`changed` callbacks run before `put` and `delete` return, so sessions of this process follow at once; other processes
compare versions (`SecretRenewal.watch`).
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.interfaces.records import Record, RecordStore
from warren.interfaces.secrets import SecretChanged
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.access import check_tenant
from warren.model.errors import InvalidRequest, NotFound, Unavailable
from warren.model.secrets import MAX_SECRETS, BoundSecret, SecretBinding, SecretKind, check_secret_name, check_value
from warren.stores.encryption import KEY_BYTES, Encryption

_KIND: Final = "secret"
_log = get_log("warren.secrets")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret without its value. The times are times of day."""

    tenant: str
    binding: SecretBinding
    created_at: float
    changed_at: float


class Secrets:
    """Keeps the contract of interfaces/secrets.py. Without `encryption` the values are sealed with a key that only this
    process has: for stores that end with the process, too."""

    def __init__(self, records: RecordStore, clock: Clock, encryption: Encryption | None = None) -> None:
        self._records = records
        self._clock = clock
        self._encryption = encryption or Encryption(os.urandom(KEY_BYTES))
        self._creating = asyncio.Lock()
        self._callbacks: list[SecretChanged] = []

    def __repr__(self) -> str:
        return "<Secrets>"

    def when_changed(self, call: SecretChanged) -> None:
        """Registers a callback, which gets the tenant and the name of each secret that this process sets or deletes."""
        self._callbacks.append(call)

    async def put(self, tenant: str, binding: SecretBinding, value: str) -> tuple[Secret, bool]:
        """Sets the secret, in place of one that has its name. Returns it, and whether it is new."""
        check_tenant(tenant)
        check_value(value)
        now = self._clock.wall()
        if binding.is_expired(now):
            raise InvalidRequest("the secret would have expired before it is set")
        async with self._creating:
            while True:
                current = await self._records.get(_KIND, _id(tenant, binding.name))
                if current is None and await self._records.count(_KIND, group=tenant) >= MAX_SECRETS:
                    raise InvalidRequest(
                        f"the tenant has {MAX_SECRETS} secrets already", remedy="delete those that are not used"
                    )
                created_at = now if current is None else _created_at(current, now)
                secret = Secret(tenant, binding, created_at, now)
                if await self._records.put(self._seal(secret, value, 1 if current is None else current.version + 1)):
                    break
        await self._report_change(tenant, binding.name)
        return secret, current is None

    async def list(self, tenant: str) -> Sequence[Secret]:
        """Returns secrets in the order of their names, without damaged records, so that these harm no others."""
        found = []
        for record in await self._records.list(_KIND, group=tenant, limit=2 * MAX_SECRETS):
            try:
                found.append(_read(record))
            except Unavailable as exc:
                _log.warning("secret_record_damaged", secret=record.id, error=exc)
        return found

    async def get(self, tenant: str, name: str) -> Secret:
        return _read(await self._record_of(tenant, name))

    async def delete(self, tenant: str, name: str) -> None:
        await self._record_of(tenant, name)
        await self._records.delete(_KIND, _id(tenant, name))
        await self._report_change(tenant, name)

    async def find(self, tenant: str, names: Sequence[str]) -> Sequence[BoundSecret]:
        found = []
        for name in names:
            record = await self._records.get(_KIND, _id(tenant, name))
            if record is None:
                continue
            try:
                secret = self._open(record)
            except Unavailable as exc:
                _log.warning("secret_not_read", tenant=tenant, secret=name, error=exc.message)
                continue
            if not secret.is_expired(self._clock.wall()):
                found.append(secret)
        return found

    async def versions(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        found = {}
        for name in names:
            record = await self._records.get(_KIND, _id(tenant, name))
            if record is not None:
                found[name] = f"{record.version} {_created_at(record, 0.0)}"
        return found

    async def renew_encryption(self) -> None:
        """Encrypts all values with this server's first key, so that the other keys are no longer needed for them."""
        after = ""
        while page := await self._records.list(_KIND, after=after, limit=200):
            for record in page:
                try:
                    await self._renew(record)
                except Unavailable as exc:
                    _log.warning("secret_not_renewed", secret=record.id, error=exc.message)
            after = page[-1].id

    async def _renew(self, record: Record) -> None:
        """Encrypts one value anew. If the record has changed meanwhile, that change has encrypted it with the first
        key."""
        values = _values(record)
        sealed = self._encryption.renew(values["sealed"], _purpose(_read(record)))
        if sealed != values["sealed"]:
            await self._records.put(record.changed(json.dumps({**values, "sealed": sealed})))

    async def _record_of(self, tenant: str, name: str) -> Record:
        check_secret_name(name)
        record = await self._records.get(_KIND, _id(tenant, name))
        if record is None:
            raise NotFound(f"there is no secret {name!r}", remedy="`warren secrets list` shows those there are")
        return record

    def _seal(self, secret: Secret, value: str, version: int) -> Record:
        values = {
            "tenant": secret.tenant,
            "binding": asdict(secret.binding),
            "created_at": secret.created_at,
            "changed_at": secret.changed_at,
            "sealed": self._encryption.encrypt(value, _purpose(secret)),
        }
        name = secret.binding.name
        return Record(_KIND, _id(secret.tenant, name), json.dumps(values), version, group=secret.tenant)

    def _open(self, record: Record) -> BoundSecret:
        secret = _read(record)
        value = self._encryption.decrypt(_values(record)["sealed"], _purpose(secret))
        return BoundSecret(**_fields(secret.binding), value=value)

    async def _report_change(self, tenant: str, name: str) -> None:
        for call in self._callbacks:
            await call(tenant, name)


def secret_view(secret: Secret) -> dict[str, Any]:
    """Returns everything about a secret but its value."""
    binding = secret.binding
    return {
        "name": binding.name,
        "tenant": secret.tenant,
        "hosts": list(binding.hosts),
        "header": binding.header or None,
        "query": binding.query or None,
        "format": binding.format,
        "kind": binding.kind or None,
        "path": binding.path,
        "scrub": binding.scrub,
        "expires_at": binding.expires_at,
        "created_at": secret.created_at,
        "changed_at": secret.changed_at,
    }


def _id(tenant: str, name: str) -> str:
    return f"{tenant}/{name}"


def _purpose(secret: Secret) -> str:
    bound = secret.binding
    return json.dumps(["secret", secret.tenant, bound.name, bound.hosts, bound.header, bound.query, bound.format])


def _fields(binding: SecretBinding) -> dict[str, Any]:
    return {name: getattr(binding, name) for name in asdict(binding)}


def _values(record: Record) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(record.value)
        values["sealed"], values["binding"]["hosts"], values["created_at"]
    except (ValueError, TypeError, KeyError) as exc:
        raise _damaged(record) from exc
    return values


def _read(record: Record) -> Secret:
    values = _values(record)
    try:
        binding = values["binding"]
        kind = SecretKind(binding["kind"])
        bound = SecretBinding(**{**binding, "hosts": tuple(binding["hosts"]), "kind": kind})
        return Secret(values["tenant"], bound, values["created_at"], values["changed_at"])
    except (ValueError, TypeError, KeyError, InvalidRequest) as exc:
        raise _damaged(record) from exc


def _created_at(record: Record, default: float) -> float:
    try:
        return float(_values(record)["created_at"])
    except (Unavailable, ValueError, TypeError):
        return default


def _damaged(record: Record) -> Unavailable:
    return Unavailable(f"the record of the secret {record.id!r} is damaged", remedy="set the secret anew")
